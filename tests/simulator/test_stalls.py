"""Where each unit's time goes: by hand, and in sum."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import santa_sim
from santa_sim.simulator import simulate
from santa_sim.simulator.stalls import paint, table, union, words
from santa_sim.trace import TraceWriter

NS = 10**6
TYPES = {"operand": "bf16", "accumulator": "fp32"}
META = {
    "method": "by hand", "score": "exact", "kind": "decode", "precision": "bf16", "n_heads": 1, "n_kv_heads": 1, "head_dim": 2,
    "n_q": [1], "n_k": [16], "layers": [0], "tile": 2, "score_types": TYPES, "value_types": TYPES, "normalization": "multiply",
}  # fmt: skip


def by_hand(items):
    writer = TraceWriter()
    for tile, stage, counters, streams, gather in items:
        writer.item(0, 0, 0, 0, tile, stage, counters, streams, gather)
    return writer.finish(META)


def stream(buffer, first, nbytes, write=False):
    return (buffer, first, nbytes, nbytes, nbytes, write)


def nanoseconds(result):
    return {unit: {cause: fs / NS for cause, fs in causes.items()} for unit, causes in result.stalls_fs.items()}


def test_dense_attention_over_two_tiles_by_hand(tiny_machine):
    """The timeline of tests/simulator/test_machine.py: bursts of 1 ns, 10 ns latency, 59 ns in all."""
    trace = by_hand(
        [
            (0, "score", {"score_adds": 5, "score_mults": 5, "softmax_exps": 3}, [stream("q", 0, 64), stream("k", 0, 128)], None),
            (0, "value", {"value_adds": 7, "value_mults": 7}, [stream("v", 0, 128)], None),
            (1, "score", {"score_adds": 5, "score_mults": 5, "softmax_exps": 3}, [stream("k", 128, 128)], None),
            (1, "value", {"value_adds": 7, "value_mults": 7}, [stream("v", 128, 128)], None),
            (-1, "output", {"softmax_mults": 4}, [stream("output", 0, 64, True)], None),
        ]
    )  # fmt: skip
    assert nanoseconds(simulate(trace, tiny_machine())) == {
        # all reads at 0, the output when it is there
        "requests": {"work_output": 48, "done": 11},
        # K at 13 (queries at 11 came before); then one place between score and softmax, free at 21
        "score": {"busy": 10, "data_k": 13, "space_scores": 3, "done": 33},
        "softmax": {"busy": 6, "work_score": 23, "done": 30},
        "accumulate": {"busy": 14, "work_softmax": 22, "done": 23},
        "normalize": {"busy": 4, "work_accumulate": 36, "done": 19},
        "output": {"busy": 8, "work_normalize": 40, "done": 11},
    }


def test_a_full_k_buffer_holds_the_requests_back(tiny_machine):
    score = {"score_adds": 5, "score_mults": 5, "softmax_exps": 1}
    items = [(t, "score", score, [stream("k", 64 * t, 64)], None) for t in range(3)]
    trace = by_hand([*items, (-1, "output", {}, [], None)])
    stalls = nanoseconds(simulate(trace, tiny_machine(k_buffer={"tiles": 1})))
    assert stalls["requests"] == {"space_k_buffer": 32, "done": 17}  # K at 0, 16, 32; the last output at 49
    assert stalls["score"] == {"busy": 15, "data_k": 33, "done": 1}


def test_of_several_things_waited_for_the_last_one_is_named(make_trace, tiny_machine):
    """The first score waits for its queries (asked for first) and for K, which comes later."""
    stalls = simulate(make_trace("sdpa", n_k=(64,), kv_heads=1), tiny_machine()).stalls_fs
    assert "data_q" not in stalls["score"] and stalls["score"]["data_k"] > 0


SHAPES = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["prop", "flash", "sdpa", "topk"]),
        "score": st.sampled_from(["exact", "bernoulli"]),
        "n_k": st.lists(st.integers(1, 130), min_size=1, max_size=2),
        "kv_heads": st.integers(1, 3),
        "tile": st.sampled_from([16, 32, 100]),
        "query_blocks": st.integers(1, 2),
    }
)
STASH = st.sampled_from([0, 100, 8192])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=SHAPES, stash=STASH, lanes=st.integers(1, 64))
def test_each_units_times_add_up_to_the_latency(shape, stash, lanes, make_trace, tiny_machine):
    machine = tiny_machine(stash={"bytes": stash}, score={"mac_lanes": lanes}, accumulate={"lanes": lanes})
    result = simulate(make_trace(**shape), machine, spans=True)
    latency = round(result.latency_s * 1e15)
    for unit, causes in result.stalls_fs.items():
        assert sum(causes.values()) == latency, unit
        assert all(type(fs) is int and fs >= 0 for fs in causes.values())
        if unit != "requests":
            assert causes["busy"] / 1e15 == pytest.approx(result.busy_s[unit])
    worked = {unit for unit, seconds in result.busy_s.items() if seconds and unit != "dram"}
    assert worked <= set(result.stalls_fs)


def test_the_table_has_a_row_for_each_unit_and_cause(make_trace):
    result = simulate(make_trace("flash"), "adder_hbm3")
    frame = result.stalls()
    assert list(frame.columns) == ["unit", "cause", "what", "time_fs", "time_s", "share"]
    assert frame.groupby("unit")["time_fs"].sum().unique().tolist() == [round(result.latency_s * 1e15)]
    assert frame.groupby("unit")["share"].sum().to_numpy() == pytest.approx(1)
    assert set(result.to_dict()["stalls_fs"]) == set(frame["unit"])
    assert not any("stalls" in column for column in result.to_frame().columns)


def test_channels_are_asked_for_and_add_up_too(make_trace):
    result = simulate(make_trace("prop"), "adder_lpddr5")
    frame = result.stalls(channels=True)
    channels = frame[frame["unit"].str.startswith("DRAM channel")]
    assert channels["unit"].nunique() == santa_sim.load_hardware("adder_lpddr5").memory.config.organization.buses
    assert channels.groupby("unit")["time_fs"].sum().unique().tolist() == [round(result.latency_s * 1e15)]
    assert {"read", "bank"} <= set(channels["cause"])


def test_causes_in_words():
    assert words("work_score") == "waiting for scores"
    assert words("data_k") == "waiting for memory data (K)"
    assert words("space_v_buffer") == "waiting for buffer space (V)"
    assert words("space_output_writes") == "waiting for buffer space (write-backs of output)"
    assert words("work_merge") == "waiting for work from merge"
    assert words("bank") == "waiting for a bank"
    assert table({}).empty


def test_a_result_that_was_not_played_says_so(make_trace):
    import dataclasses

    result = dataclasses.replace(simulate(make_trace("prop"), "adder_hbm3"), played=None)
    assert not result.stalls().empty
    with pytest.raises(santa_sim.InputError, match="this result of adder_hbm3 has no timeline: no accelerator was played"):
        result.timeline("nowhere.pftrace")
    with pytest.raises(santa_sim.InputError, match="no stalls"):
        result.stalls(channels=True)


def intervals(draw_from):
    return st.lists(st.tuples(draw_from, draw_from).map(sorted), max_size=8).map(lambda x: np.array(x, np.int64).reshape(-1, 2))


@given(spans=intervals(st.integers(0, 30)))
def test_union_covers_the_same_moments_without_overlaps(spans):
    joined = union(spans)
    covered = [any(a <= t < b for a, b in spans) for t in range(31)]
    assert [any(a <= t < b for a, b in joined) for t in range(31)] == covered
    assert all(b < c for (_, b), (c, _) in zip(joined, joined[1:]))


@given(first=intervals(st.integers(0, 30)), second=intervals(st.integers(0, 40)), end=st.integers(1, 30))
def test_paint_takes_the_first_layer_that_covers_a_moment(first, second, end):
    segments = paint([("first", first), ("second", second)], end)
    assert [a for _, a, _ in segments] == [0, *(b for _, _, b in segments[:-1])] and segments[-1][2] == end
    assert all(a[0] != b[0] for a, b in zip(segments, segments[1:]))
    for label, start, stop in segments:
        for t in range(start, stop):
            covering = [name for name, spans in (("first", first), ("second", second)) if any(a <= t < b for a, b in spans)]
            assert label == (covering + ["done"])[0]
