"""`santa_sim.attention`: run a method on given tensors, NumPy in, NumPy out, with the trace of what was done."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from .errors import InputError, choose, suggestion
from .fixed_point import BITS
from .jit import jit
from .methods.kernel import run_layer
from .methods.layer import prepare
from .methods.spec import SAMPLED, Spec
from .trace import TraceWriter

_ALIASES = {"sample": "S", "samples": "S", "n_samples": "S", "num_samples": "S", "s": "S", "b": "B", "draws": "B", "top_k": "k",
            "K": "k", "topk": "k", "machine": "hardware", "hw": "hardware", "dtype": "precision"}  # fmt: skip

STORAGE = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
KERNELS = ("cpu", "gpu", "torch")


def attention(q, k, v, method: str, S=None, *, k_top: int | None = None, score: str = "exact", B: int | None = None,
              precision: str | None = None, seed: int = 0, tile: int | None = None, allocation: str = "largest-remainder",
              sampler: str = "scaled-weights", causal: bool = True, query_block: int = 64, value_format: str | None = None,
              n_k=None, kernel: str = "cpu", **unknown):  # fmt: skip
    """Run one attention layer for one sequence, or for a batch of sequences of different lengths.

    Parameters
    ----------
    q : array [H, d] (decode) or [n_q, H, d] (prefill); float32, float16 or bfloat16 (ml_dtypes)
    k, v : arrays [n_k, H_kv, d], the sequence-first cache, the current token included
        For a batch, q, k and v are lists with one array per sequence.
    method : 'sdpa', 'topk', 'santa', 's2anta-strat', 's2anta-sys', 's2anta-prop' or 's2anta-flash'
    S : int, samples per query and head (sampled methods);  k_top : int, keys that top-k keeps
    score, B, precision, seed, tile, allocation, sampler, causal, query_block, value_format : see `Spec`
        precision defaults to the tensors' own type.
    n_k : int or list, keys that hold data; rows of k and v beyond are never read
    kernel : 'cpu' (Numba), 'torch' (plain torch code) or 'gpu' (CuPy)

    Returns
    -------
    output : array like q (its type; float32 for fixed point), or a list of them;  trace : Trace

    Raises
    ------
    InputError
        Shapes that don't match, H not a multiple of H_kv, an empty cache, NaN or inf, budgets out of range, unknown names.
    """
    reject_unknown("attention", unknown, ("S", "k_top", "score", "B", "precision", "seed", "tile", "allocation", "sampler", "causal",
                                          "query_block", "value_format", "n_k", "kernel"))  # fmt: skip
    batch = isinstance(q, (list, tuple))
    if batch and not (isinstance(k, (list, tuple)) and isinstance(v, (list, tuple)) and len(q) == len(k) == len(v) > 0):
        raise InputError(f"q is a list of {len(q)} sequences; k and v must be lists of as many (and at least one)")
    queries, keys, values = ([x] if not batch else list(x) for x in (q, k, v))
    used = list(n_k) if isinstance(n_k, (list, tuple)) else [n_k] * len(queries)
    if len(used) != len(queries):
        raise InputError(f"n_k has {len(used)} entries; there are {len(queries)} sequences")
    tensors = [check_tensors(*x) for x in zip(queries, keys, values, used)]
    if precision is None:
        types = sorted({_precision_of(x) for of_sequence in tensors for x in of_sequence[:3]})
        if len(types) > 1:
            raise InputError(f"q, k and v come as {' and '.join(types)}; say which to compute in, such as precision={types[0]!r}")
        precision = types[0]
    spec = Spec(method=method, samples=S, k=k_top, score=score, B=B, precision=precision, tile=tile, allocation=allocation,
                sampler=sampler, seed=seed, causal=causal, query_block=query_block, value_format=value_format)  # fmt: skip
    outputs, trace = run_kernel(spec, [[t] for t in tensors], layers=(0,), kernel=kernel)
    return ([o[0] for o in outputs] if batch else outputs[0][0]), trace


def reject_unknown(function: str, unknown: dict, options: Sequence[str]) -> None:
    """InputError for an argument that `function` doesn't have, naming the one that was probably meant."""
    if not unknown:
        return
    name, value = next(iter(unknown.items()))
    known = {**{alias: target for alias, target in _ALIASES.items() if target in options}, **{option: option for option in options}}
    if "k_top" in options:
        known.update({"top_k": "k_top", "topk": "k_top", "budget_k": "k_top"})
    near = known.get(name) or next(iter(known[match] for match in difflib.get_close_matches(name, known, n=1)), None)
    hint = f"; did you mean {near!r}?" if near else suggestion(name, options)
    raise InputError(f"{function}() has no argument {name!r} (given as {name}={value!r}){hint}")


