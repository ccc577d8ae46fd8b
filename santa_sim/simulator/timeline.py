"""A run as a Perfetto trace: a track for each unit and each DRAM channel, work and stalls as slices.

Perfetto's clock is nanoseconds: slices begin and end at the nanosecond below. Their annotations `start_fs` and
`duration_fs` are exact.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .schedule import UNITS
from .stalls import BANK, DONE, READ, REQUESTS, WINDOW, WRITE, paint, words

if TYPE_CHECKING:
    from ..hardware_model import Hardware
    from ..trace import Trace
    from .machine import Run
    from .ports import Channel
    from .result import Result

FS_PER_NS = 10**6
_SEQUENCE = 1  # of packets: there is one writer
_TRACKS = (REQUESTS, "gather", *(unit for unit in UNITS if unit != "dram"))
_ANNOTATIONS = ("start_fs", "duration_fs", "trace_row", "sequence", "layer", "kv_head", "query_block", "tile")


def channel_segments(run: Run, channel: Channel) -> list[tuple[str, int, int]]:
    """What a channel did: (cause, start, end) [fs], without gaps from 0 to the end of the run.

    A burst takes its slot on the bus. Between bursts a channel waits for a bank while a transaction is queued (its row is
    opened, another closed, a refresh or a spacing of commands is waited for); for a place among the requests in flight while
    a request has been handed in and no queue has taken it; else for what the unit waits for that hands requests over.
    """
    handing = collections.defaultdict(list)
    for wait in run.waits:
        if wait.unit == REQUESTS:
            handing[wait.cause].append((wait.start_fs, wait.end_fs))
    layers = [(READ, channel.reads), (WRITE, channel.writes), (BANK, channel.queued), (WINDOW, channel.asked)]
    layers += [(cause, np.array(spans, np.int64)) for cause, spans in handing.items()]
    return paint(layers, run.end_fs)


def channel_times(run: Run) -> dict[str, dict[str, int]]:
    """Time of each channel by cause [fs]: sums to the end of the run."""
    times = {}
    for channel in run.channels:
        causes = times[channel.name] = collections.Counter()
        for cause, start, end in channel_segments(run, channel):
            causes[cause] += end - start
    return {name: dict(causes) for name, causes in times.items()}


def unit_segments(run: Run, unit: str) -> list[tuple[str | None, int, int, int]]:
    """What a unit did: (cause, or None for work; start, end [fs]; trace row or -1), in order, without gaps."""
    spans = [(None, s.start_fs, s.end_fs, s.row) for s in run.spans if s.unit == unit]
    waits = [(w.cause, w.start_fs, w.end_fs, -1) for w in run.waits if w.unit == unit]
    segments = sorted([*spans, *waits], key=lambda segment: (segment[1], segment[2]))
    if unit == "gather":  # its jobs come from the order of requests
        ends = [0] + [end for _, _, end, _ in segments]
        gaps = [(f"work_{REQUESTS}", a, start, -1) for a, (_, start, _, _) in zip(ends, segments) if start > a]
        segments = sorted([*segments, *gaps], key=lambda segment: (segment[1], segment[2]))
    last = segments[-1][2] if segments else 0
    return segments + ([(DONE, last, run.end_fs, -1)] if last < run.end_fs else [])


def write(path: str | Path, trace: Trace, machine: Hardware, run: Run, result: Result) -> None:
    """Write a recorded run (`run.record`) as a Perfetto trace, a packet at a time.

    Tracks: `requests` (the unit that hands memory jobs over in the program's order, an instant each), the units that had
    something to do, and below `memory` one track a DRAM channel.
    """
    with Path(path).open("wb") as file:
        packets = _Packets(file)
        root = packets.track(f"{result.workload or 'trace'}, {result.method} on {machine.name}")
        units = packets.track("units", root)
        keys = [trace.items[name].to_numpy() for name in _ANNOTATIONS[3:]]
        stages = trace.items["stage"].to_numpy()

        def annotations(row: int) -> list[int]:
            return [row, *(int(column[row]) for column in keys)] if row >= 0 else []

        for unit in _TRACKS:
            if unit not in run.stalls_fs:
                continue
            track = packets.track(unit.replace("_", " "), units)
            asked = [s for s in run.spans if s.unit == "dram"] if unit == REQUESTS else []
            for span in asked:
                packets.instant(track, f"memory job of {stages[span.row]}", span.start_fs, annotations(span.row))
            for cause, start, end, row in unit_segments(run, unit):
                name = f"{stages[row]} work" if cause is None else words(cause)
                packets.slice(track, name, "work" if cause is None else "stall", start, end, annotations(row))
        memory = packets.track("memory", root)
        for channel in run.channels:
            track = packets.track(channel.name, memory)
            for cause, start, end in channel_segments(run, channel):
                packets.slice(track, words(cause), "work" if cause in (READ, WRITE) else "stall", start, end, [])
            for cause, start, end in _after(channel, run.end_fs):
                packets.slice(track, f"{words(cause)} after the end", "work", start, end, [])


def _after(channel: Channel, end_fs: int) -> Iterator[tuple[str, int, int]]:
    """Bursts of a channel's write buffer that are written out when the machine has done."""
    for start, end in channel.writes:
        if end > end_fs:
            yield WRITE, max(int(start), end_fs), int(end)


class _Packets:
    """Writes tracks and slices; names are sent once."""

    def __init__(self, file) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

        self.builder, self.event, self.packet = StreamingTraceProtoBuilder(file), TrackEvent, TracePacket
        self.ordering = TrackDescriptor.EXPLICIT
        self.uuids, self.names = itertools.count(1), {}
        first = self.builder.create_packet()
        first.trusted_packet_sequence_id = _SEQUENCE
        first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for number, name in enumerate(_ANNOTATIONS, 1):
            first.interned_data.debug_annotation_names.add(iid=number, name=name)
        for number, name in enumerate(("work", "stall"), 1):
            first.interned_data.event_categories.add(iid=number, name=name)
        self.builder.write_packet(first)

    def track(self, name: str, parent: int | None = None) -> int:
        """Describe a track; its number."""
        packet = self.builder.create_packet()
        descriptor = packet.track_descriptor
        descriptor.uuid = next(self.uuids)
        descriptor.name = name
        descriptor.child_ordering = self.ordering
        descriptor.sibling_order_rank = descriptor.uuid
        if parent is not None:
            descriptor.parent_uuid = parent
        packet.trusted_packet_sequence_id = _SEQUENCE
        self.builder.write_packet(packet)
        return descriptor.uuid

    def _new(self, track: int, time_fs: int, kind: int):
        packet = self.builder.create_packet()
        packet.timestamp = time_fs // FS_PER_NS
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = self.packet.SEQ_NEEDS_INCREMENTAL_STATE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _named(self, packet, name: str, values: list[tuple[int, int]]) -> None:
        if name not in self.names:
            self.names[name] = len(self.names) + 1
            packet.interned_data.event_names.add(iid=self.names[name], name=name)
        packet.track_event.name_iid = self.names[name]
        for number, value in values:
            packet.track_event.debug_annotations.add(name_iid=number, int_value=value)
        self.builder.write_packet(packet)

    def slice(self, track: int, name: str, category: str, start: int, end: int, values: list[int]) -> None:
        """A slice from start to end [fs]; values of _ANNOTATIONS from the third on."""
        packet = self._new(track, start, self.event.TYPE_SLICE_BEGIN)
        packet.track_event.category_iids.append(1 if category == "work" else 2)
        self._named(packet, name, [(1, start), (2, end - start), *enumerate(values, 3)])
        self.builder.write_packet(self._new(track, end, self.event.TYPE_SLICE_END))

    def instant(self, track: int, name: str, time_fs: int, values: list[int]) -> None:
        """A moment [fs]."""
        self._named(self._new(track, time_fs, self.event.TYPE_INSTANT), name, [(1, time_fs), *enumerate(values, 3)])
