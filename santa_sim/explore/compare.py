"""compare: methods, budgets and workloads on machines, a row a combination."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..api import machine_for
from ..attention import reject_unknown
from ..errors import InputError, SimulationError, choose
from ..hardware_model import Hardware
from ..methods.spec import METHODS, PRECISIONS, SCORES
from ..simulator.replayer import Replayer
from ..simulator.result import Result
from ..workload import Workload, load_workload
from .kernels import DEFAULTS, Kernel, alternatives, kernels
from .rows import failed_row, frame_of, row_of

if TYPE_CHECKING:
    import pandas as pd

Machine = str | Path | Mapping | Hardware
_OPTIONS = ("hardware", "method", "workload", *(name for name in DEFAULTS if name != "method"), "progress")


def compare(hardware: Machine | list[Machine] | None = None, method: str | list[str] | None = None, S=None,
            workload: str | Path | Mapping | Workload | list | None = None, *, k=None, score: str | list[str] = "exact", B=None,
            precision: str | list[str] | None = None, seed: int | list[int] = 0, kernel: str = "cpu", tile=None,
            allocation: str | list[str] = "largest-remainder", sampler: str | list[str] = "scaled-weights",
            value_format: str | None = None, tensor_seed: int | list[int] = 0,
            progress: Callable[[str, int, int], None] | None = None, **unknown) -> pd.DataFrame:  # fmt: skip
    """Run every combination of methods, budgets and workloads on every machine.

    Each kernel runs once; its trace is replayed on every machine. Any argument may be a list of alternatives; S, k and B
    multiply only the methods and scores that take them. A tuple for S is one number per layer, as in `run`.

    Parameters
    ----------
    hardware : machines, as `run` takes them; None: for each method the one that suits it
    method, S, workload, k, score, B, precision, seed, kernel, tile, allocation, sampler, value_format, tensor_seed : as in
        `run`, or lists
    progress : called with (what, kernels done, kernels in all)

    Returns
    -------
    DataFrame, one row a run: the fields of `Result`, nested ones flattened, units in the names (`latency_s`, `energy_sram_j`,
    `traffic_k_read_bytes`), `area_m2` in all. A combination that can't be run is a row with the reason in `failure`, which
    is None elsewhere. Rows: workloads, then methods and budgets, then machines, in the order given.

    Raises
    ------
    InputError
        Something that no combination could use: an unknown name or argument, an empty list.
    """
    reject_unknown("compare", unknown, _OPTIONS)
    arguments = {"method": method, "score": score, "S": S, "k": k, "B": B, "precision": precision, "seed": seed,
                 "kernel": kernel, "tile": tile, "allocation": allocation, "sampler": sampler, "value_format": value_format,
                 "tensor_seed": tensor_seed}  # fmt: skip
    return frame_of([run if isinstance(run, dict) else row_of(run) for run in runs(workload, hardware, arguments, progress)])


def runs(workload, hardware, arguments: Mapping[str, object],
         progress: Callable[[str, int, int], None] | None = None) -> Iterator[Result | dict[str, object]]:  # fmt: skip
    """What `compare` makes rows of, with its arguments: each combination's result, or the row that says why it can't be run."""
    arguments = {**DEFAULTS, **arguments}
    if workload is None:
        raise InputError("workload is missing: give one or a list, such as workload='llama8b_decode_32k'")
    if arguments["method"] is None:
        raise InputError(f"method is missing: give one or a list of {', '.join(METHODS)}")
    for name, options in (("method", METHODS), ("score", SCORES), ("precision", (None, *PRECISIONS))):
        for value in alternatives(name, arguments[name]):
            if value is not None:
                choose(name, value, [option for option in options if option is not None])
    workloads = [load_workload(entry) for entry in alternatives("workload", workload)]
    machines = [entry if entry is None else machine_for("", entry) for entry in alternatives("hardware", hardware)]
    todo = kernels(workloads, arguments)
    for number, one in enumerate(todo):
        if progress:
            progress("running kernels and replaying their traces", number, len(todo))
        yield from _replay(one, [machine_for(dict(one.arguments)["method"], machine) for machine in machines])


def _replay(kernel: Kernel, machines: list[Hardware]) -> Iterator[Result | dict[str, object]]:
    """Run one kernel and play its trace on each machine."""
    try:
        trace = kernel.trace()
    except (InputError, SimulationError, ImportError, MemoryError) as error:
        yield from [failed_row(error, **kernel.known(), hardware=machine.name) for machine in machines]
        return
    replayer = Replayer(trace)
    for machine in machines:
        try:
            yield replayer.result(machine)
        except (InputError, SimulationError, MemoryError) as error:
            yield failed_row(error, **kernel.known() | {"precision": trace.meta["precision"]}, hardware=machine.name)
