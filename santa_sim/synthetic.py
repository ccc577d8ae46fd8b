"""Synthetic tensors: i.i.d. Gaussian, and keys built so that attention has a sink and a Zipf tail.

Every array has its own random stream, keyed by (seed, sequence, layer, part, KV head), so that neither the number of
threads nor the length of another sequence changes it. The streams are NumPy's: its version is part of the recipe.
Products are `einsum` loops rather than BLAS calls, whose rounding may depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .errors import InputError
from .workload import SinkZipf, Workload

_PARTS = {"q": 0, "k": 1, "v": 2, "positions": 3}  # numbers of the random streams; changing one changes every tensor
_CHUNK = 2048  # rows worked on at a time, so that the float32 copy stays in cache


def _generator(seed: int, sequence: int, layer: int, part: str, index: int = 0) -> np.random.Generator:
    stream = np.random.SeedSequence(seed, spawn_key=(sequence, layer, _PARTS[part], index))
    return np.random.Generator(np.random.SFC64(stream))


def _per_head(work: Callable[[int], object], kv_heads: int) -> list:
    """[work(0), work(1), ...] on a few threads; the work of one KV head touches nothing of another's."""
    with ThreadPoolExecutor(max_workers=min(kv_heads, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, range(kv_heads)))


def _chunks(rows: int) -> list[slice]:
    return [slice(first, min(first + _CHUNK, rows)) for first in range(0, rows, _CHUNK)]


def _gaussian_rows(generator: np.random.Generator, out: np.ndarray) -> None:
    """Fill out [rows, d] of any dtype with N(0, 1), drawn in float32 and rounded to out's dtype."""
    for rows in _chunks(len(out)):
        out[rows] = generator.standard_normal(out[rows].shape, dtype=np.float32)


def _log_masses(n_k: int, sink_mass: float, exponent: float) -> np.ndarray:
    """log of `sink_zipf_masses`, taken of the formula so that no mass underflows."""
    if n_k == 1:
        return np.zeros(1)
    tail = -exponent * np.log(np.arange(1, n_k, dtype=np.float64))
    return np.concatenate(([np.log(sink_mass)], np.log1p(-sink_mass) + tail - np.log(np.exp(tail).sum())))


def sink_zipf_masses(n_k: int, sink_mass: float, exponent: float) -> np.ndarray:
    """Attention masses by rank, float64 [n_k], summing to 1: the sink first, then rank^-exponent for ranks 1, 2, ...

    With one key there is only the sink, and its mass is 1.
    """
    return np.exp(_log_masses(n_k, sink_mass, exponent))


def sink_zipf_logits(workload: Workload, seed: int, sequence: int, layer: int, kv_head: int) -> np.ndarray:
    """Wanted logits of one group's queries, float64 [n_k, G], after the scaling by 1/sqrt(d), with mean 0 per query.

    log p of `sink_zipf_masses`: token 0 is the sink, the other ranks are shuffled over positions 1 ... n_k - 1, for each
    query by itself (`group_overlap: independent`) or once for the group (`shared`).
    """
    source, n_k = workload.source, workload.lengths[sequence]
    by_rank = _log_masses(n_k, source.sink_mass, source.exponent)
    by_rank -= by_rank.mean()
    logits = np.empty((n_k, workload.group))
    logits[0] = by_rank[0]
    generator = _generator(seed, sequence, layer, "positions", kv_head)
    if source.group_overlap == "shared":
        logits[1:] = generator.permutation(by_rank[1:])[:, None]
    else:
        for g in range(workload.group):
            logits[1:, g] = generator.permutation(by_rank[1:])
    return logits


def _rows_with_logits(
    generator: np.random.Generator, queries: np.ndarray, logits: np.ndarray, out: np.ndarray
) -> tuple[float, float]:
    """Fill out [n_k, d] with random rows k that give q_g . k / sqrt(d) = logits[:, g] for every query of a group.

    A Gaussian row z becomes z + (sqrt(d) logits - z Q^T) (Q Q^T)^-1 Q: its part in the span of the queries Q [G, d] is
    replaced by the one that gives the logits, the rest of it stays.

    Returns the largest and the summed squared deviation of the logits reached after rounding to out's dtype.
    """
    d = queries.shape[1]
    q64 = queries.astype(np.float64)
    try:
        basis = np.linalg.solve(np.einsum("gd,hd->gh", q64, q64), q64).astype(np.float32)  # (Q Q^T)^-1 Q
    except np.linalg.LinAlgError:
        raise _no_keys(out.dtype, d) from None
    q = queries.astype(np.float32)
    wanted = (logits * np.sqrt(d)).astype(np.float32)
    largest, squares = 0.0, 0.0
    for rows in _chunks(len(out)):
        z = generator.standard_normal(out[rows].shape, dtype=np.float32)
        z += np.einsum("ng,gd->nd", wanted[rows] - np.einsum("nd,gd->ng", z, q), basis)
        with np.errstate(over="ignore", invalid="ignore"):  # what doesn't fit the dtype is caught below
            out[rows] = z
            missed = np.einsum("nd,gd->ng", out[rows].astype(np.float32), q) - wanted[rows]
        missed = missed.astype(np.float64) / np.sqrt(d)
        largest = max(largest, float(np.abs(missed).max()))  # NaN or inf where a key didn't fit the dtype
        squares += float(np.square(missed).sum())
    if not np.isfinite(squares):
        raise _no_keys(out.dtype, d)
    return largest, squares


