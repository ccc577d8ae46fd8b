"""Every kernel once, both builds, on small and odd shapes: what to run under compute-sanitizer.

    compute-sanitizer --tool memcheck python benchmarks/gpu_sanitize.py        # and racecheck, synccheck
"""

from __future__ import annotations

import argparse
import itertools

import cupy
import numpy as np
from santa_sim.gpu.kernel import decode, feature_major, make_plan

from santa_sim.methods.spec import Spec

METHODS = (
    {"method": "s2anta-sys"}, {"method": "s2anta-prop"}, {"method": "s2anta-prop", "allocation": "systematic", "sampler": "scaled-thresholds"},
    {"method": "santa"}, {"method": "s2anta-strat"}, {"method": "s2anta-flash"}, {"method": "topk"}, {"method": "sdpa"},
)  # fmt: skip
SCORES = ("exact", "bernoulli", "bernoulli-stratified", "bernoulli-mean-group")
# (batch, G, H_kv, d, n, tile, samples, precision, options of the plan); the third has more heads than two for each multiprocessor
SHAPES = (
    (3, 4, 2, 128, 1037, 128, 40, "bf16", {}), (3, 5, 1, 64, 333, 100, 7, "fp16", {"cluster": False, "overlap": False, "staged": False}),
    (40, 4, 2, 64, 300, 64, 100, "fp16", {}),
)  # fmt: skip


def run(method: dict, score: str, shape: tuple, instrument: bool) -> bool:
    """One step of a batch of three lengths, one of them none; whether its outputs are finite."""
    batch, G, H_kv, d, n, tile, samples, precision, options = shape
    budget = {"k": samples} if method["method"] == "topk" else {} if method["method"] == "sdpa" else {"samples": samples}
    spec = Spec(**method, **budget, score=score, B=None if score == "exact" else 3, precision=precision)
    generator = np.random.default_rng(0)
    q, k, v = (generator.normal(size=x).astype(np.float32) for x in ((batch, G * H_kv, d), (batch, n, H_kv, d), (batch, n, H_kv, d)))
    if precision == "bf16":
        q, k, v = (cupy.asarray((x.view(np.uint32) >> 16).astype(np.uint16)) for x in (q, k, v))
    else:
        q, k, v = (cupy.asarray(x.astype(np.float16)) for x in (q, k, v))
    plan = make_plan(spec, batch, G * H_kv, H_kv, d, n, tile=tile, instrument=instrument, **options)
    out = decode(plan, q, feature_major(k) if plan.feature_major else k, v, lengths=cupy.asarray([n, 0, n - 200] + [n] * (batch - 3), cupy.int32))
    result = cupy.asnumpy(out)
    if result.dtype == np.uint16:
        result = (result.astype(np.uint32) << 16).view(np.float32)
    return bool(np.isfinite(result.astype(np.float32)).all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast-only", action="store_true", help="leave out the counting build")
    builds = (False,) if parser.parse_args().fast_only else (False, True)
    for number, (method, score, shape, instrument) in enumerate(itertools.product(METHODS, SCORES, SHAPES, builds)):
        if not run(method, score, shape, instrument):
            raise SystemExit(f"{method}, {score}, {shape}: not finite")
    print(f"{number + 1} steps ran")


if __name__ == "__main__":
    main()
