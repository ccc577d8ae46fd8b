"""What the parts of a machine do with their time: work, or wait for something that has a name.

A cause is a key such as `data_k`. For each unit, the times of all causes add up to the latency, in whole femtoseconds.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from .jobs import Job

BUSY, READ, WRITE, BANK, WINDOW, DONE = "busy", "read", "write", "bank", "window", "done"
REQUESTS = "requests"  # the unit that hands memory jobs over in the program's order; it works in no time
_WORDS = {
    BUSY: "busy",
    READ: "reads",
    WRITE: "writes",
    BANK: "waiting for a bank",
    WINDOW: "waiting for a place among the requests in flight",
    DONE: "nothing left to do",
    "work_score": "waiting for scores",
    "work_requests": "waiting for a turn among requests",
}
_BUFFERS = {
    "scores": "scores for softmax", "rows": "sampled tiles", "stash_tiles": "stash for the sampler", "stash_reads": "spilled stash",
    "weights": "exponentials", "q_buffer": "queries", "k_buffer": "K", "v_buffer": "V",
}  # fmt: skip
_UNITS = {"stash_write": "stash (write port)", "stash_read": "stash (read port)"}


@dataclasses.dataclass(frozen=True)
class Wait:
    """A unit waits: for what, start and end [fs]."""

    unit: str
    cause: str
    start_fs: int
    end_fs: int


def cause_of(job: Job) -> str:
    """What somebody waits for who waits for this job."""
    if job.unit != "dram":
        return _work(job.unit)
    return _data(job.rows.kind if job.rows is not None else job.regions[0].kind if job.regions else "no_read")


@functools.cache
def _work(unit: str) -> str:
    return f"work_{unit}"


@functools.cache
def _data(kind: str) -> str:
    return f"data_{kind.rpartition('_')[0]}"


@functools.cache
def space_of(buffer: str) -> str:
    """What somebody waits for who waits for slots of a buffer."""
    return f"space_{buffer}"


def words(cause: str) -> str:
    """A cause as people say it."""
    if cause in _WORDS:
        return _WORDS[cause]
    family, _, what = cause.partition("_")
    if family == "data":
        return f"waiting for memory data ({what.upper() if len(what) == 1 else what})"
    if family == "work":
        return f"waiting for work from {_UNITS.get(what, what)}"
    if what.endswith("_writes"):
        return f"waiting for buffer space (write-backs of {what.removesuffix('_writes')})"
    return f"waiting for buffer space ({_BUFFERS.get(what, what)})"


def table(stalls_fs: dict[str, dict[str, int]]) -> pd.DataFrame:
    """One row a unit and cause: `unit`, `cause`, `what` in words, `time_fs` (whole), `time_s`, `share` of the latency."""
    import pandas as pd

    rows = []
    for unit, causes in stalls_fs.items():
        latency = sum(causes.values())
        for cause, fs in causes.items():
            rows.append((unit, cause, words(cause), fs, fs / 1e15, fs / latency if latency else 0.0))
    return pd.DataFrame(rows, columns=["unit", "cause", "what", "time_fs", "time_s", "share"])


# Segments of time, painted in layers


def union(intervals: np.ndarray) -> np.ndarray:
    """Intervals int64 [n, 2] that may overlap, as disjoint ones in order; what touches is joined."""
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(intervals):
        return intervals
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(intervals[:, 1])
    first = np.flatnonzero(np.concatenate([[True], intervals[1:, 0] > ends[:-1]]))
    return np.stack([intervals[first, 0], ends[np.append(first[1:] - 1, len(ends) - 1)]], 1)


def paint(layers: list[tuple[str, np.ndarray]], end: int) -> list[tuple[str, int, int]]:
    """Cut [0, end) into (label, start, end): at each moment the first layer that covers it; no gaps, no neighbours alike.

    Parameters
    ----------
    layers : (label, int64 [n, 2] of intervals), the first on top; DONE where none is
    """
    edges = np.unique(np.concatenate([np.array([0, end], np.int64), *(spans.ravel() for _, spans in layers)]))
    edges = edges[(edges >= 0) & (edges <= end)]
    label = np.full(len(edges) - 1, len(layers), np.int64)
    for number in range(len(layers) - 1, -1, -1):
        spans = np.clip(layers[number][1], 0, end)
        change = np.zeros(len(edges), np.int64)
        np.add.at(change, np.searchsorted(edges, spans[:, 0]), 1)
        np.add.at(change, np.searchsorted(edges, spans[:, 1]), -1)
        label[np.cumsum(change)[:-1] > 0] = number
    first = np.flatnonzero(np.concatenate([[True], label[1:] != label[:-1]])) if len(label) else np.zeros(0, np.int64)
    names = [name for name, _ in layers] + [DONE]
    stops = np.append(first[1:], len(label))
    return [(names[label[i]], int(edges[i]), int(edges[j])) for i, j in zip(first, stops)]
