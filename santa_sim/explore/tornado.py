"""How sure a comparison of energies is: one input after another at the ends of its spread, the ratio that results.

Latencies don't depend on energies, so each machine is played once and only its accounting is repeated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pydantic

from ..errors import InputError
from ..hardware_model import Hardware
from ..report import without_unknown
from ..schema import Model, TextOrReal, read_yaml, validate
from ..simulator.energy import EnergyTable, scaled
from ..simulator.replayer import Replayer
from ..simulator.result import Result
from ..simulator.run import result_of

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd

_DRAM = ("dram_activate", "dram_read", "dram_write")
Factor = Annotated[TextOrReal, pydantic.Field(ge=0, le=100)]


class Input(Model):
    """An energy figure, or several that move together, and how far it may be off: factors, and why."""

    name: str
    entries: tuple[str, ...]
    low: Factor
    high: Factor
    source: str


class Node(Model):
    """A technology node that logic and SRAM are scaled to."""

    node_nm: int
    supply_v: TextOrReal


class Spread(Model):
    """The inputs of a tornado plot."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...] = ()


@functools.lru_cache(maxsize=1)
def spread() -> Spread:
    """The shipped inputs, hwmodels/uncertainty/energy.yaml."""
    path = Path(str(resources.files("santa_sim.hwmodels"))) / "uncertainty" / "energy.yaml"
    return validate(Spread, read_yaml(path), str(path))


def tornado(first: Result, second: Result, parts: tuple[str, ...] | None = None, inputs: Spread | None = None) -> pd.DataFrame:
    """The energy of one run over that of another, with each input at its low and its high end, and at other nodes.

    Parameters
    ----------
    first, second : results of `santa_sim.run` or `simulate` on accelerators; below 1 the first takes less
    parts : keys of `energy_breakdown_j` that count, such as ('accumulate', 'normalize'); None: all of them
    inputs : see hwmodels/uncertainty/energy.yaml, which is the default

    Returns
    -------
    DataFrame, widest bar first: `input`, `low`, `high` (factors on the figure), `ratio_low`, `ratio_high`, `ratio` (nominal),
    `survives` (both ends say the same winner as the nominal figures), `source`. `.attrs['unknown']`: parts that nobody has a
    figure for on either machine, which count as 0 on both.

    Raises
    ------
    InputError
        A result doesn't say what it was played on (GPUs, results read from files), a part doesn't exist, or its energy is
        known on one machine alone.
    """
    import pandas as pd

    runs = [_Played(result, parts) for result in (first, second)]
    unknown = _unknown(*runs)
    given = inputs or spread()
    nominal = _ratio(runs, {})
    rows = []
    for one in given.inputs:
        ends = [_ratio(runs, dict.fromkeys(one.entries, factor)) for factor in (one.low, one.high)]
        rows.append({"input": one.name, "low": one.low, "high": one.high, "ratio_low": ends[0], "ratio_high": ends[1], "source": one.source})
    for node in given.nodes:
        there = runs[0].joules({}, node) / runs[1].joules({}, node)
        rows.append({"input": f"logic and SRAM at {node.node_nm} nm, {node.supply_v:g} V", "low": None, "high": None, "ratio_low": nominal,
                     "ratio_high": there, "source": "Stillmaker and Baas, Integration 58 (2017); DRAM as it is"})  # fmt: skip
    worst = {end: _ratio(runs, _extreme(runs, given.inputs, end)) for end in (min, max)}
    rows.append({"input": "all at their worst and best", "low": None, "high": None, "ratio_low": worst[min], "ratio_high": worst[max],
                 "source": "every input at the end that helps the first, or the second"})  # fmt: skip
    frame = pd.DataFrame(rows)
    frame["ratio"] = nominal
    frame["survives"] = [(low < 1) == (nominal < 1) == (high < 1) for low, high in zip(frame.ratio_low, frame.ratio_high)]
    frame = frame.loc[(frame.ratio_high - frame.ratio_low).abs().sort_values(ascending=False, kind="stable").index].reset_index(drop=True)
    frame.attrs["unknown"] = unknown
    return frame[["input", "low", "high", "ratio_low", "ratio_high", "ratio", "survives", "source"]]


