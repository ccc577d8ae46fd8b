"""The command line: santa-sim run | list | trace | simulate | dram."""

from __future__ import annotations

import functools
import importlib
import json

import click

from .cli_parts import Progress, json_option, method_options, readable_errors, timeline_option, writable
from .errors import InputError

# commands that live in modules of their own, imported when they are called
_ELSEWHERE: dict[str, str] = {
    "compare": "santa_sim.explore.command:compare",
    "sweep": "santa_sim.explore.command:sweep",
    "pareto": "santa_sim.explore.command:pareto",
    "roofline": "santa_sim.explore.command:roofline",
    "tornado": "santa_sim.explore.tornado_command:command",
    "decode-step": "santa_sim.explore.decode_step_command:command",
    "reproduce": "santa_sim.reproduce.command:command",
    "validate": "santa_sim.validate_command:validate",
}


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
@method_options
@click.option("--hardware", help="Machine: a shipped name or a .yaml path.  [default: mac_hbm3 for sdpa and topk, else adder_hbm3]")
@click.option("--output", "-o", callback=writable, metavar="FILE", help="Also save the result as JSON.")
@timeline_option
@json_option
@readable_errors
def run(workload, method, as_json, output, timeline, **arguments) -> None:
    """Run METHOD on WORKLOAD (a shipped name or a .yaml path) and simulate it.

    Example: santa-sim run llama8b_decode_32k --method s2anta-prop --samples 128
    """
    from . import api

    if timeline:
        _can_be_drawn(api.machine_for(method, arguments["hardware"]))
    with Progress() as progress:
        result = api.run(workload, method, progress=progress, **arguments)
    _print(result, as_json)
    if output:
        result.save(output)
    if timeline:
        result.timeline(timeline)


@main.command()
@method_options
@click.option("--output", "-o", required=True, callback=writable, metavar="FILE", help="File to write.")
@click.option("--format", "form", metavar="[parquet|ramulator|dramsim3]", default="parquet", show_default=True,
              help="The trace of work, or a machine's memory requests as text of another simulator.")
@click.option("--hardware", help="Machine whose requests they are: its layout and bursts.  [default: as in `run`]")
@json_option
@readable_errors
def trace(workload, method, output, form, hardware, as_json, **arguments) -> None:
    """Run METHOD on WORKLOAD and write its trace, for `santa-sim simulate` or pandas, or its memory side for others.

    Example: santa-sim trace smollm2_decode_2k --method santa -S 64 --format ramulator -o requests.trace
    """
    from . import api, dram_cli
    from .trace import COUNTERS

    machine = dram_cli.export_machine(method, form, hardware)
    with Progress() as progress:
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
@timeline_option
@json_option
@readable_errors
def simulate(trace_file, hardware, as_json, timeline) -> None:
    """Play a saved TRACE on a machine."""
    from .hardware import load_hardware
    from .simulator import simulate as play
    from .trace import Trace

    if timeline:
        _can_be_drawn(load_hardware(hardware))
    loaded = Trace.load(trace_file)
    with Progress() as progress:
        result = play(loaded, hardware, progress=functools.partial(progress, "simulating"))
    _print(result, as_json)
    if timeline:
        result.timeline(timeline)


@main.command()
@click.argument("trace_file", metavar="TRACE", type=click.Path())
@click.option("--config", required=True, metavar="NAME_OR_FILE", help="Memory: a shipped name, a .yaml or a DRAMsim3 .ini file.")
@click.option("--issue", metavar="[saturated|in-order|timed]", default="saturated", show_default=True,
              help="64 requests offered at a time, or one; timed: one, not before its cycle (DRAMsim3 traces).")
@click.option("--outstanding", type=int, help="Requests sent and not completed, at most.  [default: no limit]")
@click.option("--request-bytes", type=int, help="Bytes of each request.  [default: one burst]")
@json_option
@readable_errors
def dram(trace_file, config, issue, outstanding, request_bytes, as_json) -> None:
    """Play a TRACE of memory requests on a memory alone.

    TRACE is .npz with arrays address and write, or text: Ramulator's `LD 0x40`, `ST 0x40`, or DRAMsim3's
    `0x40 READ 17`.

    Example: santa-sim dram requests.trace --config hbm3 --outstanding 256
    """
    from . import dram_cli

    with Progress() as progress:
        progress("playing requests", 0, 1)
        report = dram_cli.play_requests(trace_file, config, issue, outstanding, request_bytes)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else dram_cli.report_text(report))


@main.command("list")
@json_option
@readable_errors
def list_(as_json) -> None:
    """List what ships: workloads, machines, models of decode-step, DRAM and energy tables; and methods and score stages."""
    from .hardware import load_hardware
    from .methods.spec import METHODS, PRECISIONS, SCORES
    from .models.layers import load_model, model_names
    from .schema import shipped
    from .simulator.dram.config import load_dram, shipped_drams
    from .simulator.energy import energy_tables, load_energy
    from .workload import load_workload

    described = {
        "workloads": {name: load_workload(name).description for name in shipped("santa_sim.workloads")},
        "hardware": {name: load_hardware(name).description for name in shipped("santa_sim.hwmodels")},
        "models": {name: load_model(name).description for name in model_names()},
        "dram": {name: load_dram(name).description for name in shipped_drams()},
        "energy": {name: load_energy(name).source for name in energy_tables()},
    }
    if as_json:
        click.echo(json.dumps({**described, "methods": METHODS, "scores": SCORES, "precisions": PRECISIONS}, indent=2))
        return
    titles = {"models": "models, for decode-step", "dram": "DRAM tables", "energy": "energy tables"}
    for kind, entries in described.items():
        click.secho(titles.get(kind, kind), bold=True)
        for name, description in entries.items():
            click.echo(f"  {name:<30}{description}")
    for title, names in (("methods", METHODS), ("score stages", SCORES), ("precisions", PRECISIONS)):
        click.secho(title, bold=True)
        click.echo("  " + "  ".join(names))


def _can_be_drawn(machine) -> None:
    """InputError for a GPU, before anything is computed for its timeline."""
    from .hardware import Gpu
    from .simulator.result import no_units

    if isinstance(machine, Gpu):
        raise InputError(no_units(machine.name, "timeline"))


def _print(result, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
        return
    from .report import print_result

    print_result(result)


if __name__ == "__main__":
    main()
