"""From launches to time: limits of throughput side by side, latency that waves of blocks don't hide, the cache between launches."""

from __future__ import annotations

import dataclasses
import math

import pandas as pd

from ...errors import InputError, choose
from ...hardware_gpu import Gpu
from ...trace import Trace
from .implementations import launches_of
from .launch import Chain, Launch
from .rates import Rates, rates_of
from .work import Work, work_of

CACHES = ("dirty", "clean", "flushed")
STATIONS = ("issue", "shared", "fp64", "special", "tensor")  # of a multiprocessor
LIMITS = ("dram", "l2", "issue", "shared", "fp64", "special", "tensor", "atomic", "blocks", "latency")
KINDS = ("q_read", "k_read", "v_read", "stash_read", "partials_read", "stash_write", "partials_write", "output_write")


def predict(work: Trace | Work, machine: Gpu, implementation: str | None = None, *, start: str = "graph", cache: str = "dirty") -> pd.DataFrame:
    """Time and DRAM bytes of every launch; columns as in docs/gpu.md.

    Parameters
    ----------
    work : a trace, or what one asks for (`work_of`, `dense_work`)
    machine : Gpu
    implementation : 'ours', 'authors' or 'split-kv'; None: 'split-kv' for sdpa, else 'ours'
    start : 'graph' (replayed) or 'stream' (as called, the host ahead)
    cache : 'dirty' (a buffer larger than the cache was updated before), 'clean' (read), 'flushed' (empty before every launch,
        as Nsight Compute does it)

    Raises
    ------
    InputError
        An argument isn't known, the implementation hasn't this method, or K and V don't fit into the memory; says what to
        write instead.
    """
    choose("cache", cache, CACHES)
    rates = rates_of(machine)
    works = work_of(work) if isinstance(work, Trace) else [work]
    if not works or not all(isinstance(x, Work) for x in works):
        raise InputError(f"work={type(work).__name__}: write a Trace or a Work")
    _check_memory(works, machine)
    state, rows = Cache(rates, cache), []
    for each in works:
        for launch in launches_of(each, implementation, machine):
            row = _play(launch, rates, state, first=not rows, start=start)
            rows.append({"layer": each.layer, **row})
    return pd.DataFrame(rows)


def _check_memory(works: list[Work], machine: Gpu) -> None:
    """InputError if K and V of all layers don't fit into the memory."""
    size = sum(work.cache_bytes for work in works)
    if size > machine.memory.bytes:
        raise InputError(
            f"K and V take {size:,} bytes, and the memory of {machine.name} holds {machine.memory.bytes:,}: "
            "take fewer keys, sequences or layers, or a machine with more memory"
        )


@dataclasses.dataclass
class Cache:
    """What the second-level cache holds between launches: others' dirty data, and how much of each intermediate."""

    rates: Rates
    kind: str
    filled: float = 0.0  # bytes that have come in
    held: dict[str, float] = dataclasses.field(default_factory=dict)  # share of an intermediate that is still there

    def evict_s(self, incoming: float) -> float:
        """Time that others' dirty data adds while so many bytes come in [s]."""
        before, self.filled = self.filled, self.filled + incoming
        return self.rates.evict_s(before, self.filled) if self.kind == "dirty" else 0.0

    def keep(self, launch: Launch, streamed: float) -> float:
        """Note what the launch leaves; returns the bytes of its intermediates that went to DRAM already."""
        size = self.rates.kept_bytes
        made = sum(buffer.bytes for buffer in launch.makes)
        passing = made if launch.keeps_stream_apart else made + streamed
        share = min(1.0, size / passing) if passing else 1.0
        for name in self.held:  # what is there already makes room as well
            self.held[name] *= max(0.0, 1.0 - (passing if launch.keeps_stream_apart else made + streamed) / size)
        self.held.update({buffer.name: share for buffer in launch.makes})
        return (1.0 - share) * made


