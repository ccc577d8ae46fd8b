"""Play a trace of requests on a memory alone, and report what happened."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from ...errors import InputError, choose
from . import core
from . import layout as L
from .config import DramConfig, load_dram
from .memory import END_OF_TIME, Dram, Port, check_addresses

CHUNK = 1 << 14
ISSUES = ("saturated", "in-order", "timed")
Chunk = tuple[np.ndarray, np.ndarray, np.ndarray | None]


@dataclasses.dataclass(frozen=True)
class Report:
    """What a memory did with a trace.

    Attributes
    ----------
    cycles, time_s : until the last request had completed (posted writes complete when they are buffered)  [clocks, s]
    drained_cycles : until the last buffered write was in the memory; equal to `cycles` if nothing was left  [clocks]
    requests : entries of the trace, or bursts that they were split into
    bandwidth_bytes_per_s : bytes that went over the data buses by `cycles`, over `time_s`; never above peak
    peak_bytes_per_s : every data bus busy all the time
    row_hit_rate : share of column commands that weren't the first since their bank's activate
    queue_occupancy : transactions queued in a (pseudo-)channel, mean over time
    wait_s : from being taken by the memory to its column command, mean over transactions  [s]
    energy_j : by kind: activate, read, write, refresh, background (with what was drained); total_energy_j their sum
    The other fields count commands; those charged after `cycles` are in them. reads_merged joined an identical read in
    flight, reads_forwarded were answered from the write buffer, writes_coalesced replaced a buffered one.
    """

    config: str
    policy: str
    issue: str
    outstanding: int | None
    requests: int
    cycles: int
    time_s: float
    drained_cycles: int
    bandwidth_bytes_per_s: float
    peak_bytes_per_s: float
    activates: int
    precharges: int
    reads: int
    writes: int
    read_row_hits: int
    write_row_hits: int
    row_hit_rate: float
    reads_merged: int
    reads_forwarded: int
    writes_coalesced: int
    writes_pending: int
    refreshes: int
    bank_refreshes: int
    queue_occupancy: float
    wait_s: float
    energy_j: dict[str, float]
    total_energy_j: float
    notes: list[str]

    def to_dict(self) -> dict[str, object]:
        """The report as plain data for JSON."""
        return dataclasses.asdict(self)


def replay(
    addresses: np.ndarray,
    writes: bool | np.ndarray,
    config: DramConfig | str,
    issue: str = "saturated",
    outstanding: int | None = None,
    *,
    ready_cycles: np.ndarray | None = None,
    request_bytes: int | None = None,
    drain: bool = True,
) -> Report:
    """Play requests on a memory that has just been switched on.

    Parameters
    ----------
    addresses : int64 [n], byte addresses; writes : one flag, or bool [n]
    config : what `load_dram` takes
    issue : 'saturated': the next 64 requests are offered every memory clock, up to 16 are taken, later ones may pass a
        refused one. 'in-order': one request a clock, a refused one blocks. 'timed': in order, none before its ready
        cycle
    outstanding : requests sent and not completed, at most; None for no limit
    ready_cycles : int64 [n], for 'timed'  [memory clocks]
    request_bytes : bytes of each request, a multiple of the memory's burst; None: one burst each
    drain : write out what is buffered when the last request has completed, and charge it (DRAMsim3 leaves it)

    Raises
    ------
    InputError
        A choice is unknown, an address is beyond the capacity, or shapes differ.
    """
    addresses = np.ascontiguousarray(addresses, np.int64).ravel()
    flags = np.asarray(writes, np.bool_)
    if flags.ndim and flags.shape != addresses.shape:
        raise InputError(
            f"writes has shape {flags.shape}, addresses {addresses.shape}; give one flag, or one per address"
        )
    chunk = (addresses, np.broadcast_to(flags, addresses.shape), ready_cycles)
    return replay_chunks([chunk], config, issue, outstanding, request_bytes=request_bytes, drain=drain)


def replay_chunks(
    chunks: Iterable[Chunk],
    config: DramConfig | str,
    issue: str = "saturated",
    outstanding: int | None = None,
    *,
    request_bytes: int | None = None,
    drain: bool = True,
) -> Report:
    """`replay` for a trace in pieces (addresses, writes, ready cycles or None); memory use doesn't grow with it."""
    config = load_dram(config)
    choose("issue", issue, ISSUES)
    if issue == "saturated":
        port = Port(outstanding, lookahead=64 if outstanding is None else min(64, outstanding), per_clock=16)
    else:
        port = Port(outstanding, lookahead=1, per_clock=1)
    memory = Dram(config, [port])
    requests = 0
    held: Chunk | None = None  # one piece behind, to know which is the last
    for piece in _pieces(chunks, config, issue, request_bytes):
        if held is not None:
            _feed(memory, held, more=True)
        requests += len(piece[0])
        held = piece
    _feed(memory, held if held is not None else _NOTHING, more=False)
    return _report(memory, issue, requests, drain)


