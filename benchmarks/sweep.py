"""Machine points of a sweep on one trace, a CPU second, against one `simulate` call after another in the same process.

    python benchmarks/sweep.py [--peer-points 2] > benchmarks/sweep.md
    python benchmarks/sweep.py --whole       whole sweeps instead: two workers in wall time, memory at 100 and 1,000 points

CPU seconds of one process: a sweep's workers share nothing but the trace, so two workers on two idle cores do twice as many points
a second. What else runs on the machine slows both sides; the ratio is what counts.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import platform
import resource
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


def whole_sweep(arguments: dict, jobs: int | None) -> tuple[int, float, float, float, float]:
    """Points, wall and CPU seconds, peak memory of this process and of the largest of its workers  [MB]."""
    start, before = time.perf_counter(), cpu_of_all()
    frame = santa_sim.sweep(**arguments, jobs=jobs, yes=True)
    if frame["failure"].notna().any():
        raise SystemExit(frame["failure"].dropna().iloc[0])
    own, workers = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return len(frame), time.perf_counter() - start, cpu_of_all() - before, own, workers


def cpu_of_all() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def apart(arguments: dict, jobs: int | None) -> tuple[int, float, float, float, float]:
    """`whole_sweep` in a process of its own, whose peak of memory nothing before it has raised."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(whole_sweep, arguments, jobs).result()


def whole_sweeps() -> None:
    print("| sweep | workers | points | wall s | CPU s | load average |\n|---|---|---|---|---|---|")
    rates = []
    for dram, detail in (("ddr5_4800", "full"), ("hbm3", "full"), ("ddr5_4800", "steady")):
        arguments = {**FIXED, "hardware": machine(dram), "dram_detail": detail}
        apart({**arguments, "grid": {"gather.outstanding": [64, 128]}}, 2)  # compiles what isn't in the cache
        walls = []
        for repeats in (4, 16):
            lanes = [256 * n for n in range(1, 1 + repeats)]
            grid = {"gather.outstanding": [32, 64, 128, 256], "accumulate.lanes": lanes, "score.mac_lanes": [1024, 2048]}
            points, wall, cpu, _, _ = apart({**arguments, "grid": grid}, 2)
            walls.append((points, wall))
            print(f"| {dram}, {detail} | 2 | {points} | {wall:.1f} | {cpu:.1f} | {os.getloadavg()[0]:.1f} |", flush=True)
        (few, short), (many, long) = walls
        rates.append(f"{dram}, {detail}: {(many - few) / (long - short):.1f}")
    print(f"\nPoints a second of wall time, both workers, beyond starting up and the kernel: {'; '.join(rates)}.\n")
    print("| points of a tiny workload | peak of a process that does all [MB] | wall s |\n|---|---|---|")
    tiny = {"name": "tiny", "model": "none", "kind": "decode", "heads": 2, "kv_heads": 2, "head_dim": 64, "n_k": [256], "model_layers": 1,
            "dtype": "bfloat16", "source": {"type": "gaussian"}}  # fmt: skip
    for points in (100, 1000):
        grid = {"lookahead_tiles": [1, 2, 3, 4, 5], "gather.outstanding": [16, 64], "accumulate.lanes": list(range(16, 16 + points // 10))}
        arguments = {"workload": tiny, "method": "s2anta-prop", "S": 16, "hardware": machine("ddr5_4800"), "grid": grid}
        done, wall, _, own, _ = apart(arguments, 1)
        print(f"| {done:,} | {own:.0f} | {wall:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-points", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="whole sweeps: two workers in wall time, memory")
    options = parser.parse_args()
    if options.whole:
        whole_sweeps()
        return
    trace = santa_sim.make_trace(**FIXED)
    rows, compared, replayers = [], [], {}
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
            compared.append((what, 100 * (fast.latency_s / full.latency_s - 1), 100 * (fast.energy_j / full.energy_j - 1), fast.memory["model"]))
    print("# Sweeps: machine points a CPU second\n")
    print(f"`python benchmarks/sweep.py`, {platform.machine()}, {os.cpu_count()} cores, {_cpu()}, Python {platform.python_version()}.")
    print(f"Trace: {FIXED['workload']}, {FIXED['method']}, S = {FIXED['S']}: {len(trace):,} items; a point of DDR5 is 1.05 million bursts of 64 B, one of HBM3")
    print("2.1 million of 32 B. One core; the peer is `santa_sim.simulate`, one call after another, just before and just after.\n")
    print("| DRAM | what varies | detail | points | sweep, points/s | plain calls, points/s | ratio | load average |\n|---|---|---|---|---|---|---|---|")
    for dram, what, detail, points, fast, plain, ratio, load in rows:
        print(f"| {dram} | {what} | {detail} | {points} | {fast:.2f} | {plain:.2f} | {ratio:.1f} | {load:.1f} |")
    print("\nThe shortcut against the banks in full, DDR5:\n\n| what varies | latency | energy | played as |\n|---|---|---|---|")
    for what, latency, energy, model in compared:
        print(f"| {what} | {latency:+.3f} % | {energy:+.4f} % | {model} |")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


if __name__ == "__main__":
    main()
