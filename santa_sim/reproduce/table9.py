"""Rows of V that at least one query of a causal prefill draws, n_q = n_k, Gaussian Q and K in float16, d = 128, as many KV
heads as heads. Given the weights, key j is missed with probability prod_i (1 - p_ij)^S, so that a head's mean of
1 - prod_i (1 - p_ij)^S is the expected coverage without drawing anything; it scatters little over heads, which are all
alike, so a few of them are as good as the paper's 10 trials of 32. Beside it, the kernel's own draws on some of these heads,
against the expected coverage of the same heads, and the number of queries' draws of their own key, which is the last one that
the causal mask lets them see, against the sum of S p_ii: a V of unit vectors shows them in the output.

In closed form, coverage is S/(S+1) - S^2/(S+1)^3 / (2d) + 1/(2n) to first order: the first term is that of equal weights
(row j is missed by the product over i >= j of (1 - 1/i)^S = ((j-1)/n)^S), the last its finite n, and the middle one is the
variance of the weights, whose logits q.k/sqrt(d) have variance |q|^2/d, about 1.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..attention import attention
from ..jit import parallel_map
from .confidence import stream, z_limit
from .items import Progress, published
from .rows import Found, Row

ITEM = "table9"
D = 128
BUDGETS = np.array([1, 4, 8, 16])
TOLERANCE = 0.15  # percentage points
HEADS = {1024: 40, 2048: 20, 4096: 12, 8192: 6, 16384: 4}
DRAWN = {1024: 40, 2048: 20, 4096: 6, 8192: 2, 16384: 1}  # of these heads, also by the kernel
FAST_HEADS, FAST_DRAWN = {1024: 32, 2048: 8, 4096: 3}, {1024: 16, 2048: 2, 4096: 1}  # no longer prefills in fast runs
_QUERIES = 128  # query positions per step


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    table = published()[ITEM]
    heads, drawn = (FAST_HEADS, FAST_DRAWN) if fast else (HEADS, DRAWN)
    done, total, rows, means = 0, sum(n * n * (heads[n] + 4 * drawn[n]) for n in heads), [], {}
    for n in heads:
        missed = []
        for first in range(0, heads[n], 2):
            progress(f"weights, n_k = {n:,}", done, total)
            pair = range(first, min(first + 2, heads[n]))
            missed += parallel_map(log_missed, [(*_head(seed, n, head),) for head in pair])
            done += n * n * len(pair)
        covered = [100 * np.array([-np.expm1(S * one).mean() for S in BUDGETS]) for one in missed]
        means[n] = np.mean(covered, axis=0)
        error = np.std(covered, axis=0, ddof=1) / np.sqrt(heads[n])
        rows += _expected(table, n, means[n], error, heads[n])
        for place, S in enumerate(BUDGETS):
            progress(f"draws, n_k = {n:,}, S = {S}", done, total)
            rows.append(_by_kernel(seed, n, int(S), missed[: drawn[n]]))
            done += n * n * drawn[n]
    progress("own keys", 0, 1)
    rows += [own_keys(seed, 1024, int(S), 8 if fast else 16) for S in BUDGETS]
    rows += [_closed_form(table, n, int(S)) for n in table["n_k"] for S in BUDGETS]
    return Found(tuple(rows), {"coverage": lambda: _plot(table, means)})


def _head(seed: int, n: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """q and k, float16 [n, d], of one head."""
    rng = np.random.default_rng([seed, 9, n, head])
    return tuple(rng.standard_normal((n, D), np.float32).astype(np.float16) for _ in range(2))


def log_missed(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Sum over queries i >= j of log(1 - p_ij), float64 [n]: S times it is the log of the chance that no draw reads row j."""
    q, k = q.astype(np.float32) / np.float32(np.sqrt(D)), k.astype(np.float32)
    found = np.zeros(len(k))
    for first in range(0, len(q), _QUERIES):
        last = min(first + _QUERIES, len(q))
        p = q[first:last] @ k[:last].T
        p[:, first:][np.triu_indices(last - first, 1)] = -np.inf
        p -= p.max(axis=1, keepdims=True)
        np.exp(p, out=p)
        p /= p.sum(axis=1, keepdims=True)
        np.negative(np.minimum(p, 1, out=p), out=p)
        with np.errstate(divide="ignore"):  # the first query sees only its own key
            np.log1p(p, out=p)
        found[:last] += p.sum(axis=0, dtype=np.float64)
    return found


def closed_form(n: int, S: int) -> float:
    """Coverage to first order in 1/n and 1/d  [%]."""
    return 100 * (S / (S + 1) - S**2 / (S + 1) ** 3 / (2 * D) + 1 / (2 * n))


def _expected(table: dict, n: int, means: np.ndarray, error: np.ndarray, heads: int):
    place = table["n_k"].index(n)
    for number, S in enumerate(BUDGETS):
        yield Row(ITEM, f"n_k = {n:,}, S = {S}", float(means[number]), table[int(S)][place], tolerance=TOLERANCE, unit="% of n_k",
                  note="expected coverage given the weights; published: means of 10 trials and 32 heads",
                  statistics={"heads": heads, "standard_error": float(error[number])})  # fmt: skip


