"""Energy of the value stage, top-k against SANTA at k = S = 128, from the simulator's own accounting of real runs: Llama-8B
shapes, one layer and token. First the value stage's additions and multiplications alone, which is what the paper counts; then
what the paper leaves out is added step by step: the arithmetic that picks the rows (exponentials, selection, sampling), SRAM
and DRAM of the rows of V (the run less the same run without its reads of V), and the whole layer with K."""

from __future__ import annotations

import dataclasses
import functools

from matplotlib.figure import Figure

from .. import api
from ..simulator import Result, simulate
from ..trace import Trace
from .items import Progress, published
from .plotting import COLOURS, dress
from .rows import Found, Row

ITEM = "energy"
BUDGET = 128
EXACT = 1e-9  # the accounting adds up whole operations: only float64's rounding is left
METHODS = ("topk", "santa")
MACHINES = {  # top-k multiplies in the value stage, SANTA doesn't
    "HBM3": {"topk": "mac_hbm3", "santa": "adder_hbm3"},
    "DDR4-3200": {method: {"base": base, "memory": {"dram": "ddr4_3200"}} for method, base in (("topk", "mac_hbm3"), ("santa", "adder_hbm3"))},
    "LPDDR4-3200": {method: {"base": base, "memory": {"dram": "lpddr4_3200"}} for method, base in (("topk", "mac_hbm3"), ("santa", "adder_hbm3"))},
}  # fmt: skip
MEMORY_NOTES = {
    "HBM3": "HBM2's energies stand in for HBM3's, which are not published; without background power",
    "DDR4-3200": "from the currents of a data sheet, background included, without I/O",
    "LPDDR4-3200": "from the currents of a data sheet, background included, without I/O; refresh not known",
}


@dataclasses.dataclass(frozen=True)
class Parts:
    """Energy of one run per element, k d or S d of each query head.

    Attributes
    ----------
    arithmetic, normalize, picking, sram, dram, layer : float  [J]
        The value stage's sums and products; the division by S; exponentials, selection and sampling; SRAM and DRAM of
        the rows of V; the whole layer.
    rows : float  [rows of V read per KV head]
    """

    arithmetic: float
    normalize: float
    picking: float
    sram: float
    dram: float
    layer: float
    rows: float


def without_values(trace: Trace) -> Trace:
    """The same trace with no row of V read."""
    items = trace.items.copy()
    gathers = (items["gather_buffer"] == "v").to_numpy()
    items.loc[gathers, "gather_buffer"] = ""
    items.loc[gathers, ["gather_first_byte", "gather_row_bytes", "gather_stride_bytes"]] = 0
    items["gather_rows"] = [[] if gone else rows for gone, rows in zip(gathers, items["gather_rows"])]
    return Trace(items, trace.meta)


def with_accumulator(trace: Trace, number_type: str) -> Trace:
    """The same trace with the value stage's sums in another type."""
    return Trace(trace.items, {**trace.meta, "value_types": {**trace.meta["value_types"], "accumulator": number_type}})


def parts(trace: Trace, hardware) -> Parts:
    """Play a trace on a machine, with and without its reads of V."""
    whole, rest = simulate(trace, hardware), simulate(without_values(trace), hardware)
    elements = BUDGET * trace.meta["head_dim"] * trace.meta["n_heads"]

    def of(result: Result, *names: str) -> float:
        return sum(result.energy_breakdown_j[name] for name in names) / elements

    def of_values(*names: str) -> float:
        return of(whole, *names) - of(rest, *names)

    return Parts(of(whole, "accumulate"), of(whole, "normalize"), of(whole, "softmax", "selection", "sampling"), of_values("sram"),
                 of_values("dram_activate", "dram_read", "dram_write", "dram_background"), whole.energy_j / elements,
                 whole.value_rows_unique_per_group)  # fmt: skip


def make(workload: str, method: str, precision: str, seed: int) -> Trace:
    """The kernel's trace of one method at k = S = BUDGET."""
    budget = {"k": BUDGET} if method == "topk" else {"S": BUDGET}
    return api.make_trace(workload, method, precision=precision, seed=seed, tensor_seed=seed, **budget)


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    workload = "llama8b_decode_4k" if fast else "llama8b_decode_8k"
    machines = ["HBM3"] if fast else list(MACHINES)
    cases = [("fp32", "fp32", "HBM3"), ("fp16", "fp16", "HBM3"), *(("fp16", "fp32", machine) for machine in machines)]
    traces, found = {}, {}
    for number, (precision, accumulator, machine) in enumerate(cases):
        for half, method in enumerate(METHODS):
            progress(f"{method}, {precision} into {accumulator}, {machine}", 2 * number + half, 2 * len(cases))
            if (method, precision) not in traces:
                traces[method, precision] = make(workload, method, precision, seed)
            trace = with_accumulator(traces[method, precision], accumulator)
            found[precision, accumulator, machine, method] = parts(trace, MACHINES[machine][method])
    rows = _arithmetic_rows(found)
    for precision, accumulator, machine in cases:
        if accumulator == "fp32":
            pair = [found[precision, accumulator, machine, method] for method in METHODS]
            rows += _factor_rows(f"{precision.upper()}, {machine}", *pair, workload, MEMORY_NOTES[machine], seed)
    shown = {machine: [found["fp16", "fp32", machine, method] for method in METHODS] for machine in machines}
    return Found(tuple(rows), {"parts": functools.partial(plot, shown)})


