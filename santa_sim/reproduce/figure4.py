"""Kernel times of one decode step on an RTX 6000 Ada (Llama-8B shapes, batch 1, bfloat16, Gaussian inputs, L2 full of dirty data,
kernels started on a stream, as in Appendix Q), predicted by the GPU timing model without any measurement of this card or of
these kernels: the authors' prop (S = 128) and flash (S = 2,048), and dense attention split over keys in the place of
FlashInfer. The paper gives two speedups in its text; the times of its plot are not in it as numbers. Tolerance: 20 % of a speedup."""

from __future__ import annotations

import functools

import pandas as pd
from matplotlib.figure import Figure

from ..simulator.gpu import paper_figure4
from .items import Progress, published
from .plotting import COLOURS, MARKERS, dress, log2_ticks
from .rows import Found, Row

ITEM = "figure4"
LENGTHS = (4096, 8192, 16384, 32768)
NAMES = {"dense": "dense, split over keys", "s2anta-prop": "s2anta-prop, S = 128", "s2anta-flash": "s2anta-flash, S = 2,048"}
PUBLISHED = {"s2anta-prop": "s2anta-prop_S128", "s2anta-flash": "s2anta-flash_S2048"}
TOLERANCE = 0.2


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    frame = paper_figure4(LENGTHS)
    at = frame.set_index(["kernel", "n_k"])
    longest = LENGTHS[-1]
    rows = []
    for kernel, key in PUBLISHED.items():
        value, found = published()[ITEM][key], at.loc[kernel, longest]
        rows.append(Row(ITEM, f"{NAMES[kernel]}: speedup over dense at {longest:,} keys", float(found["speedup"]), value, tolerance=TOLERANCE * value,
                        note=f"{found['launches']} launches, the longest ({found['longest']}) bound by {found['bound_by']}"))  # fmt: skip
    for n_k in LENGTHS[:-1]:
        rows += [Row(ITEM, f"{NAMES[kernel]}: speedup over dense at {n_k:,} keys", float(at.loc[kernel, n_k]["speedup"]),
                     note="below 1 the launches and the waiting inside them cost more than the rows of V that aren't read save") for kernel in PUBLISHED]  # fmt: skip
    rows += [Row(ITEM, f"{NAMES[kernel]}: kernel time at {n_k:,} keys", 1e6 * float(at.loc[kernel, n_k]["time_s"]), unit="us")
             for n_k in LENGTHS for kernel in NAMES]  # fmt: skip
    return Found(tuple(rows), {"times": functools.partial(plot, frame)})


def plot(frame: pd.DataFrame) -> Figure:
    """Predicted time against keys, and speedup over dense with the paper's two numbers."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    times, speedups = figure.subplots(1, 2)
    for i, (kernel, name) in enumerate(NAMES.items()):
        part = frame[frame["kernel"] == kernel]
        style = {"color": COLOURS[i], "marker": MARKERS[i], "label": name}
        times.plot(part["n_k"], 1e6 * part["time_s"], **style)
        speedups.plot(part["n_k"], part["speedup"], **style, linestyle="--" if kernel == "dense" else "-")
        if kernel in PUBLISHED:
            # beside the curves' last points and each other, which they would cover
            speedups.plot([LENGTHS[-1] * 2 ** (0.16 * (i + 0.5))], [published()[ITEM][PUBLISHED[kernel]]], marker="*", markersize=11, linestyle="",
                          markerfacecolor="none", markeredgecolor=COLOURS[i], label=f"published at {LENGTHS[-1]:,}, {kernel}")  # fmt: skip
    for axes, what in ((times, "kernel time [µs]"), (speedups, "speedup over dense")):
        dress(axes)
        log2_ticks(axes, LENGTHS)
        axes.set(xlabel="keys, n_k", ylabel=what)
        axes.set_ylim(bottom=0)
    times.legend(frameon=False, fontsize="small")
    speedups.legend(frameon=False, fontsize="x-small")
    figure.suptitle("Figure 4, predicted: RTX 6000 Ada", fontsize="medium")
    return figure
