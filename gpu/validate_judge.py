"""Verdicts: predicted against measured times and bytes, outputs, and measurements that can't be taken at their word."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

TIME_MEAN, TIME_WORST = 0.10, 0.20  # of the mean and the largest |predicted / measured - 1| over the grid
BYTES_STREAM, BYTES_GATHER = 0.01, 0.10  # of a launch that reads K (or all of K and V), and of one that gathers rows of V
# largest relative L2 distance of an output from float64's on the same rows: rounding to the storage type, and float32 sums
OUTPUT_TOLERANCE = {"bf16": 4e-3, "fp16": 1e-3}
# total variation between the stashed weights and float64's softmax; share of top-k's keys that agree
WEIGHT_TOLERANCE, ROW_AGREEMENT = 1e-4, 0.999
LARGEST_SPREAD = TIME_MEAN  # 10th to 90th percentile over the median, beyond which a difference of a tolerance is hidden


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One tolerance: what it is about, the largest value allowed, the value found (None: not measured), whether it holds.

    Without `allowed` it is a figure beside the verdicts, which isn't judged.
    """

    name: str
    allowed: float | None
    found: float | None
    holds: bool | None
    note: str = ""


def time_rows(cells: Sequence[dict], predicted: Sequence[dict], peak_bytes_per_s: float) -> list[dict]:
    """Predicted beside measured, as a graph and as called, with the flags of each measurement."""
    by_name = {record["name"]: record for record in predicted if "refused" not in record}
    rows = []
    for cell in cells:
        if cell.get("refused") or cell["name"] not in by_name:
            continue
        guess = by_name[cell["name"]]
        row = {name: cell[name] for name in ("name", "method", "n_k", "S", "batch", "precision")}
        for how in ("graph", "as_called"):
            seconds, timing = guess[how]["seconds"], cell[how]
            row[how] = {"predicted_s": seconds, "measured_s": timing["median_s"], "low_s": timing["low_s"], "high_s": timing["high_s"],
                        "error": seconds / timing["median_s"] - 1}  # fmt: skip
        row["host_s"] = cell["host_s"]
        least = sum(launch["dram_read_bytes"] for launch in guess["bytes"]["none"])
        row["flags"] = flags(cell["graph"], least, peak_bytes_per_s)
        if cell["host_s"] > row["graph"]["predicted_s"]:
            row["notes"] = [f"the host takes {cell['host_s'] * 1e6:.0f} µs to issue the call: as called, an idle GPU would wait for it"]
        rows.append(row)
    return rows


def flags(timing: dict, least_bytes: float, peak_bytes_per_s: float) -> list[str]:
    """Why a timing can't be taken at its word: faster than the memory can be, or too wide a spread."""
    found = []
    bandwidth = least_bytes / timing["median_s"]
    if bandwidth > peak_bytes_per_s:
        found.append(f"above peak: {least_bytes / 1e6:.1f} MB in {timing['median_s'] * 1e6:.1f} µs is {bandwidth / 1e12:.2f} TB/s, "
                     f"and the card's peak is {peak_bytes_per_s / 1e12:.2f}")  # fmt: skip
    spread = (timing["high_s"] - timing["low_s"]) / timing["median_s"]
    if spread > LARGEST_SPREAD:
        found.append(f"spread: the 10th and 90th percentiles are {100 * spread:.0f} % of the median apart, which hides a difference of {100 * LARGEST_SPREAD:.0f} %")
    return found


def judged_verdict(cells: Sequence[dict], rows: Sequence[dict], asked: Sequence[str] = ()) -> Verdict:
    """All cells of the grid are to be judged: measured, predicted, and not all of them with a spread that hides the tolerance.

    `asked`: names of the grid's cells, where the measurement holds them.
    """
    judged = {row["name"] for row in rows}
    left = [f"{cell['name']} (refused: {cell['refused']})" if cell.get("refused") else f"{cell['name']} (not predicted)"
            for cell in cells if cell["name"] not in judged]  # fmt: skip
    left += [f"{name} (not measured)" for name in asked if name not in {cell["name"] for cell in cells}]
    hidden = [row["name"] for row in rows if any(flag.startswith("spread") for flag in row["flags"])]
    note = f"{len(rows)} of {max(len(cells), len(asked))} cells judged"
    if not cells:
        return Verdict("cells that were not judged", 0, None, False, "the measurement holds no cell")
    if rows and len(hidden) == len(rows):
        return Verdict("cells that were not judged", 0, float(len(cells)), False, "every cell's spread hides the tolerance; measure on a quieter card")
    return Verdict("cells that were not judged", 0, float(len(left)), not left, "; ".join([note, *left]))


