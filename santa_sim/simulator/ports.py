"""How the machine's jobs reach a memory: events that fire when the last of a job's bursts has completed."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import simpy

from .dram import Dram, DramConfig, DramProcess, Port
from .memory import BandwidthMemory, MemoryReport, Window
from .stalls import union

STREAM, GATHER, WRITE = range(3)  # ports of a bank-level memory


@dataclasses.dataclass(frozen=True)
class Channel:
    """What one data bus of a memory did: disjoint intervals in order, int64 [n, 2]  [fs].

    Attributes
    ----------
    reads, writes : a burst's slot on the bus; of a bank-level memory it begins with the column command
    queued : a transaction waits in the channel's queue for its column command
    asked : a request has been handed in and isn't in the queue yet
    """

    name: str
    reads: np.ndarray
    writes: np.ndarray
    queued: np.ndarray
    asked: np.ndarray


class MemoryPort(Protocol):
    """What the machine needs of a memory inside a SimPy environment in femtoseconds."""

    burst_bytes: int

    def request(self, addresses: np.ndarray, write: bool) -> simpy.Event:
        """Move bursts from now on; addresses int64 [n], burst-aligned. Fires at the last completion."""

    def gather(self, addresses: np.ndarray, row_ends: np.ndarray, ready_fs: np.ndarray) -> simpy.Event:
        """Read rows with a limited number in flight: row i is addresses[row_ends[i-1]:row_ends[i]], known at ready_fs[i]."""

    def report(self) -> MemoryReport:
        """What has been served; called once, when the machine has done: buffered writes are written out first."""

    def channels(self) -> list[Channel]:
        """What each data bus did, if the port was made to keep that; after `report`."""


class DirectPort:
    """A memory that answers at once, in the order of the calls. `keep`: remember what its bus did."""

    def __init__(self, env: simpy.Environment, memory: BandwidthMemory, outstanding: int, keep: bool = False) -> None:
        self.env, self.memory, self.window, self.keep = env, memory, Window.of(outstanding), keep
        self.burst_bytes = memory.burst_bytes
        self._moved: tuple[list, list] = ([], [])  # (start, end) on the bus: reads, writes
        self._asked: list[tuple[int, int]] = []

    def request(self, addresses: np.ndarray, write: bool) -> simpy.Event:
        start = max(self.env.now, self.memory.bus_free_fs)
        done = self.memory.request(self.env.now, addresses, write)
        if self.keep:
            self._moved[write].append((start, self.memory.bus_free_fs))
        return self.env.timeout(done - self.env.now)

    def gather(self, addresses: np.ndarray, row_ends: np.ndarray, ready_fs: np.ndarray) -> simpy.Event:
        if not self.keep:
            return self.env.timeout(self.memory.gather(addresses, row_ends, ready_fs, self.window) - self.env.now)
        done, size = self.env.now, len(self.window.completions)
        for row, ready in enumerate(ready_fs):  # the same, a row at a time
            issue = max(int(ready), int(self.window.completions[self.window.head[0] % size]))
            start, first = max(issue, self.memory.bus_free_fs), row_ends[row - 1] if row else 0
            bursts = addresses[first : row_ends[row]]
            end = np.array([len(bursts)], np.int64)
            done = max(done, self.memory.gather(bursts, end, ready_fs[row : row + 1], self.window))
            if len(bursts):
                self._moved[0].append((start, self.memory.bus_free_fs))
        self._asked.append((self.env.now, self.memory.bus_free_fs))
        return self.env.timeout(done - self.env.now)

    def report(self) -> MemoryReport:
        return self.memory.report()

    def channels(self) -> list[Channel]:
        reads, writes, asked = (union(np.array(spans, np.int64).reshape(-1, 2)) for spans in (*self._moved, self._asked))
        return [Channel("memory bus", reads, writes, np.zeros((0, 2), np.int64), asked)]


class BankPort:
    """A bank-level DRAM beside the machine: streams, gathers and writes each come through a port of their own.

    Parameters
    ----------
    outstanding : bursts of gathered rows in flight, at most
    latency_fs : of controller and PHY, added to every completion  [fs]
    keep : remember what each channel did
    """

    def __init__(self, env: simpy.Environment, config: DramConfig, outstanding: int, latency_fs: int,
                 keep: bool = False) -> None:  # fmt: skip
        self.env, self.latency_fs = env, latency_fs
        self.dram = Dram(config, [Port(), Port(outstanding=outstanding), Port()], keep)
        self.process = DramProcess(env, self.dram)
        self.burst_bytes = config.organization.burst_bytes
        self._bursts = [0, 0]

    def request(self, addresses: np.ndarray, write: bool) -> simpy.Event:
        self._bursts[write] += len(addresses)
        return self._later(self.process.request(addresses, write, port=WRITE if write else STREAM))

    def gather(self, addresses: np.ndarray, row_ends: np.ndarray, ready_fs: np.ndarray) -> simpy.Event:
        self._bursts[0] += len(addresses)
        ready = np.repeat(ready_fs, np.diff(row_ends, prepend=0))
        return self._later(self.process.request(addresses, False, ready_fs=ready, port=GATHER))

    def _later(self, event: simpy.Event) -> simpy.Event:
        done = self.env.event()

        def arrived(_: simpy.Event) -> None:
            self.env.timeout(self.latency_fs).callbacks.append(lambda _: done.succeed())

        event.callbacks.append(arrived)
        return done

    def report(self) -> MemoryReport:
        return bank_report(self.dram, self._bursts, self.env.now)

    def channels(self) -> list[Channel]:
        config, served = self.dram.config, self.dram.served()
        clock, slot = config.timing.clock_fs, config.timing.nBL
        served = served[np.argsort(served[:, 0], kind="stable")]
        bounds = np.searchsorted(served[:, 0], np.arange(config.organization.buses + 1))
        channels = []
        for number in range(config.organization.buses):
            _, write, asked, accepted, column = served[bounds[number] : bounds[number + 1]].T
            spans = np.stack([column, column + slot], 1) * clock
            channels.append(
                Channel(
                    f"DRAM channel {number}", union(spans[write == 0]), union(spans[write == 1]),
                    union(np.stack([accepted, column], 1) * clock), union(np.stack([asked, accepted], 1) * clock),
                )  # fmt: skip
            )
        return channels


def bank_report(dram: Dram, bursts: list[int], end_fs: int) -> MemoryReport:
    """What a DRAM has served by the end of a run, its buffered writes written out; `bursts`: read, written."""
    dram.advance(max(end_fs, dram.now_fs))  # standby until the machine has done
    dram.finish()
    occupancy, wait_s = dram.queueing()
    counts = {**dram.counts(), "queue_occupancy": occupancy, "queue_wait_s": wait_s}
    energy, _ = dram.energy_j()  # what isn't known, the machine's accounting says
    moved = sum(bursts) * dram.config.organization.burst_bytes
    return MemoryReport(*bursts, counts["activates"], moved / dram.config.peak_bytes_per_s, counts, energy)
