"""Decode attention on an NVIDIA GPU: every method and score stage; the fast build, and the counting build that fills the trace."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..errors import InputError
from ..methods import accumulate, bernoulli, budgets, draw, exact, topk
from ..methods.spec import Spec
from . import build, device

_SAMPLE_BYTES = 48  # one entry of sample.cu's list of samples
_TILE_BYTES = (8, 16, 16, 16)  # of shared memory per tile, by method: masses; budgets, bins of fractions; prefix
_BOUNDARY_BYTES = 4232, 12  # of largest.cuh's Boundary, which lies where the ring will: its histograms; for each thread
_LARGEST_PER_SPLIT = 512
_LARGEST_GRID = 65535  # blocks along y and z (CUDA C++ programming guide, technical specifications)
_granted: dict[int, int] = {}  # of a loaded kernel, which other plans use too: bytes of dynamic shared memory it may ask for
_LARGEST_CLUSTER = 8  # portable cluster size (CUDA C++ programming guide, thread block clusters)


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """One kernel of a step and how it is launched; `cluster` is the blocks along x that form one, or 0."""

    name: str
    kernel: object
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    cluster: int


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Kernels and work space for decode steps of one shape; made by `make_plan`, used by `decode`.

    One plan serves one stream at a time: its work space holds the step that is running.

    spec : method and budgets;  batch, H, H_kv, d : B and the heads;  n_most : keys of the longest sequence
    tile : keys per tile;  S : samples per head (top-k: keys, dense: 0)
    splits, per_split : blocks of a head in the last kernel, samples of a block
    stages : the kernels, in order;  overlap : each may start while the one before it ends
    work : the arrays between the kernels, by the kernels' names for them
    prepared : the launches of the last step, used again while the tensors stay where they are
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
    stages: tuple[Stage, ...]
    overlap: bool
    work: dict
    counts: Counts | None
    prepared: dict = dataclasses.field(default_factory=dict)

    @property
    def T(self) -> int:
        """Tiles of the longest sequence."""
        return -(-self.n_most // self.tile)

    @property
    def u(self):
        """The stash, float32 [B, H_kv, T, G, tile rounded up to 4]; top-k's holds the scores."""
        return self.work["u"]

    @property
    def m(self):
        """The tiles' maxima, float32 [B, H, T]."""
        return self.work["m"]

    @property
    def ell(self):
        """The tiles' sums, float64 [B, H, T]."""
        return self.work["ell"]

    @property
    def feature_major(self) -> bool:
        """Whether K comes feature-major, [B, H_kv, d, n]."""
        return self.spec.score != "exact"

    @property
    def cluster(self) -> bool:
        """Whether a head's blocks add up through their cluster's shared memory."""
        return any(stage.cluster for stage in self.stages)


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
    """What the counting build fills, on the device; the arrays of the CPU's `Result`, led by the sequence."""

    scores: object  # [B, H_kv, T, 8]
    sampling: object  # [B, H_kv, 5]
    drawn: object  # int32 [B, H_kv, G, d], draws of each feature with the query's sign
    global_step: object  # [B, H_kv, 9], or top-k's selection [B, H_kv, 4]
    drawing: object  # [B, H_kv, T, 4]
    values: object  # [B, H_kv, T, 4]
    merging: object  # [B, H_kv, 3]
    tile_merging: object  # [B, H_kv, T, 3], dense attention's
    budgets: object  # [B, H, T]
    rows: object  # int32 [B, H, S or more], drawn keys in sample order, then -1
    masses: object  # float64 [B, H, T]
    heaps: object  # int32 [B, H, T], work space


# the kernels' names for what `Counts` holds
_COUNTERS = {"score_counts": "scores", "feature_counts": "sampling", "drawn": "drawn", "budget_counts": "global_step",
             "select_counts": "global_step", "draw_counts": "drawing", "value_counts": "values", "merge_counts": "merging",
             "dense_counts": "tile_merging", "budgets": "budgets", "rows": "rows", "tile_masses": "masses", "heaps": "heaps"}  # fmt: skip


