"""sweep: many points, each a kernel's trace on a machine, to one Parquet file; stopped and resumed at will."""

from __future__ import annotations

import collections
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError, SimulationError
from .sweep_clock import Clock, Progress, check_length, first_points
from .sweep_crew import result_of, workers
from .sweep_parts import Parts
from .sweep_spec import Sweep, load_sweep
from .sweep_work import play_points, run_kernel

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 16  # machine points of a part; parts that take long are handed in by and by (`sweep_work.LATEST_S`)
ESTIMATE_FROM = 64  # points from which the first ones are timed before the rest is run


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
        return read_rows(path)


def read_rows(path: Path, columns: Iterable[str] | None = None) -> pd.DataFrame:
    """A sweep's file; of `columns` those that it has. Whole numbers stay whole (Int64) also where some rows lack them."""
    import pandas as pd

    with pq.ParquetFile(path) as file:
        names = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
        return file.read(columns=names, use_threads=False).to_pandas(self_destruct=True, types_mapper={pa.int64(): pd.Int64Dtype()}.get)


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
        The output belongs to something else, what is left would take more than two hours (`yes` is False), a scheduler that
        doesn't answer.
    SimulationError
        A worker died; what is done is kept.
    """
    if output.suffix != ".parquet":
        raise InputError(f"output {str(output)!r}: a sweep's file is Parquet, write a name that ends in .parquet (pandas.read_parquet(name).to_csv(...) makes CSV of it)")
    if not output.parent.is_dir():
        raise InputError(f"output {str(output)!r}: the folder {str(output.parent)!r} does not exist")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise InputError(f"jobs={jobs!r} is not a number of processes; write 1 or more")
    if sweep.points > 10**12:
        raise InputError(f"{sweep.points:,} points are more than anybody can run: write fewer values")
    parts = Parts(output, sweep)
    if parts.folder.exists() and not parts.finished:
        parts.open()  # else once the sweep isn't too long to start
    if parts.finished:
        parts.tidy()
        return
    todo = _Todo(sweep, parts.kept(), parts.begun())
    few = todo.points < 4 and jobs is None
    try:
        with workers(sweep, parts.folder, 1 if few else jobs or os.cpu_count() or 1, scheduler) as crew:
            clock = Clock(sweep.points, sweep.points - todo.points, crew.workers, progress)
            estimate_s = None
            if not yes and todo.points >= ESTIMATE_FROM:
                clock.tell("timing the first points")
                estimate_s = check_length(sweep, todo.kernels, todo.points, *result_of(crew.submit(first_points)), crew.workers)
            parts.open()
            if parts.finished:
                return
            clock.expect(estimate_s)
            _run(todo, parts, crew, clock)
        clock.tell("writing the file")
        parts.finish(todo.chunks)
    except SimulationError as error:
        kept = f"; what is done is kept in {str(parts.folder)!r}: run the same sweep again to go on" if parts.folder.exists() else ""
        raise SimulationError(f"{error}{kept}") from None
    finally:
        parts.close()


class _Todo:
    """What isn't on disk yet: kernels, and chunks of the machine points of each. `begun`: first rows of chunks that are left."""

    def __init__(self, sweep: Sweep, kept: set[int], begun: dict[int, list[dict]]) -> None:
        self.machines, self.per_kernel = sweep.machines, -(-sweep.machines // CHUNK)
        self.chunks = sweep.kernels * self.per_kernel
        self.kept = {chunk for chunk in kept if chunk < self.chunks}
        left = {chunk: rows for chunk, rows in begun.items() if chunk < self.chunks and chunk not in self.kept}
        self.begun = {chunk: rows for chunk, rows in left.items() if len(rows) < len(self.of(chunk % self.per_kernel))}
        self.points = sweep.points - sum(len(self.of(chunk % self.per_kernel)) for chunk in self.kept) - sum(map(len, self.begun.values()))
        done = collections.Counter(chunk // self.per_kernel for chunk in self.kept)
        self.kernels = sweep.kernels - sum(count == self.per_kernel for count in done.values())

    def of(self, chunk: int) -> range:
        """Machine points of a chunk of a kernel."""
        return range(chunk * CHUNK, min((chunk + 1) * CHUNK, self.machines))

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        """Kernels with chunks that are missing, and which."""
        for kernel in range(self.chunks // self.per_kernel):
            missing = [chunk for chunk in range(self.per_kernel) if kernel * self.per_kernel + chunk not in self.kept]
            if missing:
                yield kernel, missing


def _run(todo: _Todo, parts: Parts, crew, clock: Clock) -> None:
    """Keep the workers busy: kernels first, then their chunks, never more in flight than the workers need."""
    kernels = iter(todo)
    ready: collections.deque[tuple[int, int]] = collections.deque()  # (kernel, chunk of it) whose trace is there
    made: dict[int, object] = {}
    left: dict[int, int] = {}
    flying: dict[object, tuple] = {}
    more = True
    try:
        while more or ready or flying:
            while len(flying) < crew.ahead and (ready or more):
                if ready:
                    kernel, chunk = ready.popleft()
                    rows = todo.begun.get(kernel * todo.per_kernel + chunk, [])
                    flying[crew.submit(play_points, kernel, todo.of(chunk)[len(rows) :], made[kernel], rows)] = ("chunk", kernel, chunk)
                    continue
                entry = next(kernels, None)
                if entry is None:
                    more = False
                    continue
                flying[crew.submit(run_kernel, entry[0], crew.folder)] = ("kernel", *entry)
            for future in crew.wait(flying) if flying else ():
                what, kernel, rest = flying.pop(future)
                if what == "kernel":
                    # of a cluster the future itself: the trace stays where it is
                    made[kernel] = future if hasattr(future, "key") else result_of(future)
                    left[kernel] = len(rest)
                    ready += [(kernel, chunk) for chunk in rest]
                    continue
                number, done = kernel * todo.per_kernel + rest, result_of(future)
                new = len(done) - len(todo.begun.pop(number, []))
                if isinstance(done, list):  # not all of the chunk
                    parts.begin(number, done)
                    todo.begun[number] = done
                    ready.appendleft((kernel, rest))
                    clock.add(new)
                    continue
                parts.add(number, done)
                clock.add(new)
                left[kernel] -= 1
                if not left[kernel]:
                    trace = made.pop(kernel)
                    if isinstance(trace, Path):
                        trace.unlink(missing_ok=True)
    finally:
        crew.cancel(flying)
