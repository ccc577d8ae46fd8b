"""One trace on many machines: what follows from the trace and sizes that machines share is made once."""

from __future__ import annotations

import collections
import dataclasses
import json
from typing import TYPE_CHECKING

import numpy as np

from ..trace import Trace
from .compile import OPERATIONS, Program, check_units, compile_trace, cycles_by_unit
from .machine import Run
from .memory import FS_PER_S
from .orders import fastest, fitting
from .plan import Plan, Requests, plan_of
from .replay import end_fs, play_plan
from .result import Result
from .run import check_reach, pause_collection, result_of, simulate
from .steady import Steady, is_steady, steady

if TYPE_CHECKING:
    from ..hardware_gpu import Gpu
    from ..hardware_model import Hardware

_RATES = 1000  # of memories
_KEPT = 2  # plans: one of a trace with a million bursts takes some tens of MB
# Fields of a machine that neither its jobs nor their order depend on.
_NOT_IN_PLAN = {"name", "description", "notes", "energy", "technology", "memory"}
# Of these units, the fields that count: lanes make jobs shorter, not others.
_KEPT_OF = {
    "gather": ("queue_items",), "score": ("queue_tiles",), "softmax": (), "budget": (), "selection": ("lookahead_tiles",),
    "sampler": ("queue_tiles",), "accumulate": (), "merge": ("lookahead_tiles",), "normalize": (),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Made:
    """A program, a plan of each order that fits, and with addresses those that were followed."""

    program: Program
    plans: list[Plan]
    ready: dict[int, Plan]


class Replayer:
    """Plays a trace on machines, one after another; each result is what `simulate` gives, without spans.

    A machine that differs from the one before in its DRAM (of the same bursts), its energies, lanes or requests in flight shares
    the one's plan; any other has one made.

    Parameters
    ----------
    shortcut : bank-level memories as their rate on this trace's requests, measured once for each DRAM, where the
        stream is steady (see `steady`); the result's notes then say so
    """

    def __init__(self, trace: Trace, shortcut: bool = False) -> None:
        self.trace, self.shortcut = trace, shortcut
        self._rates: dict[str, Steady] = {}
        self._stages = trace.items["stage"].to_numpy().astype(str)
        self._selects = bool((self._stages == "select").any())  # all rows of a head are asked for at once
        self._counters = {name: trace.items[name].to_numpy().astype(np.int64, copy=False) for name in OPERATIONS}
        self._plans: collections.OrderedDict[str, _Made] = collections.OrderedDict()

    def result(self, machine: Hardware | Gpu) -> Result:
        """Play it; errors as in `simulate`."""
        if not hasattr(machine, "memory") or not hasattr(machine, "gather"):
            return simulate(self.trace, machine)  # a GPU
        with pause_collection():
            program, shared, plan = self._plan(machine)
            if machine.memory.model == "banks":
                check_reach(program, machine)
            rate = self._rate(shared, machine) if self.shortcut and machine.memory.model == "banks" else None
            result = result_of(self.trace, machine, program, play_plan(plan, machine, rate))
        if rate is not None:
            notes = [*result.notes, "DRAM shortcut: its rate on a sample of this trace's requests stands for the banks"]
            return dataclasses.replace(result, notes=notes, memory={**result.memory, "model": "steady"})
        return result

    def played(self, machine: Hardware) -> tuple[Program, Run]:
        """A trace's program on an accelerator, and what its run measured, for whoever accounts for it anew (`run.result_of`)."""
        with pause_collection():
            program, _, plan = self._plan(machine)
            return program, play_plan(plan, machine)

    def _rate(self, plan: Plan, machine: Hardware) -> Steady | None:
        """The rate of a machine's DRAM, measured once for each DRAM; None where it must be played in full."""
        gathered, bursts = len(plan.tables.gather), len(plan.tables.gather) + len(plan.tables.stream)
        if (gathered and self._selects) or not is_steady(machine, bursts, gathered, plan.widest_row):
            return None
        key = json.dumps([machine.memory.model_dump(), plan.requests_digest])
        if key not in self._rates:
            if len(self._rates) >= _RATES:
                self._rates.clear()
            self._rates[key] = steady(plan, machine.memory.config, round(machine.memory.controller_latency_s * FS_PER_S))
        return self._rates[key]

    def _plan(self, machine: Hardware) -> tuple[Program, Plan, Plan]:
        """A machine's program, the plan that it follows as it is shared, and with this machine's cycles."""
        fields = machine.model_dump(exclude=_NOT_IN_PLAN)
        for unit, kept in _KEPT_OF.items():
            fields[unit] = None if fields[unit] is None else {name: fields[unit][name] for name in kept}
        key = json.dumps([fields, machine.memory.burst_bytes], sort_keys=True)
        if key not in self._plans:
            while len(self._plans) >= _KEPT:
                self._plans.popitem(last=False)
            program = compile_trace(self.trace, machine)
            requests = Requests(machine.memory.burst_bytes)
            self._plans[key] = _Made(program, [plan_of(each, requests) for each in fitting(program, machine)], {})
        else:
            check_units(self._stages, self._counters, self.trace, machine)
        self._plans.move_to_end(key)
        made, plain = self._plans[key], machine.on_bandwidth()
        cycles = cycles_by_unit(self._stages, self._counters, machine)
        chosen = fastest(made.plans, lambda plan: end_fs(plan.with_cycles(cycles, machine.clock_hz), plain), machine)
        if chosen not in made.ready:
            made.ready[chosen] = made.plans[chosen].with_addresses()
        plan = made.ready[chosen]
        return made.program, plan, plan.with_cycles(cycles, machine.clock_hz)
