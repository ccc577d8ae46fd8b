"""DRAM counters of each kernel through Nsight Compute: a child process that runs each cell once, and its report read.

The profiler's cache mode matters. `all`: it flushes and invalidates the caches before every kernel, so that the second
kernel of a step reads the first one's results from DRAM. `none`: the caches are as the program left them; we update a
512 MB buffer before each step, and the second kernel finds what the first one wrote in the second-level cache, if it fits.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from . import device, microbench, validate_peers
from .validate_cells import H_KV, TILE, Cell, D, H, make_inputs
from .validate_timing import Flush, launch, pointer

CACHE_MODES = ("all", "none")
METRICS = {
    "dram_read_bytes": "dram__bytes_read.sum", "dram_write_bytes": "dram__bytes_write.sum", "duration_s": "gpu__time_duration.sum",
    "instructions": "smsp__inst_executed.sum", "l2_read_sectors": "lts__t_sectors_op_read.sum", "l2_write_sectors": "lts__t_sectors_op_write.sum",
    "multiprocessor_cycles": "sm__cycles_elapsed.max", "registers": "launch__registers_per_thread",
    "warps_active": "sm__warps_active.avg.per_cycle_active", "resident_blocks": "launch__occupancy_limit_registers",
    "resident_blocks_shared": "launch__occupancy_limit_shared_mem",
}  # fmt: skip
FEW = ("dram_read_bytes", "dram_write_bytes", "duration_s")  # in one pass, so that nothing is replayed into the cache
_SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3, "second": 1.0,
          "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "inst": 1, "sector": 1, "cycle": 1}  # fmt: skip
PEER = "SDPA cuDNN"  # the dense kernels whose bytes are counted
MARK = "nothing"  # the micro-benchmarks' empty kernel
_TIMEOUT_S = 240


def find_ncu() -> str | None:
    """Path of Nsight Compute's command line, or None."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    return shutil.which("ncu") or shutil.which("ncu", path=str(home / "bin"))


