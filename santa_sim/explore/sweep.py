"""sweep: many points, each a kernel's trace on a machine, to one Parquet file; stopped and resumed at will."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from ..errors import InputError, SimulationError
from .sweep_parts import Parts
from .sweep_spec import Sweep, load_sweep
from .sweep_work import play_points, result_of, run_kernel, workers

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 16  # machine points of a part: what is lost at most when a worker dies
ESTIMATE_FROM = 64  # points from which the first ones are timed before the rest is run
LONG_S = 2 * 3600.0  # a sweep that takes longer wants a yes

Progress = Callable[[str, int, int], None]


def sweep(spec: str | Path | Mapping | Sweep | None = None, output: str | Path | None = None, *, jobs: int | None = None,
          scheduler: str | None = None, yes: bool = False, progress: Progress | None = None, **arguments: object) -> pd.DataFrame:  # fmt: skip
    """Run every point of a sweep; see `load_sweep` for what it says, `run_sweep` for the rest.

    Example: santa_sim.sweep(workload="llama8b_decode_32k", method="s2anta-prop", S=128, hardware="adder_hbm3",
    grid={"gather.outstanding": [16, 64, 256], "dram.channels": [8, 16]})

    Returns
    -------
    DataFrame, one row a point: `point` (its number), the fields that vary, then the columns of `compare`. With `output`,
    the rows are in that Parquet file too.
    """
    checked = load_sweep(spec, **arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.parquet" if output is None else Path(output)
        run_sweep(checked, path, jobs=jobs, scheduler=scheduler, yes=yes, progress=progress)
        return pq.ParquetFile(path).read().to_pandas()


def run_sweep(sweep: Sweep, output: Path, *, jobs: int | None = None, scheduler: str | None = None, yes: bool = False,
              progress: Progress | None = None) -> None:  # fmt: skip
    """Run what isn't on disk yet of a sweep, and make its file.

    Parameters
    ----------
    output : a .parquet file; parts are kept beside it until it is finished, and a sweep that was stopped goes on from them
    jobs : processes of this machine; by default one for each core, and this process alone for a handful of points
    scheduler : address of a Dask scheduler, whose workers do the work
    yes : run it however long it is estimated to take
    progress : called with (what, points done, points in all)

    Raises
    ------
    InputError
        The output belongs to something else, the sweep would take more than two hours (`yes` is False), a scheduler that
        doesn't answer.
    SimulationError
        A worker died; what is done is kept.
    """
    if output.suffix != ".parquet":
        raise InputError(f"output {str(output)!r}: a sweep's file is Parquet, write a name that ends in .parquet")
    if not output.parent.is_dir():
        raise InputError(f"output {str(output)!r}: the folder {str(output.parent)!r} does not exist")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise InputError(f"jobs={jobs!r} is not a number of processes; write 1 or more")
    if sweep.points > 10**12:
        raise InputError(f"{sweep.points:,} points are more than anybody can run: write fewer values")
    estimate_s = None
    if not yes and sweep.points >= ESTIMATE_FROM:
        estimate_s = _check_length(sweep, jobs, scheduler, progress)
    parts = Parts(output, sweep)
    if parts.finished:
        return
    try:
        few = sweep.points < 4 and jobs is None
        with workers(parts.folder, 1 if few else jobs or os.cpu_count() or 1, scheduler) as crew:
            _run(sweep, parts, crew, _Clock(sweep.points, progress, estimate_s))
        parts.finish(_chunks(sweep))
    except SimulationError as error:
        raise SimulationError(f"{error}; what is done is kept in {str(parts.folder)!r}: run the same sweep again to go on") from None
    finally:
        parts.close()


def _chunks(sweep: Sweep) -> int:
    return sweep.kernels * _per_kernel(sweep)


def _per_kernel(sweep: Sweep) -> int:
    return -(-sweep.machines // CHUNK)


def _run(sweep: Sweep, parts: Parts, crew, clock: _Clock) -> None:
    """Keep the workers busy: kernels first, then their chunks, never more in flight than the workers need."""
    per_kernel = _per_kernel(sweep)
    chunk_points = [range(first, min(first + CHUNK, sweep.machines)) for first in range(0, sweep.machines, CHUNK)]
    todo = _to_do(sweep, parts, clock)
    ready: list[tuple[int, int]] = []  # (kernel, chunk of it) whose trace is there
    made: dict[int, object] = {}
    left: dict[int, int] = {}
    flying: dict[object, tuple] = {}
    more = True
    try:
        while more or ready or flying:
            while len(flying) < 2 * crew.workers and (ready or more):
                if ready:
                    kernel, chunk = ready.pop(0)
                    flying[crew.submit(play_points, sweep, kernel, chunk_points[chunk], made[kernel])] = ("chunk", kernel, chunk)
                    continue
                entry = next(todo, None)
                if entry is None:
                    more = False
                    continue
                flying[crew.submit(run_kernel, sweep, entry[0], crew.folder)] = ("kernel", *entry)
            for future in crew.wait(flying) if flying else ():
                what, kernel, rest = flying.pop(future)
                if what == "kernel":
                    # of a cluster the future itself: the trace stays where it is
                    made[kernel] = future if hasattr(future, "key") else result_of(future)
                    left[kernel] = len(rest)
                    ready += [(kernel, chunk) for chunk in rest]
                    continue
                parts.add(kernel * per_kernel + rest, result_of(future))
                clock.add(len(chunk_points[rest]))
                left[kernel] -= 1
                if not left[kernel]:
                    trace = made.pop(kernel)
                    if isinstance(trace, Path):
                        trace.unlink(missing_ok=True)
    finally:
        for future in flying:
            future.cancel()


def _to_do(sweep: Sweep, parts: Parts, clock: _Clock) -> Iterator[tuple[int, list[int]]]:
    """Kernels with chunks that aren't on disk, and which."""
    per_kernel = _per_kernel(sweep)
    for kernel in range(sweep.kernels):
        missing = []
        for chunk in range(per_kernel):
            if parts.done(kernel * per_kernel + chunk):
                clock.skip(min(CHUNK, sweep.machines - chunk * CHUNK))
            else:
                missing.append(chunk)
        if missing:
            yield kernel, missing


