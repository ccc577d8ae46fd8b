"""Micro-benchmarks of a card: streams, gathers, latencies, launches, atomics, barriers and instructions; no attention.

    python -m santa_sim.gpu.microbench [-o FILE.json]

They calibrate the GPU timing model, so none of them is a kernel that the model predicts. Each record holds what was done and
the time [s], or cycles [1] of a multiprocessor, that it took.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from . import build, device
from .validate_timing import FLUSH_BYTES, Flush, graph_of, launch, measure, pointer

MB = 2**20
STREAM_BYTES = tuple(MB << i for i in range(12))  # 1 MB ... 2 GB
ROW_BYTES = (128, 256, 512)
DENSITIES = (1.0, 1 / 2, 1 / 4, 1 / 16, 1 / 64, 1 / 256)
GATHER_BYTES = (64 * MB, 1024 * MB)  # arrays that rows are gathered from
INSTRUCTIONS = ("ffma", "imad", "shift", "dadd", "dfma", "ddiv", "dexp", "ex2", "cvt", "shfl", "ballot", "lds", "mma")
THREADS = 256


@functools.cache
def kernel(name: str):
    """A compiled micro-benchmark on the current device."""
    cupy = device.require_cupy()
    return _module(cupy.cuda.runtime.getDevice()).get_function(name)


@functools.cache
def _module(_: int):
    return device.require_cupy().RawModule(code=build.source("microbench.cu"), options=("-std=c++17",))


def run(progress: Callable[[str, int, int], None] | None = None, quick: bool = False) -> dict[str, list[dict]]:
    """All micro-benchmarks on the current device: name of the group -> records.

    Parameters
    ----------
    progress : called with what runs, how many groups are done, how many there are
    quick : fewer sizes
    """
    cupy = device.require_cupy()
    flush = Flush(kernel)
    largest = largest_bytes()
    buffer = cupy.zeros(largest // 4, np.uint32)
    sink = cupy.zeros(1024, np.uint32)
    groups = {
        "clock": clock, "launch": launches, "stream": streams, "in_flight": in_flight, "strided": strided, "gather": gathers,
        "l2": second_level, "kept": kept, "latency": latencies, "atomic": atomics, "barrier": barriers, "cluster": clusters, "instruction": instructions,
    }  # fmt: skip
    results = {}
    for i, (name, group) in enumerate(groups.items()):
        if progress is not None:
            progress(f"micro-benchmark: {name}", i, len(groups))
        try:
            results[name] = group(buffer, sink, flush, quick)
        except (RuntimeError, cupy.cuda.runtime.CUDARuntimeError) as error:
            results[name] = [{"error": f"{type(error).__name__}: {error}"}]
    return results


def largest_bytes() -> int:
    """The largest stream: 2 GB, or what a third of the free memory has room for."""
    free, _ = device.require_cupy().cuda.runtime.memGetInfo()
    return max(size for size in STREAM_BYTES if size <= max(MB, (free - FLUSH_BYTES) // 3))


def quarter_of_cache() -> int:
    """A quarter of the second-level cache, rounded down to a power of two [B]."""
    number = device.require_cupy().cuda.runtime.getDevice()
    return 1 << int(np.log2(device.attribute(number, "L2CacheSize") // 4))


def _timed(call: Callable[[], object], flush) -> dict:
    """Record of a call's time as the replay of a graph, with cold caches."""
    call()
    timing = measure(graph_of(call), flush, warm_up=3, timed=15)
    return {"seconds": timing.median_s, "least_s": timing.least_s, "low_s": timing.low_s, "high_s": timing.high_s}


def clock(buffer, sink, flush, quick) -> list[dict]:
    """The multiprocessors' clock while they work [Hz]."""
    times = device.require_cupy().zeros(2, np.uint64)
    launch(kernel("clock_rate"), 1, 32, [ctypes.c_int32(2_000_000), pointer(times), pointer(sink)])
    cycles, nanoseconds = (int(x) for x in times.get())
    return [{"what": "multiprocessor", "hz": cycles / nanoseconds * 1e9}]


