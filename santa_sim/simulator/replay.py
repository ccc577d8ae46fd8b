"""The machine without SimPy, for many runs of one trace: the same jobs, units, buffers and memories as tables and a compiled loop.

There are two machines so that one can be read and one is fast. `machine` says what a machine does, a unit a process: it is the
reference, and alone keeps spans. This one plays a point of a sweep many times faster. Each result is the same in every field, to the
femtosecond and the slot: tests/simulator/test_replay.py holds them to that. `plan` has the tables, `replay_units` the units, buffers
and events, `replay_memory` the loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import SimulationError
from .dram import Dram, Port
from .machine import Run
from .memory import FS_PER_S, Bus, MemoryReport, Window, cycles_fs
from .plan import Plan
from .ports import bank_report
from .replay_memory import STUCK_MEMORY, TOO_LONG, banks, play_banks, play_direct
from .replay_units import GATHER_FREE, NOW, Live, live
from .stalls import BUSY, DONE, REQUESTS

if TYPE_CHECKING:
    from ..hardware_model import Hardware
    from .steady import Steady


def play_plan(plan: Plan, hardware: Hardware, shortcut: Steady | None = None) -> Run:
    """Play a plan on the memory of a machine (of the plan's burst size); what `machine.play` of its schedule gives.

    `shortcut` stands for a bank-level memory; see `steady`.

    Raises
    ------
    SimulationError
        The machine got stuck, or the time doesn't fit into 64-bit femtoseconds.
    """
    t, hw = plan.tables, hardware
    pace = _pace(hw)
    busy = {unit: int(t.duration_fs[first:end].sum()) if unit != "dram" else 0 for unit, (first, end) in plan.units.items()}
    rows = np.diff(t.row_at)
    busy["gather"] = sum(cycles_fs(-(-int(n) // hw.gather.addresses_per_cycle), hw.clock_hz) for n in rows[rows > 0])
    x = live(t, len(plan.causes))
    if hw.memory.model == "bandwidth" or shortcut is not None:
        window = Window.of(hw.gather.outstanding)
        status = play_direct(t, x, pace, Bus.of(hw.memory) if shortcut is None else shortcut.bus, window.completions, window.head)
    else:
        config = hw.memory.config
        widest = -(-plan.widest_row // config.organization.burst_bytes)
        dram = Dram(config, [Port(), Port(outstanding=hw.gather.outstanding * widest), Port()])
        at_work = banks(dram, round(hw.memory.controller_latency_s * FS_PER_S), int(t.first[t.dram + 1] - t.first[t.dram]))
        status, dram._ring, dram._capacity = play_banks(t, x, pace, at_work, dram._ring, dram._capacity)
    if status == STUCK_MEMORY:
        raise SimulationError(f"{config.name}: the memory came to a stop with requests waiting: {dram.counts()}")
    end = _end_fs(plan, x, status)
    moved = [sum(n for kind, n in plan.bursts.items() if kind.endswith(way)) for way in ("_read", "_write")]
    if shortcut is not None:
        report = shortcut.report(hw, moved, end)
    elif hw.memory.model == "bandwidth":
        report = MemoryReport(*moved, plan.activates(hw.memory.page_bytes), sum(moved) * hw.memory.burst_bytes / hw.memory.bandwidth_bytes_per_s)
    else:
        report = bank_report(dram, moved, end)
    peak = dict(zip(plan.buffers, (t.capacity - np.minimum(x.least, x.free)).tolist()))
    stalls = _stalls(plan, x.waited, busy, end, int(x.counters[GATHER_FREE]), bool(rows.any()))
    return Run(end, busy, dict(plan.bursts), dict(plan.useful_bytes), report, peak, stalls, None, None, None)


def end_fs(plan: Plan, hardware: Hardware) -> int:
    """When a plan ends on a machine with a memory of bandwidth and latency; errors as in `play_plan`."""
    x, window = live(plan.tables, len(plan.causes)), Window.of(hardware.gather.outstanding)
    return _end_fs(plan, x, play_direct(plan.tables, x, _pace(hardware), Bus.of(hardware.memory), window.completions, window.head))


def _pace(hardware: Hardware) -> np.ndarray:
    whole, rest = divmod(FS_PER_S, hardware.clock_hz)
    return np.array([hardware.gather.addresses_per_cycle, whole, rest, hardware.clock_hz], np.int64)


def _end_fs(plan: Plan, x: Live, status: int) -> int:
    if status == TOO_LONG:
        raise SimulationError("the run is longer than 9,000 s, beyond 64-bit femtoseconds")
    stuck = [f"{unit} waits with trace row {plan.rows[at]}" for (unit, (_, stop)), at in zip(plan.units.items(), x.place) if at < stop]
    if stuck:
        raise SimulationError(f"deadlock: {', '.join(stuck)}")
    return int(x.counters[NOW])


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
