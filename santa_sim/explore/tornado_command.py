"""santa-sim tornado."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

import click

from ..cli_parts import Progress, json_option, method_options, picture, readable_errors, writable
from ..errors import InputError, choose
from ..hardware import Hardware
from ..methods.spec import METHODS, Spec

if TYPE_CHECKING:
    import pandas as pd

    from ..simulator.result import Result

_QUANTITIES = ("energy", "area", "area-latency")


@click.command()
@method_options
@click.option("--hardware", help="Its machine: a shipped name or a .yaml path.  [default: as in `run`]")
@click.option("--over", default="sdpa", show_default=True, metavar=f"[{'|'.join(METHODS)}]", help="Method that it is compared with: with the same "
              "options if it is the same, else with exact scores. S and k go to the method that takes them.")  # fmt: skip
@click.option("--over-hardware", help="That method's machine.  [default: as in `run`]")
@click.option("--quantity", default="energy", show_default=True, metavar=f"[{'|'.join(_QUANTITIES)}]", help="What is compared.")
@click.option("--parts", metavar="PARTS", help="Parts that count, such as accumulate,normalize.  [default: all]")
@click.option("--output", "-o", callback=writable, metavar="FILE", help="Also write the table: .csv or .parquet.")
@click.option("--plot", callback=picture, metavar="FILE", help="Also draw it, as .png, .svg or .pdf.")
@json_option
@readable_errors
def command(workload, method, hardware, over, over_hardware, quantity, parts, output, plot, as_json, **arguments) -> None:
    """Say how sure it is that METHOD takes less energy (or area) than another: each input at both ends of its spread.

    Example: santa-sim tornado llama8b_decode_32k --method s2anta-prop -S 128 --over sdpa --plot tornado.png
    """
    from .. import api
    from ..simulator import simulate
    from . import tables
    from .kernels import DEFAULTS, Kernel
    from .tornado import plot_tornado, tornado

    choose("--quantity", quantity, _QUANTITIES)
    choose("--over", over, METHODS)
    if output:
        tables.check_format(output)
    machines = [_accelerator(api.machine_for(*which)) for which in ((method, hardware), (over, over_hardware))]
    if over == method and machines[0] == machines[1]:
        raise InputError(f"both are {method} on {machines[0].name}: give another --over, or another machine with --over-hardware")
    other = dict(Kernel.of(workload, {**arguments, "method": over, "score": "exact"}).arguments)
    own = dict(Kernel.of(workload, {**arguments, "method": method}).arguments)
    arguments |= {name: own[name] for name in ("S", "k", "allocation", "sampler") if own[name] == DEFAULTS[name] != other[name]}  # the other's alone
    Spec(method=over, samples=other["S"], k=other["k"])  # what is missing is said before anything runs
    if parts is not None:
        parts = [part.strip() for part in parts.split(",") if part.strip()]
        if not parts:
            raise InputError("--parts names no part: write some, such as --parts accumulate,normalize, or leave it out for all")
    with Progress() as progress:
        first = api.run(workload, method, hardware=machines[0], progress=progress, **arguments)
        if over == method:
            second = simulate(first.played[0], machines[1], progress=functools.partial(progress, "simulating"))
        else:
            second = api.run(workload, hardware=machines[1], progress=progress, **other)
        progress("moving inputs to their ends", 0, 1)
        frame = tornado(first, second, parts, quantity=quantity)
    title = f"{first.workload}: {_name(first)}\nover {_name(second)}"
    if output:
        tables.write(frame, output)
    if plot:
        plot_tornado(frame, title).savefig(plot)
    if as_json:
        known = {"first": _name(first), "second": _name(second), "quantity": quantity, "ratio": frame["ratio"][0], "unknown": frame.attrs["unknown"]}
        click.echo(json.dumps({"workload": first.workload, **known, "inputs": json.loads(tables.as_json(frame))}, indent=2))
    else:
        _show(frame, title, ", ".join(parts or ()))


def _accelerator(machine) -> Hardware:
    if not isinstance(machine, Hardware):
        raise InputError(f"{machine.name} is a GPU, and energies and areas of a GPU's parts are published by nobody: a tornado needs accelerators, "
                         f"such as mac_hbm3 and adder_hbm3")  # fmt: skip
    return machine


def _name(result: Result) -> str:
    budget = f", S = {result.samples}" if isinstance(result.samples, int) else ", S by layer" if result.samples else ""
    budget += f", k = {result.budget_k}" if result.budget_k is not None else ""
    return f"{result.method}{budget}{'' if result.score == 'exact' else f', {result.score} scores'} on {result.hardware}"


def _show(frame: pd.DataFrame, title: str, parts: str) -> None:
    """The ratio, a row an input, and what turns the conclusion."""
    from rich.console import Console
    from rich.table import Table

    from ..report import without_unknown

    console = Console(highlight=False, markup=False, width=max(Console().width, 110))
    console.print(title, style="bold")
    what = frame.attrs["quantity"].replace("-", " × ") + (f" of {parts}" if parts else "")
    console.print(f"{what}: {frame['ratio'][0]:.4g} of the other's{without_unknown(frame.attrs['unknown'])}\n")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("input")
    for column in ("low end", "high end", "ratio at low", "ratio at high", "winner"):
        table.add_column(column, justify="right", no_wrap=True)
    for bar in frame.itertuples():
        ends = ["", ""] if not bar.unit else [f"× {end:g}" if bar.unit == "×" else f"{end:g} {bar.unit}" for end in (bar.low, bar.high)]
        table.add_row(bar.input, *ends, f"{bar.ratio_low:.4g}", f"{bar.ratio_high:.4g}", "stays" if bar.survives else "CHANGES")
    console.print(table)
    turned = [bar.input for bar in frame.itertuples() if not bar.survives]
    console.print("\n" + (f"The winner changes with: {', '.join(turned)}." if turned else "The winner is the same at every end."))
