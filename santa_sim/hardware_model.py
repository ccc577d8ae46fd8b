"""What a machine is: the sizes of an accelerator's units and its memory, as validated records."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from .schema import Model, TextOrInteger, TextOrReal, at_most, last_changes
from .simulator.dram.config import DramConfig, load_dram
from .simulator.energy import EnergyTable, Joules, Technology, Watts
from .simulator.kv_layout import ALIGNMENT, LAYOUTS, OFFSET_PERIOD

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
    dram_changes : fields of it that differ, by section: {organization: {channels: 8}}
    controller_latency_s : float  [s]  of controller and PHY, added to what the banks take
    """

    model: Literal["banks"]
    dram: str
    dram_changes: dict[str, Any] = {}
    controller_latency_s: Annotated[TextOrReal, pydantic.Field(ge=0, le=1)]

    @pydantic.field_validator("dram")
    @classmethod
    def _loads(cls, dram: str) -> str:
        _dram(dram, _changed(dram), "{}")
        return dram

    @pydantic.field_validator("dram_changes")
    @classmethod
    def _applies(cls, changes: dict[str, Any], info: pydantic.ValidationInfo) -> dict[str, Any]:
        if changes and "dram" in info.data:
            dram = info.data["dram"]
            _dram(dram, _changed(dram), json.dumps(changes, sort_keys=True))
        return changes

    @property
    def config(self) -> DramConfig:
        """The DRAM's description."""
        return _dram(self.dram, _changed(self.dram), json.dumps(self.dram_changes, sort_keys=True))

    @property
    def burst_bytes(self) -> int:
        """Bytes that one column command moves [B]."""
        return self.config.organization.burst_bytes

    @property
    def bandwidth_bytes_per_s(self) -> int:
        """Peak of all data buses [B/s]."""
        return round(self.config.peak_bytes_per_s)


def _changed(dram: str) -> tuple[int, ...]:
    """When a file of one's own and those below it were last written; nothing for a shipped table."""
    path = Path(dram)
    if dram.endswith(".ini"):
        return (path.stat().st_mtime_ns,) if path.is_file() else ()
    return last_changes(path) if path.is_file() else ()


@functools.lru_cache(maxsize=64)
def _dram(name: str, changed: tuple[int, ...], changes: str) -> DramConfig:
    differs = json.loads(changes)
    config = _dram(name, changed, "{}") if differs else load_dram(name)
    return config.replace(**{"name": f"{config.name} (changed)", **differs}) if differs else config


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

    Ternary queries are added where there are more lanes; on MAC lanes the multipliers idle.
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
    v_offset_bytes : int or None  [B]
        A multiple of 4,096 below 1 MiB: V starts so far behind a multiple of 1 MiB from K's start, so that a tile of K
        and the one of V beside it lie on different banks. None: right behind K.
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
    v_offset_bytes: Annotated[CountOrZero, pydantic.Field(lt=OFFSET_PERIOD, multiple_of=ALIGNMENT)] | None = None
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

    def on_bandwidth(self) -> Hardware:
        """The same beside a memory of its memory's bandwidth and unloaded latency alone, without energies."""
        if self.memory.model == "bandwidth":
            return self
        config, burst = self.memory.config, self.memory.burst_bytes
        access_s = config.timing.access_fs * 1e-15
        plain = MemoryModel(
            bandwidth_bytes_per_s=self.memory.bandwidth_bytes_per_s, latency_s=float(self.memory.controller_latency_s) + access_s,
            burst_bytes=burst, page_bytes=burst, energy=dict.fromkeys(DramEnergy.model_fields),
        )  # fmt: skip
        return self.model_copy(update={"memory": plain})
