"""`santa_sim.run`: a workload, a method and a machine in; cycles, joules, bytes and the estimator's error out."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import operator
from collections.abc import Callable

import numpy as np

from .analysis import quality
from .attention import check_tensors, reject_unknown, run_kernel
from .errors import InputError
from .hardware import Hardware, load_hardware
from .jit import cache_is_cold
from .methods.spec import SAMPLED, Spec
from .simulator import Result, simulate
from .tensors import make_tensors
from .trace import Trace
from .workload import Workload, load_workload

log = logging.getLogger("santa_sim")

_PRECISION_OF = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_DTYPE_OF = {precision: dtype for dtype, precision in _PRECISION_OF.items()}
_OPTIONS = ("S", "k", "score", "B", "hardware", "precision", "seed", "kernel", "tile", "allocation", "sampler", "value_format",
            "tensor_seed", "progress")  # fmt: skip
_DENSE_DEFAULT, _SAMPLED_DEFAULT = "mac_hbm3", "adder_hbm3"


def run(workload: str | Workload, method: str, S=None, *, k: int | None = None, score: str = "exact", B: int | None = None,
        hardware: str | Hardware | None = None, precision: str | None = None, seed: int = 0, kernel: str = "cpu",
        tile: int | None = None, allocation: str = "largest-remainder", sampler: str = "scaled-weights",
        value_format: str | None = None, tensor_seed: int = 0,
        progress: Callable[[str, int, int], None] | None = None, **unknown) -> Result:  # fmt: skip
    """Run a method on a workload's tensors, play its trace on a machine, and compare its output with exact attention.

    Parameters
    ----------
    workload : shipped name, path of a .yaml file, mapping, or Workload
    method : 'sdpa', 'topk', 'santa', 's2anta-strat', 's2anta-sys', 's2anta-prop' or 's2anta-flash'
    S : int, or one per layer; samples per query and head (sampled methods).  k : int, keys kept (top-k)
    score : 'exact', 'bernoulli', 'bernoulli-stratified' or 'bernoulli-mean-group', with B draws per feature
    hardware : shipped name, path, mapping, Hardware or Gpu (such as 'h200'); by default 'mac_hbm3' for sdpa and topk, which multiply in the value
        stage, and 'adder_hbm3' for the sampled methods
    precision : 'fp32', 'fp16', 'bf16', 'int8' or 'int16'; by default the workload's own type
    seed : the draws' seed.  tensor_seed : the synthetic tensors' seed
    kernel : 'cpu', 'torch' or 'gpu'
    tile, allocation, sampler, value_format : see `santa_sim.methods.spec.Spec`
    progress : called with (what, done, in all)

    Returns
    -------
    Result, with `output` [H, d] (decode) or [n_q, H, d] (nested in lists by sequence and layer where there are several),
    and `error`: `relative_l2` and `max_abs` of the output against exact attention on the same tensors (float64), and,
    where a closed form exists (santa and s2anta-strat with exact scores, decoding), `variance_trace` = E|error|^2 averaged
    over heads, and `expected_relative_l2`.

    Raises
    ------
    InputError
        Anything that can't be run, named with its value and what to write instead.
    """
    trace, outputs, machine = _run_method(workload, method, S, k, score, B, hardware, precision, seed, kernel, tile, allocation,
                                          sampler, value_format, tensor_seed, progress, unknown)  # fmt: skip
    step = functools.partial(progress, "simulating") if progress else None
    result = simulate(trace, machine, progress=step)
    while isinstance(outputs, list) and len(outputs) == 1:
        outputs = outputs[0]
    return dataclasses.replace(result, output=outputs)


def make_trace(workload: str | Workload, method: str, S=None, *, k: int | None = None, score: str = "exact",
               B: int | None = None, precision: str | None = None, seed: int = 0, kernel: str = "cpu", tile: int | None = None,
               allocation: str = "largest-remainder", sampler: str = "scaled-weights", value_format: str | None = None,
               tensor_seed: int = 0, progress: Callable[[str, int, int], None] | None = None, **unknown) -> Trace:  # fmt: skip
    """The trace that `run` would play, with the output's error in its `meta['quality']`. Arguments as in `run`."""
    return _run_method(workload, method, S, k, score, B, None, precision, seed, kernel, tile, allocation, sampler,
                       value_format, tensor_seed, progress, unknown)[0]  # fmt: skip


def machine_for(method: str, hardware: str | Hardware | None) -> Hardware:
    """The machine asked for, or where none is (None) the one that suits the method; see `run`."""
    if hardware is None:
        hardware = _SAMPLED_DEFAULT if method in SAMPLED else _DENSE_DEFAULT
    return load_hardware(hardware)


