"""Compiled numerics that several methods share: storage formats, the exponential, a tile's softmax."""

from __future__ import annotations

import numpy as np

from ..jit import jit, jit_fast

# how stored elements become numbers: as they are (float32 or integers), IEEE half bits, bfloat16 bits
PLAIN, HALF, BRAIN = 0, 1, 2

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693145751953125), np.float32(1.42860676533018e-06)
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_LOWEST = np.float32(-30.0)  # exp(-30) is below half a step of the stash grid
_GRID = np.float32(2.0**-17)  # adding and subtracting it rounds to multiples of 2^-40
_HALF_BIAS = np.float32(2.0**112)  # float32's exponent bias less float16's
_COEFFICIENTS = tuple(np.float32(c) for c in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0))
_C6, _C5, _C4, _C3, _C2, _C1, _C0 = _COEFFICIENTS


@jit_fast
def widen(source, start, n, head, heads, format, out):
    """Copy stored rows source[start : start + n, head : head + heads] into float32 (or int32) out [n, heads, d].

    source is C-contiguous [n_k, H_kv, d]: the compiler must see the unit stride to make vector instructions of this, and
    reading all heads of a token together streams through memory as the cache lies there.
    """
    d = source.shape[2]
    bits = out.view(np.uint32)
    if format == BRAIN:
        for j in range(n):
            for h in range(heads):
                for i in range(d):
                    bits[j, h, i] = np.uint32(np.uint16(source[start + j, head + h, i])) << np.uint32(16)
    elif format == HALF:
        for j in range(n):
            for h in range(heads):
                for i in range(d):
                    bits[j, h, i] = np.uint32(np.uint16(source[start + j, head + h, i]) & np.uint16(0x7FFF)) << np.uint32(13)
                for i in range(d):
                    out[j, h, i] *= _HALF_BIAS
                for i in range(d):
                    sign = np.uint32(np.uint16(source[start + j, head + h, i]) & np.uint16(0x8000))
                    bits[j, h, i] |= sign << np.uint32(16)
    else:
        for j in range(n):
            for h in range(heads):
                for i in range(d):
                    out[j, h, i] = source[start + j, head + h, i]


@jit_fast
def _maximum(s, w):
    m = s[0]
    for j in range(1, w):
        m = max(m, s[j])
    return m


@jit_fast
def _exact_sum(u, w):
    """Sum of float32 multiples of 2^-40 in [0, 1]: exact in float64 for tiles up to 8,192 keys, so in any order."""
    total = 0.0
    for j in range(w):
        total += np.float64(u[j])
    return total


@jit
def stash_tile(s, w, scratch, u):
    """Softmax of one tile: u = exp(s - max), on a grid of 2^-40, for the first w scores.

    The grid (far below float32's resolution of the largest u) makes float64 sums of u exact, so that they are the same in
    whatever order a machine adds them.

    Parameters
    ----------
    s : float32 [w], scores;  scratch : float32 [w], work space;  u : float32 [w], result (may be s)

    Returns
    -------
    m : float32, the largest score;  ell : float64, sum of u
    """
    m = _maximum(s, w)
    bits = scratch.view(np.int32)
    for j in range(w):
        scratch[j] = max(s[j] - m, _LOWEST) * _LOG2E + _ROUND
    for j in range(w):
        n = scratch[j] - _ROUND
        r = (max(s[j] - m, _LOWEST) - n * _LN2_HIGH) - n * _LN2_LOW
        p = _C6
        p = p * r + _C5
        p = p * r + _C4
        p = p * r + _C3
        p = p * r + _C2
        p = p * r + _C1
        p = p * r + _C0
        u[j] = p
        bits[j] = (bits[j] << np.int32(23)) + np.int32(0x3F800000)
    for j in range(w):
        value = u[j] * scratch[j]
        u[j] = value if value >= _GRID else (value + _GRID) - _GRID
    return m, _exact_sum(u, w)