def run_kernel(spec: Spec, tensors: Sequence[Sequence[tuple]], layers: Sequence[int], kernel: str = "cpu",
               meta: dict | None = None, progress: Callable[[int, int], None] | None = None):  # fmt: skip
    """Run every (sequence, layer) of checked tensors.

    Parameters
    ----------
    tensors : tensors[sequence][layer] = (q [n_q, H, d], k, v, decode: bool), as `check_tensors` returns them
    layers : the layers' numbers;  meta : facts to add to the trace's
    progress : called with (query positions done, query positions in all)

    Returns
    -------
    outputs : outputs[sequence][layer], arrays shaped like the caller's q;  trace : Trace
    """
    choose("kernel", kernel, KERNELS)
    run = _runner(kernel)
    first_q, first_k = tensors[0][0][0], tensors[0][0][1]
    H, H_kv, d = first_q.shape[1], first_k.shape[1], first_q.shape[2]
    for sequence, of_layer in enumerate(tensors):
        for q, k, _, decode in of_layer:
            if decode != tensors[0][0][3]:
                shapes = ("[n_q, H, d]", "[H, d]")
                raise InputError(f"sequence {sequence}'s q is {shapes[decode]}, sequence 0's {shapes[not decode]}; run decode steps and prefills apart")
            if (q.shape[1], k.shape[1], q.shape[2]) != (H, H_kv, d):
                raise InputError(f"sequence {sequence} has H={q.shape[1]}, H_kv={k.shape[1]}, d={q.shape[2]}; sequence 0 has H={H}, H_kv={H_kv}, d={d}")
    storage = STORAGE.get(spec.precision)
    writer = TraceWriter()
    outputs, tallies = [], []
    total = sum(q.shape[0] for of_layer in tensors for q, *_ in of_layer)
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, total)

    for sequence, of_layer in enumerate(tensors):
        outputs.append([])
        for index, (q, k, v, decode) in enumerate(of_layer):
            if storage is not None:
                q, k, v = (_stored(name, x, storage) for name, x in (("q", q), ("k", k), ("v", v)))
            S = spec.samples_at(index, len(of_layer)) if spec.method in SAMPLED else None
            tile = spec.tile_for(k.shape[0])
            out, tally = run(spec, prepare(spec, q, k, v, tile), sequence, layers[index], S, tile, writer, step)
            out = out.astype(q.dtype) if storage is not None else out
            outputs[-1].append(out[0] if decode else out)
            tallies.append(tally)
    n_k = [of_layer[0][1].shape[0] for of_layer in tensors]
    draws, queries, saturated = (sum(getattr(t, f) for t in tallies) for f in ("draws", "queries", "saturated"))
    integer = spec.precision in BITS
    accumulator = "int32" if integer else "fp32"
    means = spec.score == "bernoulli-mean-group"  # its weights are float32, and so are their products with K and the sums
    drawn = draws / queries if spec.method in SAMPLED else None
    facts = {
        "method": spec.method, "score": spec.score, "kind": "decode" if tensors[0][0][3] else "prefill",
        "precision": spec.precision, "n_heads": H, "n_kv_heads": H_kv, "head_dim": d,
        "n_q": [of_layer[0][0].shape[0] for of_layer in tensors], "n_k": n_k, "layers": list(layers),
        "tile": spec.tile_for(max(n_k)),
        "score_types": {"operand": "fp32" if means and integer else spec.precision, "accumulator": "fp32" if means else accumulator},
        "value_types": {"operand": spec.precision, "accumulator": accumulator},
        "normalization": "shift" if writer.any("value_shifts") else "multiply",
        "samples": list(spec.samples) if isinstance(spec.samples, tuple) else spec.samples,
        "samples_drawn": int(drawn) if drawn is not None and drawn == int(drawn) else drawn,
        "budget_k": spec.k, "budget_B": spec.B, "seed": spec.seed, "kernel": kernel, "allocation": spec.allocation,
        "sampler": spec.sampler, "causal": spec.causal, "saturations": saturated,
        "notes": _notes(spec, n_k, drawn, saturated),
    }  # fmt: skip
    return outputs, writer.finish({**facts, **(meta or {})})


def _notes(spec: Spec, n_k: list[int], drawn: float | None, saturated: int) -> list[str]:
    """What a reader of the result should know about the run itself."""
    notes = []
    if spec.method == "s2anta-prop" and spec.allocation == "largest-remainder":
        notes.append("largest-remainder budgets are biased: tiles below one sample can stay silent; allocation 'systematic' is unbiased")
    if spec.method == "s2anta-flash" and drawn != spec.samples:
        notes.append(f"flash draws max(1, floor(S / tiles)) samples a tile: {drawn:g} per query and head")
    if spec.method == "topk" and spec.k > min(n_k):
        notes.append(f"k = {spec.k:,} is more than the {min(n_k):,} keys of {'the shortest' if len(n_k) > 1 else 'the'} sequence: top-k keeps them all, as dense attention does")
    if saturated:
        notes.append(f"fixed point: {saturated} values saturated")
    return notes


