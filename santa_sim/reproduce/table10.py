"""Every method prefills with its kernel, which counts while it works: first without a mask, as Table 10 has it, then with
the causal mask of a real prefill, where n_q n_k becomes the sum of the keys that each query sees, and n_q k the sum of
min(k, keys seen). The score stage is the same for all methods: its published counts are shown once. Counts are per head and must be equal as integers.
"""

from __future__ import annotations

import numpy as np

from ..analysis import closed_forms
from ..attention import attention
from ..fixed_point import BITS
from ..methods.spec import METHODS, SAMPLED
from .counted import METRICS, counted, differing, gaussian, published_counts
from .items import Progress, published
from .rows import Found, Row

ITEM = "table10"
SHAPE = {"n_q": 256, "n_k": 512, "d": 128, "k": 32, "S": 32}
H, H_KV, TILE = 8, 2, 64


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    rng = np.random.default_rng([seed, 10])
    rows = [*_without_mask(progress, rng, seed), *_random_shapes(progress, rng, 6 if fast else 15)]
    return Found(tuple(rows))


def _run(tensors, method, budget, **options):
    budgets = {"S": budget} if method in SAMPLED else {"k_top": budget} if method == "topk" else {}
    return attention(*tensors, method, **budgets, **options)[1]


def _without_mask(progress, rng, seed):
    tensors = gaussian(rng, SHAPE["n_q"], SHAPE["n_k"], H, H_KV, SHAPE["d"], np.float16)
    cases = [(method, "fp16") for method in METHODS] + [("santa", "int16")]
    for done, (method, precision) in enumerate(cases):
        progress(f"{method}, {precision}", done, len(cases))
        trace = _run(tensors, method, SHAPE["S"], causal=False, precision=precision, seed=seed, tile=TILE)
        shifts = precision in BITS
        stages = [("value", "santa" if method in SAMPLED else method)]
        for stage, formulas in [("score", "score"), *stages] if method == "sdpa" else stages:
            expected = published_counts(published()["table10"][formulas], shifts=shifts and stage == "value", **SHAPE)
            for metric, ours in counted(trace, stage, H).items():
                if metric == "shifts" and not shifts:
                    continue
                yield Row(ITEM, f"{method}, {precision}: {stage} {metric}", ours, expected[metric], tolerance=0, unit="per head")


def _random_shapes(progress, rng, shapes):
    wrong, compared = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0)
    for done in range(shapes):
        progress("random shapes, causal", done, shapes)
        H_kv, G, d = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(8, 65))
        n_k, tile, S = int(rng.integers(2, 200)), int(rng.choice([16, 32, 64])), int(rng.integers(1, 65))
        n_q, S = int(rng.integers(1, n_k + 1)), 1 << (S.bit_length() - 1) if done % 2 else S
        precision = ("fp32", "fp16", "bf16", "int8", "int16")[done % 5]
        tensors = gaussian(rng, n_q, n_k, H_kv * G, H_kv, d, np.float32)
        for method in METHODS:
            # flash's budgets differ from query to query; a kernel block shifts if all of its own are powers of two, and the
            # closed form speaks of all queries, so they are one block here
            block = 256 if method == "s2anta-flash" and precision in BITS else 16
            trace = _run(tensors, method, S, precision=precision, tile=tile, seed=int(rng.integers(2**32)), query_block=block)
            value = closed_forms.value_stage(method, n_q, n_k, d, S, tile=tile, fixed_point=precision in BITS)
            wrong[method] += differing(counted(trace, "value", H_kv * G), value)
            wrong[method] += differing(counted(trace, "score", H_kv * G), closed_forms.score_stage(n_q, n_k, d))
            compared[method] += 2 * len(METRICS) - 1
    note = "causal; n_k 2-199, n_q 1-n_k, d 8-64, 1-9 heads, groups of 1-3, S 1-64; fp32, fp16, bf16, int8, int16 in turn"
    for method in METHODS:
        yield Row(ITEM, f"{method}, causal: counts that differ", wrong[method], expected=0, tolerance=0,
                  unit=f"of {compared[method]}", note=note, statistics={"shapes": shapes})  # fmt: skip
