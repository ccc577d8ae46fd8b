"""What the commands share: options, progress, and errors that people can read."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import click

from .errors import InputError, SimulationError

_SHOW_AFTER_S = 2.0


class Progress:
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

    def __enter__(self) -> Progress:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()


class Failure(click.ClickException):
    exit_code = 2


def readable_errors(command: Callable) -> Callable:
    """Turn expected errors into one line on standard error and exit status 2."""

    @functools.wraps(command)
    def wrapped(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except (InputError, SimulationError, OSError) as error:
            raise Failure(str(error)) from None
        except MemoryError as error:
            raise Failure(f"not enough memory: {error}") from None

    return wrapped


def writable(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuse a file that can't be written before anything is computed."""
    if value is not None:
        try:
            _try_to_write(value)
        except (OSError, ValueError) as error:
            raise click.BadParameter(f"{value!r} can't be written: {getattr(error, 'strerror', None) or error}") from None
    return value


def _try_to_write(value: str) -> None:
    """Open the file for writing, or one beside it where it isn't there yet, and leave everything as it was."""
    path = Path(value)
    if not value or path.is_dir():
        raise click.BadParameter(f"{value!r} is not a file name")
    if not path.parent.is_dir():
        raise click.BadParameter(f"{value!r}: the folder {str(path.parent)!r} does not exist")
    if path.is_file():
        path.open("ab").close()
    elif path.exists():  # a pipe, a terminal: opening it may wait for a reader
        if not os.access(path, os.W_OK):
            raise PermissionError(None, "no permission")
    else:
        with contextlib.suppress(FileNotFoundError):
            path.lstat()  # refuses a name that is too long
        tempfile.TemporaryFile(dir=path.resolve().parent).close()


def picture(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """As `writable`, and the end of the name is a format that pictures can be written in."""
    if writable(context, parameter, value) is not None:
        from matplotlib.backend_bases import FigureCanvasBase

        if Path(value).suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
            raise click.BadParameter(f"{value!r} ends in no format of pictures; write a name that ends in .png, .svg or .pdf")
    return value


def whole_or_list(_: click.Context, __: click.Parameter, value: str | None):
    """'128' -> 128, '64,128' -> (64, 128); anything else stays text, and `Spec` says what is wrong with it."""
    if value is None:
        return None
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a whole number, nor one per layer such as 64,128") from None
    return numbers if "," in value else numbers[0]


def method_options(command: Callable) -> Callable:
    """The options that `run` and `trace` share."""
    from .methods.spec import ALLOCATIONS, METHODS, PRECISIONS, SAMPLERS, SCORES

    def names(options: tuple[str, ...]) -> str:
        return f"[{'|'.join(options)}]"  # `Spec` checks them: its errors name the nearest one

    options = [
        click.argument("workload"),
        click.option("--method", "-m", required=True, metavar=names(METHODS), help="Value stage."),
        click.option("--samples", "-S", "S", callback=whole_or_list, metavar="S", help="Samples per query and head; or one per layer, as 64,128."),
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


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON (SI units) instead of a table.")
timeline_option = click.option("--timeline", callback=writable, metavar="FILE", help="Also write what each unit did when, for ui.perfetto.dev.")
