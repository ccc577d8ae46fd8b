"""Jobs, and the one sequence that they are put into."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from .compile import Region, Rows


class Job:
    """One unit's work for one trace row.

    Attributes
    ----------
    unit : str
    row : int
    duration_fs : int  [fs]  (of a DRAM job: 0, the memory says)
    after : list of Job that must have finished
    takes, gives : list of (buffer, slots), taken before the start, given back at the end
    gives_at_start : list of (buffer, slots)
    regions, rows, write : what a DRAM job moves
    """

    __slots__ = (
        "after",
        "done",
        "duration_fs",
        "gives",
        "gives_at_start",
        "regions",
        "row",
        "rows",
        "takes",
        "unit",
        "write",
    )

    def __init__(self, unit: str, row: int, duration_fs: int, after: list[Job], regions: list[Region] = (),
                 rows: Rows | None = None, write: bool = False) -> None:  # fmt: skip
        self.unit, self.row, self.duration_fs, self.after = unit, row, duration_fs, after
        self.takes, self.gives, self.gives_at_start = [], [], []
        self.regions, self.rows, self.write = regions, rows, write
        self.done = None  # the machine's event


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Jobs by unit in their order.

    Attributes
    ----------
    jobs : dict of unit to list of Job
    capacities : dict of buffer to int  [slots]
    fits : no buffer overflows: whatever has to give room back stands before whoever needs it
    full : buffers in which as much waited as may, so that work was put in before it was due
    """

    jobs: dict[str, list[Job]]
    capacities: dict[str, int]
    fits: bool = True
    full: frozenset[str] = frozenset()


class Once:
    """Something that is put into the sequence at most once: when it is due, or now because it is needed."""

    __slots__ = ("_through", "action", "done", "due", "per_tile")

    def __init__(self, action: Callable[[], object], per_tile: int = 1, through: Callable[[], bool] | None = None) -> None:
        self.action, self.due, self.per_tile, self.done = action, 0, per_tile, False
        self._through = through

    @property
    def through(self) -> bool:
        """It is in the sequence, in this way or another."""
        return self.done or (self._through is not None and self._through())

    def now(self) -> None:
        if not self.done:
            self.done = True
            self.action()


class Sequence:
    """All jobs in the order in which they are put in, buffers with what holds them, and work that is put off.

    Parameters
    ----------
    limits : for each buffer whose room work that is put off will give back, how many pieces of it may wait

    Attributes
    ----------
    jobs : dict of unit to list of Job
    tiles : int  tiles of K that are in the sequence
    fits, full : see Schedule
    """

    def __init__(self, units: Iterable[str], capacities: Mapping[str, int], delayed: Iterable[str], limits: Mapping[str, int]) -> None:
        self.jobs: dict[str, list[Job]] = {unit: [] for unit in units}
        self.tiles, self.fits = 0, True
        self.full: set[str] = set()
        self._capacities, self._limits = capacities, limits
        self._held: dict[str, list[tuple[int, Once]]] = {name: [] for name in limits}
        self._queues: dict[str, collections.deque[Once]] = {kind: collections.deque() for kind in delayed}

    def add(self, job: Job) -> Job:
        """Put a job in."""
        self.jobs[job.unit].append(job)
        return job

    def take(self, job: Job, buffer: str, slots: int, release: Once | None = None) -> None:
        """`job` takes slots of a buffer; called before the job is put in.

        The jobs that give back what it needs must be in the sequence before it. `release` puts the one in that will
        give back these slots, and is made to where as many wait as may; None: the caller puts it in, before anything
        else takes slots of this buffer.
        """
        job.takes.append((buffer, slots))
        if release is None:
            return
        held = self._held[buffer]
        held[:] = [entry for entry in held if not entry[1].through]
        while len(held) >= self._limits[buffer]:
            self.full.add(buffer)
            held.pop(0)[1].now()
            held[:] = [entry for entry in held if not entry[1].through]
        held.append((slots, release))
        self.fits &= sum(slots for slots, _ in held) <= self._capacities[buffer]

    def later(self, kind: str, once: Once, tiles: int) -> Once:
        """Put work off until so many further tiles of K are in the sequence."""
        once.due = self.tiles + tiles
        self._queues[kind].append(once)
        return once

    def follow(self) -> None:
        """Behind a tile of K: of each kind of work that was put off, first in first out, a piece that is due."""
        for queue in self._queues.values():
            pieces = 0
            while queue and (queue[0].done or (queue[0].due <= self.tiles and pieces < queue[0].per_tile)):
                pieces += not queue[0].done
                queue.popleft().now()

    def drain(self) -> None:
        """Put in all that was put off, as if tiles of K went on."""
        while any(self._queues.values()):
            self.tiles += 1
            self.follow()


def latest(jobs: Iterable[Job]) -> list[Job]:
    """The last job of each unit: units finish in order, so it stands for those before it."""
    return list({job.unit: job for job in jobs}.values())
