"""A schedule as tables: the jobs of a `Schedule` numbered, with what each needs, takes, gives back and moves as flat arrays.

A plan is shared between machines that differ in what it doesn't depend on, such as the DRAM behind the same bursts.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import NamedTuple

import numpy as np

from .compile import TRAFFIC, addresses_of, addresses_of_rows
from .jobs import Job, Schedule
from .memory import cycles_fs, page_changes
from .stalls import cause_of

_NOTHING = np.zeros(0, np.int64)


class Tables(NamedTuple):
    """A schedule as arrays: jobs by unit, in order, those of unit u from first[u] to first[u + 1]; x_at[j] to x_at[j + 1] is
    where the entries x of job j are."""

    first: np.ndarray
    duration_fs: np.ndarray
    after_at: np.ndarray
    after: np.ndarray
    take_at: np.ndarray
    take: np.ndarray  # [n, 2]: buffer, slots
    give_at: np.ndarray
    give: np.ndarray
    early_at: np.ndarray  # given back at the start
    early: np.ndarray
    cause: np.ndarray  # number of what somebody waits for who waits for the job
    asks: np.ndarray  # requests of a DRAM job
    writes: np.ndarray
    stream_at: np.ndarray
    stream: np.ndarray  # burst addresses
    gather_at: np.ndarray
    gather: np.ndarray
    row_at: np.ndarray
    row_end: np.ndarray  # of each gathered row, in its job's bursts
    capacity: np.ndarray  # of each buffer [slots]
    dram: int  # number of the unit that hands requests to the memory


class Requests:
    """Burst addresses of what memory jobs ask for, each made once for all orders of a program, which share their parts."""

    def __init__(self, burst_bytes: int) -> None:
        self.burst_bytes = burst_bytes
        self._streams: dict[tuple[int, ...], tuple[np.ndarray, list[int]]] = {}
        self._rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def stream(self, job: Job) -> tuple[np.ndarray, list[int]]:
        """Addresses of a job's regions, and how many each adds."""
        key = tuple(map(id, job.regions))
        if key not in self._streams:
            self._streams[key] = addresses_of(job.regions, self.burst_bytes)
        return self._streams[key]

    def gather(self, job: Job) -> tuple[np.ndarray, np.ndarray]:
        """Addresses of a job's rows, and where each row's end."""
        if id(job.rows) not in self._rows:
            self._rows[id(job.rows)] = addresses_of_rows(job.rows, self.burst_bytes)
        return self._rows[id(job.rows)]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A schedule, ready to be played on a memory of some burst size; without the addresses of its requests it can be played on
    one of bandwidth and latency (see `with_addresses`).

    Attributes
    ----------
    streams, gathers : burst addresses of each job's regions, of its rows
    units : dict of unit to [first, end) of its jobs;  buffers, causes : names of the numbers in `tables`
    bursts, useful_bytes : dict of traffic kind to int
    rows : int64  trace row of each job
    widest_row : bytes of the longest gathered row
    """

    streams: list[np.ndarray]
    gathers: list[np.ndarray]
    units: dict[str, tuple[int, int]]
    buffers: list[str]
    causes: list[str]
    tables: Tables
    bursts: dict[str, int]
    useful_bytes: dict[str, int]
    rows: np.ndarray
    widest_row: int

    @functools.cached_property
    def requests_digest(self) -> str:
        """What the memory is asked for, and in which order."""
        t, digest = self.tables, hashlib.blake2b(digest_size=16)
        for array in (t.stream, t.stream_at, t.gather, t.gather_at, t.writes):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def with_cycles(self, cycles: dict[str, np.ndarray], clock_hz: int) -> Plan:
        """The same jobs, as long as `cycles` of each trace row in each unit say; units that aren't named stay as they are."""
        duration_fs = self.tables.duration_fs.copy()
        for unit, of_rows in cycles.items():
            first, end = self.units[unit]
            each = of_rows[self.rows[first:end]]
            unique, where = np.unique(each, return_inverse=True)
            duration_fs[first:end] = np.array([cycles_fs(int(n), clock_hz) for n in unique], np.int64)[where]
        return dataclasses.replace(self, tables=self.tables._replace(duration_fs=duration_fs))


    def with_addresses(self) -> Plan:
        """The same, ready for any memory."""
        tables = self.tables._replace(stream=np.concatenate(self.streams), gather=np.concatenate(self.gathers))
        return dataclasses.replace(self, tables=tables)

    def activates(self, page_bytes: int) -> int:
        """Changes of page in the order of requests; of a plan with addresses."""
        t, changes, page = self.tables, 0, -1
        for job in range(*self.units["dram"]):
            for at, addresses in ((t.stream_at, t.stream), (t.gather_at, t.gather)):
                asked = addresses[at[job] : at[job + 1]]
                if len(asked):
                    changes += int(page_changes(asked, page_bytes, page))
                    page = int(asked[-1]) // page_bytes
        return changes


