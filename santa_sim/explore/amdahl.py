"""`santa_sim.end_to_end_speedup`: what faster attention is worth to the whole step, against n_k and batch.

G. M. Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities", AFIPS 1967: a
part with share f of the time, s times faster, makes the whole 1 / (1 - f + f / s) times faster, never 1 / (1 - f).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, choose
from ..hardware_model import Hardware
from ..methods.spec import METHODS, SAMPLED
from ..models.layers import LanguageModel, load_model
from ..models.weight_formats import WeightFormat
from ..schema import shown
from ..workload import LONGEST
from .decode_step import BATCHES, Plan, accelerator, step_of, whole
from .step_cost import Costs

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd

_OWN = ("S", "k", "score", "B", "allocation", "sampler")  # of the method, not of what it is compared with


def end_to_end_speedup(model: str | Path | Mapping | LanguageModel, method: str, S=None, *, n_k: int | list[int],
                       batch: int | list[int] = 1, baseline: str = "sdpa", weights: str | WeightFormat | None = None,
                       lm_head: str | WeightFormat = "bf16", hardware: str | Path | Mapping | Hardware = "mac_hbm3",
                       baseline_hardware: str | Path | Mapping | Hardware | None = None, full: bool = False,
                       progress: Callable[[str, int, int], None] | None = None, **attention) -> pd.DataFrame:  # fmt: skip
    """Speedup and energy of a method's decode step over dense attention's, a row for each n_k and batch.

    Parameters
    ----------
    n_k, batch : int or list of int
    baseline : 'sdpa', or another method without a budget of samples or keys; its scores are exact
    hardware : a machine that runs both; baseline_hardware : another one for the baseline
    others : as in `decode_step`

    Returns
    -------
    DataFrame with `latency_s` and `baseline_latency_s` of the step, `speedup` = their quotient, `attention_speedup` of
    attention alone, `attention_share` of the baseline's latency, `amdahl_bound` = the speedup if the method's attention took
    no time; the same of energy (`energy_gain`, `attention_energy_gain`, `energy_bound`); `memory_needed_bytes`
    and `memory_holds_bytes` of the machine's DRAM (None where it has no size), `fits` (False: costed as though it did), the last two also of
    the baseline's machine; `energy_unknown` and `baseline_energy_unknown`: parts of the energy that nobody has a figure for and that count as 0, joined
    by '; '. Where the two differ there is no gain of energy to tell, and its three columns are NaN.

    Raises
    ------
    InputError
        Anything that can't be costed, named with its value and what to write instead.
    """
    model = load_model(model)
    lengths, batches = _numbers("n_k", n_k, LONGEST), _numbers("batch", batch, BATCHES)
    if choose("baseline", baseline, METHODS) in (*SAMPLED, "topk"):
        raise InputError(f"baseline={baseline!r} takes a budget of its own; write 'sdpa', and compare sampled methods by their rows")
    plan = Plan.of(method, S, weights, lm_head, model, attention, "end_to_end_speedup", ("baseline", "baseline_hardware"))
    dense = Plan.of(baseline, None, weights, lm_head, model, {name: x for name, x in attention.items() if name not in _OWN})
    costs = Costs(accelerator(method, hardware), full, progress)
    of_baseline = costs if baseline_hardware is None else Costs(accelerator(baseline, baseline_hardware), full, progress)
    return _frame([_row(model, plan, costs, dense, of_baseline, n, b) for n in lengths for b in batches])


def _row(model: LanguageModel, plan: Plan, costs: Costs, dense: Plan, of_baseline: Costs, n_k: int, batch: int) -> dict:
    before, after = step_of(model, dense, n_k, batch, of_baseline), step_of(model, plan, n_k, batch, costs)
    attention = before.cost_of("attention"), after.cost_of("attention")
    given = after.summary()
    comparable = set(before.energy_unknown) == set(after.energy_unknown)
    names = ("model", "method", "samples", "weights", "lm_head", "hardware", "n_k", "batch")
    return {
        **{name: given[name] for name in names}, "baseline": before.method, "baseline_hardware": before.hardware,
        "baseline_latency_s": before.latency_s, "latency_s": after.latency_s, "speedup": before.latency_s / after.latency_s,
        "attention_share": before.attention_share, "attention_speedup": attention[0].latency_s / attention[1].latency_s,
        "amdahl_bound": before.latency_s / (after.latency_s - attention[1].latency_s),
        "baseline_energy_j": before.energy_j, "energy_j": after.energy_j,
        "energy_unknown": "; ".join(after.energy_unknown), "baseline_energy_unknown": "; ".join(before.energy_unknown),
        "energy_gain": before.energy_j / after.energy_j if comparable else math.nan,
        "attention_energy_share": before.attention_energy_share,
        "attention_energy_gain": attention[0].energy_j / attention[1].energy_j if comparable else math.nan,
        "energy_bound": before.energy_j / (after.energy_j - attention[1].energy_j) if comparable else math.nan,
        "latency_per_token_s": after.latency_per_token_s, "energy_per_token_j": after.energy_per_token_j,
        "memory_needed_bytes": after.memory_needed_bytes, "memory_holds_bytes": after.memory_holds_bytes, "fits": after.fits,
        "baseline_memory_holds_bytes": before.memory_holds_bytes, "baseline_fits": before.fits,
    }  # fmt: skip


def plot_speedup(frame: pd.DataFrame) -> matplotlib.figure.Figure:
    """Speedup against n_k, a line per batch, and dashed, with open markers, Amdahl's bound; the figure isn't shown or saved."""
    from matplotlib.lines import Line2D

    from ..reproduce.plotting import COLOURS, MARKERS, log2_ticks, new_figure

    figure, axes = new_figure()
    for place, (batch, rows) in enumerate(frame.sort_values("n_k").groupby("batch")):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        axes.plot(rows["n_k"], rows["amdahl_bound"], "--", color=colour, linewidth=1, marker=marker, markerfacecolor="none")
        axes.plot(rows["n_k"], rows["speedup"], color=colour, marker=marker, label=f"batch {batch}")
    log2_ticks(axes, sorted(frame["n_k"].unique()))
    axes.set_ylim(bottom=1.0 if (frame["speedup"] >= 1).all() else None)
    axes.set_xlabel("keys per sequence")
    axes.set_ylabel("speedup of the decode step")
    first = frame.iloc[0]
    places = ["" if first["hardware"] == first["baseline_hardware"] else f" on {first['hardware']}", f" on {first['baseline_hardware']}"]
    methods = f"{first['method']}{places[0]} over {first['baseline']}{places[1]}"
    axes.set_title(f"{first['model']}, {first['weights']} weights, {methods}", fontsize="medium")
    bound = Line2D([], [], color="#555555", linestyle="--", linewidth=1, marker="o", markerfacecolor="none", label="attention for free")
    axes.legend(handles=[*axes.get_legend_handles_labels()[0], bound], frameon=False)
    return figure


def _numbers(field: str, value: object, high: int) -> list[int]:
    values = list(value) if hasattr(value, "__iter__") and not isinstance(value, (str, bytes)) else [value]
    if not values:
        raise InputError(f"{field}={shown(value)} is empty: write at least one whole number")
    return [whole(field, number, high) for number in values]


def _frame(rows: list[dict]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows)