def time_verdicts(rows: Sequence[dict]) -> list[Verdict]:
    """The mean and the worst error of the graph replays; a measurement above the peak is an error of the run."""
    if not rows:
        return [Verdict("time, mean absolute error", TIME_MEAN, None, False, "no cell was both measured and predicted")]
    errors = [abs(row["graph"]["error"]) for row in rows]
    worst = max(rows, key=lambda row: abs(row["graph"]["error"]))
    mean = math.fsum(errors) / len(errors)
    impossible = [row["name"] for row in rows if any(flag.startswith("above peak") for flag in row["flags"])]
    return [
        Verdict("time, mean absolute error", TIME_MEAN, mean, mean <= TIME_MEAN, f"{len(rows)} cells, graph replay, cold cache"),
        Verdict("time, worst cell", TIME_WORST, max(errors), max(errors) <= TIME_WORST, worst["name"]),
        Verdict("measurements above the card's peak bandwidth", 0, float(len(impossible)), not impossible, "; ".join(impossible[:3])),
    ]


def byte_rows(counters: dict, predicted: Sequence[dict]) -> list[dict]:
    """Each launch's predicted DRAM bytes beside the counters', for both cache modes."""
    by_name = {record["name"]: record for record in predicted}
    rows = []
    for mode, collected in counters.items():
        for step in collected.get("steps", []):
            launches = by_name.get(step["name"], {}).get("bytes", {}).get(mode)
            if launches is None:
                continue
            if len(launches) != len(step["kernels"]):
                rows.append({"cache_control": mode, "name": step["name"], "launch": f"{len(launches)} predicted", "kernel": f"{len(step['kernels'])} seen",
                             "kind": "stream", "predicted_read_bytes": sum(guess["dram_read_bytes"] for guess in launches),
                             "measured_read_bytes": sum(kernel["dram_read_bytes"] for kernel in step["kernels"]), "error": None})  # fmt: skip
                continue
            for i, (guess, kernel) in enumerate(zip(launches, step["kernels"])):
                measured = kernel["dram_read_bytes"]
                rows.append({
                    "cache_control": mode, "name": step["name"], "launch": guess["launch"], "kernel": kernel["kernel"], "kind": "stream" if i == 0 else "gather",
                    "predicted_read_bytes": guess["dram_read_bytes"], "measured_read_bytes": measured,
                    "error": _error(guess["dram_read_bytes"], measured),
                    "predicted_write_bytes": guess["dram_write_bytes"], "measured_write_bytes": kernel["dram_write_bytes"],
                })  # fmt: skip
    return rows


def dense_rows(counters: dict, dense: dict[tuple, int]) -> list[dict]:
    """The dense peer's counted bytes beside q, K and V once: `dense` maps (n_k, batch, precision) to them."""
    rows = []
    for mode, collected in counters.items():
        for step in collected.get("steps", []):
            key = (step.get("n_k"), step.get("batch"), step.get("precision"))
            if step["name"].startswith("SDPA") and key in dense:
                first = max(kernel["dram_read_bytes"] for kernel in step["kernels"])
                rows.append({"cache_control": mode, "name": f"{step['name']}, n_k = {key[0]:,}, batch {key[1]}, {key[2]}", "launch": "dense", "kind": "dense",
                             "kernel": "the largest of its kernels", "predicted_read_bytes": dense[key], "measured_read_bytes": first,
                             "error": _error(dense[key], first)})  # fmt: skip
    return rows


def _error(predicted: float, measured: float) -> float | None:
    """predicted / measured - 1; None where nothing was counted and something predicted."""
    return predicted / measured - 1 if measured else 0.0 if not predicted else None


