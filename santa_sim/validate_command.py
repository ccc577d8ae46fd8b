"""`santa-sim validate`: the GPU timing model against this machine's card."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from .cli_parts import Progress, json_option, readable_errors, writable


def _list(kind: type):
    def parse(_: click.Context, parameter: click.Parameter, value: str | None):
        if value is None:
            return None
        parts = [part.strip() for part in value.split(",")]
        if not all(parts):
            raise click.BadParameter(f"{value!r} has an empty entry: write values with commas between, such as 4096,32768")
        try:
            return tuple(int(part.replace("_", "")) if kind is int else part for part in parts)
        except ValueError:
            raise click.BadParameter(f"{value!r}: write whole numbers with commas between, such as 4096,32768") from None

    return parse


def _yaml(context: click.Context, parameter: click.Parameter, value: str | None):
    """A file that can be written and that load_hardware will take."""
    value = writable(context, parameter, value)
    if value is not None and Path(value).suffix not in (".yaml", ".yml"):
        raise click.BadParameter(f"{value!r}: write a name that ends in .yaml, so that run(hardware=...) takes it")
    return value


@click.command()
@click.option("--quick", is_flag=True, help="One S and type, two lengths, fewer sizes of micro-benchmarks.")
@click.option("--methods", callback=_list(str), metavar="NAME,...", help="Value stages.  [default: all that the kernels have]")
@click.option("--n-k", "n_k", callback=_list(int), metavar="N,...", help="Keys per sequence.")
@click.option("--samples", "-S", callback=_list(int), metavar="S,...", help="Samples per query and head (top-k: keys, the first).")
@click.option("--batch", callback=_list(int), metavar="B,...", help="Sequences in a step.")
@click.option("--dtype", callback=_list(str), metavar="bf16,fp16", help="Storage types; the first runs everywhere, others at one length.")
@click.option("--output", "-o", metavar="FOLDER", help="Write validation.json, validation.md and plots here.")
@click.option("--save-calibration", callback=_yaml, metavar="FILE.yaml", help="Write the calibrated machine, for run(hardware=FILE).")
@click.option("--no-counters", is_flag=True, help="Don't read DRAM counters, even where Nsight Compute is installed.")
@click.option("--from", "source", metavar="FILE.json", help="Judge a kept measurement again, without a card.")
@click.option("--machine", metavar="FILE.yaml", help="Predict with this machine's calibration, made by another run, not this one's.")
@json_option
@readable_errors
def validate(quick, methods, n_k, samples, batch, dtype, output, save_calibration, no_counters, source, machine, as_json) -> None:
    """Calibrate on micro-benchmarks, predict our kernels' time and DRAM bytes, measure them on this card, and compare.

    Exit status: 0 all tolerances hold (time 10 % on average, 20 % at worst; bytes read 1 % of a pass over K, 10 % of the
    second launch by itself; outputs as float64's), 1 one is broken, 2 it can't run. Takes less than five minutes.

    Example: santa-sim validate -o my_card --save-calibration my_gpu.yaml
    """
    from .gpu import validate as validation
    from .gpu import validate_cells, validate_kept, validate_predict, validate_report

    chosen = {"methods": methods, "n_k": n_k, "samples": samples, "batch": batch, "dtype": dtype}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if source and (chosen or quick):
        raise click.UsageError(f"--from judges what the file holds; {'--quick' if quick else '--' + next(iter(chosen)).replace('_', '-')} has no say there")
    if machine:
        if Path(machine).suffix not in (".yaml", ".yml"):
            raise click.UsageError(f"--machine {machine}: give a .yaml that --save-calibration wrote")
        validation.predictor(machine)
    if source:
        raw = validation.load(source)
    else:
        cells = validate_cells.grid(**chosen, quick=quick)
        folder = Path(output) if output else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        keep = None if folder is None else lambda raw: (folder / "raw.json").write_text(json.dumps(validate_kept.finite(raw)))
        with Progress() as progress:
            raw = validation.measure(cells, counters=not no_counters, quick=quick, progress=progress, keep=keep)
    result, verdicts = validation.judge_run(raw, machine)
    if save_calibration:
        validate_predict.save_machine(result["machine"], save_calibration)
    written = validation.write(result, verdicts, output) if output else []
    if output:
        (Path(output) / "raw.json").unlink(missing_ok=True)  # validation.json holds it
    if as_json:
        click.echo(json.dumps(validate_kept.finite(result), indent=2, allow_nan=False))
    else:
        text = validate_report.markdown(result, verdicts)
        click.echo(text if not output else text.split("## Times")[0])
        for path in written:
            click.echo(f"wrote {path}")
    sys.exit(1 if validation.validate_judge.failed(verdicts) else 0)
