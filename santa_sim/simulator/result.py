"""What a simulated run says: time, energy, traffic, operations, and how they were made up."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    import matplotlib.figure
    import numpy as np
    import pandas as pd

    from ..hardware_gpu import Gpu
    from ..hardware_model import Hardware
    from ..trace import Trace
    from .machine import Run, Span

LEFT_OUT = ("output", "spans", "played")  # of to_dict: not JSON


@dataclasses.dataclass(frozen=True)
class Result:
    """One run on one machine.

    Attributes
    ----------
    workload, method, score, samples, samples_drawn, budget_k, budget_B, precision, seed : as in the trace's `meta`;
    None
        where the trace doesn't say
    hardware : str
    latency_s : float  [s]
    cycles : int  core clock cycles, rounded up
    energy_j : float  [J]  the sum (math.fsum) of energy_breakdown_j
    bound_by : str  the unit with the highest utilisation
    energy_breakdown_j : dict of str to float  [J]
    traffic_bytes : dict of str to int  [B]  whole DRAM bursts
    useful_bytes : dict of str to int  [B]  the bytes asked for
    sram_bytes : dict 'read', 'write' to int  [B]
    ops, accesses : dict of stage to dict of operation to int
    value_rows_unique_per_head, value_rows_unique_per_group : float  unions over the queries, averaged over sequences,
        layers and heads (groups)
    value_row_fraction : float  unique rows per group over n_k, averaged
    utilization : dict of unit to float in [0, 1]
    busy_s : dict of unit to float  [s]
    memory : dict  activates, bursts, peak and achieved bandwidth [B/s]
    buffer_peak : dict of buffer to int  [slots]
    stalls_fs : dict of unit to dict of cause to int  [fs]  what each unit did with its time, 'busy' included: sums to the
        latency, exactly; see `stalls`
    area_breakdown_m2 : dict of unit to float  [m^2]
    notes : list of str  assumptions and unknowns of this run
    energy_unknown : list of str  keys of energy_breakdown_j that nobody has a figure for; they count as 0 in energy_j
    error : dict or None  the output against exact attention
    output : array or None  the attention output, where the run computed one
    spans : list of Span or None  what each unit did when, if asked for
    played : (Trace, Hardware or Gpu) or None  what was played, to play it again for a timeline
    """

    workload: str | None
    method: str
    score: str
    samples: int | list[int] | None
    samples_drawn: int | list[int] | None
    budget_k: int | None
    budget_B: int | None
    hardware: str
    precision: str
    seed: int | None
    latency_s: float
    cycles: int
    energy_j: float
    bound_by: str
    energy_breakdown_j: dict[str, float]
    traffic_bytes: dict[str, int]
    useful_bytes: dict[str, int]
    sram_bytes: dict[str, int]
    ops: dict[str, dict[str, int]]
    accesses: dict[str, dict[str, int]]
    value_rows_unique_per_head: float
    value_rows_unique_per_group: float
    value_row_fraction: float
    utilization: dict[str, float]
    busy_s: dict[str, float]
    memory: dict[str, float]
    buffer_peak: dict[str, int]
    area_breakdown_m2: dict[str, float]
    notes: list[str]
    energy_unknown: list[str] = dataclasses.field(default_factory=list)
    error: dict[str, float] | None = None
    output: np.ndarray | list | None = dataclasses.field(default=None, repr=False)
    spans: list[Span] | None = dataclasses.field(default=None, repr=False)
    stalls_fs: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    played: tuple[Trace, Hardware | Gpu] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def area_m2(self) -> float | None:
        """Area of the machine's lanes and SRAM  [m^2], the sum of area_breakdown_m2; None on a GPU, whose areas nobody has published."""
        return math.fsum(self.area_breakdown_m2.values()) if self.area_breakdown_m2 else None

    def to_dict(self) -> dict:
        """All but `output`, `spans` and `played`, JSON-able, SI units."""
        fields = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in LEFT_OUT
        }
        return json.loads(json.dumps(fields))

    def to_frame(self) -> pd.DataFrame:
        """One row; nested fields become columns such as `energy_dram_read_j` and `traffic_k_read_bytes`."""
        import pandas as pd

        row = {}
        for name, value in self.to_dict().items():
            if name == "stalls_fs":  # a table of its own
                continue
            if isinstance(value, dict):
                row.update(_flat(name, value))
            else:
                row[name] = "; ".join(value) if name in ("notes", "energy_unknown") else value
        return pd.DataFrame([row])

    def save(self, path: str | Path) -> None:
        """Write `to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    def timeline(self, path: str | Path) -> None:
        """Write what every unit and DRAM channel did when, stalls named by cause, as a Perfetto trace.

        The trace is played again, to the same result, so that runs whose timeline nobody asks for don't keep one. Open the
        file at ui.perfetto.dev; see `santa_sim.simulator.timeline.write`.
        """
        from .timeline import write

        trace, machine = self._again("timeline")
        write(path, trace, machine, self._record(), self)

    def stalls(self, channels: bool = False) -> pd.DataFrame:
        """What each unit did with its time: a row for each unit and cause; a unit's times add up to the latency.

        Parameters
        ----------
        channels : also what each DRAM channel did, for which the trace is played again

        Returns
        -------
        DataFrame with `unit` ('requests' hands memory jobs over in order), `cause`, `what` (in words), `time_fs` (whole
        femtoseconds), `time_s`, `share` of the latency
        """
        from .stalls import table
        from .timeline import channel_times

        if channels or not self.stalls_fs:
            self._again("stalls")
        return table(self.stalls_fs | (channel_times(self._record()) if channels else {}))

    def _again(self, what: str) -> tuple[Trace, Hardware]:
        if self.memory.get("model") == "gpu":
            raise InputError(no_units(self.hardware, what))
        if self.played is None:
            raise InputError(
                f"this result of {self.hardware} has no {what}: no accelerator was played for it; "
                f"santa_sim.run or santa_sim.simulate on one gives results that do"
            )
        return self.played

    def _record(self) -> Run:
        from .run import record

        run = record(*self.played)
        if run.stalls_fs != self.stalls_fs:
            raise InputError("the trace or the machine of this result was changed after it was made: play it again")
        return run

    def plot(self) -> matplotlib.figure.Figure:
        """Energy by part and DRAM traffic by kind, a stack each; the figure isn't shown or saved."""
        from .plot import stacks

        return stacks(self)


def no_units(gpu: str, what: str) -> str:
    """Why a GPU has no timeline and no stalls, and what there is instead."""
    return (
        f"{gpu} is a GPU, whose model plays whole kernels, one after another, and no units that wait for each other: it has no {what}. "
        f"Result.busy_s has the time of each kernel and of what limits it, santa_sim.simulator.gpu.predict(trace, machine) a row for each "
        f"launch (docs/gpu.md); timelines and stalls are of accelerators, such as hardware='mac_hbm3'"
    )


def _flat(name: str, values: dict) -> dict:
    """{'energy_breakdown_j': {'sram': 1}} -> {'energy_sram_j': 1}: the unit of the field's name goes last."""
    stem, _, unit = name.replace("_breakdown", "").rpartition("_")
    if unit not in ("j", "bytes", "s", "fs", "m2"):
        stem, unit = name, ""
    flat = {}
    for key, value in values.items():
        column = f"{stem}_{key}"
        if isinstance(value, dict):
            flat.update({f"{column}_{inner}": number for inner, number in value.items()})
        else:
            flat[f"{column}_{unit}" if unit else column] = value
    return flat
