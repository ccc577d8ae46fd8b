"""DRAM bytes and times of each kernel of a decode step, from Nsight Compute."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from santa_sim.gpu.validate_counters import find_ncu, parse_report

# of one pass each with those before it: bytes and time
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")
CACHE_MODES = ("all", "none")  # caches flushed before every kernel; as the program left them, after a 512 MB buffer was updated


def collect(script: Path, cache: str, timeout_s: float = 240) -> dict:
    """Run `script --once` under ncu; the steps that it printed, each with the records of its kernels, or what went wrong."""
    ncu = find_ncu()
    if ncu is None:
        return {"error": "Nsight Compute (ncu) is not installed"}
    command = [ncu, "--csv", "--page", "raw", "--profile-from-start", "off", "--clock-control", "none", "--cache-control", cache,
               "--print-units", "base", "--metrics", ",".join(METRICS), sys.executable, str(script), "--once"]  # fmt: skip
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)
        steps = [json.loads(line.removeprefix("STEP ")) for line in done.stdout.splitlines() if line.startswith("STEP ")]
        records = iter(parse_report("\n".join(line for line in done.stdout.splitlines() if not line.startswith("STEP "))))
        for step in steps:
            step["kernels"] = [next(records) for _ in range(step.pop("launches"))]
    except (OSError, ValueError, StopIteration, subprocess.TimeoutExpired) as error:
        said = done.stderr[-300:] + done.stdout[-300:] if "done" in locals() else ""
        return {"error": f"{type(error).__name__}: {error} {said}"}
    return {"cache_control": cache, "steps": steps}


def run_once(facts: dict, call: Callable, launches: int, flush: torch.Tensor) -> None:
    """One profiled call of `launches` kernels; prints the step for `collect`."""
    call()
    flush.add_(1.0)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    print("STEP " + json.dumps({**facts, "launches": launches}), flush=True)


def table(results: Sequence[dict]) -> list[str]:
    """Markdown lines."""
    lines = ["| batch | n_k | step | kernel | caches | DRAM read, MB | written, MB | time, µs | read + written, TB/s |", "|---|---|---|---|---|---|---|---|---|"]
    for result in results:
        if "error" in result:
            lines.append(f"| | | {result['error'].splitlines()[0][:200]} | | | | | | |")
        for step in result.get("steps", ()):
            for kernel in step["kernels"]:
                read, write, time = (kernel[name] for name in ("dram_read_bytes", "dram_write_bytes", "duration_s"))
                lines.append(f"| {step['batch']} | {step['n_k']:,} | {step['kernel']} | `{kernel['kernel']}` | {result['cache_control']} | {read / 1e6:.2f} | "
                             f"{write / 1e6:.2f} | {time * 1e6:.1f} | {(read + write) / time / 1e12:.2f} |")  # fmt: skip
    return lines
