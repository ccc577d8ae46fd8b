"""From CUDA sources to loaded kernels: one compilation for each head dimension, group, tile, type and method."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import re
from importlib import resources

from ..errors import InputError
from ..methods.spec import Spec

LARGEST_TILE = 512
HEAD_DIMENSIONS = (64, 128, 256)
LARGEST_GROUP = 8
THREADS = 512  # of a block that draws
WARP_KEYS = {64: 32, 128: 32, 256: 16}  # head dimension -> keys that a warp scores
TEAM = {True: 16, False: 32}  # whether a tile has up to 128 keys -> lanes that work on one sample
DENSE_THREADS, BERNOULLI_THREADS = 256, 128
ARCHITECTURES = (80, 86, 89, 90, 120)
# kernel (and source file) -> the fields of a variant that change it, besides d, group, tile, precision and instrument
KERNELS = {"score": ("staged", "keep"), "features": ("kind",), "bernoulli": ("kind", "keep", "staged"),
           "sample": ("method", "every_tile", "cluster", "threads", "depth"),
           "flash": ("staged", "stashed"), "dense": (), "merge": ("cluster",), "topk": ()}  # fmt: skip
FLASH, TOPK, DENSE = 4, 5, 6
# value stages by (method, allocation), as sample.cu numbers them, the flash form, top-k and dense attention
METHODS = {("s2anta-sys", None): 0, ("s2anta-prop", "systematic"): 0, ("s2anta-prop", "largest-remainder"): 1,
           ("santa", None): 2, ("s2anta-strat", None): 3, ("s2anta-flash", None): FLASH, ("topk", None): TOPK, ("sdpa", None): DENSE}  # fmt: skip
KINDS = {"exact": 0, "bernoulli": 1, "bernoulli-stratified": 2, "bernoulli-mean-group": 3}  # score stages, as features.cu numbers them
_TYPES = {"int": ctypes.c_int32, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64, "i64": ctypes.c_int64, "float": ctypes.c_float}


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for.

    d : head dimension;  group : G, query heads per KV head;  tile : keys per tile;  precision : 'bf16' or 'fp16'
    staged : the score pass copies K through shared memory
    keep : the score pass stashes the scores themselves (top-k);  stashed : flash takes its scores from a stash
    kind : Bernoulli score stage, a number of KINDS;  method : value stage, a number of METHODS
    every_tile : draws also scan tiles without a sample (one global CDF)
    cluster : a head's splits add up through their cluster's shared memory (compute capability 9.0 and later)
    threads : of a block that draws;  depth : samples of a team of lanes whose loads are under way at a time
    instrument : fill the counters and row lists of the trace, and write float32 outputs
    """

    d: int
    group: int
    tile: int
    precision: str
    staged: bool = False
    keep: bool = False
    stashed: bool = False
    kind: int = 0
    method: int = 0
    every_tile: bool = True
    cluster: bool = False
    threads: int = THREADS
    depth: int = 1
    instrument: bool = False

    def __post_init__(self) -> None:
        if self.d not in HEAD_DIMENSIONS:
            raise InputError(f"head dimension d={self.d}: the GPU kernels take 64, 128 or 256; use kernel='cpu'")
        if not 1 <= self.group <= LARGEST_GROUP:
            raise InputError(f"G={self.group} query heads per KV head: the GPU kernels take 1 ... {LARGEST_GROUP}; use kernel='cpu'")
        if not 1 <= self.tile <= LARGEST_TILE:
            raise InputError(f"tile={self.tile}: the GPU kernels take 1 ... {LARGEST_TILE} keys per tile, such as tile=256")
        if self.precision not in ("bf16", "fp16"):
            raise InputError(f"precision={self.precision!r}: the GPU kernels take 'bf16' or 'fp16'; use kernel='cpu'")

    def options(self) -> tuple[str, ...]:
        """Definitions for the compiler."""
        values = {"D": self.d, "G": self.group, "TILE": self.tile, "BF16": self.precision == "bf16", "METHOD": self.method,
                  "EVERY_TILE": self.every_tile, "CLUSTER": self.cluster, "INSTRUMENT": self.instrument, "KEEP": self.keep, "KIND": self.kind,
                  "STASHED": self.stashed, "WARP_KEYS": WARP_KEYS[self.d], "STAGED": self.staged, "THREADS": self.threads, "DEPTH": self.depth}  # fmt: skip
        return tuple(f"-D{name}={int(value)}" for name, value in values.items())

    def of(self, kernel: str) -> Variant:
        """This variant with what the kernel doesn't depend on left at its default, so that it is compiled once."""
        always = ("d", "group", "tile", "precision", "instrument")
        fields = {name: getattr(self, name) for name in (*always, *KERNELS[kernel])}
        if kernel == "flash" and self.stashed:
            fields["staged"] = False  # K is the score pass's
        return Variant(**fields)


def method_number(spec: Spec) -> int:
    """The value stage of a spec, a number of METHODS."""
    return METHODS[spec.method, spec.allocation if spec.method == "s2anta-prop" else None]


def stages(spec: Spec) -> tuple[str, ...]:
    """The kernels of a decode step, in order."""
    method = method_number(spec)
    values = {FLASH: ("flash", "merge"), TOPK: ("topk",), DENSE: ("dense", "merge")}.get(method, ("sample",))
    if spec.score != "exact":
        return "features", "bernoulli", *values
    return values if method == FLASH else ("score", *values)


def variant(spec: Spec, d: int, group: int, tile: int, **more) -> Variant:
    """What a spec's kernels are compiled for; `more` are fields of the variant. Raises InputError as `Variant` does."""
    method = method_number(spec)
    return Variant(d=d, group=group, tile=tile, precision=spec.precision, method=method, keep=method == TOPK, kind=KINDS[spec.score],
                   stashed=spec.score != "exact", every_tile=spec.method == "s2anta-sys", **more)  # fmt: skip


@functools.cache
def source(file: str) -> str:
    """A CUDA source with our headers in place of their #include lines, so that it stands alone."""
    text = (resources.files(__package__) / "kernels" / file).read_text()
    return re.sub(r'^#include "(.+)"$', lambda match: source(match[1]), text, flags=re.MULTILINE)


@functools.cache
def parameters(kernel: str) -> tuple[tuple[str, type], ...]:
    """Names and C types of a kernel's parameters, as its source declares them."""
    text = source(f"{kernel}.cu")
    declared = re.search(rf"^{kernel}\(([^)]*)\) {{", text, flags=re.MULTILINE)[1]
    pairs = []
    for parameter in declared.split(","):
        words = parameter.replace("*", "* ").split()
        pairs.append((words[-1], ctypes.c_void_p if "*" in parameter else _TYPES[words[-2]]))
    return tuple(pairs)


@functools.cache
def load(kernel: str, variant: Variant, device: int):
    """The compiled kernel on a device, as CuPy's RawKernel; compiled once per device and kept on disk by CuPy."""
    import cupy

    module = cupy.RawModule(code=source(f"{kernel}.cu"), options=("-std=c++17", *variant.of(kernel).options()))
    function = module.get_function(kernel)
    function.kernel  # noqa: B018  compiles and loads now, not at the first launch
    return function
