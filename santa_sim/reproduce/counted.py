"""Counts and bytes of a kernel's run, and the formulas beside them: the published ones as text, and the closed forms."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..analysis.closed_forms import Counts
from ..trace import Trace

METRICS = ("adds", "mults", "reads", "writes", "shifts")


def gaussian(rng: np.random.Generator, n_q: int | None, n_k: int, H: int, H_kv: int, d: int, dtype: type) -> tuple:
    """q [H, d] (n_q None) or [n_q, H, d], k and v [n_k, H_kv, d], all N(0, 1)."""
    shape = (H, d) if n_q is None else (n_q, H, d)
    return tuple(rng.standard_normal(s, np.float32).astype(dtype) for s in (shape, (n_k, H_kv, d), (n_k, H_kv, d)))


def counted(trace: Trace, stage: str, heads: int) -> dict[str, float]:
    """What the kernel counted in its 'score' or 'value' stage, per query head; the score stage has no shifts."""
    metrics = METRICS if stage == "value" else METRICS[:-1]
    totals = {metric: trace.total(f"{stage}_{metric}") for metric in metrics}
    return {metric: total // heads if total % heads == 0 else total / heads for metric, total in totals.items()}


def published_counts(formulas: dict[str, str], shifts: bool = False, **symbols: int) -> dict[str, int]:
    """The paper's formulas, such as 'S*d', with numbers for their letters; `shifts` turns the divisions into shifts."""
    counts = {metric: eval(text, {"__builtins__": {}}, symbols) for metric, text in formulas.items()}
    counts["shifts"] = counts["mults"] if shifts else 0
    return counts | {"mults": 0} if shifts else counts


def differing(counts: dict[str, float], form: Counts) -> int:
    """How many of the counts aren't the closed form's."""
    return sum(value != getattr(form, metric) for metric, value in counts.items())


def bytes_read(items: pd.DataFrame, buffer: str) -> np.ndarray:
    """Bytes of a buffer that each work item streams in or gathers, int [items]."""
    counts = np.zeros(len(items), np.int64)
    columns = ("stream_buffer", "stream_bytes", "stream_write", "gather_buffer", "gather_rows", "gather_row_bytes")
    for place, (names, sizes, writes, gathered, rows, row) in enumerate(zip(*(items[column] for column in columns))):
        counts[place] = sum(int(size) for name, size, write in zip(names, sizes, writes) if name == buffer and not write)
        counts[place] += len(rows) * int(row) if gathered == buffer else 0
    return counts
