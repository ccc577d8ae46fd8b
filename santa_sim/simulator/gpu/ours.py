"""The kernels in gpu/kernels: score, sample, flash, merge, top-k.

Grids and tile lengths are those of gpu/kernel.py. Registers and instructions of loops and of what stands between them were read
in the machine code (sm_90, d = 128, G = 4, tiles of 128 keys); what a loop's count depends on was read in the source. A warp's
instructions follow each other: whatever isn't memory, float64 or a shuffle counts as dependent arithmetic.
"""

from __future__ import annotations

import math

from ...errors import InputError
from ...hardware_gpu import Gpu
from .launch import Buffer, Chain, Launch
from .work import Work

LARGEST_TILE = 512
WARP_KEYS = {64: 32, 128: 32, 256: 16}  # head dimension -> keys that a warp scores
_SAMPLE_WARPS, _AT_ONCE = 16, 2  # warps of a block that draws; samples of a warp whose loads are in flight together
_MOST_PER_SPLIT, _LARGEST_CLUSTER = 512, 8

# ---- warp instructions, as read in the machine code ----
_SCORE = 700  # of a warp, 32 keys of 128 features: copies, matrix instructions, maxima, exponentials, stash
_SCORE_BEHIND = Chain(shared=6, shuffle=6, barrier=2, fp64=14, special=2, arithmetic=450)  # the part of it behind the loads
_SCORE_FP64 = 30  # a thread's float64 additions and conversions
_KEY_WAVEFRONTS = 5  # of a key: 256 bytes into shared memory and out again, a quarter of a warp's shuffles and stores
# of a warp of the sample kernel: from the masses to the list of samples, and behind the draws
_FIXED, _MASSES, _POSITIONS, _DIVISION = 480, 171, 95, 90
_BUDGETS = Chain(l2=1, shared=8, shuffle=12, barrier=4, fp64=10, special=4, arithmetic=250)
_MASSES_CHAIN = Chain(fp64=30, special=6, arithmetic=100)  # two tiles at a time
_POSITIONS_CHAIN = Chain(shared=2, fp64=20, special=4, arithmetic=130)  # a tile, with its samples' division
_LARGEST = 600  # more, for the largest remainders: a histogram, two scans over it, ranks in the last bin
_LARGEST_CHAIN = Chain(shared=14, shuffle=20, barrier=9, arithmetic=400, fp64=4, special=3)
_SEARCH = 20  # a step of the binary search for a threshold's tile
_DRAW = {"integer": 183, "threshold": 141}  # a sample
_DRAW_CHAIN = {"integer": Chain(dram=1, l2=1, shared=4, shuffle=12, fp64=20, special=5, arithmetic=240),
               "threshold": Chain(dram=1, l2=1, shared=3, shuffle=12, fp64=8, special=5, arithmetic=210)}  # fmt: skip
_DRAW_WAVEFRONTS, _DRAW_FP64 = 30, {"integer": 26, "threshold": 12}
_END = Chain(shared=4, barrier=2, cluster=1, arithmetic=100)
_FLASH_DRAWS, _FLASH_ROWS = 700, 290  # of a warp for a head: counts of its 128 keys; eight rows
_FLASH_CHAIN = Chain(shared=3, shuffle=11, fp64=60, special=20, arithmetic=450)
_FLASH_ROWS_CHAIN = Chain(dram=1, shared=1, arithmetic=200)


def launches(work: Work, gpu: Gpu) -> list[Launch]:
    """Score and sample, flash and merge, or score and top-k."""
    if work.score != "exact":
        raise InputError(f"score={work.score!r}: the kernels described for a GPU take exact scores; write score='exact', or an accelerator such "
                         f"as hardware='adder_hbm3'")  # fmt: skip
    if work.element_bytes != 2:
        raise InputError(f"precision={work.precision!r}: the GPU kernels take 'bf16' or 'fp16'")
    if work.d not in WARP_KEYS or not 1 <= work.G <= 8:
        raise InputError(f"d={work.d}, G={work.G}: the GPU kernels take d = 64, 128 or 256 and G of 1 ... 8")
    if not 1 <= work.tile <= LARGEST_TILE:
        raise InputError(f"tile={work.tile}: the GPU kernels take tiles of 1 ... {LARGEST_TILE} keys; make the trace with tile=128")
    if work.method == "s2anta-flash":
        return [_flash(work, gpu), _merge(work, gpu)]
    if work.method == "topk":
        return [_score(work, gpu, exponentials=False), _topk(work)]
    if work.method in ("santa", "s2anta-strat", "s2anta-sys", "s2anta-prop"):
        return [_score(work, gpu), _sample(work, gpu)]
    raise InputError(f"implementation='ours' hasn't {work.method!r}; write implementation='split-kv' for dense attention")


