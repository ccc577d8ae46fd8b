"""The validation from a kept measurement: verdicts that hold and break, exit status, report, plots, the machine's YAML."""

import copy
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from santa_sim.gpu import validate, validate_cells, validate_judge, validate_predict, validate_report

import santa_sim
from santa_sim import InputError
from santa_sim.simulator.gpu import predict
from santa_sim.validate_command import validate as command

KEPT = Path(__file__).parents[2] / "benchmarks" / "gpu_validation" / "validation.json"
RECORDED = Path(__file__).parent / "data" / "validation_h200.json"


@pytest.fixture(scope="module")
def recorded():
    """A measurement of one H200: all micro-benchmarks, a few cells."""
    return validate.load(RECORDED)


@pytest.fixture(scope="module")
def perfect(recorded):
    """The same, with each cell measured exactly as it is predicted, and the counters too."""
    raw = copy.deepcopy(recorded)
    result, _ = validate.judge_run(raw)
    by_name = {record["name"]: record for record in result["predicted"]}
    steps = {mode: [] for mode in ("all", "none")}
    for cell in raw["cells"]:
        guess = by_name[cell["name"]]
        for how in ("graph", "as_called"):
            seconds = guess[how]["seconds"]
            cell[how] = {"median_s": seconds, "least_s": seconds, "low_s": 0.99 * seconds, "high_s": 1.01 * seconds, "calls": 40}
        cell["host_s"] = 1e-6
        for mode, found in steps.items():
            kernels = [{"kernel": x["launch"], "dram_read_bytes": x["dram_read_bytes"], "dram_write_bytes": 0, "duration_s": x["time_s"]}
                       for x in guess["bytes"][mode]]  # fmt: skip
            found.append({"name": cell["name"], "kernels": kernels})
    raw["counters"] = {mode: {"cache_control": mode, "steps": found} for mode, found in steps.items()}
    return raw


def run(raw, tmp_path, *options):
    """The command on a kept measurement."""
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(raw))
    return CliRunner().invoke(command, ["--from", str(path), *options])


def test_exit_status_is_zero_where_everything_agrees(perfect, tmp_path):
    done = run(perfect, tmp_path)
    assert done.exit_code == 0, done.output
    assert "**broken**" not in done.output and "holds" in done.output


@pytest.mark.parametrize(
    ("perturb", "broken"),
    [
        (lambda raw: [cell["graph"].update(median_s=cell["graph"]["median_s"] * 1.15) for cell in raw["cells"]], "time, mean"),
        (lambda raw: raw["cells"][0]["graph"].update(median_s=raw["cells"][0]["graph"]["median_s"] * 1.3), "time, worst cell"),
        (lambda raw: raw["cells"][0]["check"].update(passed=False, relative_l2=0.3), "outputs that differ"),
        (lambda raw: raw["counters"]["all"]["steps"][0]["kernels"][0].update(dram_read_bytes=1.02 * raw["counters"]["all"]["steps"][0]["kernels"][0]["dram_read_bytes"]),
         "pass over K"),
        (lambda raw: raw["counters"]["all"]["steps"][0]["kernels"][1].update(dram_read_bytes=1.2 * raw["counters"]["all"]["steps"][0]["kernels"][1]["dram_read_bytes"]),
         "second launch"),
        (lambda raw: raw["cells"][0]["graph"].update(median_s=1e-7), "above the card's peak"),
        (lambda raw: raw["cells"][0].update(refused="no such tile"), "not judged"),
        (lambda raw: raw.update(cells=[]), "not judged"),
        (lambda raw: raw.update(asked=[cell["name"] for cell in raw["cells"]], cells=raw["cells"][1:]), "not judged"),
        (lambda raw: [cell["graph"].update(high_s=2 * cell["graph"]["median_s"]) for cell in raw["cells"]], "not judged"),
        (lambda raw: raw["cells"][0].pop("check"), "outputs that differ"),
        (lambda raw: raw["cells"][0]["check"].update(relative_l2=0.3), "outputs that differ"),
        (lambda raw: raw["cells"][0]["check"].update(relative_l2=None), "outputs that differ"),
        (lambda raw: raw["cells"][0]["check"].update(tolerance=1, relative_l2=0.3), "outputs that differ"),
        (lambda raw: raw.update(counters={}), "pass over K"),
        (lambda raw: raw["counters"].update(all={"cache_control": "all", "steps": []}), "pass over K"),
        (lambda raw: raw["counters"]["all"]["steps"][0]["kernels"][0].update(dram_read_bytes=0), "pass over K"),
        (lambda raw: raw["counters"]["all"]["steps"][0]["kernels"].pop(), "pass over K"),
    ],
)  # fmt: skip
def test_a_perturbed_measurement_breaks_its_tolerance(perfect, tmp_path, perturb, broken):
    raw = copy.deepcopy(perfect)
    perturb(raw)
    done = run(raw, tmp_path)
    assert done.exit_code == 1
    assert any(broken in line and "**broken**" in line for line in done.output.splitlines()), done.output[:3000]


