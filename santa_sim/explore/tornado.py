"""How sure a comparison of energies or areas is: one input after another at the ends of its spread, the ratio that results.

Latencies depend on neither, so each machine is played once and only its accounting is repeated.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pydantic

from ..errors import InputError, choose
from ..hardware_model import Hardware
from ..report import without_unknown
from ..schema import Model, TextOrReal, read_yaml, validate
from ..simulator.accounting import area
from ..simulator.energy import EnergyTable, scaled
from ..simulator.plot import BLUE, VERMILION
from ..simulator.replayer import Replayer
from ..simulator.result import Result
from ..simulator.run import result_of

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd

_DRAM = ("dram_activate", "dram_read", "dram_write")
_AREA = ("add_area_m2", "mult_area_m2", "composed", "sram_area_m2_per_byte")
_ENERGY = ("add_j", "mult_j", "composed", "sram", "leakage_w_per_m2", *_DRAM)
_MOVES = {"energy": _ENERGY, "area": _AREA, "area-latency": _AREA}
End = Annotated[TextOrReal, pydantic.Field(ge=0)]


class Input(Model):
    """A figure of energy or area, or several that move together, and how far it may be off, and why.

    `low` and `high` are factors. With a `unit` they are the figure itself, for an entry that a table may lack (counted as 0).
    """

    name: str
    entries: tuple[str, ...]
    unit: str | None = None
    low: End
    high: End
    source: str

    @pydantic.model_validator(mode="after")
    def _factors(self) -> Input:
        if self.unit is None and self.high > 100:
            raise ValueError(f"{self.name}: {self.high!r} is no factor; write at most 100, or the figure with its unit")
        return self


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


def tornado(
    first: Result, second: Result, parts: str | tuple[str, ...] | None = None, inputs: Spread | None = None, quantity: str = "energy"
) -> pd.DataFrame:
    """A quantity of one run over that of another, with each input at its low and its high end, and at other nodes.

    Parameters
    ----------
    first, second : results of `santa_sim.run` or `simulate` on accelerators, of the same workload; below 1 the first takes less
    parts : keys of `energy_breakdown_j` that count, such as ('accumulate', 'normalize') (of `area_breakdown_m2` for areas);
        None: all of them
    inputs : see hwmodels/uncertainty/energy.yaml, which is the default; those that neither run spends are left out
    quantity : 'energy' [J], 'area' [m^2], or 'area-latency' [m^2 s], area times latency: what the work takes of a chip

    Returns
    -------
    DataFrame, widest bar first: `input`, `low`, `high` (factors on the figure where `unit` is '×', else the figure in `unit`), `ratio_low`, `ratio_high`,
    `ratio` (nominal), `survives` (both ends say the same winner as the nominal figures), `source`.
    `.attrs['unknown']`: parts that nobody has a figure for on either machine, which count as 0 on both; `.attrs['quantity']`.

    Raises
    ------
    InputError
        A result doesn't say what it was played on (GPUs, results read from files), the workloads differ, a part or quantity
        doesn't exist, or a part is known on one machine alone.
    """
    import pandas as pd

    choose("quantity", quantity, list(_MOVES))
    parts = (parts,) if isinstance(parts, str) else parts if parts is None else tuple(parts)
    if parts is not None and not any(parts):
        raise InputError(f"parts={parts!r} names no part: name some, such as parts=('accumulate', 'normalize'), or leave it out for all")
    runs = [_Played(result, parts, quantity) for result in (first, second)]
    _same_workload(*runs)
    unknown = _unknown(*runs)
    given = inputs or spread()
    moves = _MOVES[quantity]
    if quantity == "energy" and any(run.machine.energy.leakage_w_per_m2 is not None for run in runs):  # it is per area
        moves = (*moves, *_AREA)
    moving = tuple(one for one in given.inputs if any(entry.partition(".")[0] in moves for entry in one.entries))
    nominal, spent = _ratio(runs, {}), [run.total({}) for run in runs]
    moving = tuple(one for one in moving if any([run.total(dict.fromkeys(one.entries, end)) for run in runs] != spent for end in (one.low, one.high)))
    rows = []
    for one in moving:
        ends = [_ratio(runs, dict.fromkeys(one.entries, end)) for end in (one.low, one.high)]
        rows.append({"input": one.name, "low": one.low, "high": one.high, "unit": one.unit or "×", "ratio_low": ends[0], "ratio_high": ends[1],
                     "source": one.source})  # fmt: skip
    for node in given.nodes:
        rows.append({"input": f"logic and SRAM at {node.node_nm} nm, {node.supply_v:g} V", "low": None, "high": None, "unit": "",
                     "ratio_low": nominal, "ratio_high": _ratio(runs, {}, node),
                     "source": "Stillmaker and Baas, Integration 58 (2017); DRAM as it is"})  # fmt: skip
    worst = {end: _ratio(runs, _extreme(runs, moving, end)) for end in (min, max)}
    rows.append({"input": "all at their worst and best", "low": None, "high": None, "unit": "", "ratio_low": worst[min], "ratio_high": worst[max],
                 "source": "every input at the end that helps the first, or the second"})  # fmt: skip
    frame = pd.DataFrame(rows)
    frame["ratio"] = nominal
    frame["survives"] = [(low < 1) == (nominal < 1) == (high < 1) for low, high in zip(frame.ratio_low, frame.ratio_high)]
    frame = frame.loc[(frame.ratio_high - frame.ratio_low).abs().sort_values(ascending=False, kind="stable").index].reset_index(drop=True)
    frame.attrs.update(unknown=unknown, quantity=quantity)
    return frame[["input", "low", "high", "unit", "ratio_low", "ratio_high", "ratio", "survives", "source"]]


def plot_tornado(frame: pd.DataFrame, title: str = "") -> matplotlib.figure.Figure:
    """The bars of `tornado`, and what they are without; the line at 1 is where the conclusion turns. It isn't shown or saved."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lacking = [name for name in ("input", "ratio_low", "ratio_high", "ratio", "survives") if name not in getattr(frame, "columns", ())]
    if lacking:
        raise InputError(f"plot_tornado() draws the table that tornado() returns; this {type(frame).__name__} lacks {', '.join(lacking)}")
    bars = frame.iloc[::-1]
    figure = Figure(figsize=(8, 1.7 + 0.38 * len(bars)), layout="constrained")
    axes = figure.subplots()
    for place, (_, bar) in enumerate(bars.iterrows()):
        for end, colour in ((bar.ratio_low, BLUE), (bar.ratio_high, VERMILION)):
            axes.barh(place, end - bar.ratio, left=bar.ratio, height=0.6, color=colour, alpha=0.9, hatch=None if bar.survives else "//", edgecolor="white")
    lines = [axes.axvline(bars.ratio.iloc[0], color="black", linewidth=1, label="nominal"),
             axes.axvline(1.0, color="grey", linewidth=1, linestyle="--", label="as much as the other")]  # fmt: skip
    ends = [Patch(color=BLUE, label="at the low end"), Patch(color=VERMILION, label="at the high end, or at the node")]
    turned = [] if bars.survives.all() else [Patch(facecolor="grey", edgecolor="white", hatch="//", label="the winner changes")]
    figure.legend(handles=[*ends, *turned, *lines], loc="outside lower center", ncols=3, fontsize="small", frameon=False)
    axes.set_yticks(range(len(bars)), [bar.input + _ends(bar) for _, bar in bars.iterrows()])
    words = [f"{frame.attrs.get('quantity', 'energy').replace('-', ' × ')} of the first over the second", without_unknown(frame.attrs.get("unknown", [])).strip()]
    axes.set_xlabel("\n".join(line for line in words if line))
    axes.set_title(title, fontsize="medium")
    return figure


