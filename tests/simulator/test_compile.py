"""A trace made ready: addresses, what stays on chip, and traces that don't hang together."""

import itertools

import numpy as np
import pytest

from santa_sim.errors import InputError
from santa_sim.simulator import simulate
from santa_sim.simulator.compile import compile_trace
from santa_sim.trace import TraceWriter

TYPES = {"operand": "int8", "accumulator": "int32"}
META = {
    "method": "topk",
    "score": "bernoulli-mean-group",
    "kind": "decode",
    "precision": "int8",
    "n_heads": 2,
    "n_kv_heads": 2,
    "head_dim": 8,
    "n_q": [1],
    "n_k": [16],
    "layers": [0],
    "tile": 2,
    "score_types": TYPES,
    "value_types": TYPES,
    "normalization": "shift",
}


def trace_of(*items, close=True):
    """Items (tile, stage, counters, streams, gather), or with a KV head in front; `close`: with an output item."""
    writer = TraceWriter()
    if close and items[-1][-4] != "output":
        items = (*items, (*items[-1][:-5], -1, "output", {}, [], None))
    for entry in items:
        head, tile, stage, counters, streams, gather = entry if len(entry) == 6 else (0, *entry)
        writer.item(0, 0, head, 0, tile, stage, counters, streams, gather)
    return writer.finish(META)


def stream(buffer, first, nbytes, write=False, piece=None, stride=None):
    return (buffer, first, nbytes, piece or nbytes, stride or nbytes, write)


def test_buffers_lie_apart_and_aligned(make_trace, tiny_machine):
    trace = make_trace("flash", n_k=(96, 40), layers=(0, 5), kv_heads=2)
    program = compile_trace(trace, tiny_machine(stash={"bytes": 0}))
    extents = {}
    for group in program.groups:
        for item in (item for items in group.items.values() for item in items):
            row = trace.items.iloc[item.row]
            for region in (*item.reads, *item.writes):
                end = region.first + (region.nbytes - 1) // region.piece * region.stride + region.piece
                extents.setdefault((row.sequence, row.layer, region.kind.split("_")[0]), []).append((region.first, end))
            if item.gather is not None:
                rows = item.gather.first + item.gather.rows * item.gather.stride
                span = (int(rows.min()), int(rows.max()) + item.gather.row_bytes)
                extents.setdefault((row.sequence, row.layer, item.gather.kind.split("_")[0]), []).append(span)
    spans = sorted((min(a for a, _ in spans), max(b for _, b in spans)) for spans in extents.values())
    assert len(spans) == 4 * 5  # q, k, v, partials, output of four (sequence, layer)
    assert all(end <= start // 4096 * 4096 for (_, end), (start, _) in itertools.pairwise(spans))


def test_stash_is_filled_in_trace_order_and_the_rest_is_spilled(tiny_machine):
    trace = trace_of(
        (0, "score", {}, [stream("stash", 0, 100, True)], None),
        (1, "score", {}, [stream("stash", 100, 100, True)], None),
        (2, "score", {}, [stream("stash", 200, 100, True)], None),
        (-1, "budget", {}, [], None),
        (0, "value", {}, [stream("stash", 0, 100)], None),
        (1, "value", {}, [stream("stash", 100, 100)], None),
        (2, "value", {}, [stream("stash", 200, 100)], None),
    )
    (group,) = compile_trace(trace, tiny_machine(stash={"bytes": 300})).groups
    assert [item.chip_write for item in group.items["score"]] == [100, 50, 0]
    assert [item.chip_read for item in group.items["value"]] == [100, 50, 0]
    assert [sum(region.useful_bytes for region in item.reads) for item in group.items["value"]] == [0, 50, 100]
    assert group.items["value"][1].reads[0].skip == 50


def test_stash_may_be_read_in_other_pieces_than_it_was_written(tiny_machine):
    """Two heads' exponentials of 40 bytes a tile, written tile by tile in two pieces, read head by head and in one."""
    trace = trace_of(
        (0, "score", {}, [stream("stash", 0, 80, True, 40, 120)], None),
        (1, "score", {}, [stream("stash", 40, 80, True, 40, 120)], None),
        (2, "score", {}, [stream("stash", 80, 80, True, 40, 120)], None),
        (-1, "select", {"selection_compares": 1}, [stream("stash", 0, 240)], None),
        (0, "value", {}, [stream("stash", 0, 120), stream("stash", 130, 20)], None),
    )
    (group,) = compile_trace(trace, tiny_machine(stash={"bytes": 200})).groups
    # The half of 100 bytes holds tile 0 (bytes 0-40 and 120-160) and the first 20 bytes of tile 1 (40-60).
    assert [item.chip_write for item in group.items["score"]] == [80, 20, 0]
    select, value = group.items["select"][0], group.items["value"][0]
    assert select.chip_read == 100
    assert sum(region.useful_bytes for region in select.reads) == 140
    assert value.chip_read == 60 + 20
    assert sum(region.useful_bytes for region in value.reads) == 60


def test_a_region_written_twice_stays_where_it_is(tiny_machine):
    partial = stream("partials", 0, 60, True)
    trace = trace_of((0, "score", {}, [], None), (0, "value", {}, [partial], None), (0, "value", {}, [partial], None))
    (group,) = compile_trace(trace, tiny_machine(stash={"bytes": 100})).groups
    assert [item.chip_write for item in group.items["value"]] == [50, 50]


SCORE = (0, "score", {"score_adds": 1}, [], None)
VALUE = (0, "value", {"value_adds": 1}, [], None)
BUDGET = (-1, "budget", {}, [], None)
SELECT = (-1, "select", {}, [], None)
MERGE = (-1, "merge", {}, [], None)
OUTPUT = (-1, "output", {}, [], None)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([(0, *SCORE), (1, *SCORE), (0, *VALUE)], "trace row 2: items of .* KV head 0, .* must stand together"),
        ([SCORE, SCORE], "row 1: 'score' item is the second of tile 0"),
        ([BUDGET, SCORE], "row 1: 'score' item stands after the 'budget'"),
        ([SCORE, BUDGET, BUDGET], "row 2: 'budget' item is the second"),
        ([SCORE, BUDGET, SELECT], "there can be one of them"),
        ([SCORE, VALUE, BUDGET], "row 2: 'budget' item stands after a 'value' item"),
        ([VALUE], "row 0: 'value' item of tile 0 has no 'score' item"),
        ([SCORE, MERGE, VALUE], "row 2: 'value' item stands after the 'merge' item"),
        ([SCORE, OUTPUT, VALUE], "row 2: 'value' item stands after the 'output' item"),
        ([SCORE, OUTPUT, OUTPUT], "row 2: 'output' item is the second"),
        ([(0, "score", {"merge_adds": 7}, [], None)], "row 0: merge_adds=7 in a 'score' item"),
        ([(0, "score", {}, [stream("k", 0, 8, True)], None)], "row 0: 'k' is written"),
        ([(0, "score", {}, [stream("output", 0, 8)], None)], "row 0: 'output' is read"),
        ([SCORE, (-1, "budget", {}, [], ("v", [1], 0, 8, 8))], "row 1: a 'budget' item gathers rows"),
        ([SCORE, (-1, "output", {}, [stream("stash", 0, 8, True)], None)], "row 1: an 'output' item writes stash"),
        (
            [SCORE, (0, "value", {}, [stream("stash", 8, 8)], None)],
            "row 1: reads 8 bytes of 'stash' from byte 8, not written by its group",
        ),
    ],
)
def test_traces_that_dont_hang_together_name_the_row(items, message, tiny_machine):
    with pytest.raises(InputError, match=message):
        simulate(trace_of(*items), tiny_machine())


