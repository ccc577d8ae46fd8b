"""santa-sim decode-step."""

from __future__ import annotations

import json

import click

from ..cli_parts import Progress, json_option, picture, readable_errors, whole_or_list, writable
from ..errors import InputError


@click.command()
@click.argument("model")
@click.option("--method", "-m", required=True, help="Value stage of the attention, as in `run`.")
@click.option("--samples", "-S", "S", callback=whole_or_list, metavar="S", help="Samples per query and head; or one per layer, as 64,128,...")
@click.option("--n-k", "n_k", multiple=True, required=True, type=int, metavar="N", help="Keys of each sequence, the current token included.")
@click.option("--batch", multiple=True, type=int, default=(1,), show_default="1", help="Sequences.")
@click.option("--weights", metavar="[bf16|int8|int4|ternary]", help="Format of the layers' matrices.  [default: as released]")
@click.option("--lm-head", default="bf16", show_default=True, metavar="[bf16|int8|int4|ternary]", help="Format of the LM head.")
@click.option("--hardware", help="Machine: a shipped name or a .yaml path.  [default: as in `run`; with --over mac_hbm3]")
@click.option("--k", type=int, help="Keys that top-k keeps.")
@click.option("--score", default="exact", show_default=True, help="Score stage.")
@click.option("--B", "--draws", "B", type=int, help="Bernoulli draws per query feature.")
@click.option("--precision", help="Storage of Q, K and V.  [default: bf16]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draws.")
@click.option("--tokens", type=int, help="Cost a generation of so many tokens, from N keys on.")
@click.option("--over", "baseline", metavar="METHOD", help="Speedup over this method (sdpa); --n-k and --batch may then be given several times.")
@click.option("--full", is_flag=True, help="Simulate every row of every matrix, every sequence and every length: slow.")
@click.option("--output", "-o", callback=writable, metavar="FILE", help="Also write it: .json; with --over .csv or .parquet.")
@click.option("--plot", callback=picture, metavar="FILE", help="With --over: speedup against N as a picture, such as .png or .svg.")
@json_option
@readable_errors
def command(model, n_k, batch, tokens, baseline, output, plot, as_json, **arguments) -> None:
    """Cost the whole decode step of MODEL (a shipped name or a .yaml path): weights, attention, feed-forward, LM head.

    Examples: santa-sim decode-step llama8b --method s2anta-prop -S 128 --n-k 32768 --weights int4

    santa-sim decode-step llama8b --method s2anta-prop -S 128 --n-k 4096 --n-k 32768 --batch 1 --batch 16 --over sdpa
    """
    if baseline is not None:
        if tokens is not None:
            raise InputError("--tokens and --over don't go together: a generation is costed for one method at a time")
        _speedups(model, list(n_k), list(batch), baseline, output, plot, as_json, arguments)
        return
    for name, values in (("--n-k", n_k), ("--batch", batch)):
        if len(values) > 1:
            raise InputError(f"{name} is given {len(values)} times: several need --over sdpa, which makes a table of speedups")
    if plot:
        raise InputError("--plot draws speedups: it needs --over sdpa")
    if arguments["hardware"] is None:
        del arguments["hardware"]
    with Progress() as progress:
        if tokens is None:
            from .decode_step import decode_step

            found = decode_step(model, n_k=n_k[0], batch=batch[0], progress=progress, **arguments)
        else:
            from .generation import generation

            found = generation(model, n_k=n_k[0], batch=batch[0], tokens=tokens, progress=progress, **arguments)
    text = json.dumps(found.to_dict(), indent=2)
    if output:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    if as_json:
        click.echo(text)
        return
    from .decode_step_text import print_generation, print_step

    print_step(found) if tokens is None else print_generation(found)


def _speedups(model, n_k, batch, baseline, output, plot, as_json, arguments) -> None:
    from . import tables
    from .amdahl import end_to_end_speedup, plot_speedup
    from .decode_step_text import print_speedups

    if output:
        tables.check_format(output)
    given = {name: value for name, value in arguments.items() if (name, value) != ("hardware", None)}
    with Progress() as progress:
        frame = end_to_end_speedup(model, n_k=n_k, batch=batch, baseline=baseline, progress=progress, **given)
    if output:
        tables.write(frame, output)
    if plot:
        plot_speedup(frame).savefig(plot)
    click.echo(tables.as_json(frame)) if as_json else print_speedups(frame)
