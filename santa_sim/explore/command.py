"""santa-sim compare | sweep."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..cli_parts import Progress, json_option, readable_errors, whole_or_list, writable


def _numbers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]):
    """Each '128', or '64,128' for one per layer."""
    return [whole_or_list(context, parameter, value) for value in values]


@click.command()
@click.argument("workload", nargs=-1, required=True)
@click.option("--method", "-m", multiple=True, required=True, help="Value stage.")
@click.option("--samples", "-S", "S", multiple=True, callback=_numbers, metavar="S", help="Samples per query and head; or one per layer, as 64,128.")
@click.option("--k", multiple=True, type=int, help="Keys that top-k keeps.")
@click.option("--score", multiple=True, help="Score stage.  [default: exact]")
@click.option("--B", "--draws", "B", multiple=True, type=int, help="Bernoulli draws per query feature.")
@click.option("--precision", multiple=True, help="Storage of Q, K and V.  [default: the workload's]")
@click.option("--hardware", multiple=True, help="Machines: shipped names or .yaml paths.  [default: as in `run`]")
@click.option("--seed", multiple=True, type=int, help="Seeds of the draws.  [default: 0]")
@click.option("--tile", multiple=True, type=int, help="Keys per tile.")
@click.option("--allocation", multiple=True, help="prop's tile budgets.  [default: largest-remainder]")
@click.option("--kernel", default="cpu", show_default=True, metavar="[cpu|torch|gpu]")
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
    given = {name: list(value) if isinstance(value, (tuple, list)) else value for name, value in arguments.items()}
    with Progress() as progress:
        frame = run(workload=list(workload), progress=progress, **{name: value for name, value in given.items() if value != []})
    click.echo(tables.as_json(frame)) if as_json else tables.show(frame)
    if output:
        tables.write(frame, output)


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

    from ..errors import choose
    from . import tables
    from .pareto import pareto as front
    from .sweep import run_sweep
    from .sweep_spec import load_sweep

    checked = load_sweep(spec)
    with Progress() as progress:
        run_sweep(checked, Path(output), jobs=jobs, scheduler=scheduler, yes=yes, progress=progress)
    file = pq.ParquetFile(output)
    columns = [name.strip() for name in pareto.split(",")]
    for name in columns:
        choose("--pareto", name, file.schema_arrow.names)
    fields = tuple(one.name for one in checked.fields)
    shown = dict.fromkeys(["point", *fields, *(name for name in (*tables.COLUMNS, *columns) if name in file.schema_arrow.names)])
    frame = file.read(columns=list(shown)).to_pandas()
    failed = frame["failure"].notna()
    summary = {"file": output, "points": len(frame), "failed": int(failed.sum())}
    best = front(frame[~failed], columns) if not failed.all() else frame[:0]
    if as_json:
        click.echo(json.dumps({**summary, "pareto": json.loads(tables.as_json(best))}, indent=2))
        return
    click.echo(f"{output}: {len(frame):,} points, {summary['failed']:,} failed; {len(best):,} on the front of {', '.join(columns)}")
    tables.show(best.head(40), ("point", *fields))
    for reason, count in frame["failure"].value_counts().head(5).items():
        click.echo(f"failed {count:,} times: {reason}")
