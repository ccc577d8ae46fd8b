"""One compared number, its verdict, and what an item gives back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

WITHIN, CONSISTENT, EXPLAINED, OUT, BESIDE = VERDICTS = ("within", "consistent", "explained", "OUT", "beside")
PAPER, OWN = "paper", "own expectation"


@dataclasses.dataclass(frozen=True)
class Row:
    """A published number beside ours. The verdict is computed from the numbers, never given.

    Attributes
    ----------
    item, name : str, the item ('table8') and what the number is
    ours : float or int, what came out here; None where it failed, and then the verdict is 'OUT'
    published : float or int, the paper's number, or None where it has none
    expected : float or int, our own expectation (a closed form, a limit), where the verdict compares ours with that;
        None compares with `published`
    tolerance : float  [unit], largest |ours - expected| that is 'within'; None gives no verdict: 'beside'
    bound : '=' (within tolerance of expected), '<=' (ours at most expected + tolerance) or '>='
    explained_if : (what, value, limit) of each condition under which the cause told in `note` explains a miss of the
        published number: all values must be at most their limits
    unit : str;  note : str, where a difference comes from
    statistics : mapping, such as trials, heads, seed, standard_error, confidence
    """

    item: str
    name: str
    ours: float | None
    published: float | None = None
    expected: float | None = None
    tolerance: float | None = None
    bound: str = "="
    explained_if: tuple[tuple[str, float, float], ...] = ()
    unit: str = ""
    note: str = ""
    statistics: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bound not in ("=", "<=", ">="):
            raise ValueError(f"bound={self.bound!r}: write '=', '<=' or '>='")
        if self.tolerance is not None and self.target is None:
            raise ValueError(f"{self.item}, {self.name}: a tolerance needs a published or an expected number")

    @property
    def target(self) -> float | None:
        """What ours is compared with."""
        return self.published if self.expected is None else self.expected

    @property
    def compared_with(self) -> str | None:
        """'paper' (the published number), 'own expectation' (a closed form of ours), or None: it stands beside."""
        if self.tolerance is None:
            return None
        return PAPER if self.expected is None else OWN

    @property
    def difference(self) -> float | None:
        """Ours less the target, in the row's unit."""
        return None if self.ours is None or self.target is None else self.ours - self.target

    @property
    def verdict(self) -> str:
        """'within' (of the published number), 'consistent' (with our own expectation), 'explained' (a miss of the published
        number whose cause holds), 'OUT', or 'beside' (no tolerance: it stands beside)."""
        if self.ours is None or not math.isfinite(self.ours):
            return OUT
        if self.tolerance is None:
            return BESIDE
        misses = {"=": abs(self.difference), "<=": self.difference, ">=": -self.difference}
        if misses[self.bound] <= self.tolerance:
            return WITHIN if self.compared_with == PAPER else CONSISTENT
        if self.explained_if and all(value <= limit for _, value, limit in self.explained_if):
            return EXPLAINED
        return OUT

    def to_dict(self) -> dict:
        """Everything, in plain values, with difference and verdict."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields |= {"difference": self.difference, "compared_with": self.compared_with, "verdict": self.verdict, "statistics": dict(self.statistics)}
        return {name: _plain(value) for name, value in fields.items()}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    value = value.item() if hasattr(value, "item") else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(frozen=True)
class Found:
    """What an item gives back: its rows, and functions that draw its plots, by name."""

    rows: tuple[Row, ...]
    plots: Mapping[str, Callable[[], Figure]] = dataclasses.field(default_factory=dict)
