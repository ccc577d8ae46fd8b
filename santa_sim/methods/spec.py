"""What to run: one frozen record of method, budgets and numerics, checked once."""

from __future__ import annotations

import dataclasses
from numbers import Integral

import numpy as np

from ..errors import InputError, choose
from ..fixed_point import BITS, parse_qformat

METHODS = ("sdpa", "topk", "santa", "s2anta-strat", "s2anta-sys", "s2anta-prop", "s2anta-flash")
SCORES = ("exact", "bernoulli", "bernoulli-stratified", "bernoulli-mean-group")
SAMPLED = METHODS[2:]
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int16")
ALLOCATIONS = ("largest-remainder", "systematic")
SAMPLERS = ("scaled-weights", "scaled-thresholds")
LARGEST_BUDGET = 2**24


@dataclasses.dataclass(frozen=True)
class Spec:
    """A method with its budgets.

    Attributes
    ----------
    method : value stage, one of METHODS
    samples : int or tuple of int (one per layer), S, draws per query and head; sampled methods only
    k : int, keys kept by top-k
    score : score stage, one of SCORES
    B : int, Bernoulli draws per query feature; Bernoulli scores only
    precision : storage of Q, K and V, one of PRECISIONS; accumulation is float32, or int32 for integers
    tile : int, keys per tile; None takes 256 above 3,072 keys, 64 above 1,536, else 32
    allocation : prop's tile budgets, 'largest-remainder' (Algorithm 4) or 'systematic' (unbiased)
    sampler : systematic draws scale every u (Algorithm 5, 'scaled-weights') or the thresholds ('scaled-thresholds')
    seed : int in [0, 2^64)
    causal : prefill only: query i of n_q sees the first n_k - n_q + i + 1 keys; False lets every query see all
    query_block : prefill only: query positions that share one pass over K and V
    value_format : 'Qm.n' of V in fixed point; None takes the finest in which nothing saturates
    """

    method: str
    samples: int | tuple[int, ...] | None = None
    k: int | None = None
    score: str = "exact"
    B: int | None = None
    precision: str = "bf16"
    tile: int | None = None
    allocation: str = "largest-remainder"
    sampler: str = "scaled-weights"
    seed: int = 0
    causal: bool = True
    query_block: int = 64
    value_format: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        choose("method", self.method, METHODS)
        choose("score", self.score, SCORES)
        choose("precision", self.precision, PRECISIONS)
        choose("allocation", self.allocation, ALLOCATIONS)
        choose("sampler", self.sampler, SAMPLERS)
        if self.method in SAMPLED:
            for S in self.samples if isinstance(self.samples, tuple) else (self.samples,):
                _whole("S", S, 1, LARGEST_BUDGET, f"method {self.method!r} needs the samples per query and head, such as S=128")
        elif self.samples is not None:
            raise InputError(f"S={self.samples!r}: method {self.method!r} draws no samples; leave S out" + (" (top-k takes k)" if self.method == "topk" else ""))
        if self.method == "topk":
            _whole("k", self.k, 1, LARGEST_BUDGET, "method 'topk' needs the keys to keep, such as k=128")
        elif self.k is not None:
            raise InputError(f"k={self.k!r}: only method 'topk' takes k; {self.method!r} takes {'S' if self.method in SAMPLED else 'none'}")
        if self.score != "exact":
            _whole("B", self.B, 1, 2**16, f"score {self.score!r} needs the draws per feature, such as B=4")
        elif self.B is not None:
            raise InputError(f"B={self.B!r}: score 'exact' draws no features; leave B out, or choose score='bernoulli-stratified'")
        if self.tile is not None:
            _whole("tile", self.tile, 1, 8192, "keys per tile, such as tile=256")
        if not isinstance(self.causal, bool):
            raise InputError(f"causal={self.causal!r} must be True or False")
        _whole("query_block", self.query_block, 1, 2**20, "query positions per block, such as query_block=64")
        _whole("seed", self.seed, 0, 2**64 - 1, "a whole number, such as seed=0")
        if self.allocation != "largest-remainder" and self.method != "s2anta-prop":
            raise InputError(f"allocation={self.allocation!r}: only method 's2anta-prop' allocates tile budgets, not {self.method!r}")
        if self.sampler != "scaled-weights" and self.method not in ("s2anta-sys", "s2anta-prop", "s2anta-flash"):
            raise InputError(f"sampler={self.sampler!r}: only systematic draws (sys, prop, flash) have it, not {self.method!r}")
        if self.value_format is not None:
            if self.precision not in BITS:
                raise InputError(f"value_format={self.value_format!r} needs precision='int8' or 'int16', not {self.precision!r}")
            parse_qformat(self.value_format, BITS[self.precision])

    def samples_at(self, layer_index: int, n_layers: int) -> int | None:
        """S of one of the run's layers."""
        if not isinstance(self.samples, tuple):
            return self.samples
        if len(self.samples) != n_layers:
            raise InputError(f"S has {len(self.samples)} entries, {list(self.samples)}; the workload has {n_layers} layers: give one each, or one number")
        return self.samples[layer_index]

    def tile_for(self, n_k: int) -> int:
        """Keys per tile for a cache of n_k keys."""
        return self.tile or (256 if n_k > 3072 else 64 if n_k > 1536 else 32)


def _plain(value: object) -> object:
    """NumPy's numbers as Python's, arrays and lists as tuples, so that they can be compared, hashed and written as JSON."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _whole(field: str, value: object, low: int, high: int, hint: str) -> None:
    if value is None:
        raise InputError(f"{field} is missing: {hint}")
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{field}={value!r} is not a whole number: {hint}")
    if not low <= value <= high:
        raise InputError(f"{field}={value!r} is outside {low} ... {high}: {hint}")
