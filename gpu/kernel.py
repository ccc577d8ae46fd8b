"""Sampled and top-k decode attention on an NVIDIA GPU: the fast build behind `decode`, the counting build behind `run_layer`."""

from __future__ import annotations

import ctypes
import dataclasses
import math

import numpy as np

from ..attention import STORAGE
from ..errors import InputError
from ..methods import accumulate, budgets, draw, exact, topk
from ..methods import kernel as cpu
from ..methods.layer import Layer
from ..methods.spec import Spec
from . import build, device

_SAMPLE_BYTES = 48  # one entry of sample.cu's list of samples
_KERNELS = {build.FLASH: ("flash", "merge"), build.TOPK: ("score", "topk")}  # else score, sample
_TILE_BYTES = (8, 24, 16, 16, 0, 0)  # of shared memory per tile, by method: masses; fractions, budgets, whether one more; prefix
_LARGEST_PER_SPLIT = 512
_LARGEST_GRID = 65535  # blocks along y and z (CUDA C++ programming guide, technical specifications)
_LARGEST_CLUSTER = 8  # portable cluster size (CUDA C++ programming guide, thread block clusters)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Kernels and work space for decode steps of one shape; made by `make_plan`, used by `decode`.

    One plan serves one stream at a time: its work space holds the step that is running.

    spec : method and budgets;  batch, H, H_kv, d : B and the heads;  n_most : keys of the longest sequence
    tile : keys per tile;  S : samples per head;  splits, per_split : blocks of a head in the second kernel, samples of a block
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
    method: int
    kernels: tuple
    key_bytes: int
    shared_bytes: int
    u: object
    m: object
    ell: object
    partial: object
    tickets: object
    rows: object
    weights: object
    cluster: bool
    overlap: bool
    counts: Counts | None


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
    """What the counting build fills, on the device; the arrays of the CPU's `Result`, led by the sequence."""

    scores: object  # [B, H_kv, T, 8]
    global_step: object  # [B, H_kv, 9], or top-k's selection [B, H_kv, 4]
    drawing: object  # [B, H_kv, T, 4]
    values: object  # [B, H_kv, T, 4]
    merging: object  # [B, H_kv, 3]
    budgets: object  # [B, H, T]
    rows: object  # int32 [B, H, S or more], drawn keys in sample order, then -1
    masses: object  # float64 [B, H, T]
    heaps: object  # int32 [B, H, T], work space


