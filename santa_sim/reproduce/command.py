"""santa-sim reproduce: the paper's numbers beside ours."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..cli_parts import Progress, json_option, readable_errors
from .items import ITEMS, NEEDS_MODEL, NOT_YET
from .report import COLUMNS, Report, Section, cells, run, statistics_text
from .rows import OUT

_WIDTH = 120  # of tables that go to a file
_STYLES = {"within": "green", "consistent": "cyan", "OUT": "bold red", "beside": "dim", "explained": "yellow"}


def _folder(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuse a folder that can't be written before anything is computed."""
    if value is not None:
        path = Path(value)
        if not value or (path.exists() and not path.is_dir()):
            raise click.BadParameter(f"{value!r} is a file; the report needs a folder" if value else "'' is not a folder")
        above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not os.access(above, os.W_OK):
            raise click.BadParameter(f"{value!r} can't be written: no permission")
    return value


@click.command(epilog="Items: " + ", ".join(ITEMS) + ". Needing a language model: " + ", ".join(NEEDS_MODEL) + ".")
@click.argument("items", nargs=-1, metavar="[ITEM ...]")
@click.option("--output", "-o", "folder", callback=_folder, metavar="DIR", help="Folder for report.md, report.json and the plots.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of everything that is drawn.")
@click.option("--fast", is_flag=True, help="Smaller samples: the same verdicts in under two minutes.")
@json_option
@readable_errors
def command(items, folder, seed, fast, as_json) -> None:
    """Reproduce the numbers of arXiv:2605.01910, item by item: published, ours, difference, tolerance, verdict.

    Exit status 1 if a row is out of tolerance.

    Example: santa-sim reproduce table8 table17 -o report
    """
    # a progress bar catches what goes to sys.stdout, to keep it above the bar: right on a terminal, wrong for a file
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=_WIDTH, file=sys.stdout)

    def show(section: Section) -> None:
        if not as_json:
            console.print(_table(section, console.width < _WIDTH))
            sys.stdout.flush()  # a file or a pipe has each item once it is there
        tell(f"{section.item}: done, {section.seconds:.0f} s" + (f", {section.error}" if section.error else ""))

    def tell(line: str) -> None:
        if not sys.stderr.isatty():  # where there is no progress bar
            click.echo(line, err=True)

    with Progress() as progress:
        report = run(items or None, seed=seed, fast=fast, progress=progress, folder=folder, begun=lambda name: tell(f"{name}: started"), done=show)
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _summary(report, folder)
    raise SystemExit(0 if report.ok else 1)


def _table(section: Section, narrow: bool) -> Table:
    table = Table(title=f"{section.title}  ({section.item}, {section.seconds:.1f} s)", title_justify="left", title_style="bold",
                  box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0), caption_justify="left", caption_style="")  # fmt: skip
    table.add_column("", min_width=14 if narrow else 30, overflow="fold")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=column != "tolerance")
    for row in section.rows:
        name, *numbers, verdict, unit = cells(row)
        table.add_row(escape(f"{name} ({unit})" if unit else name), *numbers, f"[{_STYLES[verdict]}]{verdict}[/]")
    told = dict.fromkeys(note for row in section.rows for note in (row.note, statistics_text(row, ("standard_error",))) if note)
    table.caption = "\n".join(f" · {escape(note)}" for note in told) + "\n"
    return table


def _summary(report: Report, folder: str | None) -> None:
    if report.needs_model:
        click.secho(f"needs the model ({NOT_YET})", bold=True)
        for name in report.needs_model:
            title, how = NEEDS_MODEL[name]
            click.echo(f"  {name:<9}{title:<55}{how}")
    click.echo(f"{len(report.rows)} rows: {report.agreement}")
    for row in report.rows:
        if row.verdict == OUT:
            click.secho(f"OUT  {row.item}, {row.name}" + (f": {row.note}" if row.note else ""), fg="red")
    if folder:
        click.echo(f"report: {Path(folder) / 'report.md'}")
