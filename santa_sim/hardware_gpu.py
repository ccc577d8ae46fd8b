"""What a GPU is: its multiprocessors, caches and memory, and what micro-benchmarks measured on it, as validated records."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from .hardware_model import Count
from .schema import Model, TextOrInteger, TextOrReal, at_most


def between(low: float, high: float, unit: str, what: str) -> pydantic.AfterValidator:
    """A number that such a thing can have; others are most likely in another unit."""

    def check(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"{what} lies between {low:g} and {high:g} {unit}; write it in {unit}")
        return value

    return pydantic.AfterValidator(check)


Latency = Annotated[TextOrReal, between(1e-9, 1e-5, "s", "a latency of a GPU's memory")]
L2Bandwidth = Annotated[TextOrReal, between(1e10, 1e15, "B/s", "the bandwidth of a second-level cache")]
Seconds = Annotated[TextOrReal, pydantic.Field(gt=0, le=1)]
SecondsOrZero = Annotated[TextOrReal, pydantic.Field(ge=0, le=1)]
Rate = Annotated[TextOrReal, pydantic.Field(gt=0, lt=1e18)]  # per second, or per cycle
Small = Annotated[TextOrInteger, pydantic.Field(gt=0, le=2**20)]


class Multiprocessors(Model):
    """The streaming multiprocessors (SMs). Limits are those of one SM, rates are results per cycle of one SM.

    Attributes
    ----------
    count : SMs
    threads, blocks, registers : resident at most;  shared_bytes : shared memory of an SM [B]
    shared_bytes_per_block : of one block at most [B];  reserved_bytes_per_block : taken by the system [B]
    issue_per_cycle : warp instructions issued;  fp32_per_cycle, fp64_per_cycle, special_per_cycle : scalar results
    shared_lanes_per_cycle : lanes of loads, stores and shuffles
    tensor_flops_per_cycle : dense 16-bit products and sums on tensor cores
    """

    count: Annotated[Count, at_most(1024, "no GPU has that many multiprocessors")]
    threads: Small
    blocks: Small
    registers: Small
    shared_bytes: Count
    shared_bytes_per_block: Count
    reserved_bytes_per_block: Annotated[TextOrInteger, pydantic.Field(ge=0, le=2**20)] = 1024
    issue_per_cycle: Small
    fp32_per_cycle: Small
    fp64_per_cycle: Small
    special_per_cycle: Small
    shared_lanes_per_cycle: Small
    tensor_flops_per_cycle: Small

    @pydantic.model_validator(mode="after")
    def _block_fits(self) -> Multiprocessors:
        if self.shared_bytes_per_block > self.shared_bytes:
            raise ValueError(f"shared_bytes_per_block={self.shared_bytes_per_block} B is more than the multiprocessor's shared_bytes={self.shared_bytes} B; "
                             "write what one block can have of them")  # fmt: skip
        return self


class Cycles(Model):
    """Latencies inside a multiprocessor [cycles]: what a chain of dependent instructions waits for.

    arithmetic : float32 and integers;  fp64 : float64 additions and multiplications;  special : special functions and
    conversions to and from float64;  shared : a load from shared memory;  shuffle : shuffles and votes of a warp
    barrier : of a block of 512 threads;  cluster : of a cluster, 0 where there are none
    """

    arithmetic: Rate
    fp64: Rate
    special: Rate
    shared: Rate
    shuffle: Rate
    barrier: Rate
    cluster: Annotated[TextOrReal, pydantic.Field(ge=0, le=10**6)] = 0.0


class L2(Model):
    """The second-level cache: bytes [B], latency of a hit [s], bandwidth of hits [B/s].

    `partitions`: each holds a copy of what its multiprocessors read, so that the cache keeps 1 / partitions of its bytes.
    """

    bytes: Annotated[Count, between(1e5, 1e10, "B", "the size of a second-level cache")]
    partitions: Annotated[Small, pydantic.Field(le=16)] = 1
    latency_s: Latency
    bandwidth_bytes_per_s: L2Bandwidth


class GpuMemory(Model):
    """The DRAM: capacity [B], the data sheet's bandwidth [B/s], latency of a dependent load that misses all caches [s].

    `sector_bytes`: the smallest transfer [B].
    """

    bytes: Annotated[Count, between(1e8, 1e13, "B", "the size of a GPU's memory")]
    bandwidth_bytes_per_s: Annotated[Count, between(1e9, 1e14, "B/s", "the bandwidth of a GPU's memory")]
    latency_s: Latency
    sector_bytes: Small = 32

    @property
    def burst_bytes(self) -> int:
        """The smallest transfer [B], under the name that accelerators' memories have it."""
        return self.sector_bytes


