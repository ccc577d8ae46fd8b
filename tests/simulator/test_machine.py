"""The machine as a whole: hand-computed timelines, and the laws that every run obeys."""


import pytest
from hypothesis import HealthCheck, settings

from santa_sim.errors import SimulationError
from santa_sim.simulator import simulate
from santa_sim.simulator.jobs import Job, Schedule
from santa_sim.simulator.machine import SlotBuffer, play
from santa_sim.simulator.memory import BandwidthMemory
from santa_sim.simulator.ports import DirectPort
from santa_sim.trace import TraceWriter

NS = 10**6
TYPES = {"operand": "bf16", "accumulator": "fp32"}
META = {
    "method": "by hand",
    "score": "exact",
    "kind": "decode",
    "precision": "bf16",
    "n_heads": 1,
    "n_kv_heads": 1,
    "head_dim": 2,
    "n_q": [1],
    "n_k": [16],
    "layers": [0],
    "tile": 2,
    "score_types": TYPES,
    "value_types": TYPES,
    "normalization": "multiply",
}
SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def trace_of(items):
    writer = TraceWriter()
    if items[-1][1] != "output":  # one that does nothing
        items = [*items, (-1, "output", {}, [], None)]
    for tile, stage, counters, streams, gather in items:
        writer.item(0, 0, 0, 0, tile, stage, counters, streams, gather)
    return writer.finish(META)


def stream(buffer, first, nbytes, write=False):
    return (buffer, first, nbytes, nbytes, nbytes, write)


def timeline(trace, machine):
    """[(unit, row, start ns, end ns)], in order of the start."""
    spans = simulate(trace, machine, spans=True).spans
    return sorted((s.unit, s.row, s.start_fs / NS, s.end_fs / NS) for s in spans)


def test_timeline_of_dense_attention_over_two_tiles(tiny_machine):
    """Bursts of 1 ns on a bus with 10 ns latency; q is one burst, each tile of K or V two."""
    trace = trace_of(
        [
            (
                0,
                "score",
                {"score_adds": 5, "score_mults": 5, "softmax_exps": 3},
                [stream("q", 0, 64), stream("k", 0, 128)],
                None,
            ),
            (0, "value", {"value_adds": 7, "value_mults": 7}, [stream("v", 0, 128)], None),
            (1, "score", {"score_adds": 5, "score_mults": 5, "softmax_exps": 3}, [stream("k", 128, 128)], None),
            (1, "value", {"value_adds": 7, "value_mults": 7}, [stream("v", 128, 128)], None),
            (-1, "output", {"softmax_mults": 4}, [stream("output", 0, 64, True)], None),
        ]
    )
    assert timeline(trace, tiny_machine()) == sorted(
        [
            ("dram", 0, 0, 11),  # q: bus 0-1
            ("dram", 0, 0, 13),  # K of tile 0: bus 1-3
            ("dram", 1, 0, 15),  # V of tile 0: bus 3-5
            ("dram", 2, 0, 17),  # K of tile 1: bus 5-7
            ("dram", 3, 0, 19),  # V of tile 1: bus 7-9
            ("score", 0, 13, 18),
            ("score", 2, 21, 26),  # one place between score and softmax, which is free at 21
            ("softmax", 0, 18, 21),
            ("softmax", 2, 26, 29),
            ("accumulate", 1, 21, 28),
            ("accumulate", 3, 29, 36),
            ("normalize", 4, 36, 40),
            ("output", 4, 40, 48),  # 64 bytes through a port of 8 a cycle
            ("dram", 4, 48, 59),
        ]
    )


def test_back_pressure_of_the_k_buffer(tiny_machine):
    """One slot for K: each tile is asked for when the one before has been scored."""
    score = {"score_adds": 5, "score_mults": 5, "softmax_exps": 1}
    trace = trace_of([(t, "score", score, [stream("k", 64 * t, 64)], None) for t in range(3)])
    spans = timeline(trace, tiny_machine(k_buffer={"tiles": 1}))
    assert [span for span in spans if span[0] == "dram"] == [
        ("dram", 0, 0, 11),
        ("dram", 1, 16, 27),
        ("dram", 2, 32, 43),
    ]
    spans = timeline(trace, tiny_machine(k_buffer={"tiles": 3}))
    assert [span for span in spans if span[0] == "score"] == [
        ("score", 0, 11, 16),
        ("score", 1, 17, 22),
        ("score", 2, 23, 28),
    ]


