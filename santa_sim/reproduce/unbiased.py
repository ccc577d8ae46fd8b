"""Propositions A.2 and A.4 as statistics: thousands of independent estimates by the kernel, all components of their mean
against the exact output, on captured heads of SmolLM2-135M (n_k = 2,048, d = 64, 32 tiles) with S = 64. One row per sampler;
its number is the largest |z| over heads and components. Largest-remainder budgets are fixed by the scores, so that their bias
has a closed form: sum over tiles of budget / S times the tile's mean value, less the exact output; the kernel's mean is tested
against that, and must fail the test against the exact output. Variances at equal S give flash's sample waste."""

from __future__ import annotations

import functools
import math

import numpy as np
from matplotlib.figure import Figure

from ..analysis.quality import variance_trace
from ..methods.spec import Spec
from .confidence import largest_z, stream, z_limit
from .draws import Head, captured_heads, captured_layers, estimates, one_head
from .heads import heads_of
from .items import Progress
from .plotting import COLOURS, MARKERS, dress, log2_ticks
from .rows import Found, Row

ITEM = "unbiased"
# (index among the captured layers, query head): diffuse, local, sink, needle; 1 / sum p^2 = 100, 37, 6 and 4.5 keys
HEADS = ((0, 4), (1, 4), (2, 1), (3, 4))
SAMPLES = 64
SYSTEMATIC = {"allocation": "systematic"}
SAMPLERS = {
    "santa": ("santa", {}),
    "s2anta-strat": ("s2anta-strat", {}),
    "s2anta-sys": ("s2anta-sys", {}),
    "s2anta-flash": ("s2anta-flash", {}),
    "s2anta-prop, systematic": ("s2anta-prop", SYSTEMATIC),
}
ROUNDING = 1e-6  # of a float32 output, relative to the exact one's norm
WASTE_BUDGETS = (32, 64, 128, 256, 512)  # multiples of the 32 tiles
BIAS_BUDGETS = (16, 32, 64, 128, 256, 512)


