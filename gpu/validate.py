"""Validate the GPU timing model on this machine's card: calibrate, predict, measure, judge, report.

    python -m santa_sim.gpu.validate [--quick] [-o FOLDER] [--save-calibration my_gpu.yaml]      # the same as santa-sim validate

Exit status: 0 all tolerances hold, 1 one is broken, 2 it can't run. Micro-benchmarks calibrate the machine; the kernels that
are predicted are never fitted. What was measured is kept as JSON and can be judged again without a card (`--from FILE`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InputError
from ..hardware import load_hardware
from ..hardware_gpu import Gpu
from . import device, validate_beside, validate_judge, validate_kept, validate_plots, validate_predict, validate_report
from .validate_cells import Cell
from .validate_judge import Verdict

SCHEMA = "santa_sim.gpu_validation"
Progress = Callable[[str, int, int], None]


def measure(cells: Sequence[Cell], *, counters: bool = True, quick: bool = False, few: bool = True, progress: Progress | None = None,
            keep: Callable[[dict], None] | None = None) -> dict:  # fmt: skip
    """Everything a verdict needs from this machine's card, as plain data; see `validate_collect.collect`.

    Raises
    ------
    InputError
        No CuPy or no GPU: says what to install.
    """
    try:
        device.require_cupy()
    except InputError as error:
        raise InputError(f"santa-sim validate measures this machine's GPU: {error}. A kept measurement is judged without one: --from FILE.json") from None
    from . import validate_collect

    works = validate_predict.works_of(cells, "gpu", progress)
    raw = {"schema": SCHEMA, "asked": [cell.name for cell in cells], "works": works}
    return raw | validate_collect.collect(cells, counters=counters, quick=quick, few=few, progress=progress,
                                          keep=None if keep is None else lambda part: keep(raw | part))  # fmt: skip


def load(path: str | Path) -> dict:
    """A kept measurement.

    Raises
    ------
    InputError
        The file can't be read, or isn't one.
    """
    try:
        raw = json.loads(Path(path).read_text(), parse_constant=_no_constant)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read as a kept measurement: {error}") from None
    if isinstance(raw, dict) and "raw" in raw:
        raw = raw["raw"]
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise InputError(f"{path} holds no measurement of `santa-sim validate`; give the validation.json that it wrote")
    try:
        validate_kept.check(raw)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return raw


def _no_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which no measurement gives and JSON hasn't")


def judge_run(raw: dict, machine=None) -> tuple[dict, list[Verdict]]:
    """Predict the cells of a measurement from its own micro-benchmarks and compare: the result as plain data, the verdicts.

    `machine`: a Gpu, or a .yaml with a calibration, to predict with in place of this run's micro-benchmarks. The result keeps
    it (`raw["predicted_by"]`), so that judging the result again predicts with the same one.

    Raises
    ------
    InputError
        A micro-benchmark failed, so that there is no calibration; `machine` has none; the measurement lacks what is judged.
    """
    raw = validate_kept.finite(raw)
    validate_kept.check(raw)
    fields = validate_predict.machine_of(raw)
    if machine is not None:
        raw["predicted_by"] = predictor(machine).model_dump(mode="json", exclude_none=True)
    machine = predictor(raw.get("predicted_by", fields))
    names = [field.name for field in dataclasses.fields(Cell)]
    cells = [Cell(**{name: record[name] for name in names}) for record in raw["cells"] if not record.get("refused")]
    predicted = validate_predict.predict_cells(cells, raw["works"], machine)
    peak = validate_predict.peak_bandwidth(raw["card"])
    counters = raw.get("counters", {})
    time = validate_judge.time_rows(raw["cells"], predicted, peak)
    once = {(c.n_k, c.batch, c.precision): validate_predict.dense_bytes(validate_predict.work_for(c, raw["works"])) for c in cells}
    bytes_ = validate_judge.dense_rows(counters, once) + validate_judge.byte_rows(counters, predicted)
    verdicts = [*validate_judge.time_verdicts(time), validate_judge.judged_verdict(raw["cells"], time, raw.get("asked", ())), *validate_judge.byte_verdicts(bytes_, raw.get("counters")), validate_judge.output_verdict(raw["cells"])]
    dense = validate_beside.dense_times(raw.get("peers", []), machine)
    uncalibrated = validate_beside.uncalibrated_times(cells, raw["works"], raw["card"], time)
    verdicts += validate_beside.figures(dense, uncalibrated, bytes_)
    result = {
        "schema": SCHEMA, "machine": fields, "predicted": predicted, "time": time, "bytes": bytes_, "dense": dense, "uncalibrated": uncalibrated,
        "speed_ups": validate_judge.speed_ups(raw["cells"], raw.get("peers", [])),
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts], "raw": raw,
    }  # fmt: skip
    return result, verdicts


def predictor(machine) -> Gpu:
    """A machine to predict with: a `kind: gpu` with a calibration; also by its file or fields.

    Raises
    ------
    InputError
        It is none; says what to give.
    """
    name = machine if isinstance(machine, str | Path) else "the machine"
    machine = load_hardware(machine)
    if not isinstance(machine, Gpu):
        raise InputError(f"{name} is no GPU: give a `kind: gpu` with a calibration, as `santa-sim validate --save-calibration FILE.yaml` writes it")
    if machine.calibration is None:
        raise InputError(f"{name} has no calibration: give a file that `santa-sim validate --save-calibration FILE.yaml` wrote")
    return machine


def write(result: dict, verdicts: Sequence[Verdict], folder: str | Path) -> list[Path]:
    """Write validation.json, validation.md and the plots; the paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plots = validate_plots.draw(result, folder)
    (folder / "validation.json").write_text(json.dumps(validate_kept.finite(result), indent=1, allow_nan=False) + "\n")
    (folder / "validation.md").write_text(validate_report.markdown(result, verdicts, plots))
    return [folder / name for name in ("validation.json", "validation.md", *plots)]


def main() -> None:
    from ..validate_command import validate

    validate()


if __name__ == "__main__":
    main()
