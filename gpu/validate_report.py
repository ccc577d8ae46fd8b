"""The validation as Markdown: verdicts first, then every cell."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

from .validate_judge import OUTPUT_TOLERANCE, Verdict


def markdown(result: dict, verdicts: Sequence[Verdict], plots: Sequence[str] = ()) -> str:
    """The report of a judged run (`validate.judge_run`); `plots` are file names beside it."""
    raw = result["raw"]
    parts = [f"# GPU timing model against {raw['card']['name']}", _card(raw), "## Verdicts", _verdicts(verdicts)]
    parts += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in plots]
    parts += ["## Times", _times(result["time"], result["predicted"]), "## DRAM bytes", _bytes(result["bytes"], raw.get("counters", {})), "## Against dense attention",
              _peers(result["speed_ups"], raw), _dense(result["dense"]), "## Outputs", _outputs(raw["cells"]), "## Calibration", _calibration(raw.get("predicted_by") or result["machine"])]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(str(x) for x in row) + " |" for row in rows])


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def mb(size: float) -> str:
    return f"{size / 1e6:.3f}"


def _card(raw: dict) -> str:
    card, before, after, protocol = raw["card"], collections.defaultdict(lambda: "?", raw["before"]), raw.get("after", {}), raw["protocol"]
    if before.get("nvidia_smi"):
        state = (f"Driver {before['driver']}; SM clock {before['sm_clock_mhz']} MHz before and {after.get('sm_clock_mhz', '?')} after "
                 f"(most {before['largest_sm_clock_mhz']}), memory {before['memory_clock_mhz']} MHz; ECC {before['ecc']}; power "
                 f"{before['power_w']} W of {before['power_limit_w']}; {before['temperature_c']} °C; throttle reasons {before['throttle_reasons']}.")  # fmt: skip
    else:
        state = "nvidia-smi did not answer: clocks, ECC, power and temperature are not known."
    others = before["other_processes"] + [p for p in after.get("other_processes", []) if p not in before["other_processes"]]
    busy = ("**Other processes ran on it:** " + ", ".join(f"{p['program']} ({p['pid']})" for p in others) + "." if others else
            "No other process was seen on it.")  # fmt: skip
    return (f"{state} {busy}\n\nCUDA {card['cuda_driver_api']}, CuPy {card['cupy']}, Python {card['python']}, {card['date']}. H = 32, H_kv = 8, d = 128, Gaussian inputs. "
            f"{protocol['warm_up']} warm-up and {protocol['timed']} timed calls, a {protocol['flush_bytes'] >> 20} MB buffer updated in place before each, "
            f"CUDA events (Appendix Q of arXiv:2605.01910). {_made(raw)}")  # fmt: skip


def _made(raw: dict) -> str:
    """How the predictions were made."""
    by = raw.get("predicted_by")
    if by is None:
        return "Predictions use the micro-benchmarks of this run alone; no attention kernel was fitted."
    return (f"Predictions use the machine `{by['name']}`, given with `--machine` (its calibration: {by['calibration']['source']}); nothing that this run measured "
            "enters them, and no attention kernel was fitted.")  # fmt: skip


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    def number(name: str, value: float | None) -> str:
        if value is None:
            return "not measured"
        return f"{value:.0f}" if name.startswith(("measurements", "outputs", "cells")) else f"{100 * value:.2f} %"

    def word(v: Verdict) -> str:
        return "beside, not judged" if v.holds is None and v.found is not None else words[v.holds]

    words = {True: "holds", False: "**broken**", None: "not measured"}
    return table(("tolerance", "at most", "found", "", ""), [
        (v.name, "–" if v.allowed is None else number(v.name, v.allowed), number(v.name, v.found), word(v), v.note) for v in verdicts])  # fmt: skip


def _times(rows: Sequence[dict], predicted: Sequence[dict]) -> str:
    refused = [f"Not predicted: {record['name']}: {record['refused']}" for record in predicted if "refused" in record]
    if not rows:
        return "\n\n".join(["No cell was both measured and predicted.", *refused])
    lines = [(row["name"], us(row["graph"]["predicted_s"]), us(row["graph"]["measured_s"]),
              f"{us(row['graph']['low_s'])} … {us(row['graph']['high_s'])}", percent(row["graph"]["error"]), us(row["as_called"]["predicted_s"]),
              us(row["as_called"]["measured_s"]), us(row["host_s"]), "; ".join([*row["flags"]])) for row in rows]  # fmt: skip
    return (table(("cell", "predicted, µs", "measured, µs", "10 % … 90 %", "error", "as called, predicted", "as called, measured", "host, µs", "flags"), lines)
            + "\n\nPredicted and measured are of a graph replay; 'as called' is the same launches on a stream behind a long kernel. 'host' is what one call "
            "takes the host when the GPU is idle: shorter steps, called one by one, wait for the host, which the model doesn't describe."
            + "".join(f"\n\n{line}" for line in refused))  # fmt: skip


def _bytes(rows: Sequence[dict], counters: dict) -> str:
    missing = [f"`--cache-control {mode}`: {collected['error']}" for mode, collected in counters.items() if "error" in collected]
    if not rows:
        return "No DRAM counters. " + ("; ".join(missing) or "They were not asked for (`--no-counters`).")
    lines = [(row["cache_control"], row["name"], row["kernel"], mb(row["predicted_read_bytes"]), mb(row["measured_read_bytes"]), percent(row["error"]),
              mb(row["predicted_write_bytes"]) if "predicted_write_bytes" in row else "", mb(row["measured_write_bytes"]) if "measured_write_bytes" in row else "")
             for row in rows]  # fmt: skip
    text = table(("cache mode", "cell", "kernel", "read, predicted, MB", "read, counted, MB", "error", "written, predicted", "written, counted"), lines)
    return text + ("\n\nCounters are Nsight Compute's dram__bytes_read.sum and dram__bytes_write.sum. Mode `all`: the profiler flushes the caches before every kernel, so the "
                   "second kernel reads the first one's results from DRAM. Mode `none`: a 512 MB buffer was updated before each step, so what that buffer left in the cache "
                   "is written back during the first kernel, and the second finds what it needs in the cache if it fits. "
                   + ("; ".join(missing)))  # fmt: skip


def _peers(rows: Sequence[dict], raw: dict) -> str:
    if not rows:
        return raw.get("no_peers") or "No dense peer ran."
    lines = [(row["name"], us(row["measured_s"]), row["peer"], us(row["peer_s"]), f"{row['speed_up']:.2f}×" + ("" if row["distinct"] else " (spreads overlap)"))
             for row in rows]  # fmt: skip
    versions = ", ".join(f"{name} {version}" for name, version in (raw.get("peer_versions") or {}).items())
    without = "" if "flashinfer" in (raw.get("peer_versions") or {}) else " FlashInfer is not installed."
    return f"Graph replay, same inputs, fastest peer ({versions}).{without}\n\n" + table(("cell", "µs", "peer", "µs", "speed-up"), lines)


def _dense(rows: Sequence[dict]) -> str:
    if not rows:
        return ""
    lines = [(f"{row['n_k']:,}", row["batch"], row["precision"], row["peer"], us(row["predicted_s"]), us(row["measured_s"]), percent(row["error"])) for row in rows]
    return ("Dense attention as others build it (`split-kv`: bound by bandwidth, instructions not counted), predicted beside the fastest peer. Beside the verdicts: "
            "in no mean, and no time of a peer enters the model.\n\n"
            + table(("n_k", "batch", "type", "peer", "predicted, µs", "measured, µs", "error"), lines))  # fmt: skip


def _outputs(cells: Sequence[dict]) -> str:
    checks = [cell for cell in cells if cell.get("check")]
    worst = {}
    for cell in checks:
        key = (cell["method"], cell["precision"])
        check = {**cell["check"], "tolerance": OUTPUT_TOLERANCE[cell["precision"]], "name": cell["name"]}
        check["relative_l2"] = math.inf if check.get("relative_l2") is None else check["relative_l2"]
        if key not in worst or check["relative_l2"] > worst[key]["relative_l2"]:
            worst[key] = check
    lines = [(method, precision, f"{x['relative_l2']:.1e}", f"{x['tolerance']:.0e}", f"{x['total_variation']:.1e}" if "total_variation" in x else "",
              f"{100 * x['row_agreement']:.2f} %" if "row_agreement" in x else "", x["name"]) for (method, precision), x in worst.items()]  # fmt: skip
    refused = sorted({f"{cell['method']}: {cell['refused']}" for cell in cells if cell.get("refused")})
    return (table(("method", "type", "relative L2, worst", "allowed", "weights, total variation", "keys as float64's", "cell"), lines)
            + "\n\nAgainst float64 arithmetic on the same inputs and, for sampled methods, the rows that the counting build lists."
            + ("\n\nRefused: " + "; ".join(refused) if refused else ""))  # fmt: skip


def _calibration(machine: dict) -> str:
    c = machine["calibration"]
    launch = c["launch"]
    rows = [("clock", f"{c['clock_hz'] / 1e9:.3f} GHz"), ("launch, graph", f"{us(launch['graph_s'])} µs, each further {us(launch['graph_next_s'])}"),
            ("launch, stream", f"{us(launch['stream_s'])} µs, each further {us(launch['stream_next_s'])}"),
            ("blocks started", f"{launch['blocks_per_s'] / 1e9:.2f} per ns"), ("DRAM latency", f"{c['dram_latency_s'] * 1e9:.0f} ns"),
            ("L2 latency", f"{c['l2_latency_s'] * 1e9:.0f} ns"), ("L2 bandwidth", f"{c['l2_bandwidth_bytes_per_s'] / 1e12:.2f} TB/s"),
            ("atomic adds", f"one address {c['atomic_s'] * 1e9:.2f} ns, spread {c['atomics_per_s'] / 1e9:.0f} per ns")]  # fmt: skip
    curve = table(("read, MB", "clean, µs", "dirty, µs", "TB/s, clean"), [
        (size >> 20, us(seconds), us(dirty), f"{size / seconds / 1e12:.2f}") for size, seconds, dirty in
        zip(c["read"]["bytes"], c["read"]["seconds"], (c.get("read_dirty") or c["read"])["seconds"], strict=False)])  # fmt: skip
    return table(("", "measured"), rows) + "\n\n" + curve
