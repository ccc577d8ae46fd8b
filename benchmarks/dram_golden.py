"""The DRAM model against DRAMsim3's results on 38 combinations of memory, trace and issue mode, and its speed.

    python benchmarks/dram_golden.py GOLDEN_FOLDER [--write benchmarks] [--rounds 3] [--reference PROGRAM]

GOLDEN_FOLDER holds golden.csv, configs/ and make_traces.py. Two tables come out: policy `dramsim3`, which should
match, and policy `textbook`, which shows what the scheduler's choices are worth. Speed is requests over CPU seconds of
`replay`, the best of the rounds. PROGRAM plays the same trace on DRAMsim3's library, back to back with ours: it is
called as `PROGRAM CONFIG FOLDER TRACE WINDOW PER_CLOCK`, where TRACE holds int64 (address x 2 + write), and the last
line that it prints is `cycles done requests cpu_seconds`.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from santa_sim.simulator.dram import DramConfig, Report, load_dram, replay

COUNTS = ("cycles", "activates", "reads", "read_row_hits", "refreshes")
ENERGIES = {"activate": "act_energy_pj", "read": "read_energy_pj"}
# Why the textbook policy is more than 5 % off, from switching one choice at a time (see `depth_rows`).
DDR4, LOW = "DDR4_8Gb_x8_3200", "DDR4_8Gb_x8_3200_bank_group_low"
REASONS = {
    (DDR4, "stream"): "a row is 128 bursts of one bank group; 64 queued reads reach into the next group, 32 + 8 don't",
    (DDR4, "stream_and_gather"): "as the stream",
    (DDR4, "stream_with_stash_writes"): "as the stream",
    (LOW, "gather"): "64 queued reads keep more banks opening rows than 32 do",
    (LOW, "value_rows_by_token"): "the oldest first over all banks; DRAMsim3 takes banks in turn, 8 deep each",
    (LOW, "stream_with_stash_writes"): "writes turn the bus at watermarks of 48 and 16, not by bufferfuls of 32",
}


def load_traces(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The traces behind the golden results, by name."""
    spec = importlib.util.spec_from_file_location("golden_make_traces", folder / "make_traces.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.traces()


def timed(address: np.ndarray, write: np.ndarray, config: DramConfig, issue: str, rounds: int) -> tuple[Report, float]:
    """The report, and the CPU seconds of the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        report = replay(address, write, config, issue, drain=False)
        best = min(best, time.process_time() - start)
    return report, best


def reference_seconds(
    program: str, config: Path, address: np.ndarray, write: np.ndarray, issue: str, cycles: int
) -> float:
    """CPU seconds of DRAMsim3's library on the same trace; its cycles must be the golden ones."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.bin"
        (address * 2 + write).astype(np.int64).tofile(trace)
        window = ("64", "16") if issue == "saturated" else ("1", "1")
        out = subprocess.run(
            [program, config, folder, trace, *window], check=True, capture_output=True, text=True
        ).stdout
    got, _, _, seconds = out.strip().splitlines()[-1].split()
    if int(got) != cycles:
        raise SystemExit(f"{program} took {got} cycles on {config.name}, not {cycles}")
    return float(seconds)


def percent(ours: float, theirs: float) -> float:
    return 100 * (ours / theirs - 1) if theirs else 0.0 if ours == theirs else float("inf")


def within(row: dict[str, str], report: Report, config: DramConfig) -> bool:
    """Whether a row keeps the limits: 2 % of cycles, activates, hits and energies, refreshes within one each."""
    o = config.organization
    bursts, reads = int(row["bursts"]), int(row["reads"])
    difference = {name: abs(getattr(report, name) - int(row[name])) for name in COUNTS}
    return (
        difference["cycles"] <= 0.02 * int(row["cycles"])
        and difference["activates"] <= max(0.02 * int(row["activates"]), 0.002 * bursts)
        and difference["read_row_hits"] <= max(0.02 * int(row["read_row_hits"]), 0.005 * reads)
        and difference["refreshes"] <= o.ranks * o.buses
        and all(
            abs(percent(report.energy_j[kind] * 1e12, float(row[column]))) <= 2 for kind, column in ENERGIES.items()
        )
    )


def table(rows: list[dict[str, str]], folder: Path, traces: dict, policy: str, arguments: argparse.Namespace) -> str:
    """One policy's table, in Markdown."""
    lines, differences, requests, seconds, theirs, met = [], [], 0, 0.0, 0.0, 0
    for row in rows:
        address, write = traces[row["trace"]]
        path = folder / "configs" / f"{row['config']}.ini"
        config = load_dram(path)
        if policy == "textbook":
            config = config.replace(policy={"name": "textbook"})
        issue = row["issue"].replace("_", "-")
        report, took = timed(address, write, config, issue, arguments.rounds)
        requests, seconds = requests + len(address), seconds + took
        if policy == "dramsim3" and arguments.reference:
            theirs += reference_seconds(arguments.reference, path, address, write, issue, int(row["cycles"]))
        off = percent(report.cycles, int(row["cycles"]))
        differences.append(abs(off))
        met += within(row, report, config)
        cells = [f"{getattr(report, name):,} ({getattr(report, name) - int(row[name]):+,})" for name in COUNTS]
        energies = [
            f"{percent(report.energy_j[kind] * 1e12, float(row[column])):+.2f} %" for kind, column in ENERGIES.items()
        ]
        last = (
            f"{len(address) / took / 1e6:.1f}"
            if policy == "dramsim3"
            else REASONS[row["config"], row["trace"]]
            if abs(off) > 5
            else ""
        )
        lines.append(
            " | ".join(["", row["config"], row["trace"], issue, f"{off:+.2f} %", *cells, *energies, last, ""]).strip()
        )
    head = [
        "config",
        "trace",
        "issue",
        "cycles off",
        *(name.replace("_", " ") for name in COUNTS),
        "activate energy",
        "read energy",
    ]
    head.append("million requests/s" if policy == "dramsim3" else "why, beyond 5 %")
    text = [
        f"# DRAM, policy `{policy}`, against DRAMsim3",
        "",
        f"Written by `benchmarks/dram_golden.py` on {platform.processor() or platform.machine()}. Counts are ours, "
        "with the difference from DRAMsim3's (commit 2981759) in brackets; both end with the last completion, before "
        "buffered writes drain.",
        "",
        f"Cycles: {max(differences):.2f} % off at most, {statistics.median(differences):.2f} % in the median; {met} of "
        f"{len(rows)} rows within 2 % of cycles, activates, hits and energies.",
        "",
        f"Speed: {requests:,} requests in {seconds:.2f} CPU seconds, {requests / seconds / 1e6:.2f} million a second, "
        f"best of {arguments.rounds}.",
    ]
    if theirs:
        text.append(
            f"DRAMsim3's library, back to back, row by row: {theirs:.1f} CPU seconds, {requests / theirs / 1e6:.2f} "
            f"million a second: {theirs / seconds:.1f} times as long."
        )
    if policy == "textbook":
        text += ["", *depth_rows(folder, traces, rows)]
    return "\n".join([*text, "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, ""])


def depth_rows(folder: Path, traces: dict, rows: list[dict[str, str]]) -> list[str]:
    """What the choices behind the large differences do: cycles against the golden ones."""
    textbook, theirs = {"name": "textbook"}, {"name": "dramsim3"}
    variants = {
        "textbook": textbook,
        "textbook, 32 reads": {**textbook, "read_queue": 32},
        "textbook, 16 reads": {**textbook, "read_queue": 16},
        "dramsim3, 64 per bank": {**theirs, "bank_queue": 64},
        "dramsim3, 256 reads": {**theirs, "read_queue": 256},
    }
    out = [
        "How far the scheduler sees decides: cycles against DRAMsim3's, saturated.",
        "",
        f"| config | trace | {' | '.join(variants)} |",
    ]
    out.append(f"|{'---|' * (len(variants) + 2)}")
    for config_name, trace in REASONS:
        golden = next(
            int(r["cycles"]) for r in rows if (r["config"], r["trace"], r["issue"]) == (config_name, trace, "saturated")
        )
        base = load_dram(folder / "configs" / f"{config_name}.ini")
        cells = [
            f"{percent(replay(*traces[trace], base.replace(policy=policy), drain=False).cycles, golden):+.1f} %"
            for policy in variants.values()
        ]
        out.append(f"| {config_name} | {trace} | {' | '.join(cells)} |")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("golden", type=Path)
    parser.add_argument("--write", type=Path, help="folder for dram_golden_dramsim3.md and dram_golden_textbook.md")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reference", help="a program that plays a trace on DRAMsim3's library")
    arguments = parser.parse_args()
    with (arguments.golden / "golden.csv").open() as file:
        rows = list(csv.DictReader(file))
    traces = load_traces(arguments.golden)
    for policy in ("dramsim3", "textbook"):
        text = table(rows, arguments.golden, traces, policy, arguments)
        if arguments.write:
            (arguments.write / f"dram_golden_{policy}.md").write_text(text, encoding="utf-8")
        print(text)


if __name__ == "__main__":
    main()
