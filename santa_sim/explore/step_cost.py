"""What the parts of a decode step cost on a machine, each simulated once, large matrices and batches in part.

A matrix is a stream: after the first tiles every further row takes as long as the one before. So two pieces of a large
one are played and the rest follows on the line through them. So it is with the sequences of a batch in attention: one
and two are played. docs/decode_step.md has the errors of both, measured against full simulations.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

from ..hardware_model import Hardware
from ..models.layer_traces import block_rows, elementwise_trace, matrix_trace
from ..models.layers import Elementwise, LanguageModel, Matrix
from ..models.weight_formats import WeightFormat
from ..simulator import Result, simulate
from ..simulator.accounting import area
from ..workload import Workload, load_workload, replace
from .kernels import Kernel

PIECES = (8, 16)  # blocks of a large matrix that are played, 1 MiB each
KEYS = 65_536  # times KV heads: of so many or more sequences of a larger batch one piece is, the other of twice as many

Progress = Callable[[str, int, int], None] | None


@dataclasses.dataclass(frozen=True)
class Cost:
    """What something costs on a machine.

    Attributes
    ----------
    latency_s : float  [s]
    energy_breakdown_j : dict of str to float  [J]  as in Result
    traffic_bytes, useful_bytes : dict of str to int  [B]  as in Result
    busy_s : dict of unit to float  [s]
    """

    latency_s: float
    energy_breakdown_j: dict[str, float]
    traffic_bytes: dict[str, int]
    useful_bytes: dict[str, int]
    busy_s: dict[str, float]
    energy_unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        """The sum of energy_breakdown_j [J]."""
        return math.fsum(self.energy_breakdown_j.values())

    @property
    def bound_by(self) -> str:
        """The busiest unit."""
        return max(self.busy_s, key=self.busy_s.__getitem__)

    @classmethod
    def of(cls, result: Result) -> Cost:
        """A simulation's."""
        names = (field.name for field in dataclasses.fields(cls))
        given = {name: getattr(result, name) for name in names}
        return cls(**{**given, "energy_unknown": tuple(given["energy_unknown"]), "notes": tuple(given["notes"])})


def combined(terms: Iterable[tuple[Fraction | float | int, Cost]]) -> Cost:
    """Sum of weight x cost. Bytes are rounded to whole ones; with weights that are fractions they are exact before.

    Never sooner than the busiest unit, as a simulation isn't.
    """
    terms = list(terms)

    def total(field: str, exact: bool) -> dict:
        keys = dict.fromkeys(key for _, cost in terms for key in getattr(cost, field))
        if exact:
            return {key: round(sum(Fraction(w) * getattr(c, field).get(key, 0) for w, c in terms)) for key in keys}
        return {key: math.fsum(float(w) * getattr(c, field).get(key, 0.0) for w, c in terms) for key in keys}

    busy = total("busy_s", False)
    return Cost(
        latency_s=max([math.fsum(float(w) * cost.latency_s for w, cost in terms), *busy.values()]),
        energy_breakdown_j=total("energy_breakdown_j", False),
        traffic_bytes=total("traffic_bytes", True),
        useful_bytes=total("useful_bytes", True),
        busy_s=busy,
        energy_unknown=tuple(dict.fromkeys(part for _, cost in terms for part in cost.energy_unknown)),
        notes=tuple(dict.fromkeys(note for _, cost in terms for note in cost.notes)),
    )


def on_line(x: int, x0: int, cost0: Cost, x1: int, cost1: Cost) -> Cost:
    """The cost at x of what costs cost0 at x0 and cost1 at x1 and grows in proportion; notes are cost1's, of the larger piece."""
    share = Fraction(x - x0, x1 - x0)
    return dataclasses.replace(combined([(1 - share, cost0), (share, cost1)]), notes=cost1.notes)


class Costs:
    """The costs of parts on one machine, each computed once.

    Parameters
    ----------
    full : play all of every matrix and every sequence of a batch
    """

    def __init__(self, machine: Hardware, full: bool = False, progress: Progress = None) -> None:
        self.machine, self.full, self.progress = machine, full, progress
        self._known: dict[tuple, Cost] = {}

    def matrix(self, matrix: Matrix, form: WeightFormat, batch: int) -> Cost:
        """One multiplication of a batch with a matrix."""
        same = dataclasses.replace(matrix, name="", runs=1, head=False)  # by shape: o of one model may be qkv of another
        small, large = (blocks * block_rows(matrix, form) for blocks in PIECES)
        if self.full or matrix.rows <= large:
            return self._once((same, form, batch), lambda: self._play(matrix_trace(matrix, form, batch), matrix.name))
        pieces = [self._piece(same, form, batch, rows, matrix.name) for rows in (small, large)]
        return on_line(matrix.rows, small, pieces[0], large, pieces[1])

    def _piece(self, matrix: Matrix, form: WeightFormat, batch: int, rows: int, name: str) -> Cost:
        return self._once((matrix, form, batch, rows), lambda: self._play(matrix_trace(matrix, form, batch, rows), name))

    def elementwise(self, work: Elementwise, batch: int) -> Cost:
        """One run of element-wise work on a batch."""
        same = dataclasses.replace(work, name="", runs=1)
        return self._once((same, batch), lambda: self._play(elementwise_trace(work, batch), work.name))

    def attention(self, workload: Workload, arguments: dict, batch: int) -> Cost:
        """One layer's attention, `batch` sequences of the workload's one length."""
        small = 1
        while small * workload.kv_heads * workload.n_k < KEYS:
            small *= 2
        if self.full or batch <= 2 * small:
            return self._attended(workload, arguments, batch)
        ends = [self._attended(workload, arguments, n) for n in (small, 2 * small)]
        return on_line(batch, small, ends[0], 2 * small, ends[1])

    def _attended(self, workload: Workload, arguments: dict, batch: int) -> Cost:
        kernel = Kernel.of(replace(workload, batch=batch), arguments)
        what = f"attention, {workload.n_k:,} keys"
        return self._once((kernel,), lambda: self._play(kernel.trace(), what))

    def _play(self, trace, what: str) -> Cost:
        step = functools.partial(self.progress, what) if self.progress else None
        cost, about_area = Cost.of(simulate(trace, self.machine, progress=step)), area(trace.meta, self.machine)[1]
        return dataclasses.replace(cost, notes=tuple(note for note in cost.notes if note not in about_area))

    def _once(self, key: tuple, compute: Callable[[], Cost]) -> Cost:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]


def attention_workload(model: LanguageModel, n_k: int) -> Workload:
    """A layer of the model at a decode step: sink and Zipf attention as fitted to Llama-3.1-8B at 8,192 keys."""
    fitted = load_workload("llama8b_decode_8k")
    return replace(
        fitted, name=f"{model.name}_decode_{n_k}", description=f"{model.name}, {n_k:,} keys", model=model.name,
        heads=model.heads, kv_heads=model.kv_heads, head_dim=model.head_dim, model_layers=model.layers, n_k=n_k,
        notes=[*fitted.notes, "attention weights: sink and Zipf, fitted to Llama-3.1-8B at 8,192 keys, the same on every layer"],
    )  # fmt: skip
