"""A trace made ready for a machine: groups and dependencies, durations, places in memory, what crosses DRAM.

Everything here follows from the trace and the machine's sizes alone, never from timing.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..trace import BUFFERS, COUNTERS, STREAMS, Trace
from ..trace_meta import shown
from .kv_layout import ALIGNMENT, OFFSET_PERIOD, place
from .memory import bursts_upper_bound, cycles_fs, expand, expand_rows
from .order import check_closed, check_order, check_size

if TYPE_CHECKING:
    from ..hardware_model import Hardware

_NEVER = 2**63  # beyond any byte
TRAFFIC = ("q_read", "k_read", "v_read", "stash_read", "stash_write", "partials_read", "partials_write", "output_write")
OPERATIONS = COUNTERS[: COUNTERS.index("score_reads")]

# Which unit executes which counters of a stage's items, in the order in which an item passes through them.
STAGE_UNITS = {
    "score": (("sampler", ("sampling",)), ("score", ("score",)), ("softmax", ("softmax",))),
    "budget": (("budget", ("sampling", "softmax")),),
    "select": (("selection", ("selection",)), ("softmax", ("softmax",))),
    "value": (
        ("sampler", ("sampling",)),
        ("accumulate", ("value", "softmax", "merge")),
    ),  # merge: rescaling a running sum
    "merge": (("merge", ("merge",)),),
    "output": (("normalize", ("value", "softmax")),),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """Bytes that one item moves over DRAM: pieces of a buffer, without the first `skip` bytes (which stay on chip)."""

    kind: str  # key of traffic_bytes, e.g. 'k_read'
    first: int  # address
    nbytes: int
    piece: int
    stride: int
    skip: int = 0

    @property
    def useful_bytes(self) -> int:
        return self.nbytes - self.skip

    @property
    def end(self) -> int:
        """First address behind it."""
        pieces = -(-self.nbytes // self.piece)
        return self.first + (pieces - 1) * self.stride + self.nbytes - (pieces - 1) * self.piece


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Rows that one item gathers from DRAM."""

    kind: str
    first: int
    stride: int
    row_bytes: int
    rows: np.ndarray

    @property
    def useful_bytes(self) -> int:
        return self.row_bytes * len(self.rows)

    @property
    def end(self) -> int:
        """First address behind the last of them."""
        return self.first + int(self.rows.max()) * self.stride + self.row_bytes


@dataclasses.dataclass(slots=True)
class Item:
    """One trace row: durations by unit [fs], DRAM regions, bytes that stay on chip."""

    row: int
    stage: str
    tile: int
    durations: dict[str, int]
    exponentials: int  # softmax_exps
    reads: list[Region]
    writes: list[Region]
    gather: Rows | None
    chip_read: int  # stash and partials bytes read on chip
    chip_write: int


@dataclasses.dataclass(slots=True)
class Group:
    """Items of one (sequence, layer, KV head, query block), by stage, in trace order."""

    number: int
    items: dict[str, list[Item]]
    by_tile: dict[int, Item]  # its score items

    def one(self, stage: str) -> Item | None:
        """The only item of a stage, or None."""
        return self.items[stage][0] if self.items[stage] else None


@dataclasses.dataclass(frozen=True)
class Program:
    """What the machine plays."""

    groups: list[Group]
    scores: list[tuple[Group, Item]]  # in trace order

    @functools.cached_property
    def longest(self) -> dict[str, int]:
        """Of K and V, the most bytes that one item moves."""
        most = {"k_read": 0, "v_read": 0}
        for item in (item for group in self.groups for stage in ("score", "value") for item in group.items[stage]):
            parts = [*item.reads, *([item.gather] if item.gather is not None else [])]
            for kind, longest in most.items():
                most[kind] = max(longest, sum(part.useful_bytes for part in parts if part.kind == kind))
        return most