def _arithmetic_rows(found: dict) -> list[Row]:
    """What the paper counts: additions and multiplications of the value stage."""
    paper, rows = published()[ITEM], []
    for precision, accumulator in (("fp32", "fp32"), ("fp16", "fp16")):
        topk, santa = (found[precision, accumulator, "HBM3", method] for method in METHODS)
        costs = paper[precision]
        what = f"{precision.upper()}, {accumulator} sums"
        # the paper gives FP16's costs, and for FP32 also what they add up to
        rows += [
            Row(ITEM, f"{what}: top-k, per element", topk.arithmetic * 1e12, costs.get("topk"), costs["mult"] + costs["add"], EXACT, unit="pJ"),
            Row(ITEM, f"{what}: SANTA, per element", santa.arithmetic * 1e12, costs.get("santa"), costs["add"], EXACT, unit="pJ"),
            Row(ITEM, f"{what}: top-k over SANTA", topk.arithmetic / santa.arithmetic, costs.get("ratio"), (costs["mult"] + costs["add"]) / costs["add"],
                EXACT, note="published as about 5" if "ratio" in costs else "the paper gives the costs of FP16, not their ratio"),
            Row(ITEM, f"{what}: top-k over SANTA, division by S counted", topk.arithmetic / (santa.arithmetic + santa.normalize), costs.get("ratio"),
                note="one multiplication per output element; top-k's is in its softmax"),
        ]  # fmt: skip
    topk, santa = (found["fp16", "fp32", "HBM3", method] for method in METHODS)
    rows.append(Row(ITEM, "FP16, fp32 sums: top-k over SANTA", topk.arithmetic / santa.arithmetic,
                    note="sums as kernels keep them: products of float16 added up in float32 cost 1.1 + 0.9 against 0.9 pJ"))  # fmt: skip
    return rows


def _factor_rows(what: str, topk: Parts, santa: Parts, workload: str, memory: str, seed: int) -> list[Row]:
    """What is left of the factor, part by part."""

    def factor(*names: str) -> float:
        over, under = (sum(getattr(each, name) for name in names) for each in (topk, santa))
        return over / under

    sums = ("arithmetic", "normalize")
    statistics = {"workload": workload, "k_and_S": BUDGET, "seed": seed}
    rows = [
        Row(ITEM, f"{what}: top-k over SANTA, with exponentials, selection, sampling", factor(*sums, "picking"), statistics=statistics,
            note="SANTA needs the exponential of every key, top-k of the k that it keeps"),
        Row(ITEM, f"{what}: top-k over SANTA, with SRAM and DRAM of V's rows", factor(*sums, "sram", "dram"), statistics=statistics,
            note=f"rows read per KV head: top-k {topk.rows:.0f}, SANTA {santa.rows:.0f}, which draws some rows several times; {memory}"),
        Row(ITEM, f"{what}: the same, had SANTA read as many rows as top-k", same_rows(topk, santa), statistics=statistics,
            note="what the saved multiplications are worth by themselves once the rows' way from DRAM is counted"),
        Row(ITEM, f"{what}: share of arithmetic in SANTA's value stage then", 100 * arithmetic_share(santa), unit="%", statistics=statistics),
        Row(ITEM, f"{what}: top-k over SANTA, whole layer with K", factor("layer"), statistics=statistics, note=memory),
    ]  # fmt: skip
    return rows


def same_rows(topk: Parts, santa: Parts) -> float:
    """Top-k over SANTA in arithmetic, SRAM and DRAM, with top-k's SRAM and DRAM on both sides."""
    moved = topk.sram + topk.dram
    return (topk.arithmetic + topk.normalize + moved) / (santa.arithmetic + santa.normalize + moved)


def arithmetic_share(one: Parts) -> float:
    """Arithmetic over arithmetic, SRAM and DRAM of the value stage."""
    arithmetic = one.arithmetic + one.normalize
    return arithmetic / (arithmetic + one.sram + one.dram)


def plot(found: dict[str, list[Parts]]) -> Figure:
    """Value-stage energy per element of top-k and SANTA, part by part, on each machine."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    dress(axes)
    names = {"arithmetic": "arithmetic", "picking": "exponentials, selection, sampling", "sram": "SRAM of V's rows", "dram": "DRAM of V's rows"}
    bars = [(f"{label}\n{machine}", each) for machine, pair in found.items() for label, each in zip(("top-k", "SANTA"), pair)]
    bottom = [0.0] * len(bars)
    for i, (name, label) in enumerate(names.items()):
        heights = [1e12 * getattr(each, name) for _, each in bars]
        axes.bar(range(len(bars)), heights, bottom=bottom, color=COLOURS[1 + i], label=label, edgecolor="white", linewidth=0.5)
        bottom = [a + b for a, b in zip(bottom, heights)]
    axes.set_xticks(range(len(bars)), [label for label, _ in bars], fontsize="small")
    axes.set(ylabel="energy per element [pJ]", title=f"Value stage at k = S = {BUDGET}, FP16 rows, fp32 sums")
    axes.legend(frameon=False, fontsize="small")
    return figure
