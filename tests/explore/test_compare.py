import json

import pandas as pd
import pytest
from click.testing import CliRunner

import santa_sim
from santa_sim import api
from santa_sim.cli import main
from santa_sim.explore import kernels

W = "smollm2_decode_2k"


@pytest.fixture
def counted(monkeypatch):
    """Names of the methods of the kernels that run."""
    ran, run = [], api.make_trace

    def make_trace(workload, **arguments):
        ran.append((arguments["method"], arguments["S"]))
        return run(workload, **arguments)

    monkeypatch.setattr(kernels.api, "make_trace", make_trace)
    return ran


def test_each_kernel_runs_once_and_rows_are_those_of_run(counted):
    frame = santa_sim.compare(hardware=["adder_hbm3", "mac_hbm3"], method=["s2anta-prop", "topk"], S=[64, 128], k=32, workload=W)
    assert counted == [("s2anta-prop", 64), ("s2anta-prop", 128), ("topk", None)]
    assert frame[["method", "samples", "budget_k", "hardware"]].fillna(0).values.tolist() == [
        ["s2anta-prop", 64, 0, "adder_hbm3"], ["s2anta-prop", 64, 0, "mac_hbm3"], ["s2anta-prop", 128, 0, "adder_hbm3"],
        ["s2anta-prop", 128, 0, "mac_hbm3"], ["topk", 0, 32, "adder_hbm3"], ["topk", 0, 32, "mac_hbm3"],
    ]  # fmt: skip
    one = santa_sim.run(W, "s2anta-prop", 128, hardware="mac_hbm3")
    row = frame.iloc[3]
    assert (row.latency_s, row.energy_j, row.cycles, row.bound_by) == (one.latency_s, one.energy_j, one.cycles, one.bound_by)
    assert row.error_relative_l2 == one.error["relative_l2"]
    assert row.traffic_total_bytes == one.traffic_bytes["total"]
    assert row.area_m2 == pytest.approx(sum(one.area_breakdown_m2.values()), rel=1e-12)
    assert row.energy_sram_j == one.energy_breakdown_j["sram"]


def test_a_combination_that_fails_is_a_row_with_its_reason():
    frame = santa_sim.compare(hardware=["adder_hbm3", "mac_hbm3"], method="sdpa", workload=W)
    assert frame.hardware.tolist() == ["adder_hbm3", "mac_hbm3"]
    assert "multiplies in the value stage" in frame.failure[0] and pd.isna(frame.latency_s[0])
    assert pd.isna(frame.failure[1]) and frame.latency_s[1] > 0
    missing = santa_sim.compare(method=["sdpa", "santa"], workload=W)  # santa lacks its S
    assert pd.isna(missing.failure[0]) and "S is missing" in missing.failure[1] and missing.hardware[1] == "adder_hbm3"


def test_machines_may_be_mappings_and_samples_one_per_layer():
    layers = santa_sim.load_workload(W).layers
    machine = {"base": "adder_hbm3", "name": "narrow", "accumulate": {"lanes": 64}}
    frame = santa_sim.compare(hardware=[machine], method="santa", S=[(64,) * layers, 64], workload=W)
    assert frame.hardware.tolist() == ["narrow"] * 2
    assert frame.samples_by_layer.dropna().tolist() == [",".join(["64"] * layers)]
    assert frame.latency_s[0] == frame.latency_s[1]


@pytest.mark.parametrize("arguments, message", [
    ({"method": "s2anta-pro", "workload": W}, "did you mean 's2anta-prop'"),
    ({"method": "santa", "workload": W, "hardware": ["adder_hbm"]}, "did you mean 'adder_hbm3'"),
    ({"method": "santa", "workload": "llama8b_decode_32"}, "did you mean"),
    ({"method": [], "workload": W}, "method=\\[\\] is empty"),
    ({"method": "santa"}, "workload is missing"),
    ({"workload": W}, "method is missing"),
    ({"method": "santa", "workload": W, "samples": 3}, "no argument 'samples'"),
    ({"method": "santa", "workload": W, "precision": "int4"}, "precision='int4'"),
])  # fmt: skip
def test_what_no_combination_could_use_is_an_error(arguments, message):
    with pytest.raises(santa_sim.InputError, match=message):
        santa_sim.compare(**arguments)


def test_command_writes_and_prints(tmp_path):
    for name, read in (("c.csv", pd.read_csv), ("c.parquet", pd.read_parquet)):
        path = tmp_path / name
        arguments = ["compare", W, "-m", "sdpa", "-m", "s2anta-prop", "-S", "64", "--hardware", "adder_hbm3", "-o", str(path)]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        assert "latency [µs]" in result.stdout and "failed: method 'sdpa'" in result.stdout
        frame = read(path)
        assert frame.method.tolist() == ["sdpa", "s2anta-prop"] and frame.latency_s.notna().tolist() == [False, True]
    result = CliRunner().invoke(main, ["compare", W, "-m", "s2anta-prop", "-S", "64", "--json"])
    rows = json.loads(result.stdout)
    assert len(rows) == 1 and rows[0]["samples"] == 64 and rows[0]["failure"] is None
    refused = CliRunner().invoke(main, ["compare", W, "-m", "sdpa", "-o", str(tmp_path / "c.xlsx")])
    assert refused.exit_code == 2 and ".csv or .parquet" in refused.stderr


def test_the_command_fails_if_everything_did(tmp_path):
    arguments = ["compare", W, "-m", "sdpa", "--hardware", "adder_hbm3", "-o", str(tmp_path / "c.csv")]
    failed = CliRunner().invoke(main, arguments)
    assert failed.exit_code == 2 and "nothing could be run" in failed.stderr and "failed: method 'sdpa'" in failed.stdout
    assert len(pd.read_csv(tmp_path / "c.csv")) == 1  # with the reason


def test_printed_energies_without_dram_are_marked_and_units_are_shown():
    arguments = ["compare", W, "-m", "s2anta-prop", "-S", "64", "--hardware", "adder_hbm3", "--hardware", "adder_lpddr5"]
    text = CliRunner().invoke(main, arguments).stdout
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("s2anta-prop")}
    assert "*" in lines["adder_lpddr5"] and "*" not in lines["adder_hbm3"]
    assert "* without DRAM" in text and "area [mm²]" in text