def parse_report(text: str) -> list[dict]:
    """Records of kernels, in order, from what `ncu --csv --page raw` prints: `kernel` and METRICS in SI units.

    Raises
    ------
    InputError
        No table in the text: says what ncu printed instead.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = " ".join(line.strip() for line in lines if line.startswith("==")) or text.strip()
        raise InputError(f"Nsight Compute gave no counters: {said[:300] or 'it printed nothing'}")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))
    units, rows = (rows[0], rows[1:]) if rows and not rows[0]["ID"] else ({}, rows)
    records = []
    for row in rows:
        record: dict = {"kernel": row["Kernel Name"].split("(")[0].split("<")[0].removeprefix("void ")}
        for name, metric in METRICS.items():
            if row.get(metric) not in (None, "", "n/a"):
                record[name] = float(row[metric].replace(",", "")) * _SCALE.get(units.get(metric, ""), 1)
        records.append(record)
    return records


def collect(cells: Sequence[Cell], cache: str, ncu: str | None = None, few: bool = True, others: bool = False) -> dict:
    """Counters of each cell's kernels under one cache mode, from a child process under ncu.

    Returns {'cache_control', 'ncu', 'steps': [{..., 'kernels': [...]}]}, or with `error` in place of the steps.
    `others` adds micro-benchmarks and, where torch is, its dense attention.
    """
    ncu = find_ncu() if ncu is None else ncu
    result: dict = {"cache_control": cache, "ncu": ncu}
    if ncu is None:
        return {**result, "error": "Nsight Compute (ncu) is not installed or not on the PATH: bytes are predicted, not measured"}
    names = FEW if few else METRICS
    with tempfile.TemporaryDirectory() as folder:
        request, steps = Path(folder) / "cells.json", Path(folder) / "steps.json"
        request.write_text(json.dumps({"cells": [dataclasses.asdict(cell) for cell in cells], "cache": cache, "others": others}))
        command = [ncu, "--csv", "--page", "raw", "--target-processes", "application-only", "--profile-from-start", "off", "--clock-control", "none",
                   "--cache-control", cache, "--print-units", "base", "--metrics", ",".join(METRICS[name] for name in names),
                   sys.executable, "-m", "santa_sim.gpu.validate_counters", str(request), str(steps)]  # fmt: skip
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
            records = parse_report(done.stdout)
            result["steps"] = assign(json.loads(steps.read_text()), records)
        except (InputError, OSError, subprocess.TimeoutExpired, ValueError) as error:
            tail = done.stderr.strip()[-1500:] if "done" in locals() else ""
            return {**result, "error": f"{error} {tail}".strip()}
    return result


def assign(steps: list[dict], records: list[dict]) -> list[dict]:
    """Give each step its kernels: those up to the next one that does nothing, which the child launches after each step.

    Raises
    ------
    InputError
        The profiler saw another number of steps than ran.
    """
    kernels: list[list[dict]] = [[]]
    for record in records:
        if record["kernel"] == MARK:
            kernels.append([])
        else:
            kernels[-1].append(record)
    if len(kernels) - 1 != len(steps) or kernels[-1]:
        raise InputError(f"{len(steps)} steps ran and the profiler saw the ends of {len(kernels) - 1}")
    return [{**step, "kernels": found} for step, found in zip(steps, kernels)]


def run_child(request: Path, steps: Path) -> None:
    """Run each cell once between the profiler's marks, and write what ran."""
    from .kernel import decode, make_plan

    cupy = device.require_cupy()
    asked = json.loads(request.read_text())
    flush = Flush(microbench.kernel)
    sink = cupy.zeros(1, cupy.uint32)
    mark = functools.partial(launch, microbench.kernel(MARK), 1, 32, [pointer(sink)])
    mark()  # loads it before the profiler looks
    ran: list[dict] = []

    def profile(what: dict, call) -> None:
        call()  # compiles, and finds its pages
        cupy.cuda.Device().synchronize()
        if asked["cache"] == "none":
            flush()
            cupy.cuda.Device().synchronize()
        cupy.cuda.profiler.start()
        call()
        mark()
        cupy.cuda.Device().synchronize()
        cupy.cuda.profiler.stop()
        ran.append(what)

    shape, inputs = None, None
    for cell in (Cell(**values) for values in asked["cells"]):
        if shape != (cell.n_k, cell.batch, cell.precision):
            inputs = None
            shape, inputs = (cell.n_k, cell.batch, cell.precision), make_inputs(cell.n_k, cell.batch, cell.precision)
            if validate_peers.why_none() is None:
                peer = validate_peers.calls(inputs)[PEER]
                try:
                    peer()
                    profile({"method": PEER, "n_k": cell.n_k, "batch": cell.batch, "precision": cell.precision, "name": PEER}, peer)
                except RuntimeError:  # a shape that torch's back end refuses
                    pass
        try:
            plan = make_plan(cell.spec(), cell.batch, H, H_KV, D, cell.n_k, tile=TILE)
        except InputError:
            continue
        out = cupy.empty_like(inputs.q)
        call = functools.partial(decode, plan, inputs.q, inputs.k, inputs.v, out)
        profile({**dataclasses.asdict(cell), "name": cell.name}, call)
    if asked["others"]:
        micro_benchmarks(profile)
    steps.write_text(json.dumps(ran))


def micro_benchmarks(profile) -> None:
    """Bytes of plain reads, writes and gathers."""
    import ctypes

    cupy = device.require_cupy()
    buffer, sink = cupy.zeros(256 * 2**20 // 4, cupy.uint32), cupy.zeros(1, cupy.uint32)
    for size in (4 * 2**20, 64 * 2**20, 256 * 2**20):
        pieces = ctypes.c_int64(size // 16)
        for name in ("read_4", "read_once_4"):
            profile({"name": f"{name} {size}"}, functools.partial(launch, microbench.kernel(name), -(-size // 16384), 256,
                                                                  [pointer(buffer), pieces, pointer(sink)]))  # fmt: skip
        profile({"name": f"write_4 {size}"}, functools.partial(launch, microbench.kernel("write_4"), -(-size // 16384), 256, [pointer(buffer), pieces]))
    for row in microbench.ROW_BYTES:
        bits = (buffer.nbytes // row).bit_length() - 1
        for count in (4096, 65536):
            arguments = [pointer(buffer), ctypes.c_int32(bits), ctypes.c_int64(count), ctypes.c_int32(row // 16), pointer(sink)]
            profile({"name": f"gather_1 {count} rows of {row} B"},
                    functools.partial(launch, microbench.kernel("gather_1"), -(-count * row // 16 // 256), 256, arguments))  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run each cell once, for Nsight Compute.")
    parser.add_argument("request", type=Path)
    parser.add_argument("steps", type=Path)
    given = parser.parse_args()
    run_child(given.request, given.steps)
