"""santa-sim compare | sweep | pareto | roofline."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..cli_parts import Progress, json_option, picture, readable_errors, whole_or_list, writable
from ..errors import InputError, choose


def _numbers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]):
    """Each '128', or '64,128' for one per layer."""
    return [whole_or_list(context, parameter, value) for value in values]


def combinations(command):
    """The options whose values are combined, in `compare` and `roofline`."""
    options = [
        click.argument("workload", nargs=-1, required=True),
        click.option("--method", "-m", multiple=True, required=True, help="Value stage."),
        click.option("--samples", "-S", "S", multiple=True, callback=_numbers, metavar="S", help="Samples per query and head; or one per layer, as 64,128."),
        click.option("--k", multiple=True, type=int, help="Keys that top-k keeps."),
        click.option("--score", multiple=True, help="Score stage.  [default: exact]"),
        click.option("--B", "--draws", "B", multiple=True, type=int, help="Bernoulli draws per query feature."),
        click.option("--precision", multiple=True, help="Storage of Q, K and V.  [default: the workload's]"),
        click.option("--hardware", multiple=True, help="Machines: shipped names or .yaml paths.  [default: as in `run`]"),
        click.option("--seed", multiple=True, type=int, help="Seeds of the draws.  [default: 0]"),
        click.option("--tensor-seed", multiple=True, type=int, help="Seeds of synthetic tensors.  [default: 0]"),
        click.option("--tile", multiple=True, type=int, help="Keys per tile."),
        click.option("--allocation", multiple=True, help="prop's tile budgets.  [default: largest-remainder]"),
        click.option("--kernel", default="cpu", show_default=True, metavar="[cpu|torch|gpu]"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _given(arguments: dict) -> dict:
    """The options that were given, lists of alternatives."""
    lists = {name: list(value) if isinstance(value, (tuple, list)) else value for name, value in arguments.items()}
    return {name: value for name, value in lists.items() if value != []}


@click.command()
@combinations
@click.option("--output", "-o", callback=writable, metavar="FILE", help="Also write all columns: .csv or .parquet.")
@json_option
@readable_errors
def compare(workload, as_json, output, **arguments) -> None:
    """Run methods on WORKLOADs and replay each on every machine; options may be given several times.

    Example: santa-sim compare llama8b_decode_4k llama8b_decode_32k -m sdpa -m s2anta-prop -S 64 -S 128 --hardware mac_hbm3
    --hardware adder_hbm3 -o compared.csv
    """
    from . import tables
    from .compare import compare as run

    if output:
        tables.check_format(output)
    with Progress() as progress:
        frame = run(workload=list(workload), progress=progress, **_given(arguments))
    click.echo(tables.as_json(frame)) if as_json else tables.show(frame)
    if output:
        tables.write(frame, output)
    if frame["failure"].notna().all():
        raise InputError("nothing could be run: every combination failed")


@click.command()
@click.argument("spec")
@click.option("--output", "-o", required=True, callback=writable, metavar="FILE", help="Parquet file to write; a sweep that was stopped goes on.")
@click.option("--jobs", "-j", type=int, help="Processes of this machine.  [default: one for each core]")
@click.option("--scheduler", metavar="ADDRESS", help="Dask scheduler whose workers do the work, such as tcp://192.0.2.7:8786.")
@click.option("--yes", is_flag=True, help="Run it however long it is estimated to take.")
@click.option("--pareto", metavar="COLUMNS", default="latency_s,energy_j,area_m2,error_relative_l2", show_default=True, help="What the printed front minimises.")
@json_option
@readable_errors
def sweep(spec, output, jobs, scheduler, yes, pareto, as_json) -> None:
    """Run every point of SPEC (a .yaml file) and write one row a point.

    Example: santa-sim sweep spec.yaml -o out.parquet
    """
    import pyarrow.parquet as pq

    from . import tables
    from .pareto import fronts
    from .rows import check_column
    from .sweep import read_rows, run_sweep
    from .sweep_spec import load_sweep

    checked = load_sweep(spec)
    fields, columns = tuple(one.name for one in checked.fields), [name.strip() for name in pareto.split(",")]
    for name in columns:
        check_column("--pareto", name, fields)
    try:
        with Progress() as progress:
            run_sweep(checked, Path(output), jobs=jobs, scheduler=scheduler, yes=yes, progress=progress)
    except KeyboardInterrupt:
        click.echo("stopped; what is done is kept: run the same command again to go on", err=True)
        raise SystemExit(130) from None
    frame = read_rows(Path(output), dict.fromkeys(["point", *fields, *tables.COLUMNS, *columns]))
    if not frame["failure"].notna().all():  # else it has no quantities
        for name in columns:
            choose("--pareto", name, pq.read_schema(output).names)
    failed = frame["failure"].notna()
    summary = {"file": output, "points": len(frame), "failed": int(failed.sum())}
    best, left_out = fronts(frame[~failed], columns) if not failed.all() else (frame[:0], [])
    for reason in left_out:
        click.echo(f"left out of the front: {reason}", err=True)
    if as_json:
        click.echo(json.dumps({**summary, "pareto": json.loads(tables.as_json(best))}, indent=2))
    else:
        _tell(output, frame, best, columns, fields)
    if failed.all():
        raise InputError(f"nothing could be run: all {len(frame):,} points failed")


def _tell(output, frame, best, columns, fields) -> None:
    from . import tables

    failed = int(frame["failure"].notna().sum())
    click.echo(f"{output}: {len(frame):,} points, {failed:,} failed; {len(best):,} on the front of {', '.join(columns)}")
    tables.show(best.head(40), ("point", *fields))
    for reason, count in frame["failure"].value_counts().head(5).items():
        click.echo(f"failed {count:,} times: {reason}")


@click.command()
@click.argument("table", type=click.Path())
@click.option("--minimize", default="latency_s,energy_j,area_m2,error_relative_l2", show_default=True, metavar="COLUMNS", help="The less the better.")
@click.option("--output", "-o", callback=writable, metavar="FILE", help="Also write the front, all columns: .csv or .parquet.")
@json_option
@readable_errors
def pareto(table, minimize, output, as_json) -> None:
    """Print the Pareto front of a TABLE that `compare` or `sweep` wrote: the rows of a workload that no other of it beats in every column.

    Example: santa-sim pareto out.parquet --minimize latency_s,energy_j
    """
    from . import tables
    from .pareto import fronts, works

    if output:
        tables.check_format(output)
        if Path(output).exists() and Path(table).exists() and Path(output).samefile(table):
            raise InputError(f"--output {output!r} is the table itself, and would be overwritten by its front: give another name")
    frame, names = tables.read(table), [name.strip() for name in minimize.split(",")]
    best, left_out = fronts(frame, names)
    for reason in left_out:
        click.echo(f"left out: {reason}", err=True)
    if output:
        tables.write(best, output)
    if as_json:
        click.echo(tables.as_json(best))
        return
    apart = works(frame, names)
    each = f", each {' and '.join(apart)} by itself" if apart else ""
    click.echo(f"{len(best):,} of {len(frame):,} rows are on the front of {minimize}{each}")
    varies = [name for name in tables.COLUMNS if name in frame and tables.names_a_run(name) and frame[name].nunique(dropna=False) > 1]
    own = list(frame.columns[: frame.columns.get_loc("workload")]) if "workload" in frame else []  # a sweep's fields stand before
    tables.show(best, (*own, *varies))


@click.command()
@combinations
@click.option("--plot", required=True, callback=picture, metavar="FILE", help="File to draw, as .png, .svg or .pdf.")
@click.option("--output", "-o", callback=writable, metavar="FILE", help="Also write the table: .csv or .parquet.")
@json_option
@readable_errors
def roofline(workload, plot, output, as_json, **arguments) -> None:
    """Draw runs under the roofs of their machines: GPUs beside accelerators. Options may be given several times.

    Example: santa-sim roofline llama8b_decode_32k -m sdpa -m s2anta-prop -S 128 --hardware mac_hbm3 --hardware h200 --plot r.png
    """
    from . import tables
    from .compare import runs
    from .roofline import roofline as draw

    if output:
        tables.check_format(output)
    given = _given(arguments)
    with Progress() as progress:
        found = list(runs(list(workload), given.pop("hardware", None), given, progress))
    results = [run for run in found if not isinstance(run, dict)]
    failures = [f"{run['method']} on {run['hardware']}: {run['failure']}" for run in found if isinstance(run, dict)]
    if not results:
        raise InputError(f"nothing could be run: {'; '.join(failures)}")
    figure, frame = draw(results)
    figure.savefig(plot)
    if output:
        tables.write(frame, output)
    if as_json:
        click.echo(tables.as_json(frame))
        return
    _show_rooflines(frame)
    for failure in failures:
        click.echo(f"left out: {failure}")


def _show_rooflines(frame) -> None:
    from rich.console import Console
    from rich.table import Table

    from ..report import si

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("workload", "method", "S", "hardware", "latency", "op/B", "attained", "roof", "of it"):
        table.add_column(column, justify="left" if column in ("workload", "method", "hardware") else "right", no_wrap=True)
    frame = frame.assign(samples=frame["samples"].astype(object).where(frame["samples"].notna(), "-"))
    for row in frame.to_dict("records"):
        roof = row[f"{row['under']}_roof_ops_per_s"]
        table.add_row(str(row["workload"]), row["method"], str(row["samples"]), row["hardware"], si(row["latency_s"], "s"),
                      f"{row['intensity_ops_per_byte']:.4g}", si(row["attained_ops_per_s"], "op/s"), f"{si(roof, 'op/s')} ({row['under']})",
                      f"{100 * row['share_of_roof']:.0f} %")  # fmt: skip
    Console(width=max(Console().width, 140), markup=False).print(table)
