"""From CUDA sources to loaded kernels: one compilation for each head dimension, group, tile, type and method."""

from __future__ import annotations

import dataclasses
import functools
import re
from importlib import resources

from ..errors import InputError
from ..methods.spec import Spec

LARGEST_TILE = 512
HEAD_DIMENSIONS = (64, 128, 256)
LARGEST_GROUP = 8
THREADS, AT_ONCE = 512, 2  # of a block that draws; samples of a warp whose loads are in flight together
WARP_KEYS = {64: 32, 128: 32, 256: 16}  # head dimension -> keys that a warp scores
ARCHITECTURES = (80, 86, 89, 90, 120)
# kernel -> source file
SOURCES = {"score": "score.cu", "sample": "sample.cu", "flash": "flash.cu", "merge": "flash.cu", "topk": "topk.cu"}
FLASH, TOPK = 4, 5
# value stages by (method, allocation), as sample.cu numbers them, the flash form and top-k
METHODS = {("s2anta-sys", None): 0, ("s2anta-prop", "systematic"): 0, ("s2anta-prop", "largest-remainder"): 1,
           ("santa", None): 2, ("s2anta-strat", None): 3, ("s2anta-flash", None): FLASH, ("topk", None): TOPK}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for.

    d : head dimension;  group : G, query heads per KV head;  tile : keys per tile;  precision : 'bf16' or 'fp16'
    staged : the score pass copies K through shared memory, 2 * d * tile bytes of it
    method : value stage, a number of METHODS;  every_tile : draws also scan tiles without a sample (one global CDF)
    cluster : a head's splits add up through their cluster's shared memory (compute capability 9.0 and later)
    instrument : fill the counters and row lists of the trace, and write float32 outputs
    """

    d: int
    group: int
    tile: int
    precision: str
    staged: bool = False
    method: int = 0
    every_tile: bool = True
    cluster: bool = False
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
                  "EVERY_TILE": self.every_tile, "CLUSTER": self.cluster, "INSTRUMENT": self.instrument, "KEEP": self.method == TOPK,
                  "WARP_KEYS": WARP_KEYS[self.d], "STAGED": self.staged, "THREADS": THREADS, "AT_ONCE": AT_ONCE}  # fmt: skip
        return tuple(f"-D{name}={int(value)}" for name, value in values.items())


def method_number(spec: Spec) -> int:
    """The value stage of a spec, a number of METHODS.

    Raises
    ------
    InputError
        A method or score stage that the GPU back end doesn't have.
    """
    if spec.score != "exact":
        raise InputError(f"score={spec.score!r} is not on the GPU yet; use score='exact', or kernel='cpu'")
    key = (spec.method, spec.allocation if spec.method == "s2anta-prop" else None)
    if key not in METHODS:
        there = sorted({method for method, _ in METHODS})
        raise InputError(f"method={spec.method!r} is not on the GPU yet; choose from {', '.join(there)}, or use kernel='cpu'")
    return METHODS[key]


def variant(spec: Spec, d: int, group: int, tile: int, cluster: bool = False, instrument: bool = False) -> Variant:
    """What a spec's kernels are compiled for; raises InputError as `method_number` and `Variant` do."""
    return Variant(d=d, group=group, tile=tile, precision=spec.precision, method=method_number(spec),
                   every_tile=spec.method == "s2anta-sys", cluster=cluster, instrument=instrument)  # fmt: skip


@functools.cache
def source(file: str) -> str:
    """A CUDA source with our headers in place of their #include lines, so that it stands alone."""
    text = (resources.files(__package__) / "kernels" / file).read_text()
    return re.sub(r'^#include "(.+)"$', lambda match: source(match[1]), text, flags=re.MULTILINE)


@functools.cache
def load(kernel: str, variant: Variant, device: int):
    """The compiled kernel on a device, as CuPy's RawKernel; compiled once per device and kept on disk by CuPy."""
    import cupy

    module = cupy.RawModule(code=source(SOURCES[kernel]), options=("-std=c++17", *variant.options()))
    function = module.get_function(kernel)
    function.kernel  # noqa: B018  compiles and loads now, not at the first launch
    return function
