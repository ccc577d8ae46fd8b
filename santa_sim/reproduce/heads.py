"""Real attention heads and repeated draws from them: what the statistical items share."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..analysis.quality import attention_weights
from ..attention import attention
from ..tensors import make_tensors
from ..workload import Workload, load_workload

CAPTURED = "smollm2_decode_2k"
CAPTURED_NOTE = "SmolLM2-135M, 2,048 keys, 4 layers of 9 heads"


@dataclasses.dataclass(frozen=True)
class Heads:
    """One layer's decode step: q [H, d], k and v [n_k, H_kv, d] and the exact weights p, float64 [H, n_k]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    p: np.ndarray


def heads_of(workload: str | Workload, seed: int = 0) -> list[Heads]:
    """The layers of a decode workload of one sequence, in the workload's own type; the seed is that of synthetic tensors."""
    workload = load_workload(workload)
    made = make_tensors(workload, workload.dtype, seed)
    layers = []
    for q, k, v in zip(made.q[0], made.k[0], made.v[0]):
        layers.append(Heads(q, k, v, np.concatenate([attention_weights(q, k, kv) for kv in range(k.shape[1])])))
    return layers


def repeated(heads: Heads, method: str, times: int, seed: int, **options):
    """Run a decode step `times` times with independent draws: the kernel's batch of as many equal sequences.

    Returns
    -------
    outputs : float [times, H, d];  trace : Trace, the repetition is its `sequence`
    """
    outputs, trace = attention([heads.q] * times, [heads.k] * times, [heads.v] * times, method, seed=seed, **options)
    return np.array(outputs), trace


def unique_rows(trace, times: int) -> np.ndarray:
    """Rows of V that the heads of each KV group read, summed over its heads, int [times, H_kv]."""
    counts = trace.items.groupby(["sequence", "kv_head"])["unique_rows_per_head"].sum()
    return counts.to_numpy().reshape(times, -1)


def expected_union(p: np.ndarray, S: int, method: str, group: int) -> np.ndarray:
    """Rows of V that each group of `group` heads reads on average, float64 [H / group], for weights p [H, n_k].

    A head's S draws miss key j with probability (1 - p)^S if independent (santa), 1 - min(1, S p) if systematic (sys, and prop with
    systematic allocation); heads draw independently, so that a group misses it with the product.
    """
    missed = S * np.log1p(-np.minimum(p, 1 - 1e-16)) if method == "santa" else np.log1p(-np.minimum(S * p, 1 - 1e-16))
    return -np.expm1(missed.reshape(-1, group, p.shape[1]).sum(axis=1)).sum(axis=1)


def group_unions(trace, times: int) -> np.ndarray:
    """Rows of V that each KV group reads, int [times, H_kv]."""
    return trace.items.groupby(["sequence", "kv_head"])["unique_rows_per_group"].sum().to_numpy().reshape(times, -1)


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of log y against log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def five_errors(samples: np.ndarray) -> dict[str, object]:
    """Statistics of the mean of samples [times, groups], whose tolerance is five of its standard errors.

    The error is that of the scatter within the groups: groups that are off by different amounts don't widen it.
    """
    error = float(np.sqrt(samples.var(axis=0, ddof=1).mean() / samples.size))
    return {"standard_error": error, "tolerance": "5 standard errors", "confidence": "0.9999"}