def _by_kernel(seed: int, n: int, S: int, missed: list[np.ndarray]) -> Row:
    """The kernel's draws on the first heads, against the expected coverage of the same heads."""
    q, k = (np.stack(parts, axis=1) for parts in zip(*(_head(seed, n, head) for head in range(len(missed)))))
    trace = attention(q, k, np.zeros_like(k), "santa", S=S, seed=seed)[1]
    ours = 100 * trace.total("unique_rows_per_head") / (len(missed) * n)
    covered = -np.expm1(S * np.array(missed))
    # rows drawn are negatively associated: the variance of their number is the sum of theirs times S / (S + 1), to first order in the
    # weights' unevenness: sum of m (1 - m) - S sum_i (sum_j m_j p_ij)^2 with m_j = (j / n)^S and p_ij = 1 / i
    error = 100 * float(np.sqrt((covered * (1 - covered)).sum() * S / (S + 1))) / (len(missed) * n)
    limit = z_limit(len(BUDGETS) * len(HEADS))
    return Row(ITEM, f"n_k = {n:,}, S = {S}, drawn", ours, expected=100 * float(covered.mean()), tolerance=limit * error, unit="% of n_k",
               note="the kernel's draws against the expected coverage of the same heads",
               statistics={"heads": len(missed), "trials": 1, "standard_error": error, "tolerance": f"{limit:.3g} standard errors",
                           "familywise_level": 1e-4})  # fmt: skip


def own_keys(seed: int, n: int, S: int, heads: int) -> Row:
    """Draws of the queries' own keys, all n queries of `heads` heads, against the sum of S p_ii; n a multiple of D."""
    q, k = (np.stack(parts, axis=1) for parts in zip(*(_head(seed, n, head) for head in range(heads))))
    drawn, expected, variance = 0, 0.0, 0.0
    for first in range(0, n, D):
        last = first + D
        v = np.zeros((last, heads, D), np.float16)
        v[first:] = np.eye(D)[:, None]
        out = attention(q[first:last], k[:last], v, "santa", S=S, seed=stream(seed, 90, first, S), precision="fp32")[0]
        drawn += round(S * float(out[np.arange(D), :, np.arange(D)].sum(dtype=np.float64)))
        s = np.einsum("ihd,jhd->hij", q[first:last].astype(np.float64), k[:last].astype(np.float64), optimize=True) / np.sqrt(D)
        s[:, np.arange(last) > np.arange(first, last)[:, None]] = -np.inf
        p = np.exp(s - s.max(axis=2, keepdims=True))
        own = p[:, np.arange(D), np.arange(first, last)] / p.sum(axis=2)
        expected += S * own.sum()
        variance += S * (own * (1 - own)).sum()
    limit = z_limit(len(BUDGETS))
    error = float(np.sqrt(variance))
    return Row(ITEM, f"n_k = {n:,}, S = {S}, draws of a query's own key", drawn, expected=float(expected), tolerance=limit * error,
               unit=f"in {heads} heads", note="the last key that the causal mask lets a query see; the sum of S p_ii",
               statistics={"heads": heads, "standard_error": error, "tolerance": f"{limit:.3g} standard errors", "familywise_level": 1e-4})  # fmt: skip


def _closed_form(table: dict, n: int, S: int) -> Row:
    return Row(ITEM, f"n_k = {n:,}, S = {S}, closed form", closed_form(n, S), table[S][table["n_k"].index(n)], tolerance=TOLERANCE,
               unit="% of n_k", note="S/(S+1) - S^2/(S+1)^3/(2d) + 1/(2n), d = 128")  # fmt: skip


def _plot(table: dict, means: dict[int, np.ndarray]) -> Figure:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, len(BUDGETS), sharey=True)
    for place, (S, axes) in enumerate(zip(map(int, BUDGETS), panels)):
        axes.plot(table["n_k"], np.array(table[S]) - 100 * S / (S + 1), "o", color="black", mfc="none", label="published")
        axes.plot(list(means), [means[n][place] - 100 * S / (S + 1) for n in means], "x", color="#D55E00", label="expected coverage")
        axes.plot(table["n_k"], [closed_form(n, S) - 100 * S / (S + 1) for n in table["n_k"]], "-", lw=1, color="#0072B2", label="closed form")
        axes.set(xscale="log", xlabel="n_k / 1,024 keys", title=f"S = {S}, S / (S + 1) = {100 * S / (S + 1):.2f} %")
        axes.set_xticks(table["n_k"], [str(n // 1024) for n in table["n_k"]])
        axes.minorticks_off()
        axes.title.set_size(9)
    panels[0].set_ylabel("V rows read, less S / (S + 1)\n(percentage points)")
    panels[0].legend(fontsize=8)
    return figure
