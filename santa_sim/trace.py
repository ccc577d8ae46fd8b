"""The trace: what a method kernel did, one row per work item, and the only thing a machine model reads.

A work item is (sequence, layer, KV head, query block, tile, stage). Its row holds counters of scalar operations and
accesses, the byte ranges that it streams, and the rows that it gathers. `docs/trace.md` explains each column.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import InputError

SCHEMA = "santa_sim.trace"
SCHEMA_VERSION = 1

KEYS = ("sequence", "layer", "kv_head", "query_block", "tile")
STAGES = ("score", "budget", "select", "value", "merge", "output")
COUNTERS = (
    "score_adds", "score_mults",
    "softmax_exps", "softmax_compares", "softmax_adds", "softmax_mults",
    "selection_compares",
    "sampling_random_numbers", "sampling_compares", "sampling_adds", "sampling_mults", "sampling_floors",
    "value_adds", "value_mults", "value_shifts",
    "merge_adds", "merge_mults", "merge_exps",
    "score_reads", "score_writes", "value_reads", "value_writes",
    "unique_rows_per_head", "unique_rows_per_group",
)  # fmt: skip
STREAMS = ("stream_buffer", "stream_first_byte", "stream_bytes", "stream_piece_bytes", "stream_stride_bytes",
           "stream_write")  # fmt: skip
GATHERS = ("gather_buffer", "gather_rows", "gather_first_byte", "gather_row_bytes", "gather_stride_bytes")
BUFFERS = ("q", "k", "v", "stash", "partials", "output")
UNITS = {
    **{name: "scalar operations" for name in COUNTERS},
    **{name: "scalars" for name in ("score_reads", "score_writes", "value_reads", "value_writes")},
    **{name: "rows" for name in ("unique_rows_per_head", "unique_rows_per_group", "gather_rows")},
    **{name: "bytes" for name in (*STREAMS[1:5], *GATHERS[2:])},
}
_REQUIRED_META = (
    "method", "score", "kind", "precision", "n_heads", "n_kv_heads", "head_dim", "n_q", "n_k", "layers", "tile",
    "score_types", "value_types", "normalization",
)  # fmt: skip

_LISTS = {
    "stream_buffer": pa.string(), "stream_first_byte": pa.int64(), "stream_bytes": pa.int64(),
    "stream_piece_bytes": pa.int64(), "stream_stride_bytes": pa.int64(), "stream_write": pa.bool_(),
    "gather_rows": pa.int32(),
}  # fmt: skip


def _arrow_schema() -> pa.Schema:
    fields = [pa.field(name, pa.int32()) for name in KEYS] + [pa.field("stage", pa.string())]
    fields += [pa.field(name, pa.int64()) for name in COUNTERS]
    for name in (*STREAMS, *GATHERS):
        kind = pa.list_(_LISTS[name]) if name in _LISTS else pa.string() if name == "gather_buffer" else pa.int64()
        fields.append(pa.field(name, kind))
    return pa.schema([field.with_metadata({"unit": UNITS[field.name]} if field.name in UNITS else {}) for field in fields])


COLUMNS = tuple(_arrow_schema().names)


@dataclasses.dataclass(frozen=True)
class Trace:
    """Work items of one attention run, in the order in which the kernel issued them.

    Attributes
    ----------
    items : pandas.DataFrame
        One row per work item; columns `COLUMNS`. List columns hold sequences (lists or NumPy arrays).
    meta : dict
        JSON-able facts about the run: method, score, kind ('decode' or 'prefill'), precision, n_heads, n_kv_heads,
        head_dim, n_q and n_k (a list, one per sequence), layers (list of layer numbers), tile (keys),
        score_types and value_types ({'operand', 'accumulator'}), normalization ('shift' or 'multiply'), and whatever
        else the writer knows (workload, samples, seed, quality, notes ...).
    """

    items: pd.DataFrame
    meta: Mapping[str, object]

    def __post_init__(self) -> None:
        _check(self.items, self.meta)

    def __len__(self) -> int:
        return len(self.items)

    def to_frame(self) -> pd.DataFrame:
        """A copy of the table, one row per work item; units are in `.attrs['units']`."""
        frame = self.items.copy()
        frame.attrs["units"] = dict(UNITS)
        return frame

    def total(self, counter: str) -> int:
        """Sum of one counter column over all items."""
        return int(self.items[counter].sum())

    def save(self, path: str | Path) -> None:
        """Write Parquet, with units on the columns and schema version and `meta` in the file's metadata."""
        schema = _arrow_schema().with_metadata(
            {"schema": SCHEMA, "schema_version": str(SCHEMA_VERSION), "rows": str(len(self.items)), "meta": json.dumps(dict(self.meta))}
        )
        arrays = [pa.array(self.items[field.name], type=field.type, from_pandas=True) for field in schema]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, compression="zstd")

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace that `save` wrote (or one made elsewhere to the same schema).

        Raises
        ------
        InputError
            The file is missing, cut short, not a trace, of an unknown schema version, or its columns are wrong.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"trace file {str(path)!r} does not exist")
        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"trace file {str(path)!r} is cut short or isn't Parquet: {error}") from None
        stored = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        if stored.get("schema") != SCHEMA:
            raise InputError(f"trace file {str(path)!r} is Parquet but not a trace: its metadata has no schema={SCHEMA!r}")
        if stored.get("schema_version") != str(SCHEMA_VERSION):
            raise InputError(
                f"trace file {str(path)!r} has schema_version={stored.get('schema_version')!r}; "
                f"this version of santa_sim reads {SCHEMA_VERSION}"
            )
        if int(stored.get("rows", table.num_rows)) != table.num_rows:
            raise InputError(f"trace file {str(path)!r} has {table.num_rows} rows, its metadata says {stored['rows']}")
        try:
            meta = json.loads(stored.get("meta", ""))
        except json.JSONDecodeError as error:
            raise InputError(f"trace file {str(path)!r}: its 'meta' isn't JSON: {error}") from None
        return cls(table.to_pandas(), meta)


