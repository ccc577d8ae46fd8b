"""The two loops of the compiled machine: with a memory that answers at once, and with a DRAM that is advanced beside it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .dram import Dram, core
from .dram import layout as L
from .dram.memory import END_OF_TIME
from .memory import gather, stream
from .ports import GATHER, STREAM, WRITE
from .replay_units import EVENTS, GATHER_FREE, NOW, go_on, moved, step

FINE, STUCK_MEMORY, TOO_LONG = range(3)
_PORTS = 3


@njit(cache=True)
def _address_times(t, x, pace, job):
    """When the address of each gathered row of a job is there [fs]; see memory.address_times_fs."""
    rows = t.row_at[job + 1] - t.row_at[job]
    start = max(x.counters[NOW], x.counters[GATHER_FREE])
    ready = np.empty(rows, np.int64)
    for i in range(rows):
        cycles = i // pace[0] + 1
        ready[i] = start + cycles * pace[1] - (-cycles * pace[2] // pace[3])
    cycles = -(-rows // pace[0])
    x.counters[GATHER_FREE] = start + cycles * pace[1] - (-cycles * pace[2] // pace[3])
    return ready


@njit(cache=True)
def play_direct(t, x, pace, bus, completions, head):
    """Play a machine with a memory of bandwidth and latency to the end.

    Parameters
    ----------
    t : Tables;  x : Live, changed
    pace : int64 [4]  addresses a cycle of the gather engine; femtoseconds of a cycle, the remainder, its modulus
    bus : Bus, changed;  completions, head : of a `Window`

    Returns
    -------
    int : FINE or TOO_LONG
    """
    while True:
        job = go_on(t, x)
        while job >= 0:
            now = x.counters[NOW]
            bursts = t.stream_at[job + 1] - t.stream_at[job]
            if bursts > 0:
                moved(x, stream(bus, now, bursts), job)
            if t.row_at[job + 1] > t.row_at[job]:
                ready, ends = _address_times(t, x, pace, job), t.row_end[t.row_at[job] : t.row_at[job + 1]]
                moved(x, gather(bus, ends, ready, completions, head), job)
            job = go_on(t, x)
        if x.counters[EVENTS] == 0:
            return FINE
        if not step(t, x):
            return TOO_LONG


class Banks(NamedTuple):
    """A bank-level DRAM (see `Dram`), and the jobs that it is at work on."""

    state: np.ndarray
    mapping: np.ndarray
    hashing: np.ndarray
    burst_shift: int
    clock_fs: int
    latency_fs: int
    asked: np.ndarray  # [ports, jobs, 3]: first request, requests (0: all are known to complete), job
    heads: np.ndarray  # by port: those from heads to tails are open
    tails: np.ndarray


def banks(dram: Dram, latency_fs: int, jobs: int) -> Banks:
    """A DRAM with the three ports of a machine, for so many memory jobs."""
    mapping = dram._mapping
    return Banks(
        dram._state, mapping.pieces, mapping.hashing, mapping.burst_shift, dram.config.timing.clock_fs, latency_fs,
        np.zeros((_PORTS, jobs, 3), np.int64), np.zeros(_PORTS, np.int64), np.zeros(_PORTS, np.int64),
    )  # fmt: skip


@njit(cache=True)
def play_banks(t, x, pace, banks, ring, capacity):
    """Play a machine with a bank-level DRAM to the end: it is advanced to the next event, or until requests are known to complete.

    Parameters
    ----------
    t : Tables;  x : Live, changed;  pace : as of `play_direct`
    banks : Banks, changed;  ring, capacity : the DRAM's requests

    Returns
    -------
    int, ring, capacity : FINE, TOO_LONG or STUCK_MEMORY; the ring, which may have grown
    """
    clock_fs = banks.clock_fs
    while True:
        job = go_on(t, x)
        while job >= 0:
            stream, rows = t.stream[t.stream_at[job] : t.stream_at[job + 1]], t.gather[t.gather_at[job] : t.gather_at[job + 1]]
            if len(stream):
                ready = np.array([-(-x.counters[NOW] // clock_fs)])
                ring, capacity = _ask(banks, ring, capacity, WRITE if t.writes[job] else STREAM, job, stream, ready)
            if len(rows):
                ready = _in_clocks(_address_times(t, x, pace, job), t.row_end[t.row_at[job] : t.row_at[job + 1]], clock_fs)
                ring, capacity = _ask(banks, ring, capacity, GATHER, job, rows, ready)
            job = go_on(t, x)
        if (banks.heads < banks.tails).any():
            until = END_OF_TIME if x.counters[EVENTS] == 0 else min(END_OF_TIME, -(-x.heap[0, 0] // clock_fs))
            banks.state[L.TICKETS_DONE] = 0
            core.run(banks.state, ring, capacity, until, False, True, True)
            if banks.state[L.TICKETS_DONE] > 0:
                _collect(x, banks, ring, capacity)
                continue
            if banks.state[L.CLOCK] >= END_OF_TIME:
                return STUCK_MEMORY, ring, capacity
        if x.counters[EVENTS] == 0:
            return FINE, ring, capacity
        if not step(t, x):
            return TOO_LONG, ring, capacity


@njit(cache=True)
def _in_clocks(of_rows, row_end, clock_fs):
    """When each burst may be sent  [clocks], from when the address of its row is there  [fs]."""
    ready = np.empty(row_end[-1], np.int64)
    k = 0
    for row in range(len(of_rows)):
        while k < row_end[row]:
            ready[k] = -(-of_rows[row] // clock_fs)
            k += 1
    return ready


@njit(cache=True)
def _ask(banks, ring, capacity, number, job, addresses, ready):
    """Hand a job's requests to a port of the DRAM; the ring and its capacity."""
    state, at = banks.state, banks.tails[number]
    banks.tails[number] += 1
    banks.asked[number, at] = state[state[L.PORT_AT] + number * state[L.PORT_SIZE] + L.SUBMITTED], len(addresses), job
    ring, capacity = core.make_room(state, ring, capacity, number, len(addresses))
    writes = np.full(len(addresses), number == WRITE)
    core.submit(state, ring, capacity, number, addresses, writes, ready, banks.mapping, banks.hashing, banks.burst_shift, True)
    return ring, capacity


@njit(cache=True)
def _collect(x, banks, ring, capacity):
    """Turn requests that are known to complete into events."""
    state, heads, tails = banks.state, banks.heads, banks.tails
    for number in range(_PORTS):
        base, asked = number * capacity, banks.asked[number]
        for k in range(heads[number], tails[number]):
            first, count, job = asked[k]
            if count == 0 or ring[(base + (first & (capacity - 1))) * L.REQUEST_SIZE + L.R_LEFT] > 0:
                continue
            done = 0
            for uid in range(first, first + count):
                done = max(done, ring[(base + (uid & (capacity - 1))) * L.REQUEST_SIZE + L.R_DONE])
            asked[k, 1] = 0
            moved(x, max(x.counters[NOW], done * banks.clock_fs) + banks.latency_fs, job)
        while heads[number] < tails[number] and asked[heads[number], 1] == 0:
            heads[number] += 1
        port = state[L.PORT_AT] + number * state[L.PORT_SIZE]
        state[port + L.FIRST] = asked[heads[number], 0] if heads[number] < tails[number] else state[port + L.SUBMITTED]
