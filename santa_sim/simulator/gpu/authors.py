"""The kernels of arXiv:2605.01910's authors (github.com/OPUSLab/SANTA, commit 2e5f861): prop and flash, G = 4, d = 128.

Grids, loops and access patterns were read in their source; registers and instructions per loop in its machine code (nvcc 13.0,
-O3, sm_90; sm_89 differs by a few). A block of the score pass has eight warps, and a warp has one key's row in flight at a
time: the loads of the next row wait for the sums over the warp of this one. That, not the memory, bounds it on an H200.
"""

from __future__ import annotations

import math

from ...errors import InputError
from ...hardware_gpu import Gpu
from .launch import Buffer, Chain, Launch
from .work import Work

_WARPS = 8  # of a block of the score pass
_ROW = 90  # warp instructions per key: 2 loads, 20 shuffles, 16 products, 20 sums, conversions, addresses
_ROW_WAVEFRONTS = 23  # of these in the load-store unit: 2 loads, 20 shuffles, a store
# what a key's row waits for behind its load: conversion, four products, five steps of shuffle and sum, a store, addresses
_ROW_CHAIN = Chain(shuffle=5, arithmetic=4 + 5 + 6 + 4, shared=1)


def tile_of(n_k: int) -> int:
    """Keys per tile that they choose."""
    return 32 if n_k <= 1536 else 64 if n_k <= 3072 else 256