def launches(buffer, sink, flush, quick) -> list[dict]:
    """Kernels that do nothing: how many in a row, of how many blocks, from a graph or a stream, ordered or overlapped."""
    records = []

    def record(count, blocks, threads, early, cluster=0):
        def call():
            for i in range(count):
                launch(kernel("nothing_early" if early else "nothing"), blocks, threads, [pointer(sink)], after_previous=early and i > 0,
                       cluster=cluster)  # fmt: skip

        key = {"kernels": count, "blocks": blocks, "threads": threads, "overlapped": early, "cluster": cluster}
        records.append({**key, "how": "graph", **_timed(call, flush)})
        if blocks == 1 and not early:
            timing = measure(call, flush, warm_up=3, timed=15)  # the flush runs long enough for the host to be ahead
            records.append({**key, "how": "stream", "seconds": timing.median_s, "least_s": timing.least_s})
            warm = measure(graph_of(call), None, warm_up=3, timed=15)
            records.append({**key, "how": "graph, caches warm", "seconds": warm.median_s, "least_s": warm.least_s})

    for count in (1, 2, 3, 4, 8, 16):
        record(count, 1, 32, False)
    if device.capability(device.require_cupy().cuda.runtime.getDevice()) >= 90:
        for count in (2, 3, 4, 8, 16):
            record(count, 1, 32, True)
        for blocks, cluster in ((128, 0), (128, 4), (256, 0), (256, 8)):
            for count in (1, 2, 4):
                record(count, blocks, 512, True, cluster)
    for blocks in (132, 1056, 8448, 65536, 262144, 1048576):
        record(1, blocks, 32, False)
        record(1, blocks, 256, False)
    for blocks in (1056, 8448, 32768):
        record(2, blocks, 256, True)
        record(2, blocks, 256, False)
    return records