def test_timeline_of_a_two_pass_sampled_head(tiny_machine):
    """Stash of 16 bytes a tile, ports of 8 bytes a cycle; two rows of a burst each from tile 0, none from tile 1."""
    score = {"score_adds": 4, "score_mults": 4, "softmax_exps": 2}
    sample = {"sampling_adds": 2, "value_adds": 6}
    trace = trace_of(
        [
            (0, "score", score, [stream("k", 0, 64), stream("stash", 0, 16, True)], None),
            (1, "score", score, [stream("k", 64, 64), stream("stash", 16, 16, True)], None),
            (-1, "budget", {"sampling_mults": 2}, [], None),
            (0, "value", sample, [stream("stash", 0, 16)], ("v", [3, 9], 0, 64, 64)),
            (1, "value", {"sampling_adds": 2}, [stream("stash", 16, 16)], None),
            (-1, "output", {"value_mults": 2}, [stream("output", 0, 8, True)], None),
        ]
    )
    assert timeline(trace, tiny_machine()) == sorted(
        [
            ("dram", 0, 0, 11),
            ("dram", 1, 0, 12),
            ("score", 0, 11, 15),
            ("softmax", 0, 15, 17),
            ("stash_write", 0, 17, 19),
            ("score", 1, 17, 21),  # the place between score and softmax is free at 17
            ("softmax", 1, 21, 23),
            ("stash_write", 1, 23, 25),
            ("budget", 2, 25, 27),
            ("stash_read", 3, 27, 29),
            ("sampler", 3, 29, 31),
            ("stash_read", 4, 31, 33),  # one place between the stash and the sampler
            ("sampler", 4, 33, 35),
            ("gather", 3, 31, 33),  # addresses at 32 and 33
            ("dram", 3, 31, 44),  # bus 32-33 and 33-34
            ("accumulate", 3, 44, 50),
            ("accumulate", 4, 50, 50),
            ("normalize", 5, 50, 52),
            ("output", 5, 52, 53),
            ("dram", 5, 53, 64),
        ]
    )


def test_ternary_scores_take_the_more_of_adder_and_mac_lanes(tiny_machine):
    trace = trace_of([(0, "score", {"score_adds": 12}, [], None)])
    for score, cycles in (
        ({"mac_lanes": 2, "adder_lanes": 4}, 3),
        ({"mac_lanes": 2, "adder_lanes": 0}, 6),
        ({"mac_lanes": 6, "adder_lanes": 4}, 2),
        ({"mac_lanes": 0, "adder_lanes": 5}, 3),
    ):
        assert simulate(trace, tiny_machine(score=score)).cycles == cycles


def test_stage_lanes_work_on_their_own_counters(tiny_machine):
    machine = tiny_machine(
        sampler={"lanes": 4, "adders_per_lane": 2, "random_numbers_per_cycle": 2, "search_compares_per_cycle": 3},
        softmax={"lanes": 2, "adders_per_lane": 2},
        accumulate={"lanes": 3},
    )
    score = (0, "score", {"softmax_compares": 4, "softmax_exps": 5, "softmax_adds": 12}, [], None)
    for counters, unit, cycles in (
        ({"sampling_floors": 9}, "sampler", 3),
        ({"sampling_floors": 9, "sampling_adds": 25}, "sampler", 4),
        ({"sampling_random_numbers": 9}, "sampler", 5),
        ({"sampling_compares": 10}, "sampler", 4),
        ({"value_adds": 10, "value_mults": 4}, "accumulate", 4),
        ({"value_adds": 10, "merge_mults": 13}, "accumulate", 5),
    ):
        result = simulate(trace_of([score, (0, "value", counters, [], None)]), machine)
        assert result.busy_s[unit] == pytest.approx(cycles * 1e-9)
        assert result.busy_s["softmax"] == pytest.approx(3e-9)


# Laws


def test_without_sram_all_of_the_stash_crosses_dram(make_trace, tiny_machine):
    trace = make_trace("prop", n_k=(96,), kv_heads=2, g=2, d=16, tile=32)
    result = simulate(trace, tiny_machine(stash={"bytes": 0}))
    assert result.useful_bytes["stash_write"] == result.useful_bytes["stash_read"] == 2 * 2 * 96 * 4
    half = simulate(trace, tiny_machine(stash={"bytes": 1000}))
    assert half.useful_bytes["stash_write"] == half.useful_bytes["stash_read"] == 2 * (2 * 96 * 4 - 500)


def test_what_is_larger_than_its_buffer_leaves_a_note(make_trace, tiny_machine):
    trace = make_trace("sdpa", n_k=(96,), kv_heads=1, d=16, tile=32)  # tiles of 1,024 bytes
    for buffer, noted in ((1024, False), (1023, True), (1, True)):
        result = simulate(trace, tiny_machine(k_buffer={"tiles": 1, "tile_bytes": buffer}))
        notes = [note for note in result.notes if "k_buffer" in note]
        assert notes == [f"up to 1,024 bytes of K are asked for at a time, more than k_buffer holds ({buffer:,}): they stream through it "
                         f"at the memory's pace, as if there were room for what is under way"] * noted  # fmt: skip


def test_doubling_the_clock_leaves_memory_seconds_unchanged(make_trace, tiny_machine):
    trace = make_trace("prop", n_k=(200,))
    slow, fast = (simulate(trace, tiny_machine(clock_hz=clock)) for clock in (10**9, 2 * 10**9))
    assert slow.busy_s["dram"] == fast.busy_s["dram"]
    assert fast.busy_s["score"] == pytest.approx(slow.busy_s["score"] / 2)


