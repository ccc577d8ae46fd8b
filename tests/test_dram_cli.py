import json

import numpy as np
import pytest
from click.testing import CliRunner

import santa_sim
from santa_sim.cli import main
from santa_sim.simulator.dram import replay

WORKLOAD = ("smollm2_decode_2k", "--method", "santa", "-S", "64")
FIELDS = {"cycles", "time_s", "bandwidth_bytes_per_s", "activates", "reads", "writes", "read_row_hits", "energy_j"}


def invoke(*arguments, ok=True):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert (result.exit_code == 0) == ok, result.output + result.stderr
    return result


def played(*arguments):
    return json.loads(invoke("dram", *arguments, "--json").stdout)


@pytest.fixture(scope="module")
def requests():
    rng = np.random.default_rng(7)
    return rng.integers(0, 1 << 20, 500) * 64, rng.random(500) < 0.3


def test_the_three_forms_are_one_trace(tmp_path, requests):
    addresses, writes = requests
    np.savez(tmp_path / "t.npz", address=addresses, write=writes)
    (tmp_path / "r.trace").write_text("".join(f"{'ST' if w else 'LD'} {a:#x}\n" for a, w in zip(addresses, writes)))
    (tmp_path / "d.trace").write_text("".join(f"{a:#x} {'WRITE' if w else 'READ'} 0\n" for a, w in zip(addresses, writes)))
    expected = replay(addresses, writes, "ddr4_3200").to_dict()
    assert set(expected) >= FIELDS
    assert set(expected["energy_j"]) == {"activate", "read", "write", "refresh", "background"}
    for name in ("t.npz", "r.trace", "d.trace"):
        assert played(tmp_path / name, "--config", "ddr4_3200") == expected


def test_options_reach_the_memory(tmp_path, requests):
    addresses, writes = requests
    path = tmp_path / "t.npz"
    np.savez(path, address=addresses, write=writes)
    in_order = played(path, "--config", "hbm3", "--issue", "in-order", "--outstanding", 8, "--request-bytes", 64)
    assert in_order == replay(addresses, writes, "hbm3", "in-order", 8, request_bytes=64).to_dict()
    assert in_order["cycles"] > played(path, "--config", "hbm3", "--request-bytes", 64)["cycles"]


def test_a_timed_trace_waits_for_its_cycles(tmp_path):
    path = tmp_path / "d.trace"
    path.write_text("0x0 READ 0\n0x40 READ 5000\n")
    assert played(path, "--config", "ddr4_3200", "--issue", "timed")["cycles"] > 5000
    assert played(path, "--config", "ddr4_3200")["cycles"] < 500


def test_a_memory_of_ones_own(tmp_path, requests):
    path = tmp_path / "t.npz"
    np.savez(path, address=requests[0], write=requests[1])
    data = santa_sim.load_dram("ddr4_3200").replace(organization={"channels": 2}).model_dump_json()
    (tmp_path / "two.yaml").write_text(data)  # JSON is YAML
    two = played(path, "--config", tmp_path / "two.yaml")
    assert two["peak_bytes_per_s"] == 2 * played(path, "--config", "ddr4_3200")["peak_bytes_per_s"]


def test_the_table_has_units(tmp_path, requests):
    path = tmp_path / "t.npz"
    np.savez(path, address=requests[0], write=requests[1])
    text = invoke("dram", path, "--config", "ddr4_3200").stdout
    for part in ("ddr4_3200, policy textbook, saturated", "500", "cycles", "B/s of 25.6 GB/s", "row hits", "activates", "J  (activate"):
        assert part in text


@pytest.mark.parametrize("form", ["ramulator", "dramsim3"])
@pytest.mark.parametrize(("machine", "dram"), [("adder_hbm3", "hbm3"), ("own.yaml", "lpddr5_6400")])
def test_an_exported_trace_serves_the_traffic_of_the_run(tmp_path, monkeypatch, form, machine, dram):
    monkeypatch.chdir(tmp_path)
    memory = f"memory: {{model: banks, dram: {dram}, controller_latency_s: 0}}"
    (tmp_path / "own.yaml").write_text(f"base: adder_hbm3\n{memory}\nkv_layout: paged-16\n")
    written = json.loads(invoke("trace", *WORKLOAD, "-o", "x.trace", "--format", form, "--hardware", machine, "--json").stdout)
    traffic = santa_sim.run("smollm2_decode_2k", "santa", 64, hardware=machine).traffic_bytes
    report = played("x.trace", "--config", dram)
    writes = sum(size for kind, size in traffic.items() if kind.endswith("_write"))
    assert written["bytes"] == report["requests"] * written["burst_bytes"] == traffic["total"]
    assert (report["writes"] + report["writes_coalesced"]) * written["burst_bytes"] == writes
    reads = report["reads"] + report["reads_merged"] + report["reads_forwarded"]
    assert reads * written["burst_bytes"] == traffic["total"] - writes


def test_an_export_is_by_default_of_the_machine_that_runs_it(tmp_path):
    out = str(tmp_path / "x.trace")
    text = invoke("trace", "smollm2_decode_2k", "--method", "topk", "--k", "8", "-o", out, "--format", "ramulator").stdout
    assert "of mac_hbm3" in text
    assert "of adder_hbm3" in invoke("trace", *WORKLOAD, "-o", out, "--format", "ramulator").stdout


BAD = {"empty.trace": "# nothing\n", "mixed.trace": "LD 0x40\n0x40 READ 1\n", "huge.trace": f"LD {1 << 70:#x}\n",
       "far.trace": "LD 0xffffffffffff\n", "good.trace": "LD 0x40\n"}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dram", "none.trace", "--config", "hbm3"), "'none.trace' does not exist"),
        (("dram", "empty.trace", "--config", "hbm3"), "holds no request"),
        (("dram", "mixed.trace", "--config", "hbm3"), "line 2"),
        (("dram", "huge.trace", "--config", "hbm3"), "numbers from 0 to 2^62"),
        (("dram", "far.trace", "--config", "hbm3"), "0xffffffffffff is beyond the capacity of hbm3"),
        (("dram", "good.trace", "--config", "ddr5_480"), "did you mean 'ddr5_4800'"),
        (("dram", "good.trace", "--config", "x.ini"), "'x.ini' does not exist"),
        (("dram", "good.trace", "--config", "hbm3", "--issue", "inorder"), "did you mean 'in-order'"),
        (("dram", "good.trace", "--config", "hbm3", "--issue", "timed"), "needs ready_cycles"),
        (("dram", "good.trace", "--config", "hbm3", "--outstanding", "0"), "outstanding=0"),
        (("dram", "good.trace", "--config", "hbm3", "--request-bytes", "48"), "request_bytes = 48"),
        (("dram", "good.trace"), "--config"),
        (("trace", *WORKLOAD, "-o", "x", "--format", "ramulater"), "did you mean 'ramulator'"),
        (("trace", *WORKLOAD, "-o", "x", "--hardware", "adder_hbm3"), "hardware='adder_hbm3' has no say"),
        (("trace", *WORKLOAD, "-o", "x", "--format", "ramulator", "--hardware", "adder_hbm"), "did you mean 'adder_hbm3"),
    ],
)
def test_errors_are_one_readable_line(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    for name, text in BAD.items():
        (tmp_path / name).write_text(text)
    result = invoke(*arguments, ok=False)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.exit_code == 2
    assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1
