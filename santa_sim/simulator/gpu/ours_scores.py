"""Score passes of gpu/kernels: exact scores by tensor cores, Bernoulli scores on a feature-major K."""

from __future__ import annotations

from ...hardware_gpu import Gpu
from .launch import Buffer, Chain, Launch
from .work import Work

WARP_KEYS = {64: 32, 128: 32, 256: 16}  # head dimension -> keys that a warp scores
# ---- exact scores, as read in the machine code ----
INSTRUCTIONS = 700  # of a warp, 32 keys of 128 features: copies, matrix instructions, maxima, exponentials, stash
BEHIND = Chain(shared=6, shuffle=6, barrier=2, fp64=14, special=2, arithmetic=450)  # the part of it behind the loads
FP64 = 30  # a thread's float64 additions and conversions
KEY_WAVEFRONTS = 5  # of a key: 256 bytes into shared memory and out again, its share of a warp's shuffles and stores
# ---- Bernoulli scores ----
_BLOCK_KEYS, _IN_FLIGHT = 8, 6  # keys of a thread; features of a thread in flight


def stash(work: Work) -> tuple[Buffer, Buffer]:
    """Scores or exponentials [B, H_kv, T, G, tile rounded up to 4] in float32; maxima (float32) and sums (float64) of the tiles."""
    return Buffer("stash", work.tile_count * work.H * -(-work.tile // 4) * 16), Buffer("stats", work.tile_count * work.H * 12)


def partials(work: Work) -> Buffer:
    """Partial outputs of every tile and head, float32."""
    return Buffer("partials", work.tile_count * work.H * work.d * 4)


def score_blocks(work: Work, gpu: Gpu) -> tuple[int, int, int, float]:
    """Blocks, threads and shared memory of a pass over K, and how much wider its rows are than those that were counted."""
    keys = WARP_KEYS[work.d]
    warps = -(-work.tile // keys)
    key_bytes = 2 * work.d * keys * warps
    staged = 3 * (key_bytes + 6144) <= gpu.multiprocessors.shared_bytes
    return work.tile_count * work.H_kv, 32 * warps, key_bytes * staged + 1408, keys * work.d / (32 * 128)


def score(work: Work, gpu: Gpu) -> Launch:
    """One block per tile and KV head: K through shared memory, all grouped queries at once."""
    blocks, threads, shared, width = score_blocks(work, gpu)
    warps = blocks * threads // 32
    exponentials = work.method != "topk"
    return Launch(
        "score", ("score",), blocks, threads, 46, shared, chain=Chain(stream=1, arithmetic=150) + BEHIND, drain=BEHIND,
        q_bytes=work.q_bytes, k_bytes=work.k_bytes, k_requested_bytes=work.k_requested_bytes, makes=stash(work), keeps_stream_apart=True,
        l2_bytes=work.k_requested_bytes + blocks * work.G * work.row_bytes, instructions=warps * INSTRUCTIONS * (0.5 + 0.5 * width),
        shared_wavefronts=work.keys * work.H_kv * KEY_WAVEFRONTS * work.d / 128, fp64=warps * 32 * FP64 * exponentials,
        special=work.keys * work.H * exponentials, tensor_flops=2 * work.keys * work.H_kv * 8 * work.d,
    )  # fmt: skip


def bernoulli_scores(work: Work) -> list[Launch]:
    """Draws of the features, one block per KV head; then a block per tile, which reads the listed features alone."""
    heads = work.batch * work.H_kv
    rows = 1 if work.score == "bernoulli-mean-group" else work.G
    lists = Buffer("lists", heads * (work.d + 4) * 4 + heads * work.d * 16 + work.batch * work.H * 4)
    draws = Chain(dram=1, shared=20, shuffle=15, barrier=7, fp64=10 * rows, special=4 * rows, arithmetic=500 + 205 * rows)
    features = Launch(
        "features", ("score",), heads, 512, 38, 3140, chain=draws, drain=Chain(arithmetic=100), q_bytes=work.q_bytes, makes=(lists,),
        instructions=heads * 16 * (600 + 205 * rows),
    )  # fmt: skip
    blocks = work.tile_count * work.H_kv
    count = min(float(work.d), (work.features or work.d * heads) / (heads if work.batch == 1 else work.H_kv * max(1, work.batch)))
    parts = max(1, 128 // -(-work.tile // _BLOCK_KEYS))
    piece = work.tile * work.element_bytes
    turns = -(-count // (parts * _IN_FLIGHT))
    behind = Chain(shared=8, shuffle=12, barrier=1, fp64=9, special=4, arithmetic=200) * -(-work.G // 4) + Chain(shared=2, barrier=1, arithmetic=80)
    chain = Chain(l2=2, shared=4, barrier=1, arithmetic=80) + Chain(stream=1, shared=2, arithmetic=490) * turns + behind
    return [features, Launch(
        "bernoulli", ("score",), blocks, 128, 72, 2560 + 32 * work.G * -(-work.tile // _BLOCK_KEYS) * parts, chain=chain, drain=behind, k_bytes=work.k_bytes, k_requested_bytes=work.k_requested_bytes,
        gathers="k", gathered_rows=-(-work.k_bytes // piece), row_bytes=piece,  # a tile of a feature is one contiguous piece
        takes=(lists,), makes=stash(work), keeps_stream_apart=True, l2_bytes=work.k_requested_bytes + blocks * count * 20,
        instructions=blocks * 4 * (250 + turns * 508 * work.G / 4 + 120 * work.G / 4), shared_wavefronts=blocks * 4 * (60 + turns * 40 + 60 * work.G / 4),
        fp64=work.keys * work.H * 2, special=work.keys * work.H, overlapped=True,
    )]  # fmt: skip
