"""The statistical items: the same verdicts for different seeds, closed forms by other means, and errors that turn a row red."""

import numpy as np
import pytest

from santa_sim import reproduce
from santa_sim.methods import bernoulli, budgets
from santa_sim.reproduce import bernoulli_access, confidence, figure6, theorem_b1, unbiased


def verdicts(item, seed=0):
    """Verdict of every row of an item's fast run, by the row's name."""
    report = reproduce.run([item], seed=seed, fast=True)
    assert report.sections[0].error is None
    return {row.name: row.verdict for row in report.rows}


@pytest.mark.parametrize("item", ["figure6", "bernoulli-access", "theorem-b1", "unbiased"])
def test_seeds_give_the_same_verdicts(item):
    first = verdicts(item, seed=0)
    assert set(first.values()) <= {"within", "consistent", "beside"} and "consistent" in first.values()
    assert verdicts(item, seed=1) == first


def wrong(monkeypatch, module, name, spoil):
    """Replace a kernel's compiled function by one whose arguments `spoil(*arguments)` changes."""
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arguments: right(*spoil(*arguments)))


def test_systematic_draws_without_an_offset_are_caught(monkeypatch):
    wrong(monkeypatch, budgets, "systematic", lambda m, ell, tiles, S, offset, *rest: (m, ell, tiles, S, 0 * offset, *rest))
    found = verdicts("unbiased")
    red = {name for name, verdict in found.items() if verdict == "OUT"}
    assert red >= {"s2anta-sys: worst |z| of the mean", "s2anta-prop, systematic: worst |z| of the mean"}
    assert found["santa: worst |z| of the mean"] == found["s2anta-flash: worst |z| of the mean"] == "consistent"


def test_independent_draws_that_are_one_draw_are_caught(monkeypatch):
    def repeat(m, ell, tiles, S, random, stratified, *rest):
        return m, ell, tiles, S, random if stratified else np.repeat(random[:, :1], S, axis=1), stratified, *rest

    wrong(monkeypatch, budgets, "thresholds", repeat)
    found = verdicts("theorem-b1")
    assert found["share of estimates beyond the bound, delta = 0.1, S = 64, worst head"] == "OUT"


def test_one_draw_too_many_of_features_is_caught(monkeypatch):
    def one_more(q, group, B, kind, random, *rest):
        return q, group, B + 1, kind, np.concatenate([random, 1 - random], axis=1), *rest

    wrong(monkeypatch, bernoulli, "draw_features", one_more)
    red = [name for name, verdict in verdicts("bernoulli-access").items() if verdict == "OUT"]
    assert "Table 5, stratified, per head, B = 2, Gaussian queries" in red and "Table 6, mean group, B = 4, Gaussian queries" in red


def test_a_wrong_norm_of_bernoulli_scores_is_caught(monkeypatch):
    right = bernoulli.draw_features

    def larger(*arguments):
        right(*arguments)
        arguments[-1][:] *= 1.1

    monkeypatch.setattr(bernoulli, "draw_features", larger)
    errors, missed, _ = figure6.gaussian_errors(1, 0, lambda *_: None)
    limit = confidence.z_limit(len(figure6.BUDGETS))
    assert all(confidence.largest_z(missed[kind], 0.0) > limit for kind in figure6.KINDS)


def test_bare_counts_in_the_place_of_mean_group_weights_are_caught(monkeypatch):
    """m_hat alone, without q / m, is the same score for all heads of the group."""
    right = bernoulli.draw_features

    def bare(*arguments):
        right(*arguments)
        drawn, weights = arguments[6], arguments[7]
        weights[:] = drawn

    unbiased_z, square_z = bernoulli_access.mean_group_z(4, 500, 0)
    assert unbiased_z < confidence.z_limit(128) and square_z < confidence.z_limit(1)
    monkeypatch.setattr(bernoulli, "draw_features", bare)
    assert min(bernoulli_access.mean_group_z(4, 500, 0)) > confidence.z_limit(128)
    assert [row.verdict for row in bernoulli_access._mean_group_scores(200, 0)] == ["OUT", "OUT"]


