"""Q, K and V of a workload, from whichever source it names."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from pathlib import Path

import ml_dtypes
import numpy as np

from .captured import MAKE_ONE, load_captured
from .errors import InputError, choose
from .schema import existing_file, shown
from .synthetic import make_synthetic
from .workload import DTYPES, Captured, Workload, load_workload

_NUMPY_DTYPES = {
    "float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Tensors:
    """The inputs of an attention step, read-only arrays in the storage type, indexed [sequence][layer].

    Attributes
    ----------
    q : list of list of arrays
        [H, d] when decoding, [n_q, H, d] in a prefill; 1/sqrt(d) is not folded in.
    k, v : list of list of arrays
        [n_k, H_kv, d], the sequence-first cache, the current token last.
    report : dict
        `source`, `notes`, for wanted logits `logits_max_abs_deviation` and `logits_rms_deviation` of those reached
        after rounding, for captured tensors `layers` and `provenance`.
    """

    q: list[list[np.ndarray]]
    k: list[list[np.ndarray]]
    v: list[list[np.ndarray]]
    report: dict


def make_tensors(workload: Workload | str | Path, dtype: str, seed: int) -> Tensors:
    """Return the workload's Q, K and V in a storage type.

    The same (workload, dtype, seed) gives the same arrays whatever the number of threads; captured tensors don't depend
    on the seed. The last two results are kept, so asking again costs nothing; the arrays can't be written to.

    Parameters
    ----------
    workload : Workload, or what load_workload takes
    dtype : str
        'float32', 'float16' or 'bfloat16'.
    seed : int
        At least 0.

    Raises
    ------
    InputError
        Unknown dtype, a seed that isn't a non-negative integer, a source that can't give these tensors, or tensors that
        don't fit in the machine's memory.
    """
    workload = load_workload(workload)
    choose("dtype", dtype, DTYPES)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed={shown(seed)} is not a non-negative integer")
    if isinstance(workload.source, Captured):
        state = existing_file(Path(workload.source.file), "source.file =", MAKE_ONE).stat()
        cached = _make(workload, dtype, 0, (state.st_mtime_ns, state.st_size))
    else:
        free = free_bytes()
        if free is not None and tensor_bytes(workload, dtype) > free:
            raise _too_large(workload, dtype, f"; {free / 1e9:,.1f} GB of memory are free")
        cached = _make(workload, dtype, int(seed), None)
    lists = ([list(layers) for layers in part] for part in (cached.q, cached.k, cached.v))
    return Tensors(*lists, report=copy.deepcopy(cached.report))


def tensor_bytes(workload: Workload, dtype: str) -> int:
    """Bytes that Q, K and V of a workload take in a storage type [B]."""
    elements = sum(
        n_q * workload.heads + 2 * n_k * workload.kv_heads
        for n_q, n_k in zip(workload.query_lengths, workload.lengths)
    )
    return workload.layers * elements * workload.head_dim * _NUMPY_DTYPES[dtype].itemsize


def free_bytes() -> int | None:
    """Memory and swap that a process could still get [B]; all memory where only that is known, else None.

    Linux promises more memory than there is, and ends a process that uses it, so this is asked before making tensors.
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
        return 1024 * (kib["MemAvailable"] + kib.get("SwapFree", 0))
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _too_large(workload: Workload, dtype: str, rest: str = "") -> InputError:
    size = f"{tensor_bytes(workload, dtype) / 1e9:,.1f} GB in {dtype}"
    shape = ", ".join(f"{name}={shown(getattr(workload, name))}" for name in ("n_k", "kv_heads", "head_dim", "layers"))
    return InputError(f"workload {workload.name!r}: Q, K and V would take {size} ({shape}){rest}; write a smaller n_k, "
                      "or fewer layers or sequences")  # fmt: skip


@functools.lru_cache(maxsize=2)
def _make(workload: Workload, dtype: str, seed: int, file_state: tuple | None) -> Tensors:
    """`file_state` only keys the cache: a captured file that was written anew is read anew."""
    if isinstance(workload.source, Captured):
        q, k, v, report = load_captured(workload, _NUMPY_DTYPES[dtype])
    else:
        try:
            q, k, v, report = make_synthetic(workload, _NUMPY_DTYPES[dtype], seed)
        except MemoryError:
            raise _too_large(workload, dtype) from None
    for array in (array for part in (q, k, v) for layers in part for array in layers):
        array.setflags(write=False)
    return Tensors(q, k, v, report)
