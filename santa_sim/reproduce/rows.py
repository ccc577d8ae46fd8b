"""One compared number, its verdict, and what an item gives back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

WITHIN, OUT, BESIDE, EXPLAINED = VERDICTS = ("within", "OUT", "beside", "explained")


@dataclasses.dataclass(frozen=True)
class Row:
    """A published number beside ours. The verdict is computed from the numbers, never given.

    Attributes
    ----------
    item, name : str, the item ('table8') and what the number is
    ours : float or int, what came out here; None where it failed, and then the verdict is 'OUT'
    published : float or int, the paper's number, or None where it has none
    expected : float or int, what the verdict compares ours with; None takes `published`
    tolerance : float  [unit], largest |ours - expected| that is 'within'; None gives no verdict: 'beside'
    bound : '=' (within tolerance of expected), '<=' (ours at most expected + tolerance) or '>='
    explained_by : float or int, what the cause told in `note` predicts for a number that misses `expected`
    explained_tolerance : float  [unit]; a miss is 'explained' only if ours is this close to `explained_by`
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
    explained_by: float | None = None
    explained_tolerance: float | None = None
    unit: str = ""
    note: str = ""
    statistics: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.bound not in ("=", "<=", ">="):
            raise ValueError(f"bound={self.bound!r}: write '=', '<=' or '>='")
        if self.tolerance is not None and self.target is None:
            raise ValueError(f"{self.item}, {self.name}: a tolerance needs a published or an expected number")
        if (self.explained_by is None) != (self.explained_tolerance is None):
            raise ValueError(f"{self.item}, {self.name}: explained_by and explained_tolerance go together")

    @property
    def target(self) -> float | None:
        """What ours is compared with."""
        return self.published if self.expected is None else self.expected

    @property
    def difference(self) -> float | None:
        """Ours less the target, in the row's unit."""
        return None if self.ours is None or self.target is None else self.ours - self.target

    @property
    def verdict(self) -> str:
        """'within', 'OUT', 'beside' (no tolerance: it stands beside) or 'explained' (a miss that its cause predicts)."""
        if self.ours is None or not math.isfinite(self.ours):
            return OUT
        if self.tolerance is None:
            return BESIDE
        misses = {"=": abs(self.difference), "<=": self.difference, ">=": -self.difference}
        if misses[self.bound] <= self.tolerance:
            return WITHIN
        if self.explained_by is not None and abs(self.ours - self.explained_by) <= self.explained_tolerance:
            return EXPLAINED
        return OUT

    def to_dict(self) -> dict:
        """Everything, in plain values, with difference and verdict."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields |= {"difference": self.difference, "verdict": self.verdict, "statistics": dict(self.statistics)}
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