def test_feature_variance_is_that_of_the_draws():
    """Against the mean over all outcomes of a feature, from the definition."""
    q, norm = np.array([[0.3, -1.1, 2.0]]), np.array([[2.5]])
    share = np.abs(q) / norm
    for B in (1, 3, 4):
        whole = np.floor(B * share)
        up = B * share - whole
        by_outcomes = (1 - up) * (norm / B * whole - np.abs(q)) ** 2 + up * (norm / B * (whole + 1) - np.abs(q)) ** 2
        np.testing.assert_allclose(figure6.feature_variance(q, "bernoulli-stratified", B, norm), by_outcomes, rtol=1e-12)
        one = share * (norm - np.abs(q)) ** 2 + (1 - share) * q**2
        np.testing.assert_allclose(figure6.feature_variance(q, "bernoulli", B, norm), one / B, rtol=1e-12)


def test_next_power_of_two():
    q = np.array([[0.9, -0.2], [1.0, 0.1], [-2.1, 2.0]])
    assert figure6.next_power_of_two(q)[:, 0].tolist() == [1, 1, 4]


@pytest.mark.parametrize("B", [1, 2, 4, 8])
def test_monte_carlo_shares_obey_their_bound(B):
    """For any distribution of features; equality where all are alike, and stratified draws can pass it."""
    rng = np.random.default_rng(B)
    for q in (rng.standard_normal((40, 64)), rng.standard_t(2, (40, 64)), np.ones((4, 64))):
        (half, twice) = (bernoulli_access.closed_form(q, "bernoulli", b, 4)[0].mean() for b in (B, 2 * B))
        assert twice <= bernoulli_access.most_by_monte_carlo(half) + 1e-12
    alike = np.full((4, 64), 0.12)
    alike[:, 0] = 1.0
    half, twice = (bernoulli_access.closed_form(alike, "bernoulli-stratified", b, 4)[0].mean() for b in (2, 4))
    assert twice > bernoulli_access.most_by_monte_carlo(half)


def test_largest_remainder_by_hand():
    """Four tiles of one key, masses 0.5, 0.3, 0.15, 0.05: at S = 2 the budgets are 1, 1, 0, 0."""
    p, v = np.array([0.5, 0.3, 0.15, 0.05]), np.eye(4)
    np.testing.assert_allclose(unbiased.largest_remainder_output(p, v, 2, 1), [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(unbiased.largest_remainder_output(p, v, 20, 1), p)  # whole shares: no bias
    np.testing.assert_allclose(unbiased.largest_remainder_output(p, v, 2, 2), [0.625, 0.375, 0, 0])  # 1.6, 0.4: all to the first


def test_bernstein_bound_by_hand():
    """Two keys at +1 and -1: v = 1, V_max = 1."""
    log = np.log(2 / 0.1)
    assert theorem_b1.bernstein_bound(theorem_b1.two_keys(), 9, 0.1) == pytest.approx(np.sqrt(2 * log / 9) + 2 * log / 27)


def test_z_limit_holds_its_level():
    assert confidence.z_limit(1, 0.05) == pytest.approx(1.959964, rel=1e-6)
    worst = np.abs(np.random.default_rng(0).standard_normal((4000, 100))).max(axis=1)
    beyond = (worst > confidence.z_limit(100, 0.05)).mean()
    assert 0.03 < beyond < 0.065  # 1 - (1 - 0.05 / 100)^100 = 0.0488, five standard errors are 0.017


def test_largest_z_of_a_known_shift():
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((10000, 3)) + [0, 0, 0.1]
    assert 6 < confidence.largest_z(samples, 0.0) < 14
    assert confidence.largest_z(np.ones((5, 2)), np.ones(2)) == 0.0
    assert len({confidence.stream(*indices) for indices in [(0, 1, 2), (0, 2, 1), (1, 1, 2), (0, 1)]}) == 4


