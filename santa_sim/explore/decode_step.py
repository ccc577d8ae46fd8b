"""`santa_sim.decode_step`: a model's whole decode step on a machine, in seconds and joules, part by part."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from ..api import machine_for
from ..attention import reject_unknown
from ..errors import InputError
from ..hardware_model import Hardware
from ..methods.spec import SAMPLED, Spec
from ..models.layers import BF16, LanguageModel, elementwise, load_model, matrices, weight_bytes
from ..models.weight_formats import WeightFormat, weight_format
from ..schema import shown
from ..workload import LONGEST
from .kernels import DEFAULTS
from .step_cost import Cost, Costs, attention_workload, combined

if TYPE_CHECKING:
    import pandas as pd

BATCHES = 4096  # sequences at most
_KERNEL = tuple(name for name in DEFAULTS if name not in ("method", "S"))
_OPTIONS = ("S", "n_k", "batch", "weights", "lm_head", "hardware", *_KERNEL, "full", "progress")  # of decode_step
_CACHE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int16": 2, "int8": 1}


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the step: `runs` times the same, one after the other.

    `kind`: 'matrix', 'element-wise' or 'attention'. `weight_bytes`: of all runs, read from DRAM [B]. `cost`: of all runs.
    """

    name: str
    kind: str
    runs: int
    weight_bytes: int
    cost: Cost


