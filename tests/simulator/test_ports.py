"""A machine on a bank-level DRAM: what is asked is served is charged, and what must not depend on what."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import santa_sim
from santa_sim.errors import InputError
from santa_sim.hardware import load_hardware
from santa_sim.simulator import simulate
from santa_sim.simulator.dram import load_dram

KINDS = [("prop", "exact"), ("flash", "exact"), ("sdpa", "exact"), ("topk", "exact"), ("prop", "bernoulli")]


def machine(dram="hbm3", **changes):
    memory = {"model": "banks", "dram": str(dram), "controller_latency_s": 0}
    return load_hardware({"base": "mac_hbm3", "memory": memory, **changes})


def dynamic_j(result):
    return sum(result.energy_breakdown_j[f"dram_{kind}"] for kind in ("activate", "read", "write"))


@pytest.mark.parametrize("dram", ["hbm3", "ddr4_3200"])
@pytest.mark.parametrize(("method", "score"), KINDS)
def test_requests_asked_for_are_completed_and_charged(make_trace, method, score, dram):
    result = simulate(make_trace(method, score, n_k=(96, 40), d=64), machine(dram, stash={"bytes": 2048}))
    burst, memory, traffic = load_dram(dram).organization.burst_bytes, result.memory, result.traffic_bytes
    written = sum(size for kind, size in traffic.items() if kind.endswith("_write"))
    assert memory["reads_completed"] * burst == traffic["total"] - written
    assert memory["writes_completed"] * burst == written
    assert memory["read_bursts"] == memory["reads"] + memory["reads_merged"] + memory["reads_forwarded"]
    assert memory["write_bursts"] == memory["writes"] + memory["writes_coalesced"]
    assert memory["writes_pending"] == 0
    assert memory["read_row_hits"] + memory["write_row_hits"] + memory["activates"] >= memory["reads"] + memory["writes"]


@pytest.mark.parametrize("dram", ["hbm3", "ddr4_3200"])
@pytest.mark.parametrize(("method", "score"), KINDS)
def test_bandwidth_stays_below_peak_and_latency_above_every_unit(make_trace, method, score, dram):
    result = simulate(make_trace(method, score, n_k=(512,), d=64, tile=128), machine(dram))
    assert 0 < result.memory["achieved_bandwidth_bytes_per_s"] <= result.memory["peak_bandwidth_bytes_per_s"]
    assert all(result.latency_s >= busy for busy in result.busy_s.values())
    assert all(0 <= share <= 1 for share in result.utilization.values())


def test_four_stacks_take_the_same_energy_for_the_bytes_and_four_times_the_standby_power(make_trace, tmp_path):
    one = load_dram("ddr4_3200")
    four = one.replace(organization={"stacks": 4})
    trace = make_trace("sdpa", n_k=(8192,), d=128, tile=256)
    results = []
    for config in (one, four):
        path = tmp_path / f"{config.organization.stacks}.yaml"
        path.write_text(config.model_dump_json())  # JSON is YAML
        results.append(simulate(trace, machine(path)))
    of_one, of_four = results
    assert of_four.memory["peak_bandwidth_bytes_per_s"] == 4 * of_one.memory["peak_bandwidth_bytes_per_s"]
    assert of_one.traffic_bytes == of_four.traffic_bytes
    assert dynamic_j(of_four) == pytest.approx(dynamic_j(of_one), rel=0.05)
    watts = [result.energy_breakdown_j["dram_background"] / result.latency_s for result in results]
    assert watts[1] == pytest.approx(4 * watts[0], rel=0.05)


@settings(max_examples=10, deadline=None)
@given(method=st.sampled_from(["prop", "flash", "topk"]), small=st.integers(0, 20_000), more=st.integers(0, 20_000))
def test_more_stash_never_means_more_dram_bytes(make_trace, method, small, more):
    trace = make_trace(method, n_k=(200,), tile=32)
    totals = [simulate(trace, machine(stash={"bytes": size})).traffic_bytes["total"] for size in (small, small + more)]
    assert totals[1] <= totals[0]


LANES = {
    "score": {"mac_lanes": 64}, "softmax": {"lanes": 2}, "sampler": {"lanes": 2}, "accumulate": {"lanes": 32}, "merge": {"lanes": 4},
    "normalize": {"lanes": 4},
}  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(KINDS), unit=st.sampled_from(sorted(LANES)), dram=st.sampled_from(["hbm3", "ddr4_3200"]), seed=st.integers(0, 99)
)
def test_twice_the_lanes_never_slow_it_by_more_than_the_banks_wobble(make_trace, kind, unit, dram, seed):
    trace = make_trace(*kind, n_k=(512,), d=64, tile=64, seed=seed)
    wider = {name: lanes * 2 for name, lanes in LANES[unit].items()}
    before, after = (simulate(trace, machine(dram, **lanes)).latency_s for lanes in (LANES, {**LANES, unit: wider}))
    assert after <= 1.02 * before


def test_dense_attention_over_128k_keys():
    """16 million bursts: 2 x 8 heads x 131,072 keys x 256 bytes of K and V."""
    result = simulate(santa_sim.make_trace("llama8b_decode_128k", "sdpa"), "mac_hbm3")
    assert result.traffic_bytes["k_read"] == result.traffic_bytes["v_read"] == 8 * 131072 * 256
    assert result.bound_by == "dram"
    assert result.memory["reads_completed"] * 32 == result.useful_bytes["total"] - result.useful_bytes["output_write"]
    assert result.memory["row_hit_rate"] > 0.9


def test_a_memory_too_small_for_the_cache_is_named(make_trace, tmp_path):
    small = load_dram("hbm3").replace(organization={"rows": 16}).model_dump()
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**small, "name": "small"}))
    with pytest.raises(InputError, match="memory of mac_hbm3.*small, holds 8,388,608"):
        simulate(make_trace("sdpa", n_k=(16384,), d=64, kv_heads=4, tile=1024), machine(tmp_path / "small.yaml"))
