"""Home-made tables: what a machine can't play is refused with row, column, value and what to write; nothing crashes."""

import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from santa_sim.errors import InputError, SimulationError
from santa_sim.hardware import load_hardware
from santa_sim.simulator import simulate
from santa_sim.trace import COLUMNS, COUNTERS, GATHERS, KEYS, STAGES, STREAMS, Trace, TraceWriter

TYPES = {"operand": "bf16", "accumulator": "fp32"}
META = {"method": "mine", "score": "exact", "kind": "decode", "precision": "bf16", "n_heads": 4, "n_kv_heads": 2, "head_dim": 8,
        "n_q": [1, 1], "n_k": [4, 16], "layers": [0, 5], "tile": 4, "score_types": TYPES, "value_types": TYPES,
        "normalization": "multiply"}  # fmt: skip


@pytest.fixture(scope="module")
def machine():
    return load_hardware("mac_hbm3")


def made():
    """Rows 0 score, 1 value, 2 output of sequence 1, layer 5, KV head 1."""
    writer = TraceWriter()
    writer.item(1, 5, 1, 0, 0, "score", {"score_adds": 32}, [("k", 0, 64, 16, 32, False), ("stash", 0, 16, 16, 16, True)])
    writer.item(1, 5, 1, 0, 0, "value", {"value_adds": 16}, [("stash", 0, 16, 16, 16, False)], ("v", [1, 3], 16, 16, 32))
    writer.item(1, 5, 1, 0, -1, "output", {"unique_rows_per_head": 4, "unique_rows_per_group": 2})
    return writer.finish(META)


def changed(column, row, value):
    items = made().items.copy()
    cells = items[column].tolist()
    cells[row] = value
    items[column] = pd.Series(cells, dtype=object)
    return items