def _run_method(workload, method, S, k, score, B, hardware, precision, seed, kernel, tile, allocation, sampler, value_format,
                tensor_seed, progress, unknown):  # fmt: skip
    reject_unknown("run", unknown, _OPTIONS)
    workload = load_workload(workload)
    precision = _PRECISION_OF[workload.dtype] if precision is None else precision
    spec = Spec(method=method, samples=S, k=k, score=score, B=B, precision=precision, tile=tile, allocation=allocation,
                sampler=sampler, seed=seed, value_format=value_format)  # fmt: skip
    if isinstance(tensor_seed, bool) or not isinstance(tensor_seed, (int, np.integer)) or tensor_seed < 0:
        raise InputError(f"tensor_seed={tensor_seed!r} is not a whole number >= 0")
    tensor_seed = int(tensor_seed)
    if spec.method in SAMPLED:
        for index in range(workload.layers):
            spec.samples_at(index, workload.layers)
    machine = machine_for(method, hardware)
    if kernel == "cpu" and cache_is_cold():
        log.warning("compiling kernels: first run on this machine only, up to a minute")
    dtype = _DTYPE_OF.get(spec.precision, workload.dtype)
    if progress:
        progress("making tensors", 0, 1)
    inputs, tensors, layers, notes = _tensors(workload, dtype, tensor_seed, spec.precision)
    step = functools.partial(progress, "running the method") if progress else None
    meta = {"workload": workload.name, "tensor_seed": tensor_seed}
    outputs, trace = run_kernel(spec, tensors, layers, kernel, meta, step)
    if progress:
        progress("comparing with exact attention", 0, 1)
    error = _quality(spec, workload, inputs, tensors, outputs)
    trace = Trace(trace.items, {**trace.meta, "quality": error, "notes": [*trace.meta["notes"], *notes]})
    return trace, outputs, machine


def _tensors(workload: Workload, dtype: str, seed: int, precision: str) -> tuple[_SameArrays, list, tuple[int, ...], tuple[str, ...]]:
    made = make_tensors(workload, dtype, seed)
    tensors = [[check_tensors(*x) for x in zip(*of_layer)] for of_layer in zip(made.q, made.k, made.v)]
    layers = tuple(made.report.get("layers") or range(workload.layers))
    notes = tuple(made.report.get("notes", ()))
    deviation = made.report.get("logits_max_abs_deviation")
    if deviation is not None:
        before = "" if precision in _DTYPE_OF else f", before they are quantised to {precision},"
        notes += (f"workload: after rounding to {dtype}{before} the logits are within {deviation:.2g} of the wanted ones",)
    arrays = [x for of_layer in zip(made.q, made.k, made.v) for qkv in zip(*of_layer) for x in qkv]
    return _SameArrays(tuple(arrays)), tensors, layers, notes


class _SameArrays:
    """Arrays that compare by identity, to key a cache; it keeps them, so that no other array can take their place."""

    def __init__(self, arrays: tuple) -> None:
        self.arrays = arrays

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameArrays) and len(self.arrays) == len(other.arrays) and all(map(operator.is_, self.arrays, other.arrays))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.arrays)))


@functools.lru_cache(maxsize=2)
def _exact(inputs: _SameArrays) -> list[np.ndarray]:
    q, k, v = (inputs.arrays[i::3] for i in range(3))
    return [quality.exact_attention(x[None] if x.ndim == 2 else x, y, z) for x, y, z in zip(q, k, v)]


def _quality(spec: Spec, workload: Workload, inputs: _SameArrays, tensors: list, outputs: list) -> dict[str, float]:
    exact = _exact(inputs)
    error = quality.output_error([o for of_layer in outputs for o in of_layer], exact)
    if spec.method in ("santa", "s2anta-strat") and spec.score == "exact" and workload.kind == "decode":
        traces = []
        for of_layer in tensors:
            for index, (q, k, v, _) in enumerate(of_layer):
                S = spec.samples_at(index, len(of_layer))
                for kv in range(k.shape[1]):
                    values = np.ascontiguousarray(v[:, kv]).astype(np.float32)
                    for p in quality.attention_weights(q[0], k, kv):
                        traces.append(quality.variance_trace(spec.method, p, values, S))
        total, square = math.fsum(traces), sum(float((e * e).sum()) for e in exact)
        error["variance_trace"] = total / len(traces)
        error["expected_relative_l2"] = math.sqrt(total / square) if square > 0 else 0.0
    return error

