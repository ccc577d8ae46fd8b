"""attention(): the hard inputs, what must not change the result, and the errors."""

import hashlib
import os
import subprocess
import sys

import ml_dtypes
import numba
import numpy as np
import pytest

import santa_sim
from santa_sim.errors import InputError
from santa_sim.methods.spec import METHODS, SAMPLED

SAMPLERS = [(method, {}) for method in SAMPLED] + [("s2anta-prop", {"allocation": "systematic"}), ("s2anta-sys", {"sampler": "scaled-thresholds"})]
ALL = [("sdpa", {}), ("topk", {}), *SAMPLERS]


def tensors(seed=0, n_k=200, H=4, H_kv=2, d=16, n_q=None, dtype=np.float32, spread=1.0):
    rng = np.random.default_rng(seed)
    q = rng.normal(0, spread, (H, d) if n_q is None else (n_q, H, d)).astype(dtype)
    return q, *(rng.normal(0, 1, (n_k, H_kv, d)).astype(dtype) for _ in range(2))


def attend(q, k, v, method, budget=16, **options):
    budgets = {"S": budget} if method in SAMPLED else {"k_top": budget} if method == "topk" else {}
    return santa_sim.attention(q, k, v, method, **budgets, **options)


def digest(output, trace):
    """Of the output and of every number and list of the trace."""
    made = hashlib.sha256(np.ascontiguousarray(output).tobytes())
    for column in trace.items:
        for value in trace.items[column]:
            made.update(repr(np.asarray(value).tolist()).encode())
    return made.hexdigest()


# ---- hard inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.0, -2.45e5, 2.45e5])
@pytest.mark.parametrize("method, options", ALL)
def test_equal_logits(method, options, level):
    """q.k / sqrt(d) is the same everywhere; every method then gives a mean of rows, dense the mean of all."""
    n, d = 128, 16
    q, k, v = np.full((2, d), 1.0, np.float32), np.full((n, 1, d), level / 4, np.float32), tensors(n_k=n, H_kv=1)[2]
    output, trace = attend(q, k, v, method, budget=n, tile=32, **options)
    if method not in ("santa",):
        np.testing.assert_allclose(output, np.repeat(v.mean(axis=(0, 1))[None], 2, axis=0), atol=1e-5)
        assert trace.total("unique_rows_per_group") == n or method == "s2anta-strat"
    assert np.isfinite(output).all()


def test_stratified_draws_of_equal_logits_stay_in_their_strata():
    v = np.eye(64, dtype=np.float32)[:, None]
    output, _ = attend(np.zeros((3, 64), np.float32), np.ones((64, 1, 64), np.float32), v, "s2anta-strat", budget=16, tile=16)
    assert (output.reshape(3, 16, 4).sum(axis=2) == 1 / 16).all()


@pytest.mark.parametrize("method, options", [pair for pair in ALL if pair[0] not in ("santa", "topk")])
def test_4096_equal_logits_in_bfloat16(method, options):
    """Adding 4,096 ones in bfloat16 would stop at 256; the sums are wider, so the mean of the values is right."""
    q = np.ones((1, 8), ml_dtypes.bfloat16)
    k = np.full((4096, 1, 8), 0.7, ml_dtypes.bfloat16)
    v = np.repeat(np.arange(4096, dtype=np.float32)[:, None, None] % 64, 8, axis=2).astype(ml_dtypes.bfloat16)
    output, trace = attend(q, k, v, method, budget=4096, **options)
    expected = np.full((1, 8), 31.5)
    np.testing.assert_allclose(output.astype(np.float64), expected, atol=0.5 if method == "s2anta-strat" else 0.125)
    assert output.dtype == ml_dtypes.bfloat16 and trace.meta["n_k"] == [4096]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("method, options", ALL)
def test_nan_beyond_the_keys_in_use_is_never_read(method, options, dtype):
    q, k, v = tensors(n_k=90, dtype=dtype)
    wide_k, wide_v = (np.concatenate([x, np.full_like(x[:70], np.nan)]) for x in (k, v))
    for more in ({}, {"score": "bernoulli", "B": 3}):
        expected = attend(q, k, v, method, tile=32, **options, **more)
        assert digest(*attend(q, wide_k, wide_v, method, tile=32, n_k=90, **options, **more)) == digest(*expected)


