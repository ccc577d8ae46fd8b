"""Decode steps, generations and speedups as text for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..report import si, without_unknown

if TYPE_CHECKING:
    import pandas as pd

    from .decode_step import DecodeStep
    from .generation import Generation


def print_step(step: DecodeStep) -> None:
    """Totals, a row a part, and notes."""
    console = Console(highlight=False)
    console.print(Text(_title(step), style="bold"))
    _totals(console, [
        ("latency", f"{si(step.latency_s, 's')} a step, {si(step.latency_per_token_s, 's')} a token"),
        ("energy", f"{si(step.energy_j, 'J')} a step, {si(step.energy_per_token_j, 'J')} a token{without_unknown(step.energy_unknown)}"),
        ("attention", f"{100 * step.attention_share:.1f} % of the time, {100 * step.attention_energy_share:.1f} % of the energy"),
        ("weights read", f"{si(step.weight_bytes, 'B')}, once for {step.batch} sequence{'s' if step.batch > 1 else ''}"),
        ("in memory", f"{si(step.memory_needed_bytes, 'B')} of weights and cache{_beyond(step)}"),
    ])  # fmt: skip
    table = _grid("", "runs", "latency", "share", "energy", "DRAM", "bound by")
    for part in step.parts:
        cost = part.cost
        table.add_row(part.name, str(part.runs), si(cost.latency_s, "s"), f"{100 * cost.latency_s / step.latency_s:.2f} %",
                      si(cost.energy_j, "J"), si(cost.traffic_bytes["total"], "B"), cost.bound_by)  # fmt: skip
    console.print(table)
    _notes(console, step.notes)


def print_generation(made: Generation) -> None:
    """Totals, and what they rest on."""
    console = Console(highlight=False)
    first, last = made.first, made.last
    console.print(Text(f"{_title(first)}, {made.tokens:,} tokens", style="bold"))
    _totals(console, [
        ("latency", f"{si(made.latency_s, 's')} in all, {si(made.latency_per_token_s, 's')} a token"),
        ("steps", f"{si(first.latency_s, 's')} at {first.n_k:,} keys, {si(last.latency_s, 's')} at {last.n_k:,}"),
        ("energy", f"{si(made.energy_j, 'J')} in all, {si(made.energy_per_token_j, 'J')} a token{without_unknown(first.energy_unknown)}"),
        ("attention", f"{100 * made.attention_share:.1f} % of the time, {100 * made.attention_energy_share:.1f} % of the energy"),
        ("in memory", f"{si(last.memory_needed_bytes, 'B')} of weights and cache at the end{_beyond(last)}"),
        ("simulated", f"{len(made.points)} of {made.tokens:,} lengths; expected error {100 * made.error_estimate:.2g} %"),
    ])  # fmt: skip
    _notes(console, last.notes)


def print_speedups(frame: pd.DataFrame) -> None:
    """A row an n_k and batch: the step before and after, what Amdahl allows."""
    console = Console(highlight=False, width=max(Console().width, 110))
    row = frame.iloc[0]
    budget = "" if row["samples"] is None else f", S = {row['samples']}"
    console.print(Text(f"{row['model']}, {row['weights']} weights: {row['method']}{budget} on {row['hardware']} over {row['baseline']} on "
                       f"{row['baseline_hardware']}", style="bold"))  # fmt: skip
    before, after = (without_unknown(row[name].split("; ") if row[name] else []) for name in ("baseline_energy_unknown", "energy_unknown"))
    mark = "*" if before or after else ""
    table = _grid("n_k", "batch", "before", "after", "speedup", "attention", "share", "at most", f"energy{mark}", f"at most{mark}",
                  "in memory")  # fmt: skip
    for r in frame.to_dict("records"):
        table.add_row(f"{r['n_k']:,}", str(r["batch"]), si(r["baseline_latency_s"], "s"), si(r["latency_s"], "s"), f"{r['speedup']:.3f}x",
                      f"{r['attention_speedup']:.2f}x", f"{100 * r['attention_share']:.1f} %", f"{r['amdahl_bound']:.3f}x",
                      *("-" if math.isnan(r[name]) else f"{r[name]:.3f}x" for name in ("energy_gain", "energy_bound")),
                      si(r["memory_needed_bytes"], "B") + ("" if r["fits"] and r["baseline_fits"] else "†"))  # fmt: skip
    console.print(table)
    console.print("attention: its own speedup, and its share of the time before; at most: if the method's attention cost nothing.")
    small = {row[f"{side}hardware"]: row[f"{side}memory_holds_bytes"] for side in ("", "baseline_") if not frame[f"{side}fits"].all()}
    for name, holds in small.items():
        console.print(f"† weights and cache are more than the {si(holds, 'B')} of {name}: costed as though it held them.")
    if math.isnan(row["energy_gain"]):
        console.print(f"* no gain: before{before or ' with all parts'}, after{after or ' with all parts'}.")
    elif mark:
        console.print(f"* both energies{after}.")


def _beyond(step: DecodeStep) -> str:
    return "" if step.fits else f": more than the {si(step.memory_holds_bytes, 'B')} of {step.hardware}, costed as though it held them"


def _title(step: DecodeStep) -> str:
    budget = f", S = {step.samples}" if isinstance(step.samples, int) else ", S by layer" if step.samples else ""
    return (f"{step.model}, {step.weights} weights, {step.method}{budget}, {step.score} scores, {step.n_k:,} keys, batch {step.batch}, "
            f"on {step.hardware}")  # fmt: skip


def _totals(console: Console, rows: list[tuple[str, str]]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in rows:
        table.add_row(f"[bold]{name}[/bold]", text)
    console.print(table, "")


def _grid(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _notes(console: Console, notes: tuple[str, ...]) -> None:
    console.print("", Text("notes", style="bold"))
    for note in notes:
        console.print(Padding(Text(f"· {note}"), (0, 0, 0, 1)))
