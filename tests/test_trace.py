"""Traces survive the disk unchanged; what isn't one, or is damaged, is refused with its reason."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import santa_sim
from santa_sim.errors import InputError
from santa_sim.trace import BUFFERS, COLUMNS, COUNTERS, STAGES, UNITS, Trace, TraceWriter

META = {"method": "sdpa", "score": "exact", "kind": "decode", "precision": "bf16", "n_heads": 1, "n_kv_heads": 1, "head_dim": 8,
        "n_q": [1], "n_k": [4], "layers": [0], "tile": 4, "score_types": {"operand": "bf16", "accumulator": "fp32"},
        "value_types": {"operand": "bf16", "accumulator": "fp32"}, "normalization": "multiply"}  # fmt: skip


def small(meta=META):
    writer = TraceWriter()
    writer.item(0, 0, 0, 0, 0, "score", {"score_adds": 32}, [("k", 0, 64, 16, 16, False), ("stash", 0, 16, 16, 16, True)])
    writer.item(0, 0, 0, 0, 0, "value", {"value_adds": 16}, gather=("v", np.array([1, 3], np.int32), 0, 16, 16))
    writer.item(0, 0, 0, 0, -1, "output", {"unique_rows_per_head": 2})
    return writer.finish(meta)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.parquet"
    small().save(path)
    return path


def same(one, other):
    assert dict(one.meta) == dict(other.meta) and len(one) == len(other)
    for name in COLUMNS:
        for a, b in zip(one.items[name], other.items[name]):
            assert np.array_equal(a, b), name


@pytest.mark.parametrize("method, budget", [("sdpa", {}), ("topk", {"k_top": 5}), ("s2anta-prop", {"S": 8}), ("s2anta-flash", {"S": 8})])
@pytest.mark.parametrize("score", [{}, {"score": "bernoulli", "B": 2}])
def test_a_kernels_trace_survives_the_disk(tmp_path, method, budget, score):
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(0, 1, (n, h, 8)).astype(np.float32) for n, h in ((5, 4), (40, 2), (40, 2)))
    _, trace = santa_sim.attention(q, k, v, method, **budget, **score, tile=16)
    trace.save(tmp_path / "t.parquet")
    same(trace, Trace.load(tmp_path / "t.parquet"))
    same(trace, Trace.load(str(tmp_path / "t.parquet")))


def test_a_home_made_table_loads(tmp_path, saved):
    """Written with pyarrow alone, with plain lists; extra metadata stays."""
    table = pq.read_table(saved)
    path = tmp_path / "b.parquet"
    pq.write_table(table, path)
    loaded = Trace.load(path)
    same(small(), loaded)
    assert loaded.total("score_adds") == 32


def test_units_are_on_the_columns(saved):
    schema = pq.read_schema(saved)
    assert schema.field("value_reads").metadata[b"unit"] == b"scalars"
    assert schema.field("stream_bytes").metadata[b"unit"] == b"bytes"
    frame = small().to_frame()
    assert frame.attrs["units"] == UNITS and set(UNITS) <= set(COLUMNS)
    frame.loc[0, "score_adds"] = -1
    assert small().total("score_adds") == 32


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_trace_cut_short(saved, part):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(InputError, match="a.parquet' is cut short or isn't Parquet"):
        Trace.load(saved)


def rewritten(path, table=None, **metadata):
    table = pq.read_table(path) if table is None else table
    stored = {**table.schema.metadata, **{key.encode(): value.encode() for key, value in metadata.items()}}
    pq.write_table(table.replace_schema_metadata({key: value for key, value in stored.items() if value}), path)
    return path


@pytest.mark.parametrize("change, message", [
    ({"schema_version": "2"}, "has schema_version='2'; this version of santa_sim reads 1"),
    ({"schema_version": ""}, "has schema_version=None"),
    ({"schema": "other"}, "is Parquet but not a trace"),
    ({"rows": "4"}, "has 3 rows, its metadata says 4"),
    ({"meta": "{"}, "its 'meta' isn't JSON"),
    ({"meta": json.dumps({"method": "sdpa"})}, "metadata lacks"),
])  # fmt: skip
def test_wrong_metadata(saved, change, message):
    with pytest.raises(InputError, match=message):
        Trace.load(rewritten(saved, **change))


def test_not_a_trace_at_all(tmp_path):
    with pytest.raises(InputError, match=r"none.parquet' does not exist"):
        Trace.load(tmp_path / "none.parquet")
    path = tmp_path / "c.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(InputError, match="not a trace"):
        Trace.load(path)
    path.write_text("hello")
    with pytest.raises(InputError, match="isn't Parquet"):
        Trace.load(path)


def test_wrong_columns(saved):
    table = pq.read_table(saved)
    with pytest.raises(InputError, match=r"lacks the columns \['score_adds'\]"):
        Trace.load(rewritten(saved, table.drop_columns(["score_adds"])))
    index = table.schema.get_field_index("score_adds")
    floats = table.set_column(index, "score_adds", pa.array([1.5, 2.0, 3.0]))
    with pytest.raises(InputError, match="'score_adds' must hold integers"):
        Trace.load(rewritten(saved, floats))
    with pytest.raises(InputError, match="'score_adds' must hold integers"):
        Trace.load(rewritten(saved, table.set_column(index, "score_adds", pa.array([1, None, 3]))))


def changed(column, row, value):
    items = small().items.copy()
    items[column] = items[column].astype(object)
    items.at[row, column] = value
    return items.infer_objects()


@pytest.mark.parametrize("column, row, value, message", [
    ("value_adds", 1, -5, "'value_adds' is negative in row 1: -5"),
    ("gather_row_bytes", 1, 0, "row 1 gathers rows without"),
    ("gather_buffer", 1, "", "row 1 gathers rows without a gather_buffer"),
    ("gather_buffer", 1, "w", "unknown buffer 'w'; buffers are q, k, v, stash, partials, output"),
    ("stream_buffer", 0, ["k", "kv"], "unknown buffer 'kv'"),
    ("stream_bytes", 0, [64], "row 0: stream_bytes has 1 entries, stream_buffer has 2"),
    ("stage", 2, "store", "unknown stage 'store'; stages are score, budget, select, value, merge, output"),
])  # fmt: skip
def test_tables_that_cannot_be_played(column, row, value, message):
    with pytest.raises(InputError, match=message):
        Trace(changed(column, row, value), META)


def test_an_empty_trace_and_missing_facts():
    with pytest.raises(InputError, match="no work items"):
        Trace(small().items.iloc[:0], META)
    with pytest.raises(InputError, match=r"lacks \['normalization'\]"):
        small({key: value for key, value in META.items() if key != "normalization"})


def test_the_documented_names_are_the_schema(request):
    text = (request.config.rootpath / "docs" / "trace.md").read_text()
    for name in (*STAGES, *BUFFERS, *META):
        assert f"`{name}`" in text, name
    assert set(COUNTERS) < set(COLUMNS)
