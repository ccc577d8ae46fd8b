"""simulate: play a trace on a machine and report."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..trace import Trace
from . import accounting
from .compile import Program, compile_trace
from .machine import Run, play
from .memory import FS_PER_S, BandwidthMemory
from .orders import order
from .ports import BankPort, DirectPort, MemoryPort
from .result import Result

if TYPE_CHECKING:
    from ..hardware_gpu import Gpu
    from ..hardware_model import Hardware


def simulate(trace: Trace, hardware: str | Path | Mapping | Hardware | Gpu = "adder_hbm3", *, spans: bool = False,
             progress: Callable[[int, int], None] | None = None) -> Result:  # fmt: skip
    """Play a trace on a machine.

    Parameters
    ----------
    trace : Trace
    hardware : name of a machine in hwmodels/, path of a .yaml file, mapping of its fields, Hardware or Gpu.
    spans : keep what each unit did when (`Result.spans`).
    progress : called now and then with (memory jobs issued, memory jobs in all).

    Raises
    ------
    InputError
        The machine isn't known or lacks a unit that the trace needs, or the trace's items don't hang together.
    SimulationError
        The machine got stuck, or simulated time passed 9,000 s.
    """
    from ..hardware import Gpu, load_hardware  # hardware reads the tables of this package

    machine = load_hardware(hardware)
    if isinstance(machine, Gpu):
        from .gpu.play import play as play_on_gpu

        return play_on_gpu(trace, machine, spans)
    with pause_collection():
        program = compile_trace(trace, machine)
        run = play(order(program, machine), lambda env: _port(env, machine, program, spans), machine, spans, progress)
    return result_of(trace, machine, program, run)


def result_of(trace: Trace, machine: Hardware, program: Program, run: Run) -> Result:
    """What a run of a trace's program on a machine says."""
    area, area_notes = accounting.area(trace.meta, machine)
    moves = accounting.sram_moves(program, run, machine)
    energy, unknown, energy_notes = accounting.energy(trace, run, moves, machine, math.fsum(area.values()))
    whole, useful = accounting.traffic(run, machine.memory.burst_bytes)
    per_head, per_group, fraction = accounting.unique_rows(trace)
    busy = {unit: fs / FS_PER_S for unit, fs in run.busy_fs.items()}
    busy["dram"] = run.memory.busy_s
    utilization = {
        unit: min(1.0, seconds * FS_PER_S / run.end_fs) if run.end_fs else 0.0 for unit, seconds in busy.items()
    }
    meta = trace.meta
    return Result(
        workload=meta.get("workload"),
        method=meta["method"],
        score=meta["score"],
        samples=meta.get("samples"),
        samples_drawn=meta.get("samples_drawn"),
        budget_k=meta.get("budget_k"),
        budget_B=meta.get("budget_B"),
        hardware=machine.name,
        precision=meta["precision"],
        seed=meta.get("seed"),
        latency_s=run.end_fs / FS_PER_S,
        cycles=-(-run.end_fs * machine.clock_hz // FS_PER_S),
        energy_j=math.fsum(energy.values()),
        bound_by=max(utilization, key=utilization.__getitem__),
        energy_breakdown_j=energy,
        traffic_bytes=whole,
        useful_bytes=useful,
        sram_bytes={"read": sum(read for _, _, read in moves), "write": sum(written for _, written, _ in moves)},
        ops=accounting.operations(trace),
        accesses=accounting.accesses(trace),
        value_rows_unique_per_head=per_head,
        value_rows_unique_per_group=per_group,
        value_row_fraction=fraction,
        utilization=utilization,
        busy_s=busy,
        memory=_memory(run, machine, whole["total"]),
        buffer_peak=run.peak,
        stalls_fs=run.stalls_fs,
        area_breakdown_m2=area,
        notes=[*_given(meta.get("notes")), *machine.notes, *energy_notes, *area_notes, *_size_notes(program, machine), *_memory_notes(machine)],
        energy_unknown=unknown,
        error=meta.get("quality"),
        spans=run.spans,
        played=(trace, machine),
    )  # fmt: skip


def record(trace: Trace, machine: Hardware) -> Run:
    """Play a trace as `simulate` does, and keep what every unit and DRAM channel did when."""
    with pause_collection():
        program = compile_trace(trace, machine)
        return play(order(program, machine), lambda env: _port(env, machine, program, True), machine, True)


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Pause cyclic garbage collection: all that is built here stays reachable, and a search of it takes too long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _port(env, machine: Hardware, program: Program, keep: bool) -> MemoryPort:
    """The machine's memory, in its environment."""
    if machine.memory.model == "bandwidth":
        return DirectPort(env, BandwidthMemory(machine.memory), machine.gather.outstanding, keep)
    check_reach(program, machine)
    config = machine.memory.config
    items = [item for group in program.groups for stage in group.items.values() for item in stage]
    rows = [item.gather for item in items if item.gather]
    widest = max((row.row_bytes for row in rows), default=1)
    bursts = -(-widest // machine.memory.burst_bytes)
    return BankPort(env, config, machine.gather.outstanding * bursts, round(machine.memory.controller_latency_s * FS_PER_S), keep)


def check_reach(program: Program, machine: Hardware) -> None:
    """InputError if a trace's buffers don't fit into a machine's bank-level memory."""
    config = machine.memory.config
    items = [item for group in program.groups for stage in group.items.values() for item in stage]
    ends = [region.end for item in items for region in (*item.reads, *item.writes)] + [item.gather.end for item in items if item.gather]
    reach = max(ends, default=0)
    if reach > config.organization.capacity_bytes:
        raise InputError(
            f"the trace's buffers reach to byte {reach:,}; the memory of {machine.name}, {config.name}, holds "
            f"{config.organization.capacity_bytes:,}: give it more stacks, ranks or rows, or run a smaller workload"
        )


def _memory(run: Run, machine: Hardware, moved: int) -> dict[str, float | str]:
    """What the memory did: bursts, activates and bandwidths; of banks also their commands, row hits and queues."""
    report, model = run.memory, machine.memory
    facts: dict[str, float | str] = {
        "model": model.model,
        "kv_layout": machine.kv_layout,
        "activates": report.activates,
        "read_bursts": report.read_bursts,
        "write_bursts": report.write_bursts,
        "peak_bandwidth_bytes_per_s": model.bandwidth_bytes_per_s,
        "achieved_bandwidth_bytes_per_s": moved * FS_PER_S / run.end_fs if run.end_fs else 0.0,
    }
    if report.counts:
        columns = report.counts["reads"] + report.counts["writes"]
        hits = report.counts["read_row_hits"] + report.counts["write_row_hits"]
        facts.update(report.counts, row_hit_rate=hits / columns if columns else 0.0)
    return facts


def _size_notes(program: Program, machine: Hardware) -> list[str]:
    """What passes a buffer that couldn't hold it."""
    buffers = {"k_read": ("K", "k_buffer", machine.k_buffer.bytes), "v_read": ("V", "v_buffer", machine.v_buffer.bytes)}
    return [
        f"up to {program.longest[kind]:,} bytes of {letter} are asked for at a time, more than {name} holds ({held:,}): they stream through it "
        f"at the memory's pace, as if there were room for what is under way"
        for kind, (letter, name, held) in buffers.items()
        if program.longest[kind] > held
    ]  # fmt: skip


def _memory_notes(machine: Hardware) -> list[str]:
    if machine.memory.model == "bandwidth":
        return ["DRAM: bandwidth, latency and bursts; activates estimated as page changes in the order of requests"]
    config = machine.memory.config
    return [f"DRAM: {config.description}; K and V are {machine.kv_layout}", *config.notes]


def _given(notes: object) -> list[str]:
    return [notes] if isinstance(notes, str) else list(notes or [])