def make_plan(spec: Spec, batch: int, H: int, H_kv: int, d: int, n_most: int, *, S: int | None = None, tile: int = 128,
              instrument: bool = False, cluster: bool | None = None, overlap: bool | None = None,
              staged: bool | None = None) -> Plan:  # fmt: skip
    """Compile the kernels and allocate the work space for decode steps of one shape, on the current device.

    The tile length doesn't follow the longest sequence, so that no sequence's length changes another's result.

    Parameters
    ----------
    spec : a sampled method or top-k, exact scores, 'bf16' or 'fp16'
    batch : B, sequences;  H, H_kv : query and KV heads;  d : 64, 128 or 256;  n_most : keys of the longest sequence
    S : samples per head (top-k: keys); None takes the spec's
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
    S = (spec.k if spec.method == "topk" else spec.samples) if S is None else S
    if not isinstance(S, int):
        raise InputError(f"S={S!r}: a plan serves one layer; give its own S")
    number = cupy.cuda.runtime.getDevice()
    G, T = H // H_kv, -(-n_most // tile)
    modern = device.capability(number) >= 90
    method = build.method_number(spec)
    if method == build.FLASH:
        if S >= 2**22:
            raise InputError(f"S={S}: the flash form draws up to {2**22 - 1} samples on the GPU; use kernel='cpu'")
        splits, per_split = (min(_LARGEST_CLUSTER, -(-T // 32)) if modern and cluster is not False else 1), 0
    elif method == build.TOPK:
        S, splits, per_split = min(S, n_most), 1, 0
    else:
        # few samples a block while there are multiprocessors to spare, more once the blocks would only repeat the budgets
        wanted = max(1, 2 * device.attribute(number, "MultiProcessorCount") // (batch * H))
        at_once = build.THREADS // 32 * build.AT_ONCE
        per_split = min(_LARGEST_PER_SPLIT, at_once * math.ceil(S / (wanted * at_once)))
        splits = -(-S // per_split)
    overlap = modern if overlap is None else overlap
    cluster = (modern if cluster is None else cluster) and 1 < splits <= _LARGEST_CLUSTER
    # K through shared memory where three tiles fit on a multiprocessor, so that two load while one is scored
    key_bytes = 2 * d * build.WARP_KEYS[d] * -(-tile // build.WARP_KEYS[d])
    staged = 3 * (key_bytes + 6144) <= device.attribute(number, "MaxSharedMemoryPerMultiprocessor") if staged is None else staged
    key_bytes *= staged
    variant = build.variant(spec, d, G, tile, cluster, instrument)
    first = dataclasses.replace(variant, cluster=False, staged=staged, method=method if method in _KERNELS else 0)
    names = _KERNELS.get(method, ("score", "sample"))
    kernels = [build.load(name, v, number) for name, v in zip(names, (first, variant), strict=True)]
    shared_bytes = 4 * -(-T // splits) if method == build.FLASH else _SAMPLE_BYTES * per_split + T * _TILE_BYTES[method]
    most = device.attribute(number, "MaxSharedMemoryPerBlockOptin") - 24576
    if shared_bytes > most or T > _LARGEST_GRID:
        raise InputError(
            f"n_most={n_most} with tile={tile} makes {T} tiles, more than this GPU's shared memory (or a launch) has room for: "
            f"use a longer tile, up to {build.LARGEST_TILE}"
        )
    if batch > _LARGEST_GRID:
        raise InputError(f"batch={batch}: a launch takes up to {_LARGEST_GRID} sequences; split the batch")
    for kernel, size in zip(kernels, (key_bytes, shared_bytes), strict=True):
        if size > 24576:
            kernel.max_dynamic_shared_size_bytes = size
    stash = (batch, H_kv, T, G, -(-tile // 4) * 4)
    partial = (batch, H, T if method == build.FLASH else splits, d)
    return Plan(
        spec=spec, batch=batch, H=H, H_kv=H_kv, d=d, n_most=n_most, tile=tile, S=S, splits=splits, per_split=per_split, device=number,
        method=method, kernels=tuple(kernels), key_bytes=key_bytes, shared_bytes=shared_bytes,
        u=None if method == build.FLASH else cupy.empty(stash, cupy.float32), m=cupy.empty((batch, H, T), cupy.float32),
        ell=cupy.empty((batch, H, T), cupy.float64), partial=cupy.empty(partial, cupy.float32),
        tickets=cupy.zeros((batch, H), cupy.uint32), rows=cupy.full((batch, H, S), -1, cupy.int32) if method == build.TOPK else None,
        weights=cupy.empty((batch, H, S), cupy.float32) if method == build.TOPK else None, cluster=cluster, overlap=overlap,
        counts=_make_counts(batch, H, H_kv, T, S, method) if instrument else None,
    )  # fmt: skip


def _make_counts(batch: int, H: int, H_kv: int, T: int, S: int, method: int) -> Counts:
    cupy = device.require_cupy()

    def zeros(*shape, dtype=np.int64):
        return cupy.zeros(shape, dtype)

    return Counts(
        scores=zeros(batch, H_kv, T, len(exact.SCORE_COUNTS)),
        global_step=zeros(batch, H_kv, len(topk.SELECT_COUNTS if method == build.TOPK else budgets.BUDGET_COUNTS)),
        drawing=zeros(batch, H_kv, T, len(draw.DRAW_COUNTS)), values=zeros(batch, H_kv, T, len(accumulate.VALUE_COUNTS)),
        merging=zeros(batch, H_kv, len(accumulate.MERGE_COUNTS)), budgets=zeros(batch, H, T),
        rows=cupy.full((batch, H, max(S, T) if method == build.FLASH else S), -1, cupy.int32), masses=zeros(batch, H, T, dtype=np.float64),
        heaps=zeros(batch, H, max(S, T), dtype=np.int32),
    )  # fmt: skip


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
        work = {name: _pointer(getattr(plan, name)) for name in ("u", "m", "ell", "partial", "tickets", "rows", "weights")}
        counts = {field.name: _pointer(getattr(plan.counts, field.name) if plan.counts else None) for field in dataclasses.fields(Counts)}
        T, S = (ctypes.c_int32(x) for x in (-(-plan.n_most // plan.tile), plan.S))
        scale, threads = ctypes.c_float(1 / math.sqrt(plan.d)), 32 * -(-plan.tile // build.WARP_KEYS[plan.d])
        random = [ctypes.c_uint64(plan.spec.seed if seed is None else seed), ctypes.c_uint32(sequence), ctypes.c_uint32(layer * plan.H),
                  ctypes.c_uint32(position), pointer["positions"], ctypes.c_int32(plan.spec.sampler == "scaled-thresholds")]  # fmt: skip
        if plan.method == build.FLASH:
            first = [*(pointer[x] for x in ("q", "k", "v", "lengths")), n, *k_strides, *v_strides, scale, S, *random,
                     *(work[x] for x in ("m", "ell", "partial")),
                     *(counts[x] for x in ("scores", "global_step", "drawing", "values", "budgets", "rows")),
                     ctypes.c_int32(plan.counts.rows.shape[-1] if plan.counts else 0)]  # fmt: skip
            second = [*(work[x] for x in ("m", "ell", "partial")), pointer["lengths"], n, T, S, pointer["out"], counts["merging"]]
        elif plan.method == build.TOPK:
            first = [*(pointer[x] for x in ("q", "k", "lengths")), n, *k_strides, scale,
                     *(work[x] for x in ("u", "m", "ell")), counts["scores"]]  # fmt: skip
            second = [pointer["v"], pointer["lengths"], n, *v_strides, T, S, work["u"], pointer["out"], work["rows"], work["weights"],
                      *(counts[x] for x in ("global_step", "values", "budgets", "heaps"))]  # fmt: skip
        else:
            first = [*(pointer[x] for x in ("q", "k", "lengths")), n, *k_strides, scale,
                     *(work[x] for x in ("u", "m", "ell")), counts["scores"]]  # fmt: skip
            second = [pointer["v"], pointer["lengths"], n, *v_strides, T, S, ctypes.c_int32(plan.per_split), *random,
                      *(work[x] for x in ("u", "m", "ell")), pointer["out"], work["partial"], work["tickets"],
                      *(counts[x] for x in ("global_step", "drawing", "values", "budgets", "rows", "masses", "heaps"))]  # fmt: skip
        device.launch(plan.kernels[0], (plan.H_kv, T.value, plan.batch), threads, first, stream, plan.key_bytes)
        device.launch(plan.kernels[1], (plan.splits, plan.H, plan.batch), build.THREADS, second, stream, plan.shared_bytes,
                      after_previous=plan.overlap, cluster=plan.splits if plan.cluster else 0)  # fmt: skip
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
            dense = array.strides[2:] == (array.itemsize * plan.d, array.itemsize)
            if not dense or array.strides[0] % 16 or array.strides[1] % 16:
                raise InputError(f"{name} has strides {array.strides} B: heads and features must be dense, and rows a multiple of 16 B apart; "
                                 f"write {name}.contiguous()")  # fmt: skip
        elif array.shape != wanted[name]:
            raise InputError(f"{name} has shape {array.shape}; the plan takes {wanted[name]}")
        elif not array.flags.c_contiguous:
            raise InputError(f"{name} is not contiguous; write {name}.contiguous()")
        if name in ("q", "k", "v") and array.data.ptr % 16:
            raise InputError(f"{name} starts at address {array.data.ptr:#x}, not a multiple of 16 B; write {name}.clone()")
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
        plan = make_plan(self.spec, 1, H_kv * G, H_kv, d, n, S=self.spec.k or self.S, tile=self.tile, instrument=True)
        # the layer's query has 1/sqrt(d) folded in, in float32; rounding to 16 bits gives back exactly what was stored
        stored = (self.layer.q[0] * np.float32(math.sqrt(d))).astype(STORAGE[self.spec.precision]).view(np.uint16)
        as_stored = cupy.float16 if self.spec.precision == "fp16" else cupy.uint16
        q, k, v = (cupy.asarray(x)[None].view(as_stored) for x in (stored, self.layer.k[:n], self.layer.v[:n]))
        out = decode(plan, q, k, v, sequence=self.sequence, layer=self.layer_number, position=int(self.positions[0]))
        counts = {field.name: cupy.asnumpy(getattr(plan.counts, field.name))[0] for field in dataclasses.fields(Counts)}
        union = np.zeros((H_kv, n), bool)
        if self.spec.method == "topk":
            counts["rows"] = cupy.asnumpy(plan.rows)[0]
        for h, drawn in enumerate(counts["rows"]):
            self.seen[h // G, h % G, drawn[drawn >= 0]] = True
            union[h // G, drawn[drawn >= 0]] = True
        shares = counts["budgets"].reshape(H_kv, G, T)
        return cpu.Result(
            cupy.asnumpy(out)[0].reshape(H_kv, G, d), counts["scores"], global_step=counts["global_step"], budgets=shares,
            drawing=counts["drawing"], values=counts["values"], union=union, final_merge=counts["merging"], normalizing=G * d,
            draws=0 if self.spec.method == "topk" else int(shares.sum()),
        )  # fmt: skip


def run_layer(spec: Spec, layer: Layer, sequence: int, layer_number: int, S: int | None, tile: int, writer, progress=None):
    """`methods.kernel.run_layer` with the stages on the GPU: the same arguments, output and trace.

    Raises
    ------
    InputError
        No CuPy or GPU; prefill, or what `make_plan` refuses.
    """
    device.require_cupy()
    build.variant(spec, layer.q.shape[2], layer.q.shape[1] // layer.k.shape[1], tile)
    return cpu.run_layer(spec, layer, sequence, layer_number, S, tile, writer, progress, GpuBlock)
