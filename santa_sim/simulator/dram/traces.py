"""Readers of request traces: `.npz`, Ramulator's and DRAMsim3's text, in pieces; and writers of the text forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ...errors import InputError, choose
from .replay import Chunk

LINES = 1 << 16  # lines read at a time
FORMATS = ("ramulator", "dramsim3")
_READS = {"LD": False, "R": False, "READ": False, "ST": True, "W": True, "WRITE": True}


def read_trace(path: str | Path) -> Iterator[Chunk]:
    """Requests of a trace file, in pieces (addresses int64 [n], writes bool [n], ready cycles int64 [n] or None).

    `.npz` holds arrays `address` and `write`. Text is one request a line: Ramulator's `LD 0x12345680` and `ST 0x...`
    (`R` and `W` too), or DRAMsim3's `0x12345680 READ 17` with the clock at which it is ready. Lines that are empty or
    start with `#` are skipped.

    Raises
    ------
    InputError
        The file is missing, empty, or a line isn't a request (its number is given).
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"trace {str(path)!r} {'is a directory' if path.is_dir() else 'does not exist'}")
    if path.suffix == ".npz":
        yield _read_npz(path)
        return
    kind, count, rows = None, 0, []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            row = _parse(words)
            if row is None or (kind is not None and (row[2] is None) != kind):
                raise InputError(
                    f"{path}, line {number}: {line.strip()!r} is not a request; write 'LD 0x40' or 'ST 0x40' "
                    "(Ramulator), or '0x40 READ 17' or '0x40 WRITE 17' (DRAMsim3), one form in a file, numbers from 0 to 2^62"
                )
            kind = row[2] is None
            rows.append(row)
            if len(rows) == LINES:
                yield _chunk(rows)
                count, rows = count + len(rows), []
    if rows:
        yield _chunk(rows)
    elif count == 0:
        raise InputError(f"trace {str(path)!r} holds no request")


def _parse(words: list[str]) -> tuple[int, bool, int | None] | None:
    try:
        if words[0].upper() in _READS and len(words) == 2:
            request = int(words[1], 0), _READS[words[0].upper()], None
        elif len(words) == 3 and words[1].upper() in _READS:
            request = int(words[0], 16), _READS[words[1].upper()], int(words[2])
        else:
            return None
    except ValueError:
        return None
    numbers_fit = all(0 <= number < 2**62 for number in (request[0], request[2] or 0))
    return request if numbers_fit else None


def _chunk(rows: list[tuple[int, bool, int | None]]) -> Chunk:
    addresses, writes, ready = zip(*rows, strict=True)
    return (
        np.array(addresses, np.int64),
        np.array(writes, np.bool_),
        None if ready[0] is None else np.array(ready, np.int64),
    )


def _read_npz(path: Path) -> Chunk:
    try:
        with np.load(path) as data:
            names = set(data.files)
            if not {"address", "write"} <= names:
                raise InputError(
                    f"{path}: has arrays {', '.join(sorted(names)) or 'none'}; it needs 'address' and 'write'"
                )
            address, write = np.asarray(data["address"]), np.asarray(data["write"])
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not readable as .npz: {error}") from None
    if address.ndim != 1 or address.shape != write.shape or address.dtype.kind not in "iu":
        raise InputError(
            f"{path}: address has shape {address.shape} and type {address.dtype}, write {write.shape}; "
            "both are one row, address of integers"
        )
    if len(address) == 0:
        raise InputError(f"trace {str(path)!r} holds no request")
    return address.astype(np.int64), write.astype(np.bool_), None


def write_trace(path: str | Path, chunks: Iterable[Chunk], form: str) -> int:
    """Write requests as text of another simulator; returns how many.

    Parameters
    ----------
    form : 'ramulator' or 'dramsim3' (whose ready cycles are 0 where there are none: as fast as they are taken)
    """
    choose("form", form, FORMATS)
    count = 0
    with Path(path).open("w", encoding="utf-8") as file:
        for addresses, writes, ready in chunks:
            cycles = np.zeros(len(addresses), np.int64) if ready is None else ready
            for address, write, cycle in zip(
                addresses.tolist(), np.broadcast_to(writes, addresses.shape).tolist(), cycles.tolist(), strict=True
            ):
                if form == "ramulator":
                    file.write(f"{'ST' if write else 'LD'} {address:#x}\n")
                else:
                    file.write(f"{address:#x} {'WRITE' if write else 'READ'} {cycle}\n")
            count += len(addresses)
    return count
