"""The machine: SimPy processes for its units, joined by bounded buffers with back-pressure.

Each unit takes its jobs in the order of the schedule: waits for what a job needs, takes room in the buffer that it
fills, is busy for the job's duration and gives back the room that it has emptied. Time is integer femtoseconds.

This is the machine to read, and what `simulate` plays. Sweeps play the same one as tables and a compiled loop (`replay`), which
tests/simulator/test_replay.py holds equal to this one in every field of a result.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import simpy

from ..errors import SimulationError
from .compile import TRAFFIC, addresses_of, addresses_of_rows
from .jobs import Job, Schedule
from .memory import MemoryReport, address_times_fs, cycles_fs
from .ports import Channel, MemoryPort
from .stalls import BUSY, DONE, REQUESTS, Wait, cause_of, space_of

if TYPE_CHECKING:
    from ..hardware_model import Hardware


@dataclasses.dataclass(frozen=True)
class Span:
    """One job as it was done: unit, trace row, start and end [fs]; of DRAM from the request to the last completion."""

    unit: str
    row: int
    start_fs: int
    end_fs: int


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run of the machine measured.

    Attributes
    ----------
    end_fs : int  [fs]
    busy_fs : dict of unit to int  [fs]  (DRAM: see memory)
    bursts, useful_bytes : dict of traffic kind to int
    memory : MemoryReport
    peak : dict of buffer to int  [slots]  held at most, for a time
    stalls_fs : dict of unit to dict of cause to int  [fs]  what each unit did with its time: sums to end_fs
    spans : list of Span, or None if they weren't asked for
    waits : list of Wait, or None
    channels : list of Channel, what the memory's data buses did, or None
    """

    end_fs: int
    busy_fs: dict[str, int]
    bursts: dict[str, int]
    useful_bytes: dict[str, int]
    memory: MemoryReport
    peak: dict[str, int]
    stalls_fs: dict[str, dict[str, int]]
    spans: list[Span] | None
    waits: list[Wait] | None
    channels: list[Channel] | None


class SlotBuffer:
    """Room for so many slots between two units. One unit takes, any may give back.

    What counts for its peak is what is held for a time: in which order slots are taken and given back within an instant doesn't.
    """

    def __init__(self, env: simpy.Environment, capacity: int) -> None:
        self.env, self.capacity, self.free = env, capacity, capacity
        self._least_free, self._changed_fs = capacity, 0
        self._waiting: tuple[int, simpy.Event] | None = None

    @property
    def peak(self) -> int:
        """Slots held at most."""
        return self.capacity - min(self._least_free, self.free)

    def take(self, slots: int) -> simpy.Event | None:
        """Take slots: None if there is room now, else an event for when there is and they are taken."""
        if slots <= self.free:
            self._change(-slots)
            return None
        self._waiting = (slots, self.env.event())
        return self._waiting[1]

    def give(self, slots: int) -> None:
        """Give slots back."""
        self._change(slots)
        if self._waiting is not None and self._waiting[0] <= self.free:
            wanted, event = self._waiting
            self._waiting = None
            self._change(-wanted)
            event.succeed()

    def _change(self, slots: int) -> None:
        if self.env.now > self._changed_fs:
            self._least_free, self._changed_fs = min(self._least_free, self.free), self.env.now
        self.free += slots