def _play(launch: Launch, rates: Rates, state: Cache, first: bool, start: str) -> dict:
    """One launch: a row of the frame."""
    gpu = rates.gpu
    sm = gpu.multiprocessors
    resident = resident_blocks(launch, gpu)
    places = sm.count * resident
    waves = math.ceil(launch.blocks / places)
    # the multiprocessor with the most blocks
    share = math.ceil(launch.blocks / sm.count) / launch.blocks if launch.blocks < 4 * places else 1 / sm.count
    share = max(share, 1 / sm.count)
    if launch.cluster > 1 and gpu.overlaps_launches:  # which has clusters
        turns = math.ceil(launch.blocks / launch.cluster / rates.clusters_at_once(launch.cluster, resident))
        share = max(share, turns * resident / launch.blocks) if turns > waves else share
        waves = max(waves, turns)
    per_cycle = share / rates.clock_hz

    if state.kind == "flushed":
        state.held = {}
    missing = {buffer.name: buffer.bytes * (1.0 - state.held.get(buffer.name, 0.0)) for buffer in launch.takes}
    streamed_k = _crossing(launch.k_bytes, launch.k_requested_bytes, rates.kept_bytes)
    gathered = {"k": streamed_k, "v": launch.v_bytes}.get(launch.gathers, 0)
    reads = launch.q_bytes + streamed_k + launch.v_bytes + sum(missing.values())
    made = sum(buffer.bytes for buffer in launch.makes)
    evict_s = state.evict_s(reads + made + launch.output_bytes)
    spilled = state.keep(launch, reads)
    dram_s = rates.read_s(reads - gathered) + rates.gather_s(launch.gathered_rows, launch.row_bytes, gathered) + evict_s
    # in a cache full of others' updated lines, every line that is written pushes one of them out
    dram_s += rates.write_s(max(spilled, made if state.kind == "dirty" else 0.0))

    requested = max(launch.l2_bytes, reads) + made + launch.output_bytes
    limits = {
        "dram": dram_s,
        "l2": requested / rates.l2_bandwidth,
        "issue": launch.instructions / rates.issue_per_cycle * per_cycle,
        "shared": launch.shared_wavefronts * 32 / sm.shared_lanes_per_cycle * per_cycle,
        "fp64": launch.fp64 / sm.fp64_per_cycle * per_cycle,
        "special": launch.special / sm.special_per_cycle * per_cycle,
        "tensor": launch.tensor_flops / sm.tensor_flops_per_cycle * per_cycle,
        "atomic": max(launch.atomics / rates.atomics_per_s, launch.same_address * rates.atomic_s),
        "blocks": launch.blocks / rates.launch.blocks_per_s,
        "latency": waves * chain_s(launch.chain, rates),
    }
    start_s = rates.start_s(first, start, launch.overlapped)
    # Blocks of a wave start together and stay in step, so that one block's waiting adds to what its pipelines have to do. A
    # stream's fill is part of its own time: behind the last bytes there is only what is left to do with them.
    own_s = launch.chain.arithmetic * rates.cycles.arithmetic / rates.clock_hz
    waits_s = chain_s(launch.chain, rates) - own_s
    pipelines = max(seconds for name, seconds in limits.items() if name not in ("dram", "latency"))
    alone = waves if resident == 1 else 1  # with one block to a multiprocessor, nobody works while it waits: every wave pays
    in_step_s = max(pipelines, alone * own_s) + alone * waits_s
    # Over several waves the warps of a multiprocessor get out of step, and queue for its pipelines.
    warps = -(-launch.threads // 32)
    pipes = [limits[name] / share / launch.blocks / warps for name in STATIONS]
    full, rest = divmod(launch.blocks, places)
    queued_s = 0.0
    for times, blocks in ((full, places), (1, rest)):  # memory is shared by all multiprocessors, however a wave's blocks lie on them
        n = -(-blocks // sm.count)
        memory = [limits[name] * blocks / launch.blocks / max(1, n * warps) for name in ("dram", "l2")]
        queued_s += times * shared_s(pipes + memory, chain_s(launch.chain, rates), n * warps) if n else 0.0
    busy = max(*limits.values(), limits["dram"] + chain_s(launch.drain, rates), in_step_s, queued_s)
    written = {}
    for buffer in launch.makes:
        kind = _kind(buffer.name, "write")
        written[kind] = written.get(kind, 0.0) + (spilled * buffer.bytes / made if made else 0.0)
    read = {}
    for name, nbytes in missing.items():
        read[_kind(name, "read")] = read.get(_kind(name, "read"), 0.0) + nbytes
    kinds = dict.fromkeys(KINDS, 0.0) | {"q_read": launch.q_bytes, "k_read": streamed_k, "v_read": launch.v_bytes}
    kinds |= read | written | {"output_write": float(launch.output_bytes)}
    shares = {**limits, "start": start_s}
    bound_by = max(shares, key=shares.__getitem__)
    return {
        "launch": launch.name, "stages": "+".join(launch.stages), "blocks": launch.blocks, "threads": launch.threads,
        "resident_blocks": resident, "waves": waves, "start_s": start_s, "time_s": start_s + busy,
        **{f"{name}_s": seconds for name, seconds in limits.items()}, "bound_by": bound_by,
        "dram_read_bytes": sum(kinds[k] for k in KINDS if k.endswith("read")),
        "dram_write_bytes": sum(kinds[k] for k in KINDS if k.endswith("write")),
        "l2_bytes": requested - made - launch.output_bytes, "l2_written_bytes": made + launch.output_bytes, **kinds,
    }  # fmt: skip


def _crossing(once: int, requested: int, kept_bytes: float) -> float:
    """Bytes of K that cross DRAM when several queries of one launch read the same ones [B]: once if they all fit into the
    cache; else every time, since the grid sweeps K from end to end for one query after another."""
    return once if once <= kept_bytes else max(once, requested)


def _kind(name: str, way: str) -> str:
    """'stash_write' for the stash and what goes with it, 'partials_read' for anything that holds partial outputs."""
    return f"{'partials' if name == 'partials' else 'stash'}_{way}"


def shared_s(demands: list[float], alone_s: float, warps: int) -> float:
    """Time of a warp that shares a multiprocessor with others like it [s].

    A closed queueing network: each warp goes round between stations (pipelines) and waiting that disturbs nobody; mean value
    analysis (Reiser and Lavenberg 1980) adds one warp at a time.

    Parameters
    ----------
    demands : what one warp asks of each station [s];  alone_s : of a lone warp, all of it [s];  warps : how many share
    """
    waiting = max(0.0, alone_s - sum(demands))
    queues, time_s = [0.0] * len(demands), alone_s
    for n in range(1, warps + 1):
        visits = [demand * (1 + queue) for demand, queue in zip(demands, queues, strict=True)]
        time_s = waiting + sum(visits)
        queues = [n * visit / time_s for visit in visits]
    return time_s


def chain_s(chain: Chain, rates: Rates) -> float:
    """How long a block waits [s]."""
    cycles = sum(getattr(chain, name) * getattr(rates.cycles, name) for name in type(rates.cycles).model_fields)
    memory = chain.dram * rates.dram_latency_s + chain.stream * rates.loaded_latency_s + chain.l2 * rates.l2_latency_s
    return memory + cycles / rates.clock_hz


def resident_blocks(launch: Launch, gpu: Gpu) -> int:
    """Blocks of a launch that one multiprocessor holds at a time.

    Raises
    ------
    InputError
        Not even one fits.
    """
    sm = gpu.multiprocessors
    warps = -(-launch.threads // 32)
    registers = -(-launch.registers * 32 // 256) * 256 * warps  # given to warps in units of 256 (CUDA occupancy calculator)
    shared = launch.shared_bytes + sm.reserved_bytes_per_block
    fits = min(sm.threads // launch.threads, sm.blocks, sm.registers // registers, sm.shared_bytes // shared)
    if fits < 1 or launch.shared_bytes > sm.shared_bytes_per_block:
        raise InputError(
            f"a block of {launch.name} takes {launch.threads} threads, {launch.registers} registers each and {launch.shared_bytes:,} bytes "
            f"of shared memory; a multiprocessor of {gpu.name} has no room for it: use a longer tile or another machine"
        )
    return fits
