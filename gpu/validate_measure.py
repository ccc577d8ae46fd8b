"""Measuring the kernels of a cell: time as called and as a graph, and the output against float64."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable

from ..errors import InputError
from . import device
from .kernel import decode, make_plan
from .validate_cells import H_KV, METHODS, TILE, Cell, D, H, Inputs, widened
from .validate_judge import OUTPUT_TOLERANCE, passed
from .validate_timing import graph_of, measure


def measure_cell(cell: Cell, inputs: Inputs, flush) -> dict:
    """Record of one cell: what it is, its times [s], how its output compares with float64.

    A cell that the kernels refuse is a record with `refused`.
    """
    record = {**dataclasses.asdict(cell), "name": cell.name}
    try:
        plan = make_plan(cell.spec(), cell.batch, H, H_KV, D, cell.n_k, tile=TILE)
    except InputError as error:
        return {**record, "refused": str(error)}
    out = device.require_cupy().empty_like(inputs.q)
    call = functools.partial(decode, plan, inputs.q, inputs.k, inputs.v, out)
    call()
    record["as_called"] = dataclasses.asdict(measure(call, flush))
    record["graph"] = dataclasses.asdict(measure(graph_of(call), flush))
    record["host_s"] = host_time(call)
    record["splits"], record["per_split"], record["tile"] = plan.splits, plan.per_split, plan.tile
    record["check"] = check_output(cell, inputs, plan, out)
    return record


def host_time(call: Callable[[], object], calls: int = 30) -> float:
    """Time the host takes to issue a call [s], the GPU idle."""
    cuda = device.require_cupy().cuda
    times = []
    for _ in range(calls):
        cuda.Device().synchronize()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    cuda.Device().synchronize()
    return sorted(times)[calls // 2]


def check_output(cell: Cell, inputs: Inputs, plan, out) -> dict:
    """Compare the first sequence's output with float64 arithmetic on the rows that the counting build lists.

    Returns `relative_l2` and `tolerance`, and for the stash `total_variation`, for top-k `row_agreement`; `passed`.
    """
    cupy = device.require_cupy()
    first = [x[:1] for x in (inputs.q, inputs.k, inputs.v)]
    result = widened(out[0])
    weights = exact_weights(first)
    check: dict = {"tolerance": OUTPUT_TOLERANCE[cell.precision]}
    method = METHODS[cell.method][0]
    if method == "sdpa":
        reference = weighted(weights, first[2])
    else:
        counting = make_plan(cell.spec(), 1, H, H_KV, D, cell.n_k, tile=TILE, instrument=True)
        decode(counting, *first, cupy.empty((1, H, D), cupy.float32))
        if method == "topk":
            rows = counting.work["selected"][0].astype(cupy.int64)
            chosen = cupy.zeros_like(weights)
            cupy.put_along_axis(chosen, rows, cupy.take_along_axis(weights, rows, 1), 1)
            best = cupy.argpartition(weights, -cell.S, axis=1)[:, -cell.S :]
            agreed = cupy.zeros(weights.shape, bool)
            cupy.put_along_axis(agreed, best, True, 1)
            check["row_agreement"] = float(cupy.take_along_axis(agreed, rows, 1).mean())
            reference = weighted(chosen / chosen.sum(1, keepdims=True), first[2])
        elif method == "s2anta-flash":
            reference = flash_reference(counting, first[2])
        else:
            rows = counting.counts.rows[0].astype(cupy.int64)
            reference = cupy.stack([gathered(first[2], h, rows[h]).mean(0) for h in range(H)])
            check["total_variation"] = float(cupy.abs(stashed_weights(counting) - weights).sum(1).max() / 2)
    norm = cupy.linalg.norm(reference)
    check["relative_l2"] = float(cupy.linalg.norm(result - reference) / norm) if norm else math.inf
    check["passed"] = passed(check, cell.precision)
    return check


def exact_weights(first):
    """Softmax of the scaled scores in float64, [H, n]."""
    cupy = device.require_cupy()
    q, k = widened(first[0][0]), first[1][0]
    scores = cupy.concatenate([q[kv * H // H_KV : (kv + 1) * H // H_KV] @ widened(k[:, kv]).T for kv in range(H_KV)]) / math.sqrt(D)
    weights = cupy.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def weighted(weights, v):
    """Weighted rows of V in float64, [H, d]."""
    cupy = device.require_cupy()
    group = H // H_KV
    return cupy.concatenate([weights[kv * group : (kv + 1) * group] @ widened(v[0, :, kv]) for kv in range(H_KV)])


def gathered(v, h: int, rows):
    return widened(v[0, rows, h // (H // H_KV)])


def stashed_weights(plan):
    """The score pass's weights [H, n] of the first sequence, from its stash, maxima and sums."""
    cupy = device.require_cupy()
    u = plan.u[0, :, :, :, :TILE].astype(cupy.float64).transpose(0, 2, 1, 3)  # [H_kv, G, T, TILE]
    m = plan.m[0].astype(cupy.float64).reshape(H_KV, H // H_KV, -1, 1)
    weights = (u * cupy.exp(m - m.max(2, keepdims=True))).reshape(H, -1)[:, : plan.n_most]
    return weights / weights.sum(1, keepdims=True)


def flash_reference(plan, v):
    """The flash form's output [H, d] in float64 from the rows it drew and its tiles' masses."""
    cupy = device.require_cupy()
    m, ell = plan.m[0].astype(cupy.float64), plan.ell[0]
    mass = cupy.exp(m - m.max(1, keepdims=True)) * ell
    mass /= mass.sum(1, keepdims=True)
    T = mass.shape[1]
    budget = max(1, plan.S // T)
    rows = plan.counts.rows[0, :, : T * budget].astype(cupy.int64)
    return cupy.stack([mass[h] @ gathered(v, h, rows[h]).reshape(T, budget, D).mean(1) for h in range(H)])
