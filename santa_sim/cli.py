"""The command line: santa-sim run | list | trace | simulate | dram."""

from __future__ import annotations

import functools
import importlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import click

from .errors import InputError, SimulationError

_SHOW_AFTER_S = 2.0


class _Progress:
    """A progress bar on standard error that appears once the work has taken two seconds, whatever it is doing then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timer = threading.Timer(_SHOW_AFTER_S, self._show)
        self._timer.daemon = True
        self._bar = self._task = None
        self._state = {"description": "starting", "completed": 0, "total": None}

    def __call__(self, what: str, done: int, total: int) -> None:
        with self._lock:
            # a step of one piece has no progress to show: the bar pulses
            self._state = {"description": what, "completed": done, "total": total if total > 1 else None}
            if self._bar is not None:
                self._bar.update(self._task, **self._state)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(**self._state)
            self._bar.start()

    def __enter__(self) -> _Progress:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()


class _Failure(click.ClickException):
    exit_code = 2


def _readable_errors(command: Callable) -> Callable:
    """Turn expected errors into one line on standard error and exit status 2."""

    @functools.wraps(command)
    def wrapped(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except (InputError, SimulationError, OSError) as error:
            raise _Failure(str(error)) from None
        except MemoryError as error:
            raise _Failure(f"not enough memory: {error}") from None

    return wrapped


def _writable(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuse a file that can't be written before anything is computed."""
    if value is not None:
        folder = Path(value).parent
        if not value or Path(value).is_dir():
            raise click.BadParameter(f"{value!r} is not a file name")
        if not folder.is_dir():
            raise click.BadParameter(f"{value!r}: the folder {str(folder)!r} does not exist")
        if not os.access(value if Path(value).exists() else folder, os.W_OK):
            raise click.BadParameter(f"{value!r} can't be written: no permission")
    return value


def _whole_or_list(_: click.Context, __: click.Parameter, value: str | None):
    """'128' -> 128, '64,128' -> (64, 128); anything else stays text, and `Spec` says what is wrong with it."""
    if value is None:
        return None
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a whole number, nor one per layer such as 64,128") from None
    return numbers if "," in value else numbers[0]


def _method_options(command: Callable) -> Callable:
    """The options that `run` and `trace` share."""
    from .methods.spec import ALLOCATIONS, METHODS, PRECISIONS, SAMPLERS, SCORES

    def names(options: tuple[str, ...]) -> str:
        return f"[{'|'.join(options)}]"  # `Spec` checks them: its errors name the nearest one

    options = [
        click.argument("workload"),
        click.option("--method", required=True, metavar=names(METHODS), help="Value stage."),
        click.option("--samples", "-S", "S", callback=_whole_or_list, metavar="S", help="Samples per query and head; or one per layer, as 64,128."),
        click.option("--k", type=int, help="Keys that top-k keeps."),
        click.option("--score", metavar=names(SCORES), default="exact", show_default=True, help="Score stage."),
        click.option("--B", "--draws", "B", type=int, help="Bernoulli draws per query feature."),
        click.option("--precision", metavar=names(PRECISIONS), help="Storage of Q, K and V.  [default: the workload's]"),
        click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draws."),
        click.option("--tensor-seed", type=int, default=0, show_default=True, help="Seed of synthetic tensors."),
        click.option("--tile", type=int, help="Keys per tile."),
        click.option("--allocation", metavar=names(ALLOCATIONS), default="largest-remainder", show_default=True, help="prop's tile budgets."),
        click.option("--sampler", metavar=names(SAMPLERS), default="scaled-weights", show_default=True, help="Form of systematic draws."),
        click.option("--value-format", metavar="Qm.n", help="Fixed-point format of V."),
        click.option("--kernel", metavar="[cpu|torch|gpu]", default="cpu", show_default=True),
    ]
    for option in reversed(options):
        command = option(command)
    return command


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON (SI units) instead of a table.")


# commands that live in modules of their own, imported when they are called
_ELSEWHERE: dict[str, str] = {}