def streams(buffer, sink, flush, quick) -> list[dict]:
    """Consecutive bytes read, written and copied once, with cold caches; the loads of a thread in flight together."""
    records = []
    for size in STREAM_BYTES[:: 2 if quick else 1]:
        if size > buffer.nbytes:
            continue
        n = ctypes.c_int64(size // 16)
        for hint in ("", "once_"):
            for loads in (1, 2, 4, 8):
                threads = THREADS if loads < 8 else 128
                blocks = -(-size // (16 * loads * threads))
                name = f"read_{hint}{loads}"
                call = functools.partial(launch, kernel(name), blocks, threads, [pointer(buffer), n, pointer(sink)])
                for cache, cold in (("clean", flush.clean), ("dirty", flush)):
                    records.append({"what": "read", "evict_first": bool(hint), "loads": loads, "threads": threads, "cache": cache,
                                    "bytes": size, **_timed(call, cold)})  # fmt: skip
        for stores in (1, 4):
            call = functools.partial(launch, kernel(f"write_{stores}"), -(-size // (16 * stores * THREADS)), THREADS, [pointer(buffer), n])
            records.append({"what": "write", "loads": stores, "threads": THREADS, "cache": "dirty", "bytes": size, **_timed(call, flush)})
        half = ctypes.c_int64(size // 32)
        call = functools.partial(launch, kernel("copy_4"), -(-size // (128 * THREADS)), THREADS,
                                 [pointer(buffer), pointer(buffer, size // 2), half])  # fmt: skip
        records.append({"what": "copy", "loads": 4, "threads": THREADS, "cache": "dirty", "bytes": size, **_timed(call, flush)})
    _clear(buffer)
    return records


def in_flight(buffer, sink, flush, quick) -> list[dict]:
    """Reading 256 MB with few bytes in flight: blocks of a multiprocessor held down by the shared memory each asks for."""
    number = device.require_cupy().cuda.runtime.getDevice()
    shared = device.attribute(number, "MaxSharedMemoryPerMultiprocessor")
    size = min(256 * MB, buffer.nbytes)
    records = []
    for loads in (1, 4):
        function = kernel(f"read_{loads}")
        for resident in (1, 2, 3, 4, 6, 8):
            each = min((shared // resident - 1024) // 1024 * 1024, device.attribute(number, "MaxSharedMemoryPerBlockOptin"))
            function.max_dynamic_shared_size_bytes = each
            blocks = -(-size // (16 * loads * THREADS))
            call = functools.partial(launch, function, blocks, THREADS, [pointer(buffer), ctypes.c_int64(size // 16), pointer(sink)], shared_bytes=each)
            records.append({"loads": loads, "threads": THREADS, "blocks_per_multiprocessor": resident,
                            "in_flight_bytes": 16 * loads * THREADS * resident, "bytes": size, **_timed(call, flush)})  # fmt: skip
    return records


def strided(buffer, sink, flush, quick) -> list[dict]:
    """Rows of 256 B, of one of eight interleaved arrays to a block of 128 rows: consecutive bytes, in pieces."""
    records = []
    for size in STREAM_BYTES[2:]:
        if size > buffer.nbytes:
            continue
        rows = size // (8 * 256)
        call = functools.partial(launch, kernel("read_strided"), (8, -(-rows // 128), 1), THREADS,
                                 [pointer(buffer), ctypes.c_int64(rows), ctypes.c_int32(128), ctypes.c_int32(16), pointer(sink)])  # fmt: skip
        records.append({"heads": 8, "rows": 128, "row_bytes": 256, "bytes": size, **_timed(call, flush)})
    return records


def gathers(buffer, sink, flush, quick) -> list[dict]:
    """Different rows in an order without a pattern, out of arrays of several sizes."""
    records = []
    for array in GATHER_BYTES[: 1 if quick else 2]:
        for row in ROW_BYTES:
            bits = int(np.log2(array // row))
            for density in DENSITIES:
                count = max(1, int((array // row) * density))
                for at_once in (1, 4):
                    threads = -(-count // at_once) * (row // 16)
                    call = functools.partial(
                        launch, kernel(f"gather_{at_once}"), -(-threads // THREADS), THREADS,
                        [pointer(buffer), ctypes.c_int32(bits), ctypes.c_int64(count), ctypes.c_int32(row // 16), pointer(sink)],
                    )  # fmt: skip
                    for cache, cold in (("clean", flush.clean), ("dirty", flush)):
                        records.append({"array_bytes": array, "row_bytes": row, "density": density, "rows": count, "loads": at_once,
                                        "cache": cache, "bytes": count * row, **_timed(call, cold)})  # fmt: skip
    return records


def second_level(buffer, sink, flush, quick) -> list[dict]:
    """Reading a buffer again and again from the second-level cache."""
    number = device.require_cupy().cuda.runtime.getDevice()
    blocks = 8 * device.attribute(number, "MultiProcessorCount")
    records = []
    for size in (4 * MB, quarter_of_cache(), 32 * MB):
        for rounds in (8, 40):
            call = functools.partial(launch, kernel("read_again"), blocks, THREADS,
                                     [pointer(buffer), ctypes.c_int64(size // 16), ctypes.c_int32(rounds), pointer(sink)])  # fmt: skip
            call()
            records.append({"buffer_bytes": size, "rounds": rounds, "bytes": size * rounds, "seconds": measure(graph_of(call), None, 3, 10).median_s})
    return records


def kept(buffer, sink, flush, quick) -> list[dict]:
    """Bytes written, and written and then read by the next kernel: what of them the second-level cache still holds."""
    number = device.require_cupy().cuda.runtime.getDevice()
    whole = device.attribute(number, "L2CacheSize")
    records = []
    for eighths in range(1, 13):
        size = whole * eighths // 8 // 16384 * 16384
        blocks, pieces = size // 16384, ctypes.c_int64(size // 16)

        def write(blocks=blocks, pieces=pieces):
            launch(kernel("write_4"), blocks, THREADS, [pointer(buffer), pieces])

        def both(blocks=blocks, pieces=pieces):
            write(blocks, pieces)
            launch(kernel("read_4"), blocks, THREADS, [pointer(buffer), pieces, pointer(sink)])

        alone, after = _timed(write, flush)["seconds"], _timed(both, flush)["seconds"]
        records.append({"bytes": size, "write_s": alone, "write_and_read_s": after, "seconds": after - alone})
    _clear(buffer)
    return records


def latencies(buffer, sink, flush, quick) -> list[dict]:
    """Chains of loads, each waiting for the one before."""
    cupy = device.require_cupy()
    times = cupy.zeros(3, np.uint64)
    records = []

    def record(what, footprint, step, hops, warm, cold):
        bits = int(np.log2(footprint // step))
        values = []
        for _ in range(5):
            if cold:
                flush()
            launch(kernel("chase"), 1, 1, [pointer(buffer), ctypes.c_int32(bits), ctypes.c_int64(step), ctypes.c_int32(hops),
                                           ctypes.c_int32(warm), pointer(times)])  # fmt: skip
            values.append(times.get().astype(float))
        cycles, nanoseconds, first = np.median(values, axis=0)
        records.append({"what": what, "footprint_bytes": footprint, "step_bytes": step, "hops": hops, "cycles_per_hop": cycles / hops,
                        "seconds": nanoseconds / hops * 1e-9, "first_hop_cycles": first})  # fmt: skip

    record("second-level cache", quarter_of_cache(), 128, 4096, 2 * quarter_of_cache() // 128, False)
    for footprint in (64 * MB, 256 * MB, 1024 * MB, 2048 * MB):
        if footprint <= buffer.nbytes:
            record("memory, cold", footprint, 128, 2048, 0, True)
    record("memory, another page each time", min(2048 * MB, buffer.nbytes), 2 * MB, min(512, buffer.nbytes // (2 * MB)), 0, True)
    record("memory, another page each time, pages known", 64 * MB, 16384, 1024, 0, True)
    for _ in range(2):
        launch(kernel("chase_atomics"), 1, 1, [pointer(sink), ctypes.c_int32(1024), pointer(times)])
    cycles, nanoseconds, _ = times.get().astype(float)
    records.append({"what": "atomic add", "hops": 1024, "cycles_per_hop": cycles / 1024, "seconds": nanoseconds / 1024 * 1e-9})
    return records


def atomics(buffer, sink, flush, quick) -> list[dict]:
    """Atomic adds a second: to one address, to a line of a warp each, to neighbours."""
    number = device.require_cupy().cuda.runtime.getDevice()
    blocks = 4 * device.attribute(number, "MultiProcessorCount")
    records = []
    for what, words, apart in (("one address", 1, 0), ("neighbours", MB, 1), ("a line each", 2 * MB, 32)):
        for each in (8, 40):
            call = functools.partial(launch, kernel("atomics"), blocks, THREADS,
                                     [pointer(buffer), ctypes.c_int64(words), ctypes.c_int64(apart), ctypes.c_int32(each)])  # fmt: skip
            call()
            records.append({"what": what, "adds": blocks * THREADS * each, "seconds": measure(graph_of(call), None, 3, 10).median_s})
    _clear(buffer)
    return records


def barriers(buffer, sink, flush, quick) -> list[dict]:
    """Barriers of a block and of a cluster [cycles]."""
    cupy = device.require_cupy()
    number = cupy.cuda.runtime.getDevice()
    cycles = cupy.zeros(1024, np.uint64)
    records = []
    for threads in (128, 256, 512, 1024):
        launch(kernel("barriers"), 1, threads, [ctypes.c_int32(1000), pointer(cycles)])
        records.append({"what": "block", "threads": threads, "cycles": float(cycles[0]) / 1000})
    if device.capability(number) >= 90:
        for what, name in (("cluster", "cluster_barriers"), ("cluster, stores", "cluster_stores")):
            for size in (2, 4, 8):
                launch(kernel(name), size, 512, [ctypes.c_int32(1000), pointer(cycles)], cluster=size)
                records.append({"what": what, "blocks": size, "threads": 512, "cycles": float(cycles[0]) / 1000})
    return records


def clusters(buffer, sink, flush, quick) -> list[dict]:
    """How many clusters of so many blocks run at a time where a multiprocessor holds one block: asked of the driver."""
    number = device.require_cupy().cuda.runtime.getDevice()
    if device.capability(number) < 90:
        return []
    shared = device.attribute(number, "MaxSharedMemoryPerBlockOptin")
    function, count, records = kernel("clock_rate"), ctypes.c_int(), []
    function.max_dynamic_shared_size_bytes = shared  # all of it: one block of a multiprocessor
    for size in (2, 4, 8):
        asked = device.Launch(function, (size, 1, 1), 32, [], 0, shared_bytes=shared, cluster=size)
        status = device._driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), ctypes.c_void_p(function.kernel.ptr), ctypes.byref(asked._config))
        if status:
            raise RuntimeError(f"CUDA error {status}: no answer on clusters of {size} blocks")
        records.append({"blocks": size, "at_once": count.value})
    return records


def instructions(buffer, sink, flush, quick) -> list[dict]:
    """Cycles of an instruction in a chain, and how many a multiprocessor finishes in a cycle.

    `loop` is one step of a loop of a multiply-add: counting, comparing and jumping back; `cvt` counts two conversions, `ddiv` and `dexp` a whole function; the rate of `mma` is in warps' instructions.
    """
    cupy = device.require_cupy()
    cycles = cupy.zeros(1024, np.uint64)
    records = []
    rounds = 64
    for name in INSTRUCTIONS:
        steps = rounds * 32 * (2 if name == "cvt" else 1)
        for _ in range(2):
            launch(kernel(f"one_{name}"), 1, 32, [ctypes.c_int32(rounds), pointer(cycles), pointer(sink)], shared_bytes=4096)
        latency = float(cycles[0]) / steps
        for _ in range(2):
            launch(kernel(f"many_{name}"), 1, 1024, [ctypes.c_int32(rounds), pointer(cycles), pointer(sink)], shared_bytes=4096)
        done = steps * (32 if name == "mma" else 1024)
        records.append({"what": name, "latency_cycles": latency, "per_cycle": done / float(cycles[0])})
    each = []
    for threads in (32, 1024):
        for _ in range(2):
            launch(kernel("loop"), 1, threads, [ctypes.c_int32(2048), pointer(cycles), pointer(sink)])
        each.append(float(cycles[0]) / 2048)
    records.append({"what": "loop", "latency_cycles": each[0], "per_cycle": 1024 / each[1]})
    return records


def _clear(buffer) -> None:
    buffer.fill(0)  # the chains need zeros


def main() -> None:
    import argparse
    import json
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write JSON here; else it is printed")
    arguments = parser.parse_args()
    text = json.dumps(run(lambda what, done, total: print(f"{done}/{total} {what}", flush=True)), indent=1)
    arguments.output.write_text(text + "\n") if arguments.output else print(text)


if __name__ == "__main__":
    main()
