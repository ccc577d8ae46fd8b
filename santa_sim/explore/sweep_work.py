"""The two kinds of work of a sweep, and who does it: this process, processes beside it, or a Dask cluster."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ..errors import InputError, SimulationError
from ..simulator.replayer import Replayer
from ..trace import Trace
from .kernels import Kernel
from .rows import failed_row, row_of
from .sweep_fields import Field
from .sweep_parts import table_of
from .sweep_spec import Sweep

FAILURES = (InputError, SimulationError, ImportError, MemoryError)  # of a point: a row says so, the sweep goes on
CLUSTER_WAIT_S = 15
_LOST = ("KilledWorker", "CancelledError", "FutureCancelledError", "FuturesCancelledError")  # of distributed


def run_kernel(sweep: Sweep, number: int, folder: Path | None) -> Trace | Path | str:
    """Run a kernel: its trace (in a file of `folder`, where there is one), or why there is none."""
    try:
        trace = sweep.kernel(number).trace()
    except FAILURES as error:
        return _reason(error)
    if folder is None:
        return trace
    path = folder / f"trace-{number}-{os.getpid()}.parquet"
    trace.save(path)
    return path


def play_points(sweep: Sweep, kernel: int, points: range, made: Trace | Path | str) -> pa.Table:
    """Play a kernel's trace on the machines `points`; what fails is a row that says why."""
    trace = made if isinstance(made, str) else _replayer(made, sweep.dram_detail == "steady")
    one, known, reason = None, {}, None
    try:
        one = sweep.kernel(kernel)
        known = one.known()
    except InputError as error:
        reason = error
    return table_of([_row(sweep, kernel, point, one, known, trace if reason is None else str(reason)) for point in points])


_REPLAYERS: dict[object, Replayer] = {}  # of the last trace, for the chunks of it that follow


def _replayer(made: Trace | Path, shortcut: bool) -> Replayer:
    key = made if isinstance(made, Path) else id(made), shortcut  # a trace can't go while its replayer is here
    if key not in _REPLAYERS:
        _REPLAYERS.clear()
        _REPLAYERS[key] = Replayer(Trace.load(made) if isinstance(made, Path) else made, shortcut)
    return _REPLAYERS[key]


def _row(sweep: Sweep, kernel: int, point: int, one: Kernel | None, known: dict[str, object], trace: Replayer | str) -> dict[str, object]:
    values = {**sweep.kernel_values(kernel), **sweep.machine_values(point)}
    row: dict[str, object] = {"point": kernel * sweep.machines + point}
    try:
        if isinstance(trace, str):
            raise InputError(trace)
        result = row_of(trace.result(sweep.machine(kernel, point, dict(one.arguments)["method"])))
    except FAILURES as error:
        hardware = next((value for field, value in values.items() if field.path == ("hardware",)), sweep.fixed.get("hardware"))
        name = hardware if isinstance(hardware, str) else getattr(hardware, "name", None)
        result = failed_row(InputError(_reason(error)), **known, hardware=name)
    own = {field.name: _shown(sweep, field, value) for field, value in values.items()}
    return row | {name: value for name, value in own.items() if name not in result} | result


def _shown(sweep: Sweep, one: Field, value: object) -> object:
    """A point's value in its column: numbers stay numbers if all of the axis are, anything else is text."""
    axis = next(axis for axis in (*sweep.kernel_axes, *sweep.machine_axes) if one in axis.fields)
    column = [row[axis.fields.index(one)] for row in axis.values]
    known = [entry for entry in column if entry is not None]
    if value is None or all(isinstance(entry, bool) for entry in known) or all(isinstance(entry, int) and not isinstance(entry, bool) for entry in known):
        return value
    if all(isinstance(entry, (int, float)) and not isinstance(entry, bool) for entry in known):
        return float(value)
    return value if isinstance(value, str) else getattr(value, "name", None) or str(value)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def result_of(future) -> object:
    """What the work gave; SimulationError if who did it died (out of memory, or killed)."""
    try:
        return future.result()
    except Exception as error:
        if isinstance(error, concurrent.futures.process.BrokenProcessPool) or type(error).__name__ in _LOST:
            raise SimulationError("a worker died (out of memory, or killed)") from None
        raise


class Here:
    """This process does the work, when it is handed in."""

    workers = 1

    def __init__(self, folder: Path) -> None:
        self.folder = None

    def submit(self, work, *arguments) -> concurrent.futures.Future:
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_result(work(*arguments))
        return future

    def wait(self, futures) -> set:
        return set(futures)


class Local:
    """Processes of this machine; traces pass through files."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers
        self.pool = concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _settle)

    def submit(self, work, *arguments) -> concurrent.futures.Future:
        return self.pool.submit(work, *arguments)

    def wait(self, futures) -> set:
        return concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED).done


def _settle() -> None:
    """A worker's kernels use one thread: the workers share the cores."""
    import numba

    numba.set_num_threads(1)


class Cluster:
    """A Dask scheduler's workers; traces stay with them."""

    folder = None

    def __init__(self, client) -> None:
        self.client = client
        self.workers = sum(client.nthreads().values())

    def submit(self, work, *arguments):
        return self.client.submit(work, *arguments, pure=False)

    def wait(self, futures) -> set:
        from distributed import wait

        with self.client.as_current():
            return set(wait(list(futures), return_when="FIRST_COMPLETED").done)


@contextlib.contextmanager
def workers(folder: Path, jobs: int, scheduler: str | None) -> Iterator[Here | Local | Cluster]:
    """Who does the work: a scheduler's workers if there is one, else `jobs` processes, or this one.

    Raises
    ------
    InputError
        distributed isn't installed, nobody answers at the address, or the scheduler has no workers.
    """
    if scheduler is not None:
        with _client(scheduler) as client:
            yield Cluster(client)
    elif jobs == 1:
        yield Here(folder)
    else:
        local = Local(folder, jobs)
        try:
            yield local
        finally:
            local.pool.shutdown(wait=True, cancel_futures=True)


def _client(address: str):
    try:
        import distributed
    except ImportError:
        raise InputError(f"scheduler={address!r} needs Dask: pip install 'santa-sim[cluster]'") from None
    try:
        client = distributed.Client(address, timeout=CLUSTER_WAIT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"scheduler={address!r}: no Dask scheduler answers there ({type(error).__name__}); start one with `dask scheduler` and write "
            f"its address, such as tcp://192.0.2.7:8786"
        ) from None
    try:
        client.wait_for_workers(1, timeout=CLUSTER_WAIT_S)
    except TimeoutError:
        client.close()
        raise InputError(f"scheduler={address!r} has no workers; start some with `dask worker {address}`") from None
    return client
