"""How good an estimate is: exact attention on the same tensors, and the estimators' variance where it has a closed form."""

from __future__ import annotations

import math

import numpy as np

from ..jit import jit, jit_fast, parallel_map

_QUERIES = 256  # query positions per step of a prefill


def exact_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = True) -> np.ndarray:
    """softmax(q K^T / sqrt(d)) V.

    Parameters
    ----------
    q : [n_q, H, d];  k, v : [n_k, H_kv, d], any float type
    causal : query i sees the first n_k - n_q + i + 1 keys

    Returns
    -------
    float64 [n_q, H, d]; computed in float64 for one query, with float32 products for many (a prefill)
    """
    n_q, H, d = q.shape
    n_k, H_kv, _ = k.shape
    G = H // H_kv
    out = np.empty((n_q, H, d))

    def decode(kv: int) -> None:
        values = np.ascontiguousarray(v[:, kv]).astype(np.float32)
        out[0, kv * G : (kv + 1) * G] = _weigh(attention_weights(q[0], k, kv), values)

    if n_q == 1:
        parallel_map(decode, [(kv,) for kv in range(H_kv)])
        return out
    for kv in range(H_kv):
        keys, values = (np.ascontiguousarray(x[:, kv]).astype(np.float32) for x in (k, v))
        for first in range(0, n_q, _QUERIES):
            last = min(first + _QUERIES, n_q)
            limits = np.repeat(n_k - n_q + np.arange(first, last) + 1 if causal else np.full(last - first, n_k), G)
            seen = limits.max()
            rows = q[first:last, kv * G : (kv + 1) * G].reshape(-1, d).astype(np.float32) / np.float32(math.sqrt(d))
            p = _softmax(rows @ keys[:seen].T, limits)
            out[first:last, kv * G : (kv + 1) * G] = (p @ values[:seen]).reshape(last - first, G, d)
    return out


@jit_fast
def _scores(rows, keys):
    """rows [G, d] . keys [n, d] in float64."""
    G, d = rows.shape
    s = np.empty((G, len(keys)))
    for j in range(len(keys)):
        for g in range(G):
            total = 0.0
            for i in range(d):
                total += rows[g, i] * np.float64(keys[j, i])
            s[g, j] = total
    return s


@jit_fast
def _weigh(p, values):
    """p [G, n] . values [n, d] in float64."""
    G, n = p.shape
    d = values.shape[1]
    out = np.zeros((G, d))
    for j in range(n):
        for g in range(G):
            for i in range(d):
                out[g, i] += p[g, j] * np.float64(values[j, i])
    return out


def _softmax(s: np.ndarray, limits: np.ndarray) -> np.ndarray:
    if limits.min() < s.shape[1]:
        s[np.arange(s.shape[1])[None] >= limits[:, None]] = -np.inf
    s -= s.max(axis=1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(axis=1, keepdims=True)
    return s


def attention_weights(q: np.ndarray, k: np.ndarray, kv: int) -> np.ndarray:
    """softmax(q K^T / sqrt(d)) of one decode step's KV head.

    q [H, d];  k [n_k, H_kv, d];  returns float64 [G, n_k]
    """
    G = q.shape[0] // k.shape[1]
    rows = q[kv * G : (kv + 1) * G].astype(np.float64) / math.sqrt(q.shape[1])
    s = _scores(rows, np.ascontiguousarray(k[:, kv]).astype(np.float32))
    return _softmax(s, np.full(G, k.shape[0]))


@jit
def _iid_trace(p, v):
    """tr Cov(V_i), i ~ p: sum of p |V|^2 less |sum of p V|^2."""
    n, d = v.shape
    mean = np.zeros(d)
    square = 0.0
    for j in range(n):
        norm = 0.0
        for i in range(d):
            x = np.float64(v[j, i])
            mean[i] += p[j] * x
            norm += x * x
        square += p[j] * norm
    return square - (mean * mean).sum()


@jit
def _stratified_trace(p, v, S):
    """Sum over S equal strata of the CDF of tr Cov(V_i | stratum)."""
    n, d = v.shape
    mean = np.zeros(d)
    total = square = 0.0
    room = 1.0 / S
    stratum = 0
    for j in range(n):
        norm = 0.0
        for i in range(d):
            norm += np.float64(v[j, i]) ** 2
        left = p[j]
        while left > 0.0:
            share = min(left, room)
            for i in range(d):
                mean[i] += share * S * np.float64(v[j, i])
            square += share * S * norm
            left -= share
            room -= share
            if room <= 0.0 or (j == n - 1 and left <= 0.0):
                total += square - (mean * mean).sum()
                mean[:] = 0
                square = 0.0
                stratum += 1
                room = 1.0 / S
    return total


def variance_trace(method: str, p: np.ndarray, v: np.ndarray, S: int) -> float | None:
    """E |estimate - p V|^2 of one query head, given its exact weights.

    Parameters
    ----------
    method : 'santa' (Proposition A.3 of arXiv:2605.01910: tr(Sigma) / S) or 's2anta-strat' (Theorem A.6: the mean of the
        within-stratum traces over S); None for the others, which have no closed form
    p : float64 [n_k];  v : float [n_k, d];  S : int
    """
    if method == "santa":
        return max(0.0, _iid_trace(p, v)) / S
    if method == "s2anta-strat":
        return max(0.0, _stratified_trace(p, v, S)) / S**2
    return None


def output_error(outputs: list[np.ndarray], exact: list[np.ndarray]) -> dict[str, float]:
    """Relative L2 and largest absolute difference of outputs (any shapes, pairwise equal) against exact ones."""
    difference = [np.asarray(o, np.float64).reshape(e.shape) - e for o, e in zip(outputs, exact)]
    norm = math.sqrt(sum(float((e * e).sum()) for e in exact))
    distance = math.sqrt(sum(float((x * x).sum()) for x in difference))
    return {
        "relative_l2": distance / norm if norm > 0 else (0.0 if distance == 0 else math.inf),
        "max_abs": max(float(np.abs(x).max()) for x in difference),
    }
