"""The machine without SimPy, for many runs of one trace: the same events, compiled; the same times to the femtosecond.

`machine` says what a machine does, a unit a process; this says it again as tables and one loop, and the tests hold the two
equal. A plan is the schedule as tables: it is shared between machines that differ in what it doesn't depend on, such as
the DRAM behind the same bursts.

Numba's cache watches this file alone: after a change to the DRAM's `bank`, `scheduler`, `core` or `layout`, save this one too.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from ..errors import SimulationError
from .compile import TRAFFIC, addresses_of, addresses_of_rows
from .dram import Dram, Port, core
from .dram import layout as L
from .dram.memory import END_OF_TIME
from .jobs import Job, Schedule
from .machine import Run
from .memory import FS_PER_S, BandwidthMemory, MemoryReport, Window, _gather, _stream, cycles_fs
from .ports import GATHER, STREAM, WRITE, bank_report
from .stalls import BUSY, DONE, REQUESTS, cause_of

if TYPE_CHECKING:
    from ..hardware_model import Hardware
    from .steady import Steady

_END, _DONE, _ROOM, _MOVED = range(4)  # events: a unit's job ends, a job is done, a unit has got its room, DRAM has moved
_NOW, _SERIAL, _EVENTS, _GATHER_FREE = range(4)  # counters
_FINE, _STUCK_MEMORY, _TOO_LONG = range(3)
_LATEST_FS = 9 * 10**18
_NEVER = 2**62


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


@dataclasses.dataclass(frozen=True)
class Plan:
    """A schedule, ready to be played on a memory of some burst size.

    Attributes
    ----------
    units : dict of unit to [first, end) of its jobs;  buffers, causes : names of the numbers in `tables`
    bursts, useful_bytes : dict of traffic kind to int
    rows : int64  trace row of each job
    widest_row : bytes of the longest gathered row
    """

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


def plan_of(schedule: Schedule, burst_bytes: int) -> Plan:
    """Tables of a schedule for a memory with such bursts."""
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
            streams[-1], counts = addresses_of(job.regions, burst_bytes)
            for region, count in zip(job.regions, counts):
                bursts[region.kind] += count
                useful[region.kind] += region.useful_bytes
        if job.rows is not None:
            gathers[-1], ends[-1] = addresses_of_rows(job.rows, burst_bytes)
            bursts[job.rows.kind] += len(gathers[-1])
            useful[job.rows.kind] += job.rows.useful_bytes
    slots = [_pairs([[(place[name], n) for name, n in entries] for entries in lists])
             for lists in ([job.takes for job in jobs], [job.gives for job in jobs], [job.gives_at_start for job in jobs])]  # fmt: skip
    after_at, after = _joined([np.array([number[before] for before in job.after], np.int64) for job in jobs])
    (stream_at, stream), (gather_at, gather), (row_at, row_end) = (_joined(lists) for lists in (streams, gathers, ends))
    tables = Tables(
        np.array(first), np.array([job.duration_fs for job in jobs], np.int64), after_at, after, *slots[0], *slots[1], *slots[2],
        np.array([causes[cause_of(job)] for job in jobs], np.int64), np.array(asks, np.int64),
        np.array([job.write for job in jobs], np.bool_), stream_at, stream, gather_at, gather, row_at, row_end,
        np.array([schedule.capacities[name] for name in buffers], np.int64),
    )  # fmt: skip
    widest = max((job.rows.row_bytes for job in jobs if job.rows is not None), default=1)
    return Plan(units, buffers, list(causes), tables, bursts, useful, np.array([job.row for job in jobs], np.int64), widest)


_NOTHING = np.zeros(0, np.int64)


def _joined(lists: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.cumsum([0, *map(len, lists)]), np.concatenate([_NOTHING, *lists])


def _pairs(lists: list[list[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray]:
    flat = [pair for entries in lists for pair in entries]
    return np.cumsum([0, *map(len, lists)]), np.array(flat, np.int64).reshape(-1, 2)


def play_plan(plan: Plan, hardware: Hardware, shortcut: Steady | None = None) -> Run:
    """Play a plan on the memory of a machine (of the plan's burst size); what `machine.play` of its schedule gives.

    `shortcut` stands for a bank-level memory; see `steady`.

    Raises
    ------
    SimulationError
        The machine got stuck, or the time doesn't fit into 64-bit femtoseconds.
    """
    t, hw = plan.tables, hardware
    whole, rest = divmod(FS_PER_S, hw.clock_hz)
    pace = np.array([hw.gather.addresses_per_cycle, whole, rest, hw.clock_hz], np.int64)
    busy = {unit: int(t.duration_fs[first:end].sum()) if unit != "dram" else 0 for unit, (first, end) in plan.units.items()}
    rows = np.diff(t.row_at)
    busy["gather"] = sum(cycles_fs(-(-int(n) // hw.gather.addresses_per_cycle), hw.clock_hz) for n in rows[rows > 0])
    waited = np.zeros((len(plan.units), len(plan.causes) + len(plan.buffers)), np.int64)
    place, least, counters = t.first[:-1].copy(), t.capacity.copy(), np.zeros(4, np.int64)
    dram_unit = list(plan.units).index("dram")
    if hw.memory.model == "bandwidth" or shortcut is not None:
        bus = np.array([0, 0, -1, 0], np.int64)  # see BandwidthMemory
        constants = BandwidthMemory(hw.memory)._constants if shortcut is None else shortcut.constants(hw.memory.burst_bytes)
        window = Window.of(hw.gather.outstanding)
        end, status = _play_direct(t, dram_unit, pace, waited, place, least, counters, bus, constants, window.completions, window.head)
    else:
        config = hw.memory.config
        widest = -(-plan.widest_row // config.organization.burst_bytes)
        dram = Dram(config, [Port(), Port(outstanding=hw.gather.outstanding * widest), Port()])
        latency_fs = round(hw.memory.controller_latency_s * FS_PER_S)
        end, status, dram._ring, dram._capacity = _play_banks(
            t, dram_unit, pace, waited, place, least, counters, dram._state, dram._ring, dram._capacity, dram._mapping.pieces,
            dram._mapping.hashing, dram._mapping.burst_shift, config.timing.clock_fs, latency_fs,
        )  # fmt: skip
    if status == _TOO_LONG:
        raise SimulationError("the run is longer than 9,000 s, beyond 64-bit femtoseconds")
    if status == _STUCK_MEMORY:
        raise SimulationError(f"{config.name}: the memory came to a stop with requests waiting: {dram.counts()}")
    stuck = [f"{unit} waits with trace row {plan.rows[at]}" for (unit, (_, stop)), at in zip(plan.units.items(), place) if at < stop]
    if stuck:
        raise SimulationError(f"deadlock: {', '.join(stuck)}")
    moved = [sum(n for kind, n in plan.bursts.items() if kind.endswith(way)) for way in ("_read", "_write")]
    if shortcut is not None:
        report = shortcut.report(hw, moved, end)
    elif hw.memory.model == "bandwidth":
        report = MemoryReport(*moved, int(bus[3]), sum(moved) * hw.memory.burst_bytes / hw.memory.bandwidth_bytes_per_s)
    else:
        report = bank_report(dram, moved, end)
    peak = {name: int(capacity - free) for name, capacity, free in zip(plan.buffers, t.capacity, least)}
    stalls = _stalls(plan, waited, busy, end, int(counters[_GATHER_FREE]), bool(rows.any()))
    return Run(end, busy, dict(plan.bursts), dict(plan.useful_bytes), report, peak, stalls, None, None, None)


def _stalls(plan: Plan, waited: np.ndarray, busy: dict[str, int], end: int, gather_free: int, gathers: bool) -> dict[str, dict[str, int]]:
    names = [*plan.causes, *(f"space_{name}" for name in plan.buffers)]
    stalls: dict[str, dict[str, int]] = {}
    for (unit, (first, stop)), times in zip(plan.units.items(), waited):
        if first == stop:
            continue
        known = {} if unit == "dram" else {BUSY: busy[unit]}
        known |= {name: int(fs) for name, fs in zip(names, times) if fs}
        stalls[REQUESTS if unit == "dram" else unit] = known | {DONE: end - sum(known.values())}
    if gathers:
        stalls["gather"] = {BUSY: busy["gather"], f"work_{REQUESTS}": gather_free - busy["gather"], DONE: end - gather_free}
    return stalls


# --- the loop


class Live(NamedTuple):
    """What changes: by unit its next job, how far it is with it, what it waits for and since when; buffers; the events."""

    place: np.ndarray
    phase: np.ndarray
    cursor: np.ndarray
    since: np.ndarray
    last: np.ndarray
    awaited: np.ndarray
    room: np.ndarray
    waited: np.ndarray
    done: np.ndarray
    left: np.ndarray
    free: np.ndarray
    least: np.ndarray
    waiter: np.ndarray
    wanted: np.ndarray
    heap: np.ndarray  # [events, 4]: time, serial number, kind, unit or job
    counters: np.ndarray


@njit(cache=True)
def _live(t, waited, place, least, counters):
    units, jobs, buffers = len(t.first) - 1, len(t.duration_fs), len(t.capacity)
    return Live(
        place, np.zeros(units, np.int64), np.zeros(units, np.int64), np.zeros(units, np.int64), np.full(units, -1, np.int64),
        np.full(units, -1, np.int64), np.full(units, -1, np.int64), waited, np.zeros(jobs, np.bool_), t.asks.copy(),
        t.capacity.copy(), least, np.full(buffers, -1, np.int64), np.zeros(buffers, np.int64),
        np.zeros((jobs + 4 * units + 8, 4), np.int64), counters,
    )  # fmt: skip


@njit(cache=True)
def _push(x, time, kind, arg):
    """Add an event; those of one time come in the order in which they were added."""
    heap, at = x.heap, x.counters[_EVENTS]
    x.counters[_EVENTS] += 1
    serial = x.counters[_SERIAL]
    x.counters[_SERIAL] += 1
    while at > 0:
        up = (at - 1) >> 1
        if heap[up, 0] < time or (heap[up, 0] == time and heap[up, 1] < serial):
            break
        heap[at] = heap[up]
        at = up
    heap[at, 0], heap[at, 1], heap[at, 2], heap[at, 3] = time, serial, kind, arg


@njit(cache=True)
def _pop(x):
    """Take the first event: kind and unit or job; the time becomes now."""
    heap = x.heap
    x.counters[_NOW] = heap[0, 0]
    kind, arg = heap[0, 2], heap[0, 3]
    x.counters[_EVENTS] -= 1
    n = x.counters[_EVENTS]
    time, serial = heap[n, 0], heap[n, 1]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= n:
            break
        if down + 1 < n and (heap[down + 1, 0] < heap[down, 0] or (heap[down + 1, 0] == heap[down, 0] and heap[down + 1, 1] < heap[down, 1])):
            down += 1
        if time < heap[down, 0] or (time == heap[down, 0] and serial < heap[down, 1]):
            break
        heap[at] = heap[down]
        at = down
    heap[at] = heap[n]
    return kind, arg


@njit(cache=True)
def _give(x, buffer, slots):
    x.free[buffer] += slots
    unit = x.waiter[buffer]
    if unit >= 0 and x.wanted[buffer] <= x.free[buffer]:
        x.waiter[buffer] = -1
        x.free[buffer] -= x.wanted[buffer]
        x.least[buffer] = min(x.least[buffer], x.free[buffer])
        _push(x, x.counters[_NOW], _ROOM, unit)


@njit(cache=True)
def _finish(t, x, job):
    """A job has ended: it gives back room and is done as soon as those who wait look."""
    for i in range(t.give_at[job], t.give_at[job + 1]):
        _give(x, t.give[i, 0], t.give[i, 1])
    _push(x, x.counters[_NOW], _DONE, job)


@njit(cache=True)
def _advance(t, x, unit, dram):
    """Let a unit go on until it is busy or waits; the DRAM job that is to be issued now, or -1."""
    now = x.counters[_NOW]
    while x.place[unit] < t.first[unit + 1]:
        job = x.place[unit]
        if x.phase[unit] == 0:
            x.since[unit], x.last[unit] = now, -1
            x.cursor[unit], x.phase[unit] = t.after_at[job], 1
        if x.phase[unit] == 1:
            while x.cursor[unit] < t.after_at[job + 1]:
                before = t.after[x.cursor[unit]]
                x.cursor[unit] += 1
                if not x.done[before]:
                    x.awaited[unit] = x.last[unit] = before
                    return -1
            if x.last[unit] >= 0:
                x.waited[unit, t.cause[x.last[unit]]] += now - x.since[unit]
            x.cursor[unit], x.phase[unit] = t.take_at[job], 2
        while x.cursor[unit] < t.take_at[job + 1]:
            buffer, slots = t.take[x.cursor[unit]]
            x.cursor[unit] += 1
            if slots > x.free[buffer]:
                x.waiter[buffer], x.wanted[buffer] = unit, slots
                x.room[unit], x.since[unit] = buffer, now
                return -1
            x.free[buffer] -= slots
            x.least[buffer] = min(x.least[buffer], x.free[buffer])
        if unit == dram:
            x.phase[unit] = 0
            x.place[unit] += 1
            return job
        if t.duration_fs[job] > 0:
            _push(x, now + t.duration_fs[job], _END, unit)
            return -1
        _finish(t, x, job)
        x.phase[unit] = 0
        x.place[unit] += 1
    return -1


@njit(cache=True)
def _handle(t, x, kind, arg, units):
    """Do an event; the units that go on are listed in `units`, and their number returned."""
    n = 0
    if kind == _END:
        job = x.place[arg]
        _finish(t, x, job)
        x.phase[arg] = 0
        x.place[arg] += 1
        units[0], n = arg, 1
    elif kind == _MOVED:
        x.left[arg] -= 1
        if x.left[arg] <= 0:
            _finish(t, x, arg)
    elif kind == _DONE:
        x.done[arg] = True
        for unit in range(len(x.awaited)):
            if x.awaited[unit] == arg:
                x.awaited[unit] = -1
                units[n] = unit
                n += 1
    else:
        x.waited[arg, x.waited.shape[1] - len(x.free) + x.room[arg]] += x.counters[_NOW] - x.since[arg]
        units[0], n = arg, 1
    return n


@njit(cache=True)
def _address_times(t, x, pace, job):
    """When the address of each gathered row of a job is there [fs]; see memory.address_times_fs."""
    rows = t.row_at[job + 1] - t.row_at[job]
    start = max(x.counters[_NOW], x.counters[_GATHER_FREE])
    ready = np.empty(rows, np.int64)
    for i in range(rows):
        cycles = i // pace[0] + 1
        ready[i] = start + cycles * pace[1] - (-cycles * pace[2] // pace[3])
    cycles = -(-rows // pace[0])
    x.counters[_GATHER_FREE] = start + cycles * pace[1] - (-cycles * pace[2] // pace[3])
    return ready


@njit(cache=True)
def _begin(t, x, job):
    """A DRAM job goes out: room that it gives back at once."""
    for i in range(t.early_at[job], t.early_at[job + 1]):
        _give(x, t.early[i, 0], t.early[i, 1])
    if t.asks[job] == 0:
        _push(x, x.counters[_NOW], _MOVED, job)


@njit(cache=True)
def _play_direct(t, dram, pace, waited, place, least, counters, state, constants, completions, head):
    """The machine with a memory of bandwidth and latency, which answers at once."""
    x = _live(t, waited, place, least, counters)
    going = np.arange(len(t.first) - 1)
    n = len(going)
    while True:
        for i in range(n):
            while True:
                job = _advance(t, x, going[i], dram)
                if job < 0:
                    break
                _begin(t, x, job)
                now = counters[_NOW]
                if t.stream_at[job + 1] > t.stream_at[job]:
                    _push(x, _stream(state, constants, now, t.stream[t.stream_at[job] : t.stream_at[job + 1]]), _MOVED, job)
                if t.row_at[job + 1] > t.row_at[job]:
                    ready = _address_times(t, x, pace, job)
                    bursts, ends = t.gather[t.gather_at[job] : t.gather_at[job + 1]], t.row_end[t.row_at[job] : t.row_at[job + 1]]
                    _push(x, _gather(state, constants, bursts, ends, ready, completions, head), _MOVED, job)
        if counters[_EVENTS] == 0:
            return counters[_NOW], _FINE
        if x.heap[0, 0] > _LATEST_FS or x.heap[0, 0] < counters[_NOW]:
            return counters[_NOW], _TOO_LONG
        kind, arg = _pop(x)
        n = _handle(t, x, kind, arg, going)


@njit(cache=True)
def _hand_in(state, ring, capacity, number, addresses, write, ready, mapping, hashing, shift, firsts):
    """Hand requests to a port of the DRAM, in a larger ring if they don't fit; the ring and its capacity."""
    port = state[L.PORT_AT] + number * state[L.PORT_SIZE]
    if state[port + L.SUBMITTED] - firsts[number] + len(addresses) > capacity:
        wider = capacity
        while wider < state[port + L.SUBMITTED] - firsts[number] + len(addresses):
            wider *= 2
        ports = len(firsts)
        grown = np.zeros(ports * wider * L.REQUEST_SIZE, np.int64)
        for other in range(ports):
            for uid in range(firsts[other], state[state[L.PORT_AT] + other * state[L.PORT_SIZE] + L.SUBMITTED]):
                to = (other * wider + (uid & (wider - 1))) * L.REQUEST_SIZE
                old = (other * capacity + (uid & (capacity - 1))) * L.REQUEST_SIZE
                grown[to : to + L.REQUEST_SIZE] = ring[old : old + L.REQUEST_SIZE]
        ring, capacity = grown, wider
    writes = np.full(len(addresses), write)
    core.submit(state, ring, capacity, number, addresses, writes, ready, mapping, hashing, shift, True)
    return ring, capacity


@njit(cache=True)
def _play_banks(t, dram, pace, waited, place, least, counters, state, ring, capacity, mapping, hashing, shift, clock_fs, latency_fs):
    """The machine with a bank-level DRAM: it is advanced to the next event or until requests are known to complete."""
    x = _live(t, waited, place, least, counters)
    going = np.arange(len(t.first) - 1)
    n = len(going)
    jobs = t.first[dram + 1] - t.first[dram]
    tickets = np.zeros((3, jobs + 1, 3), np.int64)  # by port: first request, requests, job; those from heads to tails are open
    heads, tails, firsts = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64)
    while True:
        for i in range(n):
            while True:
                job = _advance(t, x, going[i], dram)
                if job < 0:
                    break
                _begin(t, x, job)
                now = counters[_NOW]
                for gather in range(2):
                    if gather == 0:
                        addresses, number = t.stream[t.stream_at[job] : t.stream_at[job + 1]], WRITE if t.writes[job] else STREAM
                        ready = np.array([-(-now // clock_fs)])
                    else:
                        addresses, number = t.gather[t.gather_at[job] : t.gather_at[job + 1]], GATHER
                        if len(addresses) == 0:
                            continue
                        of_rows = _address_times(t, x, pace, job)
                        ready = np.empty(len(addresses), np.int64)
                        k = 0
                        for row in range(len(of_rows)):
                            while k < t.row_end[t.row_at[job] + row]:
                                ready[k] = -(-of_rows[row] // clock_fs)
                                k += 1
                    if len(addresses) == 0:
                        continue
                    at = state[L.PORT_AT] + number * state[L.PORT_SIZE]
                    tickets[number, tails[number]] = state[at + L.SUBMITTED], len(addresses), job
                    tails[number] += 1
                    ring, capacity = _hand_in(state, ring, capacity, number, addresses, t.writes[job], ready, mapping, hashing, shift, firsts)
        n = 0
        if (heads < tails).any():
            until = END_OF_TIME if counters[_EVENTS] == 0 else min(END_OF_TIME, -(-x.heap[0, 0] // clock_fs))
            state[L.TICKETS_DONE] = 0
            core.run(state, ring, capacity, until, False, True, True)
            if state[L.TICKETS_DONE] > 0:
                _collect(x, state, ring, capacity, tickets, heads, tails, firsts, clock_fs, latency_fs)
                continue
            if state[L.CLOCK] >= END_OF_TIME:
                return counters[_NOW], _STUCK_MEMORY, ring, capacity
        if counters[_EVENTS] == 0:
            for number in range(3):
                state[state[L.PORT_AT] + number * state[L.PORT_SIZE] + L.FIRST] = state[state[L.PORT_AT] + number * state[L.PORT_SIZE] + L.SUBMITTED]
            return counters[_NOW], _FINE, ring, capacity
        if x.heap[0, 0] > _LATEST_FS:
            return counters[_NOW], _TOO_LONG, ring, capacity
        kind, arg = _pop(x)
        n = _handle(t, x, kind, arg, going)


@njit(cache=True)
def _collect(x, state, ring, capacity, tickets, heads, tails, firsts, clock_fs, latency_fs):
    """Turn requests that are known to complete into events."""
    for number in range(3):
        for k in range(heads[number], tails[number]):
            first, count, job = tickets[number, k]
            base = number * capacity
            if count == 0 or ring[(base + (first & (capacity - 1))) * L.REQUEST_SIZE + L.R_LEFT] > 0:
                continue
            done = 0
            for uid in range(first, first + count):
                done = max(done, ring[(base + (uid & (capacity - 1))) * L.REQUEST_SIZE + L.R_DONE])
            tickets[number, k, 1] = 0  # closed
            _push(x, max(x.counters[_NOW], done * clock_fs) + latency_fs, _MOVED, job)
        while heads[number] < tails[number] and tickets[number, heads[number], 1] == 0:
            heads[number] += 1
        firsts[number] = tickets[number, heads[number], 0] if heads[number] < tails[number] else state[state[L.PORT_AT] + number * state[L.PORT_SIZE] + L.SUBMITTED]