class Machine:
    """A machine with its jobs; `run` plays them to the end."""

    def __init__(self, plan: Schedule, memory: Callable[[simpy.Environment], MemoryPort], hardware: Hardware,
                 keep_spans: bool = False, progress: Callable[[int, int], None] | None = None) -> None:  # fmt: skip
        self.env = simpy.Environment(initial_time=0)
        self.plan, self.memory, self.hw = plan, memory(self.env), hardware
        self.buffers = {name: SlotBuffer(self.env, capacity) for name, capacity in plan.capacities.items()}
        self.busy_fs = dict.fromkeys([*plan.jobs, "gather"], 0)
        self.bursts = dict.fromkeys(TRAFFIC, 0)
        self.useful_bytes = dict.fromkeys(TRAFFIC, 0)
        self.spans: list[Span] | None = [] if keep_spans else None
        self.waits: list[Wait] | None = [] if keep_spans else None
        self.waited_fs = {unit: collections.defaultdict(int) for unit, jobs in plan.jobs.items() if jobs}
        self.gathers = any(job.rows is not None for job in plan.jobs["dram"])
        self.progress = progress
        self.gather_free_fs = 0
        self.doing: dict[str, Job | None] = dict.fromkeys(plan.jobs)

    def run(self) -> Run:
        """Play all jobs.

        Raises
        ------
        SimulationError
            Events ran out before the jobs did (a broken schedule), or the time doesn't fit into 64-bit femtoseconds.
        """
        for unit, jobs in self.plan.jobs.items():
            for job in jobs:
                job.done = self.env.event()
            if jobs:
                self.env.process(self._dram(jobs) if unit == "dram" else self._unit(unit, jobs))
        try:
            self.env.run()
        except OverflowError:
            raise SimulationError("the run is longer than 9,000 s, beyond 64-bit femtoseconds") from None
        stuck = {unit: job.row for unit, job in self.doing.items() if job is not None}
        if stuck:
            raise SimulationError(
                "deadlock: " + ", ".join(f"{unit} waits with trace row {row}" for unit, row in stuck.items())
            )
        end, peak = self.env.now, {name: buffer.peak for name, buffer in self.buffers.items()}
        report = self.memory.report()
        return Run(end, self.busy_fs, self.bursts, self.useful_bytes, report, peak, self._stalls(end), self.spans,
                   self.waits, None if self.spans is None else self.memory.channels())  # fmt: skip

    def _stalls(self, end: int) -> dict[str, dict[str, int]]:
        stalls = {}
        for unit, waited in self.waited_fs.items():
            known = ({} if unit == "dram" else {BUSY: self.busy_fs[unit]}) | dict(waited)
            stalls[REQUESTS if unit == "dram" else unit] = known | {DONE: end - sum(known.values())}
        if self.gathers:
            busy = self.busy_fs["gather"]
            stalls["gather"] = {BUSY: busy, f"work_{REQUESTS}": self.gather_free_fs - busy, DONE: end - self.gather_free_fs}
        return stalls

    def _waited(self, unit: str, cause: str, since: int) -> None:
        now = self.env.now
        if now > since:
            self.waited_fs[unit][cause] += now - since
            if self.waits is not None:
                self.waits.append(Wait(REQUESTS if unit == "dram" else unit, cause, since, now))

    def _ready(self, unit: str, job: Job) -> Generator:
        since = self.env.now
        for before in job.after:
            if before.done.callbacks is not None:  # not yet processed
                yield before.done
        if self.env.now > since:  # for the one that came last; of those that came in the same instant, the last in the list
            last = [before for before in job.after if before.done.value == self.env.now][-1]
            self._waited(unit, cause_of(last), since)
        for name, slots in job.takes:
            room = self.buffers[name].take(slots)
            if room is not None:
                since = self.env.now
                yield room
                self._waited(unit, space_of(name), since)

    def _unit(self, unit: str, jobs: list[Job]) -> Generator:
        env, buffers = self.env, self.buffers
        for job in jobs:
            self.doing[unit] = job
            yield from self._ready(unit, job)
            start = env.now
            if job.duration_fs:
                yield env.timeout(job.duration_fs)
            for name, slots in job.gives:
                buffers[name].give(slots)
            job.done.succeed(env.now)
            self.busy_fs[unit] += job.duration_fs
            if self.spans is not None:
                self.spans.append(Span(unit, job.row, start, env.now))
        self.doing[unit] = None

    def _dram(self, jobs: list[Job]) -> Generator:
        """The sequencer: hands jobs to the memory one by one, each when it is ready and the one before is out."""
        every = max(1, len(jobs) // 100)
        for number, job in enumerate(jobs):
            self.doing["dram"] = job
            yield from self._ready("dram", job)
            self._issue(job)
            if self.progress is not None and (number + 1) % every == 0:
                self.progress(number + 1, len(jobs))
        self.doing["dram"] = None
        if self.progress is not None:
            self.progress(len(jobs), len(jobs))

    def _issue(self, job: Job) -> None:
        env, burst = self.env, self.memory.burst_bytes
        now = env.now
        for name, slots in job.gives_at_start:
            self.buffers[name].give(slots)
        asked = []
        if job.regions:
            addresses, counts = addresses_of(job.regions, burst)
            for region, count in zip(job.regions, counts):
                self.bursts[region.kind] += count
                self.useful_bytes[region.kind] += region.useful_bytes
            asked.append(self.memory.request(addresses, job.write))
        if job.rows is not None:
            asked.append(self._gather(now, job))
        left = len(asked)

        def complete(_: simpy.Event) -> None:
            nonlocal left
            left -= 1
            if left > 0:
                return
            for name, slots in job.gives:
                self.buffers[name].give(slots)
            job.done.succeed(env.now)
            if self.spans is not None:
                self.spans.append(Span("dram", job.row, now, env.now))

        for event in asked or [env.timeout(0)]:
            event.callbacks.append(complete)

    def _gather(self, now: int, job: Job) -> simpy.Event:
        rows, hw = job.rows, self.hw
        addresses, ends = addresses_of_rows(rows, self.memory.burst_bytes)
        self.bursts[rows.kind] += len(addresses)
        self.useful_bytes[rows.kind] += rows.useful_bytes
        start = max(now, self.gather_free_fs)
        ready = address_times_fs(start, len(rows.rows), hw.gather.addresses_per_cycle, hw.clock_hz)
        busy = cycles_fs(-(-len(rows.rows) // hw.gather.addresses_per_cycle), hw.clock_hz)
        self.gather_free_fs = start + busy
        self.busy_fs["gather"] += busy
        if self.spans is not None:
            self.spans.append(Span("gather", job.row, start, self.gather_free_fs))
        return self.memory.gather(addresses, ends, ready)


def play(plan: Schedule, memory: Callable[[simpy.Environment], MemoryPort], hardware: Hardware, keep_spans: bool = False,
         progress: Callable[[int, int], None] | None = None) -> Run:  # fmt: skip
    """Play a schedule on a memory, which is made for the machine's environment; see Machine.run."""
    return Machine(plan, memory, hardware, keep_spans, progress).run()
