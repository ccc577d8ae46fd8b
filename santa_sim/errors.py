"""Errors that say what was wrong, with the value, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The caller's input can't be used: the message names the field, shows the value and, where one is near, the fix."""


class SimulationError(RuntimeError):
    """The simulated machine can't finish its trace (a deadlock of its buffers, a broken invariant)."""


def suggestion(name: object, options: Iterable[str]) -> str:
    """Return '; did you mean ...?' for a near miss, else the list of what exists."""
    options = sorted(options)
    near = difflib.get_close_matches(str(name), options, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; choose from {', '.join(options)}" if options else ""


def choose(field: str, value: object, options: Iterable[str]) -> str:
    """Return `value` if it is one of `options`, else raise InputError that names the nearest one."""
    options = list(options)
    if value in options:
        return str(value)
    raise InputError(f"{field}={value!r} is not known{suggestion(value, options)}")
