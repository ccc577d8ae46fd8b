"""Bernoulli qK^T: sparse ternary queries that read only some features of K (Section 5, Appendix C of arXiv:2605.01910).

K is stored feature-major in tiles, [H_kv, T, d, tile]: a tile's feature is one contiguous run, and unread ones are skipped.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from .exact import SCORE_COUNTS
from .numerics import stash_tile, widen

# what drawing a query's features counts, per KV head, in this order
FEATURE_COUNTS = ("sampling_random_numbers", "sampling_compares", "sampling_adds", "sampling_mults", "sampling_floors")
_RANDOM, _COMPARE, _ADD, _MULT, _FLOOR = range(5)
MONTE_CARLO, STRATIFIED, MEAN_GROUP = 0, 1, 2

__all__ = ["FEATURE_COUNTS", "MEAN_GROUP", "MONTE_CARLO", "SCORE_COUNTS", "STRATIFIED", "draw_features", "score_features"]


@jit
def _draw(magnitude, B, stratified, random, counts, drawn):
    """How often each feature is drawn: Monte Carlo (B Bernoulli draws each) or stratified (Eq. 8-9, B at a time).

    magnitude : float32 [d], >= 0;  random : float64 [B * d] or [d];  drawn : int64 [d], result

    Returns
    -------
    norm : float32, the largest magnitude
    """
    d = len(magnitude)
    norm = magnitude[0]
    for i in range(1, d):
        norm = max(norm, magnitude[i])
    counts[_COMPARE] += d
    for i in range(d):
        share = np.float64(magnitude[i]) / np.float64(norm) if norm > 0 else 0.0
        drawn[i] = 0
        if stratified:
            expected = B * share
            drawn[i] = np.int64(np.floor(expected))
            if random[i] < expected - drawn[i]:
                drawn[i] += 1
            counts[_FLOOR] += 1
            counts[_ADD] += 2
            counts[_MULT] += 1
            counts[_RANDOM] += 1
            counts[_COMPARE] += 1
        else:
            for b in range(B):
                if random[b * d + i] < share:
                    drawn[i] += 1
            counts[_RANDOM] += B
            counts[_COMPARE] += B
            counts[_ADD] += drawn[i]
        counts[_MULT] += 1
    return norm


@jit
def draw_features(q, group, B, kind, random, counts, drawn, weights, norms):
    """Draw the features of every query of one KV head.

    Parameters
    ----------
    q : float32 [R, d], 1/sqrt(d) folded in;  group : G;  kind : MONTE_CARLO, STRATIFIED or MEAN_GROUP
    random : float64 [R, B * d or d] in [0, 1); for mean-group the row of each group's first head is used
    drawn : int64 [R, d], draws with the query's sign (mean-group: without);  weights : float32 [R, d], mean-group's
        m_hat * q / m without norm / B;  norms : float32 [R], results
    """
    R, d = q.shape
    mean = np.empty(d, np.float32)
    for r in range(R):
        if kind != MEAN_GROUP:
            norms[r] = _draw(np.abs(q[r]), B, kind == STRATIFIED, random[r], counts, drawn[r])
            for i in range(d):
                if q[r, i] < 0:
                    drawn[r, i] = -drawn[r, i]
        elif r % group == 0:
            mean[:] = 0
            for g in range(group):
                for i in range(d):
                    mean[i] += np.abs(q[r + g, i])
            for i in range(d):
                mean[i] /= np.float32(group)
            counts[_ADD] += group * d
            counts[_MULT] += d
            norms[r] = _draw(mean, B, False, random[r], counts, drawn[r])
            for g in range(group):
                norms[r + g] = norms[r]
                drawn[r + g] = drawn[r]
                for i in range(d):
                    weights[r + g, i] = drawn[r, i] * (q[r + g, i] / mean[i]) if drawn[r, i] else 0.0
                    counts[_MULT] += 2 if drawn[r, i] else 0


@jit
def _add_repeated(sums, row, w, times):
    """sums[:w] += row[:w], |times| times over, subtracting where times is negative; only additions."""
    for _ in range(times):
        for j in range(w):
            sums[j] += row[j]
    for _ in range(-times):
        for j in range(w):
            sums[j] -= row[j]


@jit
def score_features(k, format, scale, drawn, weights, norms, kind, B, limits, group, tile, tiles, keep_scores,
                   sums, u, m, ell, counts, features):  # fmt: skip
    """Scores of one KV head from the drawn features only.

    Parameters
    ----------
    k : stored [T, d, tile], one head;  scale : float32, value of one stored unit of K
    drawn, weights, norms : from `draw_features`;  tiles : (first, last + 1);  sums : float32 or int32 [R, tile], work space
    u, m, ell : [R, n], [R, T], [R, T] as in `score_tiles`;  counts : int64 [T, len(SCORE_COUNTS)]
    features : bool [d], result: read by any row of this block
    """
    R, d = drawn.shape
    row = np.empty((1, 1, tile), sums.dtype)
    scratch = np.empty(tile, np.float32)
    scores = np.empty(tile, np.float32)
    per_head = np.zeros((group, d), np.bool_)
    for r in range(R):
        of_head = per_head[r % group]
        for i in range(d):
            of_head[i] |= drawn[r, i] != 0
            features[i] |= drawn[r, i] != 0
    for t in range(tiles[0], tiles[1]):
        n0 = t * tile
        visible = min(limits.max() - n0, tile)
        sums[:] = 0
        adds = mults = writes = exps = compares = soft_adds = soft_mults = 0
        for i in range(d):
            if not features[i]:
                continue
            widen(k, t, 1, i, 1, format, row)
            for r in range(R):
                if drawn[r, i] == 0:
                    continue
                w = min(max(limits[r] - n0, 0), tile)
                if kind == MEAN_GROUP:
                    for j in range(w):
                        sums[r, j] += weights[r, i] * row[0, 0, j]
                    adds += w
                    mults += w
                else:
                    _add_repeated(sums[r], row[0, 0], w, drawn[r, i])
                    adds += w * abs(drawn[r, i])
        for r in range(R):
            w = min(max(limits[r] - n0, 0), tile)
            if w == 0:
                m[r, t] = -np.inf
                ell[r, t] = 0.0
                continue
            factor = np.float32(norms[r] / np.float32(B)) * scale
            for j in range(w):
                scores[j] = np.float32(sums[r, j]) * factor
            soft_mults += w
            writes += w
            if keep_scores:
                u[r, n0 : n0 + w] = scores[:w]
            else:
                m[r, t], ell[r, t] = stash_tile(scores, w, scratch, u[r, n0 : n0 + w])
                exps += w
                compares += w
                soft_adds += 2 * w
        reads = per_head.sum() * visible + (R * d if t == 0 else 0)
        row_counts = (adds, mults, reads, writes, exps, compares, soft_adds, soft_mults)
        for c in range(len(row_counts)):
            counts[t, c] = row_counts[c]
