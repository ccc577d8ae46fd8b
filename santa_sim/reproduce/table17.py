"""Unique keys of one decode step with S draws. For one distribution p they are sums over keys of 1 - (1 - p)^S for
independent draws and of min(1, S p) for systematic ones, so that everything that an average over heads, layers and prompts
can give is a mixture of keys with masses p.

The paper's three rows can't come from one distribution. Systematic over independent is at most 1 / (1 - 1/e) = 1.582; the
table has 61.6 / 38.3 = 1.608 at S = 256. The whole systematic row says more: the chords of the concave 1 - (1 - p)^S between
the masses 0, 1/256, 1/128, 1/64, 1/32 and 1 lie below it and are sums of min(1, S p) at the row's four S and of p, so the
row gives a floor of the independent count, which three of the four published ones lie below. In the paper each sampler also
ran the prefill that it was measured on, which we take to be the cause (our inference): three samplers, three sets of hidden
states.

Our sink and Zipf workload was fitted to the systematic row. It meets the stratified one; its independent row overshoots the
paper's. The floor says that it must, but not by how much: its notes tell which part of the excess the floor accounts for. A
row is 'explained' only if the published independent row is infeasible, our systematic entry at that S is within tolerance,
and ours isn't below the floor.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..analysis.closed_forms import expected_unique_rows
from .heads import CAPTURED, CAPTURED_NOTE, Heads, five_errors, heads_of, repeated, unique_rows
from .items import Progress, published
from .rows import Found, Row

ITEM = "table17"
WORKLOAD = "llama8b_decode_8k"
METHODS = ("santa", "s2anta-strat", "s2anta-sys")
TOLERANCE = 0.02  # of the published number
ROUNDING = 0.05  # of a published number: it has one decimal
LARGEST_RATIO = 1 / (1 - np.exp(-1))  # of systematic over independent, for one distribution


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    table = published()[ITEM]
    layers = {"workload": heads_of(WORKLOAD, seed), "captured": heads_of(CAPTURED)}
    times = 4 if fast else 12
    closed = {name: closed_forms(of_name, table["S"], lambda done, total: progress("closed forms", done, total))
              for name, of_name in layers.items()}  # fmt: skip
    rows = [*_against_paper(table, closed["workload"]), *_floor(table)]
    for name, of_name in layers.items():
        step = lambda done, total, name=name: progress(f"draws, {name}", done, total)  # noqa: E731
        runs = times if name == "workload" else 3 * times
        rows += _draws(name, of_name, table["S"], closed[name], runs, seed, step)
        rows += _ratios(name, table["S"], closed[name])
    return Found(tuple(rows), {"unique_keys": lambda: _plot(table, closed)})


def closed_forms(layers: list[Heads], budgets: list[int], step) -> dict[str, np.ndarray]:
    """Expected unique keys, float [S, layers, heads] by method."""
    found = {}
    for done, method in enumerate(METHODS):
        step(done, len(METHODS))
        found[method] = np.array([[[expected_unique_rows(p, S, method) for p in of.p] for of in layers] for S in budgets])
    return found


def iid_floor(systematic: dict[int, float], S: int) -> float:
    """Least expected number of unique keys of S independent draws, given the systematic counts at some budgets.

    1 - (1 - p)^S is concave in p: between the masses 0, 1/S_1 < 1/S_2 ... and 1 it lies above its chords, and the chords are
    a sum of c_i min(1, S_i p) and c p, whose means are the given counts and 1 (the masses add up to 1). A mixture of keys
    with just these masses reaches the floor.
    """
    budgets = np.array(sorted(systematic, reverse=True))
    masses = np.concatenate((1 / budgets, [1.0]))
    basis = np.vstack((np.minimum(1, budgets[:, None] * masses), masses))
    coefficients = np.linalg.solve(basis.T, 1 - (1 - masses) ** S)
    return float(coefficients @ np.array([*(systematic[budget] for budget in budgets), 1.0]))


def _against_paper(table: dict, closed: dict[str, np.ndarray]):
    floors = floors_of(table)
    deepest = max(range(len(floors)), key=lambda place: floors[place] - table["santa"][place])
    infeasible = ("a published independent count below the floor", table["santa"][deepest] + ROUNDING, floors[deepest])
    note = f"closed form on {WORKLOAD}, mean of {closed['santa'].shape[-1]} heads; sink and Zipf masses fitted to the systematic row"
    for method in METHODS:
        for place, S in enumerate(table["S"]):
            value, ours, told, conditions = table[method][place], float(closed[method][place].mean()), note, ()
            if method == "santa":
                systematic, theirs, floor = float(closed["s2anta-sys"][place].mean()), table["s2anta-sys"][place], floors[place]
                conditions = (infeasible, ("our systematic entry's distance", abs(systematic - theirs), TOLERANCE * theirs), ("the floor", floor, ours))
                told = (f"S = {S}: ours is {ours - value:.1f} keys above the published count; the floor of {floor:.1f} accounts for "
                        f"{max(0.0, floor - value):.1f} of them, the rest is of our distribution, which the systematic row leaves open")  # fmt: skip
            yield Row(ITEM, f"{method}, S = {S}", ours, value, tolerance=TOLERANCE * value, unit="keys", note=told, explained_if=conditions)


def floors_of(table: dict) -> list[float]:
    """Floor of the independent count at each S, given the published systematic row less its rounding."""
    kindest = {S: systematic - ROUNDING for S, systematic in zip(table["S"], table["s2anta-sys"])}
    return [iid_floor(kindest, S) for S in table["S"]]


def _floor(table: dict):
    pairs = list(zip(table["S"], table["santa"], table["s2anta-sys"]))
    note = "least independent count of any distribution, or mixture of them, with the published systematic row, less its rounding"
    below = 0
    for (S, independent, _), floor in zip(pairs, floors_of(table)):
        below += independent + ROUNDING < floor
        yield Row(ITEM, f"floor of santa, S = {S}", floor, independent, unit="keys", note=note)
    yield Row(ITEM, "published santa entries below the floor", below, expected=1, tolerance=0, bound=">=", unit=f"of {len(pairs)}",
              note="one is enough: no single distribution gives the three rows")  # fmt: skip
    S, independent, systematic = pairs[-1]
    masses = np.geomspace(1e-9, 1, 200_001)
    largest = float((np.minimum(1, S * masses) / -np.expm1(S * np.log1p(-np.minimum(masses, 1 - 1e-16)))).max())
    yield Row(ITEM, f"largest systematic / santa of one distribution, S = {S}", largest, systematic / independent,
              expected=(systematic - ROUNDING) / (independent + ROUNDING), tolerance=0, bound="<=",
              note="within: the published ratio, rounded as kindly as can be, is larger than any distribution's")  # fmt: skip


def _draws(name: str, layers: list[Heads], budgets: list[int], closed: dict[str, np.ndarray], times: int, seed: int, step):
    """The kernels' own draws against the closed forms of the same weights."""
    for done, method in enumerate(METHODS):
        step(done, len(METHODS))
        for place, S in enumerate(budgets):
            differences = []
            for layer, heads in enumerate(layers):
                counts = unique_rows(repeated(heads, method, times, seed + layer, S=S)[1], times)
                group = heads.q.shape[0] // heads.k.shape[1]
                expected = closed[method][place, layer].reshape(-1, group).mean(axis=1)
                differences.append(counts / group - expected)
            differences, mean = np.concatenate(differences, axis=1), float(closed[method][place].mean())
            statistics = {"runs": times, "heads": closed[method][place].size, **five_errors(differences)}
            yield Row(ITEM, f"{name}, drawn by {method}, S = {S}", mean + differences.mean(), expected=mean, unit="keys",
                      tolerance=5 * statistics["standard_error"], statistics=statistics,
                      note=f"the closed form of the same weights; {'bfloat16, 8,192 keys' if name == 'workload' else CAPTURED_NOTE}")  # fmt: skip