def make_plan(spec: Spec, batch: int, H: int, H_kv: int, d: int, n_most: int, *, S: int | None = None, tile: int = 128,
              instrument: bool = False, cluster: bool | None = None, overlap: bool | None = None,
              staged: bool | None = None) -> Plan:  # fmt: skip
    """Compile the kernels and allocate the work space for decode steps of one shape, on the current device.

    The tile length doesn't follow the longest sequence, so that no sequence's length changes another's result.

    Parameters
    ----------
    spec : any method and score stage, 'bf16' or 'fp16'.  Bernoulli scores read a feature-major K at full width where `tile`
        is a multiple of 8.
    batch : B, sequences;  H, H_kv : query and KV heads;  d : 64, 128 or 256;  n_most : keys of the longest sequence
    S : samples per head (top-k: keys); None takes the spec's
    instrument : the counting build;  cluster, overlap : use thread block clusters, programmatic dependent launch;
        None uses them where the GPU has them (compute capability 9.0)
    staged : the score pass takes K through shared memory; None does so where three tiles fit on a multiprocessor

    Raises
    ------
    InputError
        No CuPy or GPU; a type, dimension, group, tile or budget that the kernels don't take.
    """
    cupy = device.require_cupy()
    for name, value in (("batch", batch), ("H", H), ("H_kv", H_kv), ("n_most", n_most)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise InputError(f"{name}={value!r} must be a whole number of at least 1")
    if H % H_kv:
        raise InputError(f"H={H} query heads are not a multiple of H_kv={H_kv} KV heads")
    method = build.method_number(spec)
    if method == build.DENSE:
        S = 0
    elif S is None:
        S = spec.k if method == build.TOPK else spec.samples
    if not isinstance(S, int):
        raise InputError(f"S={S!r}: a plan serves one layer; give its own S")
    if method == build.FLASH and S >= 2**22:
        raise InputError(f"S={S}: the flash form draws up to {2**22 - 1} samples on the GPU; use kernel='cpu'")
    S = min(S, n_most) if method == build.TOPK else S
    number = cupy.cuda.runtime.getDevice()
    multiprocessors = device.attribute(number, "MultiProcessorCount")
    G, T = H // H_kv, -(-n_most // tile)
    modern = device.capability(number) >= 90
    clusters = modern if cluster is None else cluster
    threads, depth, ring_bytes, splits, per_split = build.THREADS, 1, 0, 1, 0
    if method in (build.FLASH, build.DENSE):
        splits = min(_LARGEST_CLUSTER, -(-T // 32)) if clusters else 1
    elif method != build.TOPK:
        # few samples a block while there are multiprocessors to spare, more once the blocks would only repeat the budgets; an
        # eighth of the two blocks that a multiprocessor holds stays free, since clusters don't fill its neighbours evenly
        threads = build.THREADS if batch * H < 2 * multiprocessors else build.THREADS // 2
        wanted, teams = max(1, 7 * multiprocessors // (4 * batch * H)), threads // build.TEAM[tile <= 128]
        per_split = min(_LARGEST_PER_SPLIT, teams * math.ceil(S / (wanted * teams)))
        splits, depth = -(-S // per_split), 1 if per_split <= teams else 2
        ring_bytes = 4 * teams * depth * (-(-tile // 4) * 4)
        if spec.allocation == "largest-remainder" and spec.method == "s2anta-prop":
            ring_bytes = max(ring_bytes, _BOUNDARY_BYTES[0] + _BOUNDARY_BYTES[1] * threads)
    clusters = clusters and 1 < splits <= _LARGEST_CLUSTER
    # K through shared memory where three tiles fit on a multiprocessor, so that two load while one is scored
    warps = -(-tile // build.WARP_KEYS[d]) if d in build.WARP_KEYS else 1
    of_features, lanes = spec.score != "exact", -(-tile // 8)
    key_bytes = 16 * d * lanes if of_features else 2 * d * build.WARP_KEYS.get(d, 32) * warps
    if staged is None:
        staged = 3 * (key_bytes + 6144) <= device.attribute(number, "MaxSharedMemoryPerMultiprocessor")
    staged = staged and not (of_features and tile % 8)
    key_bytes *= staged
    of_parts = 32 * G * lanes * (build.BERNOULLI_THREADS // lanes)  # sums of bernoulli.cu's parts, in place of the keys
    variant = build.variant(spec, d, G, tile, staged=staged, cluster=clusters, threads=threads, depth=depth, instrument=instrument)
    tiles, heads = (H_kv, T, batch), (splits, H, batch)
    of_heads = splits if clusters else 0
    launches = {  # grid, threads, bytes of shared memory, cluster
        "features": ((H_kv, batch, 1), build.THREADS, 0, 0), "score": (tiles, 32 * warps, key_bytes, 0),
        "bernoulli": (tiles, build.BERNOULLI_THREADS, max(key_bytes, of_parts), 0), "flash": (tiles, 32 * warps, key_bytes * (not of_features), 0),
        "dense": (tiles, build.DENSE_THREADS, 0, 0), "merge": (heads, build.THREADS, 4 * -(-T // splits), of_heads),
        "topk": (heads, build.THREADS, 0, 0),
        "sample": (heads, threads, ring_bytes + _SAMPLE_BYTES * per_split + T * (_TILE_BYTES[method] if method < build.FLASH else 0), of_heads),
    }  # fmt: skip
    if batch > _LARGEST_GRID:
        raise InputError(f"batch={batch}: a launch takes up to {_LARGEST_GRID} sequences; split the batch")
    names = build.stages(spec)
    stages = tuple(Stage(name, build.load(name, variant, number), *launches[name]) for name in names)
    most = device.attribute(number, "MaxSharedMemoryPerBlockOptin")
    if T > _LARGEST_GRID or any(stage.kernel.shared_size_bytes + stage.shared_bytes > most for stage in stages):
        raise InputError(
            f"n_most={n_most} with tile={tile} makes {T} tiles, more than this GPU's shared memory (or a launch) has room for: "
            f"use a longer tile, up to {build.LARGEST_TILE}"
        )
    for stage in stages:
        if stage.shared_bytes > _granted.get(id(stage.kernel), 0):
            stage.kernel.max_dynamic_shared_size_bytes = _granted[id(stage.kernel)] = stage.shared_bytes
    return Plan(
        spec=spec, batch=batch, H=H, H_kv=H_kv, d=d, n_most=n_most, tile=tile, S=S, splits=splits, per_split=per_split, device=number, stages=stages,
        overlap=modern if overlap is None else overlap, work=_work_space(names, batch, H, H_kv, d, T, S, tile, splits),
        counts=_make_counts(batch, H, H_kv, d, T, S, method) if instrument else None,
    )  # fmt: skip


def _work_space(names: tuple[str, ...], batch: int, H: int, H_kv: int, d: int, T: int, S: int, tile: int, splits: int) -> dict:
    """The arrays between the kernels, by the kernels' names for them."""
    empty, G = device.require_cupy().empty, H // H_kv
    work = {"m": empty((batch, H, T), np.float32), "ell": empty((batch, H, T), np.float64)}
    if "score" in names or "bernoulli" in names:
        work["u"] = empty((batch, H_kv, T, G, -(-tile // 4) * 4), np.float32)
    if "bernoulli" in names:
        work["list"] = empty((batch, H_kv, d + 4), np.int32)
        work["weights"] = empty((batch, H_kv, d, -(-G // 4) * 4), np.float32)
        work["factors"] = empty((batch, H), np.float32)
    if "merge" in names:
        work["partials"] = empty((batch, H, T, d), np.float32)
    if "sample" in names:
        work["partial"] = empty((batch, H, splits, d), np.float32)
        work["tickets"] = device.require_cupy().zeros((batch, H), np.uint32)
    if "topk" in names:
        work["selected"] = device.require_cupy().full((batch, H, S), -1, np.int32)
        work["selected_scores"] = empty((batch, H, S), np.float32)
    return work


def _make_counts(batch: int, H: int, H_kv: int, d: int, T: int, S: int, method: int) -> Counts:
    cupy = device.require_cupy()

    def zeros(*shape, dtype=np.int64):
        return cupy.zeros(shape, dtype)

    return Counts(
        scores=zeros(batch, H_kv, T, len(exact.SCORE_COUNTS)), sampling=zeros(batch, H_kv, len(bernoulli.FEATURE_COUNTS)),
        drawn=zeros(batch, H_kv, H // H_kv, d, dtype=np.int32),
        global_step=zeros(batch, H_kv, len(topk.SELECT_COUNTS if method == build.TOPK else budgets.BUDGET_COUNTS)),
        drawing=zeros(batch, H_kv, T, len(draw.DRAW_COUNTS)), values=zeros(batch, H_kv, T, len(accumulate.VALUE_COUNTS)),
        merging=zeros(batch, H_kv, len(accumulate.MERGE_COUNTS)), tile_merging=zeros(batch, H_kv, T, len(accumulate.MERGE_COUNTS)),
        budgets=zeros(batch, H, T), masses=zeros(batch, H, T, dtype=np.float64), heaps=zeros(batch, H, max(S, T), dtype=np.int32),
        rows=cupy.full((batch, H, max(S, T) if method == build.FLASH else max(S, 1)), -1, cupy.int32),
    )  # fmt: skip


def feature_major(k):
    """A cache [B, n, H_kv, d] as the Bernoulli kernels take it, [B, H_kv, d, n rounded up to 8]: a copy, zero beyond n.

    k : torch tensor or CuPy array; the result is of the same kind. Append a token by writing column n.
    """
    B, n, H_kv, d = k.shape
    shape = (B, H_kv, d, -(-n // 8) * 8)
    if hasattr(k, "permute"):
        out = k.new_zeros(shape)
        out[..., :n] = k.permute(0, 2, 3, 1)
    else:
        out = device.require_cupy().zeros(shape, k.dtype)
        out[..., :n] = k.transpose(0, 2, 3, 1)
    return out


def decode(plan: Plan, q, k, v, out=None, *, lengths=None, seed: int | None = None, sequence: int = 0, sequence_step: int = 1,
           layer: int = 0, position: int = 0, positions=None, stream: int | None = None):  # fmt: skip
    """One decode step: two to four launches on the caller's stream, nothing copied, nothing waited for; a CUDA graph can hold it.

    Parameters
    ----------
    q : [B, H, d];  k, v : [B, n, H_kv, d], n >= n_most; torch tensors or CuPy arrays (bfloat16 as 16-bit integers) on the GPU.
        k and v may be slices of longer caches: heads and features must be dense, sequences and keys may have any stride.
        For Bernoulli scores k is feature-major, [B, H_kv, d, n] with dense keys (see `feature_major`): a feature that no
        query of the group needs is not read.
    out : [B, H, d] like q, overwritten; None allocates.  (The counting build takes and gives float32.)
    lengths : int32 [B] on the GPU, keys of each sequence, 0 ... n_most (not checked); None takes n_most for all.
        A sequence of no keys gives zeros.
    seed : int; None takes the spec's.  sequence : number of the first;  layer, position : of the draws' counters
    sequence_step : from one sequence's number to the next's; 0 where all are queries of one sequence
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
    if out is None:
        with device.borrow_stream(stream, plan.device):
            out = _empty_like(plan, q)
    tensors = {"q": q, "k": k, "v": v, "out": out, "lengths": lengths, "positions": positions}
    scalars = {"seed": plan.spec.seed if seed is None else seed, "sequence0": sequence, "sequence_step": sequence_step,
               "head0": layer * plan.H, "position": position}  # fmt: skip
    same = (stream, *(device.identity(x) for x in tensors.values()))
    if plan.prepared.get("same") != same:
        with device.borrow_stream(stream, plan.device):
            plan.prepared.update(_prepare(plan, tensors, scalars, stream), same=same)
    for name, arguments in plan.prepared["scalars"]:
        for argument in arguments:
            argument.value = scalars[name]
    for launch in plan.prepared["launches"]:
        launch()
    return out


def _prepare(plan: Plan, tensors: dict, scalars: dict, stream: int) -> dict:
    """The step's launches on these tensors, and which of their arguments are scalars that change from step to step."""
    arrays = {name: device.as_cupy(name, x) for name, x in tensors.items() if x is not None}
    _check(plan, tensors, arrays)
    values = {
        "n_most": plan.n_most, "T": plan.T, "S": plan.S, "k_most": plan.S, "per_split": plan.per_split, "draws": plan.spec.B,
        "scale": 1 / math.sqrt(plan.d), "by_threshold": plan.spec.sampler == "scaled-thresholds", **scalars,
        "k_row": 0, "most_rows": plan.counts.rows.shape[-1] if plan.counts else 0,
        **dict.fromkeys((*tensors, "u", *_COUNTERS)), **{name: x.data.ptr for name, x in {**arrays, **plan.work}.items()},
        **_strides("k", arrays["k"], ("sequence", "head", "feature") if plan.feature_major else ("sequence", "row")),
        **_strides("v", arrays["v"], ("sequence", "row")),
    }  # fmt: skip
    if plan.counts:
        values.update({name: getattr(plan.counts, field).data.ptr for name, field in _COUNTERS.items()})
    launches, changing = [], {name: [] for name in scalars}
    for number, stage in enumerate(plan.stages):
        arguments = {name: kind(values[name]) for name, kind in build.parameters(stage.name)}
        launches.append(device.Launch(stage.kernel, stage.grid, stage.threads, list(arguments.values()), stream, stage.shared_bytes,
                                      after_previous=plan.overlap and number > 0, cluster=stage.cluster))  # fmt: skip
        for name in scalars.keys() & arguments.keys():
            changing[name].append(arguments[name])
    return {"launches": launches, "scalars": list(changing.items())}


def _strides(name: str, x, axes: tuple[str, ...]) -> dict[str, int]:
    """Elements from one to the next along the first axes."""
    return {f"{name}_{axis}": stride // x.itemsize for axis, stride in zip(axes, x.strides)}


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
        if name == "k" and plan.feature_major:
            shape = array.shape
            if len(shape) != 4 or shape[:3] != (plan.batch, plan.H_kv, plan.d) or shape[3] < plan.n_most:
                raise InputError(f"k has shape {shape}; with Bernoulli scores the plan takes it feature-major, [{plan.batch}, {plan.H_kv}, "
                                 f"{plan.d}, at least {plan.n_most}]; write feature_major(k)")  # fmt: skip
            if array.strides[2] // 16 * plan.d >= 2**32:
                raise InputError(f"k's features are {array.strides[2]} B apart; the kernels take up to {2**36 // plan.d - 16} B: use shorter caches")
            if array.strides[3] != array.itemsize or any(stride % 16 for stride in array.strides[:3]):
                raise InputError(f"k has strides {array.strides} B: keys must be dense, and features a multiple of 16 B apart; "
                                 "write feature_major(k) for a [B, n, H_kv, d] cache")  # fmt: skip
        elif name in ("k", "v"):
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