def _ends(bar: pd.Series) -> str:
    """' (× 0.5 … 1)' for a bar of factors, ' (0 … 1e+05 W/m^2)' for one of figures, '' for one of neither."""
    if not bar.unit:
        return ""
    return f" (× {bar.low:g} … {bar.high:g})" if bar.unit == "×" else f" ({bar.low:g} … {bar.high:g} {bar.unit})"


class _Played:
    """A result, and what it takes to charge it again."""

    def __init__(self, result: Result, parts: tuple[str, ...] | None, quantity: str) -> None:
        if not isinstance(result, Result):
            raise InputError(f"tornado needs results of run() or simulate(), not {type(result).__name__}: {reprlib.repr(result)}")
        played = result.played
        if played is None or not isinstance(played[1], Hardware):
            raise InputError(f"tornado needs results of run() or simulate() on accelerators; {result.hardware!r} doesn't say what was played on it")
        self.kind = "energy" if quantity == "energy" else "area"
        self.breakdown = result.energy_breakdown_j if quantity == "energy" else result.area_breakdown_m2
        for part in parts or ():
            if part not in self.breakdown:
                raise InputError(f"parts: {part!r} is not a part of the {self.kind}; choose from {', '.join(self.breakdown)}")
        self.result, self.parts, self.quantity = result, parts, quantity
        self.trace, self.machine = played
        self.program, self.run = Replayer(self.trace).played(self.machine) if quantity == "energy" else (None, None)

    def lacking(self) -> list[str]:
        """The parts that count and have no figure."""
        if self.quantity == "energy":
            unknown = self.result.energy_unknown
        else:
            unknown = ["sram"] if self.machine.energy.sram_area_m2_per_byte is None else []
        return [part for part in unknown if self.parts is None or part in self.parts]

    def total(self, ends: Mapping[str, float], node: Node | None = None) -> float:
        """The quantity with some entries of the tables moved to an end  [J, m^2 or m^2 s]."""
        table = self.machine.energy if node is None else scaled(self.machine.energy, node.node_nm, node.supply_v)
        for entry, end in ends.items():
            table = table if entry in _DRAM else times(table, entry, end)
        machine = self.machine.model_copy(update={"energy": table})
        if self.quantity == "energy":
            charged = result_of(self.trace, machine, self.program, self.run).energy_breakdown_j
        else:
            charged = area(self.trace.meta, machine)[0]
        each = self.result.latency_s if self.quantity == "area-latency" else 1.0
        counted = ((part, cost) for part, cost in charged.items() if self.parts is None or part in self.parts)
        return each * sum(cost * ends.get(part, 1.0) if part in _DRAM else cost for part, cost in counted)  # the rest moved with the table


