"""Runs items one after the other and writes what they found: text, JSON, Markdown with plots, a DataFrame."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ..errors import InputError
from .items import ITEMS, NEEDS_MODEL, NOT_YET, Progress, choose_items, load_item
from .rows import BESIDE, CONSISTENT, EXPLAINED, OUT, PAPER, VERDICTS, WITHIN, Row

COLUMNS = ("published", "ours", "difference", "tolerance", "verdict")


@dataclasses.dataclass(frozen=True)
class Section:
    """One item's rows, plots, how it was done, and the seconds that it took; `error` where it broke off."""

    item: str
    title: str
    rows: tuple[Row, ...]
    plots: Mapping[str, Callable[[], Figure]]
    method: str
    seconds: float
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """All sections so far, of the items that were asked for; `needs_model` are those that can't run without a language model."""

    sections: tuple[Section, ...]
    needs_model: tuple[str, ...]
    seed: int
    fast: bool
    asked: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Items asked for that aren't there yet: all of them at the start, none in the end."""
        return tuple(name for name in self.asked if name not in {section.item for section in self.sections})

    @property
    def rows(self) -> list[Row]:
        return [row for section in self.sections for row in section.rows]

    @property
    def verdicts(self) -> dict[str, int]:
        """How many rows have each verdict."""
        counted = Counter(row.verdict for row in self.rows)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    @property
    def agreement(self) -> str:
        """The verdicts in words: what agrees with the paper apart from what agrees with ourselves."""
        verdicts, out = self.verdicts, [row for row in self.rows if row.verdict == OUT]
        of_paper = sum(row.compared_with == PAPER for row in out)
        said = [f"{verdicts[WITHIN]} within the paper's tolerance", f"{verdicts[CONSISTENT]} consistent with our closed forms and limits",
                f"{verdicts[EXPLAINED]} explained", f"{verdicts[BESIDE]} beside", f"{len(out)} OUT"]  # fmt: skip
        return ", ".join(said) + (f" ({of_paper} of the paper's numbers, {len(out) - of_paper} of our own)" if out else "")

    @property
    def ok(self) -> bool:
        """No row is out of tolerance without the cause that predicts it."""
        return self.verdicts[OUT] == 0

    def to_dict(self) -> dict:
        sections = [{"item": s.item, "title": s.title, "seconds": round(s.seconds, 2), "error": s.error,
                     "rows": [row.to_dict() for row in s.rows]} for s in self.sections]  # fmt: skip
        needs = [{"item": name, "title": NEEDS_MODEL[name][0], "command": NEEDS_MODEL[name][1], "note": NOT_YET} for name in self.needs_model]
        return {"seed": self.seed, "fast": self.fast, "ok": self.ok, "missing": list(self.missing), "verdicts": self.verdicts, "items": sections, "needs_model": needs}

    def to_frame(self) -> pd.DataFrame:
        """One row per compared number."""
        return pd.DataFrame([row.to_dict() for row in self.rows])

    def save(self, folder: str | Path) -> None:
        """Write report.md, report.json and one PNG per plot."""
        folder = Path(folder)
        for section in self.sections:
            for name, draw in section.plots.items():
                _write(folder / f"{section.item}_{name}.png", _png(draw()))
        _write(folder / "report.md", markdown(self).encode())
        _write(folder / "report.json", json.dumps(self.to_dict(), indent=2).encode())


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> None:
    """All of a file or nothing of it."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)


def run(items: list[str] | tuple[str, ...] | None = None, *, seed: int = 0, fast: bool = False, progress: Progress | None = None,
        folder: str | Path | None = None, begun: Callable[[str], None] | None = None,
        done: Callable[[Section], None] | None = None) -> Report:  # fmt: skip
    """Reproduce items (None: all that need no model), one after the other.

    Parameters
    ----------
    items : names from ITEMS or NEEDS_MODEL
    seed : int >= 0, of everything that is drawn;  fast : smaller samples, for a first look and for tests
    progress : called with (what, done, total)
    folder : where report.md, report.json and the plots go, rewritten after each item
    begun : called with each item's name before it starts
    done : called with each Section as soon as it is there

    Returns
    -------
    Report. An item that fails is a row that says so; the others go on.

    Raises
    ------
    InputError
        An unknown item, a seed that isn't a whole number >= 0, a folder that can't be made.
    """
    names = choose_items([items] if isinstance(items, str) else items)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"seed={seed!r} is not a whole number from 0 to 2^32 - 1")
    if folder is not None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"folder {str(folder)!r} can't be made: {error}") from None
    needs_model = tuple(NEEDS_MODEL) if not items else tuple(name for name in names if name in NEEDS_MODEL)
    asked = tuple(name for name in names if name not in NEEDS_MODEL)
    report = Report((), needs_model, seed, fast, asked)
    if folder is not None:  # whoever breaks off early finds what is there, and what is missing
        report.save(folder)
    for name in asked:
        if begun:
            begun(name)
        section = _section(name, seed, fast, progress or (lambda *_: None))
        report = dataclasses.replace(report, sections=(*report.sections, section))
        if folder is not None:
            report.save(folder)
        if done:
            done(section)
    return report


def _section(name: str, seed: int, fast: bool, progress: Progress) -> Section:
    start, method = time.perf_counter(), ""
    progress(name, 0, 1)
    try:
        reproduce, method = load_item(name)
        found = reproduce(lambda what, done, total: progress(f"{name}: {what}", done, total), seed, fast)
        rows, plots, error = tuple(found.rows), dict(found.plots), None
    except Exception as failure:  # one item's error is its row: what the others compute isn't lost
        error = f"{type(failure).__name__}: {failure}"
        rows, plots = (Row(name, "the item itself", None, note=f"failed: {error}"),), {}
    return Section(name, ITEMS[name], rows, plots, method, time.perf_counter() - start, error)


def number(value: float | None) -> str:
    """A number for people: whole ones whole, others with five digits; '-' for none."""
    if value is None:
        return "-"
    return f"{int(value):,}" if math.isfinite(value) and float(value).is_integer() and abs(value) < 1e15 else f"{value:.5g}"


def cells(row: Row) -> list[str]:
    """Name, published, ours, difference, tolerance, verdict and unit as text."""
    limit = "-"
    if row.tolerance is not None:
        target = f"{number(row.expected)} " if row.expected is not None else ""
        limit = f"{target}±{number(row.tolerance)}" if row.bound == "=" else f"{row.bound} {number(row.target + (row.tolerance if row.bound == '<=' else -row.tolerance))}"
    return [row.name, number(row.published), number(row.ours), number(row.difference), limit, row.verdict, row.unit]


def statistics_text(row: Row, without: tuple[str, ...] = ()) -> str:
    """'trials 10, heads 32, standard error 0.02' from a row's statistics."""
    said = {key.replace("_", " "): value for key, value in row.statistics.items() if key not in without}
    return ", ".join(f"{key} {number(value) if type(value) in (int, float) else value}" for key, value in said.items())


