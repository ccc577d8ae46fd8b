"""How plots look: colours that colour-blind readers tell apart, one marker each, light axes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# M. Okabe and K. Ito, "Color Universal Design", 2008: black, blue, vermilion, green, orange, sky blue, purple
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7")
MARKERS = "osD^vPX"


def new_figure(width: float = 6.0, height: float = 4.0) -> tuple[Figure, Axes]:
    """A figure of one axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    dress(axes)
    return figure, axes


def dress(axes: Axes) -> None:
    """Light grid, no box."""
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log2_ticks(axes: Axes, values) -> None:
    """A horizontal axis of powers of two, labelled with the values."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(values), [f"{value:,}" for value in values])
    axes.minorticks_off()
