"""A run as a Perfetto trace: a track for each unit and each DRAM channel, work and stalls as slices.

Perfetto's clock is nanoseconds: slices begin and end at the nanosecond below. Their annotations `start_fs` and
`duration_fs` are exact.
"""

from __future__ import annotations

import collections
import itertools
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
_AT_A_TIME = 4096  # packets that are written together
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
    """Write a recorded run (`run.record`) as a Perfetto trace.

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
                packets.slice(track, f"{words(cause)} after the end", "work" if cause == WRITE else "stall", start, end, [])
        packets.flush()


def _after(channel: Channel, end_fs: int) -> list[tuple[str, int, int]]:
    """What a channel did, as in `channel_segments`, from when the machine has done to when the write buffer is written out."""
    last = int(channel.writes[-1, 1]) if len(channel.writes) else 0
    segments = paint([(WRITE, channel.writes), (BANK, channel.queued), (WINDOW, channel.asked)], last)
    return [(cause, max(start, end_fs), end) for cause, start, end in segments if end > end_fs]


class _Packets:
    """Writes tracks and slices, some thousand packets at a time; names are sent once."""

    def __init__(self, file) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent

        self.file, self.waiting = file, 0
        self.begin, self.end, self.moment = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END, TrackEvent.TYPE_INSTANT
        self.needs_names, self.ordering = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE, TrackDescriptor.EXPLICIT
        self.uuids, self.names = itertools.count(1), {}
        self.flush()
        first = self._add()
        first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for number, name in enumerate(_ANNOTATIONS, 1):
            first.interned_data.debug_annotation_names.add(iid=number, name=name)
        for number, name in enumerate(("work", "stall"), 1):
            first.interned_data.event_categories.add(iid=number, name=name)

    def flush(self) -> None:
        """Write what has gathered; serialised traces, one behind another, are a trace."""
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        if self.waiting:
            self.file.write(self.builder.serialize())
        self.builder, self.waiting = TraceProtoBuilder(), 0

    def _add(self):
        if self.waiting == _AT_A_TIME:
            self.flush()
        self.waiting += 1
        packet = self.builder.add_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def track(self, name: str, parent: int | None = None) -> int:
        """Describe a track; its number."""
        descriptor = self._add().track_descriptor
        descriptor.uuid = next(self.uuids)
        descriptor.name = name
        descriptor.child_ordering = self.ordering
        descriptor.sibling_order_rank = descriptor.uuid
        if parent is not None:
            descriptor.parent_uuid = parent
        return descriptor.uuid

    def _event(self, track: int, time_fs: int, kind: int):
        packet = self._add()
        packet.timestamp = time_fs // FS_PER_NS
        packet.sequence_flags = self.needs_names
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return packet, event

    def _name(self, packet, event, name: str, values: list[int]) -> None:
        if name not in self.names:
            self.names[name] = len(self.names) + 1
            packet.interned_data.event_names.add(iid=self.names[name], name=name)
        event.name_iid = self.names[name]
        for number, value in enumerate(values, 3):
            event.debug_annotations.add(name_iid=number, int_value=value)

    def slice(self, track: int, name: str, category: str, start: int, end: int, values: list[int]) -> None:
        """A slice from start to end [fs]; values of _ANNOTATIONS from the third on."""
        packet, event = self._event(track, start, self.begin)
        event.category_iids.append(1 if category == "work" else 2)
        event.debug_annotations.add(name_iid=1, int_value=start)
        event.debug_annotations.add(name_iid=2, int_value=end - start)
        self._name(packet, event, name, values)
        self._event(track, end, self.end)

    def instant(self, track: int, name: str, time_fs: int, values: list[int]) -> None:
        """A moment [fs]."""
        packet, event = self._event(track, time_fs, self.moment)
        event.debug_annotations.add(name_iid=1, int_value=time_fs)
        self._name(packet, event, name, values)
