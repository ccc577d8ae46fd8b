"""The kernels on a card: the same budgets, rows and counts as the CPU's from the same stash; outputs; batches; graphs."""

import numpy as np
import pytest
from gpu_inputs import (
    AFTER_BERNOULLI,
    EVERY,
    METHODS,
    SHAPES,
    STORAGE,
    counted,
    named,
    on_cpu,
    on_gpu,
    spec_of,
    tensors,
)

import santa_sim
from santa_sim import InputError, rng
from santa_sim.methods import budgets as budget_stage
from santa_sim.methods import draw as draw_stage
from santa_sim.methods import topk as topk_stage
from santa_sim.methods.spec import Spec

pytestmark = pytest.mark.gpu

def on_the_cpu(plan, stash, spec, kv, H):
    """Budgets [G, T], rows of each query, budget counts and draw counts of one KV head, from the GPU's stash."""
    u, m, ell = (x[0] for x in stash)
    G, n, T, S = H // plan.H_kv, plan.n_most, m.shape[-1], plan.S
    limits, tiles = np.full(G, n), np.full(G, T)
    rows_u = u[kv, :, :, : plan.tile].transpose(1, 0, 2).reshape(G, -1)[:, :n]  # without what pads a tile's row
    heads = slice(kv * G, (kv + 1) * G)
    m, ell = m[heads], ell[heads]
    flash = spec.method == "s2anta-flash"
    share, rows = np.zeros((G, T), np.int64), np.zeros((G, T * max(1, S // T) if flash else S), np.int32)
    counts, drawing = np.zeros(9, np.int64), np.zeros((T, 4), np.int64)
    independent = spec.method in ("santa", "s2anta-strat")
    per_tile = flash or (spec.method == "s2anta-prop" and spec.allocation == "largest-remainder")
    random = rng.uniforms(spec.seed, 3, 2 * H + kv * G + np.arange(G), np.full(G, 11), S if independent else T if per_tile else 1, rng.VALUE_WORD)
    if independent:
        residual = np.zeros((G, S))
        budget_stage.thresholds(m, ell, tiles, S, random, spec.method == "s2anta-strat", counts, share, residual)
        draw_stage.draw_thresholds(rows_u, ell, limits, plan.tile, share, residual, drawing, rows)
    else:
        low, high = np.zeros((G, T)), np.zeros((G, T))
        if flash:
            budget_stage.uniform(tiles, S, random, counts, share, low, high)
        else:
            stage = budget_stage.largest_remainder if per_tile else budget_stage.systematic
            stage(m, ell, tiles, S, random, counts, share, low, high)
        by_threshold = spec.sampler == "scaled-thresholds"
        draw_stage.draw_positions(rows_u, ell, limits, plan.tile, share, low, high, by_threshold, spec.method == "s2anta-sys", drawing, rows)
    return share, rows, counts, drawing


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", (*METHODS, *AFTER_BERNOULLI), ids=named)
def test_budgets_rows_and_counts_equal_the_cpu_from_the_same_stash(cupy, method, shape):
    G, H_kv, d, n, tile, S, _ = shape
    spec = spec_of(method, shape)
    arrays = tensors(n, shape)
    plan, out = counted(cupy, spec, shape, arrays)
    stashed = plan if "u" in plan.work else counted(cupy, spec_of(METHODS[0], shape), shape, arrays)[0]
    assert np.array_equal(*(cupy.asnumpy(x.ell) for x in (plan, stashed)))
    stash = [cupy.asnumpy(x) for x in (stashed.u, plan.m, plan.ell)]
    stash[0][:, :, :, :, tile:] = np.nan
    budgets, rows, step, drawing, values, scores = (cupy.asnumpy(x)[0] for x in (
        plan.counts.budgets, plan.counts.rows, plan.counts.global_step, plan.counts.drawing, plan.counts.values, plan.counts.scores))  # fmt: skip
    v = arrays[2][0].astype(np.float64)
    for kv in range(H_kv):
        heads = slice(kv * G, (kv + 1) * G)
        share, expected, counts, draws = on_the_cpu(plan, stash, spec, kv, G * H_kv)
        assert np.array_equal(budgets[heads], share)
        drawn = [row[row >= 0] for row in rows[heads]]
        assert np.array_equal(np.sort(drawn), np.sort(expected))
        assert np.array_equal(step[kv], counts)
        assert np.array_equal(drawing[kv], draws)
        per_tile = share.sum(axis=0) * d
        assert np.array_equal(values[kv], np.stack([per_tile, 0 * per_tile, per_tile, 0 * per_tile], axis=1))
        exact = v[expected, kv].sum(axis=1) / S
        if spec.method == "s2anta-flash":
            m, ell = stash[1][0, heads].astype(np.float64), stash[2][0, heads]
            weights = np.exp(m - m.max(axis=1, keepdims=True)) * ell
            means = v[expected, kv].reshape(G, len(m[0]), -1, d).mean(axis=2)
            exact = np.einsum("gt,gtd->gd", weights / weights.sum(axis=1, keepdims=True), means)
        assert np.allclose(out[0, heads], exact, rtol=1e-5, atol=1e-5)
    w = np.minimum(n - np.arange(len(scores[0])) * tile, tile)
    assert np.array_equal(scores[:, :, 3], np.tile(w * G, (H_kv, 1)))
    if spec.score == "exact":
        assert np.array_equal(scores[:, :, 0], scores[:, :, 3] * d)


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_topk_selects_what_the_cpu_selects_from_the_same_scores(cupy, shape, equal):
    G, H_kv, d, n, tile, k, _ = shape
    q, keys, v = arrays = tensors(6, shape)
    if equal:
        keys[:] = keys[:, :1]  # ties go to the lowest key
    plan, out = counted(cupy, spec_of({"method": "topk"}, shape), shape, arrays)
    k, T = min(k, n), plan.m.shape[-1]
    stash, rows = cupy.asnumpy(plan.u)[0], cupy.asnumpy(plan.work["selected"])[0]
    budgets, step, values = (cupy.asnumpy(x)[0] for x in (plan.counts.budgets, plan.counts.global_step, plan.counts.values))
    for kv in range(H_kv):
        heads = slice(kv * G, (kv + 1) * G)
        scores = stash[kv, :, :, :tile].transpose(1, 0, 2).reshape(G, -1)[:, :n]
        logits = keys[0, :, kv].astype(np.float64) @ q[0, heads].astype(np.float64).T / np.sqrt(d)
        assert np.allclose(scores, logits.T, rtol=0, atol=2e-5)
        share, expected, weights = np.zeros((G, T), np.int64), np.zeros((G, k), np.int32), np.zeros((G, k), np.float32)
        counts = np.zeros(4, np.int64)
        topk_stage.select_rows(np.ascontiguousarray(scores), np.full(G, n), k, tile, counts, share, expected, weights)
        assert np.array_equal(rows[heads], expected)
        assert np.array_equal(budgets[heads], share)
        assert np.array_equal(step[kv], counts)
        assert np.array_equal(values[kv, :, 1], share.sum(axis=0) * d)
        weights = weights.astype(np.float64) / weights.sum(axis=1, keepdims=True, dtype=np.float64)
        assert np.allclose(out[0, heads], np.einsum("gk,gkd->gd", weights, v[0, expected, kv].astype(np.float64)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=named)
def test_the_same_rows_without_what_only_newer_gpus_have(cupy, method):
    shape = (4, 2, 128, 4096, 128, 200, "bf16")
    spec, arrays = spec_of(method, shape), tensors(4, shape)
    plan, out = counted(cupy, spec, shape, arrays)
    for staged in (False, True):
        plain, expected = counted(cupy, spec, shape, arrays, cluster=False, overlap=False, staged=staged)
        assert not plain.cluster
        assert cupy.array_equal(*(cupy.sort(x.counts.rows) for x in (plan, plain)))
        assert np.allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_stash_is_the_softmax_of_exact_scores(cupy, shape):
    G, H_kv, d, n, tile, _, _ = shape
    arrays = tensors(5, shape)
    plan, _ = counted(cupy, spec_of(METHODS[0], shape), shape, arrays)
    u, m, ell = (cupy.asnumpy(x)[0] for x in (plan.u, plan.m, plan.ell))
    q, k, _ = (x[0].astype(np.float64) for x in arrays)
    T = m.shape[-1]
    for h in range(G * H_kv):
        s = np.full(T * tile, -np.inf)
        s[:n] = k[:, h // G] @ q[h] / np.sqrt(d)
        s = s.reshape(T, tile)
        top = s.max(axis=1)
        assert np.allclose(m[h], top, rtol=0, atol=2e-5)
        stored = u[h // G, :, h % G].astype(np.float64)
        assert np.array_equal(stored * 2.0**40, np.rint(stored * 2.0**40))
        assert np.array_equal(stored.sum(axis=1), ell[h])
        assert np.allclose(stored[:, :tile], np.exp(s - top[:, None]), rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("method", EVERY, ids=named)
@pytest.mark.parametrize("precision", STORAGE)
def test_the_trace_is_the_cpus(cupy, method, precision):
    shape = (4, 2, 128, 8000, 256, 128, precision)
    q, k, v = (x[0] for x in tensors(7, shape))
    budget = {} if method["method"] == "sdpa" else {"k_top" if method["method"] == "topk" else "S": 128}
    out, trace = santa_sim.attention(q, k, v, **budget, **method, seed=5, kernel="gpu")
    expected, there = santa_sim.attention(q, k, v, **budget, **method, seed=5, kernel="cpu")
    assert out.dtype == q.dtype
    assert trace.meta["samples_drawn"] == there.meta["samples_drawn"]
    for counter in ("score_adds", "score_reads", "softmax_exps", "value_adds", "value_reads", "sampling_random_numbers", "merge_adds", "merge_mults", "merge_exps", "softmax_adds",
                    "score_mults", "score_writes", "softmax_mults", "softmax_compares", "value_mults", "value_writes"):  # fmt: skip
        assert trace.total(counter) == there.total(counter)
    rows = [{(stage, kv, int(row)) for stage, kv, rows in zip(t.items.stage, t.items.kv_head, t.items.gather_rows) if rows is not None for row in rows}
            for t in (trace, there)]  # fmt: skip
    assert len(rows[0] & rows[1]) >= 0.999 * len(rows[0] | rows[1]) - 2
    difference = out.astype(np.float64) - expected.astype(np.float64)
    assert np.linalg.norm(difference) < 0.05 * np.linalg.norm(expected.astype(np.float64))


@pytest.mark.parametrize("method", EVERY, ids=named)
def test_no_length_changes_anothers_result(cupy, method):
    from santa_sim.gpu.kernel import decode, feature_major, make_plan

    shape = (5, 2, 64, 3000, 256, 96, "bf16")
    lengths = [3000, 1, 0, 777, 256, 257]
    spec = spec_of(method, shape)
    q, k, v = (on_gpu(cupy, x) for x in tensors(9, shape, batch=len(lengths)))
    laid_out = feature_major if spec.score != "exact" else lambda x: x
    together = decode(make_plan(spec, len(lengths), 10, 2, 64, 3000), q, laid_out(k), v, lengths=cupy.asarray(lengths, cupy.int32))
    assert not cupy.asnumpy(together)[2].any()
    for b, n in enumerate(lengths):
        if n:
            alone = decode(make_plan(spec, 1, 10, 2, 64, n), q[b : b + 1], laid_out(k[b : b + 1, :n]), v[b : b + 1, :n], sequence=b)
            # the sums of a head's splits may be grouped otherwise where the batch leaves fewer multiprocessors to a head
            a, c = (on_cpu(cupy, x, "bf16") for x in (alone[0], together[b]))
            assert np.allclose(a, c, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("method", (*METHODS, *AFTER_BERNOULLI), ids=named)
def test_a_large_batch_draws_the_rows_of_each_sequence_alone(cupy, method):
    from santa_sim.gpu.kernel import decode, feature_major, make_plan

    batch, shape = 40, (4, 2, 64, 700, 128, 100, "fp16")  # more heads than two for each multiprocessor of any GPU so far
    spec = spec_of(method, shape)
    q, k, v = (on_gpu(cupy, x) for x in tensors(10, shape, batch=batch))
    k = feature_major(k) if spec.score != "exact" else k
    together = make_plan(spec, batch, 8, 2, 64, 700, instrument=True)
    alone = make_plan(spec, 1, 8, 2, 64, 700, instrument=True)
    out = decode(together, q, k, v)
    for b in range(0, batch, 3):
        alone.counts.rows.fill(-1)
        own = decode(alone, q[b : b + 1], k[b : b + 1], v[b : b + 1], sequence=b)
        assert cupy.array_equal(alone.counts.rows[0], together.counts.rows[b])
        assert cupy.allclose(own[0], out[b], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=named)
def test_equal_logits_draw_every_key_as_often(cupy, method):
    shape = (4, 1, 128, 1024, 256, 1024, "bf16")
    q, k, v = tensors(1, shape)
    k[:] = 0
    plan, _ = counted(cupy, spec_of(method, shape), shape, (q, k, v))
    if method["method"] != "santa":
        assert (cupy.asnumpy(plan.counts.budgets) == 256).all()
    if method["method"] in ("s2anta-sys", "s2anta-prop", "s2anta-flash"):
        assert np.array_equal(np.sort(cupy.asnumpy(plan.counts.rows)[0]), np.tile(np.arange(1024), (4, 1)))


@pytest.mark.parametrize(("T", "S"), [(7, 3), (300, 450), (2000, 3001)])
def test_equal_remainders_go_to_the_lowest_tiles(cupy, T, S):
    shape = (2, 1, 64, 8 * T, 8, S, "bf16")  # the last: more tiles tie than a block has threads
    q, k, v = tensors(1, shape)
    k[:] = 0
    plan, _ = counted(cupy, spec_of({"method": "s2anta-prop"}, shape), shape, (q, k, v))
    assert np.array_equal(cupy.asnumpy(plan.counts.budgets)[0], np.tile(S // T + (np.arange(T) < S % T), (2, 1)))


@pytest.mark.parametrize("method", [m for m in METHODS if m["method"] != "s2anta-flash"], ids=named)
def test_a_first_tile_far_below_the_others_is_never_drawn(cupy, method):
    shape = (4, 1, 64, 600, 256, 50, "fp16")
    q, k, v = tensors(2, shape)
    q[:], k[:, :256], k[:, 256:] = 1, -10, 1
    plan, _ = counted(cupy, spec_of(method, shape), shape, (q, k, v))
    assert (cupy.asnumpy(plan.counts.rows) >= 256).all()


@pytest.mark.parametrize("method", [m for m in METHODS if m.get("allocation") or m["method"] != "s2anta-prop"], ids=named)
def test_means_over_seeds_approach_dense_attention(cupy, method):
    from santa_sim.gpu.kernel import decode, make_plan

    shape = (4, 2, 64, 2000, 256, 32, "fp16")
    arrays = tensors(3, shape)
    plan = make_plan(spec_of(method, shape), 1, 8, 2, 64, 2000)
    on_card = [on_gpu(cupy, x) for x in arrays]
    q, k, v = (x[0].astype(np.float64) for x in arrays)
    dense = np.empty((8, 64))
    for h in range(8):
        weights = np.exp(k[:, h // 4] @ q[h] / 8 - (k[:, h // 4] @ q[h] / 8).max())
        dense[h] = weights @ v[:, h // 4] / weights.sum()
    draws = np.array([on_cpu(cupy, decode(plan, *on_card, seed=seed)[0], "fp16") for seed in range(400)])
    error = np.abs(draws.mean(axis=0) - dense) / (draws.std(axis=0) / 20 + 1e-4)
    assert error.max() < 5.5  # of 512 normal deviates, one exceeds it once in 50,000 runs
    assert error.mean() < 1.1


def test_torch_tensors_and_a_graph_that_draws_anew(cuda_torch):
    from santa_sim.gpu.kernel import decode, make_plan

    torch = cuda_torch
    generator = torch.Generator("cuda").manual_seed(0)
    q = torch.randn(2, 8, 128, generator=generator, device="cuda").bfloat16()
    cache = torch.randn(2, 2, 700, 2, 128, generator=generator, device="cuda").bfloat16()
    k, v = cache[:, 0], cache[:, 1]  # slices of one cache, without a copy
    plan = make_plan(Spec(method="s2anta-sys", samples=64, seed=1), 2, 8, 2, 128, 600, tile=128)
    positions = torch.zeros(2, dtype=torch.int32, device="cuda")
    out = torch.full_like(q, float("nan"))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        plain = [decode(plan, q, k, v, position=p).clone() for p in (0, 1)]
        assert decode(plan, q, k, v, out, positions=positions) is out
        graph = torch.cuda.CUDAGraph()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        decode(plan, q, k, v, out, positions=positions)
    for position in (0, 1, 0):
        positions.fill_(position)
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, plain[position])
    assert not torch.equal(*plain)


def test_keys_beyond_31_bits_of_elements(cupy):
    from santa_sim.gpu.kernel import decode, make_plan

    n, H_kv, d = 2**21 + 1000, 8, 128
    if cupy.cuda.Device().mem_info[0] < 12e9:
        pytest.skip("needs 12 GB of free GPU memory")
    k = cupy.zeros((1, n, H_kv, d), cupy.float16)
    v = cupy.zeros((1, n, H_kv, d), cupy.float16)
    q = cupy.ones((1, H_kv, d), cupy.float16)
    k[0, n - 1], v[0, n - 1] = 8, cupy.arange(d)
    spec = Spec(method="s2anta-sys", samples=16, precision="fp16")
    out = decode(make_plan(spec, 1, H_kv, H_kv, d, n), q, k, v)
    assert cupy.array_equal(out[0], cupy.broadcast_to(cupy.arange(d, dtype=cupy.float16), (H_kv, d)))


def test_a_shorter_plan_leaves_a_longer_one_its_shared_memory(cupy):
    from santa_sim.gpu.kernel import decode, make_plan

    spec = Spec(method="s2anta-sys", samples=64, precision="fp16")
    q, k = cupy.ones((1, 2, 64), cupy.float16), cupy.ones((1, 900_000, 1, 64), cupy.float16)
    plans = [make_plan(spec, 1, 2, 1, 64, n) for n in (900_000, 600_000)]
    for plan in plans:
        assert cupy.array_equal(decode(plan, q, k, k), cupy.ones_like(q))


def test_wrong_tensors_are_named(cupy):
    from santa_sim.gpu.kernel import decode, make_plan

    plan = make_plan(Spec(method="s2anta-sys", samples=8, precision="fp16"), 1, 4, 2, 64, 100)
    q, k = cupy.zeros((1, 4, 64), cupy.float16), cupy.zeros((1, 100, 2, 64), cupy.float16)
    with pytest.raises(InputError, match="k has shape"):
        decode(plan, q, k[:, :99], k)
    with pytest.raises(InputError, match="q has type float32; the plan takes fp16"):
        decode(plan, q.astype(cupy.float32), k, k)
    with pytest.raises(InputError, match="v has strides"):
        decode(plan, q, k, cupy.zeros((1, 2, 100, 64), cupy.float16).transpose(0, 2, 1, 3))
    with pytest.raises(InputError, match="v is a ndarray; use a CuPy array"):
        decode(plan, q, k, cupy.asnumpy(k))
    plan = make_plan(Spec(method="s2anta-sys", samples=8, precision="fp16", score="bernoulli", B=2), 1, 4, 2, 64, 100)
    with pytest.raises(InputError, match=r"feature-major.*write feature_major\(k\)"):
        decode(plan, q, k, k)
    with pytest.raises(InputError, match="features a multiple of 16 B apart"):
        decode(plan, q, cupy.zeros((1, 2, 64, 101), cupy.float16), k)
    with pytest.raises(InputError, match="GPU kernels take 'bf16' or 'fp16'; use kernel='cpu'"):
        santa_sim.attention(np.zeros((4, 64), np.float32), *np.zeros((2, 100, 2, 64), np.float32), "s2anta-sys", 8, kernel="gpu")
