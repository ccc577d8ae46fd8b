"""Sampled decode attention on an NVIDIA GPU: the fast build behind `decode`, the counting build behind `run_layer`."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math

import numpy as np

from ..attention import STORAGE
from ..errors import InputError
from ..methods import accumulate, budgets, draw, exact
from ..methods import kernel as cpu
from ..methods.spec import Spec
from . import build, device

_SAMPLE_BYTES = 48  # one entry of sample.cu's list of samples
_TILE_BYTES = (8, 24, 16, 16)  # of shared memory per tile, by method: masses; fractions, budgets, whether one more; prefix
_LARGEST_PER_SPLIT = 512
_LARGEST_CLUSTER = 8  # portable cluster size (CUDA C++ programming guide, thread block clusters)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Kernels and work space for decode steps of one shape; made by `make_plan`, used by `decode`.

    One plan serves one stream at a time: its work space holds the step that is running.

    spec : method and budgets;  batch, H, H_kv, d : B and the heads;  n_most : keys of the longest sequence
    tile : keys per tile;  S : samples per head;  splits, per_split : blocks of a head, samples of a block
    """

    spec: Spec
    batch: int
    H: int
    H_kv: int
    d: int
    n_most: int
    tile: int
    S: int
    splits: int
    per_split: int
    device: int
    score: object
    sample: object
    key_bytes: int
    shared_bytes: int
    u: object
    m: object
    ell: object
    partial: object
    tickets: object
    cluster: bool
    overlap: bool
    counts: Counts | None


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
    """What the counting build fills, on the device; the arrays of the CPU's `Result`, led by the sequence."""

    scores: object  # [B, H_kv, T, 8]
    global_step: object  # [B, H_kv, 9]
    drawing: object  # [B, H_kv, T, 4]
    values: object  # [B, H_kv, T, 4]
    budgets: object  # [B, H, T]
    rows: object  # int32 [B, H, S], drawn keys in sample order
    masses: object  # float64 [B, H, T]
    heaps: object  # int32 [B, H, T], work space


