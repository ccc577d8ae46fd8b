"""The measuring protocol: cold caches, warm-up and timed calls, CUDA events; as called and as a CUDA graph.

Appendix Q of arXiv:2605.01910: 10 warm-up and 40 timed calls, a 512 MB buffer updated in place before each, CUDA events
around the call. Everything runs on the default stream, which CuPy and torch share.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable

import numpy as np

from . import device

WARM_UP, TIMED = 10, 40
FLUSH_BYTES = 512 * 2**20


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of the timed calls [s]: median, least, 10th and 90th percentiles, and how many."""

    median_s: float
    least_s: float
    low_s: float
    high_s: float
    calls: int

    @property
    def spread(self) -> float:
        """Distance from the 10th to the 90th percentile, as a share of the median."""
        return (self.high_s - self.low_s) / self.median_s


def summary(times_s) -> Timing:
    """The Timing of measured times [s]."""
    low, median, high = np.percentile(times_s, [10, 50, 90])
    return Timing(median_s=float(median), least_s=float(np.min(times_s)), low_s=float(low), high_s=float(high), calls=len(times_s))


class Flush:
    """A buffer that is updated in place to make the caches cold and dirty (Appendix Q), or read, which leaves them clean."""

    def __init__(self, kernel: Callable[[str], object], bytes_: int = FLUSH_BYTES):
        self.kernel = kernel
        self.array = device.require_cupy().zeros(bytes_ // 4, np.float32)
        self.sink = device.require_cupy().zeros(1, np.uint32)

    def __call__(self) -> None:
        launch(self.kernel("touch"), 2048, 512, [pointer(self.array), ctypes.c_int64(self.array.size)])

    def clean(self) -> None:
        """Read the buffer."""
        pieces = self.array.nbytes // 16
        launch(self.kernel("read_4"), -(-pieces // 1024), 256, [pointer(self.array), ctypes.c_int64(pieces), pointer(self.sink)])


def pointer(array, offset_bytes: int = 0) -> ctypes.c_void_p:
    """The address of a CuPy array, as an argument of a launch."""
    return ctypes.c_void_p(array.data.ptr + offset_bytes)


def launch(kernel, blocks, threads: int, arguments: list, **more) -> None:
    """Launch on CuPy's current stream; blocks is a number or (x, y, z)."""
    grid = blocks if isinstance(blocks, tuple) else (blocks, 1, 1)
    device.launch(kernel, grid, threads, arguments, device.require_cupy().cuda.get_current_stream().ptr, **more)


def measure(call: Callable[[], object], flush: Callable[[], None] | None, warm_up: int = WARM_UP, timed: int = TIMED) -> Timing:
    """Time a call between CUDA events, after `flush` each time (None: caches as the last call left them)."""
    cuda = device.require_cupy().cuda
    events = []
    for _ in range(warm_up + timed):
        if flush is not None:
            flush()
        pair = cuda.Event(), cuda.Event()
        pair[0].record()
        call()
        pair[1].record()
        events.append(pair)
    cuda.Device().synchronize()
    return summary([cuda.get_elapsed_time(*pair) * 1e-3 for pair in events[warm_up:]])


def graph_of(call: Callable[[], object], times: int = 1) -> Callable[[], None]:
    """A closure that replays `times` calls from a CUDA graph. The call launches on CuPy's current stream, and has run before."""
    cuda = device.require_cupy().cuda
    stream = cuda.Stream(non_blocking=True)
    cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        for _ in range(times):
            call()
        graph = stream.end_capture()
    graph.upload(stream)
    stream.synchronize()
    return lambda: graph.launch(cuda.get_current_stream())