def test_a_wrong_calibration_breaks_the_prediction(perfect, tmp_path):
    fields = validate_predict.machine_of(perfect)
    fields["calibration"]["read"]["seconds"] = [2 * x for x in fields["calibration"]["read"]["seconds"]]
    validate_predict.save_machine(fields, tmp_path / "slow.yaml")
    done = run(perfect, tmp_path, "--machine", str(tmp_path / "slow.yaml"))
    assert done.exit_code == 1


def test_bytes_that_were_not_counted_break_nothing_and_say_why(perfect, tmp_path):
    raw = copy.deepcopy(perfect)
    raw["counters"] = {"all": {"cache_control": "all", "error": "Nsight Compute (ncu) is not installed"}}
    done = run(raw, tmp_path)
    assert done.exit_code == 0
    assert "not measured" in done.output and "ncu" in done.output


def test_flags_name_what_cannot_be_taken_at_its_word():
    timing = {"median_s": 10e-6, "low_s": 9.9e-6, "high_s": 10.1e-6}
    assert validate_judge.flags(timing, 40e6, 4.8e12) == []
    assert "4.90 TB/s" in validate_judge.flags(timing, 49e6, 4.8e12)[0]
    assert "spread" in validate_judge.flags(timing | {"high_s": 11.5e-6}, 40e6, 4.8e12)[0]


def test_a_flagged_cell_stays_in_the_mean(perfect):
    raw = copy.deepcopy(perfect)
    raw["cells"][0]["graph"]["high_s"] = 2 * raw["cells"][0]["graph"]["median_s"]
    raw["cells"][0]["graph"]["median_s"] *= 1.3
    result, verdicts = validate.judge_run(raw)
    assert sum(bool(row["flags"]) for row in result["time"]) == 1
    assert verdicts[0].found == pytest.approx((1 - 1 / 1.3) / len(raw["cells"]))


def test_speed_ups_say_where_spreads_overlap(perfect):
    cell = {**perfect["cells"][0], "graph": {"median_s": 30e-6, "low_s": 29e-6, "high_s": 31e-6}}
    shape = {name: cell[name] for name in ("n_k", "batch", "precision")}
    fast, slow = ({"name": name, **shape, "graph": {"median_s": t, "low_s": t - 1e-6, "high_s": t + 1e-6}} for name, t in (("a", 31.5e-6), ("b", 60e-6)))
    row = validate_judge.speed_ups([cell], [slow, fast])[0]
    assert row["peer"] == "a" and not row["distinct"] and row["speed_up"] == pytest.approx(1.05)


def test_files_are_written_and_can_be_judged_again(recorded, tmp_path):
    result, verdicts = validate.judge_run(recorded)
    paths = validate.write(result, verdicts, tmp_path / "out")
    assert {path.name for path in paths} == {"validation.json", "validation.md", "predicted_vs_measured.png", "latency_vs_n_k.png", "roofline.png"}
    assert all(path.stat().st_size > 1000 for path in paths)
    again, same = validate.judge_run(validate.load(tmp_path / "out" / "validation.json"))
    assert same == verdicts and again["time"] == result["time"]
    text = (tmp_path / "out" / "validation.md").read_text()
    assert "NVIDIA H200" in text and "--cache-control" in text and all(cell["name"] in text for cell in recorded["cells"])


def test_saved_calibration_is_a_machine(recorded, tmp_path):
    path = tmp_path / "my_gpu.yaml"
    run(recorded, tmp_path, "--save-calibration", str(path))
    machine = santa_sim.load_hardware(path)
    work = validate_predict.work_for(validate_cells.Cell("s2anta-sys", 32768, 128, 1, "bf16"), recorded["works"])
    direct = santa_sim.load_hardware(validate_predict.machine_of(recorded))
    assert predict(work, machine).time_s.sum() == pytest.approx(predict(work, direct).time_s.sum(), rel=1e-12)


def test_a_machine_of_another_run_predicts(recorded, tmp_path):
    fields = validate_predict.machine_of(recorded)
    validate_predict.save_machine(fields, tmp_path / "a.yaml")
    with_file, _ = validate.judge_run(recorded, tmp_path / "a.yaml")
    own, _ = validate.judge_run(recorded)
    assert with_file["time"] == own["time"]


