"""Figures beside the verdicts: measured and printed, in no mean and with no tolerance, since the model doesn't promise them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..hardware_gpu import Gpu
from .validate_cells import Cell
from .validate_judge import Verdict
from .validate_predict import predict_dense, predict_uncalibrated

LEAST_WRITTEN = 1e6  # bytes; smaller amounts are what the profiler itself and the driver write


def dense_times(peers: Sequence[dict], machine: Gpu) -> list[dict]:
    """`split-kv` as predicted beside the fastest dense peer of each shape. The peers' times enter no constant of it."""
    rows = []
    for n_k, batch, precision in sorted({(peer["n_k"], peer["batch"], peer["precision"]) for peer in peers if peer.get("graph")}):
        same = [peer for peer in peers if peer.get("graph") and (peer["n_k"], peer["batch"], peer["precision"]) == (n_k, batch, precision)]
        best = min(same, key=lambda peer: peer["graph"]["median_s"])
        predicted, measured = predict_dense(n_k, batch, precision, machine), best["graph"]["median_s"]
        rows.append({"n_k": n_k, "batch": batch, "precision": precision, "peer": best["name"], "predicted_s": predicted, "measured_s": measured,
                     "error": predicted / measured - 1})  # fmt: skip
    return rows


def uncalibrated_times(cells: Sequence[Cell], works: dict[str, dict], card: dict, time: Sequence[dict]) -> dict | None:
    """The rule for cards without a calibration on the measured cells: `machine`, `mean`, `errors` by cell's name; None for other cards."""
    guess = predict_uncalibrated(cells, works, card)
    if guess is None or not time:
        return None
    seconds = dict(zip((cell.name for cell in cells), guess[1], strict=True))
    errors = {row["name"]: seconds[row["name"]] / row["graph"]["measured_s"] - 1 for row in time}
    return {"machine": guess[0], "mean": math.fsum(map(abs, errors.values())) / len(errors), "errors": errors}


def figures(dense: Sequence[dict], uncalibrated: dict | None, bytes_: Sequence[dict]) -> list[Verdict]:
    """One line for each of these, and for bytes written; without a tolerance, so that they hold and break nothing."""
    found = []
    if dense:
        worst = max(dense, key=lambda row: abs(row["error"]))
        found.append(Verdict("beside: dense attention of others (split-kv), mean absolute error", None, math.fsum(abs(row["error"]) for row in dense) / len(dense), None,
                             f"worst of {len(dense)}: {100 * worst['error']:+.1f} %, {worst['n_k']:,} keys, batch {worst['batch']}, {worst['peer']}"))  # fmt: skip
    if uncalibrated:
        errors = uncalibrated["errors"]
        worst = max(errors, key=lambda name: abs(errors[name]))
        found.append(Verdict(f"beside: time, {uncalibrated['machine']} uncalibrated, mean absolute error", None, uncalibrated["mean"], None,
                             f"{sum(x < 0 for x in errors.values())} of {len(errors)} cells too fast; worst {100 * errors[worst]:+.1f} %, {worst}"))  # fmt: skip
    written = [row for row in bytes_ if row["cache_control"] == "all" and row.get("measured_write_bytes", 0) >= LEAST_WRITTEN]
    if written:
        off = {id(row): row["predicted_write_bytes"] / row["measured_write_bytes"] - 1 for row in written}
        worst = max(written, key=lambda row: abs(row["predicted_write_bytes"] - row["measured_write_bytes"]))
        found.append(Verdict("beside: DRAM bytes written, the launch that is off most", None, abs(off[id(worst)]), None,
                             f"{worst['name']}, {worst['kernel']}: {worst['predicted_write_bytes'] / 1e6:.1f} MB predicted, "
                             f"{worst['measured_write_bytes'] / 1e6:.1f} counted; --cache-control all"))  # fmt: skip
    return found