def make_plan(spec: Spec, batch: int, H: int, H_kv: int, d: int, n_most: int, *, S: int | None = None, tile: int = 256,
              instrument: bool = False, cluster: bool | None = None, overlap: bool | None = None,
              staged: bool | None = None) -> Plan:  # fmt: skip
    """Compile the kernels and allocate the work space for decode steps of one shape, on the current device.

    The tile length doesn't follow the longest sequence, so that no sequence's length changes another's result.

    Parameters
    ----------
    spec : 's2anta-sys', 's2anta-prop', 'santa' or 's2anta-strat', exact scores, 'bf16' or 'fp16'
    batch : B, sequences;  H, H_kv : query and KV heads;  d : 64, 128 or 256;  n_most : keys of the longest sequence
    S : samples per head; None takes the spec's
    instrument : the counting build;  cluster, overlap : use thread block clusters, programmatic dependent launch;
        None uses them where the GPU has them (compute capability 9.0)
    staged : the score pass takes K through shared memory; None does so where three tiles fit on a multiprocessor

    Raises
    ------
    InputError
        No CuPy or GPU; a method, type, dimension, group or tile that the kernels don't take.
    """
    cupy = device.require_cupy()
    for name, value in (("batch", batch), ("H", H), ("H_kv", H_kv), ("n_most", n_most)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise InputError(f"{name}={value!r} must be a whole number of at least 1")
    if H % H_kv:
        raise InputError(f"H={H} query heads are not a multiple of H_kv={H_kv} KV heads")
    S = spec.samples if S is None else S
    if not isinstance(S, int):
        raise InputError(f"S={S!r}: a plan serves one layer; give its own S")
    number = cupy.cuda.runtime.getDevice()
    G, T = H // H_kv, -(-n_most // tile)
    # few samples a block while there are multiprocessors to spare, more once the blocks would only repeat the budgets
    wanted = max(1, 2 * device.attribute(number, "MultiProcessorCount") // (batch * H))
    at_once = build.THREADS // 32 * build.AT_ONCE
    per_split = min(_LARGEST_PER_SPLIT, at_once * math.ceil(S / (wanted * at_once)))
    splits = -(-S // per_split)
    modern = device.capability(number) >= 90
    overlap = modern if overlap is None else overlap
    cluster = (modern if cluster is None else cluster) and 1 < splits <= _LARGEST_CLUSTER
    # K through shared memory where three tiles fit on a multiprocessor, so that two load while one is scored
    key_bytes = 2 * d * build.WARP_KEYS[d] * -(-tile // build.WARP_KEYS[d])
    staged = 3 * (key_bytes + 2048) <= device.attribute(number, "MaxSharedMemoryPerMultiprocessor") if staged is None else staged
    key_bytes *= staged
    variant = build.variant(spec, d, G, tile, cluster, instrument)
    shared_bytes = _SAMPLE_BYTES * per_split + T * _TILE_BYTES[variant.method]
    score, sample = build.load("score", dataclasses.replace(variant, method=0, every_tile=True, cluster=False, staged=staged), number), build.load("sample", variant, number)
    most = device.attribute(number, "MaxSharedMemoryPerBlockOptin") - 20480
    if shared_bytes > most:
        raise InputError(f"n_most={n_most} with tile={tile} makes {T} tiles; this GPU's shared memory has room for {(most - _SAMPLE_BYTES * per_split) // _TILE_BYTES[variant.method]}: use a longer tile")
    if key_bytes > 32768:
        score.max_dynamic_shared_size_bytes = key_bytes
    if shared_bytes > 32768:
        sample.max_dynamic_shared_size_bytes = shared_bytes
    pitch = -(-tile // 4) * 4
    int64 = functools.partial(cupy.zeros, dtype=cupy.int64)
    counts = Counts(int64((batch, H_kv, T, len(exact.SCORE_COUNTS))), int64((batch, H_kv, len(budgets.BUDGET_COUNTS))),
                    int64((batch, H_kv, T, len(draw.DRAW_COUNTS))), int64((batch, H_kv, T, len(accumulate.VALUE_COUNTS))),
                    int64((batch, H, T)), cupy.full((batch, H, S), -1, cupy.int32), cupy.zeros((batch, H, T)),
                    cupy.zeros((batch, H, T), cupy.int32)) if instrument else None  # fmt: skip
    return Plan(spec, batch, H, H_kv, d, n_most, tile, S, splits, per_split, number, score, sample, key_bytes, shared_bytes,
                cupy.empty((batch, H_kv, T, G, pitch), cupy.float32), cupy.empty((batch, H, T), cupy.float32),
                cupy.empty((batch, H, T), cupy.float64), cupy.empty((batch, H, splits, d), cupy.float32),
                cupy.zeros((batch, H), cupy.uint32), cluster, overlap, counts)  # fmt: skip


def decode(plan: Plan, q, k, v, out=None, *, lengths=None, seed: int | None = None, sequence: int = 0, layer: int = 0,
           position: int = 0, positions=None, stream: int | None = None):  # fmt: skip
    """One decode step: two launches on the caller's stream, nothing copied, nothing waited for; a CUDA graph can hold it.

    Parameters
    ----------
    q : [B, H, d];  k, v : [B, n, H_kv, d], n >= n_most; torch tensors or CuPy arrays (bfloat16 as 16-bit integers) on the GPU.
        k and v may be slices of longer caches: heads and features must be dense, sequences and keys may have any stride.
    out : [B, H, d] like q, overwritten; None allocates.  (The counting build takes and gives float32.)
    lengths : int32 [B] on the GPU, keys of each sequence, 0 ... n_most (not checked); None takes n_most for all.
        A sequence of no keys gives zeros.
    seed : int; None takes the spec's.  sequence : number of the first;  layer, position : of the draws' counters
    positions : uint32 [B] on the GPU, the queries' positions, so that a graph draws anew at each replay; None: `position`
    stream : pointer; None takes torch's current stream for torch tensors, else CuPy's

    Returns
    -------
    out

    Raises
    ------
    InputError
        Tensors that don't fit the plan.
    """
    stream = device.current_stream(q) if stream is None else stream
    with device.borrow_stream(stream, plan.device):
        if out is None:
            out = _empty_like(plan, q)
        tensors = {"q": q, "k": k, "v": v, "out": out, "lengths": lengths, "positions": positions}
        arrays = {name: device.as_cupy(name, x) for name, x in tensors.items() if x is not None}
        _check(plan, tensors, arrays)
        pointer = {name: ctypes.c_void_p(arrays[name].data.ptr if name in arrays else None) for name in tensors}
        n, k_strides, v_strides = ctypes.c_int32(plan.n_most), _strides(arrays["k"]), _strides(arrays["v"])
        work = {name: _pointer(getattr(plan, name)) for name in ("u", "m", "ell", "partial", "tickets")}
        counts = {field.name: _pointer(getattr(plan.counts, field.name) if plan.counts else None) for field in dataclasses.fields(Counts)}
        T = -(-plan.n_most // plan.tile)
        device.launch(
            plan.score, (plan.H_kv, T, plan.batch), 32 * -(-plan.tile // build.WARP_KEYS[plan.d]),
            [pointer["q"], pointer["k"], pointer["lengths"], n, *k_strides, ctypes.c_float(1 / math.sqrt(plan.d)),
             work["u"], work["m"], work["ell"], counts["scores"]],
            stream, plan.key_bytes,
        )  # fmt: skip
        device.launch(
            plan.sample, (plan.splits, plan.H, plan.batch), build.THREADS,
            [pointer["v"], pointer["lengths"], n, *v_strides, ctypes.c_int32(T), ctypes.c_int32(plan.S), ctypes.c_int32(plan.per_split),
             ctypes.c_uint64(plan.spec.seed if seed is None else seed), ctypes.c_uint32(sequence), ctypes.c_uint32(layer * plan.H),
             ctypes.c_uint32(position), pointer["positions"], ctypes.c_int32(plan.spec.sampler == "scaled-thresholds"),
             work["u"], work["m"], work["ell"], pointer["out"], work["partial"], work["tickets"],
             counts["global_step"], counts["drawing"], counts["values"], counts["budgets"], counts["rows"], counts["masses"], counts["heaps"]],
            stream, plan.shared_bytes, after_previous=plan.overlap, cluster=plan.splits if plan.cluster else 0,
        )  # fmt: skip
    return out


def _pointer(array) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.data.ptr)


def _strides(x) -> tuple[ctypes.c_int64, ctypes.c_int64]:
    """Elements from sequence to sequence and from key to key."""
    return ctypes.c_int64(x.strides[0] // x.itemsize), ctypes.c_int64(x.strides[1] // x.itemsize)


def _empty_like(plan: Plan, q):
    cupy = device.require_cupy()
    if plan.counts is not None:
        return cupy.empty(tuple(q.shape), cupy.float32)
    if isinstance(q, cupy.ndarray):
        return cupy.empty_like(q)
    return q.new_empty(q.shape)


def _check(plan: Plan, tensors: dict, arrays: dict) -> None:
    """InputError unless the tensors fit the plan."""
    wanted = {"q": (plan.batch, plan.H, plan.d), "out": (plan.batch, plan.H, plan.d), "lengths": (plan.batch,), "positions": (plan.batch,)}
    for name, array in arrays.items():
        if name in ("k", "v"):
            shape = array.shape
            if len(shape) != 4 or (shape[0], *shape[2:]) != (plan.batch, plan.H_kv, plan.d) or shape[1] < plan.n_most:
                raise InputError(f"{name} has shape {shape}; the plan takes [{plan.batch}, at least {plan.n_most}, {plan.H_kv}, {plan.d}]")
            item = array.itemsize
            if array.strides[3] != item or array.strides[2] != item * plan.d or array.strides[0] % 16 or array.strides[1] % 16 or array.data.ptr % 16:
                raise InputError(f"{name} has strides {array.strides} B: heads and features must be dense, rows start at multiples of 16 B; write {name}.contiguous()")
        elif array.shape != wanted[name]:
            raise InputError(f"{name} has shape {array.shape}; the plan takes {wanted[name]}")
        elif not array.flags.c_contiguous:
            raise InputError(f"{name} is not contiguous; write {name}.contiguous()")
        if array.device.id != plan.device:
            raise InputError(f"{name} is on GPU {array.device.id}; the plan is for GPU {plan.device}")
        kind = device.element_type(tensors[name])
        expected = {"lengths": "int32", "positions": "uint32"}.get(name, plan.spec.precision)
        if name == "out" and plan.counts is not None:
            expected = "float32"
        if name == "positions" and kind == "int32":
            kind = "uint32"
        if kind != expected:
            raise InputError(f"{name} has type {tensors[name].dtype}; the plan takes {expected}")


class GpuBlock(cpu.Block):
    """One decode step's query block, run by the counting build; its trace items are written by the CPU's `Block`."""

    def run(self) -> cpu.Result:
        cupy = device.require_cupy()
        if len(self.positions) != 1 or self.layer.q.shape[0] != 1:
            raise InputError(f"kernel='gpu' runs decode steps, one query position; q has {self.layer.q.shape[0]}: use kernel='cpu'")
        H_kv, G, T, d, n = self.H_kv, self.G, self.T, self.d, self.n
        plan = make_plan(self.spec, 1, H_kv * G, H_kv, d, n, S=self.S, tile=self.tile, instrument=True)
        # the layer's query has 1/sqrt(d) folded in, in float32; rounding to 16 bits gives back exactly what was stored
        stored = (self.layer.q[0] * np.float32(math.sqrt(d))).astype(STORAGE[self.spec.precision]).view(np.uint16)
        as_stored = cupy.float16 if self.spec.precision == "fp16" else cupy.uint16
        q, k, v = (cupy.asarray(x)[None].view(as_stored) for x in (stored, self.layer.k[:n], self.layer.v[:n]))
        out = decode(plan, q, k, v, sequence=self.sequence, layer=self.layer_number, position=int(self.positions[0]))
        scores, global_step, drawing, values, shares, rows = (
            cupy.asnumpy(x)[0] for x in (plan.counts.scores, plan.counts.global_step, plan.counts.drawing, plan.counts.values,
                                         plan.counts.budgets, plan.counts.rows)
        )  # fmt: skip
        union = np.zeros((H_kv, n), bool)
        for h, drawn in enumerate(rows):
            self.seen[h // G, h % G, drawn] = True
            union[h // G, drawn] = True
        shares = shares.reshape(H_kv, G, T)
        return cpu.Result(cupy.asnumpy(out)[0].reshape(H_kv, G, d), scores, global_step=global_step, budgets=shares, drawing=drawing,
                          values=values, union=union, normalizing=G * d, draws=int(shares.sum()))  # fmt: skip


def run_layer(spec: Spec, layer: cpu.Layer, sequence: int, layer_number: int, S: int | None, tile: int, writer, progress=None):
    """`methods.kernel.run_layer` with the stages on the GPU: the same arguments, output and trace.

    Raises
    ------
    InputError
        No CuPy or GPU; prefill, or what `make_plan` refuses.
    """
    device.require_cupy()
    build.variant(spec, layer.q.shape[2], layer.q.shape[1] // layer.k.shape[1], tile)
    return cpu.run_layer(spec, layer, sequence, layer_number, S, tile, writer, progress, GpuBlock)
