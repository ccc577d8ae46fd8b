"""What a measurement must hold to be judged: checked before anything is computed from it, so that a mistake has a name."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import pydantic

from ..errors import InputError
from .validate_cells import METHODS

Positive = Annotated[float, pydantic.Field(gt=0)]
Size = Annotated[float, pydantic.Field(ge=0)]
Whole = Annotated[int, pydantic.Field(ge=1)]


class Record(pydantic.BaseModel):
    """Part of a measurement; what nobody judges may stand beside it."""

    model_config = pydantic.ConfigDict(extra="allow", allow_inf_nan=False)


class Times(Record):
    """Of one way to call [s]."""

    median_s: Positive
    low_s: Positive
    high_s: Positive


class KeptCell(Record):
    """One cell: refused, or measured. `check` may be missing: then the verdict says that its output wasn't checked."""

    method: Literal[tuple(METHODS)]  # type: ignore[valid-type]
    n_k: Whole
    S: Annotated[int, pydantic.Field(ge=0)]
    batch: Whole
    precision: Literal["bf16", "fp16"]
    name: str
    refused: str | None = None
    graph: Times | None = None
    as_called: Times | None = None
    host_s: Positive | None = None
    check: dict | None = None

    @pydantic.model_validator(mode="after")
    def _measured_or_refused(self) -> KeptCell:
        missing = [name for name in ("graph", "as_called", "host_s") if getattr(self, name) is None]
        if self.refused is None and missing:
            raise ValueError(f"{self.name!r} was not refused and holds no {', '.join(missing)}")
        return self


class Kernel(Record):
    kernel: str
    dram_read_bytes: Size
    dram_write_bytes: Size


class Step(Record):
    name: str
    kernels: Annotated[list[Kernel], pydantic.Field(min_length=1)]


class Counters(Record):
    steps: list[Step] = []
    error: str | None = None


class Peer(Record):
    name: str
    n_k: Whole
    batch: Whole
    precision: str
    graph: Times | None = None


class Card(Record):
    name: str
    compute_capability: Whole
    multiprocessors: Whole
    l2_bytes: Whole
    memory_bytes: Whole
    memory_bus_bits: Whole
    clock_hz: Whole
    memory_clock_hz: Whole
    cuda_driver_api: str
    cupy: str
    python: str
    date: str


class Protocol(Record):
    warm_up: int
    timed: Whole
    flush_bytes: int


class State(Record):
    other_processes: list[dict]


class Kept(Record):
    """A measurement of `santa-sim validate`."""

    card: Card
    before: State
    protocol: Protocol
    micro: dict[str, list[dict]]
    works: dict[str, dict]
    cells: list[KeptCell]
    asked: list[str] = []
    peers: list[Peer] = []
    counters: dict[str, Counters] = {}


def check(raw: dict) -> None:
    """
    Raises
    ------
    InputError
        Something that is judged is missing, or is no number that a measurement can give: says where, and what it is.
    """
    try:
        Kept.model_validate(raw)
    except pydantic.ValidationError as error:
        said = []
        for x in error.errors()[:4]:
            where = ".".join(map(str, x["loc"])) or "the file"
            value = "" if x["type"] in ("missing", "value_error") else f" = {str(x['input'])[:40]}"
            said.append(f"{where}{value}: {x['msg'].removeprefix('Value error, ').lower()}")
        raise InputError(f"the measurement can't be judged: {'; '.join(said)}; measure again") from None


def finite(value):
    """Plain data with None in place of numbers that JSON hasn't: NaN and the infinities."""
    if isinstance(value, dict):
        return {key: finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
