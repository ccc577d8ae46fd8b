"""A group of G query heads reads at most G S rows of V. The kernel reaches that bound where the heads attend to different
keys, all of them equally; on workloads whose heads share keys it reads the union of their rows, which is smaller.
"""

from __future__ import annotations

import numpy as np

from ..api import make_trace
from ..attention import attention
from ..trace import Trace
from ..workload import load_workload
from .items import Progress, published
from .rows import Found, Row

ITEM = "gqa"
METHODS = ("s2anta-sys", "s2anta-prop", "santa")


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
    workloads = [("llama8b_decode_32k", 128, 1.5625), ("llama8b_decode_8k", 256, 12.5), ("smollm2_decode_2k", 64, None)]
    for name, S, worst in workloads:
        workload = load_workload(name)
        n_k, groups = workload.lengths[0], workload.kv_heads * workload.layers
        worst = 100 * workload.group * S / n_k if worst is None else worst
        for overlap in ("independent", "shared") if name != "smollm2_decode_2k" else (None,):
            source = workload.source if overlap is None else workload.source.model_copy(update={"group_overlap": overlap})
            this = workload.model_copy(update={"source": source})
            for method in METHODS[:1] if overlap == "shared" else METHODS:
                progress(f"{name}, {method}", 0, 1)
                trace = make_trace(this, method, S, seed=seed, tensor_seed=seed)
                what = "captured" if overlap is None else f"{overlap} positions"
                rows.append(Row(ITEM, f"{name}, {what}, {method}, S = {S}", group_percent(trace, groups, n_k), expected=worst, tolerance=0,
                                bound="<=", unit="% of n_k", note="the union of the group's rows, at most G S / n_k"))  # fmt: skip
    return Found(tuple(rows))
