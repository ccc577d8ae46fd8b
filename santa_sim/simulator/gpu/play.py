"""A trace on a GPU as a Result: time and bytes of its launches, operations and accesses of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...trace import Trace
from .. import accounting
from ..compile import TRAFFIC
from ..machine import Span
from ..result import Result
from .timing import LIMITS, predict

if TYPE_CHECKING:
    from ...hardware_gpu import Gpu

_PARTS = ("dram_activate", "dram_read", "dram_write", "dram_background", "sram", "score", "softmax", "selection", "sampling",
          "accumulate", "merge", "normalize", "leakage")  # fmt: skip
_FS = 10**15


def play(trace: Trace, machine: Gpu, spans: bool = False) -> Result:
    """The trace's launches one after another, replayed as a graph with a cache full of others' updated lines.

    Raises
    ------
    InputError
        No kernels are described for this trace; says what to write instead.
    """
    frame = predict(trace, machine)
    latency_s = float(frame["time_s"].sum())
    units = {name: float(frame[f"{name}_s"].sum()) for name in (*LIMITS, "start")}
    utilization = {name: seconds / latency_s for name, seconds in units.items()}
    assert max(utilization.values()) <= 1 + 1e-9, utilization  # no launch takes less than any of its limits
    whole = {kind: int(round(frame[kind].sum())) for kind in TRAFFIC}
    whole["total"] = sum(whole.values())
    useful = _useful(trace)
    per_head, per_group, fraction = accounting.unique_rows(trace)
    meta = trace.meta
    return Result(
        workload=meta.get("workload"), method=meta["method"], score=meta["score"], samples=meta.get("samples"),
        samples_drawn=meta.get("samples_drawn"), budget_k=meta.get("budget_k"), budget_B=meta.get("budget_B"), hardware=machine.name,
        precision=meta["precision"], seed=meta.get("seed"), latency_s=latency_s, cycles=-(-round(latency_s * _FS) * machine.clock_hz // _FS),
        energy_j=0.0, bound_by=max(utilization, key=utilization.__getitem__), energy_breakdown_j=dict.fromkeys(_PARTS, 0.0), traffic_bytes=whole, useful_bytes=useful,
        sram_bytes={"read": int(round(frame["l2_bytes"].sum())), "write": int(round(frame["l2_written_bytes"].sum()))},
        ops=accounting.operations(trace), accesses=accounting.accesses(trace), value_rows_unique_per_head=per_head,
        value_rows_unique_per_group=per_group, value_row_fraction=fraction, utilization=utilization,
        busy_s={**units, **{f"launch {name}": seconds for name, seconds in frame.groupby("launch", sort=False)["time_s"].sum().items()}},
        memory={"model": "gpu", "kv_layout": "sequence-first" if meta["score"] == "exact" else "feature-major K",
                "peak_bandwidth_bytes_per_s": machine.memory.bandwidth_bytes_per_s,
                "achieved_bandwidth_bytes_per_s": whole["total"] / latency_s if latency_s else 0.0},
        buffer_peak={}, area_breakdown_m2={}, notes=[*_given(meta.get("notes")), *machine.notes, *_notes(machine, frame)],
        energy_unknown=list(_PARTS), error=meta.get("quality"), spans=_spans(frame) if spans else None, played=(trace, machine),
    )  # fmt: skip


def _useful(trace: Trace) -> dict[str, int]:
    """Bytes that the trace's items ask for, by kind."""
    sums = dict.fromkeys(TRAFFIC, 0)
    items = trace.items
    for buffers, sizes, writes in zip(items["stream_buffer"], items["stream_bytes"], items["stream_write"]):
        for buffer, nbytes, write in zip(buffers, sizes, writes):
            sums[f"{buffer}_{'write' if write else 'read'}"] += int(nbytes)
    for buffer, rows, nbytes in zip(items["gather_buffer"], items["gather_rows"], items["gather_row_bytes"]):
        if buffer:
            sums[f"{buffer}_read"] += len(np.asarray(rows)) * int(nbytes)
    return {**sums, "total": sum(sums.values())}


def _spans(frame) -> list[Span]:
    ends = np.cumsum(np.rint(frame["time_s"].to_numpy() * _FS).astype(np.int64))
    starts = np.concatenate([[0], ends[:-1]])
    return [Span(name, row, int(a), int(b)) for row, (name, a, b) in enumerate(zip(frame["launch"], starts, ends))]


def _given(notes: object) -> list[str]:
    return [notes] if isinstance(notes, str) else list(notes or [])


def _notes(machine: Gpu, frame) -> list[str]:
    launches = " + ".join(frame["launch"].drop_duplicates())
    source = f"calibrated: {machine.calibration.source}" if machine.calibration else "not calibrated: bandwidth and launch costs by one rule for all cards"
    return [
        f"GPU: {launches}, replayed as a CUDA graph, the L2 full of another buffer's updated lines before (Appendix Q of arXiv:2605.01910)",
        f"GPU: {source} (docs/gpu.md)",
        "dense attention is a split over keys and a merge, bound by bandwidth" if (frame["launch"] == "split").any() else
        "kernels as in gpu/kernels; traffic_bytes are what crosses DRAM during the launches, sram_bytes what the L2 serves",
        f"energies and areas of a GPU's parts are published by nobody: counted as 0; the board's limit of {machine.board_power_w:g} W "
        f"over this time is {machine.board_power_w * frame['time_s'].sum():.3g} J",
    ]  # fmt: skip