@dataclasses.dataclass(frozen=True)
class DecodeStep:
    """One decode step: a token for each of `batch` sequences of n_k keys.

    Attributes
    ----------
    model, hardware, method, score, weights, lm_head, precision : str
    samples : int, tuple or None.  n_k, batch, seed : int
    parts : tuple of Part: matrices in order, element-wise work in order, attention
    weight_bytes : int  [B]  weights read from DRAM in the step, once for the whole batch
    memory_needed_bytes : int  [B]  the model's weights and the cache of all sequences
    memory_holds_bytes : int or None  [B]  what the machine's DRAM holds; less than needed is costed as though it held it. None: a
        memory of bandwidth and latency alone, which has no size
    notes : tuple of str  assumptions and unknowns
    energy_unknown : tuple of str  parts of the energy that nobody has a figure for; they count as 0
    """

    model: str
    hardware: str
    method: str
    score: str
    samples: int | tuple[int, ...] | None
    weights: str
    lm_head: str
    precision: str
    n_k: int
    batch: int
    seed: int
    parts: tuple[Part, ...]
    memory_needed_bytes: int
    memory_holds_bytes: int | None
    notes: tuple[str, ...]

    @property
    def cost(self) -> Cost:
        """Of all parts."""
        return combined([(1, part.cost) for part in self.parts])

    def cost_of(self, kind: str) -> Cost:
        """Of the parts of a kind: 'matrix', 'element-wise' or 'attention'."""
        return combined([(1, part.cost) for part in self.parts if part.kind == kind])

    @property
    def latency_s(self) -> float:
        """Of the step [s]: what each sequence waits for its token."""
        return math.fsum(part.cost.latency_s for part in self.parts)

    @property
    def energy_j(self) -> float:
        """Of the step [J]."""
        return math.fsum(part.cost.energy_j for part in self.parts)

    @property
    def latency_per_token_s(self) -> float:
        """The step's latency over the tokens it makes, one per sequence [s]."""
        return self.latency_s / self.batch

    @property
    def energy_per_token_j(self) -> float:
        """The step's energy over the tokens it makes [J]."""
        return self.energy_j / self.batch

    @property
    def attention_share(self) -> float:
        """Of the latency, attention's: scores, softmax, sampling and values, without projections."""
        return self.cost_of("attention").latency_s / self.latency_s

    @property
    def attention_energy_share(self) -> float:
        """Of the energy, attention's."""
        return self.cost_of("attention").energy_j / self.energy_j if self.energy_j else 0.0

    @property
    def weight_bytes(self) -> int:
        """Weights read in the step [B]."""
        return sum(part.weight_bytes for part in self.parts)

    @property
    def fits(self) -> bool:
        """Whether weights and cache fit into the machine's memory; True where that has no size."""
        return self.memory_holds_bytes is None or self.memory_needed_bytes <= self.memory_holds_bytes

    @property
    def energy_unknown(self) -> tuple[str, ...]:
        """Parts of the energy that count as 0 because nobody has a figure."""
        return self.cost.energy_unknown

    def to_frame(self) -> pd.DataFrame:
        """A row a part, all its runs."""
        import pandas as pd

        rows = [
            {
                "part": part.name, "kind": part.kind, "runs": part.runs, "latency_s": part.cost.latency_s,
                "latency_share": part.cost.latency_s / self.latency_s, "energy_j": part.cost.energy_j,
                "weight_bytes": part.weight_bytes, "traffic_bytes": part.cost.traffic_bytes["total"],
                "bound_by": part.cost.bound_by,
                **{f"energy_{name}_j": value for name, value in part.cost.energy_breakdown_j.items()},
            }
            for part in self.parts
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def summary(self) -> dict:
        """The step as one flat row: what it was, and what it costs."""
        given = ("model", "hardware", "method", "score", "weights", "lm_head", "precision", "n_k", "batch", "seed")
        samples = ",".join(map(str, self.samples)) if isinstance(self.samples, tuple) else self.samples
        return {
            **{name: getattr(self, name) for name in given}, "samples": samples,
            "latency_s": self.latency_s, "energy_j": self.energy_j, "latency_per_token_s": self.latency_per_token_s,
            "energy_per_token_j": self.energy_per_token_j, "attention_share": self.attention_share,
            "attention_energy_share": self.attention_energy_share, "weight_bytes": self.weight_bytes,
            "traffic_bytes": self.cost.traffic_bytes["total"], "memory_needed_bytes": self.memory_needed_bytes,
            "memory_holds_bytes": self.memory_holds_bytes, "fits": self.fits, "energy_unknown": "; ".join(self.energy_unknown),
        }  # fmt: skip

    def to_dict(self) -> dict:
        """All of it, JSON-able, SI units."""
        cost = self.cost
        return json.loads(json.dumps({
            **self.summary(), "samples": self.samples, "energy_breakdown_j": cost.energy_breakdown_j,
            "traffic_bytes": cost.traffic_bytes, "useful_bytes": cost.useful_bytes,
            "parts": self.to_frame().to_dict("records"), "energy_unknown": self.energy_unknown, "notes": self.notes,
        }))  # fmt: skip


def decode_step(model: str | Path | Mapping | LanguageModel, method: str, S=None, *, n_k: int, batch: int = 1,
                weights: str | WeightFormat | None = None, lm_head: str | WeightFormat = "bf16",
                hardware: str | Path | Mapping | Hardware | None = None, full: bool = False,
                progress: Callable[[str, int, int], None] | None = None, **attention) -> DecodeStep:  # fmt: skip
    """Cost a whole decode step: projections, attention, feed-forward, norms, embedding and LM head.

    Parts run one after the other and nothing overlaps between them; weights are read once for the whole batch, K and V
    once per sequence. Matrices and attention are traces that the machine plays; see docs/decode_step.md.

    Parameters
    ----------
    model : shipped name ('llama8b', 'deepseek7b', 'bitnet2b', 'smollm2'), .yaml path, mapping, or LanguageModel
    method : the attention's value stage, as in `run`.  S : int, or one per layer of the model (sampled methods)
    n_k : int  keys of each sequence, the current token included.  batch : int  sequences
    weights : 'bf16', 'int8', 'int4' or 'ternary', of the layers' matrices; by default as the model is released
    lm_head : the same, of the LM head
    hardware : as in `run`
    full : play every row of every matrix and every sequence, instead of the first and the line through them
    attention : k, score, B, precision, seed, tile, allocation, sampler, value_format, tensor_seed, kernel as in `run`
    progress : called with (what, done, in all)

    Raises
    ------
    InputError
        Anything that can't be costed, named with its value and what to write instead.
    """
    model = load_model(model)
    plan = Plan.of(method, S, weights, lm_head, model, attention)
    machine = accelerator(method, hardware)
    return step_of(model, plan, whole("n_k", n_k, LONGEST), whole("batch", batch, BATCHES), Costs(machine, full, progress))


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a step is computed, but for its keys, its batch and its machine.

    Attributes
    ----------
    form, head_form : WeightFormat
    spec : Spec  of the first layer's attention
    budgets : tuple of (S or None, layers)
    arguments : of the attention's kernel, without S
    """

    form: WeightFormat
    head_form: WeightFormat
    spec: Spec
    samples: int | tuple[int, ...] | None
    budgets: tuple[tuple[int | None, int], ...]
    arguments: dict

    @classmethod
    def of(cls, method: str, S, weights, lm_head, model: LanguageModel, attention: Mapping, caller: str = "decode_step",
           further: tuple[str, ...] = ()) -> Plan:  # fmt: skip
        """The plan of some arguments, checked; `further` options that the caller has beside decode_step's."""
        reject_unknown(caller, {name: value for name, value in attention.items() if name not in _KERNEL}, (*_OPTIONS, *further))
        form = weight_format(model.weights if weights is None else weights)
        head = weight_format(lm_head, "lm_head")
        given = {**{name: DEFAULTS[name] for name in _KERNEL}, **attention, "method": method}
        given["precision"] = given["precision"] or "bf16"
        several = hasattr(S, "__len__") and not isinstance(S, str)
        if several and len(S) != model.layers:
            raise InputError(f"S={shown(S)} has {len(S)} entries; {model.name} has {model.layers} layers: give one each, or one number")
        specs = [
            Spec(method=method, samples=s, **{name: given[name] for name in _KERNEL if name not in ("tensor_seed", "kernel")})
            for s in dict.fromkeys(S if several else (S,))
        ]
        counts = Counter(S) if several else {S: model.layers}
        if method not in SAMPLED:
            counts = {None: model.layers}
        budgets = tuple((spec.samples, counts[spec.samples]) for spec in specs)
        samples = tuple(map(int, S)) if several and method in SAMPLED else specs[0].samples
        return cls(form, head, specs[0], samples, budgets, given)


def step_of(model: LanguageModel, plan: Plan, n_k: int, batch: int, costs: Costs) -> DecodeStep:
    """The step of a plan, its parts from `costs`."""
    attention = attention_parts(model, plan, n_k, batch, costs)  # first: the machine may lack a unit for it
    parts = [*other_parts(model, plan, batch, costs), *attention]
    machine = costs.machine
    cache = batch * n_k * 2 * model.kv_heads * model.head_dim * model.layers * _CACHE_BYTES[plan.spec.precision]
    needed = _stored_bytes(model, plan) + cache
    holds = machine.memory.config.organization.capacity_bytes if machine.memory.model == "banks" else None
    notes = [
        *_room(machine.name, needed, holds),
        f"shapes of {model.name}: {model.source}",
        "parts run one after the other; nothing overlaps between them",
        f"weights: {plan.form.name}, {plan.form.source}; embedding and norms bf16, LM head {plan.head_form.name}",
        *([] if plan.form.name in ("bf16", model.weights) else [f"{model.name} in {plan.form.name}: the cost alone, nobody says that it still works"]),
        "inverse roots and reciprocals are counted as exponentials, nobody's figure",
        *(["widening int4 to bf16 is unpriced"] if "int4" in (plan.form.name, plan.head_form.name) else []),
        *combined([(1, part.cost) for part in parts]).notes,
    ]  # fmt: skip
    return DecodeStep(
        model.name, machine.name, plan.spec.method, plan.spec.score, plan.samples, plan.form.name, plan.head_form.name,
        plan.spec.precision, n_k, batch, plan.spec.seed, tuple(parts), needed, holds, tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def other_parts(model: LanguageModel, plan: Plan, batch: int, costs: Costs) -> list[Part]:
    """All but attention: they don't depend on n_k."""
    parts = []
    for matrix in matrices(model):
        form = plan.head_form if matrix.head else plan.form
        cost = combined([(matrix.runs, costs.matrix(matrix, form, batch))])
        parts.append(Part(matrix.name, "matrix", matrix.runs, matrix.runs * weight_bytes(matrix, form), cost))
    for work in elementwise(model, plan.form, plan.head_form):
        cost = combined([(work.runs, costs.elementwise(work, batch))])
        weights = work.runs * (work.weight_bytes + batch * work.table_bytes)
        parts.append(Part(work.name, "element-wise", work.runs, weights, cost))
    return parts


def attention_parts(model: LanguageModel, plan: Plan, n_k: int, batch: int, costs: Costs) -> list[Part]:
    """Attention of all layers, a part for each budget of samples."""
    workload = attention_workload(model, n_k)
    parts = []
    for samples, runs in plan.budgets:
        cost = costs.attention(workload, {**plan.arguments, "S": samples}, batch)
        name = "attention" if len(plan.budgets) == 1 else f"attention, S = {samples}"
        parts.append(Part(name, "attention", runs, 0, combined([(runs, cost)])))
    return parts


def accelerator(method: str, hardware: str | Path | Mapping | Hardware | None) -> Hardware:
    """The machine; InputError for a GPU, which plays attention alone so far."""
    machine = machine_for(method, hardware)
    if not isinstance(machine, Hardware):
        raise InputError(
            f"hardware={machine.name!r} is a GPU, and there is no model of its matrix products yet: a decode step needs an "
            f"accelerator, such as mac_hbm3 or adder_hbm3; `run` plays a layer's attention on a GPU"
        )
    return machine


def whole(field: str, value: object, high: int) -> int:
    """A whole number from 1 to `high`; InputError says what to write."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= high:
        raise InputError(f"{field}={shown(value)}: write a whole number from 1 to {high:,}")
    return int(value)


def _stored_bytes(model: LanguageModel, plan: Plan) -> int:
    """The model's weights in memory [B]."""
    work = elementwise(model, plan.form, plan.head_form)
    layers = sum(m.runs * weight_bytes(m, plan.head_form if m.head else plan.form) for m in matrices(model))
    shared = model.tied_embeddings and plan.head_form.name == "bf16"
    return layers + sum(e.runs * e.weight_bytes for e in work) + (0 if shared else model.vocab * model.hidden * BF16)


def _room(machine: str, needed: int, holds: int | None) -> list[str]:
    if holds is None or needed <= holds:
        return []
    return [f"does not fit: weights and cache take {needed / 1e9:.4g} GB, the memory of {machine} holds {holds / 1e9:.4g} GB; the step is costed "
            f"as though it held them, at the speed and the energy of what is there"]
