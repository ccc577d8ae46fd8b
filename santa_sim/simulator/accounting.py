"""From a trace and what the machine measured to operations, bytes, joules and square metres."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..trace import Trace
from .compile import TRAFFIC, Program
from .dram.energy import command_energy
from .machine import Run
from .rooms import PRODUCERS

if TYPE_CHECKING:
    from ..hardware_model import Hardware

OPS = {
    "score": ("adds", "mults"),
    "softmax": ("exps", "compares", "adds", "mults"),
    "selection": ("compares",),
    "sampling": ("random_numbers", "compares", "adds", "mults", "floors"),
    "value": ("adds", "mults", "shifts"),
    "merge": ("adds", "mults", "exps"),
}
# Operations without a type of their own work on fp32.
_FP32 = {"exps": "exp", "compares": "compare", "adds": "add_fp32", "mults": "mult_fp32", "floors": "floor",
         "random_numbers": "random_number"}  # fmt: skip


def operations(trace: Trace) -> dict[str, dict[str, int]]:
    """Scalar operations by stage."""
    return {stage: {name: trace.total(f"{stage}_{name}") for name in names} for stage, names in OPS.items()}


def accesses(trace: Trace) -> dict[str, dict[str, int]]:
    """Logical scalar accesses, as Tables 8 and 10 of arXiv:2605.01910 count them."""
    return {
        stage: {name: trace.total(f"{stage}_{name}") for name in ("reads", "writes")} for stage in ("score", "value")
    }


def traffic(run: Run, burst_bytes: int) -> tuple[dict[str, int], dict[str, int]]:
    """DRAM bytes by kind and in all: whole bursts, and the bytes asked for."""
    whole = {kind: run.bursts[kind] * burst_bytes for kind in TRAFFIC}
    useful = {kind: run.useful_bytes[kind] for kind in TRAFFIC}
    return {**whole, "total": sum(whole.values())}, {**useful, "total": sum(useful.values())}


def unique_rows(trace: Trace) -> tuple[float, float, float]:
    """Unique rows of V per head, per group, and per group over n_k: averages over sequences, layers and heads."""
    outputs = trace.items[trace.items["stage"] == "output"]
    columns = ["sequence", "layer", "kv_head", "unique_rows_per_head", "unique_rows_per_group"]
    rows = outputs[columns].groupby(columns[:3], sort=False).sum().reset_index()
    if not len(rows):
        return 0.0, 0.0, 0.0
    heads = len(rows) * trace.meta["n_heads"] // trace.meta["n_kv_heads"]
    n_k = np.array([trace.meta["n_k"][sequence] for sequence in rows["sequence"]])
    per_group = rows["unique_rows_per_group"].to_numpy()
    return float(rows["unique_rows_per_head"].sum()) / heads, float(per_group.mean()), float((per_group / n_k).mean())


def sram_moves(program: Program, run: Run, hardware: Hardware) -> list[tuple[int, int, int]]:
    """(size of an SRAM, bytes written to it, bytes read from it).

    What comes from DRAM is written to its buffer once and read once (a row that several heads or samples share, too:
    it is broadcast); queries pass the K buffer. What goes to DRAM passes the write buffer. Exponentials that wait for
    their tile's values (4 bytes each) pass the weights buffer; stash and partials on chip are written and read as the
    trace says. Registers aren't counted.
    """
    hw, useful = hardware, run.useful_bytes
    waiting = 0
    for group in program.groups:
        if not (group.items["budget"] or group.items["select"]):
            tiles = {value.tile for value in group.items["value"]}
            waiting += sum(4 * item.exponentials for item in group.items["score"] if item.tile in tiles)
    streamed = useful["q_read"] + useful["k_read"]
    spilled = useful["stash_read"] + useful["partials_read"] + waiting
    written = useful["stash_write"] + useful["partials_write"] + useful["output_write"]
    items = [item for group in program.groups for kind in group.items.values() for item in kind]
    chip = (sum(item.chip_write for item in items), sum(item.chip_read for item in items))
    return [
        (hw.k_buffer.bytes, streamed, streamed),
        (hw.v_buffer.bytes, useful["v_read"], useful["v_read"]),
        (hw.weights_buffer.bytes, spilled, spilled),
        (hw.write_buffer.bytes, written, written),
        (hw.stash.bytes, *chip),
    ]


def energy(
    trace: Trace, run: Run, moves: list[tuple[int, int, int]], hardware: Hardware, area_m2: float
) -> tuple[dict[str, float], list[str], list[str]]:
    """Energy by part [J], the parts of which the cost is unknown and counts as 0, and a note for each of these.

    Multiplications cost the operand's type, additions the accumulator's; normalisation works on accumulators; softmax,
    selection, sampling and merge are fp32.
    """
    table, notes = hardware.energy, []
    unknown: list[str] = []
    ops = operations(trace)
    score, value = trace.meta["score_types"], trace.meta["value_types"]
    outputs = (trace.items["stage"] == "output").to_numpy()
    normal = {name: int(trace.items[f"value_{name}"].to_numpy()[outputs].sum()) for name in ("adds", "mults")}

    def known(part: str, cost: float | None, what: str) -> float:
        if cost is None:
            unknown.append(part)
            notes.append(f"{what} of {hardware.name} is not known: counted as 0")
        return cost or 0.0

    def fp32(stage: str) -> float:
        return math.fsum(n * table.operation_j(_FP32[name]) for name, n in ops[stage].items())

    seconds = run.end_fs / 1e15
    breakdown = {
        **_dram_energy(run, hardware, seconds, known),
        "sram": math.fsum(table.sram_j(size, written + read) for size, written, read in moves),
        "score": ops["score"]["adds"] * table.operation_j(f"add_{score['accumulator']}")
        + ops["score"]["mults"] * table.operation_j(f"mult_{score['operand']}"),
        "softmax": fp32("softmax"),
        "selection": fp32("selection"),
        "sampling": fp32("sampling"),
        "accumulate": (ops["value"]["adds"] - normal["adds"]) * table.operation_j(f"add_{value['accumulator']}")
        + (ops["value"]["mults"] - normal["mults"]) * table.operation_j(f"mult_{value['operand']}"),
        "merge": fp32("merge"),
        "normalize": normal["adds"] * table.operation_j(f"add_{value['accumulator']}")
        + normal["mults"] * table.operation_j(f"mult_{value['accumulator']}")
        + ops["value"]["shifts"] * table.operation_j("shift"),
        "leakage": seconds * area_m2 * known("leakage", table.leakage_w_per_m2, "leakage"),
    }
    return breakdown, unknown, notes


def _dram_energy(run: Run, hardware: Hardware, seconds: float, known: Callable[..., float]) -> dict[str, float]:
    """Energy of the memory by part [J]; refreshes of a bank-level memory count as background."""
    report = run.memory
    if report.energy_j is not None:
        kinds, each = report.energy_j, command_energy(hardware.memory.config)
        known("dram_activate", each.activate_j, "DRAM activate energy")
        known("dram_read", each.read_j, "DRAM read energy")
        known("dram_write", each.write_j, "DRAM write energy")
        known("dram_background", each.active_w, "DRAM background power")
        if report.counts["refreshes"] + report.counts["bank_refreshes"] and each.active_w is not None:
            figures = (each.refresh_j if report.counts["refreshes"] else 0.0, each.refresh_bank_j if report.counts["bank_refreshes"] else 0.0)
            known("dram_background", None if None in figures else 0.0, "DRAM refresh energy")
        return {
            "dram_activate": kinds["activate"], "dram_read": kinds["read"], "dram_write": kinds["write"],
            "dram_background": kinds["background"] + kinds["refresh"],
        }  # fmt: skip
    dram, burst_bits = hardware.memory.energy, hardware.memory.burst_bytes * 8
    return {
        "dram_activate": report.activates * known("dram_activate", dram.activate_j, "DRAM activate energy"),
        "dram_read": report.read_bursts * burst_bits * known("dram_read", dram.read_j_per_bit, "DRAM read energy"),
        "dram_write": report.write_bursts * burst_bits * known("dram_write", dram.write_j_per_bit, "DRAM write energy"),
        "dram_background": seconds * known("dram_background", dram.background_w, "DRAM background power"),
    }


def sram_sizes(hardware: Hardware) -> dict[str, int]:
    """Bytes of every SRAM that a machine is built with.

    Two of the weights buffer, for exponentials that wait and for stash read back, and one of the write buffer for each unit
    that writes stash or partials. Queries, queues between units, accumulators and outputs are in registers, which aren't here.
    """
    hw = hardware
    return {
        "k_buffer": hw.k_buffer.bytes,
        "v_buffer": hw.v_buffer.bytes,
        "weights": hw.weights_buffer.bytes,
        "stash_reads": hw.weights_buffer.bytes,
        **{f"{unit}_writes": hw.write_buffer.bytes for unit in PRODUCERS if unit != "output"},
        "stash": hw.stash.bytes,
    }


def area(meta: Mapping, hardware: Hardware) -> tuple[dict[str, float], list[str]]:
    """Area by unit [m^2], lanes built for the trace's number types, and what was unknown and counts as 0."""
    table, hw = hardware.energy, hardware
    score, value = meta["score_types"], meta["value_types"]

    def sum_of(*operations: str) -> float:
        return math.fsum(table.operation_area_m2(operation) for operation in operations)

    def lane(*operations: str, adders: int) -> float:
        return sum_of(*operations) + adders * sum_of("add_fp32")

    adder = f"add_{score['accumulator']}"
    value_lane = [f"add_{value['accumulator']}"] + ([f"mult_{value['operand']}"] if hw.accumulate.kind == "mac" else [])
    breakdown = {
        "score": hw.score.mac_lanes * sum_of(adder, f"mult_{score['operand']}") + hw.score.adder_lanes * sum_of(adder),
        "softmax": hw.softmax.lanes * lane("compare", "exp", "mult_fp32", adders=hw.softmax.adders_per_lane),
        "selection": hw.selection.compares_per_cycle * sum_of("compare") if hw.selection else 0.0,
        "budget": hw.budget.lanes * sum_of("add_fp32", "mult_fp32", "compare", "floor", "exp"),
        "sampler": hw.sampler.lanes * lane("mult_fp32", "floor", adders=hw.sampler.adders_per_lane)
        + hw.sampler.random_numbers_per_cycle * sum_of("random_number")
        + hw.sampler.search_compares_per_cycle * sum_of("compare"),
        "accumulate": hw.accumulate.lanes * sum_of(*value_lane),
        "merge": hw.merge.lanes * sum_of("add_fp32", "mult_fp32", "exp"),
        "normalize": hw.normalize.lanes
        * sum_of(f"mult_{value['accumulator']}", *(["shift"] if hw.normalize.shifter else [])),
        "sram": sum(sram_sizes(hw).values()) * (table.sram_area_m2_per_byte or 0.0),
    }
    sram = "" if table.sram_area_m2_per_byte is None else " and SRAM"
    notes = [f"area counts arithmetic lanes{sram}, not registers, control, wires or address generation"]
    if table.sram_area_m2_per_byte is None:
        notes.append(f"SRAM area of {hardware.name} is not known: counted as 0")
    return breakdown, notes
