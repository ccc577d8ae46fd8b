"""The trace items of one query block: which bytes it streams, which rows it gathers, what it counted.

Offsets: q and output are [n_q, H, d], K and V sequence-first [n_k, H_kv, d] (K feature-major in tiles, [H_kv, T, d, tile],
for Bernoulli scores), stash and partials one region per (KV head, tile).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..trace import TraceWriter
from . import accumulate, bernoulli, budgets, draw, exact, topk
from .layer import ITEM_BYTES

if TYPE_CHECKING:
    from .kernel import Block, Result

STATS_BYTES = 12  # a tile's float32 maximum and float64 sum


def write(writer: TraceWriter, block: Block, result: Result, number: int, last: bool) -> None:
    """Append the items of query block `number`, KV head by KV head; `last`: the sequence's last block."""
    for kv in range(block.H_kv):
        at = (block.sequence, block.layer_number, kv, number)
        for t in range(block.T):
            writer.item(*at, t, "score", *_score_item(block, result, kv, t))
        if block.spec.method != "sdpa":
            if block.spec.method == "topk":
                writer.item(*at, -1, "select", dict(zip(topk.SELECT_COUNTS, result.global_step[kv])), _stash_reads(block, kv))
            elif block.spec.method != "s2anta-flash":
                counts = dict(zip(budgets.BUDGET_COUNTS, result.global_step[kv]))
                writer.item(*at, -1, "budget", counts, [_stats_read(block, kv)])
        for t in range(block.T):
            if block.spec.method in ("sdpa", "s2anta-sys", "santa", "s2anta-strat") or result.budgets[kv, :, t].any():
                writer.item(*at, t, "value", *_value_item(block, result, kv, t))
        if block.spec.method == "s2anta-flash":
            size = block.R * (4 * block.d + STATS_BYTES)
            streams = [("partials", kv * block.T * size, block.T * size, block.T * size, block.T * size, False)]
            writer.item(*at, -1, "merge", dict(zip(accumulate.MERGE_COUNTS, result.final_merge[kv])), streams)
        writer.item(*at, -1, "output", *_output_item(block, result, kv, last))


def _rows_visible(block: Block, t: int) -> np.ndarray:
    return np.clip(block.limits - t * block.tile, 0, block.tile)


def _head_bytes(block: Block, kv: int, buffer: str, item_bytes: int, write: bool) -> tuple:
    """This head's part of a [n_q, H, d] buffer."""
    piece = block.G * block.d * item_bytes
    stride = block.H_kv * piece
    return (buffer, int(block.positions[0]) * stride + kv * piece, len(block.positions) * piece, piece, stride, write)


def _stash_region(block: Block, kv: int, t: int) -> int:
    return (kv * block.T + t) * block.R * (4 * block.tile + STATS_BYTES)


def _stats_read(block: Block, kv: int) -> tuple:
    size = block.R * (4 * block.tile + STATS_BYTES)
    first = _stash_region(block, kv, 0) + block.R * 4 * block.tile
    return ("stash", first, block.T * block.R * STATS_BYTES, block.R * STATS_BYTES, size, False)


def _stash_reads(block: Block, kv: int) -> list[tuple]:
    size = [int(_rows_visible(block, t).sum()) * 4 for t in range(block.T)]
    return [("stash", _stash_region(block, kv, t), size[t], size[t], size[t], False) for t in range(block.T)]


def _score_item(block: Block, result: Result, kv: int, t: int) -> tuple[dict, list, tuple | None]:
    item_bytes = ITEM_BYTES[block.spec.precision]
    counts = dict(zip(exact.SCORE_COUNTS, result.scores[kv, t]))
    streams, gather = [], None
    if t == 0:
        streams.append(_head_bytes(block, kv, "q", item_bytes, False))
        if result.sampling is not None:
            counts.update(zip(bernoulli.FEATURE_COUNTS, result.sampling[kv]))
    visible = _rows_visible(block, t)
    w, row = int(visible.max()), block.d * item_bytes
    if result.features is None:
        first = (t * block.tile * block.H_kv + kv) * row
        streams.append(("k", first, w * row, row, block.H_kv * row, False))
    else:
        T_cache = block.layer.key_features.shape[0] // block.H_kv
        stride = block.tile * item_bytes
        first = (kv * T_cache + t) * block.d * stride
        gather = ("k", np.flatnonzero(result.features[kv]).astype(np.int32), first, w * item_bytes, stride)
    if block.spec.method not in ("sdpa", "s2anta-flash"):
        size = int(visible.sum()) * 4
        streams.append(("stash", _stash_region(block, kv, t), size, size, size, True))
        if block.spec.method != "topk":
            first = _stash_region(block, kv, t) + block.R * 4 * block.tile
            size = block.R * STATS_BYTES
            streams.append(("stash", first, size, size, size, True))
    return counts, streams, gather


def _value_item(block: Block, result: Result, kv: int, t: int) -> tuple[dict, list, tuple | None]:
    row = block.d * ITEM_BYTES[block.spec.precision]
    counts = dict(zip(accumulate.VALUE_COUNTS[:3], result.values[kv, t, :3]))
    visible = _rows_visible(block, t)
    if block.spec.method == "sdpa":
        counts.update(zip(accumulate.MERGE_COUNTS, result.merging[kv, t]))
        w = int(visible.max())
        return counts, [("v", (t * block.tile * block.H_kv + kv) * row, w * row, row, block.H_kv * row, False)], None
    streams = []
    if block.spec.method != "topk":
        counts.update(zip(draw.DRAW_COUNTS, result.drawing[kv, t]))
    if block.spec.method == "s2anta-flash":
        if t == 0:
            counts["sampling_random_numbers"] = int(result.global_step[kv].sum())
        size = block.R * (4 * block.d + STATS_BYTES)
        streams.append(("partials", (kv * block.T + t) * size, size, size, size, True))
    elif block.spec.method != "topk":
        every = block.spec.method != "s2anta-prop"
        size = int(visible[slice(None) if every else result.budgets[kv, :, t] > 0].sum()) * 4
        streams.append(("stash", _stash_region(block, kv, t), size, size, size, False))
    n0 = t * block.tile
    rows = (n0 + np.flatnonzero(result.union[kv, n0 : n0 + block.tile])).astype(np.int32)
    gather = ("v", rows, kv * row, row, block.H_kv * row) if len(rows) else None
    return counts, streams, gather


def _output_item(block: Block, result: Result, kv: int, last: bool) -> tuple[dict, list]:
    spec = block.spec
    item_bytes = ITEM_BYTES[spec.precision]
    mults, shifts, writes = (int(count) for count in result.output[kv])
    counts: dict[str, int] = {"value_writes": writes}
    if spec.method in ("sdpa", "topk"):
        counts["softmax_mults"] = mults
        item_bytes = 4 if block.integer else item_bytes
    else:
        counts.update(value_mults=mults, value_shifts=shifts)
        if block.integer and (spec.method == "s2anta-flash" or not shifts):
            item_bytes = 4
    if last:
        counts["unique_rows_per_head"] = int(block.seen[kv].sum())
        counts["unique_rows_per_group"] = int(block.seen[kv].any(axis=0).sum())
    return counts, [_head_bytes(block, kv, "output", item_bytes, True)]
