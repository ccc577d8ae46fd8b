"""Exact scores: every key of a tile against every grouped query, one pass over K (Algorithm 3 of arXiv:2605.01910)."""

from __future__ import annotations

import numpy as np

from ..jit import jit, jit_fast
from .numerics import BRAIN, stash_tile, widen

# what a score kernel counts, per tile, in this order
SCORE_COUNTS = ("score_adds", "score_mults", "score_reads", "score_writes",
                "softmax_exps", "softmax_compares", "softmax_adds", "softmax_mults")  # fmt: skip


_STEP = 64  # keys that are widened at a time: all heads' rows of them fit in a core's second-level cache
_FEW_ROWS = 8  # up to here a token's queries of all heads fit in the first-level cache


@jit
def _as_stored(key, i):
    return key[i]


@jit
def _from_brain(key, i):
    """A bfloat16 element as float32: its bits are the upper half."""
    return np.uint32(np.uint32(np.uint16(key[i])) << np.uint32(16)).view(np.float32)


def _dots_kernel(width, load):
    """The dot products of many queries with many keys.

    width : of a key; a constant lets the compiler unroll the inner loop whole
    load : element of a key as a number; widening in registers spares a second pass through the cache
    """

    @jit_fast
    def four_sums(q0, q1, q2, q3, key):
        a0 = a1 = a2 = a3 = q0.dtype.type(0)
        for i in range(width(key)):
            x = load(key, i)
            a0 += q0[i] * x
            a1 += q1[i] * x
            a2 += q2[i] * x
            a3 += q3[i] * x
        return a0, a1, a2, a3

    @jit_fast
    def one_sum(q0, key):
        a0 = q0.dtype.type(0)
        for i in range(width(key)):
            a0 += q0[i] * load(key, i)
        return a0

    @jit_fast
    def few_rows(q, keys, row, key_head, n, s, first):
        H, R = s.shape[1], s.shape[2]
        for j in range(n):  # token by token, as the cache lies in memory
            for h in range(H):
                key, scores = keys[row + j, key_head + h], s[first + j, h]
                for r in range(0, R - R % 4, 4):
                    sums = four_sums(q[h, r], q[h, r + 1], q[h, r + 2], q[h, r + 3], key)
                    scores[r], scores[r + 1], scores[r + 2], scores[r + 3] = sums
                for r in range(R - R % 4, R):
                    scores[r] = one_sum(q[h, r], key)

    @jit_fast
    def many_rows(q, keys, row, key_head, n, s, first):
        H, R = s.shape[1], s.shape[2]
        for h in range(H):
            for r in range(0, R - R % 4, 4):  # four queries over keys that are in cache
                for j in range(n):
                    sums = four_sums(q[h, r], q[h, r + 1], q[h, r + 2], q[h, r + 3], keys[row + j, key_head + h])
                    s[first + j, h, r], s[first + j, h, r + 1], s[first + j, h, r + 2], s[first + j, h, r + 3] = sums
            for r in range(R - R % 4, R):
                for j in range(n):
                    s[first + j, h, r] = one_sum(q[h, r], keys[row + j, key_head + h])

    return few_rows, many_rows


# named functions, not lambdas on one line: Numba's cache tells functions apart by file name, name, line and byte code, and
# the byte code doesn't hold the value of a constant
@jit
def _64(key):
    return 64


@jit
def _128(key):
    return 128


@jit
def _any(key):
    return len(key)


_few_64, _ = _dots_kernel(_64, _as_stored)
_few_128, _ = _dots_kernel(_128, _as_stored)
_few_any, _many_any = _dots_kernel(_any, _as_stored)
_few_64_brain, _ = _dots_kernel(_64, _from_brain)
_few_128_brain, _ = _dots_kernel(_128, _from_brain)


