"""Machines: the sizes of an accelerator's units, its memory and its energy table, read from YAML."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from .errors import InputError
from .schema import Model, TextOrInteger, TextOrReal, at_most, find_yaml, is_path, read_yaml, shown, validate
from .simulator.dram.config import DramConfig, load_dram
from .simulator.energy import (
    EnergyTable,
    Joules,
    Positive,
    Watts,
    energy_tables,
    load_energy,
    scaled,
    scaling_note,
)
from .simulator.kv_layout import LAYOUTS

PACKAGE = "santa_sim.hwmodels"

Count = Annotated[TextOrInteger, pydantic.Field(gt=0, lt=10**15)]
CountOrZero = Annotated[TextOrInteger, pydantic.Field(ge=0, lt=10**15)]
# Limits that no machine comes near: beyond them a number is a slip, and the simulator's integers might overflow.
_LANES = at_most(10**9, "a chip of 26 mm x 33 mm has room for 4e8 of the smallest adders, int8 at 7 nm")
_SLOTS = at_most(2**30, "no queue or buffer has that many places")
_SRAM = at_most(2**40, "1 TiB of SRAM; a whole wafer holds some tens of GB")
Lanes = Annotated[Count, _LANES]
LanesOrZero = Annotated[CountOrZero, _LANES]
Slots = Annotated[Count, _SLOTS]
SlotsOrZero = Annotated[CountOrZero, _SLOTS]
AddersPerLane = Annotated[Count, at_most(1024, "a pipelined lane starts a few additions a cycle")]
PortBytes = Annotated[Count, at_most(10**9, "a port is at most as wide as its SRAM has columns")]


class Technology(Model):
    """Node [nm] and supply voltage [V] of logic and SRAM, one for the machine."""

    node_nm: Positive
    supply_v: Positive


class DramEnergy(Model):
    """DRAM energies; null is unknown: it counts as 0 and the result says so."""

    activate_j: Joules | None
    read_j_per_bit: Joules | None
    write_j_per_bit: Joules | None
    background_w: Watts | None


class MemoryModel(Model):
    """A memory of bandwidth, latency and burst granularity.

    Attributes
    ----------
    model : 'bandwidth'
    bandwidth_bytes_per_s : int  [B/s]
    latency_s : float  [s]  from a request to its data on an idle bus, and from a written burst to its completion
    burst_bytes : int  [B]  the smallest transfer
    page_bytes : int  [B]  a page change in the order of requests is charged as one activate
    """

    model: Literal["bandwidth"] = "bandwidth"
    bandwidth_bytes_per_s: Annotated[Count, pydantic.Field(ge=10**6)]
    latency_s: Annotated[TextOrReal, pydantic.Field(ge=0, le=1)]
    burst_bytes: Annotated[Count, pydantic.Field(le=8192)]
    page_bytes: Annotated[Count, at_most(2**30, "a page is some KiB")]
    energy: DramEnergy

    @pydantic.field_validator("page_bytes")
    @classmethod
    def _whole_bursts(cls, page_bytes: int, info: pydantic.ValidationInfo) -> int:
        burst_bytes = info.data.get("burst_bytes", 1)
        if page_bytes % burst_bytes:
            raise ValueError(f"must be a multiple of burst_bytes={burst_bytes}")
        return page_bytes


class BankMemoryModel(Model):
    """A bank-level DRAM.

    Attributes
    ----------
    model : 'banks'
    dram : str  a table in hwmodels/dram/, the path of one, or a DRAMsim3 .ini file
    controller_latency_s : float  [s]  of controller and PHY, added to what the banks take
    """

    model: Literal["banks"]
    dram: str
    controller_latency_s: Annotated[TextOrReal, pydantic.Field(ge=0, le=1)]

    @pydantic.field_validator("dram")
    @classmethod
    def _loads(cls, dram: str) -> str:
        load_dram(dram)
        return dram

    @property
    def config(self) -> DramConfig:
        """The DRAM's description."""
        path = Path(self.dram)
        return _dram(self.dram, path.stat().st_mtime_ns if path.is_file() else 0)

    @property
    def burst_bytes(self) -> int:
        """Bytes that one column command moves [B]."""
        return self.config.organization.burst_bytes

    @property
    def bandwidth_bytes_per_s(self) -> int:
        """Peak of all data buses [B/s]."""
        return round(self.config.peak_bytes_per_s)


