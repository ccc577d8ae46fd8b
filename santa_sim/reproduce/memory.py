"""Bytes of K and V that the trace of a dense decode step streams at 32,768 keys of Llama-3.1-8B's shape, and the rows of V
that a sampled one asks for. The paper's "on the order of 128 MB" is 128 MiB = 134.2 MB: 2 n_k H_kv d 2 bytes.
"""

from __future__ import annotations

from ..api import make_trace
from ..trace import Trace
from ..workload import load_workload
from .counted import bytes_read
from .items import Progress, published
from .rows import Found, Row

ITEM = "memory"
S = 128


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    workload = load_workload("llama8b_decode_32k")
    n_k, H_kv, d, H = workload.lengths[0], workload.kv_heads, workload.head_dim, workload.heads
    progress("dense", 0, 2)
    dense = make_trace(workload, "sdpa", seed=seed, tensor_seed=seed)
    kv = _kv_bytes(dense)
    progress("sampled", 1, 2)
    sampled = make_trace(workload, "s2anta-prop", S, seed=seed, tensor_seed=seed)
    per_head = sampled.total("value_reads") / (H * d)
    mib = published()["memory"]["kv_mb_per_layer_and_token"]
    return Found((
        Row(ITEM, "K and V of one layer and token", kv / 2**20, mib, tolerance=0, unit="MiB"),
        Row(ITEM, "the same", kv / 1e6, expected=2 * n_k * H_kv * d * 2 / 1e6, tolerance=0, unit="MB"),
        Row(ITEM, f"V rows read per query head, S = {S}", 100 * per_head / n_k, expected=100 * S / n_k, tolerance=0, unit="% of n_k",
            note="S / n_k; a row that is drawn twice counts twice"),
        Row(ITEM, f"K and V bytes of the sampled step, S = {S}", _kv_bytes(sampled) / 1e6,
            unit="MB", note="K is read whole; a group reads each of its rows of V once"),
    ))  # fmt: skip


def _kv_bytes(trace: Trace) -> int:
    return sum(int(bytes_read(trace.items, buffer).sum()) for buffer in ("k", "v"))
