"""Kernels of gpu/kernels that draw: sample (budgets, draws and rows from a stash) and flash (a tile's own budget)."""

from __future__ import annotations

import math

from ...hardware_gpu import Gpu
from . import ours_scores
from .launch import Buffer, Chain, Launch
from .work import Work

_MOST_PER_SPLIT = 512
_SAMPLE_BYTES = 48  # a sample's entry in shared memory
# ---- sample, as read in the machine code: instructions of a warp, and what they wait for ----
_FIXED = 300  # from the start to the list of samples, and behind the draws, without what follows
_BUDGETS = Chain(l2=1, shared=8, shuffle=12, barrier=4, fp64=10, special=4, arithmetic=250)
_MASSES, _MASSES_CHAIN = 135, Chain(fp64=30, special=6, arithmetic=75)  # of two tiles
_POSITIONS, _POSITIONS_CHAIN = 93, Chain(shared=2, fp64=20, special=4, arithmetic=130)  # of a tile; with a division for its samples
_DIVISION = 90
_LISTING = 11  # a tile's further samples
_LARGEST, _LARGEST_CHAIN = 290, Chain(shared=11, shuffle=28, barrier=5, arithmetic=255, fp64=4, special=3)  # largest remainders
_SEARCH = 10  # a step of the binary search for a threshold's tile
_THRESHOLD, _THRESHOLD_CHAIN = 105, Chain(l2=1, fp64=30, special=4, arithmetic=120)
# of a warp's turn, a sample of each of its teams. A turn's row arrives during the next turn, its u was asked for before.
_TURN = {"integer": 234, "threshold": 220}
_TURN_CHAIN = {"integer": Chain(shared=4, shuffle=10, fp64=8, special=4, arithmetic=165),
               "threshold": Chain(shared=3, shuffle=10, fp64=6, special=4, arithmetic=155)}  # fmt: skip
_TURN_FP64, _TURN_WAVEFRONTS = {"integer": 12, "threshold": 8}, 38
_END = Chain(shared=4, barrier=2, cluster=2, arithmetic=100)
# ---- flash, behind the scores: a warp takes one head at a time ----
_FLASH_DRAWS, _FLASH_DRAWS_CHAIN = 450, Chain(shared=3, shuffle=11, fp64=60, special=20, arithmetic=350)  # counts of a tile's keys
_FLASH_ROWS, _FLASH_ROWS_CHAIN = 390, Chain(dram=1, shared=1, arithmetic=390)  # eight rows, each drawn once or twice
_FLASH_REPEAT = 8  # a further draw of a row


