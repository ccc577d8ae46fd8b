"""Many independent draws of the CPU kernels: estimates of one query, and Bernoulli scores with the features they read."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from ..analysis.quality import attention_weights
from ..attention import attention
from ..methods import exact
from ..methods.kernel import Block, Result
from ..methods.layer import prepare
from ..methods.spec import Spec
from ..tensors import make_tensors
from ..workload import load_workload

CAPTURED = "smollm2_decode_2k"
_READS = exact.SCORE_COUNTS.index("score_reads")


@dataclasses.dataclass(frozen=True)
class Head:
    """One query of a real or made attention layer.

    name : str;  q : float32 [d];  k, v : float32 [n_k, d];  p : float64 [n_k], exact weights;  mean : float64 [d], p V
    """

    name: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    p: np.ndarray
    mean: np.ndarray


@functools.cache
def captured_tensors() -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray], tuple[int, ...]]:
    """Float32 q [H, d], k and v [n_k, H_kv, d] per captured layer of SmolLM2-135M, and the layers' numbers."""
    made = make_tensors(load_workload(CAPTURED), "float16", 0)
    q, k, v = ([x.astype(np.float32) for x in part[0]] for part in (made.q, made.k, made.v))
    return q, k, v, tuple(made.report["layers"])


def layer_heads(q: np.ndarray, k: np.ndarray, v: np.ndarray, wanted: list[int], name: str) -> list[Head]:
    """Some query heads of one layer's float32 q [H, d], k and v [n_k, H_kv, d]."""
    G = q.shape[0] // k.shape[1]
    heads = []
    for h in wanted:
        keys, values = (np.ascontiguousarray(x[:, h // G]) for x in (k, v))
        p = attention_weights(q, k, h // G)[h % G]
        heads.append(Head(f"{name}, head {h}", q[h], keys, values, p, p @ values.astype(np.float64)))
    return heads


@functools.cache
def captured_heads(wanted: tuple[tuple[int, int], ...]) -> tuple[Head, ...]:
    """Captured heads, each given by (index among the captured layers, query head)."""
    q, k, v, layers = captured_tensors()
    return tuple(layer_heads(q[i], k[i], v[i], [h], f"SmolLM2 layer {layers[i]}")[0] for i, h in wanted)


def estimates(head: Head, method: str, S: int, count: int, seed: int, **options) -> np.ndarray:
    """float32 [count, d]: independent estimates of one query by the kernel, in float32 throughout.

    Every estimate is a query head of its own, all sharing one KV head, so that each has its own random numbers.
    """
    q = np.repeat(head.q[None], count, axis=0)
    return attention(q, head.k[:, None], head.v[:, None], method, S, seed=seed, precision="fp32", **options)[0]


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores [H, n_k] of Bernoulli queries (q . k / sqrt(d)), and the features that they read, as fractions of d.

    per_head : float [H_kv], mean of the grouped heads;  per_group : float [H_kv], union over the group
    """

    scores: np.ndarray
    per_head: np.ndarray
    per_group: np.ndarray


def bernoulli_scores(q: np.ndarray, k: np.ndarray, score: str, B: int, seed: int) -> Scores:
    """Score one decode step of float32 q [H, d] against k [n_k, H_kv, d] with the kernel's score stage alone."""
    H, d = q.shape
    n_k, H_kv, _ = k.shape
    G = H // H_kv
    spec = Spec(method="topk", k=1, score=score, B=B, precision="fp32", seed=seed)  # top-k keeps the scores themselves
    tile = min(n_k, 1024)
    seen = np.zeros((H_kv, G, n_k), bool)
    block = Block(spec, prepare(spec, q[None], k, k, tile), 0, 0, None, tile, np.array([0]), np.full(G, n_k), 0, seen)
    result = Result(np.zeros((H_kv, G, d), np.float32), np.zeros((H_kv, block.T, len(exact.SCORE_COUNTS)), np.int64))
    scores, _, _ = block.scores(result)
    reads = result.scores[:, :, _READS].sum(axis=1) - G * d  # scalars of K; those of the query are counted with them
    return Scores(scores.reshape(H, n_k), reads / (n_k * G * d), result.features.mean(axis=1))