def _runner(kernel: str):
    if kernel == "cpu":
        return run_layer
    if kernel == "torch":
        try:
            from .methods.torch_kernel import run_layer as run_torch
        except ImportError:
            raise InputError('kernel="torch" needs torch: pip install "santa-sim[models]"') from None
        return run_torch
    from .gpu.layer import run_layer as run_gpu  # CuPy itself is imported, or found missing, when it runs

    return run_gpu


def _stored(name: str, x: np.ndarray, storage: np.dtype) -> np.ndarray:
    """x in its storage type, C-contiguous; InputError if a value lies beyond the type's range."""
    if x.dtype == storage:
        return np.ascontiguousarray(x)
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(x.astype(storage))
    if (bad := _not_finite(stored)) is not None:
        raise InputError(f"{name}[{', '.join(map(str, bad))}] = {x[bad]} is beyond the range of {_precision_of(stored)}")
    return stored


def _precision_of(q: np.ndarray) -> str:
    return next(name for name, dtype in STORAGE.items() if dtype == q.dtype)


def check_tensors(q, k, v, n_k: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Validate one sequence's tensors.

    Returns
    -------
    q [n_q, H, d], k, v [n_k, H_kv, d], and whether q was [H, d] (decode)

    Raises
    ------
    InputError
        As listed in `attention`.
    """
    q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in STORAGE.values():
            raise InputError(f"{name} has dtype {x.dtype}; use float32, float16 or ml_dtypes.bfloat16" + ("; write x.astype(np.float32)" if x.dtype == np.float64 else ""))
    if q.ndim not in (2, 3):
        raise InputError(f"q has shape {q.shape}; decode takes [H, d], prefill [n_q, H, d]")
    if k.ndim != 3 or v.ndim != 3:
        raise InputError(f"k has shape {k.shape} and v {v.shape}; both must be [n_k, H_kv, d]")
    if k.shape != v.shape:
        raise InputError(f"k has shape {k.shape}, v has {v.shape}; they must match")
    if k.shape[2] != q.shape[-1]:
        raise InputError(f"head dimension: q has shape {q.shape} (d = {q.shape[-1]}), k has {k.shape} (d = {k.shape[2]})")
    if n_k is not None:
        if isinstance(n_k, bool) or not isinstance(n_k, (int, np.integer)) or not 0 <= n_k <= k.shape[0]:
            raise InputError(f"n_k={n_k!r} must be a whole number from 1 to the cache's {k.shape[0]} rows")
        k, v = k[:n_k], v[:n_k]
    if k.shape[0] == 0:
        raise InputError("the cache is empty (n_k = 0): k and v need at least the current token's row")
    H, H_kv = q.shape[-2], k.shape[1]
    if H == 0 or H_kv == 0 or q.shape[-1] == 0:
        raise InputError(f"q has shape {q.shape} and k {k.shape}: heads and head dimension must be at least 1")
    if H % H_kv:
        near = [h for h in range(1, H + 1) if H % h == 0]
        raise InputError(f"H={H} query heads are not a multiple of H_kv={H_kv} KV heads; H_kv can be {', '.join(map(str, near))}")
    decode = q.ndim == 2
    q = q[None] if decode else q
    if not 1 <= q.shape[0] <= k.shape[0]:
        raise InputError(f"q has {q.shape[0]} query positions, k has n_k = {k.shape[0]} keys; n_q must be 1 ... n_k")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if (bad := _not_finite(x)) is not None:
            raise InputError(f"{name}[{', '.join(map(str, bad))}] is {x[bad]}: Q, K and V must be finite")
    return q, k, v, decode


_EXPONENTS = {"fp32": 0x7F800000, "fp16": 0x7C00, "bf16": 0x7F80}


@jit
def _none_special(bits, exponent):
    """True if no element has all exponent bits set, as inf and NaN do."""
    special = 0
    for i in range(len(bits)):
        special += (bits[i] & exponent) == exponent
    return special == 0


def _not_finite(x: np.ndarray) -> tuple[int, ...] | None:
    """Where the first inf or NaN of x is, or None; looked for in one pass over the bits."""
    unsigned = np.uint32 if x.itemsize == 4 else np.uint16
    bits = np.ascontiguousarray(x).view(unsigned).reshape(-1)
    if _none_special(bits, unsigned(_EXPONENTS[_precision_of(x)])):
        return None
    return tuple(np.argwhere(~np.isfinite(x.astype(np.float32)))[0])
