"""What banks, rows and channels do to attention's memory traffic, beside what bandwidth alone would say.

    python benchmarks/dram_effects.py [--write benchmarks/dram_effects.md]

Simulated numbers: they are the same on every computer. `replay` plays bare requests as fast as the memory takes them,
`simulate` a method's trace on a machine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import santa_sim
from santa_sim.simulator.compile import Region, Rows, addresses_of, addresses_of_rows
from santa_sim.simulator.dram import DramConfig, Report, replay
from santa_sim.simulator.kv_layout import LAYOUTS, place

ROW = 256  # bytes: 128 features of bf16
HEADS, TOKENS = 8, 32768  # as in Llama-3.1-8B at 32,768 keys: V of a layer is 64 MiB
ROWS = 1 << 15  # read in each replay: 8 MiB, an eighth of V
OUTSTANDING = (8, 32, 128, 512)
# How many bytes stay in one channel before the next one's turn. Within them bank groups take turns where they can.
INTERLEAVES = {
    "ddr5_4800": {"64 B": "ro ra ba co bg ch", "256 B (shipped)": None, "2 KiB": "ro ra ba co bg ch co:2 bg:1 co:2"},
    "hbm3": {"32 B": "ro ba co bg ch", "256 B (shipped)": None, "2 KiB": "ro ba co bg ch co:2 bg:1 co:3"},
}
WORKLOAD, SAMPLES = "llama8b_decode_8k", 1024


def rows_to_bursts(rows: np.ndarray, burst: int) -> np.ndarray:
    """Addresses of the bursts of 256-byte rows, int64 [n]."""
    return (rows.astype(np.int64)[:, None] * ROW + np.arange(0, ROW, burst)).ravel()


def patterns(burst: int) -> dict[str, np.ndarray]:
    """The same number of bytes as a stream, as rows in order of address, and as the same rows in random order."""
    rows = np.random.default_rng(1).choice(HEADS * TOKENS, ROWS, replace=False)
    each = {"stream": np.arange(ROWS), "gather, sorted rows": np.sort(rows), "gather, unsorted rows": rows}
    return {name: rows_to_bursts(numbers, burst) for name, numbers in each.items()}


def table(head: list[str], rows: Iterator[list[object]]) -> list[str]:
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines] + [""]


RESULT = ["time [µs]", "bandwidth alone says [µs]", "of peak", "row hits", "activates"]


def result(report: Report, nbytes: int) -> list[object]:
    return [f"{report.time_s * 1e6:.1f}", f"{nbytes / report.peak_bytes_per_s * 1e6:.1f}",
            f"{100 * report.bandwidth_bytes_per_s / report.peak_bytes_per_s:.0f} %", f"{100 * report.row_hit_rate:.0f} %",
            f"{report.activates:,}"]  # fmt: skip


def interleaves(config: DramConfig) -> Iterator[list[object]]:
    """Stream and gathers, under three channel interleaves."""
    for name, mapping in INTERLEAVES[config.name].items():
        memory = config if mapping is None else config.replace(address_mapping=mapping)
        for pattern, addresses in patterns(config.organization.burst_bytes).items():
            yield [pattern, name, *result(replay(addresses, False, memory), ROWS * ROW)]
    deeper = config.replace(policy={"read_queue": 256})
    for pattern, addresses in patterns(config.organization.burst_bytes).items():
        yield [pattern, "256 B, read_queue 256", *result(replay(addresses, False, deeper), ROWS * ROW)]


def outstanding(config: DramConfig) -> Iterator[list[object]]:
    """Share of peak at a number of bursts in flight."""
    for pattern, addresses in patterns(config.organization.burst_bytes).items():
        reports = [replay(addresses, False, config, outstanding=number) for number in OUTSTANDING]
        yield [pattern, *(f"{100 * report.bandwidth_bytes_per_s / report.peak_bytes_per_s:.0f} %" for report in reports), "100 %"]


def layout_requests(layout: str, burst: int) -> dict[str, np.ndarray]:
    """K of one head after another in tiles of 256 keys, and 2,048 rows of V of one head after another, in order."""
    rng = np.random.default_rng(2)
    token, tiles = HEADS * ROW, [(head, first) for head in range(HEADS) for first in range(0, TOKENS, 256)]
    k = [[(0, "k", first * token + head * ROW, 256 * ROW, ROW, token, False)] for head, first in tiles]
    v = [("v", head * ROW, token, ROW, np.sort(rng.choice(TOKENS, 2048, replace=False))) for head in range(HEADS)]
    keys = [(0, 0, head, 0) for head, _ in tiles]
    k, _ = place(layout, HEADS, [TOKENS], keys, k, [None] * len(k))
    _, v = place(layout, HEADS, [TOKENS], [(0, 0, head, 0) for head in range(HEADS)], [[]] * HEADS, v)
    regions = [Region("k_read", first, nbytes, piece, stride) for entries in k for _, _, first, nbytes, piece, stride, _ in entries]
    base = HEADS * TOKENS * ROW  # V lies behind K
    gathers = [Rows("v_read", base + first, stride, row, rows) for _, first, stride, row, rows in v]
    return {"K stream": addresses_of(regions, burst)[0], "V gather": np.concatenate([addresses_of_rows(g, burst)[0] for g in gathers])}


def layouts(config: DramConfig) -> Iterator[list[object]]:
    for layout in LAYOUTS:
        burst = config.organization.burst_bytes
        for what, addresses in layout_requests(layout, burst).items():
            yield [what, layout, *result(replay(addresses, False, config), len(addresses) * burst)]


def two_streams() -> Iterator[list[object]]:
    """Tiles of K and V of one head in turn on HBM3, V behind 16 MiB of K and so much more."""
    tiles = np.arange(0, 8 << 20, 65536)[:, None] + np.arange(0, 65536, 32)
    for shift in (0, 128 << 10, 256 << 10):
        addresses = np.stack([tiles, tiles + (16 << 20) + shift], axis=1).ravel()
        yield [f"{shift >> 10} KiB", *result(replay(addresses, False, "hbm3"), len(addresses) * 32)]


def run(trace: santa_sim.Trace, machine: str, **changes: object) -> list[object]:
    played = santa_sim.simulate(trace, {"base": machine, **changes})
    memory, traffic = played.memory, played.traffic_bytes["total"]
    peak = memory["peak_bandwidth_bytes_per_s"]
    return [f"{played.latency_s * 1e6:.1f}", f"{traffic / peak * 1e6:.1f}",
            f"{100 * memory['achieved_bandwidth_bytes_per_s'] / peak:.0f} %", f"{100 * memory['row_hit_rate']:.0f} %",
            f"{memory['activates']:,}"]  # fmt: skip


def shuffled(trace: santa_sim.Trace) -> santa_sim.Trace:
    """The trace with the rows of each gather in random order."""
    rng = np.random.default_rng(3)
    return santa_sim.Trace(trace.items.assign(gather_rows=[rng.permutation(rows) for rows in trace.items["gather_rows"]]), trace.meta)


def machines(dram: DramConfig, dense: santa_sim.Trace, sampled: santa_sim.Trace, folder: Path) -> Iterator[list[object]]:
    """Whole runs: layouts, order of rows, interleave, rows in flight."""
    memory = {"model": "banks", "dram": dram.name, "controller_latency_s": 50e-9}
    for layout in LAYOUTS:
        yield ["sdpa", layout, *run(dense, "mac_hbm3", memory=memory, kv_layout=layout, v_offset_bytes=None)]
    for layout in LAYOUTS:
        yield ["sampled", layout, *run(sampled, "adder_hbm3", memory=memory, kv_layout=layout)]
    yield ["sampled", "head-first, unsorted rows", *run(shuffled(sampled), "adder_hbm3", memory=memory)]
    for name, mapping in INTERLEAVES[dram.name].items():
        if mapping is not None:
            path = folder / f"{dram.name}_{name.replace(' ', '_')}.yaml"
            path.write_text(dram.replace(address_mapping=mapping).model_dump_json())  # JSON is YAML
            yield ["sampled", f"head-first, {name} interleave", *run(sampled, "adder_hbm3", memory={**memory, "dram": str(path)})]
    for number in OUTSTANDING:
        rows = max(1, number * dram.organization.burst_bytes // ROW)
        gather = {"outstanding": rows}
        yield ["sampled", f"head-first, {rows} row{'s' * (rows > 1)} in flight", *run(sampled, "adder_hbm3", memory=memory, gather=gather)]


def page() -> str:
    lines = ["# What banks, rows and channels do to attention's memory traffic", "",
             "Written by `benchmarks/dram_effects.py`; docs/dram.md explains it. \"Bandwidth alone says\": bytes over peak.", ""]  # fmt: skip
    dense = santa_sim.make_trace(WORKLOAD, "sdpa")
    sampled = santa_sim.make_trace(WORKLOAD, "s2anta-sys", SAMPLES)
    for name in INTERLEAVES:
        config = santa_sim.load_dram(name)
        lines += [f"## {name}: {config.description}", ""]
        lines += [f"Replay of {ROWS:,} rows of {ROW} bytes out of {HEADS * TOKENS:,}, saturated, by channel interleave:", ""]
        lines += table(["pattern", "interleave", *RESULT], interleaves(config))
        lines += [f"Replay, share of peak with so many bursts of {config.organization.burst_bytes} bytes in flight:", ""]
        lines += table(["pattern", *map(str, OUTSTANDING), "bandwidth alone says"], outstanding(config))
        lines += [f"Replay by layout: K of {HEADS} heads, {TOKENS:,} keys, one after another; 2,048 sorted rows of V of each:", ""]
        lines += table(["what", "layout", *RESULT], layouts(config))
        lines += [f"Simulated, {WORKLOAD}: sdpa on mac_hbm3, s2anta-sys with S = {SAMPLES:,} (\"sampled\") on adder_hbm3, V right behind K, "
                  "with this memory:", ""]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            lines += table(["method", "variant", *RESULT], machines(config, dense, sampled, Path(folder)))
    lines += ["## K and V in turn on HBM3", "", "Replay of two streams, 64 KiB of each in turn, V 16 MiB behind K and further:", ""]
    lines += table(["further", *RESULT], two_streams())
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the page there")
    arguments = parser.parse_args()
    text = page()
    print(text)
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")
