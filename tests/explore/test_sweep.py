import json
import os

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import santa_sim
from santa_sim.cli import main
from santa_sim.errors import InputError
from santa_sim.explore import sweep as engine
from santa_sim.explore import sweep_work
from santa_sim.explore.sweep_parts import Parts
from santa_sim.explore.sweep_spec import load_sweep
from santa_sim.simulator.replayer import Replayer

W = "smollm2_decode_2k"
FAST = {"workload": W, "method": "s2anta-prop", "S": [64, 32], "hardware": "adder_hbm3_bandwidth"}
SMALL = {"workload": W, "method": "s2anta-prop", "S": [64, 32], "hardware": "adder_hbm3"}


def test_rows_are_those_of_run_in_the_order_of_the_grid():
    grid = {"gather.outstanding": [1, 256], "dram.channels": [8, 16]}
    frame = santa_sim.sweep(**SMALL, grid=grid, jobs=1)
    assert frame.point.tolist() == list(range(8))
    assert frame[["S", "gather.outstanding", "dram.channels"]].values.tolist() == [[S, n, c] for S in (64, 32) for n in (1, 256) for c in (8, 16)]
    row = frame.iloc[6]
    machine = {"base": "adder_hbm3", "gather": {"outstanding": 256}, "memory": {"dram_changes": {"organization": {"channels": 8}}}}
    one = santa_sim.run(W, "s2anta-prop", 32, hardware=machine)
    assert (row.latency_s, row.energy_j, row.cycles) == (one.latency_s, one.energy_j, one.cycles)
    assert row.error_relative_l2 == one.error["relative_l2"] and row.hardware == "adder_hbm3"
    assert frame.failure.isna().all()


def test_workload_and_points():
    points = [{"n_k": 512, "accumulate.lanes": 64}, {"n_k": 1024, "accumulate.lanes": 128}]
    frame = santa_sim.sweep(workload="llama8b_decode_4k", method="s2anta-sys", S=32, hardware=["adder_hbm3", "adder_hbm3_bandwidth"], points=points, jobs=1)
    assert frame[["n_k", "accumulate.lanes", "hardware"]].values.tolist() == [
        [n, lanes, name] for n, lanes in ((512, 64), (1024, 128)) for name in ("adder_hbm3", "adder_hbm3_bandwidth")
    ]
    assert (frame.traffic_k_read_bytes == frame.n_k * 8 * 128 * 2).all()


def test_a_point_that_fails_is_a_row():
    frame = santa_sim.sweep(workload=W, method=["sdpa", "santa"], S=16, grid={"accumulate.lanes": [0, 64], "dram": ["hbm3", "hbm9"]}, hardware="adder_hbm3", jobs=1)
    reasons = frame.failure.tolist()
    assert "multiplies in the value stage" in frame.failure[2] and frame.method[2] == "sdpa"
    assert all("accumulate.lanes = 0" in reason for reason in (reasons[0], reasons[4], reasons[5]))
    assert "hbm9" in reasons[3] and "hbm9" in reasons[7]
    assert frame.latency_s.notna().tolist() == [False] * 6 + [True, False]
    assert frame["accumulate.lanes"].tolist() == [0, 0, 64, 64] * 2
    lost = santa_sim.sweep(workload=W, method="santa", S=[16, 0], hardware="adder_hbm3", jobs=1)
    assert pd.isna(lost.failure[0]) and "S=0 is outside" in lost.failure[1]


def bytes_of(path):
    return path.read_bytes()


