"""Coverage of the vector Bernstein bound of Theorem B.1: the kernel draws many independent SANTA estimates, and counts how often
|estimate - mean| passes sqrt(2 v log(2/delta) / S) + 2 V_max log(2/delta) / (3 S), with v = tr(Sigma) and V_max = max |V_j - mean|
of the head itself. It must do so no more often than delta: on captured heads, and on two keys with values +1 and -1, where norm
and dimension leave the bound least room. The bound divided by three must fail, which shows that the check can."""

from __future__ import annotations

import functools
import math

import numpy as np
from matplotlib.figure import Figure

from ..analysis.quality import variance_trace
from .confidence import stream
from .draws import Head, captured_heads, estimates
from .items import Progress
from .plotting import COLOURS, MARKERS, dress
from .rows import Found, Row
from .unbiased import HEADS

ITEM = "theorem-b1"
DELTAS = (0.5, 0.1, 0.01, 0.001)
BUDGETS = (4, 64)
TIGHTENED = 3.0


def bernstein_bound(head: Head, S: int, delta: float) -> float:
    """The distance that |estimate - mean| passes with probability at most delta (Theorem B.1)."""
    v = variance_trace("santa", head.p, head.v, 1)
    v_max = float(np.linalg.norm(head.v - head.mean, axis=1).max())
    return math.sqrt(2 * v * math.log(2 / delta) / S) + 2 * v_max * math.log(2 / delta) / (3 * S)


def two_keys() -> Head:
    """Two keys of equal weight with the values +1 and -1: the scalar walk."""
    v = np.array([[1.0], [-1.0]], np.float32)
    return Head("two keys, +1 and -1", np.zeros(1, np.float32), np.zeros((2, 1), np.float32), v, np.array([0.5, 0.5]), np.zeros(1))


def distances(head: Head, S: int, count: int, seed: int, method: str = "santa") -> np.ndarray:
    """|estimate - mean| of `count` independent estimates by the kernel, float64 [count]."""
    return np.linalg.norm(estimates(head, method, S, count, seed) - head.mean, axis=1)


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    count = 4096 if fast else 16384
    heads = [*captured_heads(HEADS), two_keys()]
    found = {}
    for i, head in enumerate(heads):
        for S in BUDGETS:
            progress(f"{head.name}, S = {S}", len(found), len(heads) * len(BUDGETS))
            # 4,096 at a time: a call keeps count x n_k exponentials
            found[i, S] = np.concatenate([distances(head, S, 4096, stream(seed, 7, i, S, part)) for part in range(count // 4096)])

    def share(delta: float, S: int, divisor: float = 1.0) -> float:
        """Largest share of estimates beyond the bound over divisor, over the heads."""
        return max(float((found[i, S] > bernstein_bound(head, S, delta) / divisor).mean()) for i, head in enumerate(heads))

    statistics = {"heads": len(heads), "estimates_per_head": count, "seed": seed}
    rows = [Row(ITEM, f"share of estimates beyond the bound, delta = {delta:g}, S = {S}, worst head", share(delta, S), expected=delta, tolerance=0,
                bound="<=", statistics=statistics) for S in BUDGETS for delta in DELTAS]  # fmt: skip
    rows += [Row(ITEM, f"share beyond the bound over {TIGHTENED:g}, delta = {delta:g}, S = 64, worst head", share(delta, 64, TIGHTENED), expected=delta,
                 tolerance=0, bound=">=", note="too tight on purpose: must be passed more often than delta", statistics=statistics)
             for delta in DELTAS]  # fmt: skip
    rows += [Row(ITEM, f"bound over the distance passed with probability delta, delta = {delta:g}, S = 64, least of the heads",
                 min(bernstein_bound(head, 64, delta) / float(np.quantile(found[i, 64], 1 - delta)) for i, head in enumerate(heads)),
                 note="how much room the bound leaves", statistics=statistics) for delta in (0.1, 0.01)]  # fmt: skip
    return Found(tuple(rows), {"coverage": functools.partial(plot, heads, found)})


def plot(heads: list[Head], found: dict[tuple[int, int], np.ndarray]) -> Figure:
    """Share of estimates beyond the bound against delta, per head: all below the diagonal."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    dress(axes)
    deltas = np.logspace(-3, 0, 25)
    for i, head in enumerate(heads):
        beyond = [(found[i, 64] > bernstein_bound(head, 64, delta)).mean() for delta in deltas]
        axes.plot(deltas, beyond, color=COLOURS[1 + i], marker=MARKERS[i], markersize=4, label=head.name)
    axes.plot(deltas, deltas, color=COLOURS[0], linestyle="--", label="delta: the bound's promise")
    axes.set(xscale="log", xlabel="delta", ylabel="share of estimates beyond the bound", title="Theorem B.1: coverage at S = 64")
    axes.set_yscale("symlog", linthresh=1e-4)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")
    return figure