def markdown(report: Report) -> str:
    """The report as Markdown; plots are beside it as <item>_<name>.png."""
    partial = [f"**Partial**: {len(report.sections)} of {len(report.asked)} items; missing: {', '.join(report.missing)}.", ""] if report.missing else []
    lines = ["# arXiv:2605.01910, number by number", "", *partial,
             f"Seed {report.seed}{', fast' if report.fast else ''}. {len(report.rows)} rows: {report.agreement}.", "",
             "*within*: ours is in tolerance of the published number. *consistent*: ours agrees with our own expectation (a closed form or a "
             "limit), which the column Tolerance names; that says nothing about a published number beside it. *OUT*: it doesn't. "
             "*explained*: ours misses the published number, and the conditions of the cause in the notes hold. *beside*: without a verdict.",
             ""]  # fmt: skip
    for section in report.sections:
        lines += [f"## {section.title} (`{section.item}`)", "", *([section.method, ""] if section.method else [])]
        lines += ["| | published | ours | difference | tolerance | verdict | unit | statistics |", "|" + "---|" * 8]
        notes: dict[str, list[str]] = {}
        for row in section.rows:
            name, *middle, verdict, unit = (cell.replace("|", "\\|") for cell in cells(row))
            verdict = f"**{verdict}**" if verdict == OUT else verdict
            lines.append(f"| {name} | {' | '.join(middle)} | {verdict} | {unit} | {statistics_text(row)} |")
            if row.note:
                notes.setdefault(row.note, []).append(row.name)
        lines.append("")
        for note, names in notes.items():
            what = "all" if len(names) == len(section.rows) > 1 else names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            lines.append(f"- {what}: {note}")
        lines += ["", *(f"![{name}]({section.item}_{name}.png)\n" for name in section.plots), f"Took {section.seconds:.1f} s.", ""]
    if report.needs_model:
        lines += ["## Needs the model", "", f"These need a language model's weights; {NOT_YET}. It will run them as written.", ""]
        lines += ["| item | what | command |", "|---|---|---|"]
        lines += [f"| {name} | {NEEDS_MODEL[name][0]} | `{NEEDS_MODEL[name][1]}` |" for name in report.needs_model]
    return "\n".join(lines) + "\n"
