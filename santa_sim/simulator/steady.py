"""The shortcut for steady streams: a bank-level DRAM as the rate at which it serves this very trace's requests.

The machine's own memory jobs are played once on the banks alone, in their order, a few in flight. The time a burst takes there,
on average, stands for every burst on every machine with this DRAM, and an unloaded access for the latency. Where the memory
keeps a machine waiting, the run is one long stream and the rate is all that counts; where it doesn't, the rate hardly matters.
What it leaves out: queues that run empty and fill again, at the ends of a run too. So it is for long runs that gather next to nothing,
and not all of a head's rows at once as a selection does, on machines whose K buffer holds many times what the memory has under way, and whose gathers ask for at
least that much at a time (`is_steady`); others are played in full.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from .dram import Dram, Port
from .dram.energy import charge
from .dram.memory import END_OF_TIME
from .memory import FS_PER_S, Bus, MemoryReport
from .ports import GATHER, STREAM, WRITE

if TYPE_CHECKING:
    from ..hardware_model import Hardware
    from .dram import DramConfig
    from .plan import Plan

WARM_BURSTS = 4_096  # before the clock starts
# Refresh makes the rate go up and down by 3 % from one refresh interval to the next: many are averaged.
SAMPLE_BURSTS = 2**21
LEAST_BURSTS = 2**16  # a shorter run is no steady stream: it is played in full
IN_FLIGHT = 8  # memory jobs
AHEAD = 10  # K buffers of fewer times what the memory has under way (bandwidth x latency) make queues run empty
LONG = 400  # times what the memory has under way: its ends cost a run up to four latencies
GATHERED = 0.005  # share of gathered bursts; of more, the order that they are served in depends on what the machine does meanwhile
_MODULUS = 2**20


@dataclasses.dataclass(frozen=True)
class Steady:
    """A DRAM on a steady stream.

    Attributes
    ----------
    burst_fs : float  [fs]  time of a burst, all channels together
    latency_fs : int  [fs]  of an access that nothing is before
    per_burst : commands and served requests by name, each per burst of the sample
    active_share : of its ranks' time, with a row open
    """

    burst_fs: float
    latency_fs: int
    per_burst: dict[str, float]
    active_share: float

    @property
    def bus(self) -> Bus:
        """A bus that moves bursts at this rate."""
        whole = int(self.burst_fs)
        return Bus.free(whole, min(round((self.burst_fs - whole) * _MODULUS), _MODULUS - 1), _MODULUS, self.latency_fs)

    def report(self, machine: Hardware, moved: list[int], end_fs: int) -> MemoryReport:
        """What the whole run's commands and energy come to."""
        config, bursts = machine.memory.config, sum(moved)
        counts = {name: round(each * bursts) for name, each in self.per_burst.items()}
        counts |= {"reads": moved[0], "writes": moved[1], "reads_completed": moved[0], "writes_completed": moved[1], "writes_pending": 0}
        ranks_s = end_fs / FS_PER_S * config.organization.buses * config.organization.ranks
        energy, _ = charge(config, counts, ranks_s * self.active_share, ranks_s * (1 - self.active_share))
        seconds = bursts * config.organization.burst_bytes / config.peak_bytes_per_s
        return MemoryReport(moved[0], moved[1], counts["activates"], seconds, counts, energy)


def is_steady(machine: Hardware, bursts: int, gathered: int, row_bytes: int) -> bool:
    """Whether a bank-level DRAM has a steady stream to serve.

    Parameters
    ----------
    bursts, gathered : of the run in all, and those of gathered rows
    row_bytes : of a gathered row
    """
    config = machine.memory.config
    under_way = config.peak_bytes_per_s * (machine.memory.controller_latency_s + config.timing.access_fs / FS_PER_S)
    keeps_up = not gathered or machine.gather.outstanding * row_bytes >= under_way
    is_long = bursts >= LEAST_BURSTS and bursts * config.organization.burst_bytes >= LONG * under_way
    return is_long and gathered <= GATHERED * bursts and machine.k_buffer.bytes >= AHEAD * under_way and keeps_up


def steady(plan: Plan, config: DramConfig, latency_fs: int) -> Steady:
    """Measure a DRAM on a plan's requests (the middle of them, where there are many).

    `latency_fs` : of controller and PHY  [fs]
    """
    t = plan.tables
    first, end = plan.units["dram"]
    bursts = np.diff(t.stream_at)[first:end] + np.diff(t.gather_at)[first:end]
    total, wanted = int(bursts.sum()), WARM_BURSTS + SAMPLE_BURSTS
    job = int(np.searchsorted(np.cumsum(bursts), max(0, total - wanted) // 2))
    dram = Dram(config, [Port(), Port(), Port()])
    in_flight = done = began = counted = 0
    before: dict[str, int] = {}
    while done < wanted:
        while in_flight < IN_FLIGHT and job < end - first:
            for addresses, port in _requests(t, first + job):
                dram.request(dram.now_fs, addresses, port == WRITE, port=port)
                in_flight += 1
            job += 1
        tickets = dram.next_done(END_OF_TIME * config.timing.clock_fs)
        if not tickets:
            break
        in_flight -= len(tickets)
        done += sum(ticket.count for ticket in tickets)
        if not before and done >= WARM_BURSTS:
            began, counted, before = dram.now_fs, done, dram.counts()
    sampled = {name: count - before[name] for name, count in dram.counts().items()}
    served = max(1, sampled["reads"] + sampled["writes"])
    return Steady(
        (dram.now_fs - began) / max(1, done - counted),
        latency_fs + config.timing.access_fs,
        {name: count / served for name, count in sampled.items()}, dram.active_share(),
    )  # fmt: skip


def _requests(t, job: int) -> list[tuple[np.ndarray, int]]:
    """A memory job's bursts and the port that they go through."""
    stream, gather = t.stream[t.stream_at[job] : t.stream_at[job + 1]], t.gather[t.gather_at[job] : t.gather_at[job + 1]]
    asked = [(stream, WRITE if t.writes[job] else STREAM), (gather, GATHER)]
    return [(addresses, port) for addresses, port in asked if len(addresses)]
