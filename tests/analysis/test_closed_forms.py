"""The closed forms against the published tables' symbols, brute force, and the published coverage."""

import numpy as np
import pytest

from santa_sim.analysis.closed_forms import (
    Counts,
    bernoulli_score_stage,
    expected_unique_rows,
    keys_visible,
    samples_drawn,
    score_stage,
    uniform_prefill_coverage,
    value_stage,
)
from santa_sim.errors import InputError


def test_table_8_decode():
    n_k, d, S = 8192, 128, 256
    assert value_stage("sdpa", 1, n_k, d) == Counts(n_k * d, n_k * d, n_k * d, d)
    assert value_stage("santa", 1, n_k, d, S) == Counts(S * d, d, S * d, d)
    assert value_stage("santa", 1, n_k, d, S, fixed_point=True) == Counts(S * d, 0, S * d, d, shifts=d)
    assert value_stage("santa", 1, n_k, d, 100, fixed_point=True) == Counts(100 * d, d, 100 * d, d)


def test_table_10_prefill_without_a_mask():
    n_q, n_k, d, k = 48, 64, 16, 8
    assert score_stage(n_q, n_k, d, causal=False) == Counts(n_q * n_k * d, n_q * n_k * d, (n_q + n_k) * d, n_q * n_k)
    assert value_stage("sdpa", n_q, n_k, d, causal=False) == Counts(*[n_q * n_k * d] * 3, n_q * d)
    assert value_stage("topk", n_q, n_k, d, k, causal=False) == Counts(*[n_q * k * d] * 3, n_q * d)
    assert value_stage("s2anta-sys", n_q, n_k, d, k, causal=False) == Counts(n_q * k * d, n_q * d, n_q * k * d, n_q * d)


def test_causal_sums():
    n, d, k = 10, 4, 3
    assert score_stage(n, n, d).writes == sum(range(1, n + 1))
    assert value_stage("topk", n, n, d, k).adds == d * sum(min(k, i) for i in range(1, n + 1))
    assert keys_visible(3, 10).tolist() == [8, 9, 10]  # a chunk of a prefill: the keys before it are in the cache


def test_flash_draws_at_least_one_sample_a_tile():
    assert samples_drawn("s2anta-flash", 128, 1, 1000, 128) == 8 * 16
    assert samples_drawn("s2anta-flash", 3, 1, 1000, 128) == 8
    assert value_stage("s2anta-flash", 1, 1000, 16, 3, tile=128).adds == 8 * 16


@pytest.mark.parametrize("mean_group, adds, mults", [(False, 50, 0), (True, 30, 30)])
def test_bernoulli_counts_repeats(mean_group, adds, mults):
    assert bernoulli_score_stage(np.array([2, 0, -1, 2]), 10, mean_group) == Counts(adds, mults, 3 * 10 + 4, 10)


@pytest.mark.parametrize("method", ["santa", "s2anta-strat", "s2anta-sys"])
def test_expected_unique_rows_against_simulation(method):
    """Mean of 4,000 simulated draws within 6 standard errors (false alarm: 2e-9)."""
    rng = np.random.default_rng(1)
    p, S, runs = rng.dirichlet(np.full(40, 0.3)), 12, 4000
    u = {"santa": rng.random((runs, S)), "s2anta-strat": (np.arange(S) + rng.random((runs, S))) / S,
         "s2anta-sys": (np.arange(S) + rng.random((runs, 1))) / S}[method]  # fmt: skip
    rows = np.searchsorted(np.cumsum(p), u, side="right")
    unique = np.array([len(np.unique(r)) for r in rows])
    assert abs(unique.mean() - expected_unique_rows(p, S, method)) < 6 * unique.std() / runs**0.5 + 1e-9


def test_uniform_prefill_is_the_published_coverage():
    """Table 9 of arXiv:2605.01910, whose means of 10 Gaussian trials scatter by about 0.1 percentage points."""
    published = {1: [49.90, 50.04, 49.96, 49.95, 49.95], 4: [79.95, 80.00, 79.96, 79.96, 79.95],
                 8: [88.92, 88.83, 88.86, 88.86, 88.85], 16: [94.07, 94.11, 94.10, 94.09, 94.08]}  # fmt: skip
    for S, row in published.items():
        for n_k, percent in zip((1024, 2048, 4096, 8192, 16384), row):
            assert 100 * uniform_prefill_coverage(n_k, S) == pytest.approx(percent, abs=0.2)


def test_bad_shapes_are_named():
    with pytest.raises(InputError, match="n_q=5 must be 1 ... n_k=4"):
        keys_visible(5, 4)
    with pytest.raises(InputError, match="did you mean 's2anta-sys'"):
        value_stage("s2anta-syss", 1, 10, 4, 2)
    with pytest.raises(InputError, match="tile=None"):
        value_stage("s2anta-flash", 1, 10, 4, 2)
