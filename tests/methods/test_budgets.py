"""Tile budgets: exact sums, ties, floors and ceilings, and masses whose order of summation doesn't matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_sim.methods import budgets

from . import reference
from .stages import LARGEST_BELOW_ONE

fast = settings(max_examples=40, deadline=None, derandomize=True)
tiles = st.integers(1, 64)
seeds = st.integers(0, 2**32 - 1)


def statistics_of(seed, T, R=2, spread=4.0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, spread, (R, T)).astype(np.float32), 1 + 30 * rng.random((R, T)), rng


def budgets_of(function, m, ell, S, offset, n_tiles=None):
    R, T = m.shape
    share, low, high = np.full((R, T), -1), np.zeros((R, T)), np.zeros((R, T))
    counts = np.zeros(len(budgets.BUDGET_COUNTS), np.int64)
    n_tiles = np.full(R, T) if n_tiles is None else n_tiles
    function(*(() if function is budgets.uniform else (m, ell)), n_tiles, S, offset, counts, share, low, high)
    return share, low, high


@fast
@given(seed=seeds, T=tiles, S=st.integers(1, 5000))
def test_largest_remainder_equals_the_reference(seed, T, S):
    m, ell, rng = statistics_of(seed, T)
    share, low, high = budgets_of(budgets.largest_remainder, m, ell, S, rng.random((2, T)))
    for r in range(2):
        assert share[r].tolist() == reference.largest_remainder_budgets(reference.tile_masses(m[r], ell[r]), S).tolist()
    assert (share.sum(axis=1) == S).all()
    assert (np.floor(high) - np.floor(low) == share).all()


def test_largest_remainder_ties_go_to_the_lowest_tile():
    m, ell = np.zeros((1, 5), np.float32), np.full((1, 5), 8.0)
    assert budgets_of(budgets.largest_remainder, m, ell, 8, np.zeros((1, 5)))[0].tolist() == [[2, 2, 2, 1, 1]]
    assert budgets_of(budgets.largest_remainder, m, ell, 3, np.zeros((1, 5)))[0].tolist() == [[1, 1, 1, 0, 0]]


@fast
@given(seed=seeds, T=tiles, S=st.integers(1, 5000), offset=st.one_of(st.just(0.0), st.just(LARGEST_BELOW_ONE), st.floats(0, LARGEST_BELOW_ONE)))
def test_systematic_budgets_are_within_one_of_their_share(seed, T, S, offset):
    m, ell, _ = statistics_of(seed, T)
    share, low, high = budgets_of(budgets.systematic, m, ell, S, np.full((2, 1), offset))
    masses = np.stack([reference.tile_masses(m[r], ell[r]) for r in range(2)])
    assert (share.sum(axis=1) == S).all() and (share >= 0).all()
    assert np.abs(share - S * masses / masses.sum(axis=1, keepdims=True)).max() < 1 + 1e-9
    assert (low[:, 1:] == high[:, :-1]).all() and (high[:, -1] == S + offset).all()


def test_tiles_beyond_a_row_get_nothing():
    m, ell, rng = statistics_of(1, 6)
    m[0, 4:], ell[0, 4:] = -np.inf, 0
    for function in (budgets.systematic, budgets.largest_remainder, budgets.uniform):
        share, _, _ = budgets_of(function, m, ell, 12, rng.random((2, 6)), np.array([4, 6]))
        assert share[0, 4:].tolist() == [0, 0] and share.sum(axis=1).tolist() == [12, 12]


@pytest.mark.parametrize("S, each", [(1, 1), (6, 1), (11, 1), (12, 2), (600, 100)])
def test_uniform_budgets(S, each):
    m, ell, rng = statistics_of(2, 6)
    assert (budgets_of(budgets.uniform, m, ell, S, rng.random((2, 6)))[0] == each).all()


def test_masses_add_up_exactly_in_any_order():
    m, ell, rng = statistics_of(3, 256, R=1, spread=8)
    masses, prefix = np.empty(256), np.empty(257)
    budgets.tile_masses(m[0], ell[0], np.zeros(len(budgets.BUDGET_COUNTS), np.int64), masses, prefix)
    assert masses.tolist() == reference.tile_masses(m[0], ell[0]).tolist()
    for order in (np.arange(256), np.arange(256)[::-1], rng.permutation(256)):
        assert np.cumsum(masses[order])[-1] == prefix[-1]


def thresholds_of(m, ell, S, random, stratified):
    share, residual = np.zeros(m.shape, np.int64), np.full((len(m), S), np.nan)
    counts = np.zeros(len(budgets.BUDGET_COUNTS), np.int64)
    budgets.thresholds(m, ell, np.full(len(m), m.shape[1]), S, random, stratified, counts, share, residual)
    return share, residual, dict(zip(budgets.BUDGET_COUNTS, counts))


@pytest.mark.parametrize("stratified", [False, True])
def test_thresholds_land_inside_their_tiles(stratified):
    m, ell, rng = statistics_of(4, 40)
    share, residual, counts = thresholds_of(m, ell, 500, rng.random((2, 500)), stratified)
    assert (share.sum(axis=1) == 500).all() and counts["sampling_random_numbers"] == 2 * 500
    for r in range(2):
        tile = np.repeat(np.arange(40), share[r])
        assert (residual[r] >= 0).all() and (residual[r] <= ell[r, tile] * (1 + 1e-12)).all()


def test_a_first_tile_far_below_the_others_is_never_chosen():
    m, ell = np.array([[-400.0, 0, 0]], np.float32), np.ones((1, 3))
    for end in (0.0, LARGEST_BELOW_ONE):
        assert thresholds_of(m, ell, 9, np.full((1, 9), end), True)[0][0, 0] == 0
        assert budgets_of(budgets.systematic, m, ell, 9, np.full((1, 1), end))[0][0, 0] == 0
        assert budgets_of(budgets.largest_remainder, m, ell, 9, np.full((1, 3), end))[0].tolist() == [[0, 5, 4]]
