"""Every method runs a decode step with its kernel, which counts what it does while it does it. The counts per query head
must equal the closed forms as integers: at the shape of Table 8's model (32 heads, d = 128, 8,192 keys, S = 256), and over
random shapes, budgets and precisions. In fixed point with S a power of two the d divisions are d shifts.
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

ITEM = "table8"
SHAPE = {"n_k": 8192, "d": 128, "S": 256}
H, H_KV = 32, 8
_TOP_K = "the paper gives top-k in Table 10; here n_q = 1"
_FLASH = "S / tiles draws in each tile, as S is a multiple of their number"


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    rng = np.random.default_rng([seed, 8])
    rows = [*_paper_shape(progress, rng, seed), *_random_shapes(progress, rng, 8 if fast else 24)]
    return Found(tuple(rows))


def _paper_shape(progress, rng, seed):
    q, k, v = gaussian(rng, None, SHAPE["n_k"], H, H_KV, SHAPE["d"], np.float16)
    cases = [(method, "fp16") for method in METHODS] + [("santa", "int16"), ("s2anta-sys", "int8")]
    for done, (method, precision) in enumerate(cases):
        progress(f"{method}, {precision}", done, len(cases))
        budget = {"S": SHAPE["S"]} if method in SAMPLED else {"k_top": SHAPE["S"]} if method == "topk" else {}
        trace = attention(q, k, v, method, precision=precision, seed=seed, **budget)[1]
        shifts = precision in BITS and method in SAMPLED
        formulas = published()["table10" if method == "topk" else "table8"]["santa" if method in SAMPLED else method]
        expected = published_counts(formulas, n_q=1, k=SHAPE["S"], shifts=shifts, **SHAPE)
        note = _TOP_K if method == "topk" else _FLASH if method == "s2anta-flash" else ""
        for metric, ours in counted(trace, "value", H).items():
            if metric == "shifts" and not shifts:
                continue
            yield Row(ITEM, f"{method}, {precision}: {metric}", ours, expected[metric], tolerance=0, unit="per head", note=note)


def _random_shapes(progress, rng, shapes):
    wrong, compared = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0)
    precisions = ("fp32", "fp16", "bf16", "int8", "int16")
    for done in range(shapes):
        progress("random shapes", done, shapes)
        H_kv, G, d = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(8, 65))
        n_k, tile, S = int(rng.integers(2, 700)), int(rng.choice([16, 32, 64])), int(rng.integers(1, 65))
        S = 1 << (S.bit_length() - 1) if done % 2 else S  # every other budget is a power of two
        precision = precisions[done % len(precisions)]
        q, k, v = gaussian(rng, None, n_k, H_kv * G, H_kv, d, np.float32)
        for method in METHODS:
            budget = {"S": S} if method in SAMPLED else {"k_top": S} if method == "topk" else {}
            trace = attention(q, k, v, method, precision=precision, tile=tile, seed=int(rng.integers(2**32)), **budget)[1]
            form = closed_forms.value_stage(method, 1, n_k, d, S, tile=tile, fixed_point=precision in BITS)
            wrong[method] += differing(counted(trace, "value", H_kv * G), form)
            compared[method] += len(METRICS)
    note = "n_k 2-699, d 8-64, 1-12 heads, groups of 1-4, S 1-64, half of them powers of two; fp32, fp16, bf16, int8, int16 in turn"
    for method in METHODS:
        yield Row(ITEM, f"{method}, random shapes: counts that differ", wrong[method], expected=0, tolerance=0,
                  unit=f"of {compared[method]}", note=note, statistics={"shapes": shapes})  # fmt: skip