def test_stopped_and_resumed_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "CHUNK", 2)
    sweep = load_sweep(**FAST, grid={"gather.outstanding": [1, 2, 4, 64, 256]})
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    engine.run_sweep(sweep, whole, jobs=1)
    add, kept = Parts.add, []

    def stop(self, chunk, table):
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(chunk)
        add(self, chunk, table)

    monkeypatch.setattr(Parts, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        engine.run_sweep(sweep, cut, jobs=1)
    assert not cut.exists() and len(list((tmp_path / "cut.parquet.parts").glob("part-*"))) == 3
    monkeypatch.setattr(Parts, "add", lambda self, chunk, table: (kept.append(chunk), add(self, chunk, table)))
    engine.run_sweep(sweep, cut, jobs=1)
    assert sorted(kept) == list(range(6))  # none twice
    assert bytes_of(cut) == bytes_of(whole) and not (tmp_path / "cut.parquet.parts").exists()
    engine.run_sweep(sweep, cut, jobs=1)  # nothing left to do
    assert len(kept) == 6


def test_rows_of_slow_parts_are_kept_too(tmp_path, monkeypatch):
    """Parts whose rows came in one by one, and over two runs, make the same file, and none is made twice."""
    monkeypatch.setattr(engine, "CHUNK", 4)
    sweep = load_sweep(**FAST, grid={"accumulate.lanes": [0, 512, 64, 128, 0], "gather.outstanding": [64]})
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    monkeypatch.setattr(sweep_work, "LATEST_S", 1e9)
    engine.run_sweep(sweep, whole, jobs=1)
    monkeypatch.setattr(sweep_work, "LATEST_S", 0.0)
    begin, played, row = Parts.begin, [], sweep_work._row
    monkeypatch.setattr(sweep_work, "_row", lambda sweep, kernel, point, *rest: (played.append((kernel, point)), row(sweep, kernel, point, *rest))[1])

    def stop(self, chunk, rows):
        begin(self, chunk, rows)
        if len(played) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(Parts, "begin", stop)
    told = []
    for _ in range(2):
        try:
            engine.run_sweep(sweep, cut, jobs=1, progress=lambda what, done, points: told.append(done))
        except KeyboardInterrupt:
            assert not cut.exists() and len(list((tmp_path / "cut.parquet.parts").glob("rows-*"))) == 1
    assert sorted(played) == [(kernel, point) for kernel in (0, 1) for point in range(5)] and told[-2] == 10
    assert bytes_of(cut) == bytes_of(whole) and not (tmp_path / "cut.parquet.parts").exists()


@pytest.mark.parametrize("content", ["", "[{", "{}", "3", "[1, 2]", "[{}, {}, {}, {}, {}]"])
def test_rows_that_cannot_be_read_are_made_again(content, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "CHUNK", 4)
    parts = Parts(tmp_path / "o.parquet", load_sweep(**FAST, grid={"gather.outstanding": [1, 2, 3, 4]}))
    parts.open()
    parts.begin(1, [{"point": 4}])
    assert parts.begun() == {1: [{"point": 4}]}
    (parts.folder / "rows-00000001.json").write_text(content)
    assert engine._Todo(parts.sweep, set(), parts.begun()).begun == {}
    parts.close()


@pytest.mark.parametrize("changes, message", [
    ({"grid": {"accumulator.lanes": [1]}}, "did you mean 'accumulate.lanes'"),
    ({"grid": {"dram.chanels": [1]}}, "did you mean 'dram.channels'"),
    ({"grid": {"gather.outstanding": []}}, "is empty: no point"),
    ({"S": []}, "is empty: no point"),
    ({"points": []}, "is empty: no point"),
    ({"grid": {"gather.outstanding": 3}}, "is not a list of values"),
    ({"grid": [1, 2]}, r"grid=\[1, 2\] is not a mapping of fields to lists"),
    ({"points": {"a": 1}}, r"points={'a': 1} is not a list of mappings"),
    ({"points": [{"n_k": 512}, {"seed": 1}]}, "differ in n_k, seed"),
    ({"grid": {"S": [1]}}, "given twice"),
    ({"method": "s2anta-pro"}, "did you mean 's2anta-prop'"),
    ({"hardware": "adder_hbm"}, "did you mean 'adder_hbm3'"),
    ({"n_k": [512, 1024]}, r"under grid, as grid: {n_k: \[512, 1024\]}"),
    ({"gird": {}}, "did you mean 'grid'"),
    ({"grid": {"gather.outstanding": [float("nan")]}}, "not a finite number"),
])  # fmt: skip
def test_specs_that_cannot_be(changes, message):
    with pytest.raises(InputError, match=message):
        load_sweep(**{**SMALL, **changes})


def test_values_are_what_gives_them_one_by_one():
    lists = load_sweep(**SMALL, points=[{"seed": 1}, {"seed": 2}], grid={"n_k": [1_000_000_000], "accumulate.lanes": [64, 128], "normalize.lanes": [1, 2]})
    series = pd.Series([1, 2])
    assert lists == load_sweep(**{**SMALL, "S": np.array([64, 32])}, points=({"seed": seed} for seed in (1, 2)),
                               grid={"n_k": [1e9], "accumulate.lanes": (64 * n for n in range(1, 3)), "normalize.lanes": series})  # fmt: skip
    assert load_sweep(**{**SMALL, "S": range(32, 65, 32)}) == load_sweep(**{**SMALL, "S": np.arange(32.0, 65.0, 32.0)}) == load_sweep(**{**SMALL, "S": [32, 64]})
    assert load_sweep(**{**SMALL, "workload": santa_sim.load_workload(W)}).points == 2


def test_nothing_varies_or_is_missing():
    with pytest.raises(InputError, match="nothing varies"):
        load_sweep(workload=W, method="sdpa")
    with pytest.raises(InputError, match="method is missing"):
        load_sweep(workload=W, S=[1, 2])
    with pytest.raises(InputError, match="does not exist"):
        load_sweep("nowhere.yaml")


def test_a_grid_of_days_gives_its_estimate_first(tmp_path):
    sweep = load_sweep(workload=W, method="s2anta-prop", S=64, hardware="adder_hbm3", grid={"gather.outstanding": range(1, 1001), "accumulate.lanes": range(1, 10001)})
    with pytest.raises(InputError, match=r"10,000,000 points of 1 kernels would take about .* (days|h) .*yes=True"):
        engine.run_sweep(sweep, tmp_path / "o.parquet")
    assert list(tmp_path.iterdir()) == []


def test_outputs_of_others(tmp_path):
    sweep = load_sweep(**FAST)
    other = tmp_path / "other.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(other)
    text = tmp_path / "text.parquet"
    text.write_text("no Parquet")
    for path in (other, text):
        with pytest.raises(InputError, match="is not the file of a sweep"):
            engine.run_sweep(sweep, path)
    mine = tmp_path / "mine.parquet"
    engine.run_sweep(sweep, mine, jobs=1)
    with pytest.raises(InputError, match="belongs to another sweep"):
        engine.run_sweep(load_sweep(**FAST, seed=1), mine)
    parts = tmp_path / "new.parquet.parts"
    parts.mkdir()
    (parts / "sweep.json").write_text(json.dumps({"fingerprint": "another"}))
    with pytest.raises(InputError, match="parts of another sweep"):
        engine.run_sweep(sweep, tmp_path / "new.parquet")
    with pytest.raises(InputError, match="ends in .parquet"):
        engine.run_sweep(sweep, tmp_path / "new.csv")
    with pytest.raises(InputError, match="folder .* does not exist"):
        engine.run_sweep(sweep, tmp_path / "no" / "new.parquet")
    held = Parts(tmp_path / "held.parquet", sweep)
    held.open()
    with pytest.raises(InputError, match="another process"):
        engine.run_sweep(sweep, tmp_path / "held.parquet")
    held.close()


def test_a_changed_machine_file_is_another_sweep(tmp_path):
    machine = tmp_path / "m.yaml"
    prints = []
    for lanes in (64, 128):
        machine.write_text(f"base: adder_hbm3\nname: mine\naccumulate: {{lanes: {lanes}}}\n")
        sweep = load_sweep(**{**SMALL, "hardware": str(machine)})
        prints.append(sweep.fingerprint)
    assert prints[0] != prints[1]
    machine.unlink()  # what it held when the sweep was loaded counts, here and on workers that don't see it
    assert sweep.machine(0, 0, "s2anta-prop").accumulate.lanes == 128


def test_a_changed_dram_file_is_another_sweep(tmp_path):
    table = tmp_path / "mine.yaml"
    prints = []
    for channels in (8, 16):
        table.write_text(f"base: hbm3\norganization: {{channels: {channels}}}\n")
        prints += [load_sweep(**{**SMALL, "hardware": {"base": "adder_hbm3", "memory": {"dram": str(table)}}}).fingerprint, load_sweep(**SMALL, grid={"dram": [str(table), "hbm3"]}).fingerprint]
    assert len(set(prints)) == 4


def test_other_code_and_other_specs_are_named(tmp_path, monkeypatch):
    sweep = load_sweep(**FAST)
    engine.run_sweep(sweep, tmp_path / "o.parquet", jobs=1)
    half = Parts(tmp_path / "half.parquet", sweep)
    half.open()
    half.close()
    for name, what in (("o", "belongs to another sweep"), ("half", "holds parts of another sweep")):
        for other, why in (({"seed": 1}, "fixed arguments"), ({"grid": {"gather.outstanding": [1]}}, "what varies"), ({"hardware": "adder_ddr5"}, "fixed arguments, contents of its machines")):
            with pytest.raises(InputError, match=rf"{what} \({why} differ\)"):
                engine.run_sweep(load_sweep(**{**FAST, **other}), tmp_path / f"{name}.parquet")
    monkeypatch.setattr("santa_sim.explore.sweep_identity.code_digest", lambda: "another")
    with pytest.raises(InputError, match=r"belongs to another sweep \(its code or tables differ\)"):
        engine.run_sweep(load_sweep(**FAST), tmp_path / "o.parquet")


def test_workloads_methods_and_machines_together():
    frame = santa_sim.sweep(workload=[W, "llama8b_decode_4k"], method=["s2anta-prop", "topk"], S=8, k=8, hardware=["adder_hbm3_bandwidth", "mac_hbm3_bandwidth"],
                            grid={"n_k": [2048], "gather.outstanding": [4, 64]}, jobs=1)  # fmt: skip
    known = frame[["workload", "method", "hardware", "gather.outstanding"]].values.tolist()
    assert known == [[w, m, h, g] for w in (W, "llama8b_decode_4k") for m in ("s2anta-prop", "topk") for h in ("adder_hbm3_bandwidth", "mac_hbm3_bandwidth") for g in (4, 64)]
    assert frame.failure.notna().tolist() == ([False] * 4 + [True] * 2 + [False] * 2) * 2  # top-k multiplies
    assert frame.failure.dropna().str.contains("multiplies in the value stage").all()
    machine = {"base": "mac_hbm3_bandwidth", "gather": {"outstanding": 64}}
    one = santa_sim.run({**santa_sim.load_workload("llama8b_decode_4k").model_dump(), "n_k": [2048]}, "topk", k=8, hardware=machine)
    assert (frame.latency_s[15], frame.energy_j[15], frame.error_relative_l2[15]) == (one.latency_s, one.energy_j, one.error["relative_l2"])


def test_an_error_nobody_foresaw_is_a_row_too(monkeypatch):
    result, calls = Replayer.result, []

    def breaks(self, machine):
        calls.append(machine)
        return result(self, machine) if len(calls) != 2 else 1 / 0

    monkeypatch.setattr(Replayer, "result", breaks)
    frame = santa_sim.sweep(**{**FAST, "S": 16}, grid={"gather.outstanding": [1, 2, 4]}, jobs=1)
    assert frame.failure.tolist()[1] == "ZeroDivisionError: division by zero" and frame.latency_s.notna().tolist() == [True, False, True]


def test_scheduler_that_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="needs distributed (the extra 'cluster')")
    monkeypatch.setattr("santa_sim.explore.sweep_crew.CLUSTER_WAIT_S", 1)
    with pytest.raises(InputError, match="no Dask scheduler answers there"):
        engine.run_sweep(load_sweep(**SMALL), tmp_path / "o.parquet", scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize("address", ["", "127.0.0.1:notaport", "nonsense://x", "nonsense://127.0.0.1:8786", "tcp://127.0.0.1", "127.0.0.1:0", ":8786", "127.0.0.1:99999"])
def test_what_is_no_address_is_told_without_asking_there(address, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="needs distributed (the extra 'cluster')")
    monkeypatch.setattr(distributed, "Client", None)
    with pytest.raises(InputError, match="is not the address of a Dask scheduler"):
        engine.run_sweep(load_sweep(**SMALL), tmp_path / "o.parquet", scheduler=address)


def test_command(tmp_path):
    spec, out = tmp_path / "spec.yaml", tmp_path / "o.parquet"
    spec.write_text(f"workload: {W}\nmethod: s2anta-prop\nhardware: adder_hbm3\nS: [64, 32]\ngrid:\n  accumulate.lanes: [0, 512]\n")
    result = CliRunner().invoke(main, ["sweep", str(spec), "-o", str(out), "-j", "1"])
    assert result.exit_code == 0, result.output + result.stderr
    assert "4 points, 2 failed; 2 on the front" in result.stdout and "failed 2 times" in result.stdout
    again = CliRunner().invoke(main, ["sweep", str(spec), "-o", str(out), "--json", "--pareto", "latency_s"])
    told = json.loads(again.stdout)
    assert told["points"] == 4 and len(told["pareto"]) == 1
    family = CliRunner().invoke(main, ["sweep", str(spec), "-o", str(out), "--pareto", "energy_sramm_j"])
    assert family.exit_code == 2 and "did you mean 'energy_sram_j'" in family.stderr
    own = CliRunner().invoke(main, ["sweep", str(spec), "-o", str(out), "--pareto", "accumulate.lanes,traffic_total_bytes"])
    assert own.exit_code == 0 and "1 on the front" in own.stdout


@pytest.mark.parametrize("columns, hint", [("latency", "did you mean 'latency_s'"), ("nope", "choose from"), ("latency_s,bound_by", "bound_by"), ("", "choose from")])
def test_a_front_of_what_no_row_has_is_told_before_anything_runs(columns, hint, tmp_path):
    spec, out = tmp_path / "spec.yaml", tmp_path / "o.parquet"
    spec.write_text(f"workload: {W}\nmethod: s2anta-prop\nhardware: adder_hbm3\nS: [64, 32]\n")
    wrong = CliRunner().invoke(main, ["sweep", str(spec), "-o", str(out), "-j", "1", "--pareto", columns])
    assert wrong.exit_code == 2 and "--pareto" in wrong.stderr and hint in wrong.stderr and os.listdir(tmp_path) == ["spec.yaml"]


def test_a_sweep_of_which_nothing_could_be_run(tmp_path):
    spec, out = tmp_path / "spec.yaml", tmp_path / "o.parquet"
    spec.write_text(f"workload: {W}\nmethod: sdpa\nhardware: adder_hbm3\ngrid: {{accumulate.lanes: [64, 128]}}\n")
    result = CliRunner().invoke(main, ["sweep", str(spec), "-o", str(out), "-j", "1"])
    assert result.exit_code == 2 and "all 2 points failed" in result.stderr and "failed 2 times: " in result.stdout


def test_whole_numbers_stay_whole_where_some_rows_lack_them():
    frame = santa_sim.sweep(workload=W, method=["sdpa", "s2anta-prop"], S=16, k=4, grid={"gather.outstanding": [64]}, hardware="mac_hbm3_bandwidth", jobs=1)
    assert frame.samples.tolist() == [pd.NA, 16] and str(frame.samples.dtype) == str(frame.cycles.dtype) == "Int64"
