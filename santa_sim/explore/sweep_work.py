"""The two kinds of work of a sweep: running a kernel, and playing its trace on machines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from ..errors import InputError
from ..simulator.replayer import Replayer
from ..trace import Trace
from .kernels import Kernel
from .rows import failed_row, row_of
from .sweep_fields import Field
from .sweep_parts import table_of
from .sweep_spec import Sweep

LATEST_S = 10.0  # of work, after which rows are handed in


def run_kernel(sweep: Sweep, number: int, folder: Path | None) -> Trace | Path | str:
    """Run a kernel: its trace (in a file of `folder`, where there is one), or why there is none."""
    try:
        trace = sweep.kernel(number).trace()
    except OSError:
        raise  # not of the kernel: a disk is full, a file was taken away
    except Exception as error:
        return _reason(error)
    if folder is None:
        return trace
    path = folder / f"trace-{number}-{os.getpid()}.parquet"
    trace.save(path)
    return path


def play_points(sweep: Sweep, kernel: int, points: range, made: Trace | Path | str, before: Sequence[dict] = ()) -> pa.Table | list[dict]:
    """Play a kernel's trace on the machines `points`; what fails is a row that says why.

    The rows `before` and these as a table; once they have taken `LATEST_S` and some are left, those that are there.
    """
    trace = made if isinstance(made, str) else _replayer(made, sweep.dram_detail == "steady")
    one, known, reason = None, {}, None
    try:
        one = sweep.kernel(kernel)
        known = one.known()
    except InputError as error:
        reason = error
    rows, start = list(before), time.monotonic()
    for point in points:
        rows.append(_row(sweep, kernel, point, one, known, trace if reason is None else str(reason)))
        if point != points[-1] and time.monotonic() - start >= LATEST_S:
            return rows
    return table_of(rows)


_LAST = threading.local()  # the replayer of a thread's last trace, for the chunks of it that follow


def _replayer(made: Trace | Path, shortcut: bool) -> Replayer:
    key = made if isinstance(made, Path) else id(made), shortcut  # a trace can't go while its replayer is here
    if getattr(_LAST, "key", None) != key:
        forget()
        _LAST.replayer = Replayer(Trace.load(made) if isinstance(made, Path) else made, shortcut)
        _LAST.key = key
    return _LAST.replayer


def forget() -> None:
    """Let go of the last trace and its plans."""
    _LAST.key = _LAST.replayer = None


def _row(sweep: Sweep, kernel: int, point: int, one: Kernel | None, known: dict[str, object], trace: Replayer | str) -> dict[str, object]:
    values = {**sweep.kernel_values(kernel), **sweep.machine_values(point)}
    row: dict[str, object] = {"point": kernel * sweep.machines + point}
    try:
        if isinstance(trace, str):
            raise InputError(trace)
        result = row_of(trace.result(sweep.machine(kernel, point, dict(one.arguments)["method"])))
    except OSError:
        raise
    except Exception as error:
        hardware = next((value for field, value in values.items() if field.path == ("hardware",)), sweep.fixed.get("hardware"))
        name = hardware if isinstance(hardware, str) else getattr(hardware, "name", None)
        result = failed_row(InputError(_reason(error)), **known, hardware=name)
    own = {field.name: _shown(sweep, field, value) for field, value in values.items()}
    return row | {name: value for name, value in own.items() if name not in result} | result


def _shown(sweep: Sweep, one: Field, value: object) -> object:
    """A point's value in its column: numbers stay numbers if all of the axis are, anything else is text."""
    axis = next(axis for axis in (*sweep.kernel_axes, *sweep.machine_axes) if one in axis.fields)
    kind = axis.kinds[axis.fields.index(one)]
    if value is None or kind == "kept":
        return value
    if kind == "real":
        return float(value)
    return value if isinstance(value, str) else getattr(value, "name", None) or str(value)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
