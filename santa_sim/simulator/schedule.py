"""The machine's program: which job each unit does after which, fixed before the run from the trace and the sizes alone.

One total order. All jobs are put into a single sequence, and every unit, the memory included, takes its jobs in that
sequence. A job waits only for jobs before it: those whose results it needs and those that free the buffer it needs.
So the first unfinished job can always go on: there is no deadlock. And since no decision depends on time, a unit that
becomes faster can only make everything earlier: there are no timing anomalies.

The sequence. Tiles of K go in trace order. What waits for results (gathers of V, spilled stash, merges of spilled
partials, write-backs) goes behind `lookahead_tiles` further tiles of K, first in first out, at most one of each kind
per tile of K (two value items after a selection, which itself takes up much of the next head), the rest at the end;
earlier only where more would wait than `Waiting` lets. Streams of V (dense) follow their tile of K, queries go as far
ahead. Which `Waiting` a machine has: see `orders`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .compile import Group, Item, Program, Region, Rows
from .groups import GroupState
from .jobs import Job, Once, Schedule, Sequence, latest
from .memory import cycles_fs
from .rooms import PRODUCERS, Waiting, capacities

if TYPE_CHECKING:
    from ..hardware_model import Hardware

UNITS = ("dram", "score", "softmax", "stash_write", "stash_read", "budget", "selection", "sampler", "accumulate",
         "merge", "normalize", "output")  # fmt: skip
_DELAYED = ("select", "selected", "stash_read", "sample", "value", "merge", *PRODUCERS)


def schedule(program: Program, hardware: Hardware, waiting: Waiting = Waiting()) -> Schedule:
    """Put all jobs of a program into one order, which depends on the machine's look-aheads alone; whether the machine has room
    for it is in `fits`."""
    builder = _Builder(program, hardware, waiting)
    builder.build()
    sequence = builder.sequence
    return Schedule(sequence.jobs, builder.capacities, sequence.fits, frozenset(sequence.full))


class _Builder:
    def __init__(self, program: Program, hardware: Hardware, waiting: Waiting) -> None:
        self.program, self.hw = program, hardware
        self.lookahead = hardware.lookahead_tiles
        self.capacities = capacities(hardware)
        self.sequence = Sequence(UNITS, self.capacities, _DELAYED, waiting.limits)
        self.states = [GroupState(group) for group in program.groups]
        self.samples: dict[int, Once] = {}  # row of a value item -> its sampling
        self.values: dict[int, Once] = {}  # row -> its rows and their accumulation
        for state in self.states:
            for value in state.group.items["value"]:
                pace = 2 if state.group.items["select"] else 1
                self.samples[value.row] = Once(lambda state=state, value=value: self._sample(state, value), pace)
                self.values[value.row] = Once(lambda state=state, value=value: self._value(state, value), pace)
            state.select = Once(lambda state=state: self._select(state))
            state.selected = Once(lambda state=state: self._selected(state))
            state.merge = Once(lambda state=state: self._merge(state))
            state.output = Once(lambda state=state: self._output(state))
        self.half_before = _two_before([state for state in self.states if _uses_chip(state.group)])
        self.bank_before = _two_before([state for state in self.states if state.group.items["value"]])

    def build(self) -> None:
        for state, item, queries in self._base_order():
            if queries:
                self._queries(state, item)
            else:
                self.sequence.tiles += 1
                self._score(state, item)
                self.sequence.follow()
        for state in self.states:
            if not state.group.items["score"]:
                self._close(state)
        self.sequence.drain()

    def _base_order(self) -> list[tuple[GroupState, Item, bool]]:
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

    def _port_fs(self, nbytes: int) -> int:
        return cycles_fs(-(-nbytes // self.hw.stash.port_bytes_per_cycle), self.hw.clock_hz)

    def _port(self, unit: str, row: int, nbytes: int, after: list[Job]) -> Job:
        return self.sequence.add(Job(unit, row, self._port_fs(nbytes), after))

    # Score stage

    def _queries(self, state: GroupState, item: Item) -> None:
        regions = [region for region in item.reads if region.kind == "q_read"]
        if regions:
            fetch = Job("dram", item.row, 0, [], regions)
            self.sequence.take(fetch, "q_buffer", 1)
            state.queries.append(self.sequence.add(fetch))
        if item.durations["sampler"]:
            state.queries.append(
                self.sequence.add(Job("sampler", item.row, item.durations["sampler"], list(state.queries)))
            )

    def _score(self, state: GroupState, item: Item) -> None:
        self._hold_half(state, item)
        scores = state.group.items["score"]
        regions = [region for region in item.reads if item is not scores[0] or region.kind != "q_read"]
        if item is not scores[0] and item.durations["sampler"]:
            state.queries.append(
                self.sequence.add(Job("sampler", item.row, item.durations["sampler"], list(state.queries)))
            )
        score = Job("score", item.row, item.durations["score"], list(state.queries))
        if regions or item.gather is not None:
            slots = self.hw.k_buffer.slots(_useful_bytes(regions, item.gather))
            known = list(state.queries) if item.gather is not None else []
            fetch = Job("dram", item.row, 0, known, regions, item.gather)
            self.sequence.take(fetch, "k_buffer", slots)
            score.after.append(self.sequence.add(fetch))
            score.gives.append(("k_buffer", slots))
        if item is scores[-1] and any(job.unit == "dram" for job in state.queries):
            score.gives.append(("q_buffer", 1))
        self.sequence.take(score, "scores", 1)
        self.sequence.add(score)
        softmax = Job("softmax", item.row, item.durations["softmax"], [score])
        softmax.gives.append(("scores", 1))
        values = state.direct.get(item.tile, [])
        if values:  # the exponentials wait on chip for the value items of this tile
            self.sequence.take(softmax, "weights", self._weights_slots(item), self._inputs(values))
        state.scored[item.tile] = self._produce(state, item, softmax)
        for value in values:
            self._queue_value(state, value)
        if item is scores[-1]:
            self._close(state)

    def _weights_slots(self, score: Item) -> int:
        return self.hw.weights_buffer.slots(4 * score.exponentials)

    def _inputs(self, values: list[Item]) -> Once:
        """What frees the exponentials of some value items."""
        users = self._users(values)
        return Once(lambda: self._use_inputs(values), through=lambda: all(user.done for user in users))

    def _use_inputs(self, values: list[Item]) -> None:
        for user in self._users(values):
            user.now()

    def _users(self, values: list[Item]) -> list[Once]:
        """Sampling, or products where there is none."""
        return [(self.values if value.gather is None else self.samples)[value.row] for value in values]

    # On-chip stash and partials, and what doesn't fit there

    def _hold_half(self, state: GroupState, item: Item) -> None:
        """Before a group's first bytes go on chip: the group two before, which has that half, must be through with it.

        Called before any of the item's jobs: what this puts into the sequence must not wait for them.
        """
        if item.chip_write and not state.holds_half:
            state.holds_half = True
            before = self.half_before.get(state.group.number)
            if before is not None:
                if any(item.chip_read for stage in ("merge", "output") for item in before.group.items[stage]):
                    self._finish(before)
                else:
                    self._choose(before)
                    self._use_inputs(before.group.items["value"])
                state.half_free = list(before.readers.values())

    def _produce(self, state: GroupState, item: Item, job: Job) -> Job:
        """Add a job that makes stash or partials (or none); the job after which they are there."""
        if item.chip_write:
            job.after = [*job.after, *state.half_free]
            state.half_free = []
        if item.writes:
            self._write_back(item, job, self.hw.write_buffer.slots(_useful_bytes(item.writes, None)), state)
        self.sequence.add(job)
        return self._port("stash_write", item.row, item.chip_write, [job]) if item.chip_write else job

    def _write_back(self, item: Item, job: Job, slots: int, state: GroupState, further_tiles: int = 0) -> None:
        buffer = f"{job.unit}_writes"
        write = Job("dram", item.row, 0, [job], item.writes, write=True)
        write.gives.append((buffer, slots))
        once = self.sequence.later(job.unit, Once(lambda: self.sequence.add(write)), self.lookahead + further_tiles)
        self.sequence.take(job, buffer, slots, once)
        state.written.append(once)

    def _consume(self, state: GroupState, item: Item, ready: list[Job]) -> list[Job]:
        """What a job that reads stash or partials waits for: `ready`, and its bytes from the chip and from DRAM."""
        if item.reads:
            for write in state.written:
                write.now()
            ready = [*ready, self.sequence.add(Job("dram", item.row, 0, [], item.reads))]
        return [self._port("stash_read", item.row, item.chip_read, ready)] if item.chip_read else ready

    def _consumed(self, state: GroupState, item: Item, job: Job) -> None:
        if item.chip_read:
            state.readers[job.unit] = job

    def _finish(self, state: GroupState) -> None:
        """Put all that is left of a group into the sequence now, except its write-backs."""
        self._choose(state)
        for value in state.group.items["value"]:
            self.values[value.row].now()
        state.merge.now()
        state.output.now()

    def _choose(self, state: GroupState) -> None:
        if state.group.items["select"]:
            state.select.now()
            state.selected.now()

    # Budget and selection

    def _close(self, state: GroupState) -> None:
        """All scores of a group are in the sequence."""
        items = state.group.items
        if items["select"]:
            spilled = bool(items["select"][0].reads)
            self.sequence.later("select", state.select, self.lookahead + 1) if spilled else state.select.now()
            return
        if items["budget"]:
            item = items["budget"][0]
            self._hold_half(state, item)
            job = Job(
                "budget", item.row, item.durations["budget"], self._consume(state, item, latest(state.scored.values()))
            )
            state.closed = self._produce(state, item, job)
            self._consumed(state, item, job)
            for value in items["value"]:
                self._queue_value(state, value)
        self._values_done(state)

    def _select(self, state: GroupState) -> None:
        item = state.group.items["select"][0]
        ready = self._consume(state, item, latest(state.scored.values()))
        state.closed = self.sequence.add(Job("selection", item.row, item.durations["selection"], ready))
        self._consumed(state, item, state.closed)
        self.sequence.later("selected", state.selected, self.hw.selection.lookahead_tiles)

    def _selected(self, state: GroupState) -> None:
        item = state.group.items["select"][0]
        self._hold_half(state, item)
        softmax = Job("softmax", item.row, item.durations["softmax"], [state.closed])
        state.closed = self._produce(state, item, softmax)
        for value in state.group.items["value"]:
            self._queue_value(state, value, 0)
        self._values_done(state)

    # Value stage

    def _queue_value(self, state: GroupState, value: Item, delay: int | None = None) -> None:
        """What a value item waits for is in the sequence: add the item, or queue its parts."""
        spilled = [region for region in value.reads if region.kind != "v_read"]
        if self.values[value.row].done:
            return
        if _dense(value):
            self.values[value.row].now()  # V streams behind K
        elif spilled:  # its stash comes first, its rows when that is there
            self.sequence.later("stash_read", Once(lambda: self._fetch_stash(state, value)), 0)
        else:
            self._queue_rows(value, self.lookahead if delay is None else delay)

    def _queue_rows(self, value: Item, delay: int) -> None:
        if value.gather is not None and not self.samples[value.row].done:
            self.sequence.later("sample", self.samples[value.row], 0)
        if not self.values[value.row].done:
            self.sequence.later("value", self.values[value.row], delay)

    def _fetch_stash(self, state: GroupState, value: Item) -> None:
        """Read the spilled stash of a value item into slots that it holds until its sampling is done."""
        if value.row in state.fetched:
            return
        for write in state.written:
            write.now()
        spilled = [region for region in value.reads if region.kind != "v_read"]
        slots = self.hw.weights_buffer.slots(_useful_bytes(spilled, None))
        fetch = Job("dram", value.row, 0, [], spilled)
        self.sequence.take(fetch, "stash_reads", slots, self._inputs([value]))
        state.fetched[value.row] = (self.sequence.add(fetch), slots)
        self._queue_rows(value, self.lookahead)

    def _sample(self, state: GroupState, value: Item) -> None:
        """Read a value item's exponentials and sample; its rows then wait to be asked for."""
        self._choose(state)
        self._hold_half(state, value)
        self._hold_bank(state)
        known = [state.closed] if state.waits_for_all else [state.scored[value.tile]]
        if any(region.kind != "v_read" for region in value.reads):
            self._fetch_stash(state, value)
            known.append(state.fetched[value.row][0])
        if value.chip_read:
            read = Job("stash_read", value.row, self._port_fs(value.chip_read), known)
            self.sequence.take(read, "stash_tiles", 1)
            known = [self.sequence.add(read)]
        sampler = None
        if not _dense(value) and (
            value.gather is not None or value.durations["sampler"] or value.reads or value.chip_read
        ):
            sampler = Job("sampler", value.row, value.durations["sampler"], known)
            if value.gather is not None:
                self.sequence.take(sampler, "rows", 1, self.values[value.row])
            self._free_inputs(state, value, sampler)
            known = [self.sequence.add(sampler)]
        state.sampled[value.row] = known, sampler

    def _free_inputs(self, state: GroupState, value: Item, job: Job) -> None:
        """`job` is the last to use the exponentials of a value item."""
        if value.chip_read:
            job.gives.append(("stash_tiles", 1))
            state.readers[job.unit] = job
        if value.row in state.fetched:
            job.gives.append(("stash_reads", state.fetched[value.row][1]))
        if value.tile in state.direct:
            state.direct[value.tile] = [other for other in state.direct[value.tile] if other is not value]
            if not state.direct[value.tile]:
                job.gives.append(("weights", self._weights_slots(state.group.by_tile[value.tile])))

    def _value(self, state: GroupState, value: Item) -> None:
        """Ask for the rows of a value item and accumulate them."""
        self.samples[value.row].now()
        known, sampler = state.sampled[value.row]
        accumulate = Job("accumulate", value.row, value.durations["accumulate"], [*known, *state.bank_free])
        state.bank_free = []
        if sampler is None:
            self._free_inputs(state, value, accumulate)
        regions = [region for region in value.reads if region.kind == "v_read"]
        if regions or value.gather is not None:
            slots = self.hw.v_buffer.slots(_useful_bytes(regions, value.gather))
            fetch = Job("dram", value.row, 0, known if value.gather is not None else [], regions, value.gather)
            if value.gather is not None:
                fetch.gives_at_start.append(("rows", 1))
            self.sequence.take(fetch, "v_buffer", slots)
            accumulate.after.append(self.sequence.add(fetch))
            accumulate.gives.append(("v_buffer", slots))
        state.accumulated.append(self._produce(state, value, accumulate))
        self._values_done(state)

    def _hold_bank(self, state: GroupState) -> None:
        """Before a group's first value: accumulators are double-buffered, the group two before must be normalised."""
        if state.holds_bank:
            return
        state.holds_bank = True
        before = self.bank_before.get(state.group.number)
        if before is not None:
            self._finish(before)
            state.bank_free = [before.normalized or before.merged or before.accumulated[-1]]

    # Merge and output

    def _values_done(self, state: GroupState) -> None:
        """If all values of a group are in the sequence, so is its merge, or it is queued."""
        if len(state.accumulated) < len(state.group.items["value"]):
            return
        if any(region.kind == "partials_read" for merge in state.group.items["merge"] for region in merge.reads):
            self.sequence.later("merge", state.merge, self.lookahead + 1)
        else:
            state.merge.now()

    def _merge(self, state: GroupState) -> None:
        for item in state.group.items["merge"]:
            self._hold_half(state, item)
            ready = self._consume(state, item, self._valued(state))
            job = Job("merge", item.row, item.durations["merge"], ready)
            state.merged = self._produce(state, item, job)
            self._consumed(state, item, job)
        state.output.now()

    def _valued(self, state: GroupState) -> list[Job]:
        """What stands for all value items, or for what came before where there are none."""
        if state.accumulated:
            return latest(state.accumulated)
        return [state.closed] if state.closed is not None else latest(state.scored.values())

    def _output(self, state: GroupState) -> None:
        for item in state.group.items["output"]:
            ready = self._consume(state, item, [state.merged] if state.merged is not None else self._valued(state))
            state.normalized = self.sequence.add(Job("normalize", item.row, item.durations["normalize"], ready))
            self._consumed(state, item, state.normalized)
            if item.writes:
                cycles = -(-_useful_bytes(item.writes, None) // self.hw.output.port_bytes_per_cycle)
                output = Job("output", item.row, cycles_fs(cycles, self.hw.clock_hz), [state.normalized])
                self._write_back(
                    item, output, 1, state, self.hw.merge.lookahead_tiles if state.merged is not None else 0
                )
                self.sequence.add(output)


def _dense(value: Item) -> bool:
    """It streams V, all of it, instead of gathering rows."""
    return value.gather is None and any(region.kind == "v_read" for region in value.reads)


def _useful_bytes(regions: list[Region], rows: Rows | None) -> int:
    return sum(region.useful_bytes for region in regions) + (rows.useful_bytes if rows is not None else 0)


def _uses_chip(group: Group) -> bool:
    return any(item.chip_write for items in group.items.values() for item in items)


def _two_before(states: list[GroupState]) -> dict[int, GroupState]:
    return {state.group.number: before for before, state in zip(states, states[2:])}
