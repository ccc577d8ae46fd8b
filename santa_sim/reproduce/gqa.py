"""A group of G query heads reads at most G S rows of V. The kernel reaches that bound where the heads attend to different
keys, all of them equally; on workloads it reads the union of their rows, whose mean is known given the weights: the sum over
keys of 1 - the product over the heads of the chance to miss it. Prop's largest-remainder budgets have no such form: bounded only.
"""

from __future__ import annotations

import numpy as np

from ..attention import attention
from ..trace import Trace
from ..workload import load_workload
from .heads import Heads, expected_union, five_errors, group_unions, heads_of, repeated
from .items import Progress, published
from .rows import Found, Row

ITEM = "gqa"
SYSTEMATIC = "s2anta-prop, systematic"
SAMPLERS = {
    "s2anta-sys": ("s2anta-sys", {}),
    SYSTEMATIC: ("s2anta-prop", {"allocation": "systematic"}),
    "s2anta-prop": ("s2anta-prop", {}),
    "santa": ("santa", {}),
}


def disjoint_heads(n_k: int, group: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [G, d], k and v [n_k, 1, d] such that head g gives the g-th part of the keys equal weights and no other key any."""
    q, k = np.zeros((group, d), np.float32), np.zeros((n_k, 1, d), np.float32)
    q[np.arange(group), np.arange(group)] = 400.0 * d**0.5  # exp(-400) is 0 in float32
    k[np.arange(n_k), 0, np.arange(n_k) * group // n_k] = 1.0
    return q, k, np.ones((n_k, 1, d), np.float32)


def group_percent(trace: Trace, groups: int, n_k: int) -> float:
    """Rows of V that a group reads, in % of the keys; mean over layers and KV heads."""
    return 100 * trace.total("unique_rows_per_group") / (groups * n_k)


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    rows = []
    for case in published()["gqa"]:
        n_k, S, group = case["n_k"], case["S"], case["group"]
        progress(f"worst case, {n_k} keys", 0, 1)
        trace = attention(*disjoint_heads(n_k, group, 32), "s2anta-sys", S=S, seed=seed)[1]
        note = "systematic draws from heads that share no key: every draw is another row"
        rows.append(Row(ITEM, f"worst case, n_k = {n_k:,}, S = {S}, G = {group}", group_percent(trace, 1, n_k), case["percent"],
                        tolerance=0, unit="% of n_k", note=note))  # fmt: skip
    return Found((*rows, *_unions(progress, seed, 4 if fast else 8)))


def _unions(progress: Progress, seed: int, times: int):
    workloads = [("llama8b_decode_32k", 128, 1.5625), ("llama8b_decode_8k", 256, 12.5), ("smollm2_decode_2k", 64, None)]
    for name, S, worst in workloads:
        workload = load_workload(name)
        n_k = workload.lengths[0]
        worst = 100 * workload.group * S / n_k if worst is None else worst
        for overlap in ("independent", "shared") if name != "smollm2_decode_2k" else (None,):
            source = workload.source if overlap is None else workload.source.model_copy(update={"group_overlap": overlap})
            this = workload.model_copy(update={"source": source})
            layers = heads_of(this, seed)
            for sampler in ("s2anta-sys",) if overlap == "shared" else SAMPLERS:
                progress(f"{name}, {sampler}", 0, 1)
                what = "captured" if overlap is None else f"{overlap} positions"
                yield union_row(f"{name}, {what}, {sampler}, S = {S}", sampler, layers, S, worst, times, seed)


def union_row(name: str, sampler: str, layers: list[Heads], S: int, worst: float, times: int, seed: int) -> Row:
    """The union that groups read in `times` runs, in % of the keys, against its expectation (prop: against its bound)."""
    method, options = SAMPLERS[sampler]
    group, n_k = layers[0].q.shape[0] // layers[0].k.shape[1], layers[0].k.shape[0]
    read = [group_unions(repeated(heads, method, times, seed + number, S=S, **options)[1], times) for number, heads in enumerate(layers)]
    percent = 100 * np.concatenate(read, axis=1) / n_k
    statistics = {"runs": times, "groups": percent.shape[1], **five_errors(percent)}
    if sampler == "s2anta-prop":
        return Row(ITEM, name, percent.mean(), expected=worst, tolerance=0, bound="<=", unit="% of n_k", note="at most G S / n_k",
                   statistics={"runs": times, "groups": percent.shape[1]})  # fmt: skip
    expected = 100 * np.concatenate([expected_union(heads.p, S, method, group) for heads in layers]) / n_k
    return Row(ITEM, name, percent.mean(), expected=expected.mean(), tolerance=5 * statistics["standard_error"], unit="% of n_k",
               note=f"the union of the group's rows, against its mean given the weights; at most G S / n_k = {worst:.5g} %", statistics=statistics)  # fmt: skip