def largest_remainder_output(p: np.ndarray, v: np.ndarray, S: int, tile: int) -> np.ndarray:
    """What prop with largest-remainder budgets (Algorithm 4) gives on average, float64 [d], by its definition.

    p : float64 [n_k], attention weights;  v : [n_k, d]
    """
    T = -(-len(p) // tile)
    edges = np.arange(T) * tile
    mass = np.add.reduceat(p, edges)
    budgets = np.floor(S * mass)
    order = np.lexsort((np.arange(T), -(S * mass - budgets)))
    budgets[order[: S - int(budgets.sum())]] += 1
    means = np.add.reduceat(p[:, None] * v, edges, axis=0)
    held = mass > 0
    return ((budgets[held] / S / mass[held])[:, None] * means[held]).sum(axis=0)


def mean_square(samples: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Mean of |estimate - exact|^2 and its standard error."""
    squares = np.square(samples - exact).sum(axis=1)
    return float(squares.mean()), float(squares.std(ddof=1)) / math.sqrt(len(squares))


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    count = 2048 if fast else 8192
    heads = captured_heads(HEADS)
    tests = sum(len(head.mean) for head in heads)
    statistics = {"heads": len(heads), "estimates_per_head": count, "tests": tests, "seed": seed, "familywise_level": 1e-4}
    rows, steps = [], len(SAMPLERS) + 2
    for number, (name, (method, options)) in enumerate(SAMPLERS.items()):
        progress(name, number, steps)
        worst, relative = 0.0, 0.0
        for i, head in enumerate(heads):
            made = estimates(head, method, SAMPLES, count, stream(seed, 2, number, i), **options)
            size = float(np.linalg.norm(head.mean))
            worst = max(worst, largest_z(made, head.mean, ROUNDING * size))
            relative = max(relative, float(np.linalg.norm(made.std(axis=0))) / math.sqrt(count) / size)
        rows.append(Row(ITEM, f"{name}: worst |z| of the mean", worst, expected=z_limit(tests), tolerance=0, bound="<=", unit="standard errors",
                        statistics={**statistics, "standard_error_of_output": f"{100 * relative:.2g} % at most"}))  # fmt: skip
    progress("largest remainder", steps - 2, steps)
    rows += _largest_remainder(heads, count, seed, statistics)
    progress("sample waste", steps - 1, steps)
    waste = [_waste(heads, S, count // 4, seed) for S in WASTE_BUDGETS]
    rows += [row for found in waste for row in found[0]] + _waste_long(seed, fast)
    bias = bias_over_heads()
    rows += [Row(ITEM, f"bias of largest remainder, S = {S}, of the output", 100 * math.sqrt(bias[S][0]), unit="%",
                 note="root mean square over all 36 captured heads, closed form, relative to the norm of the exact output")
             for S in (32, 64, 128)]  # fmt: skip
    return Found(tuple(rows), {"waste": functools.partial(plot_waste, [found[1] for found in waste]), "bias": functools.partial(plot_bias, bias)})


def _largest_remainder(heads: list[Head], count: int, seed: int, statistics: dict) -> list[Row]:
    """The kernel's mean against the exact output (must fail) and against the closed form of its bias (must pass)."""
    against_exact, against_closed, squares = [], [], []
    for i, head in enumerate(heads):
        made = estimates(head, "s2anta-prop", SAMPLES, count, stream(seed, 3, i))
        tile = Spec(method="s2anta-prop", samples=SAMPLES).tile_for(len(head.p))
        rounding = ROUNDING * float(np.linalg.norm(head.mean))
        against_exact.append(largest_z(made, head.mean, rounding))
        closed = largest_remainder_output(head.p, head.v, SAMPLES, tile)
        against_closed.append(largest_z(made, closed, rounding))
        other = estimates(head, "s2anta-prop", SAMPLES, count // 2, stream(seed, 8, i), **SYSTEMATIC)
        size = float(head.mean @ head.mean)
        squares.append([mean_square(made, head.mean)[0] / size, mean_square(other, head.mean)[0] / size, float(np.square(closed - head.mean).sum()) / size])
    limit = z_limit(statistics["tests"])
    of_largest, of_systematic, of_bias = np.mean(squares, axis=0)
    return [
        Row(ITEM, "s2anta-prop, largest remainder: worst |z| of the mean", max(against_exact), expected=limit, tolerance=0, bound=">=",
            unit="standard errors", note="biased: must be beyond the limit, which shows that the check can fail", statistics=statistics),
        Row(ITEM, "s2anta-prop, largest remainder: worst |z| against its closed form", max(against_closed), expected=limit, tolerance=0, bound="<=",
            unit="standard errors", statistics=statistics),
        Row(ITEM, "s2anta-prop: mean square error of largest remainder over that of systematic budgets, S = 64", float(of_largest / of_systematic),
            note="of one step: the bias is a small part of the error, but doesn't average out over steps, heads and layers", statistics=statistics),
        Row(ITEM, "s2anta-prop, largest remainder: part of its mean square error that is bias, S = 64", 100 * float(of_bias / of_largest), unit="%",
            statistics=statistics),
    ]  # fmt: skip


def _waste(heads: list[Head], S: int, count: int, seed: int) -> tuple[list[Row], dict]:
    """Flash's variance over prop's (systematic) at equal S, as the mean over heads of their relative mean squares."""
    sums = dict.fromkeys(("s2anta-flash", "s2anta-prop, systematic", "santa"), 0.0)
    errors = dict.fromkeys(sums, 0.0)
    for i, head in enumerate(heads):
        size = float(head.mean @ head.mean)
        for number, name in enumerate(("s2anta-flash", "s2anta-prop, systematic")):
            method, options = SAMPLERS[name]
            value, error = mean_square(estimates(head, method, S, count, stream(seed, 4, S, number, i), **options), head.mean)
            sums[name] += value / size / len(heads)
            errors[name] += (error / size / len(heads)) ** 2
        sums["santa"] += variance_trace("santa", head.p, head.v, S) / size / len(heads)
    flash, prop = sums["s2anta-flash"], sums["s2anta-prop, systematic"]
    ratio = flash / prop
    spread = ratio * math.sqrt(errors["s2anta-flash"] / flash**2 + errors["s2anta-prop, systematic"] / prop**2)
    row = Row(ITEM, f"sample waste: flash's variance over prop's, S = {S}", ratio, expected=1.0, tolerance=0, bound=">=",
              note="flash spends S / T samples on every tile, also on those that hold no mass",
              statistics={"heads": len(heads), "estimates_per_head": count, "seed": seed, "standard_error": spread})  # fmt: skip
    return [row], {"S": S, **sums}


def _waste_long(seed: int, fast: bool) -> list[Row]:
    """At 32,768 keys, sink and Zipf attention: prop at S = 128 against flash, and the bias of largest remainder there."""
    layer = heads_of("llama8b_decode_32k", seed)[0]
    wanted = range(0, 8 if fast else 32, 4)  # the first query head of 2 or 8 KV heads
    count = 128
    cases = (("s2anta-prop, systematic", 128), ("s2anta-flash", 128), ("s2anta-flash", 2048))
    squares, biases = np.zeros((len(wanted), len(cases))), []
    for i, h in enumerate(wanted):
        head = one_head(layer, h)
        size = float(head.mean @ head.mean)
        for number, (name, S) in enumerate(cases):
            method, options = SAMPLERS[name]
            squares[i, number] = mean_square(estimates(head, method, S, count, stream(seed, 5, number, i), **options), head.mean)[0] / size
        bias = largest_remainder_output(head.p, head.v, 128, 256) - head.mean
        biases.append(float(bias @ bias) / size)
    prop, *flash = squares.mean(axis=0)
    statistics = {"heads": len(wanted), "estimates_per_head": count, "seed": seed}
    note = "llama8b_decode_32k: half of the mass on one key, the rest a Zipf tail at random places; heads differ by a factor of several"
    rows = [Row(ITEM, f"sample waste at 32,768 keys: variance of flash, S = {S:,}, over prop's, S = 128", value / prop, note=note, statistics=statistics)
            for (_, S), value in zip(cases[1:], flash)]  # fmt: skip
    rows.append(Row(ITEM, "bias of largest remainder at 32,768 keys, S = 128, of the output", 100 * math.sqrt(np.mean(biases)), unit="%",
                    note="closed form: of 128 tiles the sink's takes half of the budget, and of the others, with about half a sample each, "
                    "half get one and the rest are never read", statistics={"heads": len(wanted), "seed": seed}))  # fmt: skip
    return rows


@functools.cache
def bias_over_heads() -> dict[int, tuple[float, float, float]]:
    """S: mean over all captured heads of bias^2 of largest remainder, and of the variances of santa and s2anta-strat, over |exact|^2."""
    heads = [one_head(layer, h) for layer in captured_layers() for h in range(len(layer.q))]
    found = {}
    for S in BIAS_BUDGETS:
        parts = []
        for head in heads:
            bias = largest_remainder_output(head.p, head.v, S, 64) - head.mean
            parts.append(np.array([bias @ bias, *(variance_trace(m, head.p, head.v, S) for m in ("santa", "s2anta-strat"))]) / (head.mean @ head.mean))
        found[S] = tuple(float(x) for x in np.mean(parts, axis=0))
    return found


def _figure(title: str) -> tuple[Figure, object]:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    dress(axes)
    axes.set(xlabel="samples per query and head, S", title=title)
    axes.set_yscale("log")
    return figure, axes


def plot_waste(found: list[dict]) -> Figure:
    """Relative mean square error against S of flash, santa and prop."""
    figure, axes = _figure("Sample waste: flash spends S / T on every tile")
    for i, name in enumerate(("s2anta-flash", "santa", "s2anta-prop, systematic")):
        axes.plot([each["S"] for each in found], [each[name] for each in found], color=COLOURS[1 + i], marker=MARKERS[i], label=name)
    log2_ticks(axes, [each["S"] for each in found])
    axes.set_ylabel("E |error|² / |output|²")
    axes.legend(frameon=False, fontsize="small")
    return figure


def plot_bias(found: dict[int, tuple[float, float, float]]) -> Figure:
    """Bias of largest remainder beside standard deviations, relative to the output, against S."""
    figure, axes = _figure("Largest-remainder budgets: the bias no averaging removes")
    for i, name in enumerate(("bias, largest remainder", "spread, santa", "spread, s2anta-strat")):
        axes.plot(list(found), [100 * math.sqrt(each[i]) for each in found.values()], color=COLOURS[1 + i], marker=MARKERS[i],
                  linestyle="-" if i == 0 else "--", label=name)  # fmt: skip
    log2_ticks(axes, list(found))
    axes.set_ylabel("root mean square, of the output [%]")
    axes.legend(frameon=False, fontsize="small")
    return figure
