"""What a sweep holds doesn't grow with its points."""

import gc
import subprocess
import sys
import tracemalloc

import pyarrow.parquet as pq
import pytest

from santa_sim.explore import sweep as engine
from santa_sim.explore import sweep_clock, sweep_work
from santa_sim.explore.sweep_parts import Parts, table_of, unified
from santa_sim.explore.sweep_spec import load_sweep

TINY = {"name": "tiny", "model": "none", "kind": "decode", "heads": 2, "kv_heads": 2, "head_dim": 64, "n_k": [256], "model_layers": 1, "dtype": "bfloat16", "source": {"type": "gaussian"}}  # fmt: skip
SPEC = {"workload": TINY, "method": "s2anta-prop", "S": 16, "hardware": "adder_ddr5"}
KB_A_POINT = 2.0  # may be held while it runs: a row of the file has more


@pytest.mark.parametrize("changes, detail", [
    ({"grid": {"gather.outstanding": [16, 64], "accumulate.lanes": list(range(16, 48)), "lookahead_tiles": [1, 2]}}, "full"),
    ({"grid": {"k_buffer.tiles": list(range(32, 40)), "dram.nCL": list(range(32, 48))}}, "full"),
    ({"grid": {"k_buffer.tiles": list(range(32, 40)), "dram.nCL": list(range(32, 48))}}, "steady"),
    ({"seed": list(range(128)), "hardware": "adder_hbm3_bandwidth"}, "full"),
], ids=["machines", "DRAMs", "DRAMs, steady", "kernels"])  # fmt: skip
def test_points_leave_nothing_behind(changes, detail, tmp_path):
    """Held by Python when 1/4, 1/2 and 3/4 of the points are done; what is made once (plans, DRAMs, names) is made by then, or in
    one of the two intervals: what is left behind grows in both."""
    sweep, held = load_sweep(**{**SPEC, **changes}, dram_detail=detail), {}

    def look(what, done, total):
        if done in (32, 64, 96):
            gc.collect()
            held[done] = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        engine.run_sweep(sweep, tmp_path / "o.parquet", jobs=1, progress=look)
    finally:
        tracemalloc.stop()
    assert pq.read_metadata(tmp_path / "o.parquet").num_rows == 128
    assert min(held[64] - held[32], held[96] - held[64]) / 32 < 1024 * KB_A_POINT
    assert getattr(sweep_work._LAST, "replayer", None) is None  # the last trace and its plans go with the sweep