@pytest.mark.parametrize("method", ["prop", "flash", "sdpa", "topk"])
def test_with_endless_lanes_only_memory_takes_time(make_trace, method):
    """All that isn't DRAM takes a cycle of 1 ps; what is left is the bus."""
    many = 10**9
    machine = {
        "base": "mac_hbm3_bandwidth",
        "clock_hz": 10**12,
        "stash": {"port_bytes_per_cycle": many},
        "softmax": {"lanes": many},
        "score": {"mac_lanes": many},
        "budget": {"lanes": many},
        "selection": {"compares_per_cycle": many},
        "sampler": {"lanes": many, "random_numbers_per_cycle": many, "search_compares_per_cycle": many},
        "gather": {"addresses_per_cycle": many, "outstanding": 10**5},
        "accumulate": {"lanes": many},
        "merge": {"lanes": many},
        "normalize": {"lanes": many},
        "output": {"port_bytes_per_cycle": many},
        "memory": {"latency_s": 0},
    }
    result = simulate(make_trace(method, n_k=(4096,), d=64, tile=256, kv_heads=4, g=4), machine)
    assert result.bound_by == "dram"
    assert result.busy_s["dram"] == pytest.approx(result.latency_s, rel=1e-3)


def test_dense_bytes_at_32_and_8_kv_heads_are_four_to_one(make_trace):
    full, grouped = (
        simulate(make_trace("sdpa", n_k=(512,), kv_heads=h, g=32 // h, d=128, tile=256), "mac_hbm3") for h in (32, 8)
    )
    for kind in ("k_read", "v_read"):
        assert full.traffic_bytes[kind] == 4 * grouped.traffic_bytes[kind] == 512 * 32 * 128 * 2


def test_a_kibibyte_at_a_picojoule_a_bit_is_8192_pj(tiny_machine):
    trace = trace_of([(0, "score", {"score_adds": 1}, [stream("k", 0, 1024)], None)])
    result = simulate(trace, tiny_machine())
    assert result.memory["read_bursts"] == 16
    assert result.energy_breakdown_j["dram_read"] == pytest.approx(8192e-12, rel=1e-15)
    one = simulate(trace_of([(0, "score", {"score_adds": 1}, [stream("k", 60, 4)], None)]), tiny_machine())
    assert one.energy_breakdown_j["dram_read"] == pytest.approx(512e-12, rel=1e-15)
    assert (one.useful_bytes["k_read"], one.traffic_bytes["k_read"]) == (4, 64)


def test_bursts_are_longer_than_short_rows(make_trace, tiny_machine):
    """Rows of 4 bytes, 16 bytes apart: each costs a burst of 64."""
    trace = make_trace("prop", n_k=(64,), kv_heads=4, g=1, d=2, tile=64, samples=1)
    result = simulate(trace, tiny_machine())
    assert result.useful_bytes["v_read"] == 4 * 4
    assert result.traffic_bytes["v_read"] == 4 * 64


def test_order_of_requests_doesnt_depend_on_speed(make_trace, tiny_machine):
    trace = make_trace("flash", n_k=(300,), kv_heads=3)
    orders = []
    for lanes in (1, 50):
        spans = simulate(trace, tiny_machine(score={"mac_lanes": lanes}, sampler={"lanes": lanes}), spans=True).spans
        orders.append([span.row for span in spans if span.unit == "dram"])
    assert orders[0] == orders[1]


def test_results_are_the_same_every_time(make_trace):
    trace = make_trace("prop", "bernoulli", n_k=(200, 77))
    assert simulate(trace, "adder_hbm3").to_dict() == simulate(trace, "adder_hbm3").to_dict()


def test_progress_ends_at_the_number_of_memory_jobs(make_trace):
    calls = []
    simulate(make_trace("prop"), "adder_hbm3", progress=lambda done, of: calls.append((done, of)))
    assert calls[-1][0] == calls[-1][1]
    assert calls == sorted(calls)


def test_deadlock_is_reported(tiny_machine):
    """Two jobs that wait for each other, which no schedule of ours makes."""
    machine = tiny_machine()
    a, b = Job("score", 3, 1, []), Job("softmax", 4, 1, [])
    a.after, b.after = [b], [a]
    with pytest.raises(SimulationError, match="deadlock: score waits with trace row 3, softmax waits with trace row 4"):
        port = lambda env: DirectPort(env, BandwidthMemory(machine.memory), 1)  # noqa: E731
        play(Schedule({"dram": [], "score": [a], "softmax": [b]}, {}), port, machine)


def test_slots_go_to_the_taker_when_enough_are_free():
    import simpy

    env, log = simpy.Environment(), []
    buffer = SlotBuffer(env, 3)

    def taker():
        for slots in (2, 2):
            room = buffer.take(slots)
            if room is not None:
                yield room
            log.append((env.now, slots, buffer.free))

    def giver():
        for _ in range(2):
            yield env.timeout(5)
            buffer.give(1)

    env.process(taker())
    env.process(giver())
    env.run()
    assert log == [(0, 2, 1), (5, 2, 0)]
    assert buffer.peak == buffer.capacity
