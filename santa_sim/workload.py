"""Workloads: the shapes of one attention step and where its tensors come from, read from validated YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pydantic

from .errors import InputError, choose
from .schema import Integer, Model, Real, at_most, fields_of, shipped, shown, validate

PACKAGE = "santa_sim.workloads"
DTYPES = ("float32", "float16", "bfloat16")
LONGEST = 2**31 - 1  # keys: the trace numbers rows in 32 bits
MOST_SEQUENCES = 2**16

_WIDTH = at_most(2**14, "more than any model has; byte offsets into K and V stay below 2^63")
Width = Annotated[Integer, pydantic.Field(ge=1), _WIDTH]
Layers = Annotated[Integer, pydantic.Field(ge=1), at_most(2**16, "more than any model has")]


class Gaussian(Model):
    """Q, K and V are independent standard normal draws: logits ~ N(0, 1), close to uniform attention."""

    type: Literal["gaussian"]


class SinkZipf(Model):
    """Attention with `sink_mass` on token 0 and the rest Zipf-distributed over shuffled positions."""

    type: Literal["sink_zipf"]
    sink_mass: Real = pydantic.Field(gt=0, lt=1)
    exponent: Annotated[Real, pydantic.Field(ge=0), at_most(100, "the second rank would have a mass below 1e-30")]
    group_overlap: Literal["independent", "shared"] = "independent"
    fitted_at_keys: Integer = pydantic.Field(ge=1, le=LONGEST)


class Captured(Model):
    """Q, K and V that a language model computed, kept in an .npz file (path relative to the workload's YAML)."""

    type: Literal["captured"]
    file: str
    layers: tuple[Annotated[Integer, pydantic.Field(ge=0, le=LONGEST)], ...] = pydantic.Field(min_length=1)

    @pydantic.field_validator("layers")
    @classmethod
    def _once(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        twice = sorted({layer for layer in layers if layers.count(layer) > 1})
        if twice:
            raise InputError(f"layer {twice[0]} is named twice; write each layer once")
        return layers


SOURCES = {"gaussian": Gaussian, "sink_zipf": SinkZipf, "captured": Captured}


def _lengths(value: object) -> object:
    """One length, or one per sequence as a tuple; InputError says what to write instead."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    several = isinstance(value, list | tuple)
    lengths = tuple(x.item() if isinstance(x, np.generic) else x for x in (value if several else (value,)))
    if not lengths:
        raise InputError("a batch needs at least one sequence; write one length per sequence, such as [4096, 8192]")
    if len(lengths) > MOST_SEQUENCES:
        raise InputError(f"{len(lengths):,} sequences are more than the {MOST_SEQUENCES:,} of a batch")
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, int):
            raise InputError(f"{shown(length)} is not an integer; write a number of keys, or a list of one per sequence")
        if length < 1:
            raise InputError(f"{length} keys is an empty cache; n_k counts the current token too, so write at least 1")
        if length > LONGEST:
            raise InputError(f"more than {LONGEST:,} keys (2^31 - 1): the trace numbers rows in 32 bits")
    return lengths if several else value


class Workload(Model):
    """One attention layer (or several) at one decode step, or at one causal prefill.

    Attributes
    ----------
    heads, kv_heads, head_dim : int
        H, H_kv and d. Query heads h and h' share a KV head where h // G == h' // G, with G = H / H_kv.
    n_k : int or tuple of int
        Keys in the cache, the current token included; a tuple has one entry per sequence of a batch.
    layers : int
        Attention layers that the workload runs; `model_layers` is how many the model has, for information.
    dtype : str
        Storage type of Q, K and V that the workload is meant for.
    """

    name: str = pydantic.Field(min_length=1)
    description: str = ""
    model: str
    kind: Literal["decode", "prefill"]
    heads: Width
    kv_heads: Width
    head_dim: Width
    n_k: Annotated[int | tuple[int, ...], pydantic.BeforeValidator(_lengths)]
    layers: Layers = 1
    model_layers: Layers
    dtype: Literal["float32", "float16", "bfloat16"]
    source: Annotated[Gaussian | SinkZipf | Captured, pydantic.Field(discriminator="type")]
    notes: tuple[str, ...] = ()

    @property
    def group(self) -> int:
        """G = H / H_kv, the query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def lengths(self) -> tuple[int, ...]:
        """Keys per sequence, n_k as a tuple also where the workload has one sequence."""
        return self.n_k if isinstance(self.n_k, tuple) else (self.n_k,)

    @property
    def query_lengths(self) -> tuple[int, ...]:
        """Queries per sequence, n_q: one when decoding, one per key in a prefill."""
        return self.lengths if self.kind == "prefill" else (1,) * len(self.lengths)

    @pydantic.field_validator("source", mode="before")
    @classmethod
    def _known_source(cls, value: object) -> object:
        if isinstance(value, Mapping):
            if "type" not in value:
                raise InputError(f"type is missing; write one of {', '.join(SOURCES)}")
            choose("type", value["type"], SOURCES)
        return value

    @pydantic.field_validator("kv_heads", mode="after")
    @classmethod
    def _heads_divide(cls, value: int, info: pydantic.ValidationInfo) -> int:
        heads = info.data.get("heads")
        if heads is not None and heads % value:
            raise InputError(f"heads must be a multiple of kv_heads, but heads = {heads}")
        return value

    @pydantic.field_validator("source", mode="after")
    @classmethod
    def _source_fits(
        cls, value: Gaussian | SinkZipf | Captured, info: pydantic.ValidationInfo
    ) -> Gaussian | SinkZipf | Captured:
        known = info.data
        if isinstance(value, SinkZipf):
            if known.get("kind") == "prefill":
                raise InputError("sink_zipf fixes the logits of one query per head, so kind must be decode; "
                                 "write type: gaussian for a prefill")  # fmt: skip
            if {"heads", "kv_heads", "head_dim"} <= known.keys():
                group = known["heads"] // known["kv_heads"]
                if known["head_dim"] < group:
                    raise InputError(f"sink_zipf fixes the logits of the {group} queries of a group, so head_dim must "
                                     f"be at least {group}, but head_dim = {known['head_dim']}")  # fmt: skip
        if isinstance(value, Captured):
            if known.get("kind") == "prefill":
                raise InputError("a captured file holds one decode step, so kind must be decode")
            if known.get("layers") not in (None, len(value.layers)):
                raise InputError(f"{len(value.layers)} layers are taken from the file, but layers = {known['layers']}")
        return value


def _absolute_source(data: dict, folder: Path) -> dict:
    """The YAML's data with a captured file's path resolved against the YAML's folder."""
    source = data.get("source")
    if isinstance(source, Mapping) and isinstance(source.get("file"), str):
        return {**data, "source": {**source, "file": str((folder / source["file"]).resolve())}}
    return data


def load_workload(workload: str | Path | Mapping | Workload) -> Workload:
    """Return a workload from a shipped name, the path of a .yaml file, a dict with the same keys, or a Workload.

    Raises
    ------
    InputError
        No such name or file (the nearest name is given), or a field that is wrong, with its value.
    """
    if isinstance(workload, Workload):
        return workload
    data, where, path = fields_of(workload, "workload", shipped(PACKAGE), "a Workload")
    return validate(Workload, _absolute_source(data, path.parent) if path else data, where)


def replace(workload: str | Path | Mapping | Workload, **fields: object) -> Workload:
    """Return the workload with some fields changed and everything checked again.

    `batch=4` stands for four sequences of the workload's one length; `n_k=[4096, 512]` gives each its own.

    Raises
    ------
    InputError
        A field that doesn't exist or a value that doesn't fit.
    """
    workload = load_workload(workload)
    where = f"workload {workload.name!r}, changed"
    if "batch" in fields:
        batch = fields.pop("batch")
        batch = batch.item() if isinstance(batch, np.generic) else batch
        length = fields.get("n_k", workload.n_k)
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise InputError(f"{where}: batch={batch!r} is not a positive integer")
        if batch > MOST_SEQUENCES:
            raise InputError(f"{where}: batch={batch} is more than the {MOST_SEQUENCES:,} sequences of a batch")
        if isinstance(length, list | tuple):
            raise InputError(f"{where}: batch={batch} repeats one length, but n_k={length!r} has one per sequence; "
                             "write n_k alone")  # fmt: skip
        fields["n_k"] = (length,) * batch
    return validate(Workload, {**workload.model_dump(), **fields}, where)
