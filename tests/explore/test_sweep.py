import json
import os
import signal
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import santa_sim
from santa_sim.cli import main
from santa_sim.errors import InputError, SimulationError
from santa_sim.explore import sweep as engine
from santa_sim.explore.sweep_parts import Parts
from santa_sim.explore.sweep_spec import load_sweep

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


def test_killed_with_its_workers_and_resumed_gives_the_same_file(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"workload: {W}\nmethod: s2anta-prop\nhardware: adder_hbm3_bandwidth\nS: [64, 32, 16, 8, 4, 2]\ngrid: {{gather.outstanding: [1, 256]}}\n")
    cut, whole = tmp_path / "cut.parquet", tmp_path / "whole.parquet"
    command = [sys.executable, "-m", "santa_sim.cli", "sweep", str(spec), "-o", str(cut), "-j", "2"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    parts = tmp_path / "cut.parquet.parts"
    while process.poll() is None and not list(parts.glob("part-*")):
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            pass
    assert process.returncode is None, process.stderr.read()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not cut.exists() and list(parts.glob("part-*"))
    sweep = load_sweep(spec)
    engine.run_sweep(sweep, cut, jobs=1)
    engine.run_sweep(sweep, whole, jobs=1)
    assert bytes_of(cut) == bytes_of(whole)


def test_a_dask_cluster_gives_the_same_rows(tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs distributed (the extra 'cluster')")
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    sweep = load_sweep(**SMALL, grid={"gather.outstanding": [1, 256], "accumulate.lanes": [0, 512]})
    engine.run_sweep(sweep, here, jobs=1)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        engine.run_sweep(sweep, there, scheduler=cluster.scheduler_address)
    assert bytes_of(here) == bytes_of(there)


def test_a_worker_that_dies_is_said_and_nothing_is_lost(tmp_path, monkeypatch):
    sweep = load_sweep(**FAST)
    monkeypatch.setattr("santa_sim.explore.sweep.play_points", _die)
    with pytest.raises(SimulationError, match="a worker died .* is kept in .*again"):
        engine.run_sweep(sweep, tmp_path / "o.parquet", jobs=2)
    monkeypatch.undo()
    engine.run_sweep(sweep, tmp_path / "o.parquet", jobs=1)


def _die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_memory_and_files_stay_bounded(tmp_path, monkeypatch):
    """Never more traces or rows in flight than the workers need, however many points there are."""
    monkeypatch.setattr(engine, "CHUNK", 4)
    sizes, wait = [], engine.play_points

    def counted(sweep, kernel, points, made):
        sizes.append(len(points))
        return wait(sweep, kernel, points, made)

    monkeypatch.setattr(engine, "play_points", counted)
    engine.run_sweep(load_sweep(workload=W, method="s2anta-sys", S=8, hardware="adder_hbm3_bandwidth", grid={"gather.outstanding": range(1, 31)}), tmp_path / "o.parquet", jobs=1)
    assert sizes == [4] * 7 + [2]
    assert pq.read_metadata(tmp_path / "o.parquet").num_rows == 30


@pytest.mark.parametrize("changes, message", [
    ({"grid": {"accumulator.lanes": [1]}}, "did you mean 'accumulate.lanes'"),
    ({"grid": {"dram.chanels": [1]}}, "did you mean 'dram.channels'"),
    ({"grid": {"gather.outstanding": []}}, "is empty: no point"),
    ({"S": []}, "is empty: no point"),
    ({"points": []}, "is empty: no point"),
    ({"grid": {"gather.outstanding": 3}}, "is not a list of values"),
    ({"points": [{"n_k": 512}, {"seed": 1}]}, "differ in n_k, seed"),
    ({"grid": {"S": [1]}}, "given twice"),
    ({"method": "s2anta-pro"}, "did you mean 's2anta-prop'"),
    ({"hardware": "adder_hbm"}, "did you mean 'adder_hbm3'"),
    ({"gird": {}}, "did you mean 'grid'"),
    ({"grid": {"gather.outstanding": [float("nan")]}}, "not a finite number"),
])  # fmt: skip
def test_specs_that_cannot_be(changes, message):
    with pytest.raises(InputError, match=message):
        load_sweep(**{**SMALL, **changes})


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
        machine.write_text(f"base: adder_hbm3\naccumulate: {{lanes: {lanes}}}\n")
        prints.append(load_sweep(**{**SMALL, "hardware": str(machine)}).fingerprint)
    assert prints[0] != prints[1]


def test_scheduler_that_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="needs distributed (the extra 'cluster')")
    monkeypatch.setattr("santa_sim.explore.sweep_crew.CLUSTER_WAIT_S", 1)
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        with pytest.raises(InputError, match="no Dask scheduler answers there"):
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
    wrong = CliRunner().invoke(main, ["sweep", str(spec), "-o", str(out), "--pareto", "latency"])
    assert wrong.exit_code == 2 and "did you mean 'latency_s'" in wrong.stderr
