"""Figure 4 of arXiv:2605.01910: kernel times of one decode step against the number of keys, on a card that nobody calibrated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ...errors import InputError
from ...hardware_gpu import Gpu
from .authors import tile_of
from .timing import predict
from .work import dense_work

_H, _H_KV = 32, 8  # Appendix Q: Llama-3.1-8B's heads, d = 128, batch 1, bf16, Gaussian inputs
KERNELS = {"dense": ("sdpa", None, "split-kv"), "s2anta-prop": ("s2anta-prop", 128, "authors"), "s2anta-flash": ("s2anta-flash", 2048, "authors")}


def paper_figure4(n_k: Sequence[int] = (4096, 8192, 16384, 32768), machine: str | Path | Gpu = "rtx_6000_ada", *, start: str = "stream",
                  cache: str = "dirty") -> pd.DataFrame:  # fmt: skip
    """Predicted kernel times of the authors' kernels (prop S = 128, flash S = 2048) and of dense attention split over keys.

    Parameters
    ----------
    n_k : numbers of keys, above 3,072, where the authors' kernels take tiles of 256 keys
    machine : name, path or Gpu;  start, cache : as for `predict`; the paper's are 'stream' and 'dirty'

    Returns
    -------
    DataFrame, one row per n_k and kernel: `n_k`, `kernel` ('dense', 's2anta-prop', 's2anta-flash'), `S`, `launches`, `time_s` [s],
    `speedup` (dense over this kernel), `bound_by` (of its longest launch), `longest` (that launch)

    Raises
    ------
    InputError
        A number of keys or a machine that the kernels don't take.
    """
    from ...hardware import load_hardware

    gpu = load_hardware(machine)
    rows = []
    for n in n_k:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"n_k={n!r}: write whole numbers of keys, such as n_k=[8192, 32768]")
        dense_s = None
        for kernel, (method, S, implementation) in KERNELS.items():
            work = dense_work(n, H=_H, H_kv=_H_KV, method=method, S=S, tile=tile_of(n), v_rows=None if S is None else rows_of(method, S, n),
                              allocation="largest-remainder" if method == "s2anta-prop" else None)  # fmt: skip
            frame = predict(work, gpu, implementation, start=start, cache=cache)
            time_s = float(frame["time_s"].sum())
            dense_s = time_s if dense_s is None else dense_s
            longest = frame.loc[frame["time_s"].idxmax()]
            rows.append({"n_k": n, "kernel": kernel, "S": S, "launches": len(frame), "time_s": time_s, "speedup": dense_s / time_s,
                         "longest": longest["launch"], "bound_by": longest["bound_by"]})  # fmt: skip
    return pd.DataFrame(rows)


def rows_of(method: str, S: int, n_k: int) -> int:
    """Rows of V that differ within a group of independent heads, expected, for standard normal scores.

    A key of weight w = exp(z) is drawn by systematic sampling with probability min(1, a w / E[w]), a = samples per key; the
    mean over z ~ N(0, 1) is a Phi(c - 1) + 1 - Phi(c) with c = 1/2 - ln a.
    """
    T = -(-n_k // tile_of(n_k))
    drawn = T * max(1, S // T) if method == "s2anta-flash" else S
    a = drawn / n_k
    c = 0.5 - math.log(a)
    probability = a * _normal(c - 1) + 1 - _normal(c)
    return round(n_k * (1 - (1 - min(1.0, probability)) ** (_H // _H_KV)))


def _normal(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))
