"""Which kernels a set of combinations needs: each is run once, its trace replayed on every machine."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .. import api
from ..errors import InputError
from ..methods.spec import SAMPLED
from ..trace import Trace
from ..workload import Workload, load_workload

# Arguments of `make_trace` that say what is computed, and what each is where it isn't given.
DEFAULTS: dict[str, object] = {
    "method": None, "S": None, "k": None, "score": "exact", "B": None, "precision": None, "seed": 0, "kernel": "cpu",
    "tile": None, "allocation": "largest-remainder", "sampler": "scaled-weights", "value_format": None, "tensor_seed": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One run of a method on a workload: what `make_trace` is called with, as sorted (name, value) pairs."""

    workload: Workload
    arguments: tuple[tuple[str, object], ...]

    @classmethod
    def of(cls, workload: str | Path | Mapping | Workload, arguments: Mapping[str, object]) -> Kernel:
        """The kernel of some arguments. S, k, B, allocation and sampler count only where the method or score has them:
        they stand for themselves in the combinations that use them."""
        given = {**DEFAULTS, **arguments}
        method = given["method"]
        if method not in SAMPLED:
            given["S"] = None
        if method != "topk":
            given["k"] = None
        if given["score"] == "exact":
            given["B"] = None
        if method != "s2anta-prop":
            given["allocation"] = DEFAULTS["allocation"]
        if method not in ("s2anta-sys", "s2anta-prop", "s2anta-flash"):
            given["sampler"] = DEFAULTS["sampler"]
        if isinstance(given["S"], list):
            given["S"] = tuple(given["S"])
        return cls(load_workload(workload), tuple(sorted(given.items())))

    def trace(self, progress: Callable[[str, int, int], None] | None = None) -> Trace:
        """Run it."""
        return api.make_trace(self.workload, progress=progress, **dict(self.arguments))

    def known(self) -> dict[str, object]:
        """What a failed row can say of it, by the names of a row's columns."""
        given = dict(self.arguments)
        return {
            "workload": self.workload.name, "method": given["method"], "score": given["score"], "samples": given["S"],
            "budget_k": given["k"], "budget_B": given["B"], "precision": given["precision"], "seed": given["seed"],
        }  # fmt: skip


def alternatives(name: str, value: object) -> list:
    """A list stands for alternatives; anything else (a tuple too: one per layer) for itself."""
    if not isinstance(value, list):
        return [value]
    if not value:
        raise InputError(f"{name}=[] is empty: give at least one value, or leave it out")
    return value


def kernels(workloads: Iterable, arguments: Mapping[str, object]) -> list[Kernel]:
    """All combinations of workloads and of the arguments that are lists, each kernel once, the last argument fastest."""
    names = list(arguments)
    found = {}
    for workload in workloads:
        for values in itertools.product(*(alternatives(name, arguments[name]) for name in names)):
            found[Kernel.of(workload, dict(zip(names, values)))] = None
    return list(found)
