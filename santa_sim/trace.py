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

from .errors import InputError, choose
from .trace_check import check_items
from .trace_meta import check_meta, shown
from .trace_schema import (
    BUFFERS,
    COLUMNS,
    COUNTERS,
    GATHERS,
    KEYS,
    SCHEMA,
    SCHEMA_VERSION,
    STAGES,
    STREAMS,
    UNITS,
    arrow_schema,
)

__all__ = ["BUFFERS", "COLUMNS", "COUNTERS", "GATHERS", "KEYS", "SCHEMA", "SCHEMA_VERSION", "STAGES", "STREAMS", "UNITS",
           "Trace", "TraceWriter"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Trace:
    """Work items of one attention run, in the order in which the kernel issued them.

    Attributes
    ----------
    items : pandas.DataFrame
        One row per work item; columns `COLUMNS`. List columns hold sequences (lists or NumPy arrays).
    meta : dict, in plain Python values (NumPy numbers and arrays that were given are converted)
        JSON-able facts about the run: method, score, kind ('decode' or 'prefill'), precision, n_heads, n_kv_heads,
        head_dim, n_q and n_k (a list, one per sequence), layers (list of layer numbers), tile (keys),
        score_types and value_types ({'operand', 'accumulator'}), normalization ('shift' or 'multiply'), and whatever
        else the writer knows (workload, samples, seed, quality, notes ...); `TraceMeta` has the types.

    Raises
    ------
    InputError
        The table or its metadata can't be played: names row or fact, value and what to write instead.
    """

    items: pd.DataFrame
    meta: Mapping[str, object]

    def __post_init__(self) -> None:
        meta, facts = check_meta(self.meta)
        check_items(self.items, facts)
        object.__setattr__(self, "meta", meta)

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
        """Write Parquet, with units on the columns and schema version and `meta` in the file's metadata.

        Raises
        ------
        InputError
            The file can't be written.
        """
        schema = arrow_schema().with_metadata(
            {"schema": SCHEMA, "schema_version": str(SCHEMA_VERSION), "rows": str(len(self)), "meta": json.dumps(self.meta)}
        )
        arrays = [pa.array(self.items[field.name], type=field.type, from_pandas=True) for field in schema]
        path = _path(path, "save")
        try:
            pq.write_table(
                pa.Table.from_arrays(arrays, schema=schema), path, compression="zstd", write_page_checksum=True
            )
        except (OSError, ValueError) as error:
            reason = f"the folder {str(path.parent)!r} does not exist" if not _exists(path.parent) else str(error)
            raise InputError(f"trace file {str(path)!r} can't be written: {reason}") from None

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace that `save` wrote (or one made elsewhere to the same schema).

        Raises
        ------
        InputError
            The file is missing, cut short, not a trace, of an unknown schema version, or its contents are wrong.
        """
        path = _path(path, "load")
        where = f"trace file {str(path)!r}"
        table = _read(path, where)
        try:
            stored = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: its metadata isn't UTF-8: {error}") from None
        if stored.get("schema") != SCHEMA:
            raise InputError(f"{where} is Parquet but not a trace: its metadata has no schema={SCHEMA!r}")
        if stored.get("schema_version") != str(SCHEMA_VERSION):
            raise InputError(
                f"{where} has schema_version={stored.get('schema_version')!r}; "
                f"this version of santa_sim reads {SCHEMA_VERSION}"
            )
        if stored.get("rows", str(table.num_rows)) != str(table.num_rows):
            raise InputError(f"{where} has {table.num_rows} rows, its metadata says {shown(stored['rows'])}")
        try:
            meta = json.loads(stored.get("meta", ""))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: its 'meta' isn't JSON: {error}") from None
        try:
            frame = table.to_pandas(ignore_metadata=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(f"{where}: its columns can't be read: {error}") from None
        return cls(frame, meta)


def _path(path: object, verb: str) -> Path:
    if not isinstance(path, (str, Path)):
        raise InputError(f"path={shown(path)}: Trace.{verb} takes the path of a file, such as 'trace.parquet'")
    return Path(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return True  # not for want of it, then: let the operating system say why


def _read(path: Path, where: str) -> pa.Table:
    """The table of a Parquet file."""
    if not _exists(path):
        raise InputError(f"{where} does not exist")
    try:
        if path.is_dir():
            raise InputError(f"{where} is a directory: give the path of a file in it")
        file = path.open("rb")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where} can't be read: {error}") from None
    with file:
        try:
            return pq.ParquetFile(file, page_checksum_verification=True).read()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputError(f"{where} is cut short or isn't Parquet: {error}") from None


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

        Raises
        ------
        InputError
            A counter is unknown or not a whole number, a stream or gather hasn't its fields. `finish` checks the rest.
        """
        columns = self._columns
        for name, value in counters.items():
            if name not in COUNTERS:
                choose("counter", name, COUNTERS)
            if not isinstance(value, (int, np.integer)):
                raise InputError(f"trace row {len(columns['stage'])}: {name}={shown(value)}: write a whole number")
        for what, fields, wanted in [("stream", s, STREAMS) for s in streams] + [("gather", gather, GATHERS)] * (gather is not None):
            if len(fields) != len(wanted):
                raise InputError(f"trace row {len(columns['stage'])}: {what}={shown(fields)}: write ({', '.join(wanted)})")
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
        frame = pd.DataFrame({name: pd.Series(values) for name, values in self._columns.items()})
        return Trace(frame, dict(meta))
