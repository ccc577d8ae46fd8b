"""The memory interface of the machine, and a memory of bandwidth, latency and burst granularity behind it.

A memory is asked in the machine's program order, each request once, with whole-burst addresses, and answers at once
with the time of completion. Times are integer femtoseconds.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from ..hardware_model import MemoryModel

FS_PER_S = 10**15


@dataclasses.dataclass(frozen=True)
class Window:
    """Row requests in flight of a gather engine: completion times of the last `size` rows, kept between gathers.

    Attributes
    ----------
    completions : int64 [size]  [fs]
    head : int64 [1]  place of the oldest
    """

    completions: np.ndarray
    head: np.ndarray

    @classmethod
    def of(cls, size: int) -> Window:
        """An empty window for `size` rows in flight."""
        return cls(np.zeros(size, np.int64), np.zeros(1, np.int64))


class Memory(Protocol):
    """What the machine needs of a memory. Requests are served in the order of the calls."""

    burst_bytes: int

    def request(self, now_fs: int, addresses: np.ndarray, write: bool) -> int:
        """Move bursts that may start at `now_fs`; addresses int64 [n], burst-aligned. Last completion [fs]."""

    def gather(self, addresses: np.ndarray, row_ends: np.ndarray, ready_fs: np.ndarray, window: Window) -> int:
        """Read rows with a limited number in flight. Last completion [fs].

        Row i is the bursts addresses[row_ends[i-1]:row_ends[i]]; it is issued when its address is ready (ready_fs int64
        [rows]) and the row `window` places before it has completed.
        """

    def report(self) -> MemoryReport:
        """What has been served so far."""


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """What a memory has served.

    Attributes
    ----------
    read_bursts, write_bursts, activates : int
    busy_s : float  [s]  time in which data moved, all data buses together
    counts : dict of command to int  of a bank-level memory
    energy_j : dict or None  [J]  by kind, of a bank-level memory; None: charged per activate and bit by the machine
    """

    read_bursts: int
    write_bursts: int
    activates: int
    busy_s: float
    counts: dict[str, float] = dataclasses.field(default_factory=dict)
    energy_j: dict[str, float] | None = None


class BandwidthMemory:
    """A serial data bus, a fixed latency and one open row.

    The bus moves a burst in burst_bytes / bandwidth, kept as whole femtoseconds and a remainder, so that no rounding
    lets the achieved bandwidth exceed the configured one. A burst starts when it has been asked for and the bus is
    free, in the order of requests, and completes `latency_s` after its last byte. Activates: a change of page
    (address / page_bytes) in the order of requests counts as one; banks, channels and refresh are not modelled.
    """

    def __init__(self, model: MemoryModel) -> None:
        self.burst_bytes = model.burst_bytes
        self.bandwidth_bytes_per_s = model.bandwidth_bytes_per_s
        whole, rest = divmod(model.burst_bytes * FS_PER_S, model.bandwidth_bytes_per_s)
        # [burst fs, burst remainder, remainder modulus, latency fs, burst bytes, page bytes]
        self._constants = np.array(
            [whole, rest, model.bandwidth_bytes_per_s, round(Fraction(model.latency_s) * FS_PER_S), model.burst_bytes,
             model.page_bytes], np.int64)  # fmt: skip
        self._state = np.array([0, 0, -1, 0], np.int64)  # [bus free fs, its remainder, open page, activates]
        self._bursts = [0, 0]

    @property
    def bus_free_fs(self) -> int:
        """When the bus has moved all that was asked for [fs], rounded down."""
        return int(self._state[0])

    def request(self, now_fs: int, addresses: np.ndarray, write: bool) -> int:
        self._bursts[write] += len(addresses)
        return int(_stream(self._state, self._constants, now_fs, addresses))

    def gather(self, addresses: np.ndarray, row_ends: np.ndarray, ready_fs: np.ndarray, window: Window) -> int:
        self._bursts[0] += len(addresses)
        return int(
            _gather(self._state, self._constants, addresses, row_ends, ready_fs, window.completions, window.head)
        )

    def report(self) -> MemoryReport:
        moved = sum(self._bursts) * self.burst_bytes
        return MemoryReport(*self._bursts, int(self._state[3]), moved / self.bandwidth_bytes_per_s)


@njit(cache=True)
def _move(state, constants, ready_fs, address):
    """Put one burst on the bus, no earlier than `ready_fs`."""
    if ready_fs > state[0]:
        state[0] = ready_fs
        state[1] = 0
    state[0] += constants[0]
    state[1] += constants[1]
    if state[1] >= constants[2]:
        state[0] += 1
        state[1] -= constants[2]
    page = address // constants[5]
    if page != state[2]:
        state[2] = page
        state[3] += 1


@njit(cache=True)
def _completion(state, constants):
    return state[0] + (1 if state[1] > 0 else 0) + constants[3]


@njit(cache=True)
def _stream(state, constants, now_fs, addresses):
    for address in addresses:
        _move(state, constants, now_fs, address)
    return _completion(state, constants) if len(addresses) else now_fs


@njit(cache=True)
def _gather(state, constants, addresses, row_ends, ready_fs, completions, head):
    size = len(completions)
    first = 0
    last = ready_fs[-1]
    for row in range(len(row_ends)):
        place = head[0] % size
        issue = max(ready_fs[row], completions[place])
        for i in range(first, row_ends[row]):
            _move(state, constants, issue, addresses[i])
        done = max(issue, _completion(state, constants))
        completions[place] = done
        head[0] = place + 1
        first = row_ends[row]
        last = max(last, done)
    return last


@njit(cache=True)
def expand(first, skip, nbytes, piece, stride, burst, out, n):
    """Append the burst addresses of a region to out[n:], a burst that repeats the one before left out; the new n.

    The region is `nbytes` in pieces of `piece` whose starts lie `stride` apart from address `first`; its first `skip`
    bytes are left out. Bytes [a, b) lie in the bursts a // burst to (b - 1) // burst.
    """
    number = skip // piece
    while number * piece < nbytes:
        start = first + number * stride
        end = start + min(piece, nbytes - number * piece)
        if number * piece < skip:
            start += skip - number * piece
        for index in range(start // burst, (end - 1) // burst + 1):
            address = index * burst
            if n == 0 or out[n - 1] != address:
                out[n] = address
                n += 1
        number += 1
    return n


@njit(cache=True)
def expand_rows(first, stride, row_bytes, rows, burst, out, ends):
    """Append the burst addresses of gathered rows to `out`; ends[i] is where row i's end. The number of bursts."""
    n = 0
    for i in range(len(rows)):
        start = first + rows[i] * stride
        for index in range(start // burst, (start + row_bytes - 1) // burst + 1):
            address = index * burst
            if n == 0 or out[n - 1] != address:
                out[n] = address
                n += 1
        ends[i] = n
    return n


def cycles_fs(cycles: int, clock_hz: int) -> int:
    """Duration of so many clock cycles [fs], rounded up to a whole femtosecond."""
    return -(-cycles * FS_PER_S // clock_hz)


def address_times_fs(start_fs: int, rows: int, per_cycle: int, clock_hz: int) -> np.ndarray:
    """When each of `rows` addresses is there [fs], int64: `per_cycle` a cycle, the first a cycle after `start_fs`."""
    whole, rest = divmod(FS_PER_S, clock_hz)
    cycles = np.arange(rows, dtype=np.int64) // per_cycle + 1
    if rows * max(rest, whole) > 2**62:  # beyond int64: exact, slower
        return np.array([start_fs + cycles_fs(int(cycle), clock_hz) for cycle in cycles], np.int64)
    return start_fs + cycles * whole - (-cycles * rest // clock_hz)


def bursts_upper_bound(nbytes: int, piece: int, burst: int) -> int:
    """No region of `nbytes` in pieces of `piece` touches more bursts than this."""
    return math.ceil(nbytes / piece) * (piece // burst + 2)
