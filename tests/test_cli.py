import json
import re

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
        (("run", "smollm2_decode_2k", "-m", "santa", "-S", "4", "-o", "x" * 300), "can't be written: File name too long"),
        (("run", "smollm2_decode_2k", "-m", "santa", "-S", "4", "-o", "/proc/r.json"), "can't be written"),
        (("run", "smollm2_decode_2k", "-m", "santa", "-S", "4", "--timeline", "/proc/t"), "can't be written"),
        (("compare", "smollm2_decode_2k", "-m", "santa", "-S", "4", "-o", "/proc/c.csv"), "can't be written"),
        (("roofline", "smollm2_decode_2k", "-m", "santa", "-S", "4", "--plot", "/proc/r.png"), "can't be written"),
        (("tornado", "smollm2_decode_2k", "-m", "santa", "-S", "4", "--plot", "/proc/r.png"), "can't be written"),
        (("decode-step", "smollm2", "-m", "santa", "-S", "4", "--n-k", "64", "-o", "/proc/r.json"), "can't be written"),
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


def test_looking_whether_a_file_can_be_written_leaves_it_as_it_is(tmp_path):
    (tmp_path / "r.json").write_text("mine")
    for name in ("r.json", "new.json"):
        invoke("run", "smolm2", "-m", "santa", "-S", "4", "-o", str(tmp_path / name), ok=False)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"] and (tmp_path / "r.json").read_text() == "mine"


FILES = {
    "machine": "base: adder_hbm3\nclock_hz: 2e9\n",
    "dram": "base: lpddr5_6400\nenergy: {read_pj_per_bit: 4.5}\n",
    "logic": "base: horowitz_45nm\nadd_j: {fp32: 0.5e-12}\n",
    "workload": "name: w\nheads: 4\nkv_heads: 4\nhead_dim: 64\nn_k: [64]\n",
    "model": "name: m\nhidden: 64\nffn: 128\nheads: 4\n",
    "sweep": "workload: smollm2_decode_2k\nmethod: sdpa\ngrid: {dram.channels: [8, 16]}\n",
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "machine.yaml", "-m", "sdpa"), "machine.yaml: this is a machine (it has base: adder_hbm3, clock_hz), not a workload: give it as hardware"),
        (("run", "sweep.yaml", "-m", "sdpa"), "sweep.yaml: this is a sweep (it has grid), not a workload: give it to santa-sim sweep"),
        (("run", "model.yaml", "-m", "sdpa"), "model.yaml: this is a language model (it has hidden, ffn), not a workload: give it to decode-step"),
        (("run", "smollm2_decode_2k", "-m", "sdpa", "--hardware", "dram.yaml"), "dram.yaml: this is a DRAM table (it has base: lpddr5_6400), not a machine: name it"),
        (("run", "smollm2_decode_2k", "-m", "sdpa", "--hardware", "logic.yaml"), "this is an energy table (it has base: horowitz_45nm, add_j), not a machine: name it"),
        (("decode-step", "workload.yaml", "-m", "sdpa", "--n-k", "64"), "workload.yaml: this is a workload (it has n_k), not a language model: give it as"),
        (("sweep", "machine.yaml", "-o", "s.parquet"), "machine.yaml: this is a machine (it has base: adder_hbm3, clock_hz), not a sweep"),
        (("dram", "t.txt", "--config", "machine.yaml"), "machine.yaml: this is a machine (it has base: adder_hbm3, clock_hz), not a DRAM table"),
    ],
)
def test_a_file_of_another_kind_is_named_as_what_it_is(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "t.txt").write_text("LD 0x40\n")
    error = " ".join(invoke(*arguments, ok=False).stderr.split())
    assert said in error and len(error) < 250


def test_keys_that_tell_a_kind_of_file_are_fields_of_this_kind_alone():
    from santa_sim.explore.sweep_spec import KEYS
    from santa_sim.file_kinds import KINDS
    from santa_sim.hardware import Gpu, Hardware
    from santa_sim.models.layers import LanguageModel
    from santa_sim.simulator.dram.config import DramConfig
    from santa_sim.simulator.energy import EnergyTable
    from santa_sim.workload import Workload

    fields = {"hardware": {*Hardware.model_fields, *Gpu.model_fields}, "workload": set(Workload.model_fields), "model": set(LanguageModel.model_fields),
              "DRAM": set(DramConfig.model_fields), "energy table": set(EnergyTable.model_fields), "sweep": set(KEYS)}  # fmt: skip
    for name, kind in KINDS.items():
        others = set().union(*(fields[other] for other in fields if other != name))
        assert kind.keys <= fields[name] - others


def test_tensor_seeds_are_compared():
    rows = json.loads(invoke("compare", "smollm2_decode_2k", "-m", "s2anta-sys", "-S", "4", "--tensor-seed", "0", "--tensor-seed", "1", "--json").stdout)
    assert len(rows) == 2


def test_the_readme_shows_what_the_first_command_prints():
    from pathlib import Path

    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    command, shown = re.search(r"&& santa-sim (run .*?)\n```.*?```\n(llama8b_decode_32k, .*?)```", readme, re.DOTALL).groups()
    printed = CliRunner().invoke(main, command.split(), env={"COLUMNS": "102"}).stdout
    assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines()
