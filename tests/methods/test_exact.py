"""The score pass against float64, for every storage, any group size and any head dimension."""

import ml_dtypes
import numpy as np
import pytest

from santa_sim.methods import exact
from santa_sim.methods.numerics import BRAIN, HALF, PLAIN

STORED = {PLAIN: np.float32, HALF: np.float16, BRAIN: ml_dtypes.bfloat16}


def run(q, k, format=PLAIN, tile=32, limits=None, keep_scores=False, seen=0):
    """q [H_kv, R, d], k [n_k, H_kv, d] as stored -> u, m, ell, counts by name."""
    H_kv, R, _ = q.shape
    limits = np.full(R, len(k)) if limits is None else np.asarray(limits)
    n = limits.max()
    T = -(-n // tile)
    u, m, ell = np.full((H_kv, R, n), np.nan, np.float32), np.zeros((H_kv, R, T), np.float32), np.zeros((H_kv, R, T))
    counts = np.zeros((H_kv, T, len(exact.SCORE_COUNTS)), np.int64)
    stored = k if format == PLAIN else k.view(np.uint16)
    exact.score_tiles(q, stored, format, np.float32(1), limits, seen, R, tile, (0, H_kv), (0, T), keep_scores, u, m, ell, counts)
    return u, m, ell, dict(zip(exact.SCORE_COUNTS, counts.sum(axis=(0, 1))))


@pytest.mark.parametrize("format", STORED)
@pytest.mark.parametrize("G, d", [(1, 64), (2, 128), (3, 7), (4, 1), (5, 65), (6, 33), (7, 128), (8, 64), (9, 16), (31, 5)])
def test_scores_equal_float64(format, G, d):
    rng = np.random.default_rng(G * 1000 + d)
    q = rng.normal(0, 1, (2, G, d)).astype(np.float32)
    k = rng.normal(0, 1, (101, 2, d)).astype(STORED[format])
    u, *_ = run(q, k, format, keep_scores=True)
    expected = np.einsum("hrd,nhd->hrn", q.astype(np.float64), k.astype(np.float64))
    magnitude = np.einsum("hrd,nhd->hrn", np.abs(q.astype(np.float64)), np.abs(k.astype(np.float64)))
    assert (np.abs(u - expected) <= 1e-6 * magnitude + 1e-12).all()


@pytest.mark.parametrize("R", [3, 8, 9])
def test_integers_are_exact(R):
    rng = np.random.default_rng(R)
    q = rng.integers(-127, 128, (2, R, 48)).astype(np.int32)
    k = rng.integers(-128, 128, (70, 2, 48)).astype(np.int8)
    u, *_ = run(q, k, keep_scores=True)
    assert (u == np.einsum("hrd,nhd->hrn", q, k.astype(np.int32))).all()


def test_statistics_are_those_of_each_tile():
    rng = np.random.default_rng(3)
    q, k = rng.normal(0, 1, (1, 4, 16)).astype(np.float32), rng.normal(0, 1, (100, 1, 16)).astype(np.float32)
    s, *_ = run(q, k, keep_scores=True)
    u, m, ell, _ = run(q, k)
    for t in range(4):
        part = slice(32 * t, 32 * t + 32)
        assert (m[0, :, t] == s[0, :, part].max(axis=1)).all()
        assert (ell[0, :, t] == u[0, :, part].astype(np.float64).sum(axis=1)).all()


def test_limits_hide_keys_and_are_counted():
    rng = np.random.default_rng(4)
    q, k = rng.normal(0, 1, (1, 3, 8)).astype(np.float32), rng.normal(0, 1, (50, 1, 8)).astype(np.float32)
    k[40:] = np.nan
    limits = [1, 33, 40]
    u, m, ell, counts = run(q, k, limits=limits)
    assert [int(np.isfinite(row).sum()) for row in u[0]] == limits
    assert ell[0, 0, 1] == 0 and m[0, 0, 1] == -np.inf
    assert counts["score_adds"] == counts["score_mults"] == sum(limits) * 8
    assert counts["score_writes"] == sum(limits)
    assert counts["score_reads"] == 3 * 40 * 8 + 3 * 8  # every head reads the keys once, and its query
    assert run(q, k, limits=limits, seen=35)[3]["score_reads"] == 3 * 5 * 8 + 3 * 8  # 35 were read by an earlier block