@jit
def _dots(q, keys, row, key_head, n, s, first):
    """s[first + j, h, r] = q[h, r] . keys[row + j, key_head + h] for all heads of s, all R rows and n keys.

    Key-major, so that a token's scores are written side by side.
    """
    few = s.shape[2] <= _FEW_ROWS
    if few and q.shape[2] == 128:
        _few_128(q, keys, row, key_head, n, s, first)
    elif few and q.shape[2] == 64:
        _few_64(q, keys, row, key_head, n, s, first)
    elif few:
        _few_any(q, keys, row, key_head, n, s, first)
    else:
        _many_any(q, keys, row, key_head, n, s, first)


@jit
def _score_step(q, k, format, start, n, heads, keys, s, first):
    """Scores of keys start .. start + n - 1 into s[first:]."""
    queries = q[heads[0] : heads[1]]
    few, d = s.shape[2] <= _FEW_ROWS, q.shape[2]
    if k.dtype == q.dtype:
        _dots(queries, k, start, heads[0], n, s, first)
    elif format == BRAIN and few and d == 128:
        _few_128_brain(queries, k, start, heads[0], n, s, first)
    elif format == BRAIN and few and d == 64:
        _few_64_brain(queries, k, start, heads[0], n, s, first)
    else:
        widen(k, start, n, heads[0], heads[1] - heads[0], format, keys)
        _dots(queries, keys, 0, 0, n, s, first)


@jit
def score_tiles(q, k, format, scale, limits, seen, group, tile, heads, tiles, keep_scores, u, m, ell, counts):
    """Scores, tile maxima and tile sums for the KV heads heads[0] .. heads[1] - 1 and tiles tiles[0] .. tiles[1] - 1.

    Parameters
    ----------
    q : float32 or int32 [H_kv, R, d], the grouped queries of a query block, 1/sqrt(d) folded in (float)
    k : stored [n_k, H_kv, d], C-contiguous;  format : see numerics
    scale : float32, multiplies the scores (1 for floats; the fixed-point step for integers)
    limits : int64 [R], keys that each row may see;  seen : keys that earlier blocks of this head have read
    keep_scores : u receives the scores themselves instead of exp(s - m)
    u : float32 [H_kv, R, n];  m : float32 [H_kv, R, T];  ell : float64 [H_kv, R, T]
    counts : int64 [H_kv, T, len(SCORE_COUNTS)]
    """
    R, d = q.shape[1], q.shape[2]
    n_heads = heads[1] - heads[0]
    keys = np.empty((_STEP, n_heads, d), q.dtype)
    s = np.empty((tile, n_heads, R), q.dtype)
    scores = np.empty(tile, np.float32)
    scratch = np.empty(tile, np.float32)
    most = limits.max()
    for t in range(tiles[0], tiles[1]):
        n0 = t * tile
        visible = min(tile, most - n0)
        for first in range(0, visible, _STEP):
            _score_step(q, k, format, n0 + first, min(_STEP, visible - first), heads, keys, s, first)
        for h in range(n_heads):
            kv = heads[0] + h
            adds = mults = writes = exps = compares = soft_adds = 0
            for r in range(R):
                w = min(max(limits[r] - n0, 0), tile)
                if w == 0:
                    m[kv, r, t] = -np.inf
                    ell[kv, r, t] = 0.0
                    continue
                adds += w * d
                mults += w * d
                writes += w
                for j in range(w):
                    scores[j] = np.float32(s[j, h, r]) * scale
                row = u[kv, r, n0 : n0 + w]
                if keep_scores:
                    row[:] = scores[:w]
                else:
                    m[kv, r, t], ell[kv, r, t] = stash_tile(scores, w, scratch, row)
                    exps += w
                    compares += w
                    soft_adds += 2 * w
            reads = max(n0 + visible - max(n0, seen), 0) * d * group + (R * d if t == 0 else 0)
            row_counts = (adds, mults, reads, writes, exps, compares, soft_adds, 0)
            for c in range(len(row_counts)):
                counts[kv, t, c] = row_counts[c]
