"""Machines: the sizes of an accelerator's units, its memory and its energy table, read from YAML."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from .errors import InputError
from .schema import Model, find_yaml, read_yaml, validate
from .simulator.energy import EnergyTable, NonNegative, Positive, load_energy, scaled

PACKAGE = "santa_sim.hwmodels"


def _whole(value: object) -> object:
    """YAML reads 819.2e9 as text: turn text and floats that are whole numbers into int, and refuse booleans."""
    if isinstance(value, bool):
        return str(value)  # refused as text
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, pydantic.BeforeValidator(_whole), pydantic.Field(gt=0, lt=10**15)]
CountOrZero = Annotated[int, pydantic.BeforeValidator(_whole), pydantic.Field(ge=0, lt=10**15)]


class Technology(Model):
    """Node [nm] and supply voltage [V] of logic and SRAM, one for the machine."""

    node_nm: Positive
    supply_v: Positive


class DramEnergy(Model):
    """DRAM energies; null is unknown: it counts as 0 and the result says so."""

    activate_j: NonNegative | None
    read_j_per_bit: NonNegative | None
    write_j_per_bit: NonNegative | None
    background_w: NonNegative | None


class MemoryModel(Model):
    """A memory of bandwidth, latency and burst granularity.

    Attributes
    ----------
    bandwidth_bytes_per_s : int  [B/s]
    latency_s : float  [s]  from a request to its data on an idle bus, and from a written burst to its completion
    burst_bytes : int  [B]  the smallest transfer
    page_bytes : int  [B]  a page change in the order of requests is charged as one activate
    """

    bandwidth_bytes_per_s: Annotated[Count, pydantic.Field(ge=10**6)]
    latency_s: Annotated[NonNegative, pydantic.Field(le=1)]
    burst_bytes: Annotated[Count, pydantic.Field(le=8192)]
    page_bytes: Count
    energy: DramEnergy

    @pydantic.field_validator("page_bytes")
    @classmethod
    def _whole_bursts(cls, page_bytes: int, info: pydantic.ValidationInfo) -> int:
        burst_bytes = info.data.get("burst_bytes", 1)
        if page_bytes % burst_bytes:
            raise ValueError(f"must be a multiple of burst_bytes={burst_bytes}")
        return page_bytes


class Buffer(Model):
    """An SRAM of so many slots of `tile_bytes`; a larger piece of work takes several."""

    tiles: Count
    tile_bytes: Count

    @property
    def bytes(self) -> int:
        """Capacity [B]."""
        return self.tiles * self.tile_bytes

    def slots(self, nbytes: int) -> int:
        """Slots that `nbytes` take, at least one. What is larger than the buffer streams through all of it."""
        return min(self.tiles, max(1, -(-nbytes // self.tile_bytes)))


class ScoreEngine(Model):
    """MAC lanes (a multiplication and an addition a cycle) and adder lanes for ternary queries.

    A machine without adder lanes adds ternary queries on its MAC lanes, the multipliers idle.
    """

    mac_lanes: CountOrZero
    adder_lanes: CountOrZero
    queue_tiles: Count

    @pydantic.field_validator("adder_lanes")
    @classmethod
    def _any(cls, adder_lanes: int, info: pydantic.ValidationInfo) -> int:
        if adder_lanes + info.data.get("mac_lanes", 1) == 0:
            raise ValueError("mac_lanes is 0 too: nothing can score")
        return adder_lanes


class Softmax(Model):
    """Pipelined lanes through maximum, exponential and sum: each a comparison, an exponential, a multiplication and
    `adders_per_lane` additions a cycle."""

    lanes: Count
    adders_per_lane: Count


class Stash(Model):
    """SRAM for exponentials and partial outputs: two halves (one group fills, one drains), a read and a write port."""

    bytes: CountOrZero
    port_bytes_per_cycle: Count


class Budget(Model):
    """Lanes that each do one operation of every kind a cycle on tile masses."""

    lanes: Count


class Selection(Model):
    """Top-k selection. `lookahead_tiles`: further tiles of K that stream before the selected rows are asked for."""

    compares_per_cycle: Count
    lookahead_tiles: Count


class Sampler(Model):
    """Scale, prefix and floor lanes (systematic), random numbers and search comparators (i.i.d., stratified).

    A lane is pipelined: a multiplication, a floor and `adders_per_lane` additions a cycle. `queue_tiles`: tiles that
    may be read from the stash ahead of their sampling.
    """

    lanes: Count
    adders_per_lane: Count
    queue_tiles: Count
    random_numbers_per_cycle: Count
    search_compares_per_cycle: Count


class Gather(Model):
    """Row addresses per cycle, row requests in flight, and sampled tiles that may wait for their requests.

    With `queue_items` below the machine's `lookahead_tiles`, rows are asked for that much earlier in the order of
    requests.
    """

    addresses_per_cycle: Count
    outstanding: Annotated[Count, pydantic.Field(le=1 << 20)]
    queue_items: Count


class Accumulate(Model):
    """Value lanes: `adder` lanes add, `mac` lanes also multiply. Accumulators are double-buffered."""

    kind: Literal["adder", "mac"]
    lanes: Count


class Merge(Model):
    """Lanes that merge partial outputs, one operation of every kind a cycle each.

    `lookahead_tiles`: further tiles of K that stream, beyond the machine's, before a merged output is written.
    """

    lanes: Count
    lookahead_tiles: CountOrZero


class Normalize(Model):
    """Lanes that multiply (or, with a shifter, shift) one accumulator a cycle each."""

    lanes: Count
    shifter: bool


class Output(Model):
    """Port into the output buffer, and outputs that may wait there to be written."""

    port_bytes_per_cycle: Count
    buffer_items: Count


class Hardware(Model):
    """A decode-attention accelerator; hwmodels/*.yaml, docs in the README.

    Attributes
    ----------
    clock_hz : int  [Hz]
    lookahead_tiles : int
        Work that waits for results (gathers, spilled stash, write-backs) is put behind so many further tiles of K in
        the order of memory requests, so that memory doesn't wait for it.
    energy : EnergyTable
        At the machine's node and voltage.
    """

    name: str
    description: str
    clock_hz: Annotated[Count, pydantic.Field(ge=10**6, le=10**12)]
    technology: Technology
    energy: EnergyTable
    memory: MemoryModel
    q_buffer_bytes: Count
    k_buffer: Buffer
    v_buffer: Buffer
    weights_buffer: Buffer
    lookahead_tiles: CountOrZero
    write_buffer: Buffer
    score: ScoreEngine
    softmax: Softmax
    stash: Stash
    budget: Budget
    selection: Selection | None
    sampler: Sampler
    gather: Gather
    accumulate: Accumulate
    merge: Merge
    normalize: Normalize
    output: Output

    @pydantic.field_validator("lookahead_tiles")
    @classmethod
    def _lookahead_fits(cls, lookahead_tiles: int, info: pydantic.ValidationInfo) -> int:
        buffer = info.data.get("weights_buffer")
        if buffer is not None and lookahead_tiles > buffer.tiles:
            raise ValueError(
                f"more than weights_buffer.tiles={buffer.tiles}, and each tile that waits for its rows holds a slot "
                f"there; write lookahead_tiles: {buffer.tiles}, or a larger buffer"
            )
        return lookahead_tiles


def load_hardware(hardware: str | Path | Mapping | Hardware) -> Hardware:
    """Return a machine from a shipped name, a .yaml path, a mapping of the same fields, or a Hardware (returned as is).

    A file or mapping may start from another machine with `base: NAME_OR_PATH` and give only what differs. `energy` is
    the name or path of an energy table, or its fields; the table is scaled to the machine's `technology`.

    Raises
    ------
    InputError
        The machine isn't known, or a field is unknown, missing or out of range (named, with its value).
    """
    if isinstance(hardware, Hardware):
        return hardware
    if isinstance(hardware, Mapping):
        where, data = "hardware", _resolved(dict(hardware), "hardware", ())
    elif isinstance(hardware, (str, Path)):
        path = find_yaml(hardware, PACKAGE, "hardware")
        where, data = str(path), _resolved(_fields(path), str(path), (path,))
        data.setdefault("name", path.stem)
    else:
        raise InputError(f"hardware={hardware!r} must be a name, a .yaml path, a mapping or a Hardware")
    data.setdefault("name", "custom")
    table = data.get("energy")
    if isinstance(table, (str, Path)):
        table = load_energy(table)
    elif isinstance(table, Mapping):
        table = validate(EnergyTable, dict(table), f"{where}: energy")
    if isinstance(table, EnergyTable) and isinstance(data.get("technology"), Mapping):
        technology = validate(Technology, dict(data["technology"]), f"{where}: technology")
        table = scaled(table, technology.node_nm, technology.supply_v)
    return validate(Hardware, {**data, "energy": table}, where)


def _fields(path: Path) -> dict:
    return copy.deepcopy(_read(path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=32)
def _read(path: Path, _changed: int) -> dict:
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: a machine is a mapping of fields, not {type(data).__name__}")
    return data


def _resolved(data: dict, where: str, seen: tuple[Path, ...]) -> dict:
    """The fields with those of `base` (and its bases) underneath."""
    if "base" not in data:
        return data
    changes = {key: value for key, value in data.items() if key != "base"}
    base = data["base"]
    if not isinstance(base, (str, Path)):
        raise InputError(f"{where}: base={base!r} must be a name or the path of a .yaml file")
    path = find_yaml(base, PACKAGE, f"{where}: base hardware")
    if path in seen:
        raise InputError(f"{where}: base={str(base)!r} leads back to itself")
    below = _resolved(_fields(path), str(path), (*seen, path))
    if "name" not in changes and not seen:
        changes["name"] = f"{path.stem} (changed)" if changes else path.stem
    return _overlaid(below, changes)


def _overlaid(below: dict, changes: Mapping) -> dict:
    merged = dict(below)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = _overlaid(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged
