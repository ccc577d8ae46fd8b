"""Draws equal a searchsorted float64 reference, and stay right at the ends of the random numbers and of the scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import reference
from .stages import DRAWERS, LARGEST_BELOW_ONE, draw, random_numbers, stash

fast = settings(max_examples=25, deadline=None, derandomize=True)
shapes = st.tuples(st.integers(1, 300), st.integers(1, 130), st.integers(1, 200), st.integers(0, 2**32 - 1),
                   st.sampled_from([0.0, 0.3, 2.0, 20.0]))  # fmt: skip


def scores_of(shape, R=3):
    """Random scores with a limit for every row, and the generator that made them."""
    n, tile, S, seed, spread = shape
    rng = np.random.default_rng(seed)
    limits = np.append(rng.integers(1, n + 1, R - 1), n)
    return stash(rng.normal(0, 1, (R, n)) * spread, tile, limits), S, rng


def reference_counts(stashed, r, method, S, random):
    u, m, ell = stashed.row(r)
    tile, n = stashed.tile, stashed.u.shape[1]
    weight = reference.weights(u, m, ell, tile)
    if method in ("santa", "s2anta-strat"):
        rows = (reference.iid_rows if method == "santa" else reference.stratified_rows)(weight, random)
        return np.bincount(rows, minlength=n)
    if method == "s2anta-prop":
        counts = reference.proportional_counts(u, m, ell, tile, S, random)
    elif method == "s2anta-flash":
        counts = reference.flash_counts(u, tile, S, random[: len(m)])
    else:
        counts = reference.systematic_counts(weight, S, random[0])
    return np.pad(counts, (0, n - len(counts)))


@pytest.mark.parametrize("method", DRAWERS)
@fast
@given(shape=shapes)
def test_rows_equal_the_reference(method, shape):
    stashed, S, rng = scores_of(shape)
    random = random_numbers(rng, method, *stashed.m.shape, S)
    counts, _ = draw(stashed, method, S, random)
    for r in range(len(counts)):
        assert counts[r].tolist() == reference_counts(stashed, r, method, S, random[r]).tolist()


@fast
@given(shape=shapes)
def test_systematic_allocation_is_global_systematic_sampling(shape):
    stashed, S, rng = scores_of(shape)
    random = random_numbers(rng, "s2anta-sys", *stashed.m.shape, S)
    for one, other in zip(draw(stashed, "s2anta-sys", S, random), draw(stashed, "prop-systematic", S, random)):
        assert (one == other).all()


@pytest.mark.parametrize("method", ["s2anta-sys", "prop-systematic", "s2anta-prop", "s2anta-flash"])
@fast
@given(shape=shapes)
def test_scaled_thresholds_draw_the_same_rows(method, shape):
    stashed, S, rng = scores_of(shape)
    random = random_numbers(rng, method, *stashed.m.shape, S)
    assert (draw(stashed, method, S, random)[0] == draw(stashed, method, S, random, by_threshold=True)[0]).all()


@fast
@given(shape=shapes, tile=st.integers(1, 130))
def test_systematic_rows_do_not_depend_on_the_tile(shape, tile):
    """Up to rounding: u is relative to its tile's maximum, so a threshold within 1e-6 of a key's edge may move by a key."""
    n, first, S, seed, spread = shape
    rng = np.random.default_rng(seed)
    scores, random = rng.normal(0, min(spread, 2.0), (1, n)), rng.integers(0, 2**24, (1, 1)) * 2.0**-24
    one, other = (draw(stash(scores, length), "s2anta-sys", S, random)[0][0] for length in (first, tile))
    steps = np.cumsum(one - other)  # +-1 where a draw fell on the neighbouring key
    assert np.abs(steps).max() <= 1
    weight = reference.softmax(scores[0].astype(np.float32))
    edges = random[0, 0] + S * np.cumsum(weight)
    assert np.all(np.abs(edges - np.rint(edges))[steps != 0] < 1e-5 * S)


@pytest.mark.parametrize("end", [0.0, LARGEST_BELOW_ONE])
@pytest.mark.parametrize("method", DRAWERS)
def test_random_numbers_at_their_ends(method, end):
    rng = np.random.default_rng(5)
    scores = rng.normal(0, 3, (2, 77))
    scores[:, [0, 5, 76]] = -200  # no mass at the first, an inner and the last key
    stashed = stash(scores, 16)
    random = np.full_like(random_numbers(rng, method, *stashed.m.shape, 33), end)
    counts, budgets = draw(stashed, method, 33, random)
    for r in range(2):
        assert counts[r].tolist() == reference_counts(stashed, r, method, 33, random[r]).tolist()
    assert (counts.sum(axis=1) == budgets.sum(axis=1)).all()
    assert (counts[:, [0, 5, 76]] == 0).all()
    if method != "s2anta-flash":
        assert (counts.sum(axis=1) == 33).all()


@pytest.mark.parametrize("by_threshold", [False, True])
@pytest.mark.parametrize("method", ["s2anta-sys", "prop-systematic", "s2anta-prop", "s2anta-flash"])
def test_every_tile_gives_exactly_its_budget_at_offset_zero(method, by_threshold):
    """The last sample of each tile then lies on the tile's very end, where rounding down by one part in 2^53 would lose it."""
    rng = np.random.default_rng(8)
    for _ in range(60):
        stashed = stash(rng.normal(0, 2, (8, 60)), int(rng.integers(2, 61)))
        S = int(rng.integers(1, 100))
        counts, budgets = draw(stashed, method, S, np.zeros_like(random_numbers(rng, method, *stashed.m.shape, S)), by_threshold)
        for t in range(budgets.shape[1]):
            assert (counts[:, t * stashed.tile : (t + 1) * stashed.tile].sum(axis=1) == budgets[:, t]).all()


@pytest.mark.parametrize("end", [0.0, LARGEST_BELOW_ONE])
@pytest.mark.parametrize("method", DRAWERS)
def test_equal_scores_at_the_ends(method, end):
    """Thresholds fall exactly on the keys' edges: 4,096 keys, 128 samples, every 32nd key once."""
    stashed = stash(np.full((1, 4096), -2.45e5), 256)
    random = np.full_like(random_numbers(np.random.default_rng(0), method, *stashed.m.shape, 128), end)
    counts, budgets = draw(stashed, method, 128, random)
    assert counts.sum() == 128
    if method == "santa":
        assert np.flatnonzero(counts[0]).tolist() == [0 if end == 0 else 4095]
    else:
        assert (budgets == 8).all()
        gaps = np.flatnonzero(counts[0])
        assert counts.max() == 1 and (np.diff(gaps) == 32).all()


@pytest.mark.parametrize("method", DRAWERS)
def test_tiny_masses(method):
    """A tile 100 below the others, at each place in turn, gets nothing (flash: its own share); sums stay exact."""
    rng = np.random.default_rng(6)
    for low in range(3):
        scores = rng.normal(0, 1, (1, 96))
        scores[0, 32 * low : 32 * low + 32] -= 100
        stashed = stash(scores, 32)
        counts, budgets = draw(stashed, method, 31, random_numbers(rng, method, 1, 3, 31))
        if method == "s2anta-flash":
            assert budgets[0].tolist() == [10, 10, 10]
        else:
            assert budgets[0, low] == 0 and counts.sum() == 31


@pytest.mark.parametrize("method", DRAWERS)
def test_more_samples_than_keys_and_one_key(method):
    rng = np.random.default_rng(7)
    counts, _ = draw(stash(np.zeros((1, 1)), 32), method, 50, random_numbers(rng, method, 1, 1, 50))
    assert counts.tolist() == [[50]]
    stashed = stash(rng.normal(0, 1, (1, 7)), 32)
    counts, _ = draw(stashed, method, 5000, random_numbers(rng, method, 1, 1, 5000))
    assert counts.sum() == 5000
    if method != "santa":  # one or two draws of a threshold either way
        assert np.abs(counts[0] - 5000 * stashed.u[0] / stashed.ell[0, 0]).max() < 2
