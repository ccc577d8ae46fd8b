"""Bernoulli scores on a card: the CPU's draws, scores from the drawn features alone, features that are never read."""

import numpy as np
import pytest
from gpu_inputs import SHAPES, counted, on_cpu, on_gpu, spec_of, tensors

from santa_sim import rng
from santa_sim.methods import bernoulli

pytestmark = pytest.mark.gpu

KINDS = {"bernoulli": bernoulli.MONTE_CARLO, "bernoulli-stratified": bernoulli.STRATIFIED, "bernoulli-mean-group": bernoulli.MEAN_GROUP}


def cpu_draws(q, kv, G, B, score, seed):
    """What the CPU draws for one KV head of stored q [H, d]: counts, drawn, weights, norms."""
    H, d = q.shape
    kind = KINDS[score]
    own = np.ascontiguousarray(q[kv * G : (kv + 1) * G].astype(np.float32) * np.float32(1 / np.sqrt(d)))
    count = d if kind == bernoulli.STRATIFIED else B * d
    random = rng.uniforms(seed, 3, 2 * H + kv * G + np.arange(G), np.full(G, 11), count, rng.SCORE_WORD)
    counts, drawn, weights, norms = np.zeros(5, np.int64), np.zeros((G, d), np.int64), np.zeros((G, d), np.float32), np.zeros(G, np.float32)
    bernoulli.draw_features(own, G, B, kind, random, counts, drawn, weights, norms)
    return counts, drawn, weights if kind == bernoulli.MEAN_GROUP else drawn.astype(np.float32), norms