def _ratios(name: str, budgets: list[int], closed: dict[str, np.ndarray]):
    for place, S in enumerate(budgets):
        ratio = float((closed["s2anta-sys"][place] / closed["santa"][place]).max())
        yield Row(ITEM, f"{name}, systematic / santa, S = {S}", ratio, expected=float(LARGEST_RATIO), tolerance=0, bound="<=",
                  note="the largest of its heads")  # fmt: skip


def _plot(table: dict, closed: dict[str, dict[str, np.ndarray]]) -> Figure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, method in enumerate(METHODS):
        color = ("#0072B2", "#E69F00", "#009E73")[number]
        axes.plot(table["S"], table[method], "o", color=color, label=f"{method}, published")
        for name, style in (("workload", "-"), ("captured", ":")):
            axes.plot(table["S"], closed[name][method].mean(axis=(1, 2)), style, color=color, label=f"{method}, {name}")
    axes.plot(table["S"], [iid_floor(dict(zip(table["S"], table["s2anta-sys"])), S) for S in table["S"]], "k--", lw=1,
              label="floor of santa, given\nthe systematic row")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="S, samples per query and head", ylabel="unique keys per head", title="Table 17")
    axes.set_xticks(table["S"], [str(S) for S in table["S"]])
    axes.minorticks_off()
    axes.set_yticks([10, 20, 30, 40, 60, 80], ["10", "20", "30", "40", "60", "80"])
    axes.legend(fontsize=7)
    return figure
