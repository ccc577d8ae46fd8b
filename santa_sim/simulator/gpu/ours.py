"""The kernels in gpu/kernels, as gpu/kernel.py launches them: score or Bernoulli scores, then sample, flash, top-k or dense, merge.

Grids and tile lengths are gpu/kernel.py's. Registers, and the instructions of loops and of what stands between them, were read
in the machine code (nvcc 13.0, sm_90, d = 128, G = 4, tiles of 128 keys); how often a loop runs was read in the source. A warp's
instructions follow each other: what isn't memory, float64, a conversion or a shuffle counts as dependent arithmetic.
"""

from __future__ import annotations

import math

from ...errors import InputError
from ...hardware_gpu import Gpu
from .launch import Buffer, Chain, Launch
from .ours_draws import flash, sample
from .ours_scores import bernoulli_scores, partials, score, stash
from .work import Work

LARGEST_TILE = 512
_LARGEST_CLUSTER = 8  # portable cluster size (CUDA C++ programming guide, thread block clusters)


def launches(work: Work, gpu: Gpu) -> list[Launch]:
    """The launches of one decode step.

    Raises
    ------
    InputError
        A type, dimension, group or tile that the kernels don't take.
    """
    if work.precision not in ("bf16", "fp16"):
        raise InputError(f"precision={work.precision!r}: the GPU kernels take 'bf16' or 'fp16'")
    if work.d not in (64, 128, 256) or not 1 <= work.G <= 8:
        raise InputError(f"d={work.d}, G={work.G}: the GPU kernels take d = 64, 128 or 256 and G of 1 ... 8")
    if not 1 <= work.tile <= LARGEST_TILE:
        raise InputError(f"tile={work.tile}: the GPU kernels take tiles of 1 ... {LARGEST_TILE} keys; make the trace with tile=128")
    exact = work.score == "exact"
    if exact and work.method == "s2anta-flash":
        return [flash(work, gpu, stashed=False), _merge(work, gpu)]
    first = [score(work, gpu)] if exact else bernoulli_scores(work)
    if work.method == "s2anta-flash":
        return [*first, flash(work, gpu, stashed=True), _merge(work, gpu)]
    if work.method == "topk":
        return [*first, _topk(work)]
    if work.method == "sdpa":
        return [*first, _dense(work), _merge(work, gpu)]
    if work.method in ("santa", "s2anta-strat", "s2anta-sys", "s2anta-prop"):
        return [*first, sample(work, gpu)]
    raise InputError(f"method={work.method!r} is not among the GPU kernels that are described; write implementation='split-kv' for dense attention")


