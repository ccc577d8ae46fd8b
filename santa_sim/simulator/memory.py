"""The memory interface of the machine, and a memory of bandwidth, latency and burst granularity behind it.

A memory is asked in the machine's program order, each request once, with whole-burst addresses, and answers at once
with the time of completion. Times are integer femtoseconds.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from ..hardware_model import MemoryModel

FS_PER_S = 10**15
_TOO_LATE_FS = 92 * 10**17  # beyond what a run may take, and short of 2**63


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
        self.burst_bytes, self.page_bytes = model.burst_bytes, model.page_bytes
        self.bandwidth_bytes_per_s = model.bandwidth_bytes_per_s
        self.bus = Bus.of(model)
        self._open, self._activates = -1, 0
        self._bursts = [0, 0]

    @property
    def bus_free_fs(self) -> int:
        """When the bus has moved all that was asked for [fs], rounded down."""
        return int(self.bus.state[0])

    def request(self, now_fs: int, addresses: np.ndarray, write: bool) -> int:
        self._count(addresses, write)
        return int(stream(self.bus, now_fs, len(addresses)))

    def gather(self, addresses: np.ndarray, row_ends: np.ndarray, ready_fs: np.ndarray, window: Window) -> int:
        self._count(addresses, False)
        return int(gather(self.bus, row_ends, ready_fs, window.completions, window.head))

    def _count(self, addresses: np.ndarray, write: bool) -> None:
        self._bursts[write] += len(addresses)
        if len(addresses):
            self._activates += int(page_changes(addresses, self.page_bytes, self._open))
            self._open = int(addresses[-1]) // self.page_bytes

    def report(self) -> MemoryReport:
        moved = sum(self._bursts) * self.burst_bytes
        return MemoryReport(*self._bursts, self._activates, moved / self.bandwidth_bytes_per_s)


class Bus(NamedTuple):
    """A data bus: when it is free, int64 [2] [fs, remainder], and int64 [4]: a burst's time [fs], its remainder, the
    remainder's modulus, the latency [fs]."""

    state: np.ndarray
    constants: np.ndarray

    @classmethod
    def of(cls, model: MemoryModel) -> Bus:
        """The bus of a memory of bandwidth and latency."""
        whole, rest = divmod(model.burst_bytes * FS_PER_S, model.bandwidth_bytes_per_s)
        return cls.free(whole, rest, model.bandwidth_bytes_per_s, round(Fraction(model.latency_s) * FS_PER_S))

    @classmethod
    def free(cls, whole_fs: int, rest: int, modulus: int, latency_fs: int) -> Bus:
        """One that is free from the start."""
        return cls(np.zeros(2, np.int64), np.array([whole_fs, rest, modulus, latency_fs], np.int64))


@njit(cache=True)
def page_changes(addresses, page_bytes, page):
    """How often the page changes in these requests, after one of `page`."""
    changes = 0
    for address in addresses:
        if address // page_bytes != page:
            page = address // page_bytes
            changes += 1
    return changes


@njit(cache=True)
def _move(bus, ready_fs, bursts):
    """Put bursts on the bus, no earlier than `ready_fs`."""
    state, constants = bus.state, bus.constants
    if ready_fs > state[0]:
        state[0] = ready_fs
        state[1] = 0
    if bursts > (_TOO_LATE_FS - state[0]) // max(constants[0], 1):
        state[0] = _TOO_LATE_FS
        return
    state[0] += bursts * constants[0]
    while bursts > 0:  # bursts x remainder fits into 64 bits
        some = min(bursts, 2**62 // max(constants[1], 1))
        rest = state[1] + some * constants[1]
        state[0] += rest // constants[2]
        state[1] = rest % constants[2]
        bursts -= some


@njit(cache=True)
def _completion(bus):
    return bus.state[0] + (1 if bus.state[1] > 0 else 0) + bus.constants[3]


@njit(cache=True)
def stream(bus, now_fs, bursts):
    """Move bursts from now on; when the last completes."""
    if bursts == 0:
        return now_fs
    _move(bus, now_fs, bursts)
    return _completion(bus)


@njit(cache=True)
def gather(bus, row_ends, ready_fs, completions, head):
    """Move rows, of bursts up to row_ends[row], each when it is known and there is room in the window; when the last completes."""
    size = len(completions)
    first = 0
    last = ready_fs[-1]
    for row in range(len(row_ends)):
        place = head[0] % size
        issue = max(ready_fs[row], completions[place])
        if row_ends[row] > first:
            _move(bus, issue, row_ends[row] - first)
        done = max(issue, _completion(bus))
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
