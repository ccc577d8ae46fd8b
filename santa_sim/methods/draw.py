"""Which keys are drawn inside each tile, from the stashed u and the tile's positions or thresholds."""

from __future__ import annotations

import numpy as np

from ..jit import jit

# what drawing counts, per tile, in this order
DRAW_COUNTS = ("sampling_compares", "sampling_adds", "sampling_mults", "sampling_floors")
_COMPARE, _ADD, _MULT, _FLOOR = range(4)


@jit
def draw_positions(u, ell, limits, tile, budgets, low, high, by_threshold, every_tile, counts, rows):
    """Systematic draws: key n is drawn floor(position after it) - floor(position before it) times (Algorithm 5).

    position = low + cumulative u * (high - low) / ell, and exactly `high` once the cumulative u has reached ell, so the
    tile gives exactly its budget and a key without mass is never drawn.

    Parameters
    ----------
    u : float32 [R, n];  ell : float64 [R, T];  limits : int64 [R];  budgets : int64 [R, T];  low, high : float64 [R, T]
    by_threshold : compare the running sum of u with scaled thresholds (a multiplication per sample), instead of scaling
        every u (a multiplication per key): the same rows up to rounding at the thresholds themselves
    every_tile : also scan tiles without a budget, as one global CDF does
    counts : int64 [T, len(DRAW_COUNTS)];  rows : int32 [R, >= sum of budgets], results in tile order
    """
    R, T = budgets.shape
    for r in range(R):
        place = 0
        for t in range(T):
            n0 = t * tile
            w = min(limits[r] - n0, tile)
            if w <= 0:
                break
            if budgets[r, t] == 0 and not every_tile:
                continue
            start, end, total = low[r, t], high[r, t], ell[r, t]
            cumulative = 0.0
            compares = adds = mults = floors = 0
            if by_threshold:
                k = np.int64(np.floor(start)) + 1
                last = np.int64(np.floor(end))
                inverse = total / (end - start) if end > start else 0.0
                threshold = min((k - start) * inverse, total)
                mults += 1
                adds += 1
                for j in range(w):
                    cumulative += np.float64(u[r, n0 + j])
                    adds += 1
                    compares += 1
                    while k <= last and cumulative >= threshold:
                        rows[r, place] = n0 + j
                        place += 1
                        k += 1
                        threshold = min((k - start) * inverse, total)
                        mults += 1
                        adds += 1
                        compares += 1
            else:
                scale = (end - start) / total
                before = np.int64(np.floor(start))
                mults += 1
                floors += 1
                for j in range(w):
                    cumulative += np.float64(u[r, n0 + j])
                    position = end if cumulative == total else min(start + scale * cumulative, end)
                    after = np.int64(np.floor(position))
                    for _ in range(after - before):
                        rows[r, place] = n0 + j
                        place += 1
                    before = after
                adds += 3 * w
                mults += w
                floors += w
            counts[t, _COMPARE] += compares
            counts[t, _ADD] += adds
            counts[t, _MULT] += mults
            counts[t, _FLOOR] += floors


@jit
def draw_thresholds(u, ell, limits, tile, budgets, residual, counts, rows):
    """Independent draws: binary search of each threshold in its tile's running sum of u; every tile is scanned once.

    residual : float64 [R, S], thresholds in units of u, ordered by tile;  the rest as in `draw_positions`.
    """
    R, T = budgets.shape
    running = np.empty(tile)
    for r in range(R):
        place = 0
        for t in range(T):
            n0 = t * tile
            w = min(limits[r] - n0, tile)
            if w <= 0:
                break
            cumulative = 0.0
            for j in range(w):
                cumulative += np.float64(u[r, n0 + j])
                running[j] = cumulative
            counts[t, _ADD] += w
            for _ in range(budgets[r, t]):
                threshold = residual[r, place]
                first, last = 0, w - 1  # the smallest j with running[j] > threshold, else the last key that has mass
                while first < last:
                    middle = (first + last) >> 1
                    counts[t, _COMPARE] += 1
                    if running[middle] > threshold or running[middle] == ell[r, t]:
                        last = middle
                    else:
                        first = middle + 1
                rows[r, place] = n0 + first
                place += 1