@functools.lru_cache(maxsize=16)
def _dram(name: str, _changed: int) -> DramConfig:
    return load_dram(name)


class Buffer(Model):
    """An SRAM of so many slots of `tile_bytes`; a larger piece of work takes several."""

    tiles: Slots
    tile_bytes: Annotated[Count, _SRAM]

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

    mac_lanes: LanesOrZero
    adder_lanes: LanesOrZero
    queue_tiles: Slots

    @pydantic.field_validator("adder_lanes")
    @classmethod
    def _any(cls, adder_lanes: int, info: pydantic.ValidationInfo) -> int:
        if adder_lanes + info.data.get("mac_lanes", 1) == 0:
            raise ValueError("mac_lanes is 0 too: nothing can score")
        return adder_lanes


class Softmax(Model):
    """Pipelined lanes through maximum, exponential and sum: each a comparison, an exponential, a multiplication and
    `adders_per_lane` additions a cycle."""

    lanes: Lanes
    adders_per_lane: AddersPerLane


class Stash(Model):
    """SRAM for exponentials and partial outputs: two halves (one group fills, one drains), a read and a write port."""

    bytes: Annotated[CountOrZero, _SRAM]
    port_bytes_per_cycle: PortBytes


class Budget(Model):
    """Lanes that each do one operation of every kind a cycle on tile masses."""

    lanes: Lanes


class Selection(Model):
    """Top-k selection. `lookahead_tiles`: further tiles of K that stream before the selected rows are asked for."""

    compares_per_cycle: Lanes
    lookahead_tiles: Slots


class Sampler(Model):
    """Scale, prefix and floor lanes (systematic), random numbers and search comparators (i.i.d., stratified).

    A lane is pipelined: a multiplication, a floor and `adders_per_lane` additions a cycle. `queue_tiles`: tiles that
    may be read from the stash ahead of their sampling.
    """

    lanes: Lanes
    adders_per_lane: AddersPerLane
    queue_tiles: Slots
    random_numbers_per_cycle: Lanes
    search_compares_per_cycle: Lanes


class Gather(Model):
    """Row addresses per cycle, row requests in flight, and sampled tiles that may wait for their requests.

    With `queue_items` below the machine's `lookahead_tiles`, rows are asked for that much earlier in the order of
    requests.
    """

    addresses_per_cycle: Lanes
    outstanding: Annotated[Count, at_most(1 << 20, "row requests in flight are kept in a table")]
    queue_items: Slots


class Accumulate(Model):
    """Value lanes: `adder` lanes add, `mac` lanes also multiply. Accumulators are double-buffered."""

    kind: Literal["adder", "mac"]
    lanes: Lanes


class Merge(Model):
    """Lanes that merge partial outputs, one operation of every kind a cycle each.

    `lookahead_tiles`: further tiles of K that stream, beyond the machine's, before a merged output is written.
    """

    lanes: Lanes
    lookahead_tiles: SlotsOrZero


class Normalize(Model):
    """Lanes that multiply (or, with a shifter, shift) one accumulator a cycle each."""

    lanes: Lanes
    shifter: pydantic.StrictBool


