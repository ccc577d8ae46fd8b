"""What a sweep keeps on disk: parts while it runs, beside the file that they become; a sweep that was stopped goes on from them.

A part holds the rows of a chunk of points and is written whole or not at all. The finished file doesn't depend on how
often the sweep was stopped, nor on who computed what: parts are cut by the spec alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError
from .sweep_spec import Sweep

KEY = b"santa_sim_sweep"


class Parts:
    """The folder of parts of one output file, held by one sweep at a time."""

    def __init__(self, output: Path, sweep: Sweep) -> None:
        """InputError if the file or the folder belongs to another sweep, or another process works on it."""
        self.output, self.sweep = output, sweep
        self.folder = output.with_name(output.name + ".parts")
        self.finished = _owned(output, sweep)
        if self.finished:
            return
        _own_folder(self.folder, sweep)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{str(self.folder)!r}: another process is working on this sweep") from None

    def path(self, chunk: int) -> Path:
        return self.folder / f"part-{chunk:08d}.parquet"

    def done(self, chunk: int) -> bool:
        return self.path(chunk).exists()

    def add(self, chunk: int, table: pa.Table) -> None:
        """Keep a chunk's rows."""
        _write(self.path(chunk), lambda path: pq.write_table(table, path))

    def finish(self, chunks: int) -> None:
        """Make the output of all parts, in order, and remove them."""
        schema = pa.unify_schemas([pq.read_schema(self.path(chunk)) for chunk in range(chunks)], promote_options="permissive")
        schema = schema.with_metadata({KEY: self.sweep.fingerprint.encode(), b"sweep": self.sweep.identity.encode()})

        def write(path: Path) -> None:
            with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                for tables in _batches(self.path(chunk) for chunk in range(chunks)):
                    writer.write_table(pa.concat_tables([_as(table, schema) for table in tables]).combine_chunks())

        _write(self.output, write)
        self.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Let another process have the folder."""
        if not self.finished:
            self._lock.close()


def table_of(rows: list[dict[str, object]]) -> pa.Table:
    """Rows as a table; a column has the type of what is in it, null if nothing is."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table[one.name].cast(one.type) if one.name in table.column_names else pa.nulls(table.num_rows, one.type) for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _batches(paths: Iterator[Path], rows: int = 1024) -> Iterator[list[pa.Table]]:
    """Tables of some files, as many at a time as have so many rows."""
    held: list[pa.Table] = []
    for path in paths:
        held.append(pq.read_table(path))
        if sum(table.num_rows for table in held) >= rows:
            yield held
            held = []
    if held:
        yield held


def _write(path: Path, write) -> None:
    """Write a file under another name first: it is there whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _owned(output: Path, sweep: Sweep) -> bool:
    """True if the file is this sweep's, finished; InputError if it is anything else."""
    if not output.exists():
        return False
    if output.is_dir():
        raise InputError(f"output {str(output)!r} is a directory")
    try:
        found = (pq.read_schema(output).metadata or {}).get(KEY)
    except (pa.ArrowException, OSError):
        found = None
    if found == sweep.fingerprint.encode():
        return True
    what = "is not the file of a sweep" if found is None else "belongs to another sweep (or to another version of what it names)"
    raise InputError(f"output {str(output)!r} {what}: write another name, or delete it first")


def _own_folder(folder: Path, sweep: Sweep) -> None:
    note = folder / "sweep.json"
    if folder.exists():
        try:
            found = json.loads(note.read_text(encoding="utf-8"))["fingerprint"]
        except (OSError, ValueError, KeyError):
            if any(folder.iterdir()):
                raise InputError(f"{str(folder)!r} is not the folder of a sweep: delete it, or write another output name") from None
            found = sweep.fingerprint
        if found != sweep.fingerprint:
            raise InputError(f"{str(folder)!r} holds parts of another sweep: finish that, delete the folder, or write another output name")
    folder.mkdir(exist_ok=True)
    if not note.exists():
        _write(note, lambda path: path.write_text(json.dumps({"fingerprint": sweep.fingerprint}) + "\n", encoding="utf-8"))