def _no_keys(dtype: np.dtype, d: int) -> InputError:
    return InputError(f"no keys with the wanted logits fit dtype={dtype.name!r} at head_dim={d}: the exponent is too "
                      "large, or the queries of a group are nearly parallel; write a smaller exponent, a larger head_dim, "
                      "dtype float32 or another seed")  # fmt: skip


def _sink_zipf_keys(workload: Workload, q: np.ndarray, k: np.ndarray, seed: int, sequence: int, layer: int) -> dict:
    """Fill k [n_k, H_kv, d] for the queries q [H, d]; returns the deviation of the logits in this layer."""
    group = workload.group

    def one_head(kv_head: int) -> tuple[float, float]:
        logits = sink_zipf_logits(workload, seed, sequence, layer, kv_head)
        queries = q[kv_head * group : (kv_head + 1) * group]
        return _rows_with_logits(_generator(seed, sequence, layer, "k", kv_head), queries, logits, k[:, kv_head])

    missed = _per_head(one_head, workload.kv_heads)
    return {"largest": max(largest for largest, _ in missed), "squares": sum(squares for _, squares in missed)}


def make_synthetic(
    workload: Workload, dtype: np.dtype, seed: int
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]], list[list[np.ndarray]], dict]:
    """Q, K and V, each [sequence][layer], and a report of how the wanted logits were met.

    Parameters
    ----------
    workload : Workload
        With a `gaussian` or `sink_zipf` source.
    dtype : np.dtype
        Storage type. The queries are rounded to it before the keys are built for them.
    seed : int
        Root of all streams.

    Raises
    ------
    InputError
        The keys that the logits need overflow the dtype.
    """
    h, h_kv, d = workload.heads, workload.kv_heads, workload.head_dim
    q, k, v, missed = [], [], [], []
    for sequence, n_k in enumerate(workload.lengths):
        q.append([]), k.append([]), v.append([])
        for layer in range(workload.layers):
            n_q = workload.query_lengths[sequence]
            queries = np.empty((n_q * h, d), dtype)
            keys, values = np.empty((n_k, h_kv, d), dtype), np.empty((n_k, h_kv, d), dtype)
            _gaussian_rows(_generator(seed, sequence, layer, "q"), queries)
            if isinstance(workload.source, SinkZipf):
                missed.append(_sink_zipf_keys(workload, queries, keys, seed, sequence, layer))
            else:
                _fill(keys, seed, sequence, layer, "k")
            _fill(values, seed, sequence, layer, "v")
            q[-1].append(queries.reshape(n_q, h, d) if workload.kind == "prefill" else queries)
            k[-1].append(keys)
            v[-1].append(values)
    return q, k, v, _report(workload, dtype, missed)


def _fill(out: np.ndarray, seed: int, sequence: int, layer: int, part: str) -> None:
    """Fill out [n_k, H_kv, d] with N(0, 1), one stream per KV head."""
    _per_head(
        lambda head: _gaussian_rows(_generator(seed, sequence, layer, part, head), out[:, head]), out.shape[1]
    )


def _report(workload: Workload, dtype: np.dtype, missed: list[dict]) -> dict:
    """What the tensors are and, for wanted logits, how far from them rounding left the reached ones."""
    source = workload.source
    report = {"source": source.type, "notes": []}
    if not isinstance(source, SinkZipf):
        return report
    logits = workload.layers * workload.heads * sum(workload.lengths)
    report |= {
        "logits_max_abs_deviation": max(one["largest"] for one in missed),
        "logits_rms_deviation": float(np.sqrt(sum(one["squares"] for one in missed) / logits)),
    }
    report["notes"].append(f"logits reached after rounding to {np.dtype(dtype).name}, evaluated in float32")
    elsewhere = sorted(set(workload.lengths) - {source.fitted_at_keys})
    if elsewhere:
        report["notes"].append(
            f"sink_mass {source.sink_mass} and exponent {source.exponent} were fitted at {source.fitted_at_keys} keys; "
            f"at {', '.join(str(n_k) for n_k in elsewhere)} keys they are an extrapolation"
        )
    return report