def test_work_of_a_batch_is_that_of_one_sequence_as_often(recorded):
    one, many = (validate_predict.work_for(validate_cells.Cell("s2anta-sys", 32768, 128, batch, "bf16"), recorded["works"]) for batch in (1, 16))
    assert many.batch == 16 and many.k_bytes == 16 * one.k_bytes and many.samples == 16 * one.samples


def test_traces_give_the_work():
    cell = validate_cells.Cell("s2anta-sys", 512, 16, 4, "fp16")
    works = validate_predict.works_of([cell])
    work = validate_predict.work_for(cell, works)
    assert work.lengths == (512,) * 4 and work.k_bytes == 4 * 512 * 8 * 128 * 2 and work.samples == 4 * 32 * 16


def test_without_cupy_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    done = CliRunner().invoke(command, ["--quick"])
    assert done.exit_code == 2
    assert "santa-sim[gpu]" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--methods", "s2anta-sis"], "s2anta-sys"), (["--n-k", "4k"], "whole numbers"), (["--n-k", "0"], "n_k=0"), (["--dtype", "fp8"], "choose from bf16"),
        (["--from", "x.json", "--quick"], "no say"), (["--from", "nowhere.json"], "nowhere.json"), (["--batch", "64", "--n-k", "131072"], "2 GB"),
        (["--n-k", "4096,,8192"], "empty entry"), (["--save-calibration", "my_gpu"], ".yaml"), (["--machine", "my_gpu.json"], ".yaml"),
        (["--machine", "nowhere.yaml"], "nowhere.yaml"),
        (["--save-calibration", "/no/such/folder/x.yaml"], "does not exist"),
    ],
)  # fmt: skip
def test_misuse_is_named(arguments, says):
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2 and says in done.output, done.output


@pytest.mark.parametrize(("spoil", "says"), [
    (lambda raw: raw["cells"][0]["graph"].update(median_s=0), "cells.0.graph.median_s = 0"),
    (lambda raw: raw["cells"][0]["graph"].update(median_s=float("nan")), "NaN"),
    (lambda raw: raw["cells"][0].pop("host_s"), "host_s"),
    (lambda raw: raw["cells"][0].update(method="s2anta-sis"), "cells.0.method"),
    (lambda raw: raw.pop("micro"), "micro"),
    (lambda raw: raw["micro"].pop("atomic"), "atomic"),
    (lambda raw: raw["micro"].update(latency=[]), "micro-benchmarks"),
    (lambda raw: raw["card"].pop("memory_bus_bits"), "memory_bus_bits"),
    (lambda raw: raw.update(works={}), "no work for"),
    (lambda raw: [work.update(d="a") for work in raw["works"].values()], "d: input should be a valid integer"),
    (lambda raw: [work.clear() for work in raw["works"].values()], "method"),
    (lambda raw: raw["counters"]["all"]["steps"][0].update(kernels=[]), "kernels"),
    (lambda raw: raw["counters"]["all"]["steps"][0]["kernels"][0].pop("dram_read_bytes"), "dram_read_bytes"),
])  # fmt: skip
def test_a_spoilt_measurement_is_named(perfect, tmp_path, spoil, says):
    raw = copy.deepcopy(perfect)
    spoil(raw)
    done = run(raw, tmp_path)
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit) and says in done.output, done.output


def test_json_has_no_nan(perfect, tmp_path):
    raw = copy.deepcopy(perfect)
    raw["counters"]["all"]["steps"][0]["kernels"][0]["dram_read_bytes"] = 0
    raw["cells"][0]["check"]["relative_l2"] = float("nan")
    result, verdicts = validate.judge_run(raw)
    assert validate_judge.failed(verdicts)
    validate.write(result, verdicts, tmp_path)
    json.loads((tmp_path / "validation.json").read_text(), parse_constant=pytest.fail)


def test_the_machine_must_be_a_calibrated_gpu(tmp_path):
    (tmp_path / "adder.yaml").write_text("base: adder_hbm3\n")
    (tmp_path / "plain.yaml").write_text("base: h200\n")
    for name, says in (("adder.yaml", "no GPU"), ("plain.yaml", "no calibration")):
        done = CliRunner().invoke(command, ["--machine", str(tmp_path / name)])
        assert done.exit_code == 2 and says in done.output and "--save-calibration" in done.output


