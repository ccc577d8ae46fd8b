"""A DRAM with state: ports take requests, the memory is advanced in time, completions come back.

A request's completion depends on what else is asked until it is served, so nothing is promised early: `request` hands
in requests, `advance` moves the memory to a time up to which everything is known, and a `Ticket` fills as its requests
are served. The outcome is the same however a stream is cut into calls, as long as a call isn't late (its `now` before
the time that the memory has been advanced to). Femtoseconds outside, memory clocks inside.
"""

from __future__ import annotations

import bisect
import dataclasses

import numpy as np

from ...errors import InputError, SimulationError
from . import core
from . import layout as L
from .config import DramConfig, load_dram
from .energy import charge
from .timing import rules

MOST_IN_FLIGHT = 1 << 24  # requests of a port: more have no effect, and their ring would fill this machine
END_OF_TIME = 1 << 59  # [clocks]


@dataclasses.dataclass(frozen=True)
class Port:
    """How a requester feeds the memory: in program order, as far as its own limits go.

    Attributes
    ----------
    outstanding : requests sent and not yet completed, at most; None for no limit
    lookahead : requests sent that no queue has taken yet, at most: those behind a refused one may pass it
    per_clock : requests that the memory takes from this port in one memory clock, at most
    """

    outstanding: int | None = None
    lookahead: int = 64
    per_clock: int = 16

    def __post_init__(self) -> None:
        for name in ("outstanding", "lookahead", "per_clock"):
            value = getattr(self, name)
            if name == "outstanding" and value is None:
                continue
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 1 <= value <= MOST_IN_FLIGHT:
                raise InputError(f"{name}={value!r} must be a whole number from 1 to {MOST_IN_FLIGHT}")


class Ticket:
    """Requests handed in together: `done_fs` fills with their completion times  [fs], -1 where not known yet."""

    def __init__(self, port: int, first: int, count: int) -> None:
        self.port, self.first, self.count = port, first, count
        self.done_fs = np.full(count, -1, np.int64)
        self._missing = count

    @property
    def complete(self) -> bool:
        """True once every completion time is known."""
        return self._missing == 0

    @property
    def last_fs(self) -> int:
        """When the last of its requests completes  [fs]; -1 while that isn't known."""
        if not self.complete:
            return -1
        return int(self.done_fs.max()) if self.count else 0


