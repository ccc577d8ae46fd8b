"""Philox 4x32-10 counter-based random numbers: the same on CPU and GPU, whatever the order of evaluation.

J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, doi:10.1145/2063384.2063405.
Key = seed (64 bits); counter = (sequence, layer * H + head, query position, index), where the index is the tile or the
number of the draw. The value stage takes word 0 of the four outputs, the score stage word 1.
"""

from __future__ import annotations

import numpy as np

from .jit import jit

VALUE_WORD, SCORE_WORD = 0, 1

_MASK = np.uint64(0xFFFFFFFF)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@jit
def philox(c0, c1, c2, c3, k0, k1):
    """The four 32-bit outputs (as uint64) of Philox 4x32-10 for counter (c0..c3) and key (k0, k1), all uint64 < 2^32."""
    shift = np.uint64(32)
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ k0, p1 & _MASK, (p0 >> shift) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@jit
def _fill(seed, sequence, heads, positions, first_index, word, out):
    k0, k1 = seed & _MASK, seed >> np.uint64(32)
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            words = philox(sequence, heads[r], positions[r], np.uint64(first_index + j), k0, k1)
            value = words[0] if word == 0 else words[1]
            out[r, j] = np.float64(value >> np.uint64(8)) * 2.0**-24


def uniforms(seed: int, sequence: int, heads: np.ndarray, positions: np.ndarray, count: int, word: int) -> np.ndarray:
    """Uniform numbers in [0, 1), multiples of 2^-24.

    Parameters
    ----------
    seed : int in [0, 2^64)
    heads, positions : int arrays [rows]; layer * H + head, and the query's position, of each row
    count : numbers per row, indices 0 .. count - 1
    word : VALUE_WORD or SCORE_WORD

    Returns
    -------
    float64 [rows, count]
    """
    out = np.empty((len(heads), count))
    _fill(np.uint64(seed), np.uint64(sequence), heads.astype(np.uint64), positions.astype(np.uint64), 0, word, out)
    return out
