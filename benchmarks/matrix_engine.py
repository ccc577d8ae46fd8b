"""A dense score and value stage on our MAC lanes beside SCALE-Sim, a simulator of systolic matrix engines.

SCALE-Sim 3 (Raj et al., ISPASS 2025; `pip install scalesim "numpy<2"`, no dependency of ours) needs an environment of its own:

    python benchmarks/matrix_engine.py --scalesim-python ENVIRONMENT/bin/python > benchmarks/matrix_engine.md

Both get the same multipliers, matrices and words a cycle from memory. Scores: the queries of a group stay in the array, keys
stream through it (weight-stationary, array d x queries). Values: the outputs stay, weights and values stream (output-
stationary, array queries x d).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from santa_sim import load_hardware, simulate
from santa_sim.trace import TraceWriter

TILE, WORD_BYTES = 64, 2  # keys of a tile, bf16
BUFFER_KIB = 16  # SCALE-Sim's words are bytes: half of it, which fills while the other is used, holds 64 keys of 128 words


@dataclasses.dataclass(frozen=True)
class Case:
    """A stage of attention: `queries` x d by d x n_k (scores), or queries x n_k by n_k x d (values); words a cycle of memory."""

    stage: str
    rows: int
    columns: int
    queries: int
    d: int
    n_k: int
    words_per_cycle: int

    @property
    def lanes(self) -> int:
        return self.rows * self.columns

    @property
    def mults(self) -> int:
        return self.queries * self.d * self.n_k


CASES = [
    *(Case("score", 128, 4, 4, 128, 8192, words) for words in (256, 128, 64)),
    *(Case("value", 4, 128, 4, 128, 8192, words) for words in (256, 128, 64)),
    Case("score", 64, 64, 64, 64, 8192, 64),
    Case("score", 64, 64, 4, 64, 8192, 64),  # four queries in an array of 64 columns, at a bandwidth that hides the idle ones
    Case("score", 64, 64, 4, 64, 8192, 1024),  # and at one that doesn't
]


# Ours


def our_cycles(case: Case) -> dict[str, float]:
    """Latency of the stage alone on MAC lanes, every other unit endless; and what the closed form says."""
    writer = TraceWriter()
    row = case.d * WORD_BYTES
    for tile in range(case.n_k // TILE):
        n = case.queries * case.d * TILE
        stream = [("k" if case.stage == "score" else "v", tile * TILE * row, TILE * row, TILE * row, TILE * row, False)]
        work = {f"{case.stage}_adds": n, f"{case.stage}_mults": n}
        writer.item(0, 0, 0, 0, tile, "score", work if case.stage == "score" else {}, stream if case.stage == "score" else [], None)
        if case.stage == "value":
            writer.item(0, 0, 0, 0, tile, "value", work, stream, None)
    writer.item(0, 0, 0, 0, -1, "output", {}, [], None)
    types = {"operand": "bf16", "accumulator": "fp32"}
    trace = writer.finish(
        {"method": "sdpa", "score": "exact", "kind": "decode", "precision": "bf16", "n_heads": case.queries, "n_kv_heads": 1,
         "head_dim": case.d, "n_q": [1], "n_k": [case.n_k], "layers": [0], "tile": TILE, "score_types": types,
         "value_types": types, "normalization": "multiply"}
    )  # fmt: skip
    clock, buffer = 10**9, {"tiles": 2, "tile_bytes": TILE * row}
    machine = load_hardware(
        {"base": "mac_hbm3_bandwidth", "clock_hz": clock, "k_buffer": buffer, "v_buffer": buffer, "score": {"mac_lanes": case.lanes},
         "accumulate": {"lanes": case.lanes},
         "memory": {"bandwidth_bytes_per_s": case.words_per_cycle * WORD_BYTES * clock, "latency_s": 0.0, "burst_bytes": 64}}
    )  # fmt: skip
    result = simulate(trace, machine)
    return {
        "cycles": result.latency_s * clock,
        "compute": case.mults / case.lanes,
        "memory": case.n_k * case.d / case.words_per_cycle,
        "first_tile": TILE * case.d / case.words_per_cycle,
    }


# SCALE-Sim's

_CONFIG = """[general]
run_name = run
[architecture_presets]
ArrayHeight: {rows}
ArrayWidth: {columns}
IfmapSramSzkB: {kib}
FilterSramSzkB: {kib}
OfmapSramSzkB: 4096
IfmapOffset: 0
FilterOffset: 100000000
OfmapOffset: 200000000
Dataflow: {dataflow}
Bandwidth: {words}
ReadRequestBuffer: 64
WriteRequestBuffer: 64
[layout]
IfmapCustomLayout: False
IfmapSRAMBankBandwidth: {words}
IfmapSRAMBankNum: 1
IfmapSRAMBankPort: 2
FilterCustomLayout: False
FilterSRAMBankBandwidth: {words}
FilterSRAMBankNum: 1
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: USER
UseRamulatorTrace: False
"""
_RUN = """
import sys, warnings
warnings.filterwarnings("ignore")
from scalesim.scale_sim import scalesim
scalesim(save_disk_space=True, verbose=False, config="run.cfg", topology="gemm.csv", layout="layout.csv",
         input_type_gemm=True).run_scale(top_path="out")