def launches(work: Work, gpu: Gpu) -> list[Launch]:
    """Their launches of prop (fill, scores, budgets, gather, cast) or flash (tiles, merge)."""
    if work.method not in ("s2anta-prop", "s2anta-flash"):
        raise InputError(f"implementation='authors' has s2anta-prop and s2anta-flash, not {work.method!r}; write implementation='ours'")
    if (work.G, work.d, work.element_bytes, work.batch, work.score) != (4, 128, 2, 1, "exact"):
        raise InputError(
            f"implementation='authors' takes one decode step with four query heads per KV head, d = 128, 16-bit K and V and exact scores, "
            f"not G={work.G}, d={work.d}, {work.precision}, {work.batch} steps, {work.score} scores; write implementation='ours'"
        )
    tile = tile_of(max(work.lengths))
    if tile != 256:
        raise InputError(f"n_k={max(work.lengths)}: the authors' kernels for tiles of 256 keys start above 3,072 keys; give a longer sequence")
    T = -(-max(work.lengths) // tile)
    return _flash(work, tile, T) if work.method == "s2anta-flash" else _prop(work, tile, T)


def _stream(work: Work, tile: int) -> tuple[Chain, float, float]:
    """Chain, instructions and wavefronts of scoring one tile."""
    rows = tile // _WARPS
    chain = (Chain(stream=1) + _ROW_CHAIN) * rows + Chain(shared=4, barrier=3, arithmetic=30, shuffle=5, special=4)
    # behind the rows: 4 exponentials a thread, of 43 instructions each, and their sums
    return chain, tile * _ROW + _WARPS * (4 * 43 + 120), tile * _ROW_WAVEFRONTS + _WARPS * (4 * 4 + 40)


def _prop(work: Work, tile: int, T: int) -> list[Launch]:
    heads = work.H
    stats = Buffer("stats", heads * T * 8)
    stash = Buffer("stash", work.keys * heads * 2)
    budgets = Buffer("budgets", heads * T * 12)
    sums = Buffer("partials", heads * work.d * 4)
    chain, instructions, wavefronts = _stream(work, tile)
    blocks = T * work.H_kv
    scores = Launch(
        "scores", ("score",), blocks, 256, 48, 4240, chain=chain, drain=Chain(shared=4, barrier=3, arithmetic=30, shuffle=5, special=4),
        q_bytes=work.q_bytes, k_bytes=work.k_bytes, k_requested_bytes=work.k_requested_bytes, makes=(stash, stats),
        instructions=blocks * instructions, shared_wavefronts=blocks * wavefronts, special=work.keys * heads,
        l2_bytes=work.k_bytes + blocks * work.G * work.row_bytes,
    )  # fmt: skip
    # one block of 128 threads per head; a bitonic sort of T fractions in shared memory: log2(N) (log2(N) + 1) / 2 steps with a barrier
    steps, each = math.comb(math.ceil(math.log2(max(2, T))) + 1, 2), -(-T // 128)
    budget = Chain(l2=2 + each / 2, barrier=10 + steps, shared=10 + 2 * steps, arithmetic=80 + 20 * steps * each, special=10 * each)
    tile_budgets = Launch(
        "budgets", ("budget",), heads, 128, 40, T * 8 + 144, chain=budget, drain=Chain(l2=1), takes=(stats,), makes=(budgets,),
        instructions=heads * 4 * (each * (60 + 230 + 64 + 160) + steps * each * 45), shared_wavefronts=heads * 4 * (steps * each * 8 + 40 * each),
        l2_bytes=heads * T * 20,
    )  # fmt: skip
    # one block of 128 x 4 threads per tile and KV head, all of them read u; a warp per head counts 32 keys at a time, one warp compacts
    chunks = tile // 32
    rows = work.v_rows / (work.H_kv * T)  # of a tile, on average
    count = (Chain(l2=1) + Chain(shuffle=7, arithmetic=20)) * chunks
    compact = Chain(shared=4, shuffle=7, arithmetic=20) * chunks
    add = Chain(dram=1, shared=2, arithmetic=12) * rows
    gather = Launch(
        "gather", ("value",), blocks, 512, 32, work.G * work.d * 4 + work.G * tile * 2 + tile * 4 + 16,
        chain=Chain(l2=1, barrier=3) + count + compact + add, drain=Chain(l2=1), v_bytes=work.v_bytes, gathered_rows=work.v_rows,
        row_bytes=work.row_bytes, gathers="v", takes=(stash, budgets), makes=(sums,),
        instructions=blocks * (work.G * chunks * 109 + chunks * 96 + 16 * 60 + rows * 16 * 31),
        # neighbouring keys of one head lie H numbers apart in their stash: every lane's load is a sector of its own
        shared_wavefronts=blocks * (work.G * chunks * (14 + 32) + chunks * 24 + rows * 16 * 6), l2_bytes=blocks * work.G * tile * 32 + work.v_bytes,
        atomics=min(work.head_rows, work.H * T) * work.d, same_address=min(T, work.head_rows / work.H),
    )  # fmt: skip
    cast = Launch("cast", ("output",), -(-heads * work.d // 256), 256, 10, 0, chain=Chain(l2=1, arithmetic=20), takes=(sums,), output_bytes=work.output_bytes)
    fill = Launch("fill", (), -(-heads * work.d // 512), 128, 16, 0, chain=Chain(arithmetic=20), makes=(sums,))
    return [scores, tile_budgets, fill, gather, cast]


def _flash(work: Work, tile: int, T: int) -> list[Launch]:
    blocks, heads, chunks = T * work.H_kv, work.H, tile // 32
    chain, instructions, wavefronts = _stream(work, tile)
    partials = Buffer("partials", heads * T * work.d * 4)
    stats = Buffer("stats", heads * T * 8)
    rows, head_rows = work.v_rows / blocks, work.head_rows / (heads * T)
    # counts and compaction as in prop, from shared memory; then a warp per head goes through the tile's rows one after another
    draws = Chain(shared=1, shuffle=7, arithmetic=20) * chunks + Chain(shared=4, shuffle=7, arithmetic=20) * chunks + Chain(barrier=3)
    add = Chain(shared=2, arithmetic=12) * rows + Chain(dram=1) * head_rows
    tiles = Launch(
        "tiles", ("score", "value"), blocks, 256, 48, 9392, chain=chain + draws + add, drain=draws + add, q_bytes=work.q_bytes,
        k_bytes=work.k_bytes, k_requested_bytes=work.k_requested_bytes, v_bytes=work.v_bytes, gathered_rows=work.v_rows, row_bytes=work.row_bytes,
        gathers="v", makes=(partials, stats),
        instructions=blocks * (instructions + work.G * chunks * 109 + chunks * 124 + work.G * rows * 34),
        shared_wavefronts=blocks * (wavefronts + work.G * chunks * 20 + chunks * 30 + work.G * rows * 6),
        special=work.keys * heads, l2_bytes=work.k_bytes + heads * T * head_rows * work.row_bytes,
    )  # fmt: skip
    # one block per head; a feature's thread goes through the tiles 16 at a time
    merge = Chain(l2=2 + 2 * T / 512 + T / 16, shared=12, barrier=12, arithmetic=60 + 5 * T, special=2)
    finalize = Launch(
        "merge", ("merge", "output"), heads, 128, 32, T * 4 + 512, chain=merge, drain=Chain(arithmetic=10), takes=(partials, stats),
        output_bytes=work.output_bytes, instructions=heads * 4 * (T * 5 + 300), l2_bytes=partials.bytes + stats.bytes,
    )  # fmt: skip
    return [tiles, finalize]