def plot_tornado(frame: pd.DataFrame, title: str = "") -> matplotlib.figure.Figure:
    """The bars of `tornado`, and what they are without; the line at 1 is where the conclusion turns. It isn't shown or saved."""
    from matplotlib.figure import Figure

    bars = frame.iloc[::-1]
    figure = Figure(figsize=(8, 1.2 + 0.38 * len(bars)), layout="constrained")
    axes = figure.subplots()
    for place, (_, bar) in enumerate(bars.iterrows()):
        # Okabe and Ito's blue and vermilion, told apart by all
        for end, colour in ((bar.ratio_low, "#0072B2"), (bar.ratio_high, "#D55E00")):
            axes.barh(place, end - bar.ratio, left=bar.ratio, height=0.6, color=colour, alpha=0.9, hatch=None if bar.survives else "//", edgecolor="white")
    axes.axvline(bars.ratio.iloc[0], color="black", linewidth=1)
    axes.axvline(1.0, color="grey", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(bars)), [f"{bar.input}" + (f" (× {bar.low:g} … {bar.high:g})" if bar.low == bar.low and bar.low is not None else "") for _, bar in bars.iterrows()])
    lines = ["energy of the first over the second", without_unknown(frame.attrs.get("unknown", [])).strip(), "blue: low end, orange: high end; hatched: the winner changes"]
    axes.set_xlabel("\n".join(line for line in lines if line))
    axes.set_title(title)
    return figure


class _Played:
    """A result, and what it takes to charge it again."""

    def __init__(self, result: Result, parts: tuple[str, ...] | None) -> None:
        played = getattr(result, "played", None)
        if played is None or not isinstance(played[1], Hardware):
            raise InputError(f"tornado needs results of run() or simulate() on accelerators; {result.hardware!r} doesn't say what was played on it")
        for part in parts or ():
            if part not in result.energy_breakdown_j:
                raise InputError(f"parts: {part!r} is not a part of the energy; choose from {', '.join(result.energy_breakdown_j)}")
        self.result, self.parts = result, parts
        self.trace, self.machine = played
        self.program, self.run = Replayer(self.trace).played(self.machine)

    def joules(self, factors: Mapping[str, float], node: Node | None = None) -> float:
        """Energy with some entries of the tables multiplied  [J]."""
        machine = self.machine if node is None else self.machine.model_copy(update={"energy": scaled(self.machine.energy, node.node_nm, node.supply_v)})
        table = machine.energy
        for entry, factor in factors.items():
            table = table if entry in _DRAM else times(table, entry, factor)
        charged = result_of(self.trace, machine.model_copy(update={"energy": table}), self.program, self.run).energy_breakdown_j
        return sum(joules * factors.get(part, 1.0) for part, joules in charged.items() if self.parts is None or part in self.parts)


def _unknown(first: _Played, second: _Played) -> list[str]:
    """Parts that neither machine has a figure for; InputError if only one of them has."""
    lacking = [[part for part in run.result.energy_unknown if run.parts is None or part in run.parts] for run in (first, second)]
    for lacks, has, here, there in ((first, second, *lacking), (second, first, *lacking[::-1])):
        alone = [part for part in here if part not in there]
        if alone:
            both = tuple(part for part in first.parts or first.result.energy_breakdown_j if part not in (*here, *there))
            raise InputError(
                f"the energy of {', '.join(alone)} is not known on {lacks.result.hardware} and is known on {has.result.hardware}: no winner "
                f"can be told. Compare machines whose memories' energies are both known (such as mac_hbm3 and adder_hbm3) or both "
                f"unknown (mac_lpddr5 and adder_lpddr5), or leave out what is not known on both with parts={both}"
            )
    return sorted(lacking[0])


def _ratio(runs: list[_Played], factors: Mapping[str, float]) -> float:
    below = runs[1].joules(factors)
    if not below:
        raise InputError("the second result's energy is 0 in these parts: there is no ratio")
    return runs[0].joules(factors) / below


def _extreme(runs: list[_Played], inputs: tuple[Input, ...], end) -> dict[str, float]:
    """Each input at the end at which the ratio is least (or greatest)."""
    chosen: dict[str, float] = {}
    for one in inputs:
        best = end((one.low, one.high), key=lambda factor, one=one: _ratio(runs, dict.fromkeys(one.entries, factor)))
        chosen.update(dict.fromkeys(one.entries, best))
    return chosen


def times(table: EnergyTable, entry: str, factor: float) -> EnergyTable:
    """An energy table with one entry multiplied: 'mult_j.bf16', 'composed.exp' or 'sram'."""
    name, _, key = entry.partition(".")
    if name == "sram" and not key:
        return table.model_copy(update={"sram": [point.model_copy(update={"access_j": point.access_j * factor}) for point in table.sram]})
    if name == "composed" and key in table.composed:
        parts = {part: count * factor for part, count in table.composed[key].items()}
        return table.model_copy(update={"composed": {**table.composed, key: parts}})
    if name in ("add_j", "mult_j") and key in getattr(table, name):
        return table.model_copy(update={name: {**getattr(table, name), key: getattr(table, name)[key] * factor}})
    raise InputError(f"entry {entry!r} is not in an energy table: write add_j.TYPE, mult_j.TYPE, composed.OPERATION or sram")