WRONG = [
    # keys
    ("sequence", 0, -1, "sequence=-1: write a whole number from 0 to 1"),
    ("sequence", 0, 5, "sequence=5: write a whole number from 0 to 1 .n_k in the metadata has 2 entries"),
    ("sequence", 0, "0", "sequence='0': 'sequence' must hold whole numbers"),
    ("sequence", 0, 1.0, "sequence=1.0: 'sequence' must hold whole numbers .such as 1; items"),
    ("sequence", 0, None, "sequence=None: 'sequence' must hold whole numbers"),
    ("sequence", 0, True, "sequence=True: 'sequence' must hold whole numbers"),
    ("layer", 1, 1, r"layer=1: layers=\[0, 5\] in the metadata doesn't have it"),
    ("kv_head", 2, 99, "kv_head=99: write a whole number from 0 to 1 .n_kv_heads=2"),
    ("query_block", 2, 1, "query_block=1: write a whole number from 0 to 0"),
    ("tile", 0, 16, "tile=16: write a whole number from -1 to 15"),
    ("tile", 0, 2**70, "tile=1180591620717411303424: write a whole number"),
    ("tile", 2, -2, "tile=-2: write a whole number from -1 to 15"),
    ("tile", 1, -1, "tile=-1: a 'value' item has a tile"),
    ("stage", 2, "outputs", "stage='outputs': stages are score, budget, .*; did you mean 'output'"),
    ("stage", 2, None, "stage=None: stages are score"),
    ("stage", 2, ["output"], r"stage=\['output'\]: stages are score"),
    # counters
    ("value_adds", 1, -5, "value_adds=-5: write a whole number from 0 to"),
    ("value_adds", 1, 2**62, "value_adds=4611686018427387904: write a whole number from 0 to 9,007,199,254,740,992"),
    ("value_adds", 1, 1.5, "value_adds=1.5: 'value_adds' must hold whole numbers"),
    ("unique_rows_per_group", 2, 10**9, "unique_rows_per_group=1000000000: .*more than n_k=16 rows"),
    ("unique_rows_per_head", 2, 33, "unique_rows_per_head=33: .*more than n_k=16 rows for each of 2 grouped heads"),
    ("unique_rows_per_group", 1, 1, "unique_rows_per_group=1: only an 'output' item has unique rows; write 0"),
    # streams
    ("stream_buffer", 0, ["k", "kv"], "stream_buffer='kv': unknown buffer"),
    ("stream_buffer", 0, ["k", None], "stream_buffer=None: write a list of names of buffers"),
    ("stream_buffer", 0, "k", r"stream_buffer='k': write a list of names of buffers, \[\] for none"),
    ("stream_bytes", 0, [64], "stream_bytes has 1 entries, stream_buffer has 2"),
    ("stream_bytes", 0, [64, None], "stream_bytes=None: write a list of whole numbers"),
    ("stream_bytes", 0, [64.5, 16], "stream_bytes=64.5: write a list of whole numbers"),
    ("stream_bytes", 0, [np.nan, 16], "stream_bytes=nan: write a list of whole numbers"),
    ("stream_bytes", 0, None, "stream_bytes=None: write a list"),
    ("stream_bytes", 0, 64, "stream_bytes=64: write a list"),
    ("stream_bytes", 0, [[64], [16]], r"stream_bytes=\[64\]: write a list"),
    ("stream_bytes", 0, {"a": 1}, "stream_bytes=.*: write a list"),
    ("stream_bytes", 0, [0, 16], "stream_bytes=0: write a whole number from 1"),
    ("stream_bytes", 0, [2**62, 16], "stream_bytes=4611686018427387904: write a whole number from 1 to 1,099,511,627,776"),
    ("stream_bytes", 0, [2**70, 16], "stream_bytes=1180591620717411303424: write a list of whole numbers of 64 bits"),
    ("stream_bytes", 0, [10**11, 16], "moves 6,250,000,001 pieces and rows, a machine takes 1,048,576 .*: split"),
    ("stream_first_byte", 0, [-1, 0], "stream_first_byte=-1: write a whole number from 0"),
    ("stream_first_byte", 0, [2**40, 0], r"its stream ends at byte 1.1e\+12 of the buffer, beyond 1,099,511,627,776"),
    ("stream_piece_bytes", 0, [0, 16], "stream_piece_bytes=0: write a whole number from 1"),
    ("stream_stride_bytes", 0, [15, 16], "stream_stride_bytes=15: pieces of stream_piece_bytes=16 would overlap: write at least 16"),
    ("stream_write", 0, [None, True], "stream_write=None: write a list of true or false"),
    ("stream_write", 0, [0, 1], "stream_write=0: write a list of true or false"),
    # gathers
    ("gather_buffer", 1, "q", "gather_buffer='q': rows are gathered from 'k' or 'v'; write '' for none"),
    ("gather_buffer", 1, "stash", "gather_buffer='stash': rows are gathered from 'k' or 'v'"),
    ("gather_buffer", 1, None, "gather_buffer=None: rows are gathered from 'k' or 'v'; write '' for none"),
    ("gather_buffer", 1, "", "gather_buffer='': the item gathers rows: write 'k' or 'v'"),
    ("gather_rows", 1, [999], "gather_rows=999: write a whole number from 0 to 15"),
    ("gather_rows", 1, [3, -2], "gather_rows=-2: write a whole number from 0 to 15"),
    ("gather_rows", 1, [1.5, 2.5], "gather_rows=1.5: write a list of whole numbers"),
    ("gather_rows", 1, np.array([1.0, 2.0]), "gather_rows=1.0: write a list of whole numbers"),
    ("gather_rows", 1, [True, False], "gather_rows=True: write a list of whole numbers"),
    ("gather_rows", 1, None, "gather_rows=None: write a list"),
    ("gather_rows", 1, 3, "gather_rows=3: write a list"),
    ("gather_row_bytes", 1, 0, "gather_row_bytes=0: the item gathers rows: write the bytes of one"),
    ("gather_row_bytes", 1, 2**62, "gather_row_bytes=4611686018427387904: write a whole number from 0"),
    ("gather_row_bytes", 1, 2**38, "rows of gather_row_bytes=274877906944 would overlap"),
    ("gather_stride_bytes", 1, 15, "gather_stride_bytes=15: rows of gather_row_bytes=16 would overlap: write at least 16"),
    ("gather_stride_bytes", 1, 2**39, r"its gather ends at byte 1.649e\+12 of the buffer"),
]  # fmt: skip


@pytest.mark.parametrize("column, row, value, message", WRONG)
def test_tables_that_cannot_be_played(column, row, value, message):
    with pytest.raises(InputError, match=f"^trace row {row}: .*{message}"):
        Trace(changed(column, row, value), META)


def test_an_item_too_large_to_be_listed():
    items = made().items.copy()
    items.at[0, "stream_bytes"] = items.at[0, "stream_piece_bytes"] = items.at[0, "stream_stride_bytes"] = [2**31, 16]
    with pytest.raises(InputError, match="row 0: the item moves 2,147,483,664 bytes, a machine takes 2,147,483,648 at most"):
        Trace(items, META)
    items = made().items.copy()
    items.at[0, "stream_bytes"], items.at[0, "stream_piece_bytes"] = [10**9, 16], [1, 16]
    with pytest.raises(InputError, match="row 0: the item moves 1,000,000,001 pieces and rows"):
        Trace(items, META)


def test_counters_that_overflow_together():
    items = made().items.copy()
    items["score_adds"] = [2**53, 2**53, 0]
    with pytest.raises(InputError, match="more than 9,007,199,254,740,992 score_adds in all"):
        Trace(items, META)


def test_unique_rows_of_several_blocks_are_one_union():
    writer = TraceWriter()
    for block in range(2):
        writer.item(0, 0, 0, block, -1, "output", {"unique_rows_per_group": 3})
    with pytest.raises(InputError, match="row 0: unique_rows_per_group=3: with .* others 6, more than n_k=4 rows"):
        writer.finish({**META, "n_q": [2, 1]})


