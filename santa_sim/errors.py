"""Errors that say what was wrong, with the value, and what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Names of one number format; whichever of them a field takes is the one to suggest.
_SYNONYMS = (("fp32", "float32", "f32", "single"), ("fp16", "float16", "f16", "half"), ("bf16", "bfloat16"))
_LONGEST_NAME = 200  # characters; comparing takes time quadratic in them


class InputError(ValueError):
    """The caller's input can't be used: the message names the field, shows the value and, where one is near, the fix."""


class SimulationError(RuntimeError):
    """The simulated machine can't finish its trace (a deadlock of its buffers, a broken invariant)."""


def nearest(name: object, options: Iterable[str]) -> str | None:
    """The option that was probably meant: the same but for case, a synonym, the only one that contains it, or a typo."""
    word = str(name).lower()
    known = {option.lower(): option for option in options}
    if word in known:
        return known[word]
    for names in _SYNONYMS:
        for other in names if word in names else ():
            if other in known:
                return known[other]
    if not 0 < len(word) <= _LONGEST_NAME:
        return None
    within = [option for option in known if len(word) >= 3 and word in option]
    if len(within) == 1:
        return known[within[0]]
    typos = within or [option for option in known if not _differ_in_number(word, option)]
    near = difflib.get_close_matches(word, typos, n=1, cutoff=0.6)
    return known[near[0]] if near else None


def _differ_in_number(one: str, other: str) -> bool:
    """True for int4 and int8, which are two things, not for int61 and int16, which is a slip of the fingers."""
    letters, digits = ([re.sub(pattern, "", text) for text in (one, other)] for pattern in (r"\d", r"\D"))
    return letters[0] == letters[1] and sorted(digits[0]) != sorted(digits[1])


def suggestion(name: object, options: Iterable[str]) -> str:
    """Return '; did you mean ...?' for a near miss, else the list of what exists."""
    options = sorted(options)
    near = nearest(name, options)
    if near is not None:
        return f"; did you mean {near!r}?"
    return f"; choose from {', '.join(options)}" if options else ""


def choose(field: str, value: object, options: Iterable[str]) -> str:
    """Return `value` if it is one of `options`, else raise InputError that names the nearest one."""
    options = list(options)
    if isinstance(value, str) and value in options:
        return value
    raise InputError(f"{field}={value!r} is not known{suggestion(value, options)}")
