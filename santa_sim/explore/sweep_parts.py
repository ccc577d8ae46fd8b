"""What a sweep keeps on disk: parts while it runs, beside the file that they become; a sweep that was stopped goes on from them.

A part holds the rows of a chunk of points and is written whole or not at all; of a chunk that takes long, the rows that are done
are kept in a file of their own until it is there. The finished file doesn't depend on how
often the sweep was stopped, nor on who computed what: parts are cut by the spec alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError
from .sweep_identity import differences
from .sweep_spec import Sweep

KEY = b"santa_sim_sweep"
GROUP = 1024  # rows of the finished file that are held at a time, about
_MERGED = 32  # tables: each that is held costs far more than its rows


class Parts:
    """The parts of one output file, in a folder that one sweep holds at a time.

    `finished`: the output is there, nothing is left to do. `open` makes and takes the folder.
    """

    def __init__(self, output: Path, sweep: Sweep) -> None:
        """InputError if the file or the folder belongs to another sweep."""
        self.output, self.sweep = output, sweep
        self.folder = output.with_name(output.name + ".parts")
        self.finished = _owned(output, sweep)
        self._lock = None
        if not self.finished:
            _check_folder(self.folder, sweep)

    def open(self) -> None:
        """Take the folder and clear what a killed sweep left half-written; InputError if another process has it."""
        if self._lock is not None:
            return
        self.folder.mkdir(exist_ok=True)
        self._lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise InputError(f"{str(self.folder)!r}: another process is working on this sweep") from None
        self.finished = _owned(self.output, self.sweep)  # by whoever had the folder until now
        _check_folder(self.folder, self.sweep)
        if self.finished:
            self._remove()
            return
        for draft in [*self.folder.glob(".*"), *self.folder.glob("trace-*"), *self.output.parent.glob(f".{self.output.name}.*")]:
            if draft.suffix[1:].isdigit() or draft.name.startswith("trace-"):
                draft.unlink(missing_ok=True)
        note = {"fingerprint": self.sweep.fingerprint, "sweep": json.loads(self.sweep.identity)}
        _write(self.folder / "sweep.json", lambda path: path.write_text(json.dumps(note) + "\n", encoding="utf-8"))

    def path(self, chunk: int) -> Path:
        return self.folder / f"part-{chunk:08d}.arrow"

    def kept(self) -> set[int]:
        """Chunks that are on disk; a part that can't be read counts as not there."""
        found = set()
        for entry in os.scandir(self.folder) if self.folder.is_dir() else ():
            number = entry.name.removeprefix("part-").removesuffix(".arrow")
            if number.isdigit() and entry.name == self.path(int(number)).name:
                try:
                    _read(Path(entry.path))
                except (pa.ArrowException, OSError):
                    continue
                found.add(int(number))
        return found

    def add(self, chunk: int, table: pa.Table) -> None:
        """Keep a chunk's rows."""

        def write(path: Path) -> None:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)

        _write(self.path(chunk), write)
        self._rows_path(chunk).unlink(missing_ok=True)

    def begin(self, chunk: int, rows: list[dict[str, object]]) -> None:
        """Keep the first rows of a chunk."""
        _write(self._rows_path(chunk), lambda path: path.write_text(json.dumps(rows, default=lambda value: value.item()), encoding="utf-8"))

    def begun(self) -> dict[int, list[dict[str, object]]]:
        """First rows of chunks that are on disk; what can't be read counts as not there."""
        found = {}
        for path in self.folder.glob("rows-*.json"):
            number = path.stem.removeprefix("rows-")
            if number.isdigit() and path == self._rows_path(int(number)):
                with contextlib.suppress(OSError, ValueError):
                    rows = json.loads(path.read_text(encoding="utf-8"))
                    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
                        found[int(number)] = rows
        return found

    def _rows_path(self, chunk: int) -> Path:
        return self.folder / f"rows-{chunk:08d}.json"

    def finish(self, chunks: int) -> None:
        """Make the output of all parts, in order, and remove them."""
        schema = None
        for chunk in range(chunks):
            schema = unified(schema, _read(self.path(chunk)).schema)
        schema = schema.with_metadata({KEY: self.sweep.fingerprint.encode(), b"sweep": self.sweep.identity.encode()})

        def write(path: Path) -> None:
            with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                for table in _groups(_as(_read(self.path(chunk)), schema) for chunk in range(chunks)):
                    writer.write_table(table)

        _write(self.output, write)
        self._remove()
        self.finished = True

    def tidy(self) -> None:
        """Remove the folder of a sweep that is finished, if one was left."""
        if self.finished and (self.folder / "sweep.json").is_file():
            with contextlib.suppress(InputError):  # whoever finishes it just now removes it
                self.open()

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _remove(self) -> None:
        """Remove the folder; what says whose it is goes last."""
        last = [self.folder / "lock", self.folder / "sweep.json"]
        for path in [*(path for path in self.folder.iterdir() if path not in last), *reversed(last)]:
            path.unlink(missing_ok=True)
        self.folder.rmdir()
        self.close()