def splits_of(work: Work, gpu: Gpu) -> tuple[int, int, int]:
    """Threads of a block of the sample kernel, blocks of a head, and samples of a block, as gpu/kernel.py chooses them."""
    heads, multiprocessors = work.batch * work.H, gpu.multiprocessors.count
    threads = 512 if heads < 2 * multiprocessors else 256
    wanted, teams = max(1, 7 * multiprocessors // (4 * heads)), threads // (16 if work.tile <= 128 else 32)
    per_split = min(_MOST_PER_SPLIT, teams * math.ceil(work.S / (wanted * teams)))
    return threads, -(-work.S // per_split), per_split


def sample(work: Work, gpu: Gpu) -> Launch:
    """Tile masses and budgets in every block, then draws and rows of V from the stash."""
    threads, splits, per_split = splits_of(work, gpu)
    warps, T = threads // 32, work.tiles
    blocks = splits * work.batch * work.H
    team = 16 if work.tile <= 128 else 32
    each = -(-T // threads)  # tiles of a thread
    active = min(warps, -(-T // 32))  # warps that have tiles
    by_threshold = work.method in ("santa", "s2anta-strat")
    largest = work.method == "s2anta-prop" and work.allocation == "largest-remainder"
    kind = "threshold" if by_threshold else "integer"
    here = min(per_split, work.S)
    teams = threads // team
    turns = -(-here // teams)
    ring = 4 * teams * (1 if per_split <= teams else 2) * -(-work.tile // 4) * 4  # bytes: the u of one or two samples of a team ahead
    if largest:
        ring = max(ring, 4232 + 12 * threads)  # its histograms and list lie in the same place before
    wide = -(-work.tile // (128 if team == 16 else 256))  # a lane's share of a tile, of that of the counted one
    masses = -(-each // 2)

    chain = _BUDGETS + _MASSES_CHAIN * masses
    of_tiles, fixed = masses * _MASSES, _FIXED
    if by_threshold:
        depth, share = math.ceil(math.log2(max(2, T))), here / threads
        chain += Chain(shared=2, fp64=2, arithmetic=_SEARCH) * (depth * math.ceil(share)) + _THRESHOLD_CHAIN * math.ceil(share) + Chain(fp64=1, shared=1) * each
        of_tiles += 8 * each
        fixed += (_SEARCH * depth + _THRESHOLD) * min(1.0, share)
    else:
        further = _LISTING * max(0.0, work.S / T - 1)  # a thread lists its tiles' samples one after another
        chain += _POSITIONS_CHAIN * each + Chain(arithmetic=further, shared=further / 14)
        of_tiles += each * _POSITIONS + further
        fixed += 2 * _DIVISION
    if largest:
        chain += _LARGEST_CHAIN + Chain(arithmetic=45, shared=3) * (each - 1)
        fixed += _LARGEST
    turn = _TURN_CHAIN[kind]
    chain += Chain(dram=1, l2=1) + turn * turns + Chain(arithmetic=turn.arithmetic * (wide - 1)) * turns
    end = _END if splits > 1 else Chain(shared=2, barrier=1, arithmetic=80)
    samples = work.samples
    turns_in_all = samples * team / 32
    own = -(-work.tile // 4) * 16  # bytes of a tile's stash row
    made, stats = ours_scores.stash(work)
    return Launch(
        "sample", ("budget", "value", "output"), blocks, threads, 64,
        12480 * warps // 16 + ring + _SAMPLE_BYTES * per_split + T * (16 if largest or by_threshold else 8),
        chain=chain + end, drain=end, v_bytes=work.v_bytes, gathered_rows=work.v_rows, row_bytes=work.row_bytes, gathers="v",
        takes=(stats, Buffer("stash", min(made.bytes, work.head_rows * own))), output_bytes=work.output_bytes,
        l2_bytes=blocks * T * 12 + samples * (own + work.row_bytes),
        instructions=blocks * (warps * fixed + active * of_tiles) + turns_in_all * _TURN[kind] * wide,
        shared_wavefronts=blocks * warps * 60 + turns_in_all * _TURN_WAVEFRONTS,
        fp64=blocks * 32 * (warps * 30 + active * (46 * masses + 20 * each)) + turns_in_all * 32 * _TURN_FP64[kind], overlapped=True, cluster=splits,
    )  # fmt: skip


def flash(work: Work, gpu: Gpu, stashed: bool) -> Launch:
    """One block per tile and KV head: scores (or those of a stash), draws with the tile's own budget, rows of V."""
    blocks, threads, shared, width = ours_scores.score_blocks(work, gpu)
    warps, heads = threads // 32, work.tile_count * work.H
    rows, draws = work.head_rows / heads, work.samples / heads  # of a tile and head, on average
    turns = -(-rows // 8)
    of_head = _FLASH_DRAWS_CHAIN + _FLASH_ROWS_CHAIN * turns + Chain(arithmetic=_FLASH_REPEAT) * (draws - rows)
    drawing = of_head * -(-work.G // warps)
    behind = drawing if stashed else ours_scores.BEHIND + drawing
    made, stats = ours_scores.stash(work)
    first = blocks * warps * (150 if stashed else ours_scores.INSTRUCTIONS * (0.5 + 0.5 * width))
    keys = {} if stashed else {"q_bytes": work.q_bytes, "k_bytes": work.k_bytes, "k_requested_bytes": work.k_requested_bytes}
    return Launch(
        "flash", ("value",) if stashed else ("score", "value"), blocks, threads, 54, shared + work.G * work.tile * 4,
        chain=(Chain(l2=1) if stashed else Chain(stream=1)) + Chain(arithmetic=150) + behind, drain=behind, **keys, v_bytes=work.v_bytes,
        gathered_rows=work.v_rows, row_bytes=work.row_bytes, gathers="v", takes=(made, stats) if stashed else (),
        makes=(ours_scores.partials(work),) if stashed else (ours_scores.partials(work), stats), keeps_stream_apart=True,
        l2_bytes=(made.bytes if stashed else work.k_requested_bytes + blocks * work.G * work.row_bytes) + work.head_rows * work.row_bytes,
        instructions=first + heads * (_FLASH_DRAWS * work.tile / 128 + _FLASH_ROWS * rows / 8 + _FLASH_REPEAT * (draws - rows)),
        shared_wavefronts=(0 if stashed else work.keys * work.H_kv * ours_scores.KEY_WAVEFRONTS * work.d / 128) + heads * (60 + 3 * rows),
        fp64=(0 if stashed else blocks * threads * ours_scores.FP64) + heads * 32 * 60, special=0 if stashed else work.keys * work.H,
        tensor_flops=0 if stashed else 2 * work.keys * work.H_kv * 8 * work.d, overlapped=stashed,
    )  # fmt: skip