class _Commands(click.Group):
    """The commands of this file and those of _ELSEWHERE."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*self.commands, *_ELSEWHERE]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _ELSEWHERE:
            return super().get_command(context, name)
        module, _, attribute = _ELSEWHERE[name].partition(":")
        return getattr(importlib.import_module(module), attribute)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="santa-sim")
def main() -> None:
    """What stochastic sparse attention costs on adder-centric and other machines."""


@main.command()
@_method_options
@click.option("--hardware", help="Machine: a shipped name or a .yaml path.  [default: mac_hbm3 for sdpa and topk, else adder_hbm3]")
@click.option("--output", "-o", callback=_writable, metavar="FILE", help="Also save the result as JSON.")
@_json_option
@_readable_errors
def run(workload, method, as_json, output, **arguments) -> None:
    """Run METHOD on WORKLOAD (a shipped name or a .yaml path) and simulate it.

    Example: santa-sim run llama8b_decode_32k --method s2anta-prop --samples 128
    """
    from . import api

    with _Progress() as progress:
        result = api.run(workload, method, progress=progress, **arguments)
    _print(result, as_json)
    if output:
        result.save(output)


@main.command()
@_method_options
@click.option("--output", "-o", required=True, callback=_writable, metavar="FILE", help="File to write.")
@click.option("--format", "form", metavar="[parquet|ramulator|dramsim3]", default="parquet", show_default=True,
              help="The trace of work, or a machine's memory requests as text of another simulator.")
@click.option("--hardware", help="Machine whose requests they are: its layout and bursts.  [default: as in `run`]")
@_json_option
@_readable_errors
def trace(workload, method, output, form, hardware, as_json, **arguments) -> None:
    """Run METHOD on WORKLOAD and write its trace, for `santa-sim simulate` or pandas, or its memory side for others.

    Example: santa-sim trace smollm2_decode_2k --method santa -S 64 --format ramulator -o requests.trace
    """
    from . import api, dram_cli
    from .trace import COUNTERS

    machine = dram_cli.export_machine(method, form, hardware)
    with _Progress() as progress:
        made = api.make_trace(workload, method, progress=progress, **arguments)
        if machine is not None:
            progress("writing requests", 0, 1)
            written = dram_cli.export_requests(made, machine, output, form)
    if machine is not None:
        words = "{file}: {requests:,} requests of {burst_bytes} bytes of {hardware}, K and V {kv_layout}"
        click.echo(json.dumps(written, indent=2) if as_json else words.format(**written))
        return
    made.save(output)
    totals = {name: made.total(name) for name in COUNTERS}
    if as_json:
        click.echo(json.dumps({"file": output, "items": len(made), "totals": totals, "meta": dict(made.meta)}, indent=2))
    else:
        click.echo(f"{output}: {len(made):,} work items")
        for name, total in totals.items():
            if total:
                click.echo(f"  {name:<26}{total:>18,}")


@main.command()
@click.argument("trace_file", metavar="TRACE", type=click.Path(dir_okay=False))
@click.option("--hardware", default="adder_hbm3", show_default=True, help="Machine: a shipped name or a .yaml path.")
@_json_option
@_readable_errors
def simulate(trace_file, hardware, as_json) -> None:
    """Play a saved TRACE on a machine."""
    from .simulator import simulate as play
    from .trace import Trace

    loaded = Trace.load(trace_file)
    with _Progress() as progress:
        result = play(loaded, hardware, progress=functools.partial(progress, "simulating"))
    _print(result, as_json)


@main.command()
@click.argument("trace_file", metavar="TRACE", type=click.Path())
@click.option("--config", required=True, metavar="NAME_OR_FILE", help="Memory: a shipped name, a .yaml or a DRAMsim3 .ini file.")
@click.option("--issue", metavar="[saturated|in-order|timed]", default="saturated", show_default=True,
              help="64 requests offered at a time, or one; timed: one, not before its cycle (DRAMsim3 traces).")
@click.option("--outstanding", type=int, help="Requests sent and not completed, at most.  [default: no limit]")
@click.option("--request-bytes", type=int, help="Bytes of each request.  [default: one burst]")
@_json_option
@_readable_errors
def dram(trace_file, config, issue, outstanding, request_bytes, as_json) -> None:
    """Play a TRACE of memory requests on a memory alone.

    TRACE is .npz with arrays address and write, or text: Ramulator's `LD 0x40`, `ST 0x40`, or DRAMsim3's
    `0x40 READ 17`.

    Example: santa-sim dram requests.trace --config hbm3 --outstanding 256
    """
    from . import dram_cli

    with _Progress() as progress:
        progress("playing requests", 0, 1)
        report = dram_cli.play_requests(trace_file, config, issue, outstanding, request_bytes)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else dram_cli.report_text(report))


@main.command("list")
@_json_option
@_readable_errors
def list_(as_json) -> None:
    """List workloads, machines, methods and score stages."""
    from .hardware import load_hardware
    from .methods.spec import METHODS, PRECISIONS, SCORES
    from .schema import shipped
    from .workload import load_workload

    workloads = {name: load_workload(name).description for name in shipped("santa_sim.workloads")}
    machines = {name: load_hardware(name).description for name in shipped("santa_sim.hwmodels")}
    if as_json:
        click.echo(json.dumps({"workloads": workloads, "hardware": machines, "methods": METHODS, "scores": SCORES, "precisions": PRECISIONS}, indent=2))
        return
    for title, entries in (("workloads", workloads), ("hardware", machines)):
        click.secho(title, bold=True)
        for name, description in entries.items():
            click.echo(f"  {name:<30}{description}")
    for title, names in (("methods", METHODS), ("score stages", SCORES), ("precisions", PRECISIONS)):
        click.secho(title, bold=True)
        click.echo("  " + "  ".join(names))


def _print(result, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
        return
    from .report import print_result

    print_result(result)


if __name__ == "__main__":
    main()
