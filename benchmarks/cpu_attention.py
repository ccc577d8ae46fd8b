"""S2ANTA-sys on the CPU against torch's dense attention on the same cache: one decode step of Llama-8B at 32,768 keys.

    python benchmarks/cpu_attention.py [--rounds 21] [--write benchmarks/cpu_attention.md]

Both run on two threads, in turn, in one process: three calls to settle, three timed, then the next one's turn. The peer is `scaled_dot_product_attention` with the four grouped heads
viewed as four query rows of their KV head (`enable_gqa` takes about twice as long and would flatter us), once on the
sequence-first cache that our kernel reads and once on a head-first copy, which suits torch best; the ratio is against the
faster of the two. Ours is the instrumented kernel from scores to output on prepared tensors; neither the trace's table nor
the check for NaN is in it. The floor is reading K once (`torch.sum` over its bytes as int64).
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import ml_dtypes
import numba
import numpy as np
import torch

from santa_sim.methods.kernel import Block
from santa_sim.methods.layer import prepare
from santa_sim.methods.spec import Spec

SETTLE, TIMED = 3, 3  # calls in a row: after another's turn its threads still spin, and one's own are asleep
H, H_KV, D, N_K, S, THREADS = 32, 8, 128, 32768, 128, 2


def ours(dtype: str, sampler: str, rng: np.random.Generator):
    """A closure that runs the kernel once."""
    storage = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}[dtype]
    q, k, v = (rng.standard_normal(shape, dtype=np.float32).astype(storage) for shape in ((1, H, D), (N_K, H_KV, D), (N_K, H_KV, D)))
    spec = Spec(method="s2anta-sys", samples=S, precision=dtype, sampler=sampler)
    layer = prepare(spec, q, k, v, 256)

    def run():
        seen = np.zeros((H_KV, H // H_KV, N_K), bool)
        Block(spec, layer, 0, 0, S, 256, np.arange(1), np.full(H // H_KV, N_K), 0, seen).run()

    return run


def peer(dtype: str, head_first: bool):
    """A closure that runs torch's dense attention once."""
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    q = torch.randn(1, H_KV, H // H_KV, D).to(kind)
    k, v = (torch.randn(1, N_K, H_KV, D).to(kind).transpose(1, 2) for _ in range(2))
    if head_first:
        k, v = k.contiguous(), v.contiguous()
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


def floor(dtype: str):
    """A closure that reads as many bytes as K has."""
    words = torch.zeros(N_K * H_KV * D * (4 if dtype == "fp32" else 2) // 8, dtype=torch.int64)
    return lambda: torch.sum(words)


def measure(rounds: int) -> list[dict]:
    """Medians, quartiles and round-by-round ratios per storage type."""
    rows = []
    for dtype in ("fp32", "bf16"):
        calls = {
            "S2ANTA-sys": ours(dtype, "scaled-thresholds", np.random.default_rng(0)),
            "SDPA, sequence-first": peer(dtype, False),
            "SDPA, head-first": peer(dtype, True),
            "read K once": floor(dtype),
        }
        times = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                for i in range(SETTLE + TIMED):
                    start = time.perf_counter()
                    call()
                    if i >= SETTLE:
                        times[name].append(time.perf_counter() - start)
        best = min(("SDPA, sequence-first", "SDPA, head-first"), key=lambda name: np.median(times[name]))
        for name in calls:
            ms = np.array(times[name]) * 1e3
            ratio = np.median(np.array(times[best]) / np.array(times[name]))
            rows.append({"storage": dtype, "what": name, "median_ms": np.median(ms), "q1_ms": np.quantile(ms, 0.25),
                         "q3_ms": np.quantile(ms, 0.75), "faster_than_best_sdpa": ratio})  # fmt: skip
    return rows


def cpu_name() -> str:
    """The processor's name and its vector extensions, as Linux gives them."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), platform.processor())
    return name + (", AVX-512" if "avx512f" in info else ", AVX2" if "avx2" in info else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    numba.set_num_threads(THREADS)
    rows = measure(arguments.rounds)
    lines = [
        "# S²ANTA-sys against torch's dense attention, CPU", "",
        f"One decode step, H = {H}, H_kv = {H_KV}, d = {D}, n_k = {N_K:,}, S = {S}, scaled thresholds; {THREADS} threads each, {arguments.rounds} rounds of {TIMED} in turn;",
        f"{cpu_name()}; torch {torch.__version__}, numba {numba.__version__}. Written by `benchmarks/cpu_attention.py`.", "",
        "| storage | what | median [ms] | quartiles [ms] | times as fast as the better SDPA |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [f"| {r['storage']} | {r['what']} | {r['median_ms']:.2f} | {r['q1_ms']:.2f} – {r['q3_ms']:.2f} | {r['faster_than_best_sdpa']:.2f} |" for r in rows]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
