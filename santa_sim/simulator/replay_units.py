"""The compiled machine but for its memory: units that take their jobs in order, buffers with room, a queue of events.

What a unit does is what `Machine._unit` and `Machine._ready` say of a SimPy process; here it is a place in its jobs, from which
`go_on` lets it go on until it is busy or waits. `go_on` and `step` are what a memory's loop needs (see `replay_memory`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .plan import Tables

_END, _DONE, _ROOM, _MOVED = range(4)  # events: a unit's job ends, a job is done, a unit has got its room, DRAM has moved
NOW, SERIAL, EVENTS, GATHER_FREE, GOING, TURN = range(6)  # counters
_LATEST_FS = 9 * 10**18

# Without counts of references: a call would count those of every array of its tuples, three quarters of the loop's time. What is
# compiled so owns no array: it makes none, and its caller holds those that it works on.
_compiled = njit(cache=True, _nrt=False)


class Live(NamedTuple):
    """What changes: by unit its next job, how far it is with it, what it waits for and since when; buffers; the events."""

    place: np.ndarray
    phase: np.ndarray
    cursor: np.ndarray
    since: np.ndarray
    awaited: np.ndarray
    room: np.ndarray
    waited: np.ndarray  # [units, causes and buffers]  [fs]
    done_fs: np.ndarray  # of each job; -1: not yet
    left: np.ndarray
    free: np.ndarray  # slots of each buffer
    least: np.ndarray  # free before the last change
    changed: np.ndarray  # when that was  [fs]
    waiter: np.ndarray
    wanted: np.ndarray
    heap: np.ndarray  # [events, 4]: time, serial number, kind, unit or job
    going: np.ndarray  # units that go on now, those from TURN to GOING
    counters: np.ndarray


def live(t: Tables, causes: int) -> Live:
    """A machine before its first event; every unit goes on."""
    units, jobs, buffers = len(t.first) - 1, len(t.duration_fs), len(t.capacity)

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int64)

    return Live(
        t.first[:-1].copy(), zeros(units), zeros(units), zeros(units), zeros(units) - 1, zeros(units) - 1, zeros(units, causes + buffers),
        zeros(jobs) - 1, t.asks.copy(), t.capacity.copy(), t.capacity.copy(), zeros(buffers), zeros(buffers) - 1, zeros(buffers),
        zeros(jobs + 4 * units + 8, 4), np.arange(units), np.array([0, 0, 0, 0, units, 0]),
    )  # fmt: skip


@_compiled
def _place(heap, at, time, serial, kind, arg):
    heap[at, 0] = time
    heap[at, 1] = serial
    heap[at, 2] = kind
    heap[at, 3] = arg


@_compiled
def _before(heap, at, time, serial):
    return heap[at, 0] < time or (heap[at, 0] == time and heap[at, 1] < serial)


@_compiled
def _push(heap, counters, time, kind, arg):
    """Add an event; those of one time come in the order in which they were added."""
    at, serial = counters[EVENTS], counters[SERIAL]
    counters[EVENTS] += 1
    counters[SERIAL] += 1
    while at > 0:
        up = (at - 1) >> 1
        if _before(heap, up, time, serial):
            break
        _place(heap, at, heap[up, 0], heap[up, 1], heap[up, 2], heap[up, 3])
        at = up
    _place(heap, at, time, serial, kind, arg)


@_compiled
def _pop(heap, counters):
    """Take the first event: kind and unit or job; the time becomes now."""
    counters[NOW] = heap[0, 0]
    first = heap[0, 2], heap[0, 3]
    counters[EVENTS] -= 1
    n = counters[EVENTS]
    time, serial, kind, arg = heap[n, 0], heap[n, 1], heap[n, 2], heap[n, 3]
    at, down = 0, 1
    while down < n:
        if down + 1 < n and _before(heap, down + 1, heap[down, 0], heap[down, 1]):
            down += 1
        if not _before(heap, down, time, serial):
            break
        _place(heap, at, heap[down, 0], heap[down, 1], heap[down, 2], heap[down, 3])
        at, down = down, 2 * down + 1
    _place(heap, at, time, serial, kind, arg)
    return first


@_compiled
def _change(x, buffer, slots):
    """Slots are given back, or taken (negative); see `machine.SlotBuffer`."""
    if x.counters[NOW] > x.changed[buffer]:
        x.least[buffer] = min(x.least[buffer], x.free[buffer])
        x.changed[buffer] = x.counters[NOW]
    x.free[buffer] += slots


@_compiled
def _give(x, buffer, slots):
    _change(x, buffer, slots)
    unit = x.waiter[buffer]
    if unit >= 0 and x.wanted[buffer] <= x.free[buffer]:
        x.waiter[buffer] = -1
        _change(x, buffer, -x.wanted[buffer])
        _push(x.heap, x.counters, x.counters[NOW], _ROOM, unit)


@_compiled
def _finish(t, x, job):
    """A job has ended: it gives back room and is done as soon as those who wait look."""
    for i in range(t.give_at[job], t.give_at[job + 1]):
        _give(x, t.give[i, 0], t.give[i, 1])
    _push(x.heap, x.counters, x.counters[NOW], _DONE, job)


@_compiled
def _waits(t, x, unit, job):
    """Whether something that a job needs isn't done yet; the unit is then woken when it is."""
    while x.cursor[unit] < t.after_at[job + 1]:
        before = t.after[x.cursor[unit]]
        x.cursor[unit] += 1
        if x.done_fs[before] < 0:
            x.awaited[unit] = before
            return True
    return False


