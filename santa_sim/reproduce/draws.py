"""Many independent draws of the CPU kernels: estimates of one query, and Bernoulli scores with the features they read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from ..attention import attention
from ..methods import exact
from ..methods.kernel import Block, Result
from ..methods.layer import Layer, prepare
from ..methods.spec import Spec
from ..workload import load_workload
from .heads import CAPTURED, Heads, heads_of

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
def captured_layers() -> tuple[Heads, ...]:
    """The captured layers of SmolLM2-135M, in float32."""
    return tuple(Heads(*(x.astype(np.float32) for x in (layer.q, layer.k, layer.v)), layer.p) for layer in heads_of(CAPTURED))


def one_head(layer: Heads, h: int, name: str = "") -> Head:
    """One query head of a layer."""
    kv = h // (layer.q.shape[0] // layer.k.shape[1])
    k, v = (np.ascontiguousarray(x[:, kv]).astype(np.float32) for x in (layer.k, layer.v))
    return Head(name, layer.q[h].astype(np.float32), k, v, layer.p[h], layer.p[h] @ v.astype(np.float64))


def captured_heads(wanted: Sequence[tuple[int, int]]) -> list[Head]:
    """Captured heads, each given by (index among the captured layers, query head)."""
    numbers = load_workload(CAPTURED).source.layers
    return [one_head(captured_layers()[i], h, f"SmolLM2 layer {numbers[i]}, head {h}") for i, h in wanted]


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


def feature_major(q: np.ndarray, k: np.ndarray) -> Layer:
    """Float32 q [H, d] and k [n_k, H_kv, d] of a decode step as the Bernoulli score stage takes them."""
    return prepare(_bernoulli_spec("bernoulli", 1, 0), q[None], k, k, _tile(len(k)))


def bernoulli_scores(layer: Layer, score: str, B: int, seed: int) -> Scores:
    """Score one decode step (`feature_major`) with the kernel's score stage alone."""
    spec = _bernoulli_spec(score, B, seed)
    (_, H, d), (n_k, H_kv, _) = layer.q.shape, layer.k.shape
    G = H // H_kv
    seen = np.zeros((H_kv, G, n_k), bool)
    block = Block(spec, layer, 0, 0, None, _tile(n_k), np.array([0]), np.full(G, n_k), 0, seen)
    result = Result(np.zeros((H_kv, G, d), np.float32), np.zeros((H_kv, block.T, len(exact.SCORE_COUNTS)), np.int64))
    scores, _, _ = block.scores(result)
    reads = result.scores[:, :, _READS].sum(axis=1) - G * d  # scalars of K; those of the query are counted with them
    return Scores(scores.reshape(H, n_k), reads / (n_k * G * d), result.features.mean(axis=1))


def _bernoulli_spec(score: str, B: int, seed: int) -> Spec:
    return Spec(method="topk", k=1, score=score, B=B, precision="fp32", seed=seed)  # top-k keeps the scores themselves


def _tile(n_k: int) -> int:
    return min(n_k, 1024)
