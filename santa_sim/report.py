"""A Result as text for people: SI prefixes, shares, and what it was bound by."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .simulator import Result
from .simulator.stalls import BUSY, words

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"), (1e-15, "f"))


def si(value: float, unit: str) -> str:
    """'87.8 µs' for 8.78e-5 and 's'."""
    if value == 0:
        return f"0 {unit}"
    for scale, prefix in _PREFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _table(title: str, columns: list[str], rows: list[tuple]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _shares(title: str, values: Mapping[str, float], unit: str) -> Table:
    total = sum(values.values()) or 1
    rows = [(name, si(value, unit), f"{100 * value / total:.1f} %") for name, value in values.items() if value]
    return _table(title, ["", unit, "share"], rows)


def _times(result: Result) -> Table:
    """Shares of the latency: what each unit works, and the two causes that it waits for longest, from 1 % on."""
    rows = []
    for unit, share in sorted(result.utilization.items(), key=lambda entry: -entry[1]):
        causes = result.stalls_fs.get("requests" if unit == "dram" else unit, {})
        waits = sorted(((fs / sum(causes.values()), cause) for cause, fs in causes.items() if cause != BUSY and fs), reverse=True)[:2]
        texts = [f"{words(cause).removeprefix('waiting for ')} {100 * part:.1f} %" for part, cause in waits if part >= 0.01]
        if unit == "dram" and texts:  # it waits for nothing itself: these are the waits of what is handed over to it
            texts[0] = f"the next request, meanwhile: {texts[0]}"
        if share > 0:
            rows.append((unit, f"{100 * share:.1f} %", ", ".join(texts)))
    table = _table("time", ["", "busy", "waits for"], rows)
    table.columns[2].justify = "left"
    return table


def without_unknown(unknown: list[str]) -> str:
    """' without DRAM, leakage (not known)' for the parts of the energy that nobody has a figure for."""
    dram = [part for part in unknown if part.startswith("dram_")]
    names = ["DRAM"] if len(dram) == 4 else [f"DRAM {part.removeprefix('dram_')}" for part in dram]
    names += [part for part in unknown if part not in dram]
    return f" without {', '.join(names)} (not known)" if names else ""


def _area(result: Result) -> list[tuple[str, str]]:
    """The line with the area, if the machine has one."""
    if result.area_m2 is None:
        return []
    node = f", {result.played[1].technology.node_nm:g} nm" if result.played else ""
    sram = " and SRAM" if result.area_breakdown_m2.get("sram") else ""
    return [("area", f"{result.area_m2 * 1e6:.4g} mm²  (lanes{sram}{node})")]


def render(result: Result) -> RenderableType:
    """The whole result as rich text."""
    what = [result.workload or "trace", result.method]
    if result.samples is not None:
        drawn = result.samples_drawn
        what.append(f"S = {result.samples}" + (f" ({drawn:g} drawn)" if drawn not in (None, result.samples) else ""))
    what += [f"k = {result.budget_k}"] if result.budget_k is not None else []
    what += [f"{result.score} scores" + (f", B = {result.budget_B}" if result.budget_B else "")]
    what += [result.precision, f"on {result.hardware}"]
    memory = result.memory
    head = [
        ("latency", f"{si(result.latency_s, 's')}  ({result.cycles:,} cycles, bound by {result.bound_by})"),
        ("energy", si(result.energy_j, "J") + without_unknown(result.energy_unknown)),
        ("DRAM traffic", f"{si(result.traffic_bytes['total'], 'B')}  ({si(result.useful_bytes['total'], 'B')} asked for)"),
        ("bandwidth", f"{si(memory['achieved_bandwidth_bytes_per_s'], 'B/s')} of {si(memory['peak_bandwidth_bytes_per_s'], 'B/s')}"),
        ("V rows read", f"{result.value_rows_unique_per_group:.1f} per KV head ({100 * result.value_row_fraction:.2f} % of n_k), "
                        f"{result.value_rows_unique_per_head:.1f} per query head"),
    ]  # fmt: skip
    if result.error:
        expected = result.error.get("expected_relative_l2")
        head.append(("output error", f"{100 * result.error['relative_l2']:.2f} % relative L2 against exact attention"
                     + (f" ({100 * expected:.2f} % expected)" if expected is not None else "")))  # fmt: skip
    head += _area(result)
    summary = Table(box=None, show_header=False, pad_edge=False)
    for name, text in head:
        summary.add_row(f"[bold]{name}[/bold]", text)
    operations = [(stage, ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in ops.items() if n)) for stage, ops in result.ops.items()]
    parts: list[RenderableType] = [
        Text(", ".join(what), style="bold"), "", summary, "",
        _shares("energy", result.energy_breakdown_j, "J"), "",
        _shares("DRAM traffic (whole bursts)", {n: b for n, b in result.traffic_bytes.items() if n != "total"}, "B"), "",
        _times(result), "",
        _table("operations", ["", ""], [(stage, text) for stage, text in operations if text]), "",
        Text("notes", style="bold"),
    ]  # fmt: skip
    parts += [Padding(Text(f"· {note}"), (0, 0, 0, 1)) for note in result.notes]
    return Group(*parts)


def print_result(result: Result) -> None:
    """Print `render(result)` on standard output."""
    Console(soft_wrap=False, highlight=False).print(render(result))
