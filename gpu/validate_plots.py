"""Plots of a validation: predicted versus measured, latency versus n_k, roofline. Colours of Okabe and Ito (2008)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .validate_cells import METHODS, D, H
from .validate_judge import TIME_MEAN, TIME_WORST

COLOURS = dict(zip(METHODS, ("#000000", "#D55E00", "#999999", "#56B4E9", "#0072B2", "#E69F00", "#009E73", "#CC79A7")))
MARKERS = dict(zip(METHODS, ("P", "v", "x", "^", "o", "s", "D", "*")))
HOLLOW = ("s2anta-prop-systematic",)  # drawn around s2anta-sys, whose kernel it shares
PEER_COLOUR = "#666666"


def draw(result: dict, folder: Path) -> list[str]:
    """Write the plots; their file names."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    written = []
    for name, figure in (("predicted_vs_measured", predicted_vs_measured(result)), ("latency_vs_n_k", latency(result)), ("roofline", roofline(result))):
        if figure is not None:
            figure.savefig(folder / f"{name}.png", dpi=130)
            written.append(f"{name}.png")
    return written


def _figure(columns: int = 1, width: float = 7.0):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.8), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _style(method: str) -> dict:
    """Marker arguments of a method."""
    face = "none" if method in HOLLOW else COLOURS[method]
    return {"marker": MARKERS[method], "markerfacecolor": face, "markeredgecolor": COLOURS[method], "markersize": 9 if method in HOLLOW else 6, "linestyle": ""}


