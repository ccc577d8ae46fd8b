"""Roofline: what a machine could do at most, and what runs do.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009. An operation is what a lane
does in a cycle: a multiplication with its addition on a MAC lane, a float32 lane or in a tensor core, an addition on an adder
lane; of the score and the value stage. Intensity is operations per byte of DRAM traffic (whole bursts).

A machine's lines are all its lanes of a kind at work. A run has scores for some lanes and values for others, and is done
when the ones with more to do are: its own roof of the lanes is operations / the longer of the two times. On a GPU it is operations
/ the longest of what its kernels take to be issued and to pass the float64, special-function and tensor pipelines: instructions
that are no operation of the method, such as addresses and loads, are among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..hardware_gpu import Gpu
from ..report import si
from ..simulator.gpu.rates import rates_of
from ..simulator.plot import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION
from ..simulator.result import Result
from .rows import frame_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..hardware_model import Hardware

_COLOURS, _MARKERS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK), "osD^vPX<>p*h"
_ROOFS = (("macs_per_s", "-", "MAC lanes"), ("adds_per_s", "--", "adder lanes"), ("fp32_ops_per_s", "--", "float32 lanes"), ("tensor_macs_per_s", "-", "tensor cores"))
_PIPELINES = ("issue", "fp64", "special", "tensor")  # of a GPU's multiprocessors
_ACROSS = 1.8  # a run's own roof is drawn from its intensity over this to its intensity times this


def roofline(*results: Result) -> tuple[Figure, pd.DataFrame]:
    """Runs under the roofs of their machines.

    Parameters
    ----------
    results : of `run` or `simulate`; a list of them is taken too

    Returns
    -------
    figure : intensity against operations a second, both logarithmic; a colour a machine, a marker what was run (workload, method, score, budgets); a machine's roofs are its DRAM bandwidth, its MAC lanes
        and its adder lanes, of a GPU its float32 lanes and its tensor cores; dotted across each run, its own roof of the lanes (`lanes_roof_ops_per_s`). It isn't shown or saved.
    frame : a row a run: `operations`, `traffic_bytes`, `intensity_ops_per_byte`, `attained_ops_per_s`, and the roofs above
        it: `dram_roof_ops_per_s`, `lanes_roof_ops_per_s` (of the lanes that have more to do in this run's mix of scores and
        values), `under` (the lower of them), `share_of_roof`

    Raises
    ------
    InputError
        No results, or something that isn't one, or one that doesn't say what was played.
    """
    if len(results) == 1 and isinstance(results[0], (list, tuple)):
        results = tuple(results[0])
    if not results:
        raise InputError("roofline() was given no results; write roofline(santa_sim.run(...), santa_sim.run(...))")
    for result in results:
        if not isinstance(result, Result):
            raise InputError(f"roofline() takes results of santa_sim.run or simulate, not {type(result).__name__}")
        if result.played is None:
            raise InputError(f"a result of {result.hardware} has no roofline: it doesn't say what was played; take it from santa_sim.run or simulate")
    frame = frame_of([_row(result) for result in results])
    return _figure(results, frame), frame


def ceilings(machine: Hardware | Gpu) -> dict[str, float]:
    """Roofs of a machine: peak DRAM bandwidth [B/s]; MACs and additions of all MAC and adder lanes, or of a GPU operations of its
    float32 lanes and MACs of its tensor cores (16 bits, dense) at the clock that its kernels are timed with [1/s]."""
    if isinstance(machine, Gpu):
        sm, clock_hz = machine.multiprocessors, rates_of(machine).clock_hz
        return {
            "bandwidth_bytes_per_s": float(machine.memory.bandwidth_bytes_per_s),
            "fp32_ops_per_s": float(sm.count * sm.fp32_per_cycle * clock_hz),
            "tensor_macs_per_s": float(sm.count * sm.tensor_flops_per_cycle / 2 * clock_hz),
        }
    value = {"mac": 0, "adder": 0, machine.accumulate.kind: machine.accumulate.lanes}
    return {
        "bandwidth_bytes_per_s": float(machine.memory.bandwidth_bytes_per_s),
        "macs_per_s": float((machine.score.mac_lanes + value["mac"]) * machine.clock_hz),
        "adds_per_s": float((machine.score.adder_lanes + value["adder"]) * machine.clock_hz),
    }


def _row(result: Result) -> dict[str, object]:
    operations = sum(max(result.ops[stage]["adds"], result.ops[stage]["mults"]) for stage in ("score", "value"))
    moved = result.traffic_bytes["total"]
    intensity = operations / moved if moved else float("inf")
    longest = max(result.busy_s[unit] for unit in (_PIPELINES if isinstance(result.played[1], Gpu) else ("score", "accumulate")))
    dram, lanes = intensity * ceilings(result.played[1])["bandwidth_bytes_per_s"], operations / longest if longest else float("inf")
    attained = operations / result.latency_s if result.latency_s else 0.0
    return {
        "workload": result.workload, "method": result.method, "score": result.score, "samples": result.samples,
        "hardware": result.hardware, "latency_s": result.latency_s, "operations": operations, "traffic_bytes": moved,
        "intensity_ops_per_byte": intensity, "attained_ops_per_s": attained, "dram_roof_ops_per_s": dram,
        "lanes_roof_ops_per_s": lanes, "under": "dram" if dram <= lanes else "lanes",
        "share_of_roof": attained / min(dram, lanes) if min(dram, lanes) else 0.0,
    }  # fmt: skip


def _figure(results: tuple[Result, ...], frame: pd.DataFrame) -> Figure:
    from matplotlib.figure import Figure

    machines = {result.hardware: result.played[1] for result in results}
    figure = Figure(figsize=(9, 5.1 + 0.22 * (len(results) + 2 * len(machines))), layout="constrained")
    axes = figure.subplots()
    finite = [x for x in frame["intensity_ops_per_byte"] if np.isfinite(x) and x > 0] or [1.0]
    x = np.geomspace(min(finite) / 8, max(max(finite) * 8, 2 * _last_ridge(machines)), 200)
    for number, (name, machine) in enumerate(machines.items()):
        _roofs(axes, x, name, ceilings(machine), _COLOURS[number % len(_COLOURS)])
    places = list(machines)
    asked = [(result.workload, result.method, result.score, str(result.samples), result.budget_k, result.budget_B) for result in results]
    kernels, several = list(dict.fromkeys(asked)), frame["workload"].nunique(dropna=False) > 1
    for number, result in enumerate(results):
        row = frame.iloc[number]
        work = f"{row['workload']}, " if several else ""
        kept = "" if result.budget_k is None else f", k = {result.budget_k}"
        samples = "" if result.samples is None else f", S = {result.samples}" if isinstance(result.samples, int) else ", S by layer"
        label = f"{work}{row['method']}{samples}{kept}, {row['score']}, on {row['hardware']}: {row['latency_s'] * 1e6:.4g} µs"
        colour = _COLOURS[places.index(row["hardware"]) % len(_COLOURS)]
        axes.plot(row["intensity_ops_per_byte"], row["attained_ops_per_s"], _MARKERS[kernels.index(asked[number]) % len(_MARKERS)], color=colour, markersize=8,
                  markeredgecolor="white", label=label, zorder=3)  # fmt: skip
        if np.isfinite(row["lanes_roof_ops_per_s"]):
            across = row["intensity_ops_per_byte"] / _ACROSS, row["intensity_ops_per_byte"] * _ACROSS
            axes.plot(across, [row["lanes_roof_ops_per_s"]] * 2, ":", color=colour, linewidth=2)
    axes.plot([], [], ":", color=BLACK, linewidth=2, label="above a run: most that the lanes can do with its mix of scores and values")
    axes.set(xscale="log", yscale="log", ylabel="operations a second [1/s]",
             xlabel="operations per byte of DRAM traffic [1/B]\na multiply-accumulate counts as 1 operation, as does an addition on an adder or float32 lane")  # fmt: skip
    axes.set_xlim(x[0], x[-1])
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16))
    return figure


def _last_ridge(machines: dict[str, Hardware | Gpu]) -> float:
    """Where the last machine's highest roof meets its bandwidth [1/B]."""
    roofs = [ceilings(machine) for machine in machines.values()]
    return max(max(roof.get(key, 0.0) for key, _, _ in _ROOFS) / roof["bandwidth_bytes_per_s"] for roof in roofs)


def _roofs(axes: Axes, x: np.ndarray, name: str, roofs: dict[str, float], colour: str) -> None:
    bandwidth = roofs["bandwidth_bytes_per_s"]
    for key, style, what in _ROOFS:
        if roofs.get(key):
            axes.plot(x, np.minimum(bandwidth * x, roofs[key]), style, color=colour, linewidth=1.3,
                      label=f"{name}: {what} {si(roofs[key], 'op/s')}, DRAM {si(bandwidth, 'B/s')}")  # fmt: skip
