"""The value stage: gather-and-add of sampled rows, multiply-accumulate of weighted rows, merge of tile partials."""

from __future__ import annotations

import numpy as np

from ..jit import jit, jit_fast
from .numerics import widen

# what the value stage counts, per tile, in this order
VALUE_COUNTS = ("value_adds", "value_mults", "value_reads", "saturations")
_ADD, _MULT, _READ, _SATURATED = range(4)
# what merging tiles counts, per tile, in this order
MERGE_COUNTS = ("merge_adds", "merge_mults", "merge_exps")
# what writing the normalised output counts, in this order: multiplications and shifts that normalise, scalars written
OUTPUT_COUNTS = ("normalize_mults", "normalize_shifts", "value_writes")
_NORMALIZE, _SHIFT, _WRITE = range(3)

_HIGHEST, _LOWEST = 2**31 - 1, -(2**31)


@jit
def _add_row(out, row):
    for i in range(len(row)):
        out[i] += row[i]


@jit
def _add_row_saturating(out, row):
    """int32 accumulation that stops at the ends of its range; returns how often it did."""
    saturated = 0
    for i in range(len(row)):
        total = np.int64(out[i]) + np.int64(row[i])
        if total > _HIGHEST or total < _LOWEST:
            saturated += 1
            total = min(max(total, _LOWEST), _HIGHEST)
        out[i] = total
    return saturated


@jit
def _scale(x, factor, out, counts):
    """out = x * factor: normalised, written and counted element by element."""
    for i in range(len(x)):
        out[i] = x[i] * factor
        counts[_NORMALIZE] += 1
        counts[_WRITE] += 1


@jit
def _shift(x, bits, step, out, counts):
    """out = (x >> bits) * step, rounding half up; the step is the format's and costs nothing."""
    half = (1 << bits) >> 1
    for i in range(len(x)):
        out[i] = ((np.int64(x[i]) + half) >> bits) * step
        counts[_SHIFT] += 1
        counts[_WRITE] += 1


@jit
def _divide(x, divisor, by_shift, out, counts):
    """out = x / divisor, counted as shifts where the divisor is a power of two (the quotient is the same)."""
    for i in range(len(x)):
        out[i] = x[i] / divisor
        counts[_SHIFT if by_shift else _NORMALIZE] += 1
        counts[_WRITE] += 1


@jit
def divide_sums(sums, S, bits, value_step, out, counts):
    """Normalise the sums of S drawn rows and write them.

    sums : float32 or int32 [R, d];  bits : log2 S to divide by shifts (int32 sums only), or -1 to multiply by 1 / S
    value_step : value of one unit of the sums (1 for floats);  out : float32 [R, d];  counts : int64 [len(OUTPUT_COUNTS)]
    """
    for r in range(len(sums)):
        if bits >= 0:
            _shift(sums[r], bits, np.float32(value_step), out[r], counts)
        else:
            _scale(sums[r], np.float32(value_step / S), out[r], counts)


def output_counts(heads: int, elements: int, shifted: bool = False) -> np.ndarray:
    """int64 [heads, len(OUTPUT_COUNTS)] of runners that normalise and write `elements` scalars a head at once, as an array."""
    return np.tile(np.array([0, elements, elements] if shifted else [elements, 0, elements], np.int64), (heads, 1))


@jit
def add_rows(v, format, head, rows, budgets, tiles, may_saturate, by_tile, out, counts, seen, union):
    """Add every drawn row of V to its query's accumulator: no multiplication.

    Parameters
    ----------
    v : stored [n_k, H_kv, d];  head : KV head;  rows : int32 [R, S], drawn keys in tile order, with repeats
    budgets : int64 [R, T];  tiles : int64 [R]
    may_saturate : check every int32 addition (int accumulators only)
    by_tile : one accumulator per tile (flash), else one per row
    out : float32 or int32 [R, T or 1, d], zero at the start;  counts : int64 [T, len(VALUE_COUNTS)]
    seen : bool [G, n_k], keys read by each grouped head so far;  union : bool [n_k], keys drawn by any row of this block
    """
    R = budgets.shape[0]
    d = v.shape[2]
    G = seen.shape[0]
    row = np.empty((1, 1, d), out.dtype)
    for r in range(R):
        place = 0
        for t in range(tiles[r]):
            accumulator = out[r, t if by_tile else 0]
            adds = 0
            for _ in range(budgets[r, t]):
                n = rows[r, place]
                place += 1
                widen(v, n, 1, head, 1, format, row)
                if may_saturate:
                    counts[t, _SATURATED] += _add_row_saturating(accumulator, row[0, 0])
                else:
                    _add_row(accumulator, row[0, 0])
                adds += d
                seen[r % G, n] = True
                union[n] = True
            counts[t, _ADD] += adds
            counts[t, _READ] += adds


@jit_fast
def _weigh_rows(weights, rows, w, out):
    """out[i] += sum over j < w of weights[j] * rows[j, 0, i]."""
    d = rows.shape[2]
    for j in range(w):
        x = weights[j]
        for i in range(d):
            out[i] += x * rows[j, 0, i]


