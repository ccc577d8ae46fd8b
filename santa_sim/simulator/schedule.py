"""The machine's program: which job each unit does after which, fixed before the run from the trace and the sizes alone.

One total order. All jobs are put into a single sequence, and every unit, the memory included, takes its jobs in that
sequence. A job waits only for jobs before it: those whose results it needs and those that free the buffer it needs. So the
first unfinished job can always go on: there is no deadlock. And since no decision depends on time, a unit that becomes
faster can only make everything earlier: there are no timing anomalies.

The sequence. Tiles of K go in trace order. What waits for results (gathers of V, spilled stash, merges of spilled partials,
write-backs) goes behind `lookahead_tiles` further tiles of K, first in first out, at most one of each kind per tile of K (two
value items after a selection, which itself takes up much of the next head), the rest at the end; earlier only where a buffer
would otherwise fill with work that nothing releases. Streams of V (dense) follow their tile of K, queries go as far ahead.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .compile import Group, Item, Program, Region, Rows
from .memory import cycles_fs

if TYPE_CHECKING:
    from ..hardware import Hardware

UNITS = ("dram", "score", "softmax", "stash_write", "stash_read", "budget", "selection", "sampler", "accumulate", "merge",
         "normalize", "output")  # fmt: skip
_PRODUCERS = ("softmax", "budget", "accumulate", "merge", "output")  # what they write back waits in a buffer each
_DELAYED = ("select", "selected", "stash_read", "value", "merge", *_PRODUCERS)


class Job:
    """One unit's work for one trace row.

    Attributes
    ----------
    unit : str
    row : int
    duration_fs : int  [fs]  (of a DRAM job: 0, the memory says)
    after : list of Job that must have finished
    takes, gives : list of (buffer, slots), taken before the start, given back at the end
    gives_at_start : list of (buffer, slots)
    regions, rows, write : what a DRAM job moves
    """

    __slots__ = ("after", "done", "duration_fs", "gives", "gives_at_start", "regions", "row", "rows", "takes", "unit", "write")

    def __init__(self, unit: str, row: int, duration_fs: int, after: list[Job], regions: list[Region] = (),
                 rows: Rows | None = None, write: bool = False) -> None:  # fmt: skip
        self.unit, self.row, self.duration_fs, self.after = unit, row, duration_fs, after
        self.takes, self.gives, self.gives_at_start = [], [], []
        self.regions, self.rows, self.write = regions, rows, write
        self.done = None  # the machine's event


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Jobs by unit in their order, and the capacity of each buffer in slots."""

    jobs: dict[str, list[Job]]
    capacities: dict[str, int]


def schedule(program: Program, hardware: Hardware) -> Schedule:
    """Put all jobs of a program into the order in which a machine does them."""
    builder = _Builder(program, hardware)
    builder.build()
    return Schedule(builder.jobs, builder.capacities)


class _Once:
    """Something that is put into the sequence at most once: when it is due, or now because it is needed."""

    __slots__ = ("action", "done", "due", "per_tile")

    def __init__(self, action: Callable[[], object], per_tile: int = 1) -> None:
        self.action, self.due, self.per_tile, self.done = action, 0, per_tile, False

    def now(self) -> None:
        if not self.done:
            self.done = True
            self.action()


