"""The value stage's loops against Python integers and float64, and its int32 accumulators at the ends of their range."""

import numpy as np
import pytest

from santa_sim.fixed_point import shift_right_round
from santa_sim.methods import accumulate
from santa_sim.methods.numerics import PLAIN

from . import reference
from .stages import stash


def add(v, rows, may_saturate, dtype=np.int32, tile=4):
    """Sums [d] of the drawn rows (in tile order) of one head, and the counts by name."""
    n, _, d = v.shape
    T = -(-n // tile)
    rows = np.sort(np.asarray(rows, np.int32))[None]
    budgets = np.bincount(rows[0] // tile, minlength=T)[None].astype(np.int64)
    out, counts = np.zeros((1, 1, d), dtype), np.zeros((T, len(accumulate.VALUE_COUNTS)), np.int64)
    seen, union = np.zeros((1, n), bool), np.zeros(n, bool)
    accumulate.add_rows(v, PLAIN, 0, rows, budgets, np.array([T]), may_saturate, False, out, counts, seen, union)
    assert np.flatnonzero(union).tolist() == np.flatnonzero(seen[0]).tolist() == sorted(set(rows[0]))
    return out[0, 0], dict(zip(accumulate.VALUE_COUNTS, counts.sum(axis=0)))


@pytest.mark.parametrize("may_saturate", [False, True])
def test_integer_sums_equal_python_integers(may_saturate):
    rng = np.random.default_rng(1)
    v = rng.integers(-(2**15), 2**15, (10, 1, 5)).astype(np.int16)
    rows = rng.integers(0, 10, 300)
    sums, counts = add(v, rows, may_saturate)
    assert sums.tolist() == [sum(int(v[n, 0, i]) for n in rows) for i in range(5)]
    assert counts == {"value_adds": 300 * 5, "value_mults": 0, "value_reads": 300 * 5, "saturations": 0}


def test_saturation_is_reported_and_never_wraps():
    """2^16 + 3 additions of +-32,767 and -32,768: each addition that would leave int32 stops at its end and is counted."""
    v = np.array([[[32767, -32768, 1]]], np.int16)
    count = 2**16 + 3
    sums, counts = add(v, np.zeros(count, np.int32), True)
    high, low, saturations = 0, 0, 0
    for _ in range(count):
        saturations += (high + 32767 > 2**31 - 1) + (low - 32768 < -(2**31))
        high, low = min(high + 32767, 2**31 - 1), max(low - 32768, -(2**31))
    assert sums.tolist() == [high, low, count] == [2**31 - 1, -(2**31), count]
    assert counts["saturations"] == saturations > 0


def test_a_saturated_sum_comes_back():
    v = np.array([[[32767]], [[-32768]]], np.int16)
    up = 2**16 + 3
    sums, _ = add(v, np.r_[np.zeros(up, np.int32), np.ones(10, np.int32)], True, tile=1)
    assert sums.tolist() == [2**31 - 1 - 10 * 32768]


def test_flash_keeps_one_sum_per_tile():
    v = np.arange(6 * 2, dtype=np.float32).reshape(6, 1, 2)
    rows, budgets = np.array([[0, 2, 2, 5]], np.int32), np.array([[1, 2, 1]])
    out, counts = np.zeros((1, 3, 2), np.float32), np.zeros((3, len(accumulate.VALUE_COUNTS)), np.int64)
    accumulate.add_rows(v, PLAIN, 0, rows, budgets, np.array([3]), False, True, out, counts, np.zeros((1, 6), bool), np.zeros(6, bool))
    assert out[0].tolist() == [[0, 1], [8, 10], [10, 11]]
    assert counts[:, 0].tolist() == [2, 4, 2]


@pytest.mark.parametrize("S", [1, 20, 96])
def test_merging_tiles_is_algorithm_8(S):
    rng = np.random.default_rng(S)
    scores, v = rng.normal(0, 3, (2, 75)), rng.normal(0, 1, (75, 4)).astype(np.float32)
    stashed = stash(scores, 16)
    each = max(1, S // 5)
    partials, expected = np.zeros((2, 5, 4), np.float32), []
    for r in range(2):
        counts = reference.flash_counts(stashed.u[r], 16, S, rng.random(5))
        partials[r] = [counts[t : t + 16] @ v[t : t + 16] for t in range(0, 75, 16)]
        expected.append(reference.flash_output(counts, stashed.m[r], stashed.ell[r], 16, v))
    out, counts = np.zeros((2, 4), np.float32), np.zeros(len(accumulate.MERGE_COUNTS), np.int64)
    written = np.zeros(3, np.int64)
    accumulate.merge_tiles(partials, stashed.m, stashed.ell, stashed.tiles, np.full((2, 5), each), np.float32(1), False, out, counts, written)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)
    assert written.tolist() == [2 * 4, 0, 2 * 4] and dict(zip(accumulate.MERGE_COUNTS, counts))["merge_exps"] == 2 * 5


@pytest.mark.parametrize("order", [1, -1])
def test_dense_tiles_rescale_when_the_maximum_grows(order):
    """Tiles in rising and in falling order of their scores, 60 apart; also a first tile far below all others."""
    rng = np.random.default_rng(2)
    scores = np.sort(rng.normal(0, 20, (1, 64)))[:, ::order]
    v = rng.normal(0, 1, (64, 1, 6)).astype(np.float32)
    stashed = stash(scores, 8)
    out, counts, merge = np.zeros((1, 6), np.float32), np.zeros((8, 4), np.int64), np.zeros((8, 3), np.int64)
    written = np.zeros(3, np.int64)
    accumulate.dense_values(v, PLAIN, 0, stashed.u, stashed.m, stashed.ell, stashed.limits, 8, 0, np.float32(1),
                            np.zeros((1, 6), np.float32), out, counts, merge, written)  # fmt: skip
    expected = reference.softmax(scores[0].astype(np.float32)) @ v[:, 0].astype(np.float64)
    np.testing.assert_allclose(out[0], expected, rtol=1e-5, atol=1e-6)
    assert written.tolist() == [6, 0, 6] and counts[:, 0].sum() == counts[:, 1].sum() == 64 * 6


def test_weighted_rows_are_a_softmax_of_the_selected():
    v = np.arange(8, dtype=np.float32).reshape(4, 1, 2)
    rows, weights, budgets = np.array([[1, 3]], np.int32), np.array([[1.0, 0.5]], np.float32), np.array([[1, 1]])
    out, counts = np.zeros((1, 2), np.float32), np.zeros((2, 4), np.int64)
    accumulate.weighted_rows(v, PLAIN, 0, rows, weights, budgets, np.array([2]), 0, np.float32(1), np.zeros(2, np.float32), out, counts,
                             np.zeros((1, 4), bool), np.zeros(4, bool), np.zeros(3, np.int64))  # fmt: skip
    np.testing.assert_allclose(out, [(v[1, 0] + 0.5 * v[3, 0]) / 1.5], rtol=1e-6)


@pytest.mark.parametrize("dtype, bits", [(np.int32, 3), (np.int32, -1), (np.float32, -1)])
def test_dividing_counts_what_it_divides_and_writes(dtype, bits):
    sums = np.random.default_rng(4).integers(-(2**20), 2**20, (3, 5)).astype(dtype)
    out, counts = np.zeros((3, 5), np.float32), np.zeros(len(accumulate.OUTPUT_COUNTS), np.int64)
    accumulate.divide_sums(sums, 8, bits, 2.0**-7, out, counts)
    expected = shift_right_round(sums, 3) * 2.0**-7 if bits == 3 else sums * 2.0**-10
    np.testing.assert_array_equal(out, expected.astype(np.float32))
    assert dict(zip(accumulate.OUTPUT_COUNTS, counts)) == {"normalize_mults": 15 * (bits < 0), "normalize_shifts": 15 * (bits > 0), "value_writes": 15}