@_compiled
def _lacks_room(t, x, unit, job):
    """Whether a buffer that a job fills has too little room; the unit is then woken when it has got it."""
    while x.cursor[unit] < t.take_at[job + 1]:
        buffer, slots = t.take[x.cursor[unit]]
        x.cursor[unit] += 1
        if slots > x.free[buffer]:
            x.waiter[buffer], x.wanted[buffer] = unit, slots
            x.room[unit], x.since[unit] = buffer, x.counters[NOW]
            return True
        _change(x, buffer, -slots)
    return False


@_compiled
def _advance(t, x, unit):
    """Let a unit go on until it is busy or waits; the DRAM job that is to be issued now, or -1."""
    now = x.counters[NOW]
    while x.place[unit] < t.first[unit + 1]:
        job = x.place[unit]
        if x.phase[unit] == 0:
            x.since[unit] = now
            x.cursor[unit], x.phase[unit] = t.after_at[job], 1
        if x.phase[unit] == 1:
            if _waits(t, x, unit, job):
                return -1
            if now > x.since[unit]:
                last = t.after_at[job + 1] - 1
                while x.done_fs[t.after[last]] != now:
                    last -= 1
                x.waited[unit, t.cause[t.after[last]]] += now - x.since[unit]
            x.cursor[unit], x.phase[unit] = t.take_at[job], 2
        if _lacks_room(t, x, unit, job):
            return -1
        if unit == t.dram:
            x.phase[unit] = 0
            x.place[unit] += 1
            return job
        if t.duration_fs[job] > 0:
            _push(x.heap, x.counters, now + t.duration_fs[job], _END, unit)
            return -1
        _finish(t, x, job)
        x.phase[unit] = 0
        x.place[unit] += 1
    return -1


@_compiled
def go_on(t, x):
    """Let the units go on that can: the DRAM job that goes out now, or -1 when all are busy or wait."""
    while x.counters[TURN] < x.counters[GOING]:
        job = _advance(t, x, x.going[x.counters[TURN]])
        if job >= 0:
            for i in range(t.early_at[job], t.early_at[job + 1]):
                _give(x, t.early[i, 0], t.early[i, 1])
            if t.asks[job] == 0:
                moved(x, x.counters[NOW], job)
            return job
        x.counters[TURN] += 1
    return -1


@_compiled
def moved(x, time, job):
    """A stream or a gather of a DRAM job, or nothing at all, will have moved by then."""
    _push(x.heap, x.counters, time, _MOVED, job)


@_compiled
def step(t, x):
    """Do the first event (there is one); False: it lies beyond the time that fits."""
    if x.heap[0, 0] > _LATEST_FS or x.heap[0, 0] < x.counters[NOW]:
        return False
    kind, arg = _pop(x.heap, x.counters)
    x.counters[TURN] = x.counters[GOING] = 0
    if kind == _END:
        _finish(t, x, x.place[arg])
        x.phase[arg] = 0
        x.place[arg] += 1
        _wake(x, arg)
    elif kind == _MOVED:
        x.left[arg] -= 1
        if x.left[arg] <= 0:
            _finish(t, x, arg)
    elif kind == _DONE:
        x.done_fs[arg] = x.counters[NOW]
        for unit in range(len(x.awaited)):
            if x.awaited[unit] == arg:
                x.awaited[unit] = -1
                _wake(x, unit)
    else:
        x.waited[arg, x.waited.shape[1] - len(x.free) + x.room[arg]] += x.counters[NOW] - x.since[arg]
        _wake(x, arg)
    return True


@_compiled
def _wake(x, unit):
    x.going[x.counters[GOING]] = unit
    x.counters[GOING] += 1
