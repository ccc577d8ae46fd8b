"""Methods, shapes and inputs that the tests on a card share."""

import ml_dtypes
import numpy as np

from santa_sim.methods.spec import Spec

STORAGE = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}
METHODS = (
    {"method": "s2anta-sys"}, {"method": "s2anta-sys", "sampler": "scaled-thresholds"},
    {"method": "s2anta-prop", "allocation": "systematic"}, {"method": "s2anta-prop"},
    {"method": "s2anta-prop", "sampler": "scaled-thresholds"}, {"method": "santa"}, {"method": "s2anta-strat"},
    {"method": "s2anta-flash"}, {"method": "s2anta-flash", "sampler": "scaled-thresholds"},
)  # fmt: skip
# the value stages from Bernoulli scores, of which each kind is there once
AFTER_BERNOULLI = (
    {"method": "s2anta-sys", "score": "bernoulli", "B": 4}, {"method": "s2anta-prop", "score": "bernoulli-mean-group", "B": 8},
    {"method": "s2anta-flash", "score": "bernoulli-stratified", "B": 4}, {"method": "s2anta-flash", "score": "bernoulli-mean-group", "B": 8},
)  # fmt: skip
OTHERS = ({"method": "topk"}, {"method": "sdpa"}, {"method": "topk", "score": "bernoulli-mean-group", "B": 8}, {"method": "sdpa", "score": "bernoulli", "B": 4})
EVERY = (*METHODS, *AFTER_BERNOULLI, *OTHERS)
# (G, H_kv, d, n, tile, S, precision)
SHAPES = (
    (4, 2, 128, 4096, 256, 128, "bf16"), (5, 1, 64, 1111, 100, 37, "fp16"), (7, 2, 256, 333, 32, 300, "bf16"),
    (1, 3, 128, 9999, 512, 1000, "fp16"), (8, 1, 64, 17, 64, 5, "bf16"), (3, 2, 128, 1, 256, 64, "fp16"), (2, 1, 128, 70000, 64, 700, "bf16"),
)  # fmt: skip


def tensors(seed, shape, batch=1):
    """Stored q [B, H, d], k and v [B, n, H_kv, d], with a few keys that draw much of the mass."""
    G, H_kv, d, n, _, _, precision = shape
    generator = np.random.default_rng(seed)
    q = generator.normal(0, 1.5, (batch, G * H_kv, d))
    k, v = generator.normal(0, 1, (2, batch, n, H_kv, d))
    return [x.astype(STORAGE[precision]) for x in (q, k, v)]


def named(method):
    """A test's name for a method."""
    return "-".join(str(value) for value in method.values())


def on_gpu(cupy, x):
    """bfloat16 travels as 16-bit integers."""
    return cupy.asarray(x.view(np.uint16)) if x.dtype == STORAGE["bf16"] else cupy.asarray(x)


def on_cpu(cupy, x, precision):
    x = cupy.asnumpy(x)
    return (x.view(STORAGE["bf16"]) if precision == "bf16" and x.dtype.itemsize == 2 else x).astype(np.float64)


def counted(cupy, spec, shape, arrays, **more):
    """A plan of the counting build after one step, and the output."""
    from santa_sim.gpu.kernel import decode, feature_major, make_plan

    G, H_kv, d, n, tile, _, _ = shape
    plan = make_plan(spec, len(arrays[0]), G * H_kv, H_kv, d, n, tile=tile, instrument=True, **more)
    q, k, v = (on_gpu(cupy, x) for x in arrays)
    k = feature_major(k) if plan.feature_major else k
    return plan, cupy.asnumpy(decode(plan, q, k, v, sequence=3, layer=2, position=11))


def spec_of(method, shape, **more):
    budget = {} if method["method"] == "sdpa" else {"k" if method["method"] == "topk" else "samples": shape[5]}
    return Spec(**method, **budget, precision=shape[6], seed=123456789012345, **more)
