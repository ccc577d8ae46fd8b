"""Traces survive the disk unchanged; what isn't one, or is damaged, is refused with its reason."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import santa_sim
from santa_sim.errors import InputError
from santa_sim.simulator.compile import OPERATIONS, STAGE_UNITS
from santa_sim.trace import (
    BUFFERS,
    COLUMNS,
    COUNTERS,
    GATHERS,
    SCHEMA,
    SCHEMA_VERSION,
    STAGES,
    STREAMS,
    UNITS,
    Trace,
    TraceWriter,
)
from santa_sim.trace_schema import LARGEST_BYTE, LARGEST_COUNT, LARGEST_ITEM_BYTES, LARGEST_PIECES

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
    ({"rows": "4"}, "has 3 rows, its metadata says '4'"),
    ({"rows": "abc"}, "has 3 rows, its metadata says 'abc'"),
    ({"meta": "{"}, "its 'meta' isn't JSON"),
    ({"meta": ""}, "its 'meta' isn't JSON"),
    ({"meta": "[" * 10**5}, "its 'meta' isn't JSON"),
    ({"meta": "1" * 5000}, "its 'meta' isn't JSON"),
    ({"meta": "5"}, "trace metadata is 5; write a dictionary"),
    ({"meta": "null"}, "trace metadata is None; write a dictionary"),
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
    for values, message in (
        ([1.5, 2.0, 3.0], "row 0: score_adds=1.5: 'score_adds' must hold whole numbers"),
        ([1, None, 3], "'score_adds' must hold whole numbers"),
        (["1", "2", "3"], "row 0: score_adds='1'"),
        ([[1], [2], [3]], "row 0: score_adds="),
    ):
        with pytest.raises(InputError, match=message):
            Trace.load(rewritten(saved, table.set_column(index, "score_adds", pa.array(values))))


@pytest.mark.parametrize("column, cells, message", [
    ("gather_rows", [[], [1, None], []], "row 1: gather_rows="),
    ("gather_rows", [None, [1, 3], []], "row 0: gather_rows=None: write a list of whole numbers"),
    ("stream_bytes", [64, 0, 0], "row 0: stream_bytes=64: write a list of whole numbers"),
    ("stream_write", [[False, None], [], []], "row 0: stream_write=None: write a list of true or false"),
    ("stage", ["score", None, "output"], "row 1: stage="),
    ("gather_buffer", ["", "v", None], "row 2: gather_buffer="),
    ("tile", [[0], [0], [0]], "row 0: tile="),
])  # fmt: skip
def test_nulls_and_scalars_from_a_file(saved, column, cells, message):
    table = pq.read_table(saved)
    changed = table.set_column(table.schema.get_field_index(column), column, pa.array(cells))
    with pytest.raises(InputError, match=message):
        Trace.load(rewritten(saved, changed))


def test_metadata_that_isnt_utf8(saved):
    table = pq.read_table(saved)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"more": b"\xff\xfe"}), saved)
    with pytest.raises(InputError, match="a.parquet': its metadata isn't UTF-8"):
        Trace.load(saved)


def test_a_changed_byte_is_noticed(saved):
    """Files of `save` have page checksums: each byte before the footer is the same, an error, or not looked at."""
    content, whole = saved.read_bytes(), small()
    for place in range(4, len(content) * 2 // 3, 61):
        saved.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        try:
            loaded = Trace.load(saved)
        except InputError:
            continue
        same(whole, loaded)


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(InputError, match="is a directory: give the path of a file in it"):
        Trace.load(tmp_path)
    with pytest.raises(InputError, match="can't be read"):
        Trace.load(tmp_path / ("x" * 5000))
    for action in (Trace.load, small().save):
        with pytest.raises(InputError, match=r"path=None: Trace.(load|save) takes the path of a file"):
            action(None)


def test_a_file_in_a_folder_named_like_a_column(tmp_path):
    """Folders such as layer=1 are no data."""
    folder = tmp_path / "layer=1"
    folder.mkdir()
    small().save(folder / "a.parquet")
    same(small(), Trace.load(folder / "a.parquet"))


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match=r"none/a.parquet' can't be written: the folder '.*none' does not exist"):
        small().save(tmp_path / "none" / "a.parquet")
    with pytest.raises(InputError, match="can't be written: .*directory"):
        small().save(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/a.parquet' can't be written"):
        small().save(tmp_path / "file" / "a.parquet")
    with pytest.raises(InputError, match="can't be written"):
        small().save(tmp_path / ("x" * 5000))


def test_numpy_numbers_in_the_facts(tmp_path):
    given = {**META, "n_k": np.array([4]), "n_heads": np.int64(1), "seed": np.int32(3), "samples": np.int64(8)}
    made = small(given)
    made.save(tmp_path / "n.parquet")
    same(made, Trace.load(tmp_path / "n.parquet"))
    result = santa_sim.simulate(made, "mac_hbm3").to_dict()
    assert (result["seed"], result["samples"]) == (3, 8) and given["n_heads"] == np.int64(1)


def test_the_documented_names_are_the_schema(request):
    text = (request.config.rootpath / "docs" / "trace.md").read_text()
    for name in (*STAGES, *BUFFERS, *META, *COUNTERS, *STREAMS, *GATHERS, SCHEMA, str(SCHEMA_VERSION)):
        assert f"`{name}`" in text, name
    for limit in (f"{LARGEST_PIECES:,}", "2³¹" if LARGEST_ITEM_BYTES == 2**31 else "?", "2⁴⁰" if LARGEST_BYTE == 2**40 else "?",
                  "2⁵³" if LARGEST_COUNT == 2**53 else "?"):  # fmt: skip
        assert limit in text


def test_the_documented_counters_are_those_that_units_do(request):
    lines = (request.config.rootpath / "docs" / "trace.md").read_text().splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("| counters |"))
    stages, documented = re.findall(r"`(\w+)`", lines[head]), {}
    for line in itertools.takewhile(lambda line: line.startswith("|"), lines[head + 2 :]):
        names, *cells = line.strip("|").split("|")
        for counter in re.findall(r"`(\w+)`", names):
            documented[counter] = {stage for stage, cell in zip(stages, cells, strict=True) if cell.strip() == "yes"}
    assert documented.keys() == set(COUNTERS) and stages == list(STAGES)
    for counter in OPERATIONS:
        family = counter.split("_")[0]
        assert documented[counter] == {
            stage for stage, units in STAGE_UNITS.items() if any(family in families for _, families in units)
        }


def test_the_documented_example_runs(request, tmp_path, monkeypatch, capsys):
    text = (request.config.rootpath / "docs" / "trace.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/trace.md", "exec"), {})
    trace = Trace.load("mine.parquet")
    assert len(trace) == 3 and trace.total("score_adds") == 64
    assert re.fullmatch(r"\S+ s, \S+ J, 64 bytes of V\n", capsys.readouterr().out)