@pytest.mark.parametrize("score, limit", [("exact", 16), ("bernoulli-stratified", 8), ("mine", 16)])
def test_rows_of_k_are_keys_or_features(score, limit):
    for row in (limit - 1, limit):
        writer = TraceWriter()
        writer.item(1, 0, 0, 0, 0, "score", {}, [], ("k", [row], 0, 8, 8))
        writer.item(1, 0, 0, 0, -1, "output", {})
        if row < limit:
            assert len(writer.finish({**META, "score": score})) == 2
        else:
            with pytest.raises(InputError, match=f"row 0: gather_rows={row}: write a whole number from 0 to {limit - 1}"):
                writer.finish({**META, "score": score})


def test_columns_that_are_missing_or_double_or_no_table():
    items = made().items
    with pytest.raises(InputError, match=r"lacks the columns \['tile'\]"):
        Trace(items.drop(columns="tile"), META)
    with pytest.raises(InputError, match="has the column 'tile' twice"):
        Trace(pd.concat([items, items[["tile"]]], axis=1), META)
    with pytest.raises(InputError, match="no work items"):
        Trace(items.iloc[:0], META)
    with pytest.raises(InputError, match="a pandas DataFrame, not None"):
        Trace(None, META)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda values: np.array(values, np.uint64)])
def test_lists_of_any_kind_and_integers_of_any_width(kind, machine):
    items = made().items.copy()
    for name in (*STREAMS, "gather_rows"):
        items[name] = pd.Series([kind(list(values)) if name in ("stream_bytes", "gather_rows") and len(values) else values
                                 for values in items[name]], dtype=object)  # fmt: skip
    for name, dtype in zip(KEYS, ("int8", "uint64", "Int64", "object", "int16")):
        items[name] = items[name].astype(dtype)
    assert simulate(Trace(items, META), machine).to_dict() == simulate(made(), machine).to_dict()


def test_a_table_that_knows_it_has_no_rows_to_gather(machine):
    items = changed("gather_rows", 1, [])
    assert simulate(Trace(items, META), machine).traffic_bytes["v_read"] == 0


@pytest.mark.parametrize("field, args", [
    ("counter='score_add' is not known; did you mean 'score_adds'?", ({"score_add": 1},)),
    ("row 1: score_adds=1.5: write a whole number", ({"score_adds": 1.5},)),
    ("row 1: stream=('k', 0, 64): write (stream_buffer, stream_first_byte", ({}, [("k", 0, 64)])),
    ("row 1: gather=('k', [1]): write (gather_buffer, gather_rows", ({}, [], ("k", [1]))),
])  # fmt: skip
def test_the_writer_drops_and_rounds_nothing(field, args):
    writer = TraceWriter()
    writer.item(0, 0, 0, 0, 0, "score", {})
    with pytest.raises(InputError) as caught:
        writer.item(0, 0, 0, 0, 1, "score", *args)
    assert field in str(caught.value)


cells = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 40) | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3)
    | st.sampled_from([*STAGES, "k", "v", "q", "stash", "partials", "fp32", np.int32(3), np.nan, pd.NA, b"k"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2), max_leaves=4,
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(places=st.lists(st.tuples(st.sampled_from([*COLUMNS, *STREAMS, *GATHERS]), st.integers(0, 2), cells), max_size=2),
       facts=st.dictionaries(st.sampled_from([*META, "quality", "notes", "samples", "seed", "mine"]), cells, max_size=1))  # fmt: skip
def test_nothing_crashes(places, facts, machine):
    """Anything anywhere: refused with a reason, or played."""
    items = made().items.copy()
    for column, row, value in places:
        cells = items[column].tolist()
        cells[row] = value
        items[column] = pd.Series(cells, dtype=object)
    try:
        result = simulate(Trace(items, {**META, **facts}), machine)
    except (InputError, SimulationError) as error:
        assert str(error)
    else:
        assert result.to_dict()["energy_j"] >= 0 and len(result.to_frame()) == 1


def test_checking_is_cheap():
    """A trace of 1,800 items against building the same table as a DataFrame, which nobody can avoid."""
    writer = TraceWriter()
    for n in range(600):
        writer.item(1, 0, 0, 0, n % 16, "score", {"score_adds": 5}, [("k", 0, 64, 16, 16, False)] * 2, ("v", np.arange(4), 0, 16, 16))
        writer.item(1, 0, 0, 0, n % 16, "value", {"value_adds": 5}, [], ("v", np.arange(9), 0, 16, 16))
        writer.item(1, 0, 0, 0, -1, "output", {})
    items = writer.finish(META).items

    def seconds(action):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
        return min(times)

    rows = items.to_dict("list")
    assert seconds(lambda: Trace(items, META)) < 5 * seconds(lambda: pd.DataFrame(rows))
    assert set(COUNTERS) <= set(items.columns)