def test_the_report_says_which_machine_predicted_and_keeps_it(recorded, tmp_path):
    fields = validate_predict.machine_of(recorded) | {"name": "another_run"}
    fields["calibration"]["source"] = "a run of another day"
    validate_predict.save_machine(fields, tmp_path / "a.yaml")
    own, own_verdicts = validate.judge_run(recorded)
    assert "this run alone" in validate_report.markdown(own, own_verdicts)
    result, verdicts = validate.judge_run(recorded, tmp_path / "a.yaml")
    validate.write(result, verdicts, tmp_path / "out")
    text = (tmp_path / "out" / "validation.md").read_text()
    assert "this run alone" not in text and "another_run" in text and "a run of another day" in text
    again, _ = validate.judge_run(validate.load(tmp_path / "out" / "validation.json"))
    assert again["time"] == result["time"] and again["raw"]["predicted_by"]["name"] == "another_run"


def test_figures_beside_the_verdicts_break_nothing():
    """The kept run of one H200: dense attention of others, the uncalibrated rule, and bytes written."""
    raw = validate.load(KEPT)
    result, verdicts = validate.judge_run(raw)
    dense = {(row["n_k"], row["batch"], row["precision"]): row["error"] for row in result["dense"]}
    assert dense[4096, 1, "bf16"] == pytest.approx(-0.35, abs=0.01) and dense[32768, 1, "bf16"] == pytest.approx(-0.22, abs=0.01)
    assert dense[131072, 1, "bf16"] == pytest.approx(-0.065, abs=0.01) and dense[32768, 16, "bf16"] == pytest.approx(0.02, abs=0.01)
    errors = result["uncalibrated"]["errors"]
    assert len(errors) == 88 and result["uncalibrated"]["mean"] == pytest.approx(0.132, abs=0.002)
    assert min(errors.values()) == pytest.approx(-0.302, abs=0.002) and max(errors.values()) < 0.015
    beside = [verdict for verdict in verdicts if verdict.name.startswith("beside")]
    assert len(beside) == 3 and all(verdict.holds is None and verdict.allowed is None for verdict in beside)
    assert not validate_judge.failed(verdicts) and validate_judge.failed([*beside, verdicts[0]]) is False
    text = validate_report.markdown(result, verdicts)
    assert "29.4 MB predicted, 59.8 counted" in text and "beside, not judged" in text and "split-kv" in text


def test_the_held_out_run_is_judged_with_the_machine_that_predicted_it():
    raw = validate.load(KEPT.parent / "held_out" / "validation.json")
    assert raw["predicted_by"]["name"] == "nvidia_h200_before"
    result, verdicts = validate.judge_run(raw)
    found = {verdict.name: verdict.found for verdict in verdicts}
    assert found["time, mean absolute error"] == pytest.approx(0.0928, abs=5e-5) and found["time, worst cell"] == pytest.approx(0.2696, abs=5e-5)


def test_a_capability_that_no_machine_has_takes_rates_from_measurement(recorded):
    raw = copy.deepcopy(recorded)
    raw["card"] |= {"compute_capability": 120, "name": "NVIDIA GeForce RTX 5090", "multiprocessors": 170, "shared_bytes": 102400, "shared_bytes_per_block": 101376}
    per_cycle = {"dadd": 1.97, "dfma": 1.98, "mma": 0.249, "ex2": 15.9}
    for record in raw["micro"]["instruction"]:
        record["per_cycle"] = per_cycle.get(record["what"], record.get("per_cycle"))
    machine = santa_sim.load_hardware(validate_predict.machine_of(raw))
    sm = machine.multiprocessors
    assert (sm.fp64_per_cycle, sm.tensor_flops_per_cycle, sm.special_per_cycle, sm.count) == (2, 1020, 16, 170)
    assert machine.l2.partitions == 1 and any("12.0" in note and "8.9" in note for note in machine.notes)
    own = santa_sim.load_hardware(validate_predict.machine_of(recorded))
    assert own.multiprocessors.fp64_per_cycle == 64 and own.l2.partitions == 2 and not any("no shipped machine" in note for note in own.notes)


def test_a_file_that_is_no_measurement(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    with pytest.raises(InputError, match="no measurement"):
        validate.load(path)


def test_the_grid_covers_what_is_asked():
    cells = validate_cells.grid()
    assert {cell.method for cell in cells} >= {"s2anta-sys", "s2anta-prop", "s2anta-flash", "topk"}
    assert {cell.batch for cell in cells} == {1, 16} and {cell.precision for cell in cells} == {"bf16", "fp16"}
    assert all(cell.batch == 1 or cell.batch * cell.n_k <= validate_cells.LARGEST_KEYS for cell in cells)
    assert len(validate_cells.grid(quick=True)) < len(cells) / 3
    only = validate_cells.grid(methods=("topk",), n_k=(1000,), samples=(7,), batch=(1,), dtype=("fp16",))
    assert [cell.name for cell in only] == ["topk, k = 7, n_k = 1,000, batch 1, fp16"]