def _stash(work: Work) -> Buffer:
    return Buffer("stash", work.tile_count * work.H * -(-work.tile // 4) * 16)


def _stats(work: Work) -> Buffer:
    return Buffer("stats", work.tile_count * work.H * 12)


def _blocks(work: Work, gpu: Gpu) -> tuple[int, int, int, float]:
    """Blocks, threads and shared memory of the score pass, and how much wider its rows are than those that were counted."""
    keys = WARP_KEYS[work.d]
    warps = -(-work.tile // keys)
    key_bytes = 2 * work.d * keys * warps
    staged = 3 * (key_bytes + 6144) <= gpu.multiprocessors.shared_bytes
    return work.tile_count * work.H_kv, 32 * warps, key_bytes * staged + 1408, keys * work.d / (32 * 128)


def _score(work: Work, gpu: Gpu, exponentials: bool = True) -> Launch:
    blocks, threads, shared, width = _blocks(work, gpu)
    warps = blocks * threads // 32
    makes = (_stash(work), _stats(work)) if exponentials else (_stash(work),)
    return Launch(
        "score", ("score",), blocks, threads, 55, shared, chain=Chain(stream=1, arithmetic=150) + _SCORE_BEHIND, drain=_SCORE_BEHIND,
        q_bytes=work.q_bytes, k_bytes=work.k_bytes, k_requested_bytes=work.k_requested_bytes, makes=makes, keeps_stream_apart=True,
        l2_bytes=work.k_requested_bytes + blocks * work.G * work.row_bytes, instructions=warps * _SCORE * (0.5 + 0.5 * width),
        shared_wavefronts=work.keys * work.H_kv * _KEY_WAVEFRONTS * work.d / 128, fp64=warps * 32 * _SCORE_FP64 * exponentials,
        special=work.keys * work.H * exponentials, tensor_flops=2 * work.keys * work.H_kv * 8 * work.d,
    )  # fmt: skip


def splits_of(work: Work, gpu: Gpu) -> tuple[int, int]:
    """Blocks of a head in the sample kernel, and samples of a block, as gpu/kernel.py chooses them."""
    wanted = max(1, 2 * gpu.multiprocessors.count // (work.batch * work.H))
    at_once = _SAMPLE_WARPS * _AT_ONCE
    per_split = min(_MOST_PER_SPLIT, at_once * math.ceil(work.S / (wanted * at_once)))
    return -(-work.S // per_split), per_split


def _sample(work: Work, gpu: Gpu) -> Launch:
    splits, per_split = splits_of(work, gpu)
    heads, T = work.batch * work.H, work.tiles
    blocks = splits * heads
    each = -(-T // (32 * _SAMPLE_WARPS))  # tiles of a thread
    active = min(_SAMPLE_WARPS, -(-T // 32))  # warps that have tiles
    by_threshold = work.method in ("santa", "s2anta-strat")
    largest = work.method == "s2anta-prop" and work.allocation == "largest-remainder"
    kind = "threshold" if by_threshold else "integer"
    rounds = -(-min(per_split, work.S) // (_SAMPLE_WARPS * _AT_ONCE))

    chain = _BUDGETS + _MASSES_CHAIN * -(-each // 2)
    of_tiles = -(-each // 2) * _MASSES + each * (12 if by_threshold else _POSITIONS)
    fixed, fp64 = _FIXED, 16 * 32 * 30 + active * 32 * (46 * -(-each // 2) + 20 * each)
    if by_threshold:
        depth = math.ceil(math.log2(max(2, T)))
        chain += Chain(shared=2 * depth, fp64=2 * depth, arithmetic=8 * depth) + Chain(fp64=30, special=4, arithmetic=150, l2=1)
        fixed += (_SEARCH * depth + 120) * min(1, per_split / (32 * _SAMPLE_WARPS))
    else:
        chain += _POSITIONS_CHAIN * each
        fixed += _DIVISION
    if largest:
        chain += _LARGEST_CHAIN + Chain(arithmetic=30 * (each - 1), shared=6 * (each - 1))
        fixed += _LARGEST
    # a warp's two samples are drawn at the same time, so that its instructions count twice, their latencies once
    draw = _DRAW_CHAIN[kind]
    chain += Chain(dram=draw.dram, l2=draw.l2, shared=draw.shared, shuffle=draw.shuffle, fp64=draw.fp64, special=draw.special,
                   arithmetic=_AT_ONCE * draw.arithmetic / 2) * rounds  # fmt: skip
    end = _END if splits > 1 else Chain(shared=2, barrier=1, arithmetic=80)
    samples = work.samples
    return Launch(
        "sample", ("budget", "value", "output"), blocks, 32 * _SAMPLE_WARPS, 64, 12480 + 48 * per_split + T * (24 if largest else 8),
        chain=chain + end, drain=end, v_bytes=work.v_bytes, gathered_rows=work.v_rows, row_bytes=work.row_bytes, gathers="v",
        takes=(Buffer("stats", _stats(work).bytes), Buffer("stash", min(_stash(work).bytes, work.head_rows * -(-work.tile // 4) * 16))),
        output_bytes=work.output_bytes, l2_bytes=blocks * T * 12 + samples * (work.tile * 4 + work.row_bytes),
        instructions=blocks * (_SAMPLE_WARPS * fixed + active * of_tiles) + samples * _DRAW[kind],
        shared_wavefronts=blocks * _SAMPLE_WARPS * 60 + samples * _DRAW_WAVEFRONTS, fp64=blocks * fp64 + samples * 32 * _DRAW_FP64[kind],
        overlapped=True, cluster=splits,
    )  # fmt: skip


def _flash(work: Work, gpu: Gpu) -> Launch:
    blocks, threads, shared, width = _blocks(work, gpu)
    warps, heads = threads // 32, work.tile_count * work.H
    rows = work.head_rows / heads  # of a tile and head, on average
    rounds = -(-rows // 8)
    behind = _SCORE_BEHIND + (_FLASH_CHAIN + _FLASH_ROWS_CHAIN * rounds) * -(-work.G // warps)
    stats = _stats(work)
    return Launch(
        "flash", ("score", "value"), blocks, threads, 55, shared + work.G * work.tile * 4, chain=Chain(stream=1, arithmetic=150) + behind,
        drain=behind, q_bytes=work.q_bytes, k_bytes=work.k_bytes, k_requested_bytes=work.k_requested_bytes, v_bytes=work.v_bytes,
        gathered_rows=work.v_rows, row_bytes=work.row_bytes, gathers="v", makes=(_partials(work), stats), keeps_stream_apart=True,
        l2_bytes=work.k_requested_bytes + blocks * work.G * work.row_bytes + work.head_rows * work.row_bytes,
        instructions=blocks * warps * _SCORE * (0.5 + 0.5 * width) + heads * (_FLASH_DRAWS * work.tile / 128 + _FLASH_ROWS * rows / 8),
        shared_wavefronts=work.keys * work.H_kv * _KEY_WAVEFRONTS * work.d / 128 + heads * (60 + 3 * rows),
        fp64=blocks * threads * _SCORE_FP64 + heads * 32 * 60, special=work.keys * work.H, tensor_flops=2 * work.keys * work.H_kv * 8 * work.d,
    )  # fmt: skip


def _partials(work: Work) -> Buffer:
    return Buffer("partials", work.tile_count * work.H * work.d * 4)


def _merge(work: Work, gpu: Gpu) -> Launch:
    T, heads = work.tiles, work.batch * work.H
    splits = min(_LARGEST_CLUSTER, -(-T // 32)) if gpu.overlaps_launches else 1
    at_once = 512 // (work.d // 4)
    turns = -(-(-(-T // splits)) // at_once)  # tiles that a thread adds, eight in flight
    each = -(-T // 512)
    end = Chain(shared=4, barrier=2, arithmetic=80) + (Chain(cluster=1) if splits > 1 else Chain())
    chain = Chain(l2=1, shared=6, shuffle=8, barrier=3, arithmetic=100) + Chain(l2=0.5, fp64=25, special=6, arithmetic=60) * each
    chain += Chain(l2=1) * -(-turns // 8) + Chain(arithmetic=6) * turns
    return Launch(
        "merge", ("merge", "output"), splits * heads, 512, 32, 8448 + 4 * -(-T // splits), chain=chain + end, drain=end,
        takes=(_partials(work), _stats(work)), output_bytes=work.output_bytes, l2_bytes=_partials(work).bytes + splits * _stats(work).bytes,
        instructions=splits * heads * 16 * (300 + 120 * each + 12 * turns), fp64=splits * heads * 512 * (30 + 30 * each), overlapped=True,
        cluster=splits,
    )  # fmt: skip


def _topk(work: Work) -> Launch:
    heads, n, k = work.batch * work.H, max(work.lengths), min(work.k, max(work.lengths))
    turns = -(-n // 2048)  # of four keys of each of 512 threads
    # three histograms of all scores; then two passes in which a thread goes through consecutive keys, so that each lane of a
    # load reads a sector of its own; then softmax and rows, four at a time
    select = (Chain(l2=1, shared=4, arithmetic=129) * turns + Chain(shared=8, shuffle=10, barrier=6, arithmetic=150)) * 3
    collect = Chain(l2=2, arithmetic=236) * turns + Chain(shared=8, shuffle=20, barrier=4, arithmetic=200)
    rows = Chain(dram=1, l2=1, special=2, fp64=4, arithmetic=185) * -(-k // 64)
    return Launch(
        "topk", ("select", "value", "output"), heads, 512, 32, 16584, chain=select + collect + rows, drain=Chain(shared=16, barrier=2, arithmetic=100),
        v_bytes=work.v_bytes, gathered_rows=work.v_rows, row_bytes=work.row_bytes, gathers="v", takes=(_stash(work),),
        output_bytes=work.output_bytes, l2_bytes=heads * n * 4 * (3 + 2),
        instructions=heads * 16 * (turns * (3 * 129 + 92 + 144) + 1500) + heads * k * 50,
        # a histogram's additions wait for each other where lanes meet in one bin; the passes over consecutive keys take 32 sectors a load
        shared_wavefronts=heads * 16 * turns * 4 * (3 * (1 + 8) + 2 * 32), overlapped=True,
    )  # fmt: skip