def table_of(rows: list[dict[str, object]]) -> pa.Table:
    """Rows as a table; a column has the type of what is in it, null if nothing is, text if it is of several kinds."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: _array([row.get(name) for row in rows]) for name in names})


def _array(values: list) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else str(value) for value in values])


def unified(schema: pa.Schema | None, other: pa.Schema) -> pa.Schema:
    """A schema that holds the rows of both: columns of whichever has them, numbers as the wider type, of several kinds as text."""
    if schema is None or schema.equals(other):
        return other
    try:
        return pa.unify_schemas([schema, other], promote_options="permissive")
    except pa.ArrowException:
        pass
    out = {one.name: one for one in schema}
    for one in other:
        try:
            both = pa.unify_schemas([pa.schema([out.get(one.name, one)]), pa.schema([one])], promote_options="permissive").field(0)
        except pa.ArrowException:
            both = pa.field(one.name, pa.string())
        out[one.name] = both
    return pa.schema(list(out.values()))


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.equals(schema):
        return table
    known = dict(zip(table.column_names, table.columns))
    columns = [known[one.name] if one.name in known else pa.nulls(table.num_rows, one.type) for one in schema]
    return pa.Table.from_arrays([column if column.type == one.type else column.cast(one.type, safe=False) for column, one in zip(columns, schema)], schema=schema)


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables joined until they have enough rows."""
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        if rows >= GROUP or len(held) == _MERGED:
            held = [pa.concat_tables(held).combine_chunks()]
        if rows >= GROUP:
            yield held[0]
            held, rows = [], 0
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _read(path: Path) -> pa.Table:
    """A part; ArrowException if it isn't whole."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


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
        with pq.ParquetFile(output) as file:
            found = file.schema_arrow.metadata or {}
    except (pa.ArrowException, OSError):
        found = {}
    if found.get(KEY) == sweep.fingerprint.encode():
        return True
    what = f"belongs to another sweep{_why(found.get(b'sweep', b'').decode(), sweep)}" if KEY in found else "is not the file of a sweep"
    raise InputError(f"output {str(output)!r} {what}: write another name, or delete it first")


def _check_folder(folder: Path, sweep: Sweep) -> None:
    """InputError unless the folder is this sweep's, or nobody's."""
    if not folder.exists():
        return
    try:
        found = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
        other = found["fingerprint"] != sweep.fingerprint
    except (OSError, ValueError, KeyError, TypeError):
        if not folder.is_dir() or any(path.name != "lock" and not path.name.startswith(".sweep.json.") for path in folder.iterdir()):
            raise InputError(f"{str(folder)!r} is not the folder of a sweep: delete it, or write another output name") from None
        return
    if other:
        why = _why(json.dumps(found.get("sweep", "")), sweep)
        raise InputError(f"{str(folder)!r} holds parts of another sweep{why}: finish that, delete the folder, or write another output name")


def _why(found: str, sweep: Sweep) -> str:
    words = differences(found, sweep.identity)
    return f" ({words} differ)" if words else ""