def compile_trace(trace: Trace, hardware: Hardware) -> Program:
    """Make a trace ready for a machine.

    Raises
    ------
    InputError
        Not a Trace; the machine lacks a unit that the trace needs; or the trace's items don't hang together (named by
        row).
    """
    if not isinstance(trace, Trace):
        raise InputError(
            f"simulate() plays a Trace, not {shown(trace)}; load a saved one with santa_sim.Trace.load('trace.parquet')"
        )
    frame = trace.items
    counters = {name: frame[name].to_numpy().astype(np.int64, copy=False) for name in OPERATIONS}
    stages = frame["stage"].to_numpy().astype(str)
    check_units(stages, counters, trace, hardware)
    durations, exponentials = _durations(stages, counters, hardware), counters["softmax_exps"].tolist()
    keys = list(zip(*(frame[name].tolist() for name in ("sequence", "layer", "kv_head", "query_block"))))
    streams, gathers = _streams(frame), _gathers(frame)
    streams, gathers = place(hardware.kv_layout, trace.meta["n_kv_heads"], trace.meta["n_k"], keys, streams, gathers)
    bases = _bases(keys, streams, gathers, hardware.v_offset_bytes)

    groups: dict[tuple, Group] = {}
    scores, last = [], None
    for row, (key, stage, tile) in enumerate(zip(keys, stages.tolist(), frame["tile"].tolist())):
        if key not in groups:
            groups[key] = Group(len(groups), {name: [] for name in STAGE_UNITS}, {})
            chip = _Chip(hardware.stash.bytes // 2)
        elif key != last:
            raise InputError(
                f"trace row {row}: items of sequence {key[0]}, layer {key[1]}, KV head {key[2]}, query block {key[3]} "
                f"must stand together, other items come between"
            )
        last = key
        item = Item(row, stage, tile, durations[row], exponentials[row], [], [], None, 0, 0)
        for stream in streams[row]:
            _place(item, stream, bases[key[:2]], chip)
        if stage == "output" and item.chip_write:
            raise InputError(
                f"trace row {row}: an 'output' item writes stash or partials, which nothing can read after it"
            )
        if gathers[row] is not None and stage not in ("score", "value"):
            raise InputError(f"trace row {row}: a {stage!r} item gathers rows; only 'score' and 'value' items can")
        if gathers[row] is not None:
            buffer, first, stride, row_bytes, rows = gathers[row]
            item.gather = Rows(_kind(buffer, False, row), bases[key[:2]][buffer] + first, stride, row_bytes, rows)
        check_order(groups[key], item)
        check_size(item, hardware.memory.burst_bytes)
        groups[key].items[stage].append(item)
        if stage == "score":
            groups[key].by_tile[item.tile] = item
            scores.append((groups[key], item))
    check_closed(groups)
    return Program(list(groups.values()), scores)


def addresses_of(regions: Sequence[Region], burst: int) -> tuple[np.ndarray, list[int]]:
    """Burst addresses of some regions in order, int64 [n], and how many each region adds."""
    size = sum(bursts_upper_bound(region.nbytes, region.piece, burst) for region in regions)
    out, n, counts = np.empty(size, np.int64), 0, []
    for region in regions:
        end = expand(region.first, region.skip, region.nbytes, region.piece, region.stride, burst, out, n)
        counts.append(end - n)
        n = end
    return out[:n], counts


def addresses_of_rows(rows: Rows, burst: int) -> tuple[np.ndarray, np.ndarray]:
    """Burst addresses of gathered rows in order, int64 [n], and where each row's end, int64 [rows]."""
    out = np.empty(bursts_upper_bound(rows.row_bytes, rows.row_bytes, burst) * len(rows.rows), np.int64)
    ends = np.empty(len(rows.rows), np.int64)
    n = expand_rows(rows.first, rows.stride, rows.row_bytes, rows.rows, burst, out, ends)
    return out[:n], ends


def check_units(stages: np.ndarray, counters: dict[str, np.ndarray], trace: Trace, hardware: Hardware) -> None:
    """InputError if the machine has no unit for some of the trace's work."""
    method = f"method {trace.meta['method']!r} with score {trace.meta['score']!r}"
    for stage, units in STAGE_UNITS.items():
        done = tuple(f"{family}_" for _, families in units for family in families)
        here = stages == stage
        for name in OPERATIONS:
            bad = here & (counters[name] > 0) if not name.startswith(done) else ()
            if np.any(bad):
                row = int(np.argmax(bad))
                raise InputError(
                    f"trace row {row}: {name}={counters[name][row]} in a {stage!r} item; no unit of that stage does it"
                )
    if hardware.score.mac_lanes == 0 and counters["score_mults"].any():
        raise InputError(
            f"{method} multiplies in the score stage and {hardware.name} has score.mac_lanes=0; give it MAC lanes, or "
            f"use score 'bernoulli' or 'bernoulli-stratified'"
        )
    products = counters["value_mults"] + counters["merge_mults"]
    if hardware.accumulate.kind != "mac" and products[stages == "value"].any():
        raise InputError(
            f"{method} multiplies in the value stage and {hardware.name} has "
            f"accumulate.kind={hardware.accumulate.kind!r}; use a machine with MAC lanes there (mac_hbm3, mac_lpddr5), "
            f"or a sampled method"
        )
    if hardware.selection is None and (stages == "select").any():
        raise InputError(f"{method} selects and {hardware.name} has selection=null; give it a selection unit")
    if not hardware.normalize.shifter and counters["value_shifts"].any():
        raise InputError(f"{method} normalises by shifts and {hardware.name} has normalize.shifter=false")


def _durations(stages: np.ndarray, counters: dict[str, np.ndarray], hardware: Hardware) -> list[dict[str, int]]:
    """For each row, femtoseconds by unit."""
    lists = {unit: values.tolist() for unit, values in cycles_by_unit(stages, counters, hardware).items()}
    return [
        {unit: cycles_fs(lists[unit][row], hardware.clock_hz) for unit, _ in STAGE_UNITS[stage]}
        for row, stage in enumerate(stages.tolist())
    ]


def cycles_by_unit(stages: np.ndarray, counters: dict[str, np.ndarray], hardware: Hardware) -> dict[str, np.ndarray]:
    """By unit, int64 [rows]: whole clock cycles of each row's work over the unit's lanes."""
    c, hw = counters, hardware

    def cycles(lanes: int, *names: str) -> np.ndarray:
        """Lanes that do one of each operation a cycle."""
        return -(-np.maximum.reduce([c[name] for name in names]) // lanes)

    products = cycles(hw.score.mac_lanes, "score_adds", "score_mults") if hw.score.mac_lanes else np.zeros(len(stages), np.int64)
    ternary = cycles(max(hw.score.mac_lanes, hw.score.adder_lanes), "score_adds")  # a MAC lane has an adder
    score = np.where(c["score_mults"] == 0, ternary, products)
    softmax, softmax_adds = ("softmax_exps", "softmax_compares", "softmax_mults"), "softmax_adds"
    sampling, sampling_adds = ("sampling_mults", "sampling_floors"), "sampling_adds"
    search, random = "sampling_compares", "sampling_random_numbers"
    every = (*softmax, softmax_adds, *sampling, sampling_adds, search, random)
    value = ("value_adds", "value_mults", "value_shifts", *softmax, softmax_adds)
    merge = ("merge_adds", "merge_mults", "merge_exps")
    return {
        "score": score,
        "softmax": np.maximum(
            cycles(hw.softmax.lanes, *softmax), cycles(hw.softmax.lanes * hw.softmax.adders_per_lane, softmax_adds)
        ),
        "budget": cycles(hw.budget.lanes, *every),
        "selection": cycles(hw.selection.compares_per_cycle, "selection_compares") if hw.selection else score * 0,
        "sampler": np.maximum.reduce([
            cycles(hw.sampler.lanes, *sampling),
            cycles(hw.sampler.lanes * hw.sampler.adders_per_lane, sampling_adds),
            cycles(hw.sampler.search_compares_per_cycle, search),
            cycles(hw.sampler.random_numbers_per_cycle, random),
        ]),
        "accumulate": cycles(hw.accumulate.lanes, *value, *merge),
        "merge": cycles(hw.merge.lanes, *merge),
        "normalize": cycles(hw.normalize.lanes, *value),
    }  # fmt: skip


def _streams(frame) -> list[list[tuple]]:
    """For each row its streams (row, buffer, first byte, bytes, piece, stride, write) as plain Python values."""
    columns = [[list(entry) for entry in frame[name]] for name in STREAMS]
    streams = []
    for row, lists in enumerate(zip(*columns)):
        entries = []
        for buffer, first, nbytes, piece, stride, write in zip(*lists):
            first, nbytes, piece, stride = int(first), int(nbytes), int(piece), int(stride)
            entries.append((row, buffer, first, nbytes, min(piece, nbytes), max(stride, 1), bool(write)))
        streams.append(entries)
    return streams


def _gathers(frame) -> list[tuple | None]:
    """For each row None or its gather (buffer, first byte, stride, row bytes, rows int64)."""
    numbers = zip(*(frame[f"gather_{name}"].tolist() for name in ("buffer", "first_byte", "stride_bytes", "row_bytes")))
    gathers = []
    for rows, (buffer, first, stride, row_bytes) in zip(frame["gather_rows"], numbers):
        rows = np.asarray(rows, np.int64)
        gathers.append((buffer, first, stride, row_bytes, rows) if len(rows) else None)
    return gathers


def _bases(keys: list[tuple], streams: list[list[tuple]], gathers: list[tuple | None], v_offset: int | None) -> dict[tuple, dict[str, int]]:
    """First address of each buffer of each (sequence, layer): end to end, aligned, as long as the trace reaches; V with
    a gap before it where the machine wants one."""
    ends: dict[tuple, dict[str, int]] = {}
    for key, entries, gather in zip(keys, streams, gathers):
        end = ends.setdefault(key[:2], dict.fromkeys(BUFFERS, 0))
        for _, buffer, first, nbytes, piece, stride, _ in entries:
            pieces = -(-nbytes // piece)
            end[buffer] = max(end[buffer], first + (pieces - 1) * stride + nbytes - (pieces - 1) * piece)
        if gather is not None:
            buffer, first, stride, row_bytes, rows = gather
            end[buffer] = max(end[buffer], first + int(rows.max()) * stride + row_bytes)
    bases, address = {}, 0
    for where, end in ends.items():
        bases[where] = {}
        for buffer, size in end.items():
            if buffer == "v" and v_offset is not None:
                address += (bases[where]["k"] + v_offset - address) % OFFSET_PERIOD
            bases[where][buffer] = address
            address += -(-size // ALIGNMENT) * ALIGNMENT
    return bases


def _kind(buffer: str, write: bool, row: int) -> str:
    """Key of traffic_bytes."""
    kind = f"{buffer}_{'write' if write else 'read'}"
    if kind not in TRAFFIC:
        raise InputError(
            f"trace row {row}: {buffer!r} is {'written' if write else 'read'}; there is {', '.join(TRAFFIC)}"
        )
    return kind


class _Chip:
    """Half of the stash SRAM while one group holds it: what it wrote there, in order, until the half is full."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self.written: dict[tuple, int] = {}  # region -> bytes on chip (its first ones)
        self.stretches: dict[str, list[tuple[int, int, int]]] = {
            "stash": [],
            "partials": [],
        }  # (first byte, end, end on chip)

    def write(self, region: tuple) -> int:
        """Bytes of a written region that stay on chip; a region written again stays where it is."""
        if region not in self.written:
            kept = self.written[region] = min(region[2], self.free)
            self.free -= kept
            for start, size in _stretches(*region[1:]):
                bisect.insort(self.stretches[region[0]], (start, start + size, start + min(size, kept)))
                kept -= min(size, kept)
        return self.written[region]

    def pieces(self, region: tuple) -> Iterator[tuple[int, int, int]]:
        """Of a region to be read: (first byte, bytes, bytes on chip) of each stretch as written; -1: it wasn't."""
        written = self.stretches[region[0]]
        for start, size in _stretches(*region[1:]):
            end = start + size
            place = max(0, bisect.bisect_right(written, (start, _NEVER, _NEVER)) - 1)
            while start < end:
                if place == len(written) or not written[place][0] <= start < written[place][1]:
                    yield start, end - start, -1
                    return
                stop = min(end, written[place][1])
                yield start, stop - start, max(0, min(stop, written[place][2]) - start)
                start, place = stop, place + 1


def _stretches(first: int, nbytes: int, piece: int, stride: int) -> Iterator[tuple[int, int]]:
    for number in range(-(-nbytes // piece)):
        yield first + number * stride, min(piece, nbytes - number * piece)


def _place(item: Item, stream: tuple, bases: dict[str, int], chip: _Chip) -> None:
    """Add a stream to its item: to DRAM, to the chip, or the first part here and the rest there."""
    row, buffer, first, nbytes, piece, stride, write = stream
    kind = _kind(buffer, write, row)
    base, region = bases[buffer], stream[1:6]
    if buffer not in ("stash", "partials"):
        (item.writes if write else item.reads).append(Region(kind, base + first, nbytes, piece, stride))
    elif write:
        kept = chip.write(region)
        item.chip_write += kept
        if kept < nbytes:
            item.writes.append(Region(kind, base + first, nbytes, piece, stride, kept))
    elif region in chip.written:
        kept = chip.written[region]
        item.chip_read += kept
        if kept < nbytes:
            item.reads.append(Region(kind, base + first, nbytes, piece, stride, kept))
    else:
        for start, size, kept in chip.pieces(region):
            if kept < 0:
                raise InputError(
                    f"trace row {row}: reads {size} bytes of {buffer!r} from byte {start}, not written by its group"
                )
            item.chip_read += kept
            if kept < size:
                item.reads.append(Region(kind, base + start, size, size, size, kept))