@jit
def add_weighted_tile(v, format, head, weights, limits, t, tile, steps, out, counts):
    """One tile of the dense value stage: out[r] = sum of weights[r, n] * V[n], for all rows.

    weights : float32 [R, n_k], or the same in fixed point where `out` is int32 (steps = 2^fraction bits, rounded to nearest)
    out : float32 or int32 [R, d];  counts : int64 [T, len(VALUE_COUNTS)]
    """
    R, d = out.shape
    n0 = t * tile
    visible = min(limits.max() - n0, tile)
    rows = np.empty((tile, 1, d), out.dtype)
    scaled = np.empty(tile, out.dtype)
    widen(v, n0, visible, head, 1, format, rows)
    for r in range(R):
        w = min(max(limits[r] - n0, 0), tile)
        out[r] = 0
        for j in range(w):
            scaled[j] = weights[r, n0 + j] if steps == 0 else np.rint(weights[r, n0 + j] * steps)
        _weigh_rows(scaled, rows, w, out[r])
        counts[t, _ADD] += w * d
        counts[t, _MULT] += w * d
        counts[t, _READ] += w * d


@jit
def dense_values(v, format, head, u, m, ell, limits, tile, steps, value_step, partial, out, counts, merge, written):
    """Dense attention output, tile by tile with the running maximum of flash attention.

    u, m, ell : as stashed;  partial : float32 or int32 [R, d], work space;  out : float32 [R, d], the normalised output
    value_step : float32, value of one unit of the tile sums (1 for floats);  merge : int64 [T, len(MERGE_COUNTS)]
    written : int64 [len(OUTPUT_COUNTS)], of the multiplications by 1 / ell
    """
    R, T = m.shape
    d = out.shape[1]
    top = np.full(R, -np.inf)
    total = np.zeros(R)
    out[:] = 0
    for t in range(T):
        if t * tile >= limits.max():
            break
        add_weighted_tile(v, format, head, u, limits, t, tile, steps, partial, counts)
        for r in range(R):
            if ell[r, t] == 0:
                continue
            new = max(top[r], np.float64(m[r, t]))
            old_scale = np.float32(np.exp(top[r] - new))
            new_scale = np.float32(np.exp(np.float64(m[r, t]) - new))
            step = new_scale * value_step
            for i in range(d):
                out[r, i] = out[r, i] * old_scale + np.float32(partial[r, i]) * step
            total[r] = total[r] * old_scale + ell[r, t] * new_scale
            top[r] = new
            merge[t, 0] += d + 1
            merge[t, 1] += 2 * (d + 1)
            merge[t, 2] += 2
    for r in range(R):
        _scale(out[r], np.float32(1.0 / total[r]), out[r], written)


@jit
def weighted_rows(v, format, head, rows, weights, budgets, tiles, steps, value_step, partial, out, counts, seen, union, written):
    """Top-k's value stage: multiply-accumulate of the selected rows, in tile order.

    rows : int32 [R, k];  weights : float32 [R, k], softmax of the selected scores, not normalised
    partial : float32 or int32 [d], work space;  written : int64 [len(OUTPUT_COUNTS)], of the multiplications by 1 / total
    the rest as in `add_rows` and `add_weighted_tile`.
    """
    R = budgets.shape[0]
    d = out.shape[1]
    G = seen.shape[0]
    row = np.empty((1, 1, d), partial.dtype)
    weight = np.empty(1, partial.dtype)
    for r in range(R):
        place = 0
        partial[:] = 0
        total = 0.0
        for t in range(tiles[r]):
            for _ in range(budgets[r, t]):
                n = rows[r, place]
                total += np.float64(weights[r, place])
                weight[0] = weights[r, place] if steps == 0 else np.rint(weights[r, place] * steps)
                place += 1
                widen(v, n, 1, head, 1, format, row)
                _weigh_rows(weight, row, 1, partial)
                counts[t, _ADD] += d
                counts[t, _MULT] += d
                counts[t, _READ] += d
                seen[r % G, n] = True
                union[n] = True
        for i in range(d):
            out[r, i] = np.float32(partial[i]) * value_step
        _scale(out[r], np.float32(1.0 / total), out[r], written)


@jit
def merge_tiles(partials, m, ell, tiles, budgets, value_step, by_shift, out, counts, written):
    """Flash's second kernel (Algorithm 8): weigh each tile's partial sum by its mass and add.

    The division by the tiles' common budget is normalisation, not merging.

    partials : float32 or int32 [R, T, d];  by_shift : all budgets are powers of two and a fixed-point machine divides by shifts
    out : float32 [R, d];  counts : int64 [len(MERGE_COUNTS)];  written : int64 [len(OUTPUT_COUNTS)]
    """
    R, _, d = partials.shape
    for r in range(R):
        n = tiles[r]
        top = m[r, 0]
        for t in range(1, n):
            top = max(top, m[r, t])
        total = 0.0
        out[r] = 0
        for t in range(n):
            mass = np.exp(np.float64(m[r, t]) - np.float64(top)) * ell[r, t]
            total += mass
            weight = np.float32(mass)
            for i in range(d):
                out[r, i] += weight * np.float32(partials[r, t, i])
            counts[0] += d + 2
            counts[1] += d + 1
            counts[2] += 1
        inverse = np.float32(1.0 / total) * value_step
        for i in range(d):
            out[r, i] *= inverse
        counts[1] += d
        _divide(out[r], np.float32(budgets[r, 0]), by_shift, out[r], written)
