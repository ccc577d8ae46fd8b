"""What is validated: a grid of decode steps, their inputs on the GPU, and the same inputs on the CPU for the trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..errors import InputError, choose
from ..methods.spec import SAMPLED, Spec
from . import device

H, H_KV, D, TILE = 32, 8, 128, 128  # Llama-3.1-8B's geometry
# name -> value stage; -systematic is prop with its other allocation
METHODS = {
    "sdpa": ("sdpa", None), "topk": ("topk", None), "santa": ("santa", None), "s2anta-strat": ("s2anta-strat", None),
    "s2anta-sys": ("s2anta-sys", None), "s2anta-prop": ("s2anta-prop", "largest-remainder"),
    "s2anta-prop-systematic": ("s2anta-prop", "systematic"), "s2anta-flash": ("s2anta-flash", None),
}  # fmt: skip
DEFAULT_METHODS = ("sdpa", "s2anta-sys", "s2anta-prop", "s2anta-prop-systematic", "s2anta-strat", "s2anta-flash", "topk")
DEFAULT_N_K = (4096, 16384, 32768, 131072)
DEFAULT_SAMPLES = (128, 1024)
FLASH_SAMPLES = 2048  # the paper's S for the flash form, which draws at least one sample of every tile
DEFAULT_BATCH = (1, 16)
DEFAULT_DTYPE = ("bf16", "fp16")
LARGEST_KEYS = 2**19  # n_k times batch: 2 GB of K and V


@dataclasses.dataclass(frozen=True)
class Cell:
    """One decode step: method of METHODS, n_k keys, S samples (top-k: keys; sdpa: 0), batch, 'bf16' or 'fp16'."""

    method: str
    n_k: int
    S: int
    batch: int
    precision: str

    @property
    def name(self) -> str:
        budget = {"sdpa": "", "topk": f", k = {self.S}"}.get(self.method, f", S = {self.S}")
        return f"{self.method}{budget}, n_k = {self.n_k:,}, batch {self.batch}, {self.precision}"

    def spec(self) -> Spec:
        method, allocation = METHODS[self.method]
        budget = {} if method == "sdpa" else {"k": self.S} if method == "topk" else {"samples": self.S}
        return Spec(method=method, precision=self.precision, tile=TILE, **budget, **({"allocation": allocation} if allocation else {}))


def grid(methods: Sequence[str] = DEFAULT_METHODS, n_k: Sequence[int] = DEFAULT_N_K, samples: Sequence[int] = DEFAULT_SAMPLES,
         batch: Sequence[int] = DEFAULT_BATCH, dtype: Sequence[str] = DEFAULT_DTYPE, quick: bool = False) -> list[Cell]:  # fmt: skip
    """The cells of a grid, shortest first; `quick` keeps one S, one type and two lengths.

    The second and further types run at the middle length and the first batch only; a batch runs where K and V stay below 2 GB.
    Flash draws 2048 samples, or those asked for if none is below its tiles; top-k keeps as many keys as the first S.

    Raises
    ------
    InputError
        A name or number that makes no cell.
    """
    for name in methods:
        choose("method", name, tuple(METHODS))
    for name in dtype:
        choose("dtype", name, ("bf16", "fp16"))
    for what, values in (("n_k", n_k), ("samples", samples), ("batch", batch)):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{what}={value!r} must be a whole number of at least 1")
    if quick:
        n_k, samples, dtype = sorted(n_k)[:: max(1, len(n_k) // 2)][-2:], samples[:1], dtype[:1]
    middle = sorted(n_k)[len(n_k) // 2]
    cells = []
    for method in methods:
        stage = METHODS[method][0]
        budgets = [0] if stage == "sdpa" else samples[:1] if stage == "topk" else [FLASH_SAMPLES] if stage == "s2anta-flash" else samples
        for keys in n_k:
            for sequences in batch:
                if sequences > 1 and sequences * keys > LARGEST_KEYS:
                    continue
                for i, precision in enumerate(dtype):
                    if i == 0 or (keys == middle and sequences == batch[0]):
                        cells += [Cell(method, keys, S, sequences, precision) for S in budgets]
    if not cells:
        raise InputError("no cell is left: every batch times n_k asked for needs more than 2 GB of K and V; ask for fewer keys or sequences")
    return sorted(cells, key=lambda cell: (cell.precision, cell.batch * cell.n_k, cell.batch, cell.method, cell.S))


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """q [B, H, d], k and v [B, n_k, H_kv, d] on the GPU: Gaussian, bfloat16 as 16-bit integers."""

    q: object
    k: object
    v: object
    precision: str


def make_inputs(n_k: int, batch: int, precision: str, seed: int = 0) -> Inputs:
    """Gaussian inputs, the same for the same arguments on the same version of CuPy."""
    cupy = device.require_cupy()
    random = cupy.random.Generator(cupy.random.Philox4x3210(seed + 1000 * n_k + batch))

    def tensor(*shape):
        out = cupy.empty(shape, cupy.float16 if precision == "fp16" else cupy.uint16)
        for part in out:
            part[...] = rounded(random.standard_normal(part.shape, dtype=cupy.float32), precision)
        return out

    return Inputs(tensor(batch, H, D), tensor(batch, n_k, H_KV, D), tensor(batch, n_k, H_KV, D), precision)


def rounded(x, precision: str):
    """float32 to float16, or to bfloat16 as 16-bit integers (ties to even)."""
    cupy = device.require_cupy()
    if precision == "fp16":
        return x.astype(cupy.float16)
    bits = x.view(cupy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def widened(x):
    """Stored elements as float64."""
    cupy = device.require_cupy()
    if x.dtype == cupy.float16:
        return x.astype(cupy.float64)
    return (x.astype(cupy.uint32) << 16).view(cupy.float32).astype(cupy.float64)


def on_host(x, precision: str) -> np.ndarray:
    """A stored tensor as NumPy's float16 or ml_dtypes' bfloat16."""
    import ml_dtypes

    array = device.require_cupy().asnumpy(x)
    return array if precision == "fp16" else array.view(ml_dtypes.bfloat16)


def gaussian_on_host(n_k: int, batch: int, precision: str, seed: int = 0):
    """Inputs of the same distribution without a GPU, for predictions alone: lists of q, k, v by sequence."""
    import ml_dtypes

    kind = np.float16 if precision == "fp16" else ml_dtypes.bfloat16
    random = np.random.Generator(np.random.Philox(seed + 1000 * n_k + batch))
    return tuple([random.standard_normal(shape, dtype=np.float32).astype(kind) for _ in range(batch)]
                 for shape in ((H, D), (n_k, H_KV, D), (n_k, H_KV, D)))  # fmt: skip


def is_sampled(cell: Cell) -> bool:
    return METHODS[cell.method][0] in SAMPLED
