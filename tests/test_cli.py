import json

import pytest
from click.testing import CliRunner

import santa_sim
from santa_sim.cli import main


def invoke(*arguments, ok=True):
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code == 0) == ok, result.output + result.stderr
    return result


def test_run_prints_the_json_of_the_api():
    printed = json.loads(invoke("run", "smollm2_decode_2k", "--method", "s2anta-prop", "--samples", "64", "--json").stdout)
    assert printed == santa_sim.run("smollm2_decode_2k", "s2anta-prop", 64).to_dict()


def test_run_prints_a_table_with_units():
    text = invoke("run", "smollm2_decode_2k", "--method", "santa", "-S", "64", "--hardware", "adder_lpddr5").stdout
    for part in ("smollm2_decode_2k, santa, S = 64", "latency", "µs", "energy", "J", "bound by", "k_read", "relative L2", "expected"):
        assert part in text


def test_trace_then_simulate(tmp_path):
    path = str(tmp_path / "t.parquet")
    summary = json.loads(invoke("trace", "smollm2_decode_2k", "--method", "topk", "--k", "32", "-o", path, "--json").stdout)
    assert summary["items"] == len(santa_sim.Trace.load(path))
    played = json.loads(invoke("simulate", path, "--hardware", "mac_hbm3", "--json").stdout)
    assert played == santa_sim.run("smollm2_decode_2k", "topk", k=32).to_dict()


def test_list_names_everything():
    listed = json.loads(invoke("list", "--json").stdout)
    assert set(listed["workloads"]) == set(santa_sim.list_workloads())
    assert set(listed["hardware"]) == set(santa_sim.list_hardware())
    text = invoke("list").stdout
    for kind, name in (("workloads", "llama8b_decode_32k"), ("models", "llama8b"), ("dram", "lpddr5_6400"), ("energy", "horowitz_45nm")):
        assert listed[kind][name] and f"  {name} " in text and listed[kind][name] in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "smollm2_decode_2k", "--method", "santa", "--sample", "4"), "--samples"),
        (("run", "smollm2_decode_2k", "--method", "santa", "--samples", "four"), "'four' is not a whole number"),
        (("run", "smollm2_decode_2k", "--method", "santa", "--samples", "0"), "S=0"),
        (("run", "smolm2_decode_2k", "--method", "santa", "--samples", "4"), "did you mean 'smollm2_decode_2k'"),
        (("run", "smollm2_decode_2k", "--method", "santo", "--samples", "4"), "santo"),
        (("run", "smollm2_decode_2k", "--method", "s2anta_sys", "--samples", "4"), "did you mean 's2anta-sys'"),
        (("run", "smollm2_decode_2k", "--method", "santa"), "S is missing"),
        (("run", "smollm2_decode_2k", "--method", "santa", "--samples", "4", "-o", "nowhere/r.json"), "folder 'nowhere' does not exist"),
        (("run", "smollm2_decode_2k", "--method", "santa", "--samples", "4", "-o", ""), "not a file name"),
        (("trace", "smollm2_decode_2k", "--method", "santa", "--samples", "4", "-o", "."), "not a file name"),
        (("simulate", "nowhere.parquet"), "nowhere.parquet"),
        (("tornado", "smollm2_decode_2k", "--method", "sdpa"), "both are sdpa on mac_hbm3: give another --over"),
        (("tornado", "smollm2_decode_2k", "--method", "santa", "-S", "4", "--over", "topk"), "k is missing"),
        (("tornado", "smollm2_decode_2k", "--method", "santa", "-S", "4", "--over-hardware", "h200"), "h200 is a GPU"),
        (("tornado", "smollm2_decode_2k", "--method", "santa", "-S", "4", "--quantity", "enery"), "did you mean 'energy'"),
        (("tornado", "smollm2_decode_2k", "--method", "santa", "-S", "4", "--parts", "nothing"), "'nothing' is not a part of the energy"),
        (("tornado", "smollm2_decode_2k", "--method", "santa", "-S", "4", "--plot", "t.txt"), "ends in no format of pictures"),
        (("roofline", "smollm2_decode_2k", "-m", "sdpa", "--hardware", "adder_hbm3", "--plot", "r.png"), "nothing could be run: sdpa on adder_hbm3"),
        (("pareto", "nowhere.csv"), "table 'nowhere.csv' does not exist"),
        (("pareto", "nowhere.txt"), "ends in .csv or .parquet"),
        (("run", "smollm2_decode_2k", "--method", "sdpa", "--hardware", "h200", "--timeline", "t"), "h200 is a GPU"),
        (("simulate", "nowhere.parquet", "--hardware", "h200", "--timeline", "t"), "h200 is a GPU"),
    ],
)
def test_errors_are_one_readable_line(arguments, said):
    result = invoke(*arguments, ok=False)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.exit_code == 2
