"""santa-sim compare."""

from __future__ import annotations

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