def _same_workload(first: _Played, second: _Played) -> None:
    """InputError unless both runs did the same work: what one takes of another work's energy says nothing of either."""
    for name in ("workload", "kind", "n_k", "n_q", "n_heads", "n_kv_heads", "head_dim", "layers"):
        one, other = (run.trace.meta.get(name) for run in (first, second))
        if one != other:
            raise InputError(f"{name} is {reprlib.repr(one)} in the first and {reprlib.repr(other)} in the second: compare runs of the same workload")


def _unknown(first: _Played, second: _Played) -> list[str]:
    """Parts that neither machine has a figure for; InputError if only one of them has."""
    lacking = [run.lacking() for run in (first, second)]
    for lacks, has, here, there in ((first, second, *lacking), (second, first, *lacking[::-1])):
        alone = [part for part in here if part not in there]
        if alone:
            both = tuple(part for part in first.parts or first.breakdown if part not in (*here, *there))
            memories = (
                "Compare machines whose memories' energies are both known (such as mac_hbm3 and adder_hbm3) or both "
                "unknown (mac_lpddr5 and adder_lpddr5), or leave"
            )
            raise InputError(
                f"the {lacks.kind} of {', '.join(alone)} is not known on {lacks.result.hardware} and is known on {has.result.hardware}: no winner "
                f"can be told. {memories if lacks.kind == 'energy' else 'Leave'} out what is not known on both with parts={both}"
            )
    return sorted(lacking[0])


def _ratio(runs: list[_Played], ends: Mapping[str, float], node: Node | None = None) -> float:
    below = runs[1].total(ends, node)
    if not below:
        raise InputError(f"the second result's {runs[1].quantity} is 0 in these parts: there is no ratio")
    return runs[0].total(ends, node) / below


def _extreme(runs: list[_Played], inputs: tuple[Input, ...], end) -> dict[str, float]:
    """Ends of all inputs at which the ratio is least (or greatest): no input's other end would move it further.

    An input's better end depends on where the others are: a dearer DRAM hides what the SRAM does to a ratio.
    """
    chosen: dict[str, float] = {}
    before = None
    while chosen != before:
        before = dict(chosen)
        for one in inputs:
            best = end((one.low, one.high), key=lambda at, one=one: _ratio(runs, chosen | dict.fromkeys(one.entries, at)))
            chosen.update(dict.fromkeys(one.entries, best))
    return chosen


def times(table: EnergyTable, entry: str, end: float) -> EnergyTable:
    """An energy table with one entry multiplied: 'mult_j.bf16', 'add_area_m2' (all types), 'composed.exp', 'sram', ...

    'leakage_w_per_m2' isn't multiplied: it becomes `end`  [W/m^2] where the table has none.
    """
    name, _, key = entry.partition(".")
    if entry == "sram":
        return table.model_copy(update={"sram": [point.model_copy(update={"access_j": point.access_j * end}) for point in table.sram]})
    if entry == "sram_area_m2_per_byte":
        return table if table.sram_area_m2_per_byte is None else table.model_copy(update={entry: table.sram_area_m2_per_byte * end})
    if entry == "leakage_w_per_m2":
        return table.model_copy(update={entry: end}) if table.leakage_w_per_m2 is None else table
    if name == "composed" and key in table.composed:
        parts = {part: count * end for part, count in table.composed[key].items()}
        return table.model_copy(update={"composed": {**table.composed, key: parts}})
    if name in ("add_j", "mult_j", "add_area_m2", "mult_area_m2") and (not key or key in getattr(table, name)):
        figures = getattr(table, name)
        return table.model_copy(update={name: {one: value * end if key in ("", one) else value for one, value in figures.items()}})
    raise InputError(
        f"entry {entry!r} is not in an energy table: write add_j.TYPE, mult_j.TYPE, add_area_m2.TYPE, mult_area_m2.TYPE, "
        "composed.OPERATION, sram, sram_area_m2_per_byte or leakage_w_per_m2"
    )
