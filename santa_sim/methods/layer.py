"""One layer's tensors as the kernels take them: stored bits, or fixed point, and a feature-major K for Bernoulli scores."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..errors import InputError
from ..fixed_point import BITS, fitting_format, parse_qformat, quantize
from .numerics import BRAIN, HALF, PLAIN
from .spec import Spec

FORMATS = {"fp32": PLAIN, "fp16": HALF, "bf16": BRAIN, "int8": PLAIN, "int16": PLAIN}
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "int16": 2}


@dataclasses.dataclass(frozen=True)
class Layer:
    """Q, K and V of one (sequence, layer) as the kernels take them.

    q : float32 or int32 [n_q, H, d], 1/sqrt(d) folded in;  k, v : stored [n_k, H_kv, d];  key_features : stored
    [H_kv * T, d, tile] (Bernoulli) or None;  score_step, value_step : float, value of one unit of q . k and of v (1 for
    floats);  quantization_saturated : elements that saturated when they were quantised
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    key_features: np.ndarray | None
    score_step: float
    value_step: float
    quantization_saturated: int


def prepare(spec: Spec, q: np.ndarray, k: np.ndarray, v: np.ndarray, tile: int) -> Layer:
    """Bring one layer's tensors into the kernels' form; quantises them for fixed-point precisions."""
    d = q.shape[-1]
    scaled = q.astype(np.float32) * np.float32(1 / math.sqrt(d))
    score_step = value_step = 1.0
    saturated = 0
    if spec.precision in BITS:
        bits = BITS[spec.precision]
        dtype = np.dtype(spec.precision).type
        k_format = fitting_format(k, bits)
        k, lost_k = quantize(k, k_format, dtype)
        v_format = parse_qformat(spec.value_format, bits) if spec.value_format else fitting_format(v, bits)
        v, lost_v = quantize(v, v_format, dtype)
        saturated, score_step, value_step = lost_k + lost_v, k_format.step, v_format.step
        if spec.score == "exact":
            # the query gets the bits that an int32 sum of d products leaves
            q_format = fitting_format(scaled, 1 + min(bits - 1, 31 - bits - math.ceil(math.log2(d))))
            scaled, lost_q = quantize(scaled, q_format, np.int32)
            saturated, score_step = saturated + lost_q, score_step * q_format.step
    elif spec.precision != "fp32":
        k, v = k.view(np.uint16), v.view(np.uint16)
    features = None
    if spec.score != "exact":
        if spec.precision in BITS and spec.score != "bernoulli-mean-group":
            check_int32("B", spec.B, d, spec.precision, f"d = {d} features")
        n_k, H_kv, _ = k.shape
        T = -(-n_k // tile)
        padded = np.zeros((T * tile, H_kv, d), k.dtype)
        padded[:n_k] = k
        features = np.ascontiguousarray(padded.reshape(T, tile, H_kv, d).transpose(2, 0, 3, 1)).reshape(H_kv * T, d, tile)
    return Layer(np.ascontiguousarray(scaled), np.ascontiguousarray(k), np.ascontiguousarray(v), features,
                 score_step, value_step, saturated)  # fmt: skip


def check_int32(field: str, budget: int, per_unit: int, precision: str, what: str) -> None:
    """InputError if `budget` times `per_unit` additions of stored integers could leave an int32 accumulator's range."""
    most = (2**31 - 1) // (2 ** (BITS[precision] - 1) * per_unit)
    if budget > most:
        raise InputError(f"{field}={budget}: with {what}, sums of {precision} can overflow their int32 accumulator; use {field} <= {most}")
