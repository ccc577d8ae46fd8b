"""One trace on many machines: what follows from the trace and sizes that machines share is made once."""

from __future__ import annotations

import collections
import json
from typing import TYPE_CHECKING

from ..trace import Trace
from .compile import Program, compile_trace
from .replay import Plan, plan_of, play_plan
from .result import Result
from .run import check_reach, pause_collection, result_of, simulate
from .schedule import schedule

if TYPE_CHECKING:
    from ..hardware_gpu import Gpu
    from ..hardware_model import Hardware

_KEPT = 2  # plans: one of a trace with a million bursts takes some tens of MB
# Fields of a machine that neither its jobs nor their order depend on.
_NOT_IN_PLAN = {"name", "description", "notes", "energy", "technology", "memory"}


class Replayer:
    """Plays a trace on machines, one after another; each result is what `simulate` gives, without spans.

    A machine that differs from the one before in its DRAM (of the same bursts), its energies or its gather engine's width and
    requests in flight shares the one's plan; any other has one made.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._plans: collections.OrderedDict[str, tuple[Program, Plan]] = collections.OrderedDict()

    def result(self, machine: Hardware | Gpu) -> Result:
        """Play it; errors as in `simulate`."""
        if not hasattr(machine, "memory") or not hasattr(machine, "gather"):
            return simulate(self.trace, machine)  # a GPU
        with pause_collection():
            program, plan = self._plan(machine)
            if machine.memory.model == "banks":
                check_reach(program, machine)
            return result_of(self.trace, machine, program, play_plan(plan, machine))

    def _plan(self, machine: Hardware) -> tuple[Program, Plan]:
        fields = machine.model_dump(exclude=_NOT_IN_PLAN)
        fields["gather"] = {"queue_items": machine.gather.queue_items}
        key = json.dumps([fields, machine.memory.burst_bytes], sort_keys=True)
        if key not in self._plans:
            while len(self._plans) >= _KEPT:
                self._plans.popitem(last=False)
            program = compile_trace(self.trace, machine)
            self._plans[key] = program, plan_of(schedule(program, machine), machine.memory.burst_bytes)
        self._plans.move_to_end(key)
        return self._plans[key]