def _check(items: pd.DataFrame, meta: Mapping[str, object]) -> None:
    """InputError unless the table and its metadata describe a playable trace."""
    missing = [name for name in COLUMNS if name not in items.columns]
    if missing:
        raise InputError(f"trace lacks the columns {missing}; see docs/trace.md")
    missing = [name for name in _REQUIRED_META if name not in meta]
    if missing:
        raise InputError(f"trace metadata lacks {missing}; see docs/trace.md")
    if len(items) == 0:
        raise InputError("trace has no work items")
    unknown = sorted(set(items["stage"]) - set(STAGES))
    if unknown:
        raise InputError(f"trace has the unknown stage {unknown[0]!r}; stages are {', '.join(STAGES)}")
    for name in (*COUNTERS, *GATHERS[2:]):
        column = items[name].to_numpy()
        if column.dtype.kind not in "iu":
            raise InputError(f"trace column {name!r} must hold integers, not {column.dtype}")
        if (column < 0).any():
            row = int(np.argmax(column < 0))
            raise InputError(f"trace column {name!r} is negative in row {row}: {column[row]}")
    lengths = [items[name].map(len).to_numpy() for name in STREAMS]
    for name, length in zip(STREAMS[1:], lengths[1:]):
        if (length != lengths[0]).any():
            row = int(np.argmax(length != lengths[0]))
            raise InputError(f"trace row {row}: {name} has {length[row]} entries, stream_buffer has {lengths[0][row]}")
    named = {name for names in items["stream_buffer"] for name in names} | set(items["gather_buffer"]) - {""}
    if not named <= set(BUFFERS):
        raise InputError(f"trace names the unknown buffer {sorted(named - set(BUFFERS))[0]!r}; buffers are {', '.join(BUFFERS)}")
    gathers = items["gather_rows"].map(len).to_numpy() > 0
    bad = gathers & ((items["gather_buffer"] == "").to_numpy() | (items["gather_row_bytes"].to_numpy() <= 0))
    if bad.any():
        raise InputError(f"trace row {int(np.argmax(bad))} gathers rows without a gather_buffer or with gather_row_bytes <= 0")


class TraceWriter:
    """Collects work items in issue order; `finish` gives the Trace."""

    def __init__(self) -> None:
        self._columns: dict[str, list] = {name: [] for name in COLUMNS}

    def item(self, sequence: int, layer: int, kv_head: int, query_block: int, tile: int, stage: str,
             counters: Mapping[str, int], streams: list[tuple] = (), gather: tuple | None = None) -> None:  # fmt: skip
        """Append one item.

        Parameters
        ----------
        counters : mapping of counter name to int; counters not named are 0.
        streams : list of (buffer, first_byte, bytes, piece_bytes, stride_bytes, write): `bytes` in all, in pieces of
            `piece_bytes` whose starts lie `stride_bytes` apart, from `first_byte` of that (sequence, layer)'s buffer.
        gather : (buffer, rows, first_byte, row_bytes, stride_bytes): row r lies at first_byte + r * stride_bytes.
        """
        columns = self._columns
        for name, value in zip(KEYS, (sequence, layer, kv_head, query_block, tile)):
            columns[name].append(value)
        columns["stage"].append(stage)
        for name in COUNTERS:
            columns[name].append(int(counters.get(name, 0)))
        fields = list(zip(*streams)) if streams else [()] * len(STREAMS)
        for name, values in zip(STREAMS, fields):
            columns[name].append(list(values))
        for name, value in zip(GATHERS, gather or ("", np.empty(0, np.int32), 0, 0, 0)):
            columns[name].append(value)

    def any(self, counter: str) -> bool:
        """True if any item so far counted this."""
        return any(self._columns[counter])

    def finish(self, meta: Mapping[str, object]) -> Trace:
        """The Trace of all items so far."""
        frame = pd.DataFrame({name: pd.Series(values, dtype="int64" if name in COUNTERS else None) for name, values in self._columns.items()})
        return Trace(frame, dict(meta))
