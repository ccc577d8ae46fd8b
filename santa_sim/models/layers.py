"""What a decode step of a language model computes around its attention: matrices, norms, activations, in order.

Shapes come from YAML (workloads/models/); everything else is counted from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from ..errors import InputError
from ..schema import Integer, Model, fields_of, shipped, validate
from ..workload import Layers, Width
from .weight_formats import FORMATS, WeightFormat

Vocabulary = Annotated[Integer, pydantic.Field(ge=1, le=2**24)]
BF16 = 2  # bytes of an activation, a norm's weight, a bias, an embedding [B]


class LanguageModel(Model):
    """A decoder-only transformer with grouped-query attention, RMS norms and a gated feed-forward.

    Attributes
    ----------
    hidden, ffn, vocab : int  widths of the residual stream, of the feed-forward and of the logits
    activation : 'swiglu' silu(gate) * up, or 'relu2' relu(gate)^2 * up
    tied_embeddings : bool  the LM head multiplies with the embedding
    qkv_bias, sub_norms : bool  biases of q, k and v; norms before the output and the down projection
    weights : str  format of the layers' matrices as released
    parameters : int  as published; a model whose shapes give another number is refused
    """

    name: str
    description: str
    source: str
    layers: Layers
    hidden: Width
    heads: Width
    kv_heads: Width
    head_dim: Width
    ffn: Annotated[Integer, pydantic.Field(ge=1, le=2**20)]
    activation: Literal["swiglu", "relu2"]
    vocab: Vocabulary
    tied_embeddings: pydantic.StrictBool
    qkv_bias: pydantic.StrictBool
    sub_norms: pydantic.StrictBool
    weights: Literal[tuple(FORMATS)] = "bf16"
    parameters: Integer | None = None

    @pydantic.model_validator(mode="after")
    def _counts(self) -> LanguageModel:
        if self.heads % self.kv_heads:
            raise InputError(f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}")
        counted = parameter_count(self)
        if self.parameters is not None and self.parameters != counted:
            raise InputError(f"parameters = {self.parameters:,}, but these shapes have {counted:,}; correct one, or leave it out")
        return self


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A weight matrix [rows, columns] that the step multiplies with `runs` times, each time another one of that shape.

    `biased`: rows that add a bias; `head`: it is the LM head, which keeps a format of its own.
    """

    name: str
    runs: int
    rows: int
    columns: int
    biased: int = 0
    head: bool = False

    @property
    def parameters(self) -> int:
        """Weights and biases of one run."""
        return self.rows * self.columns + self.biased


@dataclasses.dataclass(frozen=True)
class Elementwise:
    """Work on each sequence's vector that multiplies with no matrix; operations and bytes are those of one sequence.

    `weight_bytes` are read once a run (a norm's weights), `table_bytes` once a sequence (its row of the embedding).
    """

    name: str
    runs: int
    read_bytes: int
    write_bytes: int
    adds: int = 0
    mults: int = 0
    exps: int = 0
    compares: int = 0
    weight_bytes: int = 0
    table_bytes: int = 0

    def then(self, *further: Elementwise) -> Elementwise:
        """This and `further` in one pass over the vector: operations and weights add up."""
        counts = ("adds", "mults", "exps", "compares", "weight_bytes")
        sums = {name: sum(getattr(part, name) for part in (self, *further)) for name in counts}
        return dataclasses.replace(self, **sums)


def matrices(model: LanguageModel) -> list[Matrix]:
    """The matrices of a step in order: q, k and v as one, gate and up as one."""
    m, attention = model, model.heads * model.head_dim
    qkv = attention + 2 * m.kv_heads * m.head_dim
    return [
        Matrix("qkv projection", m.layers, qkv, m.hidden, biased=qkv if m.qkv_bias else 0),
        Matrix("output projection", m.layers, m.hidden, attention),
        Matrix("gate and up projection", m.layers, 2 * m.ffn, m.hidden),
        Matrix("down projection", m.layers, m.hidden, m.ffn),
        Matrix("LM head", 1, m.vocab, m.hidden, head=True),
    ]