class _State:
    """What is in the sequence of one group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.waits_for_all = bool(group.items["budget"] or group.items["select"])
        self.direct: dict[int, list[Item]] = {}  # tile -> value items that wait for that tile's scores alone
        if not self.waits_for_all:
            for value in group.items["value"]:
                self.direct.setdefault(value.tile, []).append(value)
        self.queries: list[Job] = []  # DRAM and sampler jobs that the scores wait for
        self.scored: dict[int, Job] = {}  # tile -> job after which its exponentials (or its stash) are there
        self.closed: Job | None = None  # budget, or softmax of the selected
        self.fetched: dict[int, tuple[Job, int]] = {}  # row of a value item -> DRAM job of its spilled stash, slots
        self.accumulated: list[Job] = []
        self.readers: dict[str, Job] = {}  # unit -> last job that needs what this group has on chip
        self.written: list[_Once] = []  # write-backs of stash and partials
        self.holds_half = self.holds_bank = False
        self.half_free: list[Job] = []  # what the first job that writes on chip waits for
        self.select = self.selected = self.merge = self.output = None  # _Once
        self.merged: Job | None = None
        self.normalized: Job | None = None


class _Builder:
    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.program, self.hw = program, hardware
        self.lookahead = hardware.lookahead_tiles
        self.jobs: dict[str, list[Job]] = {unit: [] for unit in UNITS}
        self.capacities = {
            "q_buffer": 2,
            "k_buffer": hardware.k_buffer.tiles,
            "v_buffer": hardware.v_buffer.tiles,
            "scores": hardware.score.queue_tiles,
            "weights": hardware.weights_buffer.tiles,
            "stash_reads": hardware.weights_buffer.tiles,
            "rows": hardware.gather.queue_items,
            "stash_tiles": hardware.sampler.queue_tiles,
            **{f"{unit}_writes": hardware.write_buffer.tiles for unit in _PRODUCERS},
            "output_writes": hardware.output.buffer_items,
        }
        self.held: dict[str, collections.deque] = {name: collections.deque() for name in self.capacities}
        self.used = dict.fromkeys(self.capacities, 0)
        self.queues: dict[str, collections.deque[_Once]] = {name: collections.deque() for name in _DELAYED}
        self.tiles = 0  # score items that are in the sequence
        self.states = [_State(group) for group in program.groups]
        self.values: dict[int, _Once] = {}
        for state in self.states:
            for value in state.group.items["value"]:
                pace = 2 if state.group.items["select"] else 1
                self.values[value.row] = _Once(lambda state=state, value=value: self._value(state, value), pace)
            state.select = _Once(lambda state=state: self._select(state))
            state.selected = _Once(lambda state=state: self._selected(state))
            state.merge = _Once(lambda state=state: self._merge(state))
            state.output = _Once(lambda state=state: self._output(state))
        self.half_before = _two_before([state for state in self.states if _uses_chip(state.group)])
        self.bank_before = _two_before([state for state in self.states if state.group.items["value"]])

    def build(self) -> None:
        for state, item, queries in self._base_order():
            if queries:
                self._queries(state, item)
            else:
                self.tiles += 1
                self._score(state, item)
                self._follow()
        for state in self.states:
            if not state.group.items["score"]:
                self._close(state)
        while any(self.queues.values()):  # no more K: as if it went on
            self.tiles += 1
            self._follow()

    def _base_order(self) -> list[tuple[_State, Item, bool]]:
        """Score items in trace order; before them (True) the queries of their group, `lookahead_tiles` ahead.

        At most two groups' queries are on chip, so a group's can't go before the last score of the group two before it.
        """
        order: list[list] = [[] for _ in self.program.scores]
        spans: dict[int, list[int]] = {}
        for place, (group, item) in enumerate(self.program.scores):
            spans.setdefault(group.number, [place, place])[1] = place
        lasts = [last for _, last in spans.values()]
        for n, (number, (first, _)) in enumerate(spans.items()):
            place = max(first - self.lookahead, lasts[n - 2] + 1 if n >= 2 else 0)
            order[place].append((self.states[number], self.program.scores[first][1], True))
        for place, (group, item) in enumerate(self.program.scores):
            order[place].append((self.states[group.number], item, False))
        return [entry for entries in order for entry in entries]

    def _add(self, job: Job) -> Job:
        self.jobs[job.unit].append(job)
        return job

    def _take(self, job: Job, buffer: str, slots: int, release: _Once | None = None) -> None:
        """`job` takes slots. `release`: what puts the job that gives them back into the sequence, if it isn't there."""
        while self.used[buffer] + slots > self.capacities[buffer]:
            freed, action = self.held[buffer].popleft()
            if action is not None:
                action.now()
            self.used[buffer] -= freed
        self.held[buffer].append((slots, release))
        self.used[buffer] += slots
        job.takes.append((buffer, slots))

    def _later(self, kind: str, once: _Once, tiles: int) -> _Once:
        """Queue something for when so many further tiles of K are in the sequence."""
        once.due = self.tiles + tiles
        self.queues[kind].append(once)
        return once

    def _follow(self) -> None:
        """A tile of K is in the sequence: of each kind of delayed work, a piece that is due follows."""
        for queue in self.queues.values():
            pieces = 0
            while queue and (queue[0].done or (queue[0].due <= self.tiles and pieces < queue[0].per_tile)):
                pieces += not queue[0].done
                queue.popleft().now()

    def _port_fs(self, nbytes: int) -> int:
        return cycles_fs(-(-nbytes // self.hw.stash.port_bytes_per_cycle), self.hw.clock_hz)

    def _port(self, unit: str, row: int, nbytes: int, after: list[Job]) -> Job:
        return self._add(Job(unit, row, self._port_fs(nbytes), after))

    # Score stage

    def _queries(self, state: _State, item: Item) -> None:
        regions = [region for region in item.reads if region.kind == "q_read"]
        if regions:
            fetch = Job("dram", item.row, 0, [], regions)
            self._take(fetch, "q_buffer", 1)
            state.queries.append(self._add(fetch))
        if item.durations["sampler"]:
            state.queries.append(self._add(Job("sampler", item.row, item.durations["sampler"], list(state.queries))))

    def _score(self, state: _State, item: Item) -> None:
        self._hold_half(state, item)
        scores = state.group.items["score"]
        regions = [region for region in item.reads if item is not scores[0] or region.kind != "q_read"]
        if item is not scores[0] and item.durations["sampler"]:
            state.queries.append(self._add(Job("sampler", item.row, item.durations["sampler"], list(state.queries))))
        score = Job("score", item.row, item.durations["score"], list(state.queries))
        if regions or item.gather is not None:
            slots = self.hw.k_buffer.slots(_useful_bytes(regions, item.gather))
            known = list(state.queries) if item.gather is not None else []
            fetch = Job("dram", item.row, 0, known, regions, item.gather)
            self._take(fetch, "k_buffer", slots)
            score.after.append(self._add(fetch))
            score.gives.append(("k_buffer", slots))
        if item is scores[-1] and any(job.unit == "dram" for job in state.queries):
            score.gives.append(("q_buffer", 1))
        self._take(score, "scores", 1)
        self._add(score)
        softmax = Job("softmax", item.row, item.durations["softmax"], [score])
        softmax.gives.append(("scores", 1))
        values = state.direct.get(item.tile, [])
        if values:  # the exponentials wait on chip for the value items of this tile
            self._take(softmax, "weights", self._weights_slots(item), _Once(lambda: self._now(values)))
        state.scored[item.tile] = self._produce(state, item, softmax)
        for value in values:
            self._queue_value(state, value)
        if item is scores[-1]:
            self._close(state)

    def _weights_slots(self, score: Item) -> int:
        return self.hw.weights_buffer.slots(4 * score.exponentials)

    def _now(self, values: list[Item]) -> None:
        for value in values:
            self.values[value.row].now()

    # On-chip stash and partials, and what doesn't fit there

    def _hold_half(self, state: _State, item: Item) -> None:
        """Before a group's first bytes go on chip: the group two before, which has that half, must be through with it.

        Called before any of the item's jobs: what this puts into the sequence must not wait for them.
        """
        if item.chip_write and not state.holds_half:
            state.holds_half = True
            before = self.half_before.get(state.group.number)
            if before is not None:
                self._finish(before)
                state.half_free = list(before.readers.values())

    def _produce(self, state: _State, item: Item, job: Job) -> Job:
        """Add a job that makes stash or partials (or none); the job after which they are there."""
        if item.chip_write:
            job.after = [*job.after, *state.half_free]
            state.half_free = []
        if item.writes:
            self._write_back(item, job, self.hw.write_buffer.slots(_useful_bytes(item.writes, None)), state)
        self._add(job)
        return self._port("stash_write", item.row, item.chip_write, [job]) if item.chip_write else job

    def _write_back(self, item: Item, job: Job, slots: int, state: _State, further_tiles: int = 0) -> None:
        buffer = f"{job.unit}_writes"
        write = Job("dram", item.row, 0, [job], item.writes, write=True)
        write.gives.append((buffer, slots))
        once = self._later(job.unit, _Once(lambda: self._add(write)), self.lookahead + further_tiles)
        self._take(job, buffer, slots, once)
        state.written.append(once)

    def _consume(self, state: _State, item: Item, ready: list[Job]) -> list[Job]:
        """What a job that reads stash or partials waits for: `ready`, and its bytes from the chip and from DRAM."""
        if item.reads:
            for write in state.written:
                write.now()
            ready = [*ready, self._add(Job("dram", item.row, 0, [], item.reads))]
        return [self._port("stash_read", item.row, item.chip_read, ready)] if item.chip_read else ready

    def _consumed(self, state: _State, item: Item, job: Job) -> None:
        if item.chip_read:
            state.readers[job.unit] = job

    def _finish(self, state: _State) -> None:
        """Put all that is left of a group into the sequence now, except its write-backs."""
        if state.group.items["select"]:
            state.select.now()
            state.selected.now()
        self._now(state.group.items["value"])
        state.merge.now()
        state.output.now()

    # Budget and selection

    def _close(self, state: _State) -> None:
        """All scores of a group are in the sequence."""
        items = state.group.items
        if items["select"]:
            spilled = bool(items["select"][0].reads)
            self._later("select", state.select, self.lookahead + 1) if spilled else state.select.now()
            return
        if items["budget"]:
            item = items["budget"][0]
            self._hold_half(state, item)
            job = Job("budget", item.row, item.durations["budget"], self._consume(state, item, _latest(state.scored.values())))
            state.closed = self._produce(state, item, job)
            self._consumed(state, item, job)
            for value in items["value"]:
                self._queue_value(state, value)
        self._values_done(state)

    def _select(self, state: _State) -> None:
        item = state.group.items["select"][0]
        ready = self._consume(state, item, _latest(state.scored.values()))
        state.closed = self._add(Job("selection", item.row, item.durations["selection"], ready))
        self._consumed(state, item, state.closed)
        self._later("selected", state.selected, self.hw.selection.lookahead_tiles)

    def _selected(self, state: _State) -> None:
        item = state.group.items["select"][0]
        self._hold_half(state, item)
        softmax = Job("softmax", item.row, item.durations["softmax"], [state.closed])
        state.closed = self._produce(state, item, softmax)
        for value in state.group.items["value"]:
            self._queue_value(state, value, 0)
        self._values_done(state)

    # Value stage

    def _queue_value(self, state: _State, value: Item, delay: int | None = None) -> None:
        """What a value item waits for is in the sequence: add the item, or queue it."""
        once = self.values[value.row]
        spilled = [region for region in value.reads if region.kind != "v_read"]
        if once.done:
            return
        if value.gather is None and len(spilled) < len(value.reads):
            once.now()  # dense: V streams behind K
        elif spilled:  # its stash comes first, its rows when that is there
            self._later("stash_read", _Once(lambda: self._fetch_stash(state, value, once)), 0)
        else:
            self._later("value", once, self.lookahead if delay is None else delay)

    def _fetch_stash(self, state: _State, value: Item, once: _Once | None = None) -> None:
        """Read the spilled stash of a value item into slots that it holds until its sampling is done."""
        if value.row not in state.fetched:
            for write in state.written:
                write.now()
            spilled = [region for region in value.reads if region.kind != "v_read"]
            slots = self.hw.weights_buffer.slots(_useful_bytes(spilled, None))
            fetch = Job("dram", value.row, 0, [], spilled)
            self._take(fetch, "stash_reads", slots, self.values[value.row])
            state.fetched[value.row] = (self._add(fetch), slots)
        if once is not None and not once.done:
            self._later("value", once, self.lookahead)

    def _value(self, state: _State, value: Item) -> None:
        self._hold_half(state, value)
        bank_free = self._hold_bank(state)
        known = [state.closed] if state.waits_for_all else [state.scored[value.tile]]
        fetched = slots = None
        if any(region.kind != "v_read" for region in value.reads):
            self._fetch_stash(state, value)
            fetched, slots = state.fetched[value.row]
            known.append(fetched)
        accumulate = Job("accumulate", value.row, value.durations["accumulate"], [])
        last_use = accumulate  # of its exponentials: dense values are multiplied with them, sampled ones only count
        if value.chip_read:
            read = Job("stash_read", value.row, self._port_fs(value.chip_read), known)
            self._take(read, "stash_tiles", 1)
            known = [self._add(read)]
        if value.gather is not None or value.durations["sampler"]:
            sampler = Job("sampler", value.row, value.durations["sampler"], known)
            if value.gather is not None:
                last_use = sampler
                self._take(sampler, "rows", 1)
            known = [self._add(sampler)]
        accumulate.after = [*known, *bank_free]
        if value.chip_read:
            last_use.gives.append(("stash_tiles", 1))
            state.readers[last_use.unit] = last_use
        if fetched is not None:
            last_use.gives.append(("stash_reads", slots))
        if value.tile in state.direct:
            state.direct[value.tile] = [other for other in state.direct[value.tile] if other is not value]
            if not state.direct[value.tile]:
                last_use.gives.append(("weights", self._weights_slots(state.group.by_tile[value.tile])))
        regions = [region for region in value.reads if region.kind == "v_read"]
        if regions or value.gather is not None:
            slots = self.hw.v_buffer.slots(_useful_bytes(regions, value.gather))
            fetch = Job("dram", value.row, 0, known if value.gather is not None else [], regions, value.gather)
            if value.gather is not None:
                fetch.gives_at_start.append(("rows", 1))
            self._take(fetch, "v_buffer", slots)
            accumulate.after.append(self._add(fetch))
            accumulate.gives.append(("v_buffer", slots))
        state.accumulated.append(self._produce(state, value, accumulate))
        self._values_done(state)

    def _hold_bank(self, state: _State) -> list[Job]:
        """Before a group's first value: accumulators are double-buffered, the group two before must be normalised."""
        if state.holds_bank:
            return []
        state.holds_bank = True
        before = self.bank_before.get(state.group.number)
        if before is None:
            return []
        self._finish(before)
        return [before.normalized or before.merged or before.accumulated[-1]]

    # Merge and output

    def _values_done(self, state: _State) -> None:
        """If all values of a group are in the sequence, so is its merge, or it is queued."""
        if len(state.accumulated) < len(state.group.items["value"]):
            return
        if any(region.kind == "partials_read" for merge in state.group.items["merge"] for region in merge.reads):
            self._later("merge", state.merge, self.lookahead + 1)
        else:
            state.merge.now()

    def _merge(self, state: _State) -> None:
        for item in state.group.items["merge"]:
            self._hold_half(state, item)
            ready = self._consume(state, item, self._valued(state))
            job = Job("merge", item.row, item.durations["merge"], ready)
            state.merged = self._produce(state, item, job)
            self._consumed(state, item, job)
        state.output.now()

    def _valued(self, state: _State) -> list[Job]:
        """What stands for all value items, or for what came before where there are none."""
        if state.accumulated:
            return _latest(state.accumulated)
        return [state.closed] if state.closed is not None else _latest(state.scored.values())

    def _output(self, state: _State) -> None:
        for item in state.group.items["output"]:
            ready = self._consume(state, item, [state.merged] if state.merged is not None else self._valued(state))
            state.normalized = self._add(Job("normalize", item.row, item.durations["normalize"], ready))
            self._consumed(state, item, state.normalized)
            if item.writes:
                cycles = -(-_useful_bytes(item.writes, None) // self.hw.output.port_bytes_per_cycle)
                output = Job("output", item.row, cycles_fs(cycles, self.hw.clock_hz), [state.normalized])
                self._write_back(item, output, 1, state, self.hw.merge.lookahead_tiles if state.merged is not None else 0)
                self._add(output)


def _useful_bytes(regions: list[Region], rows: Rows | None) -> int:
    return sum(region.useful_bytes for region in regions) + (rows.useful_bytes if rows is not None else 0)


def _latest(jobs: Iterable[Job]) -> list[Job]:
    """The last job of each unit: units finish in order, so it stands for those before it."""
    return list({job.unit: job for job in jobs}.values())


def _uses_chip(group: Group) -> bool:
    return any(item.chip_write for items in group.items.values() for item in items)


def _two_before(states: list[_State]) -> dict[int, _State]:
    return {state.group.number: before for before, state in zip(states, states[2:])}