def _log_ticks(axes, which: str) -> None:
    """Plain numbers 1, 2 and 5 times powers of ten on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = getattr(axes, which + "axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _methods(rows: Sequence[dict]) -> list[str]:
    present = {row["method"] for row in rows}
    return [name for name in METHODS if name in present]


def predicted_vs_measured(result: dict):
    """Predicted against measured time of every cell, and the error of each."""
    rows = result["time"]
    if not rows:
        return None
    figure, (left, right) = _figure(2, 11.0)
    for method in _methods(rows):
        mine = [row for row in rows if row["method"] == method]
        for axes, y in ((left, [row["graph"]["predicted_s"] * 1e6 for row in mine]), (right, [100 * row["graph"]["error"] for row in mine])):
            axes.plot([row["graph"]["measured_s"] * 1e6 for row in mine], y, label=method, zorder=3, **_style(method))
    ends = [min(row["graph"]["measured_s"] for row in rows) * 0.8e6, max(row["graph"]["measured_s"] for row in rows) * 1.25e6]
    left.plot(ends, ends, color="black", linewidth=1)
    for share, style in ((TIME_MEAN, "--"), (TIME_WORST, ":")):
        for sign in (1, -1):
            left.plot(ends, [x * (1 + sign * share) for x in ends], color="grey", linewidth=0.8, linestyle=style)
            right.axhline(100 * sign * share, color="grey", linewidth=0.8, linestyle=style)
    right.axhline(0, color="black", linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="measured time [µs]", ylabel="predicted time [µs]", title="Predicted and measured, graph replay")
    right.set(xscale="log", xlabel="measured time [µs]", ylabel="predicted / measured − 1 [%]",
              title=f"Error; dashed ±{100 * TIME_MEAN:.0f} %, dotted ±{100 * TIME_WORST:.0f} %")  # fmt: skip
    left.legend(fontsize=8)
    _log_ticks(left, "y")
    for axes in (left, right):
        _log_ticks(axes, "x")
        axes.grid(True, which="major", alpha=0.3)
    return figure


def latency(result: dict):
    """Measured (markers) and predicted (lines) time against n_k, the smallest S of each method, a panel per batch."""
    rows, peers = result["time"], [peer for peer in result["raw"].get("peers", []) if "graph" in peer]
    if not rows:
        return None
    precision = sorted({row["precision"] for row in rows})[0]
    batches = sorted({row["batch"] for row in rows})
    figure, panels = _figure(len(batches), 2.2 + 4.6 * len(batches))
    for axes, batch in zip(panels, batches):
        for method in _methods(rows):
            mine = [row for row in rows if (row["method"], row["batch"], row["precision"]) == (method, batch, precision)]
            mine = sorted((row for row in mine if row["S"] == min(x["S"] for x in mine)), key=lambda row: row["n_k"])
            if mine:
                x = [row["n_k"] for row in mine]
                axes.plot(x, [row["graph"]["predicted_s"] * 1e6 for row in mine], color=COLOURS[method], linewidth=1.2)
                budget = {"sdpa": "", "topk": f", k = {mine[0]['S']}"}.get(method, f", S = {mine[0]['S']}")
                axes.plot(x, [row["graph"]["measured_s"] * 1e6 for row in mine], label=method + budget, zorder=3, **_style(method))
        for name, style in (("SDPA cuDNN", "--"), ("SDPA flash", ":"), ("FlashInfer, tensor cores", "-.")):
            theirs = sorted((p for p in peers if (p["name"], p["batch"], p["precision"]) == (name, batch, precision)), key=lambda p: p["n_k"])
            if theirs:
                axes.plot([p["n_k"] for p in theirs], [p["graph"]["median_s"] * 1e6 for p in theirs], style, color=PEER_COLOUR, label=f"{name} (measured)")
        axes.set(xscale="log", yscale="log", xlabel="n_k, keys per sequence", ylabel="time of a decode step [µs]", title=f"batch {batch}, {precision}")
        axes.set_xscale("log", base=2)
        ticks = sorted({row["n_k"] for row in rows if row["batch"] == batch})
        axes.set_xticks(ticks, [f"{n // 1024}k" if n % 1024 == 0 else f"{n}" for n in ticks])
        axes.minorticks_off()
        _log_ticks(axes, "y")
        axes.grid(True, which="major", alpha=0.3)
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside right upper", fontsize=8, title="markers: measured\nsolid lines: predicted", title_fontsize=8)
    return figure


def roofline(result: dict):
    """Arithmetic against operational intensity: products and sums of scores and values, over predicted DRAM bytes."""
    rows, machine = result["time"], result["machine"]
    if not rows:
        return None
    by_name = {record["name"]: record for record in result["predicted"]}
    figure, (axes,) = _figure()
    xs = []
    for method in _methods(rows):
        points = []
        for row in (row for row in rows if row["method"] == method):
            size = sum(launch["dram_read_bytes"] + launch["dram_write_bytes"] for launch in by_name[row["name"]]["bytes"]["none"])
            values = 2 * row["n_k"] * D if method == "sdpa" else (2 if method == "topk" else 1) * row["S"] * D
            flops = row["batch"] * H * (2 * row["n_k"] * D + values)
            points.append((flops / size, flops / row["graph"]["measured_s"] / 1e12))
        xs += [x for x, _ in points]
        axes.plot(*zip(*points), label=method, zorder=3, **_style(method))
    sm, calibration = machine["multiprocessors"], machine["calibration"]
    peak = machine["memory"]["bandwidth_bytes_per_s"]
    curve = calibration["read_dirty"] or calibration["read"]
    sustained = max(size / seconds for size, seconds in zip(curve["bytes"], curve["seconds"]))
    tensor = sm["count"] * sm["tensor_flops_per_cycle"] * calibration["clock_hz"]
    span = [min(xs) * 0.5, max(xs) * 2]
    axes.plot(span, [min(x * peak, tensor) / 1e12 for x in span], color="black", linewidth=1.2, label=f"peak DRAM bandwidth, {peak / 1e12:.2f} TB/s")
    axes.plot(span, [min(x * sustained, tensor) / 1e12 for x in span], color="black", linewidth=1, linestyle="--",
              label=f"read of 2 GB, measured, {sustained / 1e12:.2f} TB/s")  # fmt: skip
    note = f"tensor cores: {tensor / 1e12:.0f} TFLOP/s, from {tensor / peak:.0f} FLOP/B on (beyond this plot)" if tensor / peak > span[1] else None
    axes.set(xscale="log", yscale="log", xlabel="operational intensity [FLOP per DRAM byte]", ylabel="products and sums [TFLOP/s]",
             title="Roofline, measured time" + (f"\n{note}" if note else ""))  # fmt: skip
    ticks = [x for x in (0.5, 1, 2, 4, 8, 16, 32, 64) if span[0] <= x <= span[1]]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    _log_ticks(axes, "y")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    return figure
