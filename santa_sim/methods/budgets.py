"""How many samples each tile gets, from the tile maxima and sums alone (the global step of every sampled method).

Every function works on one KV head: rows R = queries of the block x grouped heads. A *position* is S times the CDF plus an
offset: key n is drawn as often as its positions' interval (before it, after it] contains whole numbers. `low` and `high`
are a tile's first and last position; `budgets` how many whole numbers lie between.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from .select import select_largest

# what the budget step counts, per KV head, in this order
BUDGET_COUNTS = ("softmax_exps", "softmax_compares", "softmax_adds", "softmax_mults",
                 "sampling_random_numbers", "sampling_compares", "sampling_adds", "sampling_mults",
                 "sampling_floors")  # fmt: skip
_EXP, _MAX, _SOFT_ADD, _SOFT_MULT, _RANDOM, _COMPARE, _ADD, _MULT, _FLOOR = range(9)

_STEP, _STEPS = 2.0**-32, 2.0**32


@jit
def tile_masses(m, ell, counts, masses, prefix):
    """Tile masses exp(m - max m) * ell, on a grid of 2^-32, and their prefix sums.

    The grid makes float64 sums exact (up to 2^21 in all), so that every order of summation gives the same prefix.

    Parameters
    ----------
    m : float32 [T];  ell : float64 [T];  masses : float64 [T];  prefix : float64 [T + 1], results
    """
    T = len(m)
    top = m[0]
    for t in range(1, T):
        top = max(top, m[t])
    prefix[0] = 0.0
    for t in range(T):
        masses[t] = np.rint(np.exp(np.float64(m[t]) - np.float64(top)) * ell[t] * _STEPS) * _STEP if ell[t] > 0 else 0.0
        prefix[t + 1] = prefix[t] + masses[t]
    counts[_EXP] += T
    counts[_MAX] += T
    counts[_SOFT_ADD] += T
    counts[_SOFT_MULT] += T
    counts[_ADD] += T


@jit
def systematic(m, ell, tiles, S, offset, counts, budgets, low, high):
    """Positions of one global systematic sample: prefix mass times S / Z plus one offset per row.

    Parameters
    ----------
    m, ell : [R, T];  tiles : int64 [R], tiles that hold visible keys;  S : samples per row
    offset : float64 [R, 1] in [0, 1);  counts : int64 [len(BUDGET_COUNTS)]
    budgets : int64 [R, T];  low, high : float64 [R, T], results
    """
    R, T = m.shape
    masses, prefix = np.empty(T), np.empty(T + 1)
    for r in range(R):
        n = tiles[r]
        tile_masses(m[r, :n], ell[r, :n], counts, masses, prefix)
        scale = S / prefix[n]
        budgets[r] = 0
        position = offset[r, 0]
        for t in range(n):
            low[r, t] = position
            # at the last tile that holds mass the position is S + offset exactly
            end = S + offset[r, 0]
            position = end if prefix[t + 1] == prefix[n] else min(offset[r, 0] + scale * prefix[t + 1], end)
            high[r, t] = position
            budgets[r, t] = np.int64(np.floor(position)) - np.int64(np.floor(low[r, t]))
            counts[_MULT] += 1
            counts[_ADD] += 2
            counts[_FLOOR] += 1
        counts[_RANDOM] += 1
        counts[_MULT] += 1


@jit
def largest_remainder(m, ell, tiles, S, offset, counts, budgets, low, high):
    """Budgets by largest remainder (Algorithm 4 of arXiv:2605.01910), ties to the lowest tile; one offset per tile.

    offset : float64 [R, T] in [0, 1); the rest as in `systematic`.
    """
    R, T = m.shape
    masses, prefix = np.empty(T), np.empty(T + 1)
    fraction, heap = np.empty(T), np.empty(T, np.int64)
    for r in range(R):
        n = tiles[r]
        tile_masses(m[r, :n], ell[r, :n], counts, masses, prefix)
        scale = S / prefix[n]
        budgets[r] = 0
        left = S
        for t in range(n):
            share = scale * masses[t]
            whole = np.int64(np.floor(share))
            budgets[r, t] = whole
            fraction[t] = share - whole
            left -= whole
        size, compares = select_largest(fraction, n, left, heap)
        for i in range(size):
            budgets[r, heap[i]] += 1
        for t in range(n):
            low[r, t] = offset[r, t]
            high[r, t] = offset[r, t] + budgets[r, t]
        counts[_MULT] += n + 1
        counts[_FLOOR] += n
        counts[_ADD] += 2 * n + size
        counts[_COMPARE] += compares
        counts[_RANDOM] += n


@jit
def uniform(tiles, S, offset, counts, budgets, low, high):
    """Flash: every tile draws max(1, floor(S / T)) samples, with an offset of its own (Algorithm 7)."""
    R = len(tiles)
    for r in range(R):
        n = tiles[r]
        each = max(1, S // n)
        budgets[r] = 0
        for t in range(n):
            budgets[r, t] = each
            low[r, t] = offset[r, t]
            high[r, t] = offset[r, t] + each
        counts[_RANDOM] += n


@jit
def thresholds(m, ell, tiles, S, random, stratified, counts, budgets, residual):
    """Tiles of S independent draws: uniform over the whole CDF, or one in each of S equal strata.

    Parameters
    ----------
    random : float64 [R, S] in [0, 1);  stratified : draw j falls in stratum j
    budgets : int64 [R, T];  residual : float64 [R, S], what is left of each draw inside its tile, in units of u, ordered
        by tile and within a tile by draw
    """
    R, T = m.shape
    masses, prefix = np.empty(T), np.empty(T + 1)
    tile_of, inside, place = np.empty(S, np.int64), np.empty(S), np.empty(T + 1, np.int64)
    for r in range(R):
        n = tiles[r]
        tile_masses(m[r, :n], ell[r, :n], counts, masses, prefix)
        budgets[r] = 0
        total = prefix[n]
        for j in range(S):
            threshold = (j + random[r, j]) * (total / S) if stratified else random[r, j] * total
            first, last = 0, n - 1  # the smallest t with prefix[t + 1] > threshold, else the last tile that has mass
            while first < last:
                middle = (first + last) >> 1
                counts[_COMPARE] += 1
                if prefix[middle + 1] > threshold or prefix[middle + 1] == total:
                    last = middle
                else:
                    first = middle + 1
            tile_of[j] = first
            inside[j] = (threshold - prefix[first]) * (ell[r, first] / masses[first])
            budgets[r, first] += 1
        place[0] = 0
        for t in range(n):
            place[t + 1] = place[t] + budgets[r, t]
        for j in range(S):
            residual[r, place[tile_of[j]]] = inside[j]
            place[tile_of[j]] += 1
        counts[_RANDOM] += S
        counts[_MULT] += 2 * S
        counts[_ADD] += 2 * S if stratified else S