@pytest.mark.parametrize("G", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("method, options", ALL)
def test_any_group_size_odd_dimension_and_more_samples_than_keys(method, options, G):
    """S much larger than n_k: the sampled mean comes close to the dense output; top-k keeps every key."""
    q, k, v = tensors(seed=G, n_k=11, H=2 * G, d=7)
    dense, _ = attend(q, k, v, "sdpa")
    output, trace = attend(q, k, v, method, budget=2**14, tile=4, **options)
    assert np.abs(output - dense).max() < (0.1 if method == "santa" else 5e-3)
    assert output.shape == q.shape and trace.meta["n_heads"] == 2 * G


@pytest.mark.parametrize("kernel", ["cpu", "torch"])
def test_top_k_of_more_keys_than_there_are_is_dense_attention_and_says_so(kernel):
    if kernel == "torch":
        pytest.importorskip("torch", reason="needs torch: pip install -e '.[models]'")
    q, k, v = tensors(n_k=24)
    exact = attend(q, k, v, "sdpa")[0]
    for k_top, said in ((24, False), (25, True), (4096, True)):
        output, trace = attend(q, k, v, "topk", k_top, kernel=kernel)
        np.testing.assert_allclose(output, exact, atol=1e-6)
        assert any("keeps them all" in note for note in trace.meta["notes"]) == said
    notes = attend([q, q], [k, k[:10]], [v, v[:10]], "topk", 16)[1].meta["notes"]
    assert notes == ["k = 16 is more than the 10 keys of the shortest sequence: top-k keeps them all, as dense attention does"]


@pytest.mark.parametrize("score", [{}, {"score": "bernoulli", "B": 2}, {"score": "bernoulli-stratified", "B": 2}, {"score": "bernoulli-mean-group", "B": 2}])
@pytest.mark.parametrize("method, options", ALL)
def test_one_key(method, options, score):
    q, k, v = tensors(n_k=1)
    output, _ = attend(q, k, v, method, **options, **score)
    np.testing.assert_allclose(output, np.repeat(v[0], 2, axis=0), rtol=1e-6)


@pytest.mark.parametrize("low", [0, 1, 2])
@pytest.mark.parametrize("method, options", ALL)
def test_a_tile_100_below_the_others_weighs_nothing(method, options, low):
    """Its rows hold 1e6: a single draw would show. Flash draws there, too, and weighs it with exp(-100)."""
    rng = np.random.default_rng(3)
    q, k = np.zeros((2, 16), np.float32), np.zeros((96, 1, 16), np.float32)
    q[:, 0] = 4
    k[:, 0, 0] = rng.normal(0, 1, 96)
    v = rng.normal(0, 1, (96, 1, 16)).astype(np.float32)
    k[32 * low : 32 * low + 32, 0, 0] -= 100
    v[32 * low : 32 * low + 32] = 1e6
    output, _ = attend(q, k, v, method, budget=30, tile=32, **options)
    assert np.abs(output).max() < 4


@pytest.mark.parametrize("method, options", ALL)
def test_the_first_query_of_a_prefill_sees_the_first_key_only(method, options):
    q, k, v = tensors(n_k=50, n_q=50)
    output, trace = attend(q, k, v, method, tile=16, query_block=7, **options)
    np.testing.assert_allclose(output[0], np.repeat(v[0], 2, axis=0), rtol=1e-6)
    assert (trace.meta["kind"], trace.meta["n_q"]) == ("prefill", [50])


@pytest.mark.parametrize("method", ["sdpa", "topk"])
def test_the_last_query_of_a_prefill_is_the_decode_step(method):
    q, k, v = tensors(n_k=50, n_q=20)
    prefill, _ = attend(q, k, v, method, tile=16, query_block=7)
    step, trace = attend(q[-1], k, v, method, tile=16)
    np.testing.assert_allclose(prefill[-1], step, rtol=1e-5, atol=1e-6)
    assert (trace.meta["kind"], trace.meta["n_q"]) == ("decode", [1])


# ---- what must not change the result --------------------------------------------------------------------------------------


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads; this machine gives Numba one")
@pytest.mark.parametrize("score", [{}, {"score": "bernoulli-stratified", "B": 4}])
@pytest.mark.parametrize("method, options", ALL)
def test_threads_do_not_matter(method, options, score):
    before = numba.get_num_threads()
    found = set()
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            for n_q in (None, 30):
                found.add((n_q, digest(*attend(*tensors(n_k=700, H_kv=4, n_q=n_q), method, tile=32, **options, **score))))
    finally:
        numba.set_num_threads(before)
    assert len(found) == 2


SMALL_CALL = """
import numpy as np, santa_sim
rng = np.random.default_rng(0)
q, k, v = (rng.normal(0, 1, (n, 2, 6)).astype(np.float32) for n in (1, 40, 40))
output, trace = santa_sim.attention(q[0], k, v, "s2anta-sys", S=9, tile=16, seed=3, score="bernoulli-stratified", B=3)
print(output.tobytes().hex(), [list(rows) for rows in trace.items["gather_rows"]])
"""


def test_a_cold_cache_gives_what_a_warm_one_gives(tmp_path):
    """Two new processes on an empty cache: the first compiles, the second loads."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    printed = [subprocess.run([sys.executable, "-c", SMALL_CALL], env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert list(tmp_path.rglob("*.nbi"))
    assert printed[0] == printed[1] and len(printed[0]) > 50


@pytest.mark.parametrize("method, options", ALL)
def test_the_rest_of_a_batch_does_not_matter(method, options):
    """Sequences are numbered: the first equals its single run, and another's length changes nothing of the others."""
    a, b, c = tensors(1, 60), tensors(2, 150), tensors(3, 90)
    alone, _ = attend(*a, method, tile=32, **options)
    (first, second), trace = attend(*zip(a, b), method, tile=32, **options)
    assert (first == alone).all()
    assert trace.meta["n_k"] == [60, 150]
    (_, same), _ = attend(*zip(c, b), method, tile=32, **options)
    assert (same == second).all()
    shorter, _ = attend(*(list(x) for x in zip(b, b)), method, tile=32, n_k=[40, None], **options)
    assert (shorter[1] == second).all()
    if method in SAMPLED:
        assert not (attend(*zip(b, a), method, tile=32, **options)[0][0] == second).all()


@pytest.mark.parametrize("method, options", SAMPLERS)
def test_the_seed_matters_and_repeats(method, options):
    q, k, v = tensors()
    outputs = [attend(q, k, v, method, tile=32, seed=seed, **options)[0] for seed in (1, 1, 2, 1 + 2**32)]
    assert (outputs[0] == outputs[1]).all()
    assert not (outputs[0] == outputs[2]).all() and not (outputs[0] == outputs[3]).all()


@pytest.mark.parametrize("method, options", ALL)
def test_memory_layout_does_not_matter(method, options):
    q, k, v = tensors()
    strided = np.asfortranarray(q), np.repeat(k, 2, axis=0)[::2], v.transpose(2, 1, 0).copy().transpose(2, 1, 0)
    assert digest(*attend(*strided, method, **options)) == digest(*attend(q, k, v, method, **options))


def test_systematic_rows_of_exact_scores_do_not_depend_on_the_tile():
    """Equal logits: masses and positions are dyadic, so not even rounding differs."""
    q, k = np.zeros((2, 64), np.float32), np.ones((64, 1, 64), np.float32)
    v = np.eye(64, dtype=np.float32)[:, None]
    outputs = [attend(q, k, v, "s2anta-sys", tile=tile)[0] for tile in (1, 7, 16, 64, 100)]
    assert all((output == outputs[0]).all() for output in outputs)


# ---- errors ---------------------------------------------------------------------------------------------------------------

q, k, v = tensors(n_k=20)


def with_value(x, value):
    changed = x.copy()
    changed.reshape(-1)[5] = value
    return changed


@pytest.mark.parametrize("call, message", [
    (lambda: attend(tensors(H=3)[0], k, v, "sdpa"), "H=3 query heads are not a multiple of H_kv=2 KV heads; H_kv can be 1, 3"),
    (lambda: attend(q, with_value(k, np.nan), v, "sdpa"), r"k\[0, 0, 5\] is nan"),
    (lambda: attend(q, with_value(k, np.inf), v, "sdpa"), r"k\[0, 0, 5\] is inf"),
    (lambda: attend(with_value(q, -np.inf), k, v, "sdpa"), r"q\[0, 0, 5\] is -inf"),
    (lambda: attend(q, k, with_value(v, np.nan), "sdpa"), r"v\[0, 0, 5\] is nan"),
    (lambda: attend(*(with_value(x.astype(np.float16), np.nan) for x in (q, k, v)), "sdpa"), r"q\[0, 0, 5\] is nan"),
    (lambda: attend(q, k[:0], v[:0], "sdpa"), r"the cache is empty \(n_k = 0\)"),
    (lambda: attend(q, k, v, "sdpa", n_k=0), r"the cache is empty \(n_k = 0\)"),
    (lambda: attend(q, k, v, "sdpa", n_k=21), "n_k=21 must be a whole number from 1 to the cache's 20 rows"),
    (lambda: attend(q, k, v, "sdpa", n_k=-1), "n_k=-1 must be"),
    (lambda: attend(q, k, v, "sdpa", n_k=4.0), "n_k=4.0 must be"),
    (lambda: attend(q, k[:10], v, "sdpa"), r"k has shape \(10, 2, 16\), v has \(20, 2, 16\)"),
    (lambda: attend(q, k[:, 0], v[:, 0], "sdpa"), r"must be \[n_k, H_kv, d\]"),
    (lambda: attend(q[:, :8], k, v, "sdpa"), r"head dimension: q has shape \(4, 8\) \(d = 8\), k has \(20, 2, 16\)"),
    (lambda: attend(q[0], k, v, "sdpa"), r"q has shape \(16,\); decode takes \[H, d\], prefill \[n_q, H, d\]"),
    (lambda: attend(q[:0], k, v, "sdpa"), "must be at least 1"),
    (lambda: attend(tensors(n_q=21)[0], k, v, "sdpa"), "q has 21 query positions, k has n_k = 20 keys"),
    (lambda: attend(q.astype(np.float64), k, v, "sdpa"), r"q has dtype float64.*write x.astype\(np.float32\)"),
    (lambda: attend(q, k.astype(int), v, "sdpa"), "k has dtype int64"),
    (lambda: attend(q.astype(np.float16), k, v, "sdpa"), "q, k and v come as fp16 and fp32; say which to compute in, such as precision='fp16'"),
    (lambda: attend(q * 1e6, k, v, "sdpa", precision="fp16"), "is beyond the range of fp16"),
    (lambda: attend(q * 1e30, k * 1e30, v, "sdpa"), "scores q.k overflow float32"),
    (lambda: attend(q * 1e30, k * 1e30, v, "topk"), "scores q.k overflow float32"),
    (lambda: attend(q * 1e30, k * 1e30, v, "santa", score="bernoulli", B=2), "scores q.k overflow float32"),
    (lambda: attend(q, k, np.full_like(v, 3e38), "s2anta-sys"), "sums of V overflow float32"),
    (lambda: attend([q], k, v, "sdpa"), "q is a list of 1 sequences; k and v must be lists of as many"),
    (lambda: attend([], [], [], "sdpa"), "at least one"),
    (lambda: attend([q, q], [k, k], [v, v], "sdpa", n_k=[3]), "n_k has 1 entries; there are 2 sequences"),
    (lambda: attend([q, q[:2]], [k, k], [v, v], "sdpa"), "sequence 1 has H=2, H_kv=2, d=16; sequence 0 has H=4, H_kv=2, d=16"),
    (lambda: attend([q, q[None]], [k, k], [v, v], "sdpa"), r"sequence 1's q is \[n_q, H, d\], sequence 0's \[H, d\]"),
    (lambda: attend(q, k, v, "santa", budget=[4, 4]), r"S has 2 entries, \[4, 4\]; the workload has 1 layers"),
    (lambda: attend(q, k, v, "sdpa", kernel="gpuu"), r"kernel='gpuu' is not known; did you mean 'gpu'\?"),
    (lambda: attend(q, k, v, "santa", budget=0), "S=0 is outside"),
    (lambda: attend(q, k, v, "sdpa", score="bernoulli", B=0), "B=0 is outside"),
])  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_every_method_is_covered_here():
    assert {method for method, _ in ALL} == set(METHODS)
