"""From micro-benchmarks to a machine, and from a machine to predicted times and bytes; no measured attention kernel comes in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pydantic

from ..errors import InputError
from ..hardware import PACKAGE, load_hardware
from ..hardware_gpu import Gpu
from ..schema import shipped, validate
from ..simulator.gpu import predict
from ..simulator.gpu.work import Work, dense_work, work_of
from .validate_cells import H_KV, METHODS, TILE, Cell, D, H, gaussian_on_host

IMPLEMENTATION = "ours"
START_OF = {"graph": "graph", "as_called": "stream"}
CACHE_OF = {"all": "flushed", "none": "dirty"}  # the profiler's cache mode -> what the caches hold before a step


# ---- calibration ----


def calibration_of(raw: dict) -> dict:
    """`_calibration_of`, with what the micro-benchmarks lack named.

    Raises
    ------
    InputError
        A micro-benchmark failed or is missing.
    """
    try:
        return _calibration_of(raw)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the micro-benchmarks are not complete ({type(error).__name__}: {error}), so there is no calibration; measure again") from None


def _calibration_of(raw: dict) -> dict:
    """The fields of `santa_sim.hardware_gpu.Calibration` from the micro-benchmarks of a run.

    Raises
    ------
    InputError
        A micro-benchmark failed: says which, and how.
    """
    micro, card = raw["micro"], raw["card"]
    for name, records in micro.items():
        for record in records:
            if "error" in record:
                raise InputError(f"micro-benchmark {name!r} failed, so there is no calibration: {record['error']}")
    driver = raw.get("before", {}).get("driver", "driver not known")
    alone = [x for x in micro["launch"] if x["blocks"] == 1]
    graph, stream = ([x for x in alone if x["how"] == how and not x["overlapped"]] for how in ("graph", "stream"))
    overlapped = [x for x in alone if x["how"] == "graph" and x["overlapped"]]
    many = [x for x in micro["launch"] if x["threads"] == 32 and x["kernels"] == 1 and x["blocks"] > 60000]
    launch = {
        "graph_s": _one(graph, kernels=1)["seconds"], "graph_next_s": _slope(graph, "kernels"),
        "stream_s": _one(stream, kernels=1)["seconds"], "stream_next_s": _slope(stream, "kernels"),
        "overlapped_next_s": max(0.0, _slope(overlapped, "kernels")) if overlapped else None, "blocks_per_s": 1 / _slope(many, "blocks"),
    }  # fmt: skip
    streams = [x for x in micro["stream"] if not x.get("evict_first")]
    again = [x for x in micro["l2"] if x["buffer_bytes"] == sorted({x["buffer_bytes"] for x in micro["l2"]})[1]]
    memory = [x for x in micro["latency"] if x["what"] == "memory, cold"]
    atomics = {what: _slope([x for x in micro["atomic"] if x["what"] == what], "adds") for what in ("one address", "a line each")}
    return {
        "source": f"{card['name']}, {driver}, CUDA {card['cuda_driver_api']}, santa-sim validate, {card['date']}",
        "clock_hz": round(micro["clock"][0]["hz"]),
        "launch": launch,
        "read": _curve([x for x in streams if x["what"] == "read" and x["cache"] == "clean"]),
        "read_dirty": _curve([x for x in streams if x["what"] == "read" and x["cache"] == "dirty"]),
        "write": _curve([x for x in streams if x["what"] == "write"]),
        "gather": _gathers([x for x in micro["gather"] if x["cache"] == "clean"]),
        "dram_latency_s": _nearest(memory, "footprint_bytes", 2**30)["seconds"],
        "loaded_latency_s": _loaded_latency(micro["in_flight"], card["multiprocessors"], launch["graph_s"]),
        "l2_latency_s": _one(micro["latency"], what="second-level cache")["seconds"],
        "l2_bandwidth_bytes_per_s": 1 / _slope(again, "bytes"),
        "atomic_s": atomics["one address"],
        "atomics_per_s": 1 / atomics["a line each"],
        "issue_per_cycle": round(_one(micro["instruction"], what="ffma")["per_cycle"] / 32, 3),
        "latency_cycles": _latencies(micro),
        "clusters_at_once": [dict(x) for x in micro.get("cluster", ())],
        "l2_kept_bytes": _kept(micro["kept"]) if "kept" in micro else None,
    }  # fmt: skip


def _one(records: Sequence[dict], **wanted) -> dict:
    for record in records:
        if all(record[name] == value for name, value in wanted.items()):
            return record
    raise InputError(f"the micro-benchmarks hold no record of {', '.join(f'{k}={v}' for k, v in wanted.items())}; measure again")


def _nearest(records: Sequence[dict], name: str, value: float) -> dict:
    return min(records, key=lambda record: abs(np.log(record[name] / value)))


def _slope(records: Sequence[dict], name: str) -> float:
    """Seconds for each further one of `name`, by least squares."""
    if len(records) < 2:
        raise InputError(f"the micro-benchmarks hold {len(records)} records over {name!r}; two are needed. Measure again")
    return float(np.polyfit([x[name] for x in records], [x["seconds"] for x in records], 1)[0])


def _curve(records: Sequence[dict]) -> dict:
    """The shortest time of each size over the shapes of launch; a larger size takes no less than a smaller one."""
    sizes = sorted({record["bytes"] for record in records})
    seconds = [min(x["seconds"] for x in records if x["bytes"] == size) for size in sizes]
    return {"bytes": sizes, "seconds": [float(x) for x in np.maximum.accumulate(seconds)]}


def _gathers(records: Sequence[dict]) -> list[dict]:
    best: dict[tuple, float] = {}
    for x in records:
        key = (x["row_bytes"], x["rows"], x["array_bytes"])
        best[key] = min(best.get(key, np.inf), x["seconds"])
    return [{"row_bytes": row, "rows": rows, "span_bytes": span, "seconds": seconds} for (row, rows, span), seconds in sorted(best.items())]


def _loaded_latency(records: Sequence[dict], multiprocessors: int, start_s: float) -> float:
    """Bytes in flight over the bandwidth they reach, where that is nearest to a third of the largest [s] (Little's law)."""
    single = [(x["in_flight_bytes"] * multiprocessors, x["bytes"] / (x["seconds"] - start_s)) for x in records if x["loads"] == 1]
    largest = max(bandwidth for _, bandwidth in single)
    in_flight, bandwidth = min(single, key=lambda x: abs(x[1] - largest / 3))
    return in_flight / bandwidth


def _kept(records: Sequence[dict]) -> int:
    """The size up to which a kernel finds in the cache what the one before it wrote [B]: where its time against the size bends.

    Two straight lines that meet, by least squares, over the sizes that were measured.
    """
    sizes, seconds = (np.array([record[name] for record in records], float) for name in ("bytes", "seconds"))

    def misfit(bend: float) -> float:
        terms = np.stack([np.ones_like(sizes), sizes, np.maximum(sizes - bend, 0)], 1)
        return float(np.sum((terms @ np.linalg.lstsq(terms, seconds, rcond=None)[0] - seconds) ** 2))

    return int(min(sizes[1:-1], key=misfit))


def _latencies(micro: dict) -> dict[str, float]:
    """The fields of `santa_sim.hardware_gpu.Cycles` [cycles]."""
    names = {"arithmetic": "ffma", "fp64": "dadd", "special": "ex2", "shared": "lds", "shuffle": "shfl"}
    found = {field: round(_one(micro["instruction"], what=name)["latency_cycles"], 2) for field, name in names.items()}
    clusters = [x["cycles"] for x in micro["barrier"] if x["what"] == "cluster"]
    return {**found, "barrier": round(_one(micro["barrier"], what="block", threads=512)["cycles"], 2), "cluster": round(max(clusters, default=0.0), 2)}


# ---- machine ----


def shipped_gpus() -> list[Gpu]:
    """The GPUs among the shipped machines."""
    machines = [load_hardware(name) for name in shipped(PACKAGE)]
    return [machine for machine in machines if isinstance(machine, Gpu)]


# Compute capabilities that no shipped machine has -> the documented one whose multiprocessor is nearest in the CUDA C++
# programming guide's tables (threads, shared memory, float64 per cycle): GeForce Blackwell's is Ada's, B200's is Hopper's.
NEAREST = {87: 86, 100: 90, 101: 90, 103: 90, 110: 90, 120: 89, 121: 89}


def like(card: dict) -> Gpu:
    """The shipped GPU that the card is, or the nearest: of its compute capability, or of the one nearest to it."""
    gpus = shipped_gpus()
    wanted = NEAREST.get(card["compute_capability"], card["compute_capability"])

    def distance(gpu: Gpu) -> tuple:
        newer = gpu.compute_capability > wanted
        return (newer, abs(gpu.compute_capability - wanted), abs(gpu.multiprocessors.count - card["multiprocessors"]),
                abs(gpu.memory.bytes - card["memory_bytes"]))  # fmt: skip

    return min(gpus, key=distance)


def measured_rates(micro: dict) -> dict[str, int]:
    """Rates of a multiprocessor as micro-benchmarks found them: float64 and special results, flops of tensor cores, per cycle."""
    found = {x["what"]: x["per_cycle"] for x in micro["instruction"] if x.get("per_cycle")}
    flops = 2 * 16 * 8 * 16  # of mma.m16n8k16
    rates = {"fp64_per_cycle": max((found[name] for name in ("dadd", "dfma") if name in found), default=0.0),
             "special_per_cycle": found.get("ex2", 0.0), "tensor_flops_per_cycle": flops * found.get("mma", 0.0)}  # fmt: skip
    return {name: max(1, round(rate)) for name, rate in rates.items() if rate > 0}


def peak_bandwidth(card: dict) -> int:
    """Bus width times memory clock, two transfers a cycle [B/s]."""
    return card["memory_bus_bits"] // 8 * card["memory_clock_hz"] * 2


def machine_of(raw: dict) -> dict:
    """The card as the fields of a `kind: gpu` machine, calibrated; `santa_sim.load_hardware` takes it, and its YAML.

    Sizes are what CUDA reports of this card, latencies and the calibration are measured, and the rates that neither says
    come from the shipped machine of the same compute capability. A capability that none has takes float64, special and tensor
    rates from the micro-benchmarks, the rest from the nearest documented one, and a note says so.
    """
    card = raw["card"]
    base = like(card)
    fields = base.model_dump(mode="json", exclude_none=True)
    documented = card["compute_capability"] == base.compute_capability
    rates = {} if documented else measured_rates(raw["micro"])
    note = f"rates per cycle and board power are those of {base.name}; sizes as CUDA reports them for this card"
    if not documented:
        note = (f"no shipped machine has compute capability {card['compute_capability'] / 10:.1f}: {', '.join(rates) or 'no rates'} as measured, other rates "
                f"and the cache's partitions are those of {base.name} (compute capability {base.compute_capability / 10:.1f}), the nearest that is documented; "
                "board power is that machine's")  # fmt: skip
    name = "".join(c if c.isalnum() else "_" for c in card["name"].lower()).strip("_")
    sizes = {field: card[field] for field in ("threads", "blocks", "registers", "shared_bytes", "shared_bytes_per_block", "reserved_bytes_per_block")
             if card.get(field)}  # fmt: skip
    return {
        **fields, "name": f"{name}_calibrated", "compute_capability": card["compute_capability"], "clock_hz": card["clock_hz"],
        "description": f"{card['name']} as measured on {card['date']} by santa-sim validate",
        "multiprocessors": {**fields["multiprocessors"], **sizes, **rates, "count": card["multiprocessors"]},
        "l2": {**fields["l2"], "bytes": card["l2_bytes"]},
        "memory": {**fields["memory"], "bytes": card["memory_bytes"], "bandwidth_bytes_per_s": peak_bandwidth(card)},
        "calibration": calibration_of(raw),
        "notes": [*fields.get("notes", []), note],
    }  # fmt: skip


def save_machine(fields: dict, path) -> None:
    """Write a machine's YAML.

    Raises
    ------
    InputError
        The fields make no machine.
    """
    import json
    from pathlib import Path

    import yaml

    plain = json.loads(json.dumps(fields))
    validate(Gpu, plain, str(path))
    Path(path).write_text(f"# {fields['description']}. Written by `santa-sim validate --save-calibration`.\n"
                          + yaml.safe_dump(plain, sort_keys=False, width=130))  # fmt: skip


# ---- what is asked for ----


def work_key(cell: Cell) -> str:
    """Cells that differ in batch or type alone share the work of one sequence."""
    return f"{cell.method} {cell.n_k} {cell.S}"


def works_of(cells: Sequence[Cell], kernel: str = "cpu", progress: Callable[[str, int, int], None] | None = None) -> dict[str, dict]:
    """Work of one sequence of each kind of cell, read off the trace of Gaussian inputs: `work_key` -> fields of Work.

    `kernel` makes the trace: 'cpu', or 'gpu', the counting build of our kernels, where it has the method.
    """
    from ..attention import attention

    kinds = {work_key(cell): dataclasses.replace(cell, batch=1, precision="bf16") for cell in cells}
    works, shape, inputs = {}, None, None
    for i, (key, cell) in enumerate(sorted(kinds.items(), key=lambda item: item[1].n_k)):
        if progress is not None:
            progress(f"trace: {cell.name}", i, len(kinds))
        if shape != cell.n_k:
            shape, inputs = cell.n_k, gaussian_on_host(cell.n_k, 1, "bf16")
        method, allocation = METHODS[cell.method]
        budget = {} if method == "sdpa" else {"k_top": cell.S} if method == "topk" else {"S": cell.S}
        more = {"allocation": allocation} if allocation else {}
        tensors = [x[0] for x in inputs]
        try:
            _, trace = attention(*tensors, method=method, tile=TILE, precision="bf16", kernel=kernel, **budget, **more)
        except InputError:
            if kernel == "cpu":
                raise
            _, trace = attention(*tensors, method=method, tile=TILE, precision="bf16", kernel="cpu", **budget, **more)
        works[key] = dataclasses.asdict(work_of(trace)[0])
    return works


def work_for(cell: Cell, works: dict[str, dict]) -> Work:
    """The work of a cell: that of one sequence, as often as the batch has sequences."""
    one = works.get(work_key(cell))
    if one is None:
        raise InputError(f"the measurement holds no work for {work_key(cell)!r}; measure again")
    try:
        work = pydantic.TypeAdapter(Work).validate_python(one)
    except pydantic.ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg'].lower()}" for x in error.errors()[:3])
        raise InputError(f"the measurement's work of {work_key(cell)!r} is none: {said}; measure again") from None
    scaled = {name: getattr(work, name) * cell.batch for name in ("samples", "head_rows", "v_rows", "k_bytes", "v_bytes", "q_bytes", "output_bytes",
                                                                 "k_requested_bytes")}  # fmt: skip
    return dataclasses.replace(work, **scaled, lengths=work.lengths * cell.batch, precision=cell.precision)


# ---- predictions ----


def predict_cells(cells: Sequence[Cell], works: dict[str, dict], machine: Gpu) -> list[dict]:
    """For each cell: predicted seconds as a graph and as called, each launch, and its DRAM bytes for both cache modes.

    A cell that the model has no description for is a record with `refused`.
    """
    predicted = []
    for cell in cells:
        work = work_for(cell, works)
        record: dict = {"name": cell.name}
        try:
            for how, start in START_OF.items():
                frame = predict(work, machine, IMPLEMENTATION, start=start, cache="dirty")
                record[how] = {"seconds": float(frame.time_s.sum())}
                if how == "graph":
                    record["launches"] = _plain(frame)
            record["bytes"] = {mode: _plain(predict(work, machine, IMPLEMENTATION, start="graph", cache=cache)) for mode, cache in CACHE_OF.items()}
        except InputError as error:
            record = {"name": cell.name, "refused": str(error)}
        predicted.append(record)
    return predicted


def predict_uncalibrated(cells: Sequence[Cell], works: dict[str, dict], card: dict) -> tuple[str, list[float]] | None:
    """Seconds of each cell's graph replay by the rule for cards without a calibration, and the shipped machine's name.

    None where no machine of this card is shipped. For figures beside the verdicts only.
    """
    machine = like(card)
    if (machine.compute_capability, machine.multiprocessors.count) != (card["compute_capability"], card["multiprocessors"]):
        return None
    try:
        return machine.name, [float(predict(work_for(cell, works), machine, IMPLEMENTATION).time_s.sum()) for cell in cells]
    except InputError:
        return None


def predict_dense(n_k: int, batch: int, precision: str, machine: Gpu) -> float:
    """Seconds that dense attention as others build it (`split-kv`) takes, replayed as a graph."""
    return float(predict(dense_work(n_k, batch=batch, H=H, H_kv=H_KV, d=D, precision=precision), machine, "split-kv").time_s.sum())


def _plain(frame) -> list[dict]:
    """Rows of a frame as plain data."""
    return [{name: (x.item() if isinstance(x, np.generic) else x) for name, x in row.items()} for row in frame.to_dict("records")]


def dense_bytes(work: Work) -> int:
    """What dense attention has to read: q, K and V once [B]."""
    return work.q_bytes + 2 * work.keys * work.H_kv * work.row_bytes
