"""Pareto fronts: the rows of a table that no other row beats in everything."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError, choose

if TYPE_CHECKING:
    import pandas as pd

QUANTITIES = ("latency_s", "energy_j", "area_m2", "error_relative_l2")
_NO_WORK = ("dtype", "model")  # fields of a workload that may differ between rows of one front


def pareto(frame: pd.DataFrame, minimize: Sequence[str] = QUANTITIES) -> pd.DataFrame:
    """The rows on the Pareto front of some columns, all of them the less the better, in their order.

    A row is on it if no other row is at least as good in every column and better in one; rows that are equal in all of
    them stay together. Each workload (with the n_k, batch and other sizes that a sweep varies) has a front of its own.
    Left out, with a warning that says how many and on which machines: rows that lack one of the columns (failed ones,
    energies of GPUs), and rows of which more of the energy is unknown, and counted as 0, than of others of the workload.

    Raises
    ------
    InputError
        It is no table; a column doesn't exist (the nearest is named) or holds no numbers; no columns are given; of two
        rows' energies each lacks a part that the other has.
    """
    front, left_out = fronts(frame, minimize)
    for reason in left_out:
        warnings.warn(f"left out: {reason}", stacklevel=2)
    return front


def fronts(frame: pd.DataFrame, minimize: Sequence[str] = QUANTITIES) -> tuple[pd.DataFrame, list[str]]:
    """What `pareto` returns, and what is left out and why."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        hint = f": write pareto(pandas.read_{'parquet' if frame.endswith('.parquet') else 'csv'}({frame!r}), ...)" if isinstance(frame, str) else ""
        raise InputError(f"pareto takes a table of runs, a DataFrame, not {type(frame).__name__}{hint}")
    names = [minimize] if isinstance(minimize, str) else list(minimize)
    if not names:
        raise InputError("minimize=[] is empty: name columns, such as latency_s and energy_j")
    for name in names:
        choose("minimize", name, frame.columns)
        if not all(isinstance(value, (int, float, np.number)) for value in frame[name].dropna()):
            raise InputError(f"minimize={name!r} holds text, not numbers")
    left_out, known = [], frame[names].notna().all(axis=1).to_numpy()
    if not known.all():
        lacking = frame[~known]
        columns = [name for name in names if lacking[name].isna().any()]
        failed = int(lacking["failure"].notna().sum()) if "failure" in frame else 0
        some = f", {failed:,} of them failed" if failed else ""
        left_out.append(f"{len(lacking):,} of {len(frame):,} rows without {' or '.join(columns)}{some}{_machines(lacking)}")
    keep = np.zeros(len(frame), bool)
    unlike = np.zeros(len(frame), bool)
    more: dict[str, None] = {}
    unknowns = _unknown(frame, names)
    for places in _groups(frame, works(frame, names)):
        places = places[known[places]]
        unknown = [unknowns[place] for place in places]
        least = _least(frame, places, unknown)
        lacks = np.array([parts != least for parts in unknown], bool)
        unlike[places[lacks]] = True
        more |= dict.fromkeys(part for parts in unknown for part in sorted(parts - least))
        places = places[~lacks]
        keep[places[on_front(frame.iloc[places][names].to_numpy(float))]] = True
    if unlike.any():
        left_out.append(f"{unlike.sum():,} of {len(frame):,} rows whose energy lacks {', '.join(more)}, which others have{_machines(frame[unlike])}")
    return frame[keep], left_out


def works(frame: pd.DataFrame, minimize: Sequence[str] = ()) -> list[str]:
    """Columns that say which work a row did, and differ: the workload, and fields of it that a sweep varied."""
    from .sweep_fields import workload_fields

    fields = [name for name in workload_fields() if name not in _NO_WORK]
    found = [name for name in frame.columns if (name == "workload" or str(name).removeprefix("workload.") in fields) and name not in minimize]
    return [name for name in found if frame[name].astype(str).nunique() > 1]


def _groups(frame: pd.DataFrame, columns: list[str]) -> list[np.ndarray]:
    """Places of the rows of each work."""
    if not columns:
        return [np.arange(len(frame))]
    return list(frame[columns].astype(str).reset_index(drop=True).groupby(columns, sort=False).indices.values())


def _unknown(frame: pd.DataFrame, names: list[str]) -> list[frozenset[str]]:
    """Of each row, the parts of the energies among `names` that count as 0 since nobody has a figure for them."""
    texts = frame["energy_unknown"] if "energy_unknown" in frame else [""] * len(frame)
    parts = [text.split("; ") if isinstance(text, str) and text else [] for text in texts]
    return [frozenset(part for part in row if "energy_j" in names or f"energy_{part}_j" in names) for row in parts]


def _least(frame: pd.DataFrame, places: np.ndarray, unknown: list[frozenset[str]]) -> frozenset[str]:
    """The unknown parts of the rows that lack least; InputError if two rows each lack what the other has."""
    least = [parts for parts in dict.fromkeys(unknown) if not any(other < parts for other in unknown)]
    if len(least) > 1:
        says = [f"{', '.join(sorted(parts))}{_machines(frame.iloc[[place for place, has in zip(places, unknown) if has == parts]])}" for parts in least[:2]]
        raise InputError(f"some energies lack {says[0]}, others {says[1]}: no winner can be told; give such rows apart, or minimize without energy")
    return least[0] if least else frozenset()


def _machines(rows: pd.DataFrame) -> str:
    """' (on mac_lpddr5, h200)' where the table says it."""
    names = list(dict.fromkeys(rows["hardware"].dropna().astype(str))) if "hardware" in rows else []
    return f" (on {', '.join(names[:6])}{', ...' if len(names) > 6 else ''})" if names else ""


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