def elementwise(model: LanguageModel, form: WeightFormat, head: WeightFormat) -> list[Elementwise]:
    """What lies between the matrices, in order, with the layers' matrices in format `form` and the LM head in `head`.

    Counts of a vector of n: RMS norm 3 n multiplications (square, times 1/rms, times weight), n additions, one inverse
    root; SwiGLU per element an exponential, a reciprocal, an addition, two multiplications; squared ReLU a compare and
    two multiplications; rotation of a pair of elements four multiplications and two additions; quantisation to int8 n
    compares (largest magnitude), n multiplications and n additions (rounding). Inverse root and reciprocal cost as much
    as an exponential: nobody's figure, a polynomial each.
    """
    m, width, attention = model, model.hidden * BF16, model.heads * model.head_dim
    size = form.activation_bytes

    def norm(n: int) -> Elementwise:
        return Elementwise("", 0, 0, 0, adds=n, mults=3 * n, exps=1, weight_bytes=n * BF16)

    def rounded(n: int, to: WeightFormat = form) -> Elementwise:
        return Elementwise("", 0, 0, 0, adds=n, mults=n, compares=n) if to.activation_bytes == 1 else Elementwise("", 0, 0, 0)

    def add_and_norm(name: str, runs: int, out_bytes: int, *further: Elementwise) -> Elementwise:
        added = Elementwise(name, runs, 2 * width, width + m.hidden * out_bytes, adds=m.hidden)
        return added.then(norm(m.hidden), *further)

    rotated = (m.heads + m.kv_heads) * m.head_dim
    gated = {
        "swiglu": Elementwise("activation", m.layers, 2 * m.ffn * BF16, m.ffn * size, adds=m.ffn, mults=2 * m.ffn, exps=2 * m.ffn),
        "relu2": Elementwise("activation", m.layers, 2 * m.ffn * BF16, m.ffn * size, mults=2 * m.ffn, compares=m.ffn),
    }[m.activation]  # fmt: skip
    first = Elementwise("first norm", 1, width, m.hidden * size)
    before_output = Elementwise("attention sub-norm", m.layers, attention * BF16, attention * size)
    steps = [
        Elementwise("embedding", 1, 0, width, table_bytes=width),
        first.then(norm(m.hidden), rounded(m.hidden)),
        add_and_norm("attention norm", m.layers - 1, size, rounded(m.hidden)),
        Elementwise("rotary embedding", m.layers, rotated * BF16, rotated * BF16, adds=rotated, mults=2 * rotated),
        before_output.then(*([norm(attention)] if m.sub_norms else []), rounded(attention)),
        add_and_norm("feed-forward norm", m.layers, size, rounded(m.hidden)),
        gated.then(*([norm(m.ffn)] if m.sub_norms else []), rounded(m.ffn)),
        add_and_norm("final norm", 1, head.activation_bytes, rounded(m.hidden, head)),
        Elementwise("largest logit", 1, m.vocab * BF16, 4, compares=m.vocab),
    ]
    return [step for step in steps if step.runs and (step.adds or step.mults or step.compares or step.table_bytes)]


def parameter_count(model: LanguageModel) -> int:
    """Weights of the whole model: matrices, biases, norms and the embedding (once where it is tied)."""
    m = model
    matrix = sum(matrix.runs * matrix.parameters for matrix in matrices(m))
    norms = (2 * m.layers + 1) * m.hidden + m.sub_norms * m.layers * (m.heads * m.head_dim + m.ffn)
    return matrix + norms + (0 if m.tied_embeddings else m.vocab * m.hidden)


def weight_bytes(matrix: Matrix, form: WeightFormat) -> int:
    """Bytes of one run's weights, scales and biases [B]."""
    return matrix.rows * form.row_bytes(matrix.columns) + BF16 * matrix.biased


def model_names() -> dict[str, Path]:
    """{name: path} of the models that ship in workloads/models/."""
    return shipped("santa_sim.workloads", "models")


def load_model(model: str | Path | Mapping | LanguageModel) -> LanguageModel:
    """A model from a shipped name, the path of a .yaml file, a mapping of the same fields, or a LanguageModel.

    Raises
    ------
    InputError
        No such name or file (the nearest name is given), or a field that is wrong, with its value.
    """
    if isinstance(model, LanguageModel):
        return model
    data, where, path = fields_of(model, "model", model_names(), "a LanguageModel")
    return validate(LanguageModel, {"name": path.stem if path else "custom", **data}, where)
