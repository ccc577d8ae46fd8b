"""Machine points of a sweep on one trace, a CPU second, against one `simulate` call after another in the same process.

    python benchmarks/sweep.py [--peer-points 2] > benchmarks/sweep.md

CPU seconds of one process: a sweep's workers share nothing but the trace, so two workers on two idle cores do twice as many points
a second. What else runs on the machine slows both sides; the ratio is what counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import santa_sim
from santa_sim.explore.sweep_spec import load_sweep
from santa_sim.simulator.replayer import Replayer

FIXED = {"workload": "llama8b_decode_32k", "method": "s2anta-prop", "S": 128}
GRIDS = {
    "requests in flight": {"gather.outstanding": [32, 64, 128, 256]},
    "lanes": {"accumulate.lanes": [256, 2048], "score.mac_lanes": [1024, 2048]},
    "DRAM timing": {"dram.nCL": [32, 34, 36]},
}  # fmt: skip
RUNS = (("ddr5_4800", "requests in flight", "full"), ("ddr5_4800", "lanes", "full"), ("ddr5_4800", "DRAM timing", "full"),
        ("hbm3", "lanes", "full"), ("ddr5_4800", "requests in flight", "steady"), ("ddr5_4800", "lanes", "steady"))  # fmt: skip


def machine(dram: str) -> dict:
    return {"base": "adder_hbm3", "name": f"adder on {dram}", "memory": {"dram": dram}}


def cpu_s(work, points: int) -> float:
    """CPU seconds a point."""
    start = time.process_time()
    for point in range(points):
        work(point)
    return (time.process_time() - start) / points


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-points", type=int, default=2)
    options = parser.parse_args()
    trace = santa_sim.make_trace(**FIXED)
    rows, apart, replayers = [], [], {}
    for dram, what, detail in RUNS:
        sweep = load_sweep(**FIXED, hardware=machine(dram), grid=GRIDS[what], dram_detail=detail)

        def on(point: int, sweep=sweep):
            return sweep.machine(0, point, FIXED["method"])

        replayer = replayers.setdefault(detail, Replayer(trace, shortcut=detail == "steady"))
        replayer.result(on(0))  # compiles, plans and, for the shortcut, measures the DRAM
        santa_sim.simulate(trace, on(0))
        before = cpu_s(lambda point: santa_sim.simulate(trace, on(point)), options.peer_points)
        swept = cpu_s(lambda point: replayer.result(on(point)), sweep.machines)
        plain = (before + cpu_s(lambda point: santa_sim.simulate(trace, on(point)), options.peer_points)) / 2
        rows.append((dram, what, detail, sweep.machines, 1 / swept, 1 / plain, plain / swept, os.getloadavg()[0]))
        if detail == "steady":
            full = santa_sim.simulate(trace, on(0))
            fast = replayer.result(on(0))
            apart.append((what, 100 * (fast.latency_s / full.latency_s - 1), 100 * (fast.energy_j / full.energy_j - 1), fast.memory["model"]))
    print("# Sweeps: machine points a CPU second\n")
    print(f"`python benchmarks/sweep.py`, {platform.machine()}, {os.cpu_count()} cores, {_cpu()}, Python {platform.python_version()}.")
    print(f"Trace: {FIXED['workload']}, {FIXED['method']}, S = {FIXED['S']}: {len(trace):,} items; a point of DDR5 is 1.05 million bursts of 64 B, one of HBM3")
    print("2.1 million of 32 B. One core; the peer is `santa_sim.simulate`, one call after another, just before and just after.\n")
    print("| DRAM | what varies | detail | points | sweep, points/s | plain calls, points/s | ratio | load average |\n|---|---|---|---|---|---|---|---|")
    for dram, what, detail, points, fast, plain, ratio, load in rows:
        print(f"| {dram} | {what} | {detail} | {points} | {fast:.2f} | {plain:.2f} | {ratio:.1f} | {load:.1f} |")
    print("\nThe shortcut against the banks in full, DDR5:\n\n| what varies | latency | energy | played as |\n|---|---|---|---|")
    for what, latency, energy, model in apart:
        print(f"| {what} | {latency:+.3f} % | {energy:+.4f} % | {model} |")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


if __name__ == "__main__":
    main()
