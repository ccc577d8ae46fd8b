"""Every method in plain float64 NumPy, one query at a time, written from the paper's algorithms and not from the kernels.

Given: a query's scores s (or its stash u per tile with tile maxima m), random numbers, budgets. Draws are a searchsorted
of the thresholds in the CDF. Nothing here is fast.
"""

import numpy as np


def softmax(s):
    """float64 [n] -> weights [n] that add up to 1."""
    e = np.exp(np.asarray(s, np.float64) - np.max(s))
    return e / e.sum()


def dense(q, k, v):
    """q [d], k, v [n, d] -> softmax(q K^T / sqrt(d)) V, all float64."""
    return softmax(k.astype(np.float64) @ q.astype(np.float64) / np.sqrt(len(q))) @ v.astype(np.float64)


def top_k(s, k):
    """Rows of the k largest scores (ties to the lowest row) and their softmax weights."""
    rows = np.sort(np.lexsort((np.arange(len(s)), -np.asarray(s, np.float64)))[:k])
    return rows, softmax(np.asarray(s)[rows])


def tile_starts(n, tile):
    return range(0, n, tile)


def stash(s, tile):
    """Algorithm 3: per tile m = max s, u = exp(s - m), l = sum u."""
    tiles = [np.asarray(s, np.float64)[a : a + tile] for a in tile_starts(len(s), tile)]
    m = np.array([t.max() for t in tiles])
    u = [np.exp(t - top) for t, top in zip(tiles, m)]
    return np.concatenate(u), m, np.array([x.sum() for x in u])


def tile_masses(m, ell):
    """exp(m - max m) * l, rounded to the grid of 2^-32 that makes prefix sums exact in any order."""
    return np.rint(np.exp(np.asarray(m, np.float64) - np.max(m)) * ell * 2.0**32) / 2.0**32


def weights(u, m, ell, tile):
    """float64 [n], unnormalised attention weights u * mass / l of each key's tile."""
    return np.asarray(u, np.float64) * np.repeat(tile_masses(m, ell) / ell, tile)[: len(u)]


def rows_at(weight, thresholds):
    """Rows whose CDF interval (before, after] holds each threshold in [0, 1]; a row without weight is never one."""
    cdf = np.cumsum(weight)
    last = np.max(np.flatnonzero(weight))
    found = np.searchsorted(cdf, np.asarray(thresholds) * cdf[-1], side="right")
    return np.minimum(found, last)


def iid_rows(weight, random):
    return rows_at(weight, random)


def stratified_rows(weight, random):
    S = len(random)
    return rows_at(weight, (np.arange(S) + random) / S)


def systematic_counts(weight, S, offset):
    """Times each row is drawn: whole numbers in (offset + S F(before), offset + S F(after)]  (Algorithm 5)."""
    weight = np.asarray(weight, np.float64)
    ticks = (np.arange(1, S + 1) - offset) / S  # the CDF's values at which the position reaches 1 ... S
    cdf = np.cumsum(weight) / weight.sum()
    last = np.max(np.flatnonzero(weight))
    rows = np.minimum(np.searchsorted(cdf, ticks, side="left"), last)
    return np.bincount(rows, minlength=len(weight))


def largest_remainder_budgets(masses, S):
    """Algorithm 4: floor of the shares, the rest to the largest fractions, ties to the lowest tile."""
    share = S / np.sum(masses) * np.asarray(masses, np.float64)
    budgets = np.floor(share).astype(int)
    order = np.lexsort((np.arange(len(share)), -(share - budgets)))
    budgets[order[: S - budgets.sum()]] += 1
    return budgets


def proportional_counts(u, m, ell, tile, S, offsets):
    """Algorithms 4 and 5: largest-remainder budgets, then systematic counts inside each tile with its own offset."""
    counts = np.zeros(len(u), int)
    for t, budget in enumerate(largest_remainder_budgets(tile_masses(m, ell), S)):
        if budget:
            part = slice(t * tile, (t + 1) * tile)
            counts[part] = systematic_counts(u[part], budget, offsets[t])
    return counts


def flash_counts(u, tile, S, offsets):
    """Algorithm 7: every tile draws max(1, floor(S / T)) times."""
    each = max(1, S // len(offsets))
    parts = [slice(a, a + tile) for a in tile_starts(len(u), tile)]
    return np.concatenate([systematic_counts(u[part], each, a) for part, a in zip(parts, offsets)])


def flash_output(counts, m, ell, tile, v):
    """Algorithm 8: tile means weighted by the tiles' masses."""
    mass = tile_masses(m, ell)
    parts = [slice(a, a + tile) for a in tile_starts(len(counts), tile)]
    means = [counts[part] @ v[part].astype(np.float64) / counts[part].sum() for part in parts]
    return sum(w * mean for w, mean in zip(mass, means)) / mass.sum()


def bernoulli_draws(q, B, random):
    """Eq. 8-9: signed number of the B draws in which feature i came up; random [B, d]."""
    share = np.abs(q) / np.abs(q).max()
    return (np.sign(q) * (random < share).sum(axis=0)).astype(int)


def stratified_bernoulli_draws(q, B, random):
    """floor(B a) + Bernoulli(frac(B a)) with a = |q| / max |q|; random [d]."""
    expected = B * np.abs(q) / np.abs(q).max()
    return (np.sign(q) * (np.floor(expected) + (random < expected - np.floor(expected)))).astype(int)


def bernoulli_scores(draws, norm, B, k):
    """Eq. 5: norm / B * draws K^T."""
    return norm / B * (draws @ k.astype(np.float64).T)


def mean_group_scores(queries, k, B, random):
    """Eq. 10-13: p_g = (m_hat * q_g / m) K^T with m the mean of |q_g| and one Bernoulli draw for the group; random [B, d]."""
    mean = np.abs(queries).mean(axis=0)
    norm = mean.max()
    estimate = norm / B * (random < mean / norm).sum(axis=0)
    ratio = np.divide(queries, mean, out=np.zeros_like(queries), where=mean > 0)
    return (estimate * ratio) @ k.astype(np.float64).T