def plan_of(schedule: Schedule, requests: Requests) -> Plan:
    """Tables of a schedule for a memory with the bursts of `requests`, without addresses."""
    number: dict[Job, int] = {}
    units, first = {}, [0]
    for unit, jobs in schedule.jobs.items():
        for job in jobs:
            number[job] = len(number)
        units[unit] = (first[-1], len(number))
        first.append(len(number))
    jobs = list(number)
    buffers = list(schedule.capacities)
    place = {name: index for index, name in enumerate(buffers)}
    causes = {cause: index for index, cause in enumerate(dict.fromkeys(map(cause_of, jobs)))}
    bursts, useful = dict.fromkeys(TRAFFIC, 0), dict.fromkeys(TRAFFIC, 0)
    streams, gathers, ends, asks = [], [], [], []
    for job in jobs:
        streams.append(_NOTHING)
        gathers.append(_NOTHING)
        ends.append(_NOTHING)
        asks.append(bool(job.regions) + (job.rows is not None))
        if job.regions:
            streams[-1], counts = requests.stream(job)
            for region, count in zip(job.regions, counts):
                bursts[region.kind] += count
                useful[region.kind] += region.useful_bytes
        if job.rows is not None:
            gathers[-1], ends[-1] = requests.gather(job)
            bursts[job.rows.kind] += len(gathers[-1])
            useful[job.rows.kind] += job.rows.useful_bytes
    slots = [_pairs([[(place[name], n) for name, n in entries] for entries in lists])
             for lists in ([job.takes for job in jobs], [job.gives for job in jobs], [job.gives_at_start for job in jobs])]  # fmt: skip
    after_at, after = _joined([np.array([number[before] for before in job.after], np.int64) for job in jobs])
    stream_at, gather_at, (row_at, row_end) = np.cumsum([0, *map(len, streams)]), np.cumsum([0, *map(len, gathers)]), _joined(ends)
    tables = Tables(
        np.array(first), np.array([job.duration_fs for job in jobs], np.int64), after_at, after, *slots[0], *slots[1], *slots[2],
        np.array([causes[cause_of(job)] for job in jobs], np.int64), np.array(asks, np.int64),
        np.array([job.write for job in jobs], np.bool_), stream_at, _NOTHING, gather_at, _NOTHING, row_at, row_end,
        np.array([schedule.capacities[name] for name in buffers], np.int64), list(units).index("dram"),
    )  # fmt: skip
    widest = max((job.rows.row_bytes for job in jobs if job.rows is not None), default=1)
    return Plan(streams, gathers, units, buffers, list(causes), tables, bursts, useful, np.array([job.row for job in jobs], np.int64), widest)


def _joined(lists: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, lists)]), np.concatenate([_NOTHING, *lists])


def _pairs(lists: list[list[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    flat = [pair for entries in lists for pair in entries]
    return np.cumsum([0, *map(len, lists)]), np.array(flat, np.int64).reshape(-1, 2)