JOIN = """
import resource, shutil, sys
from pathlib import Path
import pyarrow.parquet as pq
from santa_sim.explore.sweep_parts import Parts
from santa_sim.explore.sweep_spec import load_sweep
from santa_sim.explore.sweep_work import play_points, run_kernel

sweep = load_sweep(workload="smollm2_decode_2k", method="s2anta-prop", S=16, hardware="adder_hbm3_bandwidth", grid={"gather.outstanding": [16]})
row = play_points(sweep, 0, range(1), run_kernel(sweep, 0, None))
for count in (40, 1000):
    parts = Parts(Path(sys.argv[1]) / f"{count}.parquet", sweep)
    parts.open()
    parts.add(0, row)
    for number in range(1, count):
        shutil.copy(parts.path(0), parts.path(number))
    parts.finish(count)
    assert pq.read_metadata(parts.output).num_rows == count
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_file_of_many_parts_is_made_in_the_memory_of_few(tmp_path):
    """Peak of a process that joins 40 parts of a row each, then 1,000; a part that is held whole costs 150 kB."""
    few, many = map(int, subprocess.check_output([sys.executable, "-c", JOIN, str(tmp_path)], text=True).split())
    assert many - few < 40 * 1024  # [kB]


def test_work_and_files_stay_bounded(tmp_path, monkeypatch):
    """Never more traces or rows in flight than the workers need, however many points there are."""
    monkeypatch.setattr(engine, "CHUNK", 4)
    sizes, play = [], engine.play_points

    def counted(sweep, kernel, points, made, before):
        sizes.append(len(points))
        return play(sweep, kernel, points, made, before)

    monkeypatch.setattr(engine, "play_points", counted)
    monkeypatch.setattr(sweep_work, "LATEST_S", 1e9)
    engine.run_sweep(load_sweep(**{**SPEC, "hardware": "adder_hbm3_bandwidth"}, grid={"gather.outstanding": range(1, 31)}), tmp_path / "o.parquet", jobs=1)
    assert sizes == [4] * 7 + [2]
    assert pq.read_metadata(tmp_path / "o.parquet").num_rows == 30


def test_columns_of_several_kinds_become_text(tmp_path):
    rows = [{"a": 1, "b": None, "c": True}, {"a": 2.5, "b": "x", "c": 3}]
    parts = Parts(tmp_path / "o.parquet", load_sweep(**SPEC, grid={"gather.outstanding": [1, 2]}))
    parts.open()
    for number, row in enumerate(rows):
        parts.add(number, table_of([row]))
    parts.finish(2)
    assert pq.ParquetFile(tmp_path / "o.parquet").read().to_pydict() == {"a": [1.0, 2.5], "b": [None, "x"], "c": ["true", "3"]}
    assert table_of([{"a": 2**70}, {"a": 1}]).to_pydict() == {"a": [str(2**70), "1"]}
    assert unified(None, table_of(rows).schema).names == ["a", "b", "c"]


def test_what_is_left_leaves_starting_up_out():
    time_s = [0.0]
    told = []
    clock = sweep_clock.Clock(100, 20, 2, lambda what, done, total: told.append(what), now=lambda: time_s[0])
    clock.expect(40.0)
    for at, points in ((30, 10), (31, 10), (35, 10), (35, 10)):  # half a minute of loading and compiling, then 5 points a second
        time_s[0] = at
        clock.add(points)
    assert told == [
        "20 of 100 points, about 40 s left", "30 of 100 points, about 35 s left", "40 of 100 points, about 30 s left",
        "50 of 100 points, about 25 s left", "60 of 100 points, about 8 s left",
    ]  # fmt: skip


def test_compiling_is_left_out_of_the_estimate(monkeypatch):
    import numba
    from numba.core import event

    sweep = load_sweep(**SPEC, grid={"gather.outstanding": [1, 2]})
    now = [0.0]
    monkeypatch.setattr(sweep_clock.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(event, "timer", lambda: now[0])

    def kernel(sweep, number, folder):
        with event.trigger_event("numba:compile"):
            now[0] += 60.0
        now[0] += 0.5

    def play(sweep, number, points, made):
        now[0] += 0.25 * len(points)

    monkeypatch.setattr(sweep_clock, "run_kernel", kernel)
    monkeypatch.setattr(sweep_clock, "play_points", play)
    assert numba.__version__ and sweep_clock.first_points(sweep) == (0.5, 0.25)


def test_only_what_is_left_is_estimated(tmp_path, monkeypatch, run_until):
    monkeypatch.setattr(sweep_clock, "LONG_S", 0.0)
    sweep = load_sweep(**{**SPEC, "hardware": "adder_hbm3_bandwidth"}, grid={"gather.outstanding": range(1, 97)})
    with pytest.raises(engine.InputError, match="96 points of 1 kernels would take about"):
        engine.run_sweep(sweep, tmp_path / "o.parquet", jobs=1)
    run_until(2, sweep, tmp_path / "o.parquet", yes=True)
    engine.run_sweep(sweep, tmp_path / "o.parquet", jobs=1)  # 48 are too few to be asked
    engine.run_sweep(sweep, tmp_path / "o.parquet", jobs=1)  # nor is anything timed of what is finished
    assert pq.read_metadata(tmp_path / "o.parquet").num_rows == 96