def _merge(work: Work, gpu: Gpu) -> Launch:
    """Partial outputs of a head's tiles, in up to eight blocks."""
    T, heads = work.tiles, work.batch * work.H
    splits = min(_LARGEST_CLUSTER, -(-T // 32)) if gpu.overlaps_launches else 1
    at_once = 512 // (work.d // 4)
    turns = -(-(-(-T // splits)) // at_once)  # tiles that a thread adds, eight in flight
    each = -(-T // 512)
    end = Chain(shared=4, barrier=2, arithmetic=80, cluster=2 if splits > 1 else 0)
    chain = Chain(l2=1, shared=6, shuffle=8, barrier=3, arithmetic=100) + Chain(l2=0.5, fp64=25, special=6, arithmetic=60) * each
    chain += Chain(l2=1) * -(-turns // 8) + Chain(arithmetic=6) * turns
    made, stats = partials(work), stash(work)[1]
    return Launch(
        "merge", ("merge", "output"), splits * heads, 512, 32, 12480 + 4 * -(-T // splits), chain=chain + end, drain=end, takes=(made, stats),
        output_bytes=work.output_bytes, l2_bytes=made.bytes + splits * stats.bytes,
        instructions=splits * heads * 16 * (200 + 70 * each + 15 * turns), shared_wavefronts=splits * heads * 16 * (60 + 4 * turns),
        fp64=splits * heads * 512 * (30 + 25 * each), overlapped=True, cluster=splits,
    )  # fmt: skip


def _dense(work: Work) -> Launch:
    """The value stage of dense attention: a block per tile weighs its rows of V for all grouped heads."""
    blocks = work.tile_count * work.H_kv
    rounds = -(-work.tile // 32)  # of eight warps with four rows in flight
    width = work.d / 128
    rows = Chain(stream=1, shared=4, arithmetic=163 * width) * rounds
    end = Chain(shared=2, barrier=2, arithmetic=20) * work.G
    return Launch(
        "dense", ("value",), blocks, 256, 40, 8 * work.d * 4 + work.G * work.tile * 4, chain=Chain(l2=1, barrier=1, arithmetic=40) + rows + end,
        drain=end, v_bytes=work.v_bytes, takes=(stash(work)[0],), makes=(partials(work),), l2_bytes=stash(work)[0].bytes + work.keys * work.H_kv * work.row_bytes,
        instructions=blocks * 8 * (90 + rounds * 150 * width + work.G * 40), overlapped=True,
        shared_wavefronts=work.keys * work.H_kv * (work.row_bytes / 128 + work.G) + blocks * 8 * work.G * 12,
    )  # fmt: skip


def _cut(entries: float, where: Chain, instructions: int) -> tuple[Chain, float]:
    """The k-th largest of so many entries by three histograms: what a block waits for, and the instructions of a warp."""
    turns = math.ceil(entries / (4 * 512))
    one = Chain(shared=8, shuffle=10, barrier=6, arithmetic=230) + (where + Chain(shared=4, arithmetic=instructions)) * turns
    return one * 3, 3 * (230 + instructions * turns)


def _topk(work: Work) -> Launch:
    """One block per head. k of the T tiles' maxima bound the k-th largest score from below: mostly few scores reach that bound."""
    heads, n, T, k = work.batch * work.H, max(work.lengths), work.tiles, min(work.k, max(work.lengths))
    add = Chain(dram=1, l2=1, special=2, fp64=4, arithmetic=181) * -(-k // 64)
    end = Chain(shared=16, barrier=2, arithmetic=100)
    if k <= T:
        bound, of_bound = _cut(T, Chain(l2=1), 93)
        tiles = -(-k // 16)  # a warp's, gone through twice, four at a time
        listing = (Chain(l2=1, shuffle=8, arithmetic=110) * -(-tiles // 4) + Chain(arithmetic=28 * tiles)) * 2
        final, of_final = _cut(2 * k, Chain(shared=1), 45)
        chain = bound + Chain(shared=10, shuffle=20, barrier=8, arithmetic=300) + listing + final + Chain(shared=8, shuffle=20, barrier=4, arithmetic=300)
        instructions, read = 16 * (of_bound + of_final + 500 + tiles * 2 * 40), k * work.tile * 4 + T * 4
        wavefronts = 16 * (6 * 60 + 3 * 9 + tiles * 2 * 4)
    else:
        cut, of_cut = _cut(n, Chain(l2=1), 105)
        turns = -(-n // 2048)
        chain = cut + Chain(l2=2, arithmetic=248) * turns + Chain(shared=8, shuffle=20, barrier=4, arithmetic=200)
        # a histogram's additions wait for each other where lanes meet in one bin; consecutive keys of a thread are a sector per lane
        instructions, read, wavefronts = 16 * (of_cut + turns * 248 + 300), n * 4, 16 * turns * 4 * (3 * 9 + 2 * 32)
    took = Buffer("stash", min(stash(work)[0].bytes, heads * read))
    return Launch(
        "topk", ("select", "value", "output"), heads, 512, 40, 37064, chain=chain + add + end, drain=end, v_bytes=work.v_bytes,
        gathered_rows=work.v_rows, row_bytes=work.row_bytes, gathers="v", takes=(took,), output_bytes=work.output_bytes,
        l2_bytes=heads * ((2 if k <= T else 5) * read + k * work.row_bytes), instructions=heads * (instructions + k * 50), shared_wavefronts=heads * wavefronts,
        overlapped=True,
    )  # fmt: skip