def byte_verdicts(rows: Sequence[dict], counters: dict | None) -> list[Verdict]:
    """The worst launch of each kind under `--cache-control all`, which is what the counters of each kernel alone mean.

    Counters that could not be read break nothing; counters that were asked for (not None) and hold nothing do.
    """
    empty = counters is not None
    counters = counters or {}
    why = "; ".join(sorted({collected["error"] for collected in counters.values() if collected.get("error")}))
    empty = empty and not why
    verdicts = []
    for kind, title, allowed in (("dense", "DRAM bytes read, dense (peer)", BYTES_STREAM), ("stream", "DRAM bytes read, pass over K", BYTES_STREAM),
                                 ("gather", "DRAM bytes read, second launch alone", BYTES_GATHER)):  # fmt: skip
        chosen = [row for row in rows if row["kind"] == kind and row["cache_control"] == "all"]
        if not chosen and empty and kind != "dense":
            verdicts.append(Verdict(title, allowed, None, False, "counters were asked for and hold no step of these cells"))
        elif not chosen:
            verdicts.append(Verdict(title, allowed, None, None, why or ("no dense peer ran" if empty else "no counters were read")))
        elif unlike := [row["name"] for row in chosen if row["error"] is None]:
            verdicts.append(Verdict(title, allowed, None, False, f"launches or bytes that can't be compared: {'; '.join(unlike[:3])}"))
        else:
            worst = max(chosen, key=lambda row: abs(row["error"]))
            found = abs(worst["error"])
            verdicts.append(Verdict(title, allowed, found, found <= allowed, f"worst of {len(chosen)}: {worst['name']}; --cache-control all"))
    return verdicts


def passed(check: dict, precision: str, needs: Sequence[str] = ()) -> bool:
    """Whether an output agrees with float64's, from its distances; a check that lacks one of `needs` doesn't pass."""
    limits = {"relative_l2": (0.0, OUTPUT_TOLERANCE[precision]), "total_variation": (0.0, WEIGHT_TOLERANCE), "row_agreement": (ROW_AGREEMENT, 1.0)}
    for name, (low, high) in limits.items():
        found = check.get(name)
        if name in check or name == "relative_l2" or name in needs:
            if isinstance(found, bool) or not isinstance(found, int | float) or not low <= found <= high:
                return False
    return True


def _needs(method: str) -> tuple[str, ...]:
    """What a check of a method's output holds besides relative_l2."""
    return ("row_agreement",) if method == "topk" else () if method in ("sdpa", "s2anta-flash") else ("total_variation",)


def output_verdict(cells: Sequence[dict]) -> Verdict:
    """How many outputs are off float64's, judged from the distances that were measured; one that wasn't checked counts as wrong."""
    title, measured = "outputs that differ from float64", [cell for cell in cells if not cell.get("refused")]
    if not measured:
        return Verdict(title, 0, None, False, "no output was checked")
    unchecked = [f"{cell['name']} (not checked)" for cell in measured if not cell.get("check")]
    wrong = [cell["name"] for cell in measured if cell.get("check") and not passed(cell["check"], cell["precision"], _needs(cell["method"]))]
    if wrong or unchecked:
        return Verdict(title, 0, float(len(wrong) + len(unchecked)), False, "; ".join((wrong + unchecked)[:3]))
    return Verdict(title, 0, 0.0, True, f"{len(measured)} outputs, worst relative L2 {max(cell['check']['relative_l2'] for cell in measured):.1e}")


def failed(verdicts: Sequence[Verdict]) -> bool:
    """Whether a tolerance is broken; what wasn't measured breaks none."""
    return any(verdict.holds is False for verdict in verdicts)


def speed_ups(cells: Sequence[dict], peers: Sequence[dict]) -> list[dict]:
    """Each cell against the fastest dense peer on the same inputs; `distinct` where their spreads don't overlap."""
    rows = []
    for cell in cells:
        same = [peer for peer in peers if peer.get("graph") and all(peer[name] == cell[name] for name in ("n_k", "batch", "precision"))]
        if not cell.get("graph") or not same:
            continue
        best = min(same, key=lambda peer: peer["graph"]["median_s"])
        mine, theirs = cell["graph"], best["graph"]
        rows.append({"name": cell["name"], "peer": best["name"], "peer_s": theirs["median_s"], "measured_s": mine["median_s"],
                     "speed_up": theirs["median_s"] / mine["median_s"],
                     "distinct": mine["high_s"] < theirs["low_s"] or theirs["high_s"] < mine["low_s"]})  # fmt: skip
    return rows