class Launches(Model):
    """Cost of starting empty kernels (one block of one warp, no arguments read), event to event [s].

    Attributes
    ----------
    graph_s, stream_s : one kernel, as a graph of one node and as a call on a stream that was ready for it
    graph_next_s, stream_next_s : each further kernel that depends on the one before
    overlapped_next_s : each further kernel in a graph with programmatic dependent launch; null where the GPU hasn't it
    blocks_per_s : blocks started a second, of a launch of very many that do nothing [1/s]
    """

    graph_s: Seconds
    graph_next_s: Seconds
    stream_s: Seconds
    stream_next_s: Seconds
    overlapped_next_s: SecondsOrZero | None
    blocks_per_s: Rate


class Curve(Model):
    """Time against size of a contiguous range: `bytes` increase, `seconds` don't decrease."""

    bytes: Annotated[tuple[Count, ...], pydantic.Field(min_length=2)]
    seconds: tuple[Seconds, ...]

    @pydantic.model_validator(mode="after")
    def _grows(self) -> Curve:
        if len(self.bytes) != len(self.seconds):
            raise ValueError(f"{len(self.bytes)} sizes and {len(self.seconds)} times: write one time per size")
        if any(b <= a for a, b in zip(self.bytes, self.bytes[1:])):
            raise ValueError(f"bytes={list(self.bytes)} must increase")
        if any(b < a for a, b in zip(self.seconds, self.seconds[1:])):
            raise ValueError(f"seconds={list(self.seconds)} must not decrease: a larger range isn't read sooner; measure again")
        return self


class GatherPoint(Model):
    """Rows of `row_bytes` read at random places of `span_bytes` [B], each once, by enough warps to hide latency: [s]."""

    row_bytes: Count
    rows: Count
    span_bytes: Count
    seconds: Seconds


class ClustersAtOnce(Model):
    """How many thread block clusters of `blocks` blocks run at a time where a multiprocessor holds one block."""

    blocks: Annotated[Count, at_most(64, "clusters are smaller")]
    at_once: Count


class Calibration(Model):
    """What micro-benchmarks measured on one card. Never anything of the kernels that are to be predicted.

    All times are of a graph replay, event to event, medians; those of kernels include `launch.graph_s`.

    Attributes
    ----------
    source : what measured it where: card, driver, program, date
    clock_hz : clock of the multiprocessors during the measurements [Hz]
    launch : empty kernels
    read, read_dirty, write : streams from 1 MB to 2 GB. `read` starts with a cache that another buffer was read into, so
        that nothing has to be written back; `read_dirty` and `write` with one that a 512 MB buffer was updated in
        (the paper's Appendix Q)
    gather : rows at random places, cache as for `read`
    dram_latency_s, l2_latency_s : one thread's dependent loads over 1 GB, and over a quarter of the L2 [s]
    loaded_latency_s : bytes in flight over the bandwidth that they reach, at about a third of the largest bandwidth [s]
    l2_bandwidth_bytes_per_s : repeated reads of a quarter of the L2 by all SMs [B/s]
    atomic_s : between float32 atomic additions to one address [s];  atomics_per_s : to different addresses [1/s]
    issue_per_cycle : warp instructions that independent float32 multiply-adds issue, of a multiprocessor; null: the machine's
    latency_cycles : as measured; null: those of the machine
    clusters_at_once : by size; GPCs differ in multiprocessors, and a cluster stays inside one. Empty: as if there were no GPCs
    l2_kept_bytes : up to how much of what a kernel wrote the next one finds in the second-level cache [B]; null: its bytes / partitions
    """

    source: Annotated[str, pydantic.Field(min_length=1)]
    clock_hz: Annotated[Count, pydantic.Field(ge=10**8, le=10**10)]
    launch: Launches
    read: Curve
    read_dirty: Curve | None = None
    write: Curve
    gather: tuple[GatherPoint, ...] = ()
    dram_latency_s: Latency
    loaded_latency_s: Latency
    l2_latency_s: Latency
    l2_bandwidth_bytes_per_s: L2Bandwidth
    atomic_s: Annotated[TextOrReal, between(1e-12, 1e-5, "s", "the time between additions to one address")]
    atomics_per_s: Rate
    issue_per_cycle: Rate | None = None
    latency_cycles: Cycles | None = None
    clusters_at_once: tuple[ClustersAtOnce, ...] = ()
    l2_kept_bytes: Count | None = None

    @pydantic.model_validator(mode="after")
    def _longer_than_nothing(self) -> Calibration:
        for name, curve in (("read", self.read), ("read_dirty", self.read_dirty), ("write", self.write)):
            if curve is not None and curve.seconds[0] <= self.launch.graph_s:
                raise ValueError(f"{name}.seconds starts with {curve.seconds[0]:g} s, no more than an empty kernel's launch.graph_s = {self.launch.graph_s:g} s: "
                                 "both are event to event; measure again")  # fmt: skip
        return self


class Gpu(Model):
    """A GPU; hwmodels/*.yaml with `kind: gpu`, docs/gpu.md.

    Attributes
    ----------
    architecture : vendor's name;  compute_capability : 80, 86, 89, 90, ...
    clock_hz : int  [Hz]  boost clock of the multiprocessors
    board_power_w : float  [W]  the power limit as sold; energies of a GPU's operations are published by nobody
    calibration : Calibration, or null: then bandwidth and launch costs follow the stated rule of docs/gpu.md
    """

    kind: Literal["gpu"]
    name: str
    description: str
    architecture: str
    compute_capability: Annotated[TextOrInteger, pydantic.Field(ge=70, le=200)]
    clock_hz: Annotated[Count, pydantic.Field(ge=10**8, le=10**10)]
    multiprocessors: Multiprocessors
    latency_cycles: Cycles
    l2: L2
    memory: GpuMemory
    board_power_w: Annotated[TextOrReal, pydantic.Field(gt=0, le=10**5)]
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()

    @property
    def overlaps_launches(self) -> bool:
        """Whether it has programmatic dependent launch (compute capability 9.0)."""
        return self.compute_capability >= 90

    @pydantic.model_validator(mode="after")
    def _no_faster_than_memory(self) -> Gpu:
        """Beyond twice the cache, a stream comes from memory; of a write, the cache may hold back its own size."""
        measured, peak = self.calibration, self.memory.bandwidth_bytes_per_s
        curves = {} if measured is None else {"read": measured.read, "read_dirty": measured.read_dirty, "write": measured.write}
        for name, curve in curves.items():
            for nbytes, seconds in zip(curve.bytes, curve.seconds) if curve else ():
                crossing = nbytes - (self.l2.bytes if name == "write" else 0)
                if nbytes > 2 * self.l2.bytes and crossing / seconds > peak:
                    raise ValueError(f"calibration.{name}: {nbytes:,} B in {seconds:g} s is faster than the memory's {peak:,} B/s; write at least "
                                     f"{crossing / peak:.3g} s, or correct memory.bandwidth_bytes_per_s")  # fmt: skip
        return self
