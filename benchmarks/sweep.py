"""Machine points a second of a sweep on one trace, against one `simulate` call after another in the same minutes.

    python benchmarks/sweep.py [--repeat 1] [--jobs 2] > benchmarks/sweep.md

Each kind of sweep runs in a process of its own workers, warm (a first small sweep compiles and is thrown away); the peer plays the
same machines in this process and is timed before and after. What others do on the machine hits both; the ratio is what counts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import tempfile
import time
from pathlib import Path

import santa_sim
from santa_sim.explore.sweep_spec import load_sweep
from santa_sim.explore.sweep_work import Local, play_points, run_kernel
from santa_sim.simulator.replayer import Replayer

FIXED = {"workload": "llama8b_decode_32k", "method": "s2anta-prop", "S": 128}
GRIDS = {
    "requests in flight and address rate": {"gather.outstanding": [32, 64, 128, 256], "gather.addresses_per_cycle": [1, 2, 4]},
    "lanes": {"accumulate.lanes": [256, 1024, 2048], "score.mac_lanes": [512, 2048], "softmax.lanes": [16, 32]},
    "DRAM timing": {"dram.nCL": [30, 32, 34, 36], "dram.nRCD_read": [32, 34, 36]},
}  # fmt: skip


def machine(dram: str) -> dict:
    return {"base": "adder_hbm3", "name": f"adder on {dram}", "memory": {"dram": dram}}


def peer(sweep, trace, points: int) -> float:
    """Seconds a point of plain calls."""
    start = time.perf_counter()
    for point in range(points):
        santa_sim.simulate(trace, sweep.machine(0, point, FIXED["method"]))
    return (time.perf_counter() - start) / points


def swept(sweep, jobs: int, repeat: int) -> float:
    """Seconds a point of warm workers, chunks handed out as a sweep does, `repeat` times the grid."""
    with tempfile.TemporaryDirectory() as folder:
        crew = Local(Path(folder), jobs)
        made = crew.submit(run_kernel, sweep, 0, crew.folder).result()
        cut = -(-sweep.machines // jobs)
        chunks = [range(first, min(first + cut, sweep.machines)) for first in range(0, sweep.machines, cut)]
        for future in [crew.submit(play_points, sweep, 0, range(1), made) for _ in range(4 * jobs)]:
            future.result()
        start = time.perf_counter()
        for future in [crew.submit(play_points, sweep, 0, chunk, made) for chunk in chunks * repeat]:
            future.result()
        took = (time.perf_counter() - start) / (repeat * sweep.machines)
        crew.pool.shutdown()
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-points", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    trace = santa_sim.make_trace(**FIXED)
    rows, apart = [], []
    for dram, (what, grid), detail in itertools.product(("ddr5_4800", "hbm3"), GRIDS.items(), ("full", "steady")):
        if dram == "hbm3" and (detail == "steady" or what != "lanes"):
            continue
        sweep = load_sweep(**FIXED, hardware=machine(dram), grid=grid, dram_detail=detail)
        santa_sim.simulate(trace, machine(dram))
        before = peer(sweep, trace, options.peer_points)
        load = os.getloadavg()[0]
        point_s = swept(sweep, options.jobs, options.repeat)
        plain_s = (before + peer(sweep, trace, options.peer_points)) / 2
        rows.append((dram, what, detail, sweep.machines, 1 / point_s, 1 / plain_s, plain_s / point_s, load))
        if detail == "steady":
            ones = [sweep.machine(0, point, FIXED["method"]) for point in range(0, sweep.machines, 5)]
            full, fast = Replayer(trace), Replayer(trace, shortcut=True)
            for one in ones:
                a, b = full.result(one), fast.result(one)
                apart.append((what, 100 * (b.latency_s / a.latency_s - 1), 100 * (b.energy_j / a.energy_j - 1), b.memory["model"]))
    print("# Sweeps: machine points a second\n")
    print(f"`python benchmarks/sweep.py`, {platform.machine()}, {os.cpu_count()} cores, {_cpu()}, Python {platform.python_version()}; {options.jobs} worker "
          f"processes.\nTrace: {FIXED['workload']}, {FIXED['method']}, S = {FIXED['S']}: {len(trace):,} items; a point of DDR5 is 1.05 million bursts of 64 B, of HBM3 2.1 "
          "million of 32 B.\nThe peer is `santa_sim.simulate`, one call after another in one process, just before and just after.\n")
    print("| DRAM | what varies | detail | points | sweep, points/s | plain calls, points/s | ratio | load average |\n|---|---|---|---|---|---|---|---|")
    for dram, what, detail, points, fast, plain, ratio, load in rows:
        print(f"| {dram} | {what} | {detail} | {points} | {fast:.1f} | {plain:.2f} | {ratio:.1f} | {load:.1f} |")
    print("\nThe shortcut (`dram_detail: steady`) against the banks in full, DDR5:\n\n| what varies | latency | energy | played as |\n|---|---|---|---|")
    for what, latency, energy, model in apart:
        print(f"| {what} | {latency:+.3f} % | {energy:+.4f} % | {model} |")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


if __name__ == "__main__":
    main()