@pytest.mark.parametrize("B", [1, 8, 37])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("score", KINDS)
def test_draws_and_counts_are_the_cpus_exactly(cupy, score, shape, B):
    G, H_kv, d, n, tile, _, _ = shape
    spec = spec_of({"method": "topk", "score": score, "B": B}, shape)
    arrays = tensors(8, shape)
    arrays[0][0, :, 3] = 0  # a feature that nobody needs
    plan, _ = counted(cupy, spec, shape, arrays)
    listed, weights, factors = (cupy.asnumpy(plan.work[name])[0] for name in ("list", "weights", "factors"))
    drawn, sampling, scores = (cupy.asnumpy(x)[0] for x in (plan.counts.drawn, plan.counts.sampling, plan.counts.scores))
    stash = cupy.asnumpy(plan.u)[0]
    w = np.minimum(n - np.arange(len(scores[0])) * tile, tile)
    for kv in range(H_kv):
        counts, expected, wanted, norms = cpu_draws(arrays[0][0], kv, G, B, score, spec.seed)
        assert np.array_equal(drawn[kv], expected)
        assert np.array_equal(sampling[kv], counts)
        features = np.flatnonzero(expected.any(axis=0))
        assert listed[kv, 0] == len(features)
        assert np.array_equal(listed[kv, 4 : 4 + len(features)], features)
        assert np.array_equal(weights[kv, : len(features), :G], wanted[:, features].T)
        assert np.array_equal(factors[kv * G : (kv + 1) * G], norms / np.float32(B))
        adds = (expected != 0).sum() if score == "bernoulli-mean-group" else np.abs(expected).sum()
        assert np.array_equal(scores[kv, :, 0], w * adds)
        assert np.array_equal(scores[kv, :, 1], w * adds * (score == "bernoulli-mean-group"))
        reads = w * (expected != 0).sum()
        reads[0] += G * d
        assert np.array_equal(scores[kv, :, 2], reads)
        keys = arrays[1][0, :, kv].astype(np.float64)
        exact = keys @ (wanted.astype(np.float64) * (norms / B)[:, None]).T
        found = stash[kv, :, :, :tile].transpose(1, 0, 2).reshape(G, -1)[:, :n]
        assert np.allclose(found, exact.T, rtol=0, atol=3e-5 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("score", KINDS)
def test_stash_maxima_and_sums_are_those_of_exact_scores(cupy, score, shape):
    G, H_kv, _, n, tile, _, _ = shape
    arrays = tensors(5, shape)
    scores_plan, _ = counted(cupy, spec_of({"method": "topk", "score": score, "B": 4}, shape), shape, arrays)
    plan, _ = counted(cupy, spec_of({"method": "s2anta-sys", "score": score, "B": 4}, shape), shape, arrays)
    scores, u, m, ell, tops = (cupy.asnumpy(x)[0] for x in (scores_plan.u, plan.u, plan.m, plan.ell, scores_plan.m))
    assert np.array_equal(m, tops)
    for h in range(G * H_kv):
        s = scores[h // G, :, h % G, :].astype(np.float64)
        assert np.array_equal(s.max(axis=1).astype(np.float32), m[h])
        stored = u[h // G, :, h % G].astype(np.float64)
        assert np.array_equal(stored * 2.0**40, np.rint(stored * 2.0**40))
        assert np.array_equal(stored.sum(axis=1), ell[h])
        assert np.allclose(stored, np.exp(s - s.max(axis=1)[:, None]), rtol=1e-4, atol=1e-12)
        assert not stored.reshape(-1)[: len(stored) * u.shape[-1]][np.isneginf(s).reshape(-1)].any()
    assert np.isfinite(scores[:, :, :, :tile].transpose(0, 2, 1, 3).reshape(H_kv, G, -1)[:, :, :n]).all()


@pytest.mark.parametrize("method", ["s2anta-prop", "s2anta-flash", "sdpa", "topk"])
@pytest.mark.parametrize("score", KINDS)
def test_features_that_nobody_needs_are_never_read(cupy, score, method):
    from santa_sim.gpu.kernel import decode, feature_major, make_plan

    shape = (4, 2, 128, 1000, 128, 50, "fp16")
    q, k, v = tensors(4, shape)
    q *= np.float16(0.01)
    q[:, :, 5] = 1  # the largest by far: most features are drawn by nobody
    spec = spec_of({"method": method, "score": score, "B": 2}, shape)
    counting, expected = counted(cupy, spec, shape, (q, k, v))
    unread = ~cupy.asnumpy(counting.counts.drawn)[0].any(axis=1)
    assert unread.mean() > 0.5
    laid_out = feature_major(on_gpu(cupy, k))
    for kv in range(2):
        laid_out[0, kv, cupy.asarray(np.flatnonzero(unread[kv]))] = np.nan
    laid_out[..., 1000:] = np.nan  # neither is what pads the rows used
    out = decode(make_plan(spec, 1, 8, 2, 128, 1000), on_gpu(cupy, q), laid_out, on_gpu(cupy, v), sequence=3, layer=2, position=11)
    assert np.allclose(on_cpu(cupy, out, "fp16"), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("score", KINDS)
def test_mean_scores_over_seeds_approach_exact_ones(cupy, score):
    from santa_sim.gpu.kernel import decode, feature_major, make_plan

    shape = (4, 2, 64, 200, 64, 200, "bf16")
    arrays = tensors(3, shape)
    plan = make_plan(spec_of({"method": "topk", "score": score, "B": 4}, shape), 1, 8, 2, 64, 200, tile=64)
    q, k, v = (on_gpu(cupy, x) for x in arrays)
    k = feature_major(k)
    sums, squares, runs = 0, 0, 400
    for seed in range(runs):
        decode(plan, q, k, v, seed=seed)
        scores = plan.u[0].astype(cupy.float64)
        sums, squares = sums + scores, squares + scores**2
    mean = cupy.asnumpy(sums / runs).transpose(0, 2, 1, 3).reshape(8, -1)[:, :200]
    std = np.sqrt(np.maximum(cupy.asnumpy(squares / runs).transpose(0, 2, 1, 3).reshape(8, -1)[:, :200] - mean**2, 0))
    q, k = arrays[0][0].astype(np.float64), arrays[1][0].astype(np.float64)
    exact = np.stack([k[:, h // 4] @ q[h] / 8 for h in range(8)])
    error = np.abs(mean - exact) / (std / np.sqrt(runs) + 1e-3)
    assert error.max() < 5.5  # of 1,600 normal deviates, one exceeds it once in 16,000 runs
    assert error.mean() < 1.1


def test_feature_major_beyond_31_bits_of_elements(cupy):
    from santa_sim.gpu.kernel import decode, make_plan

    n, H_kv, d = 2**21 + 1000, 8, 128
    if cupy.cuda.Device().mem_info[0] < 12e9:
        pytest.skip("needs 12 GB of free GPU memory")
    k = cupy.zeros((1, H_kv, d, n), cupy.float16)
    v = cupy.zeros((1, n, H_kv, d), cupy.float16)
    q = cupy.ones((1, H_kv, d), cupy.float16)
    k[0, :, :, n - 1], v[0, n - 1] = 8, cupy.arange(d)
    shape = (1, H_kv, d, n, 512, 16, "fp16")
    spec = spec_of({"method": "s2anta-sys", "score": "bernoulli-mean-group", "B": 2}, shape)
    out = decode(make_plan(spec, 1, H_kv, H_kv, d, n, tile=512), q, k, v)
    assert cupy.array_equal(out[0], cupy.broadcast_to(cupy.arange(d, dtype=cupy.float16), (H_kv, d)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_feature_major_is_a_transpose_with_rows_of_16_bytes(cupy, shape):
    from santa_sim.gpu.kernel import feature_major

    _, _, _, n, _, _, precision = shape
    k = on_gpu(cupy, tensors(2, shape, batch=2)[1])
    laid_out = feature_major(k)
    assert laid_out.shape[3] % 8 == 0
    assert cupy.array_equal(laid_out[..., :n].view(cupy.uint16), k.transpose(0, 2, 3, 1).view(cupy.uint16) if precision == "bf16" else k.transpose(0, 2, 3, 1).copy().view(cupy.uint16))
    assert not laid_out[..., n:].any()
