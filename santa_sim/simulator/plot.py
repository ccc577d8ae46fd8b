"""A result as a picture: energy by part and DRAM traffic by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .result import Result

# M. Okabe and K. Ito, "Color Universal Design", 2008; what shares a colour differs in lightness by a hatch
BLUE, SKY, VERMILION, ORANGE, GREEN, PURPLE, YELLOW, BLACK = (
    "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#000000",
)  # fmt: skip
STYLES = {
    "dram_activate": (BLUE, "//"), "dram_read": (BLUE, ""), "dram_write": (SKY, "//"), "dram_background": (SKY, ""),
    "sram": (VERMILION, ""), "score": (ORANGE, ""), "softmax": (GREEN, ""), "selection": (PURPLE, "//"), "sampling": (PURPLE, ""),
    "accumulate": (YELLOW, ""), "merge": (BLACK, "//"), "normalize": (BLACK, ""), "leakage": (YELLOW, "//"),
    "q_read": (GREEN, ""), "k_read": (BLUE, ""), "v_read": (ORANGE, ""), "stash_read": (PURPLE, ""), "stash_write": (PURPLE, "//"),
    "partials_read": (SKY, ""), "partials_write": (SKY, "//"), "output_write": (VERMILION, "//"),
}  # fmt: skip


def stacks(result: Result) -> Figure:
    """Energy by part [µJ] and DRAM traffic by kind [MB], a stack each; amounts and shares stand in the legends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    energy, traffic = figure.subplots(1, 2)
    _stack(energy, result.energy_breakdown_j, 1e6, "energy [µJ]", set(result.energy_unknown))
    kinds = {kind: n for kind, n in result.traffic_bytes.items() if kind != "total"}
    _stack(traffic, kinds, 1e-6, "DRAM traffic [MB]", set())
    figure.suptitle(
        f"{result.method}, {result.score} scores on {result.hardware}: {result.latency_s * 1e6:.4g} µs, "
        f"bound by {result.bound_by}",
        fontsize="medium",
    )
    return figure


def _stack(axes: Axes, values: dict[str, float], scale: float, label: str, unknown: set[str]) -> None:
    total, bottom = sum(values.values()), 0.0
    for key, value in values.items():
        if value > 0:
            colour, hatch = STYLES.get(key, (BLACK, ".."))
            text = f"{key.replace('_', ' ')}  {value * scale:.3g}  ({100 * value / total:.1f} %)"
            axes.bar([0], [value * scale], bottom=bottom, width=0.5, label=text, color=colour, hatch=hatch, edgecolor="white")
            bottom += value * scale
    for key in values:
        if key in unknown:
            axes.plot([], [], " ", label=f"{key.replace('_', ' ')}  not known")
    axes.set_xlim(-0.4, 1.6)
    axes.set_xticks([])
    axes.set_ylabel(label)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], loc="center right", fontsize="small", frameon=False)