class Dram:
    """Bank-level memory whose state is kept between calls.

    Parameters
    ----------
    config : DramConfig, or what `load_dram` takes
    ports : one `Port` per requester; their requests are independent streams, served in turn
    keep : remember every request, for `served`; it changes no outcome

    Raises
    ------
    InputError
        The configuration or a port is wrong.
    """

    def __init__(self, config: DramConfig | str, ports: list[Port] | None = None, keep: bool = False) -> None:
        self.config = load_dram(config)
        self.ports = list(ports) if ports is not None else [Port()]
        if not 1 <= len(self.ports) <= L.MAX_PORTS:
            raise InputError(f"ports = {len(self.ports)} of them; give between 1 and {L.MAX_PORTS}")
        self._state = build_state(self.config, self.ports)
        self._state[L.KEEP] = self._keep = keep
        self._handed_in: list[tuple[list[int], list[int]]] = [([], []) for _ in self.ports]  # first requests, clocks, if kept
        self._served: list[np.ndarray] = []
        self._capacity = max(1024, L.power_of_two_at_least(4 * max(port.lookahead for port in self.ports)))
        self._ring = np.zeros(len(self.ports) * self._capacity * L.REQUEST_SIZE, np.int64)
        self._mapping = self.config.mapping
        self._open: list[list[Ticket]] = [[] for _ in self.ports]

    # --- handing in

    def request(
        self,
        now_fs: int,
        addresses: np.ndarray,
        write: bool | np.ndarray = False,
        *,
        ready_fs: np.ndarray | None = None,
        port: int = 0,
    ) -> Ticket:
        """Hand in one request per address, in order.

        Parameters
        ----------
        now_fs : none of them is sent before this time  [fs]
        addresses : int64 [n], byte addresses; each moves one burst of `config.organization.burst_bytes`
        write : one flag, or bool [n]
        ready_fs : int64 [n], when each address is known  [fs]; a request waits for the one before it
        port : which requester

        Raises
        ------
        InputError
            An address is beyond the capacity, `now_fs` lies before the time advanced to, or shapes differ.
        """
        addresses = np.ascontiguousarray(addresses, np.int64).ravel()
        self._check(now_fs, addresses, port)
        writes = np.broadcast_to(np.asarray(write, np.bool_), addresses.shape)
        clock = self.config.timing.clock_fs
        if ready_fs is None:
            ready = np.array([-(-now_fs // clock)], np.int64)
        else:
            ready = np.asarray(ready_fs, np.int64)
            if ready.shape != addresses.shape:
                raise InputError(
                    f"ready_fs has shape {ready.shape}, addresses {addresses.shape}; give one time per address"
                )
            ready = -(-np.maximum(ready, now_fs) // clock)
        p = self._port(port)
        ticket = Ticket(port, int(self._state[p + L.SUBMITTED]), len(addresses))
        self._make_room(port, len(addresses))
        core.submit(
            self._state, self._ring, self._capacity, port, addresses, writes, ready, self._mapping.pieces,
            self._mapping.hashing, self._mapping.burst_shift,
            True,
        )  # fmt: skip
        self._open[port].append(ticket)
        if self._keep:
            self._handed_in[port][0].append(ticket.first)
            self._handed_in[port][1].append(self._clocks(now_fs))
        return ticket

    def _check(self, now_fs: int, addresses: np.ndarray, port: int) -> None:
        if not 0 <= port < len(self.ports):
            raise InputError(f"port = {port} does not exist; this memory has {len(self.ports)}, from 0")
        if self._clocks(now_fs) < self._state[L.CLOCK]:
            raise InputError(
                f"now_fs = {now_fs} lies before {self.now_fs} fs, the time that the memory has been advanced to"
            )
        check_addresses(self.config, addresses)

    def _port(self, number: int) -> int:
        return int(self._state[L.PORT_AT] + number * self._state[L.PORT_SIZE])

    def _first_open(self, number: int) -> int:
        """Number of the oldest request of a port whose place in the ring is still needed."""
        return int(self._state[self._port(number) + L.FIRST])

    def _retire(self, number: int) -> None:
        """Give up the places of a port's oldest requests, before its oldest open ticket, as far as they have completed (those
        kept: as far as they were served)."""
        p = self._port(number)
        first = self._first_open(number)
        end = self._open[number][0].first if self._open[number] else int(self._state[p + L.SUBMITTED])
        requests = self._ring.reshape(len(self.ports), self._capacity, L.REQUEST_SIZE)[number]
        places = np.arange(first, end) & (self._capacity - 1)
        waiting = requests[places, L.R_DONE] < 0
        if self._keep:  # a write that has completed may still be queued
            waiting |= (requests[places, L.R_ROW] < 0) & (requests[places, L.R_BANK] < 0)
        waiting = np.flatnonzero(waiting)
        self._state[p + L.FIRST] = first + int(waiting[0]) if len(waiting) else end

    def _make_room(self, port: int, count: int) -> None:
        self._ring, self._capacity = core.make_room(self._state, self._ring, self._capacity, port, count)

    # --- moving on

    @property
    def now_fs(self) -> int:
        """Time that the memory has been advanced to  [fs]: what happens before it is settled."""
        return int(self._state[L.CLOCK]) * self.config.timing.clock_fs

    def advance(self, until_fs: int) -> list[Ticket]:
        """Move to `until_fs`  [fs]; no later call may ask for something before it. Returns the tickets now complete."""
        core.run(self._state, self._ring, self._capacity, self._clocks(until_fs), False, False, False)
        return self._collect()

    def next_done(self, until_fs: int) -> list[Ticket]:
        """Move on until a ticket is known to complete, at most to `until_fs`  [fs] or the end of what was asked.

        Returns the tickets now complete, if any; none of them completes before `now_fs`, so whoever waits for one can
        ask for more at that very time.
        """
        if not any(ticket.complete for tickets in self._open for ticket in tickets):  # one of no requests is
            self._state[L.TICKETS_DONE] = 0
            core.run(self._state, self._ring, self._capacity, self._clocks(until_fs), False, True, True)
            if self._state[L.TICKETS_DONE] == 0:
                return []
        return self._collect(whole=True)

    def _clocks(self, time_fs: int) -> int:
        return min(END_OF_TIME, -(-time_fs // self.config.timing.clock_fs))

    def wait(self, ticket: Ticket) -> np.ndarray:
        """Move on until `ticket` is complete; returns its completion times  [fs], int64 [n]."""
        while not ticket.complete:
            self.next_done(END_OF_TIME * self.config.timing.clock_fs)
            self._check_finished(ticket.complete)
        return ticket.done_fs

    def finish(self) -> list[Ticket]:
        """Move on until everything has completed and every buffered write is in the memory."""
        core.run(self._state, self._ring, self._capacity, END_OF_TIME, False, True, False)
        self._check_finished()
        self._state[L.FLUSH] = 1
        for i in range(int(self._state[L.CHANNELS])):
            c = self._state[L.CHANNEL_AT] + i * self._state[L.CHANNEL_SIZE]
            self._state[c + L.DIRTY] = 1
            self._state[c + L.NEXT] = min(self._state[c + L.NEXT], self._state[L.CLOCK])
        core.run(self._state, self._ring, self._capacity, END_OF_TIME, False, True, False)
        self._state[L.FLUSH] = 0
        self._check_finished()
        return self._collect()

    def _check_finished(self, fine: bool = False) -> None:
        if self._state[L.CLOCK] >= END_OF_TIME and not fine:
            raise SimulationError(
                f"{self.config.name}: the memory came to a stop with requests waiting: {self.counts()}"
            )

    def _collect(self, whole: bool = False) -> list[Ticket]:
        """The tickets that have become complete; `whole`: look at no others, which is faster."""
        done = []
        clock = self.config.timing.clock_fs
        for number, tickets in enumerate(self._open):
            requests = self._ring.reshape(len(self.ports), self._capacity, L.REQUEST_SIZE)[number]
            for ticket in tickets:
                if whole and ticket.count and requests[ticket.first & (self._capacity - 1), L.R_LEFT] > 0:
                    continue
                ids = np.arange(ticket.first, ticket.first + ticket.count) & (self._capacity - 1)
                clocks = requests[ids, L.R_DONE]
                ticket.done_fs = np.where(clocks >= 0, clocks * clock, -1)
                ticket._missing = int((clocks < 0).sum())
                if ticket.complete:
                    done.append(ticket)
            self._open[number] = [ticket for ticket in tickets if not ticket.complete]
            first = self._first_open(number)
            if whole and self._open[number] and not self._keep:  # what was handed in before the oldest open ticket has completed
                self._state[self._port(number) + L.FIRST] = self._open[number][0].first
                continue
            self._retire(number)
            if self._keep:
                self._note_served(number, first, self._first_open(number))
        return done

    def _note_served(self, number: int, first: int, end: int) -> None:
        """Remember requests first ... end - 1 of a port, as far as they had a column command."""
        ids = np.arange(first, end)
        requests = self._ring.reshape(len(self.ports), self._capacity, L.REQUEST_SIZE)[number, ids & (self._capacity - 1)]
        starts, clocks = self._handed_in[number]
        i, j = bisect.bisect_right(starts, first) - 1, bisect.bisect_left(starts, end)
        handed_in = np.array(clocks[i:j], np.int64)[np.searchsorted(np.array(starts[i:j]), ids, "right") - 1] if len(ids) else ids
        channel = (requests[:, L.R_CHANNEL] - self._state[L.CHANNEL_AT]) // self._state[L.CHANNEL_SIZE]
        table = np.stack([channel, requests[:, L.R_WRITE], handed_in, -1 - requests[:, L.R_ROW], requests[:, L.R_BANK]], 1)
        self._served.append(table[requests[:, L.R_ROW] < 0])

    # --- what happened

    def counts(self) -> dict[str, int]:
        """Commands issued and requests served so far."""
        s = self._state
        return {name: int(s[field]) for name, field in _COUNTERS.items()}

    def served(self) -> np.ndarray:
        """What the column commands were for, of a memory that keeps its requests (after `finish`).

        Returns
        -------
        int64 [n, 5] : (pseudo-)channel, 1 for a write, clocks at which it was handed in, taken into its channel's queue,
            and served by a column command; merged, forwarded and coalesced requests had none
        """
        return np.concatenate([np.zeros((0, 5), np.int64), *self._served])

    def queueing(self) -> tuple[float, float]:
        """Transactions queued in a (pseudo-)channel, mean over time; wait for a column command, mean over transactions  [s]."""
        s = self._state
        waited, columns = int(s[L.QUEUED_CLOCKS]), int(s[L.N_RD] + s[L.N_WR])
        occupancy = waited / (int(s[L.CLOCK]) * self.config.organization.buses) if s[L.CLOCK] else 0.0
        return occupancy, waited / columns * self.config.timing.clock_fs * 1e-15 if columns else 0.0

    def energy_j(self) -> tuple[dict[str, float], list[str]]:
        """Energy until now by kind  [J], and notes on what isn't known."""
        active, idle = self._rank_clocks()
        clock_s = self.config.timing.clock_fs * 1e-15
        return charge(self.config, self.counts(), active * clock_s, idle * clock_s)

    def active_share(self) -> float:
        """Share of the ranks' time until now with a row open."""
        active, idle = self._rank_clocks()
        return active / (active + idle) if active + idle else 0.0

    def _rank_clocks(self) -> tuple[int, int]:
        """Clocks of all ranks together with a row open, and with none."""
        s = self._state
        active = 0
        for i in range(int(s[L.CHANNELS] * s[L.RANKS])):
            rank = s[L.RANK_AT] + i * L.RANK_SIZE
            active += int(s[rank + L.ACTIVE_CLOCKS]) + (
                int(s[L.CLOCK] - s[rank + L.ACTIVE_SINCE]) if s[rank + L.OPEN_BANKS] else 0
            )
        return active, int(s[L.CLOCK]) * int(s[L.CHANNELS] * s[L.RANKS]) - active


_COUNTERS = {
    "activates": L.N_ACT, "precharges": L.N_PRE, "reads": L.N_RD, "writes": L.N_WR, "read_row_hits": L.N_RD_HIT,
    "write_row_hits": L.N_WR_HIT, "refreshes": L.N_REF, "bank_refreshes": L.N_REFB, "reads_forwarded": L.N_FORWARDED,
    "reads_merged": L.N_MERGED, "writes_coalesced": L.N_COALESCED, "reads_completed": L.N_DONE_READS,
    "writes_completed": L.N_DONE_WRITES, "writes_pending": L.WAITING_WRITES,
}  # fmt: skip


def check_addresses(config: DramConfig, addresses: np.ndarray) -> None:
    """InputError if an address is negative or beyond the capacity."""
    if len(addresses) == 0:
        return
    low, high = int(addresses.min()), int(addresses.max())
    if low < 0:
        raise InputError(f"addresses: {low} is negative")
    if high >= config.organization.capacity_bytes:
        raise InputError(
            f"addresses: {high:#x} is beyond the capacity of {config.name}, "
            f"{config.organization.capacity_bytes:#x} bytes"
        )


def build_state(config: DramConfig, ports: list[Port]) -> np.ndarray:
    """The state vector of a memory that has just been switched on (see `layout`)."""
    o, t, policy = config.organization, config.timing, config.policy
    textbook = policy.name == "textbook"
    kinds = {
        "none": L.REFRESH_OFF,
        "all-bank": L.REFRESH_STAGGERED,
        "first-rank": L.REFRESH_FIRST_RANK,
        "per-bank": L.REFRESH_BANK,
    }
    kind = kinds[config.refresh.kind]
    banks = o.banks_per_rank * o.ranks
    per_queue = o.banks_per_rank if not textbook and policy.queue_per == "rank" else 1
    interval = {L.REFRESH_OFF: L.NEVER, L.REFRESH_BANK: t.nREFI_bank, L.REFRESH_FIRST_RANK: t.nREFI}.get(kind)
    settings = {
        L.POLICY: L.TEXTBOOK if textbook else L.DRAMSIM3, L.CHANNELS: o.buses, L.BANKS: banks,
        L.GROUPS: o.bank_groups * o.ranks, L.RANKS: o.ranks, L.BANKS_PER_GROUP: o.banks_per_group,
        L.BANKS_PER_RANK: o.banks_per_rank, L.GROUPS_PER_RANK: o.bank_groups, L.READ_SLOTS: policy.read_queue,
        L.WRITE_SLOTS: policy.write_queue, L.BANK_SLOTS: 0 if textbook else policy.bank_queue,
        L.UNIFIED: 0 if textbook else int(policy.unified_queue), L.BANKS_PER_QUEUE: per_queue,
        L.QUEUES: banks // per_queue, L.DUAL: int(o.command_buses == 2), L.CLOSED: int(policy.page == "closed"),
        L.HIT_CAP: policy.row_hit_cap, L.DRAIN_ABOVE: 0 if textbook else policy.drain_above,
        L.WRITE_HIGH: policy.write_high if textbook else 0, L.WRITE_LOW: policy.write_low if textbook else 0,
        L.REFRESH: kind,
        L.REFRESH_INTERVAL: t.nREFI // o.ranks if interval is None else interval, L.READ_DELAY: t.read_delay,
        L.WRITE_DELAY: t.write_delay, L.FAW: t.nFAW, L.AW32: t.n32AW or 0, L.SHARED_BUS: o.pseudo_channels,
        L.BURST_SHIFT: o.burst_bytes.bit_length() - 1,
    }  # fmt: skip
    nodes = o.buses * (
        policy.read_queue + policy.write_queue + (0 if textbook else banks // per_queue * policy.bank_queue)
    )
    limits = [(port.lookahead, port.per_clock, port.outstanding or 0) for port in ports]
    return L.build(settings=settings, ports=limits, rules=rules(config), nodes=nodes)
