"""How the machine's jobs reach a memory: events that fire when the last of a job's bursts has completed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import simpy

from .dram import Dram, DramConfig, DramProcess, Port
from .memory import Memory, MemoryReport, Window

STREAM, GATHER, WRITE = range(3)  # ports of a bank-level memory


class MemoryPort(Protocol):
    """What the machine needs of a memory inside a SimPy environment in femtoseconds."""

    burst_bytes: int

    def request(self, addresses: np.ndarray, write: bool) -> simpy.Event:
        """Move bursts from now on; addresses int64 [n], burst-aligned. Fires at the last completion."""

    def gather(self, addresses: np.ndarray, row_ends: np.ndarray, ready_fs: np.ndarray) -> simpy.Event:
        """Read rows with a limited number in flight: row i is addresses[row_ends[i-1]:row_ends[i]], known at ready_fs[i]."""

    def report(self) -> MemoryReport:
        """What has been served; called once, when the machine has done: buffered writes are written out first."""


class DirectPort:
    """A memory that answers at once (`Memory`), in the order of the calls."""

    def __init__(self, env: simpy.Environment, memory: Memory, outstanding: int) -> None:
        self.env, self.memory, self.window = env, memory, Window.of(outstanding)
        self.burst_bytes = memory.burst_bytes

    def request(self, addresses: np.ndarray, write: bool) -> simpy.Event:
        return self.env.timeout(self.memory.request(self.env.now, addresses, write) - self.env.now)

    def gather(self, addresses: np.ndarray, row_ends: np.ndarray, ready_fs: np.ndarray) -> simpy.Event:
        return self.env.timeout(self.memory.gather(addresses, row_ends, ready_fs, self.window) - self.env.now)

    def report(self) -> MemoryReport:
        return self.memory.report()


class BankPort:
    """A bank-level DRAM beside the machine: streams, gathers and writes each come through a port of their own.

    Parameters
    ----------
    outstanding : bursts of gathered rows in flight, at most
    latency_fs : of controller and PHY, added to every completion  [fs]
    """

    def __init__(self, env: simpy.Environment, config: DramConfig, outstanding: int, latency_fs: int) -> None:
        self.env, self.latency_fs = env, latency_fs
        self.dram = Dram(config, [Port(), Port(outstanding=outstanding), Port()])
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
        self.dram.advance(max(self.env.now, self.dram.now_fs))  # standby until the machine has done
        self.dram.finish()
        occupancy, wait_s = self.dram.queueing()
        counts = {**self.dram.counts(), "queue_occupancy": occupancy, "queue_wait_s": wait_s}
        energy, _ = self.dram.energy_j()  # what isn't known, the machine's accounting says
        moved = sum(self._bursts) * self.burst_bytes
        return MemoryReport(*self._bursts, counts["activates"], moved / self.dram.config.peak_bytes_per_s, counts, energy)

