"""Captured tensors: one decode step of a language model, read from an .npz file with NumPy alone."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

import numpy as np

from .errors import InputError
from .schema import existing_file
from .workload import Workload

ARRAYS = ("q", "k", "v", "layers", "provenance")
MAKE_ONE = "; write the path of an .npz file (python -m santa_sim.models.capture makes one)"
_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, TypeError, RuntimeError,
               MemoryError)  # fmt: skip


def _read(path: Path) -> dict[str, np.ndarray]:
    existing_file(path, "source.file =", MAKE_ONE)
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in ARRAYS if name not in file.files]
            if missing:
                raise InputError(f"source.file = {str(path)!r} has no array {missing[0]!r}; "
                                 f"it needs {', '.join(ARRAYS)}")  # fmt: skip
            return {name: file[name] for name in ARRAYS}
    except InputError:
        raise
    except _UNREADABLE as error:
        raise InputError(f"source.file = {str(path)!r} is not readable as .npz: {error}") from None


def _check(arrays: dict[str, np.ndarray], workload: Workload, path: Path) -> None:
    """InputError unless q [L, H, d], k and v [L, n_k, H_kv, d] have the workload's shapes and are finite floats."""
    if len(workload.lengths) != 1:
        raise InputError(f"n_k = {workload.n_k!r}: a captured workload has one sequence; write the one length")
    if arrays["layers"].dtype.kind not in "iu" or arrays["layers"].ndim > 1:
        raise InputError(f"layers in {str(path)!r} must be a list of whole numbers, the layers that were captured")
    count = len(np.atleast_1d(arrays["layers"]))
    n_k, h, h_kv, d = workload.lengths[0], workload.heads, workload.kv_heads, workload.head_dim
    shapes = {"q": (count, h, d), "k": (count, n_k, h_kv, d), "v": (count, n_k, h_kv, d)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise InputError(f"{name} in {str(path)!r} has shape {arrays[name].shape}, but the workload's heads, "
                             f"kv_heads, head_dim and n_k ask for {shape}")  # fmt: skip
        if arrays[name].dtype.kind != "f":
            raise InputError(f"{name} in {str(path)!r} has dtype {arrays[name].dtype}, not a floating type")
        if not np.isfinite(arrays[name]).all():
            raise InputError(f"{name} in {str(path)!r} holds NaN or infinity")


def load_captured(
    workload: Workload, dtype: np.dtype
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]], list[list[np.ndarray]], dict]:
    """Q [H, d], K and V [n_k, H_kv, d], each [sequence][layer], of the layers that the workload names, and a report.

    Raises
    ------
    InputError
        The file is missing or unreadable, lacks a layer, or its shapes aren't the workload's.
    """
    path = Path(workload.source.file)
    arrays = _read(path)
    _check(arrays, workload, path)
    present = [int(layer) for layer in np.atleast_1d(arrays["layers"])]
    report = {"source": "captured", "layers": list(workload.source.layers), "notes": []}
    try:
        report["provenance"] = json.loads(str(arrays["provenance"]))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"provenance in {str(path)!r} is not JSON: {error}") from None
    for layer in workload.source.layers:
        if layer not in present:
            raise InputError(f"source.layers: layer {layer} was not captured; {str(path)!r} has {present}")
    picked = [present.index(layer) for layer in workload.source.layers]
    native = arrays["q"].dtype
    if native != dtype:
        report["notes"].append(f"captured in {native.name}, converted to {dtype.name}")
    with np.errstate(over="ignore"):  # what doesn't fit the dtype is caught just below
        q, k, v = ([[arrays[name][i].astype(dtype) for i in picked]] for name in ("q", "k", "v"))
    if not all(np.isfinite(x).all() for x in (*q[0], *k[0], *v[0])):
        raise InputError(f"dtype={dtype.name!r} can't hold the values in {str(path)!r}; write dtype float32")
    return q, k, v, report