"""


def scalesim_cycles(case: Case, python: str) -> dict[str, float]:
    """What SCALE-Sim reports for the same matrices, in cycles: the first fill of its buffers (before its cycle 0), what follows, of
    that stalls; then the results' way to DRAM, which a fused attention machine doesn't have, apart."""
    score = case.stage == "score"
    m, n, k = (case.n_k, case.queries, case.d) if score else (case.queries, case.d, case.n_k)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = _CONFIG.format(rows=case.rows, columns=case.columns, kib=BUFFER_KIB, words=case.words_per_cycle, dataflow="ws" if score else "os")
        (root / "run.cfg").write_text(config)
        (root / "gemm.csv").write_text(f"Layer,M,N,K,\nstage,{m},{n},{k},\n")
        (root / "layout.csv").write_text("Layer\nstage" + ",1" * 20 + "\n")
        done = subprocess.run([python, "-c", _RUN], cwd=root, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"SCALE-Sim failed on {case}:\n{done.stderr[-2000:]}")
        compute, access = (_report(root / "out" / "run" / f"{name}_REPORT.csv") for name in ("COMPUTE", "DETAILED_ACCESS"))
    fill = -min(access["DRAM IFMAP Start Cycle"], access["DRAM Filter Start Cycle"])
    running = compute["Total Cycles"]
    load_and_skew = case.rows + case.columns - 2 + (case.rows if score else 0)
    return {
        "cycles": fill + running, "fill": fill, "running": running, "stalls": compute["Stall Cycles"], "load_and_skew": load_and_skew,
        "write_back": access["DRAM OFMAP Stop Cycle"] - running,
    }  # fmt: skip


def _report(path: Path) -> dict[str, float]:
    with path.open() as file:
        return {name: float(value) for name, value in next(csv.DictReader(file, skipinitialspace=True)).items() if name and value}


_TEXT = """# A score and a value stage beside SCALE-Sim

Written by `benchmarks/matrix_engine.py` (santa-sim {ours}, SCALE-Sim {theirs}, Python {python}). Cycle counts, the same on any
machine. The same multipliers, matrices and words a cycle from memory; K or V of bf16 in tiles of 64 keys, two of them in the buffer.
SCALE-Sim keeps a group's queries in the array for scores (weight-stationary) and the outputs for values (output-stationary).
"""
_READING = """
Term by term. Both wait for the first buffer, then take the longer of multiplications / multipliers and words / bandwidth (SCALE-Sim
says how much longer than the multiplications as stalls), so what is left is:

- the array's load and skew: queries enter row by row, operands in a staircase, R + (R + C - 2) cycles for scores and R + C - 2 for
  values. It is paid once per pass of the keys; our lanes have no pipeline fill. At 8,192 keys that is 1.5 to 3 %, at 32,768 below 1 %.
- the write-back of scores, which SCALE-Sim counts behind the end and an attention machine hands to softmax on the chip: apart.
- columns without a query. Four queries in 64 columns leave 60 idle: SCALE-Sim's array takes a key a cycle all the same, our 4,096
  lanes take sixteen. Where memory is slower than that it doesn't show (last row but one); where it isn't, ours is 16 times faster, and
  right only for an engine whose shape fits the group (128 x 4 above) or that works on several keys at a time. A machine with a
  fixed array has the `mac_lanes` that its shape can use.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scalesim-python", required=True, help="an interpreter that has scalesim")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    version = subprocess.run([arguments.scalesim_python, "-c", "from importlib import metadata; print(metadata.version('scalesim'))"],
                             capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    rows = []
    for case in CASES:
        rows.append(dataclasses.asdict(case) | {"ours": our_cycles(case), "scalesim": scalesim_cycles(case, arguments.scalesim_python)})
        print(case, file=sys.stderr)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(_TEXT.format(ours=metadata.version("santa-sim"), theirs=version, python=platform.python_version()))
    print("| stage | array | queries, d, n_k | words a cycle | ours: first tile | then the longer of multipliers, memory | in all "
          "| SCALE-Sim: first fill | load and skew of the array | keys | stalls | in all | ours / theirs | write-back, apart |")  # fmt: skip
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        ours, theirs = row["ours"], row["scalesim"]
        print(f"| {row['stage']} | {row['rows']} x {row['columns']} | {row['queries']}, {row['d']}, {row['n_k']:,} | {row['words_per_cycle']:,} "
              f"| {ours['first_tile']:,.0f} | {ours['compute']:,.0f}, {ours['memory']:,.0f} | {ours['cycles']:,.0f} "
              f"| {theirs['fill']:,.0f} | {theirs['load_and_skew']:,.0f} | {row['n_k']:,} | {theirs['stalls']:,.0f} | {theirs['cycles']:,.0f} "
              f"| {ours['cycles'] / theirs['cycles']:.3f} | {theirs['write_back']:,.0f} |")  # fmt: skip
    print(_READING.rstrip())


if __name__ == "__main__":
    main()