class _Clock:
    """Points done, and how long the rest may take."""

    def __init__(self, points: int, progress: Progress | None, estimate_s: float | None) -> None:
        self.points, self.progress, self.estimate_s = points, progress, estimate_s
        self.done = self.skipped = 0
        self.start = time.monotonic()
        self._tell()

    def skip(self, points: int) -> None:
        self.skipped += points

    def add(self, points: int) -> None:
        self.done += points
        self._tell()

    def _tell(self) -> None:
        if self.progress is None:
            return
        left_s = self.estimate_s
        if self.done:
            left_s = (time.monotonic() - self.start) / self.done * (self.points - self.done - self.skipped)
        about = f", about {duration(left_s)} left" if left_s is not None else ""
        self.progress(f"{self.done + self.skipped:,} of {self.points:,} points{about}", self.done + self.skipped, self.points)


def _check_length(sweep: Sweep, jobs: int | None, scheduler: str | None, progress: Progress | None) -> float:
    """Time the first kernel and its first points; InputError if the whole would take too long."""
    if progress:
        progress("timing the first point", 0, 1)
    at = [time.monotonic()]
    made = run_kernel(sweep, 0, None)
    at.append(time.monotonic())
    play_points(sweep, 0, range(1), made)
    at.append(time.monotonic())
    play_points(sweep, 0, range(1), made)  # again: the first one may have compiled
    at.append(time.monotonic())
    point_s = min(at[2] - at[1], at[3] - at[2])
    scale = _mean_size(sweep)
    workers_here = jobs or os.cpu_count() or 1
    total_s = (sweep.kernels * (at[1] - at[0]) + sweep.points * point_s) * scale / workers_here
    if total_s > LONG_S and scheduler is None:
        raise InputError(
            f"{sweep.points:,} points of {sweep.kernels:,} kernels would take about {duration(total_s)} on {workers_here} cores "
            f"({point_s:.2g} s a point): write --yes (yes=True) to run them all the same, fewer values, or --scheduler"
        )
    if total_s > LONG_S:
        raise InputError(
            f"{sweep.points:,} points of {sweep.kernels:,} kernels would take about {duration(total_s * workers_here)} of one core "
            f"({point_s:.2g} s a point): write --yes (yes=True) to hand them to the scheduler"
        )
    return total_s


def _mean_size(sweep: Sweep) -> float:
    """Keys of a kernel's workload over those of the first one, averaged over (some of) the kernels."""
    step = max(1, sweep.kernels // 50)
    sizes = []
    for number in range(0, sweep.kernels, step):
        try:
            workload = sweep.kernel(number).workload
        except InputError:
            continue
        sizes.append(sum(workload.lengths) * workload.kv_heads * workload.layers)
    return sum(sizes) / len(sizes) / sizes[0] if sizes and sizes[0] else 1.0


def duration(seconds: float) -> str:
    """A time to read: '40 s', '12 min', '3.2 h', '5.1 days'."""
    for unit, length, below in (("s", 1, 100), ("min", 60, 100 * 60), ("h", 3600, 48 * 3600)):
        if seconds < below:
            return f"{seconds / length:.2g} {unit}" if seconds / length < 10 else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days" if seconds > 10 * 86400 else f"{seconds / 86400:.1f} days"
