"""Dense attention: decode split over keys and merged by a second kernel, as FlashDecoding and FlashInfer do it; prefill in one.

K and V stream once; in prefill, once for every 128 queries of a head. Taken as bound by bandwidth: the arithmetic of one query row per head is far below any card's rates, and
those kernels' instructions aren't counted here, so that this is the fastest such a kernel can be.
"""

from __future__ import annotations

from ...errors import InputError
from ...hardware_gpu import Gpu
from .launch import Buffer, Chain, Launch
from .work import Work

_THREADS, _REGISTERS, _SHARED = 128, 128, 32768  # of a block: four warps, two stages of 64 keys of K and V


def launches(work: Work, gpu: Gpu) -> list[Launch]:
    """Split and merge."""
    if work.method != "sdpa":
        raise InputError(f"implementation='split-kv' computes sdpa, not {work.method!r}; write implementation='ours'")
    if work.score != "exact":
        raise InputError(f"implementation='split-kv' computes exact scores, not {work.score!r}; write implementation='ours'")
    if work.precision not in ("bf16", "fp16"):
        raise InputError(f"precision={work.precision!r}: dense attention on a GPU is described for 'bf16' and 'fp16'; write one of them")
    if work.prefill:
        return [_prefill(work)]
    # up to two blocks per multiprocessor, as long as a block has 64 keys or more
    heads = work.H_kv * work.batch
    splits = max(1, min(2 * gpu.multiprocessors.count // heads, -(-max(work.lengths) // 64)))
    flops = 4.0 * work.keys * work.H * work.d
    stages = ("score", "value")
    partials = Buffer("partials", work.batch * work.H * splits * (work.d + 1) * 4)
    last = Chain(shared=2, shuffle=5, barrier=2, arithmetic=40, special=2)
    split = Launch(
        "split", stages if splits > 1 else (*stages, "output"), heads * splits, _THREADS, _REGISTERS, _SHARED,
        chain=Chain(stream=1) + last, drain=last, q_bytes=work.q_bytes, k_bytes=work.k_bytes, v_bytes=work.v_bytes,
        k_requested_bytes=work.k_requested_bytes, tensor_flops=max(1.0, 16 / work.G) * flops, makes=(partials,) if splits > 1 else (),
        special=work.keys * work.H, output_bytes=work.output_bytes if splits == 1 else 0,
    )  # fmt: skip
    if splits == 1:
        return [split]
    chain = Chain(l2=2, shared=2, shuffle=5, barrier=2, arithmetic=20, special=2)
    merge = Launch(
        "merge", ("output",), work.batch * work.H, 128, 32, 4096, chain=chain, drain=chain, takes=(partials,), output_bytes=work.output_bytes,
        l2_bytes=partials.bytes,
    )  # fmt: skip
    return [split, merge]


def _prefill(work: Work) -> Launch:
    """One block for 128 queries of a head, on tensor cores."""
    blocks = work.H * -(-work.batch // 128)
    last = Chain(shared=2, shuffle=5, barrier=2, arithmetic=40, special=2)
    return Launch(
        "prefill", ("score", "value", "output"), blocks, 256, 128, 65536, chain=Chain(stream=1) + last, drain=last, q_bytes=work.q_bytes,
        k_bytes=work.k_bytes, v_bytes=work.v_bytes, tensor_flops=4.0 * work.keys * work.H * work.d, special=work.keys * work.H,
        output_bytes=work.output_bytes, l2_bytes=work.q_bytes + 2.0 * work.k_requested_bytes * work.G / 128,
    )  # fmt: skip