@pytest.mark.parametrize(
    ("items", "machine", "message"),
    [
        (
            [SCORE, (0, "value", {"value_mults": 4}, [], None)],
            {"accumulate": {"kind": "adder"}},
            "accumulate.kind='adder'.*mac_hbm3",
        ),
        ([(0, "score", {"score_mults": 4}, [], None)], {"score": {"mac_lanes": 0}}, "mean-group.*score.mac_lanes=0"),
        ([SCORE, SELECT], {"selection": None}, "selects and tiny has selection=null"),
        (
            [SCORE, (-1, "output", {"value_shifts": 2}, [], None)],
            {"normalize": {"shifter": False}},
            "normalize.shifter=false",
        ),
    ],
)
def test_a_pair_that_a_machine_cant_run_says_so(items, machine, message, tiny_machine):
    with pytest.raises(InputError, match=message):
        simulate(trace_of(*items), tiny_machine(**machine))


def test_normalising_on_an_adder_machine_is_allowed(tiny_machine):
    trace = trace_of(SCORE, VALUE, (-1, "output", {"value_mults": 2, "value_shifts": 3}, [], None))
    result = simulate(trace, tiny_machine(accumulate={"kind": "adder"}))
    table = tiny_machine().energy
    assert result.energy_breakdown_j["normalize"] == pytest.approx(2 * table.mult_j["int32"] + 3 * table.add_j["int32"])
    assert result.energy_breakdown_j["accumulate"] == pytest.approx(table.add_j["int32"])
    assert result.energy_breakdown_j["score"] == pytest.approx(table.add_j["int32"])


def test_gathered_rows_may_be_lists_or_arrays(tiny_machine):
    for rows in ([1, 3], np.array([1, 3], np.int32), (1, 3)):
        trace = trace_of(SCORE, (0, "value", {}, [], ("v", rows, 0, 64, 64)))
        assert simulate(trace, tiny_machine()).traffic_bytes["v_read"] == 128


@pytest.mark.parametrize("items", [(SCORE, VALUE), (SCORE, OUTPUT, (1, *SCORE))])
def test_every_group_is_closed(items, tiny_machine):
    head, row = len(items[-1]) - 5, len(items) - 1
    with pytest.raises(InputError, match=f"row {row}: no 'output' item .* KV head {head}, query block 0; write one"):
        simulate(trace_of(*items, close=False), tiny_machine())


def test_an_item_of_more_bursts_than_can_be_listed(tiny_machine):
    trace = trace_of((0, "score", {}, [stream("k", 0, 2**31)], None))
    with pytest.raises(InputError, match="row 0: 'score' item takes up to 2,147,483,650 bursts of .*burst_bytes=1, .*split"):
        compile_trace(trace, tiny_machine(memory={"burst_bytes": 1}))


@pytest.mark.parametrize("given", [None, "a.parquet", {"items": []}])
def test_a_trace_is_wanted(given):
    with pytest.raises(InputError, match=r"plays a Trace, not .*Trace.load\('trace.parquet'\)"):
        simulate(given)
