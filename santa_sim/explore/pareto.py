"""Pareto fronts: the rows of a table that no other row beats in everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError, choose

if TYPE_CHECKING:
    import pandas as pd

QUANTITIES = ("latency_s", "energy_j", "area_m2", "error_relative_l2")


def pareto(frame: pd.DataFrame, minimize: Sequence[str] = QUANTITIES) -> pd.DataFrame:
    """The rows on the Pareto front of some columns, all of them the less the better, in their order.

    A row is on it if no other row is at least as good in every column and better in one; rows that are equal in all of
    them stay together. Rows that lack one of the columns (failed ones) are left out.

    Raises
    ------
    InputError
        A column doesn't exist (the nearest is named) or holds no numbers; no columns are given.
    """
    names = [minimize] if isinstance(minimize, str) else list(minimize)
    if not names:
        raise InputError("minimize=[] is empty: name columns, such as latency_s and energy_j")
    for name in names:
        choose("minimize", name, frame.columns)
        if not all(isinstance(value, (int, float, np.number)) for value in frame[name].dropna()):
            raise InputError(f"minimize={name!r} holds text, not numbers")
    known = frame.dropna(subset=names)
    costs = known[names].to_numpy(float)
    return known[on_front(costs)]


def on_front(costs: np.ndarray) -> np.ndarray:
    """bool [n]: which of the points `costs` [n, quantities] no other one dominates."""
    order = np.lexsort(costs.T[::-1])  # whatever dominates a point comes before it
    front, keep = np.empty((0, costs.shape[1])), np.zeros(len(costs), bool)
    for place in order:
        point = costs[place]
        if not ((front <= point).all(1) & (front < point).any(1)).any():
            keep[place] = True
            front = np.vstack([front, point])
    return keep