_NOTHING: Chunk = (np.zeros(0, np.int64), np.zeros(0, np.bool_), None)


def _pieces(chunks: Iterable[Chunk], config: DramConfig, issue: str, request_bytes: int | None) -> Iterable[Chunk]:
    """Checked chunks, cut to at most CHUNK requests, whole bursts."""
    burst = config.organization.burst_bytes
    size = burst if request_bytes is None else request_bytes
    if size < burst or size % burst:
        raise InputError(
            f"request_bytes = {request_bytes} must be a multiple of the burst of {config.name}, {burst} bytes"
        )
    for addresses, writes, ready in chunks:
        if issue == "timed" and (ready is None or np.shape(ready) != addresses.shape):
            raise InputError("issue='timed' needs ready_cycles, one per address")
        check_addresses(config, addresses)
        for first in range(0, len(addresses), CHUNK):
            cut = slice(first, first + CHUNK)
            a, w = addresses[cut], writes[cut]
            r = np.asarray(ready[cut], np.int64) if issue == "timed" else None
            if size > burst:
                a = ((a // burst * burst)[:, None] + np.arange(0, size, burst)).ravel()
                w = np.repeat(w, size // burst)
                r = None if r is None else np.repeat(r, size // burst)
                check_addresses(config, a)
            yield a, w, r


def _feed(memory: Dram, chunk: Chunk, more: bool) -> None:
    """Hand a piece to the memory's only port and run as far as what is known allows."""
    addresses, writes, ready = chunk
    state = memory._state
    p = memory._port(0)
    memory._retire(0)
    memory._make_room(0, len(addresses))
    mapping = memory._mapping
    ready = np.zeros(1, np.int64) if ready is None else ready
    core.submit(
        state,
        memory._ring,
        memory._capacity,
        0,
        addresses,
        writes,
        ready,
        mapping.pieces,
        mapping.hashing,
        mapping.burst_shift,
        False,
    )
    core.run(state, memory._ring, memory._capacity, END_OF_TIME, more, not more, False)
    memory._check_finished(more)
    assert more or state[p + L.ENTER] == state[p + L.SUBMITTED]


def _report(memory: Dram, issue: str, requests: int, drain: bool) -> Report:
    config, state = memory.config, memory._state
    clock_s = config.timing.clock_fs * 1e-15
    cycles = int(state[L.CLOCK])
    at_end = memory.counts()
    if drain:
        memory.finish()
    counts = memory.counts()
    energy, notes = memory.energy_j()
    time_s = cycles * clock_s
    moved = at_end["reads"] + at_end["writes"]
    columns = counts["reads"] + counts["writes"]
    occupancy, wait_s = memory.queueing()
    return Report(
        config=config.name,
        policy=config.policy.name,
        issue=issue,
        outstanding=memory.ports[0].outstanding,
        requests=requests,
        cycles=cycles,
        time_s=time_s,
        drained_cycles=int(state[L.CLOCK]),
        bandwidth_bytes_per_s=moved * config.organization.burst_bytes / time_s if cycles else 0.0,
        peak_bytes_per_s=config.peak_bytes_per_s,
        activates=counts["activates"],
        precharges=counts["precharges"],
        reads=counts["reads"],
        writes=counts["writes"],
        read_row_hits=counts["read_row_hits"],
        write_row_hits=counts["write_row_hits"],
        row_hit_rate=(counts["read_row_hits"] + counts["write_row_hits"]) / columns if columns else 0.0,
        reads_merged=counts["reads_merged"],
        reads_forwarded=counts["reads_forwarded"],
        writes_coalesced=counts["writes_coalesced"],
        writes_pending=counts["writes_pending"],
        refreshes=counts["refreshes"],
        bank_refreshes=counts["bank_refreshes"],
        queue_occupancy=occupancy,
        wait_s=wait_s,
        energy_j=energy,
        total_energy_j=sum(energy.values()),
        notes=[*config.notes, *notes],
    )
