"""attention() end to end: the rows that its own random numbers say, and the mean and variance that theory says.

Values are the identity matrix where rows matter: S times the output is then how often each key was drawn. Statistics give
every replica a query head of its own, so that one call draws thousands of independent samples.
"""

import ml_dtypes
import numpy as np
import pytest

import santa_sim
from santa_sim import rng as philox
from santa_sim.methods import exact
from santa_sim.methods.numerics import PLAIN

from . import reference
from .stages import Stash

SAMPLERS = {"santa": {}, "s2anta-strat": {}, "s2anta-sys": {}, "s2anta-prop": {}, "s2anta-flash": {},
            "prop-systematic": {"allocation": "systematic"}}  # fmt: skip
UNBIASED = [name for name in SAMPLERS if name != "s2anta-prop"]
STORAGE = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def attend(q, k, v, name, **options):
    method = "s2anta-prop" if name == "prop-systematic" else name
    return santa_sim.attention(q, k, v, method, **SAMPLERS.get(name, {}), **options)


def stashed_scores(q, k, tile, limits):
    """The kernel's own stash of q [n_q, H, d] against k: rows in the order (KV head) x (position, grouped head)."""
    n_q, H, d = q.shape
    H_kv = k.shape[1]
    G, n = H // H_kv, len(k)
    T = -(-n // tile)
    rows = (q * np.float32(d**-0.5)).reshape(n_q, H_kv, G, d).transpose(1, 0, 2, 3).reshape(H_kv, n_q * G, d)
    u, m = np.full((H_kv, n_q * G, n), np.nan, np.float32), np.zeros((H_kv, n_q * G, T), np.float32)
    ell, counts = np.zeros((H_kv, n_q * G, T)), np.zeros((H_kv, T, len(exact.SCORE_COUNTS)), np.int64)
    limits = np.repeat(limits, G)
    exact.score_tiles(np.ascontiguousarray(rows), k, PLAIN, np.float32(1), limits, 0, G, tile, (0, H_kv), (0, T), False, u, m, ell, counts)
    return [Stash(u[kv], m[kv], ell[kv], limits, -(-limits // tile), tile) for kv in range(H_kv)]


def expected_counts(name, stashed, row, S, numbers):
    """Draws of one row by the float64 reference; `numbers(count)` gives its random numbers."""
    u, m, ell = stashed.row(row)
    weight = reference.weights(u, m, ell, stashed.tile)
    if name in ("santa", "s2anta-strat"):
        rows = (reference.iid_rows if name == "santa" else reference.stratified_rows)(weight, numbers(S))
        return np.bincount(rows, minlength=len(u))
    if name == "s2anta-prop":
        return reference.proportional_counts(u, m, ell, stashed.tile, S, numbers(len(m)))
    if name == "s2anta-flash":
        return reference.flash_counts(u, stashed.tile, S, numbers(len(m)))
    return reference.systematic_counts(weight, S, numbers(1)[0])


@pytest.mark.parametrize("n_q, causal", [(1, True), (13, True), (13, False)])
@pytest.mark.parametrize("name", SAMPLERS)
def test_rows_follow_from_scores_and_random_numbers(name, n_q, causal):
    n, H, H_kv, S, tile, seed, G = 70, 6, 2, 32, 16, 17, 3
    rng = np.random.default_rng(1)
    q, k = rng.normal(0, 2, (n_q, H, n)).astype(np.float32), rng.normal(0, 1, (n, H_kv, n)).astype(np.float32)
    v = np.repeat(np.eye(n, dtype=np.float32)[:, None], H_kv, axis=1)
    output, _ = attend(q, k, v, name, S=S, tile=tile, seed=seed, causal=causal)
    limits = np.arange(n - n_q + 1, n + 1) if causal else np.full(n_q, n)
    for kv, stashed in enumerate(stashed_scores(q, k, tile, limits)):
        for position in range(n_q):
            for g in range(G):
                row, head = position * G + g, kv * G + g
                counts = expected_counts(name, stashed, row, S, lambda count, h=head, p=position: philox.uniforms(
                    seed, 0, np.array([h]), np.array([p]), count, philox.VALUE_WORD)[0])  # fmt: skip
                if name == "s2anta-flash":
                    expected = reference.flash_output(counts, *stashed.row(row)[1:], tile, np.eye(len(counts)))
                    np.testing.assert_allclose(output[position, head, : len(counts)], expected, rtol=1e-5)
                    assert (output[position, head, len(counts) :] == 0).all()
                else:
                    drawn = np.rint(output[position, head] * S).astype(int)
                    assert drawn.tolist() == [*counts, *[0] * (n - len(counts))]


@pytest.mark.parametrize("precision, tolerance", [("fp32", 2e-6), ("fp16", 1e-3), ("bf16", 8e-3), ("int16", 0.03), ("int8", 0.06)])
@pytest.mark.parametrize("n_q", [1, 9])
def test_dense_and_top_k_equal_float64(precision, tolerance, n_q):
    rng = np.random.default_rng(2)
    stored = STORAGE.get(precision, np.float32)
    q, k, v = (rng.normal(0, 1, shape).astype(stored) for shape in ((n_q, 4, 16), (61, 2, 16), (61, 2, 16)))
    dense, _ = santa_sim.attention(q, k, v, "sdpa", precision=precision, tile=16)
    top, _ = santa_sim.attention(q, k, v, "topk", k_top=61, precision=precision, tile=16)
    five, _ = santa_sim.attention(q, k, v, "topk", k_top=5, precision="fp32", tile=16)
    for i in range(n_q):
        for h in range(4):
            seen = slice(0, 61 - n_q + i + 1)
            keys, values = k[seen, h // 2].astype(np.float64), v[seen, h // 2].astype(np.float64)
            expected = reference.dense(q[i, h], keys, values)
            assert np.abs(dense[i, h].astype(np.float64) - expected).max() < tolerance * np.abs(values).max()
            assert np.abs(top[i, h].astype(np.float64) - expected).max() < tolerance * np.abs(values).max()
            rows, weights = reference.top_k(keys @ q[i, h].astype(np.float64) / 4, 5)
            assert np.abs(five[i, h].astype(np.float64) - weights @ values[rows]).max() < 1e-5


@pytest.mark.parametrize("score", ["bernoulli", "bernoulli-stratified", "bernoulli-mean-group"])
def test_bernoulli_scores_feed_the_softmax(score):
    H, d, n, B, seed = 4, 12, 40, 6, 3
    rng = np.random.default_rng(4)
    q = (rng.integers(-3000, 3001, (H, d)) / 1024).astype(np.float32)
    k, v = rng.normal(0, 1, (n, 2, d)).astype(np.float32), rng.normal(0, 1, (n, 2, d)).astype(np.float32)
    output, _ = santa_sim.attention(q, k, v, "sdpa", score=score, B=B, seed=seed, tile=16)
    scaled = (q * np.float32(d**-0.5)).astype(np.float64)
    for h in range(H):
        head = h - h % 2 if score == "bernoulli-mean-group" else h
        count = d if score == "bernoulli-stratified" else B * d
        random = philox.uniforms(seed, 0, np.array([head]), np.array([0]), count, philox.SCORE_WORD)[0]
        keys = k[:, h // 2]
        if score == "bernoulli-mean-group":
            s = reference.mean_group_scores(scaled[head : head + 2], keys, B, random.reshape(B, d))[h - head]
        elif score == "bernoulli":
            s = reference.bernoulli_scores(reference.bernoulli_draws(scaled[h], B, random.reshape(B, d)), np.abs(scaled[h]).max(), B, keys)
        else:
            s = reference.bernoulli_scores(reference.stratified_bernoulli_draws(scaled[h], B, random), np.abs(scaled[h]).max(), B, keys)
        np.testing.assert_allclose(output[h], reference.softmax(s) @ v[:, h // 2], rtol=2e-4, atol=2e-5)


# ---- statistics -----------------------------------------------------------------------------------------------------------

REPLICAS = 4000
LOGITS = {"gaussian": lambda rng: rng.normal(0, 1, 60), "peaked": lambda rng: rng.normal(0, 4, 60), "zipf": lambda rng: -1.2 * np.log(1 + rng.permutation(60))}


def replicas(logits, S, name, tile=10, d=8):
    """Outputs [REPLICAS, d] of one query with these logits, its exact weights [n] and values [n, d]."""
    rng = np.random.default_rng(8)
    q = np.zeros((REPLICAS, d), np.float32)
    q[:, 0] = d**0.5
    k, v = np.zeros((len(logits), 1, d), np.float32), rng.normal(0, 1, (len(logits), 1, d)).astype(np.float32)
    k[:, 0, 0] = logits
    output, _ = attend(q, k, v, name, S=S, tile=tile, seed=99)
    return output.astype(np.float64), reference.softmax(k[:, 0, 0]), v[:, 0].astype(np.float64)


def z_scores(outputs, expected):
    error = outputs.std(axis=0, ddof=1) / len(outputs) ** 0.5
    return (outputs.mean(axis=0) - expected) / np.maximum(error, 1e-6)  # 1e-6: float32's rounding where a draw is certain


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased(name, logits):
    """|z| <= 6 for 5 methods x 3 distributions x 8 dimensions: familywise false alarm 120 x 2e-9 < 1e-6."""
    outputs, p, v = replicas(LOGITS[logits](np.random.default_rng(5)), 12, name)
    assert np.abs(z_scores(outputs, p @ v)).max() < 6


@pytest.mark.parametrize("logits", LOGITS)
def test_largest_remainder_is_biased_as_its_budgets_say(logits):
    """Its mean is the tiles' means weighted by budgets instead of masses; where they differ much, the bias shows."""
    outputs, p, v = replicas(LOGITS[logits](np.random.default_rng(5)), 7, "s2anta-prop")
    tiles = p.reshape(6, 10)
    budgets = reference.largest_remainder_budgets(tiles.sum(axis=1), 7)
    biased = sum(b / 7 * (t / t.sum()) @ v[10 * i : 10 * i + 10] for i, (b, t) in enumerate(zip(budgets, tiles)))
    assert np.abs(z_scores(outputs, biased)).max() < 6
    assert np.abs(z_scores(outputs, p @ v)).max() > 12


def closed_form_variance(p, v, S, stratified):
    """E |estimate - mean|^2: tr(Sigma) / S, or the mean of the strata's own variances over S (Theorem A.6)."""
    if not stratified:
        return (p @ (v**2) - (p @ v) ** 2).sum() / S
    edges = np.concatenate(([0.0], np.cumsum(p)))
    total = 0.0
    for j in range(S):
        part = S * np.clip(np.minimum(edges[1:], (j + 1) / S) - np.maximum(edges[:-1], j / S), 0, None)
        total += (part @ (v**2) - (part @ v) ** 2).sum()
    return total / S**2


def squared_errors(outputs, p, v):
    """Mean of |estimate - mean|^2, and its standard error."""
    squares = ((outputs - p @ v) ** 2).sum(axis=1)
    return squares.mean(), squares.std(ddof=1) / len(squares) ** 0.5


@pytest.mark.parametrize("logits", LOGITS)
def test_variance_is_the_closed_form_and_stratified_is_below_independent(logits):
    """Within 6 standard errors each (2e-9); the order holds between the 6-sigma bounds, too."""
    S = 12
    found = {}
    for name in ("santa", "s2anta-strat"):
        outputs, p, v = replicas(LOGITS[logits](np.random.default_rng(6)), S, name)
        mean, error = found[name] = squared_errors(outputs, p, v)
        assert abs(mean - closed_form_variance(p, v, S, name == "s2anta-strat")) < 6 * error
    (low, low_error), (high, high_error) = found["s2anta-strat"], found["santa"]
    assert low + 6 * low_error < high - 6 * high_error


@pytest.mark.parametrize("name, exponent", [("santa", -1), ("s2anta-sys", -1.2)])
def test_variance_falls_with_the_samples(name, exponent):
    """log-log slope from S = 4 to 64: -1 for independent draws (within 0.1), steeper for systematic ones."""
    means = []
    for S in (4, 64):
        outputs, p, v = replicas(LOGITS["zipf"](np.random.default_rng(7)), S, name)
        means.append(squared_errors(outputs, p, v)[0])
    slope = np.log(means[1] / means[0]) / np.log(16)
    assert slope < exponent if name == "s2anta-sys" else abs(slope - exponent) < 0.1
