"""The compiled machine against the SimPy one: nothing may differ, to the femtosecond and the slot."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import santa_sim
from santa_sim.errors import InputError
from santa_sim.simulator.replayer import Replayer
from santa_sim.simulator.steady import is_steady

W = {"name": "small", "model": "none", "kind": "decode", "heads": 8, "kv_heads": 4, "head_dim": 64, "n_k": [700, 300], "model_layers": 1,
     "dtype": "bfloat16", "source": {"type": "gaussian"}}  # fmt: skip
TIGHT = {
    "base": "mac_hbm3", "k_buffer": {"tiles": 2, "tile_bytes": 4096}, "v_buffer": {"tiles": 1, "tile_bytes": 2048}, "lookahead_tiles": 1,
    "weights_buffer": {"tiles": 2, "tile_bytes": 512}, "write_buffer": {"tiles": 1, "tile_bytes": 256}, "stash": {"bytes": 4096, "port_bytes_per_cycle": 16},
    "gather": {"addresses_per_cycle": 1, "outstanding": 3, "queue_items": 1}, "score": {"mac_lanes": 64, "adder_lanes": 64, "queue_tiles": 1},
}  # fmt: skip
MACHINES = [
    "mac_hbm3", "mac_lpddr5", "mac_hbm3_bandwidth", {"base": "mac_hbm3", "memory": {"dram": "ddr5_4800"}, "kv_layout": "paged-16"}, TIGHT,
    {**TIGHT, "memory": {"dram": "ddr4_3200"}}, {**TIGHT, "base": "mac_hbm3_bandwidth", "clock_hz": 733_000_000},
]  # fmt: skip
RUNS = [
    {"method": "sdpa"}, {"method": "topk", "k": 24}, {"method": "santa", "S": 16}, {"method": "s2anta-sys", "S": 16},
    {"method": "s2anta-prop", "S": 32}, {"method": "s2anta-flash", "S": 32, "tile": 32}, {"method": "s2anta-prop", "S": 16, "score": "bernoulli-stratified", "B": 2},
]  # fmt: skip


@pytest.fixture(scope="module")
def traces():
    return [santa_sim.make_trace(W, **run) for run in RUNS]


def equal(trace, machine, replayer=None):
    machine = santa_sim.load_hardware(machine)
    told, compiled = santa_sim.simulate(trace, machine), (replayer or Replayer(trace)).result(machine)
    for field in dataclasses.fields(told):
        if field.name != "played":
            assert getattr(compiled, field.name) == getattr(told, field.name), field.name
    return compiled


@pytest.mark.parametrize("index", range(len(RUNS)), ids=lambda i: "-".join(map(str, RUNS[i].values())))
def test_same_result_on_every_machine(traces, index):
    replayer = Replayer(traces[index])
    for machine in MACHINES:
        equal(traces[index], machine, replayer)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_same_result_on_random_machines(traces, data):
    def draw(*values):
        return data.draw(st.sampled_from(values))

    machine = {
        **TIGHT, "base": draw("mac_hbm3", "mac_lpddr5", "mac_ddr5", "mac_hbm3_bandwidth"), "lookahead_tiles": draw(0, 1, 2),
        "k_buffer": {"tiles": draw(1, 2, 5), "tile_bytes": draw(1024, 8192)}, "stash": {"bytes": draw(0, 512, 65536)},
        "gather": {"addresses_per_cycle": draw(1, 4), "outstanding": draw(1, 7, 64), "queue_items": draw(1, 4)},
        "accumulate": {"lanes": draw(1, 100, 2048)}, "clock_hz": draw(5 * 10**8, 10**9, 1_234_567_891), "softmax": {"lanes": draw(1, 32)},
        "score": {"mac_lanes": draw(64, 1024), "adder_lanes": 64, "queue_tiles": draw(1, 2)}, "write_buffer": {"tiles": draw(1, 2), "tile_bytes": 256},
    }  # fmt: skip
    equal(data.draw(st.sampled_from(traces)), machine)


def test_a_plan_is_shared_where_only_the_memory_or_the_energies_differ(traces, monkeypatch):
    from santa_sim.simulator import replayer as module

    made, fitting = [], module.fitting
    monkeypatch.setattr(module, "fitting", lambda *arguments: (made.append(1), fitting(*arguments))[1])
    replayer = Replayer(traces[4])
    for memory in ({"dram": "hbm3"}, {"dram": "hbm2e"}, {"dram": "hbm3", "dram_changes": {"organization": {"channels": 4}}}):
        equal(traces[4], {"base": "mac_hbm3", "memory": memory, "gather": {"outstanding": 9}}, replayer)
    equal(traces[4], {"base": "mac_hbm3", "technology": {"node_nm": 7, "supply_v": 0.7}}, replayer)
    assert len(made) == 1 + (santa_sim.load_dram("hbm2e").organization.burst_bytes != santa_sim.load_dram("hbm3").organization.burst_bytes)
    made.clear()
    lanes = {"accumulate": {"lanes": 7}, "score": {"mac_lanes": 100}, "softmax": {"lanes": 1}, "normalize": {"lanes": 3}, "sampler": {"lanes": 2}}
    equal(traces[4], {"base": "mac_hbm3", **lanes}, replayer)
    assert not made
    equal(traces[4], {"base": "mac_hbm3", "lookahead_tiles": 3}, replayer)
    assert len(made) == 1


def test_errors_are_those_of_simulate(traces):
    small = {"base": "mac_hbm3", "memory": {"dram_changes": {"organization": {"rows": 16, "channels": 1}}}}
    for machine, message in (("adder_hbm3", "multiplies in the value stage"), (small, "give it more stacks")):
        for play in (santa_sim.simulate, lambda trace, machine: Replayer(trace).result(santa_sim.load_hardware(machine))):
            with pytest.raises(InputError, match=message):
                play(traces[0], machine)


DDR5 = {"base": "mac_lpddr5", "memory": {"dram": "ddr5_4800"}, "gather": {"outstanding": 16}}
DDR4 = {"base": "mac_lpddr5", "memory": {"dram": "ddr4_3200"}, "kv_layout": "sequence-first"}


@pytest.mark.parametrize("run", [{"method": "sdpa"}, {"method": "s2anta-prop", "S": 16}], ids=["sdpa", "prop"])
def test_the_shortcut_for_steady_streams_agrees_within_one_percent(run):
    trace = santa_sim.make_trace("llama8b_decode_8k", **run)
    for machine in ("mac_lpddr5", DDR5, DDR4):
        machine = santa_sim.load_hardware(machine)
        full, fast = Replayer(trace).result(machine), Replayer(trace, shortcut=True).result(machine)
        assert fast.memory["model"] == "steady" and any("DRAM shortcut" in note for note in fast.notes)
        assert fast.latency_s == pytest.approx(full.latency_s, rel=0.01)
        assert fast.energy_j == pytest.approx(full.energy_j, rel=0.01)
        assert fast.traffic_bytes == full.traffic_bytes and fast.ops == full.ops


def test_where_the_stream_is_not_steady_there_is_no_shortcut(traces):
    narrow = {"base": "mac_hbm3", "k_buffer": {"tiles": 2}}
    gathers = santa_sim.make_trace("llama8b_decode_8k", "s2anta-prop", 64)  # 1 % of the bursts
    selected = santa_sim.make_trace("llama8b_decode_8k", "topk", k=4)  # at once
    columns = santa_sim.make_trace("llama8b_decode_4k", "sdpa", score="bernoulli", B=16)  # of K: nearly all
    dense = santa_sim.make_trace("llama8b_decode_4k", "sdpa")
    for trace, machine in ((traces[0], "mac_lpddr5"), (dense, narrow), (gathers, DDR5), (gathers, DDR4), (columns, "mac_lpddr5"), (selected, DDR5)):
        machine = santa_sim.load_hardware(machine)
        assert Replayer(trace, shortcut=True).result(machine).to_dict() == Replayer(trace).result(machine).to_dict()


@pytest.mark.parametrize("bursts, gathered, outstanding, wanted", [
    (10**6, 0, 1, True), (10**6, 5000, 64, True), (10**6, 5001, 64, False), (10**6, 5000, 4, False), (65_536, 0, 1, True), (65_535, 0, 1, False),
])  # fmt: skip
def test_a_steady_stream_is_long_and_gathers_little_and_much_of_it_at_a_time(bursts, gathered, outstanding, wanted):
    machine = santa_sim.load_hardware({**DDR5, "gather": {"outstanding": outstanding}})
    assert is_steady(machine, bursts, gathered, 256) is wanted


def test_what_a_fast_memory_serves_in_little_time_is_no_steady_stream():
    machine = santa_sim.load_hardware({"base": "mac_hbm3", "k_buffer": {"tiles": 128}})
    assert not is_steady(machine, 2**19, 0, 1) and is_steady(machine, 2**20, 0, 1)  # 20 and 41 us
