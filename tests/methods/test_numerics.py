"""A tile's softmax on its grid, and the widening of 16-bit storage, bit by bit."""

import ml_dtypes
import numpy as np
import pytest

from santa_sim.methods.numerics import BRAIN, HALF, PLAIN, stash_tile, widen


def stash_of(scores):
    scores = np.asarray(scores, np.float32)
    u = np.empty(len(scores), np.float32)
    m, ell = stash_tile(scores, len(scores), np.empty(len(scores), np.float32), u)
    return m, ell, u


def test_exponential_is_close_everywhere():
    scores = -np.linspace(0, 40, 8192)
    m, _, u = stash_of(scores)
    exact = np.exp(scores.astype(np.float32).astype(np.float64))
    assert m == 0 and u[0] == 1
    assert np.abs(u - exact).max() < 2.0**-41 + 2e-7  # half a step of the grid, and float32's own rounding
    near = exact > 1e-5
    assert np.abs(u[near] / exact[near] - 1).max() < 3e-7
    assert (np.diff(u) <= 0).all()


def test_u_lies_on_the_grid_so_that_sums_are_exact_in_any_order():
    rng = np.random.default_rng(1)
    _, ell, u = stash_of(rng.normal(0, 6, 8192))
    steps = u.astype(np.float64) * 2.0**40
    assert (steps == np.rint(steps)).all()
    assert ell == sum(int(x) for x in steps) * 2.0**-40
    for order in (np.arange(8192)[::-1], rng.permutation(8192)):
        assert np.cumsum(u[order].astype(np.float64))[-1] == ell


@pytest.mark.parametrize("level", [0.0, -2.45e5, 3e38, -3e38])
def test_equal_scores_weigh_the_same(level):
    m, ell, u = stash_of(np.full(100, level))
    assert m == np.float32(level) and ell == 100 and (u == 1).all()


def test_far_below_the_maximum_is_exactly_zero():
    _, ell, u = stash_of([0, -28.5, -100, -3e38])
    assert ell == 1 and u.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("format, dtype", [(HALF, np.float16), (BRAIN, ml_dtypes.bfloat16)])
def test_every_finite_pattern_widens_exactly(format, dtype):
    patterns = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    finite = np.isfinite(patterns.view(dtype).astype(np.float32))
    stored = patterns[finite].reshape(-1, 2, 32)
    out = np.empty(stored.shape, np.float32)
    widen(stored, 0, len(stored), 0, 2, format, out)
    assert (out.view(np.uint32) == stored.view(dtype).astype(np.float32).view(np.uint32)).all()


def test_widen_takes_the_rows_and_heads_asked_for():
    stored = np.arange(5 * 4 * 3, dtype=np.int8).reshape(5, 4, 3)
    out = np.zeros((2, 2, 3), np.int32)
    widen(stored, 3, 2, 1, 2, PLAIN, out)
    assert (out == stored[3:5, 1:3]).all()