class Output(Model):
    """Port into the output buffer, and outputs that may wait there to be written."""

    port_bytes_per_cycle: PortBytes
    buffer_items: Slots


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
    notes : tuple of str
        What a reader of its results should know; load_hardware adds one where the energy table was scaled.
    """

    name: str
    description: str
    clock_hz: Annotated[Count, pydantic.Field(ge=10**6, le=10**12)]
    technology: Technology
    energy: EnergyTable
    memory: Annotated[MemoryModel | BankMemoryModel, pydantic.Field(discriminator="model")]
    kv_layout: Literal[LAYOUTS] = "sequence-first"
    k_buffer: Buffer
    v_buffer: Buffer
    weights_buffer: Buffer
    lookahead_tiles: SlotsOrZero
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
    notes: tuple[str, ...] = ()

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
    the name or path of an energy table, or its fields; the table is scaled to the machine's `technology`. Paths in a
    file are relative to that file, in a mapping to the working directory.

    Raises
    ------
    InputError
        The machine isn't known, or a field is unknown, missing or out of range (named, with its value).
    """
    if isinstance(hardware, Hardware):
        return hardware
    if isinstance(hardware, Mapping):
        if not hardware:
            raise InputError("hardware={} has no fields; write at least a base, such as {'base': 'adder_hbm3'}")
        where, data = "hardware", _resolved(dict(hardware), "hardware", None, ())
    elif isinstance(hardware, (str, Path)):
        path = find_yaml(hardware, PACKAGE, "hardware")
        where, data = str(path), _resolved(_fields(path), str(path), path.parent, (path.resolve(),))
        data.setdefault("name", path.stem)
    else:
        raise InputError(f"hardware={shown(hardware)} must be a name, a .yaml path, a mapping or a Hardware")
    data.setdefault("name", "custom")
    try:
        table, note = _scaled_table(data)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if note and isinstance(data.get("notes", ()), (list, tuple)):
        data["notes"] = [*data.get("notes", ()), note]
    memory = data.get("memory")
    if isinstance(memory, Mapping) and "model" not in memory:
        data["memory"] = {"model": _model_of(memory) or "bandwidth", **memory}
    return validate(Hardware, {**data, "energy": table}, where)


def _scaled_table(data: Mapping) -> tuple[object, str | None]:
    """The energy table of a machine's fields at the machine's technology, and what was done to it."""
    table, technology = data.get("energy"), data.get("technology")
    if isinstance(table, (str, Path)):
        table = load_energy(table)
    elif isinstance(table, Mapping):
        table = validate(EnergyTable, dict(table), "energy")
    if not isinstance(table, EnergyTable) or not isinstance(technology, (Mapping, Technology)):
        return table, None  # one of them is missing or wrong, as the machine's own check will say
    technology = validate(Technology, technology, "technology")
    note = scaling_note(table, technology.node_nm, technology.supply_v)
    return scaled(table, technology.node_nm, technology.supply_v), note


def _fields(path: Path) -> dict:
    """The fields of a file, the path of its energy table made relative to where the caller stands."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from None
    data = copy.deepcopy(_read(path, changed))
    table = data.get("energy")
    if isinstance(table, str) and table not in energy_tables() and is_path(table):
        data["energy"] = path.parent / table
    return data


@functools.lru_cache(maxsize=32)
def _read(path: Path, _changed: int) -> dict:
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: a machine is a mapping of fields, not {type(data).__name__}")
    return data


def _resolved(data: dict, where: str, folder: Path | None, seen: tuple[Path, ...]) -> dict:
    """The fields with those of `base` (and its bases) underneath; a memory of another model replaces the base's whole."""
    if "base" not in data:
        return data
    changes = {key: value for key, value in data.items() if key != "base"}
    base = data["base"]
    if not isinstance(base, (str, Path)):
        raise InputError(f"{where}: base={shown(base)} must be a name or the path of a .yaml file")
    path = find_yaml(base, PACKAGE, f"{where}: base hardware", folder)
    if path.resolve() in seen:
        raise InputError(f"{where}: base={str(base)!r} leads back to itself")
    below = _resolved(_fields(path), str(path), path.parent, (*seen, path.resolve()))
    if "name" not in changes and not seen:
        changes["name"] = f"{path.stem} (changed)" if changes else path.stem
    memory = changes.get("memory")
    if isinstance(memory, Mapping) and _model_of(memory) not in (None, _model_of(below.get("memory", {}))):
        below = {**below, "memory": {}}
    return _overlaid(below, changes)


def _model_of(memory: Mapping) -> str | None:
    """Which memory model some of its fields mean, if they say."""
    if "model" in memory:
        return memory["model"]
    if "dram" in memory or "controller_latency_s" in memory:
        return "banks"
    return "bandwidth" if memory.keys() & MemoryModel.model_fields.keys() else None


def _overlaid(below: dict, changes: Mapping) -> dict:
    merged = dict(below)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = _overlaid(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged
