"""What a GPU sustains: from its calibration, or where it has none from one stated rule for all cards (docs/gpu.md)."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...errors import InputError, choose
from ...hardware_gpu import Curve, Cycles, Gpu, Launches

STARTS = ("graph", "stream")

# ---- the rule for cards without a calibration ----
# Share of the data sheet's bandwidth that long streams reach: 4,406 of 4,800 GB/s on an H200 (measured, torch.sum).
STREAM_SHARE = 0.92
# Share that rows of some hundred bytes at random places reach: 0.66 for 16 MB of 256-byte rows, 0.83 for 64 MB, by
# micro-benchmarks of one H200 (benchmarks/gpu_validation).
GATHER_SHARE = 0.75
# What a cache full of others' updated lines adds to a stream, and the latency of a memory that all stream from over that of
# an idle one: micro-benchmarks of one H200 (benchmarks/gpu_validation).
DIRTY_S, DIRTY_SHARE = 1.5e-6, 0.08
LOADED = 1.75
# Between dependent kernels: about 0.5 us in a graph, 0.9 us on a stream (Gray, "Getting Started with CUDA Graphs", NVIDIA
# technical blog, 2019); an empty kernel itself and each event: an assumption of 1 us and 0.5 us.
EMPTY_S, EVENTS_S, GRAPH_GAP_S, STREAM_GAP_S = 1.0e-6, 0.5e-6, 0.5e-6, 0.9e-6
OVERLAPPED_S = 0.5e-6  # with programmatic dependent launch: an assumption, half of the empty kernel
BLOCKS_PER_CYCLE = 1.0  # blocks started: an assumption
ATOMIC_CYCLES = 2.0  # between additions to one address, at the L2: an assumption
ATOMICS_PER_SLICE_BYTES = 32  # additions to different addresses: one per 32 bytes of L2 bandwidth, an assumption


@dataclasses.dataclass(frozen=True)
class Rates:
    """Times of the parts of a launch on one GPU; all in seconds, bytes, and 1/s."""

    gpu: Gpu
    clock_hz: float
    launch: Launches
    cycles: Cycles
    issue_per_cycle: float
    kept_bytes: float
    dram_latency_s: float
    loaded_latency_s: float
    l2_latency_s: float
    l2_bandwidth: float
    atomic_s: float
    atomics_per_s: float

    def start_s(self, first: bool, start: str, overlapped: bool) -> float:
        """Cost of starting a kernel [s]: the first with the events around it, a further one behind the one before."""
        choose("start", start, STARTS)
        if first:
            return self.launch.graph_s if start == "graph" else self.launch.stream_s
        if overlapped and self.launch.overlapped_next_s is not None:
            return self.launch.overlapped_next_s
        return self.launch.graph_next_s if start == "graph" else self.launch.stream_next_s

    def read_s(self, nbytes: float) -> float:
        """Consecutive bytes read from DRAM, nothing to be written back [s]."""
        if self.gpu.calibration is None:
            return nbytes / self._stream_bandwidth
        return _on_curve(self.gpu.calibration.read, nbytes, self.launch.graph_s)

    def evict_s(self, before: float, after: float) -> float:
        """What writing back others' dirty data adds while `before` ... `after` bytes take their place [s]."""
        dirty = self.gpu.calibration.read_dirty if self.gpu.calibration else None
        if dirty is None:
            all_of, had = (self.read_s(nbytes) for nbytes in (after, before))
            return min(DIRTY_S, all_of) - min(DIRTY_S, had) + DIRTY_SHARE * (all_of - had)

        def extra(nbytes: float) -> float:
            return max(0.0, _on_curve(dirty, nbytes, self.launch.graph_s) - self.read_s(nbytes))

        # the most that any smaller amount cost, since what was added once stays
        sizes = [x for x in dirty.bytes if x < after]
        return max(0.0, max([extra(after), *map(extra, sizes)]) - max([extra(before), *(extra(x) for x in sizes if x < before)]))

    def write_s(self, nbytes: float) -> float:
        """Bytes written to DRAM [s]."""
        if self.gpu.calibration is None:
            return nbytes / self._stream_bandwidth
        curve = self.gpu.calibration.write  # measured with a dirty cache: its steepest stretch is a byte's cost
        slopes = np.diff(curve.seconds) / np.diff(curve.bytes)
        return nbytes * float(slopes[-1])

    def gather_s(self, rows: float, row_bytes: float, nbytes: float) -> float:
        """Rows at random places read from DRAM [s]."""
        points = self.gpu.calibration.gather if self.gpu.calibration else ()
        if not points or not rows:
            return nbytes / (self.gpu.memory.bandwidth_bytes_per_s * GATHER_SHARE)
        size = min({point.row_bytes for point in points}, key=lambda x: abs(np.log(x / row_bytes)))
        best: dict[int, float] = {}
        for point in points:
            if point.row_bytes == size:
                best[point.rows] = max(best.get(point.rows, 0.0), point.seconds)
        counts = sorted(best)
        seconds = np.maximum.accumulate([best[n] for n in counts])
        curve = Curve(bytes=[n * size for n in counts], seconds=list(seconds)) if len(counts) > 1 else None
        if curve is None:
            return max(0.0, seconds[0] - self.launch.graph_s) * rows * row_bytes / (counts[0] * size)
        return _on_curve(curve, rows * row_bytes, self.launch.graph_s)

    def clusters_at_once(self, size: int, resident: int) -> int:
        """Clusters of `size` blocks that run at a time, `resident` blocks to a multiprocessor."""
        most = max(1, self.gpu.multiprocessors.count * resident // size)
        known = sorted((x.blocks, x.at_once) for x in self.gpu.calibration.clusters_at_once if x.blocks >= size) if self.gpu.calibration else []
        return min(most, max(1, known[0][0] * known[0][1] * resident // size)) if known else most

    @property
    def _stream_bandwidth(self) -> float:
        return self.gpu.memory.bandwidth_bytes_per_s * STREAM_SHARE


def rates_of(gpu: Gpu) -> Rates:
    """The rates of a GPU.

    Raises
    ------
    InputError
        Not a GPU.
    """
    if not isinstance(gpu, Gpu):
        raise InputError(f"machine={getattr(gpu, 'name', gpu)!r} is no GPU; write one with kind: gpu, such as load_hardware('h200')")
    measured, kept = gpu.calibration, gpu.l2.bytes / gpu.l2.partitions
    if measured is not None:
        return Rates(gpu, measured.clock_hz, measured.launch, measured.latency_cycles or gpu.latency_cycles,
                     measured.issue_per_cycle or gpu.multiprocessors.issue_per_cycle, measured.l2_kept_bytes or kept, measured.dram_latency_s,
                     measured.loaded_latency_s, measured.l2_latency_s, measured.l2_bandwidth_bytes_per_s, measured.atomic_s, measured.atomics_per_s)  # fmt: skip
    launch = Launches(
        graph_s=EVENTS_S + GRAPH_GAP_S + EMPTY_S, graph_next_s=GRAPH_GAP_S + EMPTY_S, stream_s=EVENTS_S + STREAM_GAP_S + EMPTY_S,
        stream_next_s=STREAM_GAP_S + EMPTY_S, overlapped_next_s=OVERLAPPED_S if gpu.overlaps_launches else None,
        blocks_per_s=BLOCKS_PER_CYCLE * gpu.clock_hz,
    )  # fmt: skip
    return Rates(gpu, gpu.clock_hz, launch, gpu.latency_cycles, gpu.multiprocessors.issue_per_cycle, kept,
                 gpu.memory.latency_s, LOADED * gpu.memory.latency_s, gpu.l2.latency_s, gpu.l2.bandwidth_bytes_per_s,
                 ATOMIC_CYCLES / gpu.clock_hz, gpu.l2.bandwidth_bytes_per_s / ATOMICS_PER_SLICE_BYTES)  # fmt: skip


def _on_curve(curve: Curve, nbytes: float, start_s: float) -> float:
    """Time of a size on a measured curve, without the empty kernel [s]: linear between sizes, below the smallest towards
    0 at no bytes; beyond the largest the last stretch goes on."""
    if nbytes <= 0:
        return 0.0
    sizes, seconds = np.array(curve.bytes, float), np.maximum(np.array(curve.seconds) - start_s, 0.0)
    if nbytes >= sizes[-1]:
        slope = max((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]), 0.0)
        return float(seconds[-1] + slope * (nbytes - sizes[-1]))
    if nbytes <= sizes[0]:
        return float(seconds[0] * nbytes / sizes[0])
    return float(np.interp(nbytes, sizes, seconds))
