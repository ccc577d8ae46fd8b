"""The facts that a trace carries beside its table: which there must be, of what type, and what to write where one is wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from .errors import InputError

LARGEST = 2**31 - 1  # keys and row indices are 32-bit integers in the file
_DEPTH = 16  # of nested lists and dictionaries

Whole = Annotated[int, pydantic.Field(ge=0, le=LARGEST)]
Count = Annotated[int, pydantic.Field(ge=1, le=LARGEST)]
Name = Annotated[str, pydantic.Field(min_length=1)]
Amount = Annotated[float, pydantic.Field(ge=0)]
NumberType = Literal["fp32", "fp16", "bf16", "int8", "int16", "int32"]

_COUNT = f"a whole number from 1 to {LARGEST:,}"
_TYPES = '{"operand": "bf16", "accumulator": "fp32"} with types fp32, fp16, bf16, int8, int16 or int32'
_PER_SEQUENCE = f"a list of {_COUNT[2:].replace('number', 'numbers')}, one per sequence, such as"


def _says(hint: str, default: Any = ...) -> Any:
    """A field whose description is what an error tells to write; without a default it must be there."""
    return pydantic.Field(default, description=hint)


class _Facts(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True)


class NumberTypes(_Facts):
    """Number types of a stage: what is multiplied (or added up), and what sums are kept in."""

    operand: NumberType
    accumulator: NumberType


class Quality(_Facts, extra="allow"):
    """The output's error against exact attention, and other numbers beside it."""

    relative_l2: Amount
    __pydantic_extra__: dict[str, float]


class TraceMeta(_Facts, extra="allow"):
    """What `Trace.meta` holds; other keys are the writer's own and stay as they are."""

    method: Name = _says('the value stage, such as "s2anta-prop", or a name of your own')
    score: Name = _says('the score stage, such as "exact", or a name of your own')
    kind: Literal["decode", "prefill"] = _says('"decode" or "prefill"')
    precision: Literal["fp32", "fp16", "bf16", "int8", "int16"] = _says('"fp32", "fp16", "bf16", "int8" or "int16"')
    n_heads: Count = _says(f"the query heads, {_COUNT}, such as 32")
    n_kv_heads: Count = _says(f"the KV heads, {_COUNT}, such as 8")
    head_dim: Count = _says(f"the elements of a row of K or V, {_COUNT}, such as 128")
    n_q: Annotated[list[Count], pydantic.Field(min_length=1)] = _says(f"the query positions, {_PER_SEQUENCE} [1]")
    n_k: Annotated[list[Count], pydantic.Field(min_length=1)] = _says(f"the keys, {_PER_SEQUENCE} [32768]")
    layers: Annotated[list[Whole], pydantic.Field(min_length=1)] = _says("a list of layer numbers from 0, such as [0]")
    tile: Count = _says(f"the keys per tile, {_COUNT}, such as 256")
    score_types: NumberTypes = _says(_TYPES)
    value_types: NumberTypes = _says(_TYPES)
    normalization: Literal["multiply", "shift"] = _says('"multiply" or "shift"')

    workload: str | None = _says("the workload's name, or leave it out", None)
    samples: Count | list[Count] | None = _says(f"{_COUNT}, or a list of them, one per layer; or leave it out", None)
    samples_drawn: Amount | list[Amount] | None = _says("a number >= 0, or a list of them; or leave it out", None)
    budget_k: Count | None = _says(f"{_COUNT}, or leave it out", None)
    budget_B: Count | None = _says(f"{_COUNT}, or leave it out", None)
    seed: Annotated[int, pydantic.Field(ge=0, lt=2**64)] | None = _says(
        "a whole number from 0 to 2^64 - 1, or leave it out", None
    )
    kernel: str | None = _says("the name of the kernel that ran, or leave it out", None)
    allocation: str | None = _says('such as "largest-remainder", or leave it out', None)
    sampler: str | None = _says('such as "scaled-weights", or leave it out', None)
    notes: str | list[str] | None = _says("a list of strings, or leave it out", None)
    quality: Quality | None = _says('numbers by name, such as {"relative_l2": 0.05}, or leave it out', None)


REQUIRED = tuple(name for name, field in TraceMeta.model_fields.items() if field.is_required())

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shown(value: object) -> str:
    """A value for an error message: its repr, cut where it is long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length():,} bits"
    return _short.repr(value.item() if isinstance(value, np.generic) else value)


def check_meta(meta: object) -> tuple[dict, TraceMeta]:
    """Plain Python values of `meta` (NumPy numbers and arrays converted), and its checked facts.

    Raises
    ------
    InputError
        Not a dictionary, values that JSON doesn't have, facts that are missing or wrong, or that contradict each other.
    """
    if not isinstance(meta, Mapping):
        raise InputError(f"trace metadata is {shown(meta)}; write a dictionary of the facts in docs/trace.md")
    values = _plain(meta, "", 0)
    try:
        facts = TraceMeta.model_validate(values)
    except pydantic.ValidationError as error:
        missing = [name for name in REQUIRED if name not in values]
        if missing:
            raise InputError(f"trace metadata lacks {missing}; see docs/trace.md") from None
        wrong = dict.fromkeys(str(problem["loc"][0]) for problem in error.errors(include_url=False))
        raise InputError("; ".join(_wrong(name, values[name]) for name in wrong)) from None
    if facts.n_heads % facts.n_kv_heads:
        raise InputError(
            f"trace metadata: n_heads={facts.n_heads} is not a multiple of n_kv_heads={facts.n_kv_heads}: "
            f"every KV head serves as many query heads"
        )
    if len(facts.n_q) != len(facts.n_k):
        raise InputError(
            f"trace metadata: n_q={shown(facts.n_q)} has {len(facts.n_q)} entries, n_k={shown(facts.n_k)} has "
            f"{len(facts.n_k)}: write one per sequence in both"
        )
    if len(set(facts.layers)) < len(facts.layers):
        raise InputError(f"trace metadata: layers={shown(facts.layers)} names a layer twice: write each once")
    return values, facts


def _wrong(name: str, value: object) -> str:
    return f"trace metadata: {name}={shown(value)}: write {TraceMeta.model_fields[name].description}"


def _plain(value: object, where: str, depth: int) -> Any:
    """`value` in Python's own types, as JSON has them."""
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    if depth > _DEPTH:
        raise InputError(f"trace metadata: {where[:80]} is nested more than {_DEPTH} deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"trace metadata: {where or 'the dictionary'} has the key {shown(key)}: write a string")
        return {
            _plain(key, where, depth): _plain(inner, f"{where}.{key}" if where else key, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(inner, f"{where}[{i}]", depth + 1) for i, inner in enumerate(value)]
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return int(value)
    if isinstance(value, str) and value.encode("utf-8", "ignore").decode() == value:
        return str(value)
    raise InputError(
        f"trace metadata: {where}={shown(value)} can't be kept as JSON: write a string, a number (whole ones of 64 bits), "
        f"true, false, null, a list or a dictionary"
    )
