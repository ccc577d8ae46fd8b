"""Roofs by hand, and runs that stay under them."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from santa_sim import InputError, attention, load_hardware, simulate
from santa_sim.cli import main
from santa_sim.explore import roofline
from santa_sim.explore.roofline import ceilings


def _trace(method, **budget):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 64), (600, 2, 64), (600, 2, 64)))
    return attention(q, k, v, method=method, **budget)[1]


@pytest.fixture(scope="module")
def runs():
    dense, sampled = _trace("sdpa"), _trace("s2anta-prop", S=16)
    machines = ("mac_hbm3", "mac_hbm3_bandwidth", "mac_lpddr5")
    return [simulate(dense, machine) for machine in machines] + [simulate(sampled, "adder_hbm3")]


def test_ceilings_of_a_machine():
    """adder_hbm3: 2,048 MAC lanes and 2,048 adder lanes for scores, 2,048 adders for values, at 1 GHz."""
    assert ceilings(load_hardware("adder_hbm3")) == {"bandwidth_bytes_per_s": 819.2e9, "macs_per_s": 2048e9, "adds_per_s": 4096e9}
    assert ceilings(load_hardware("mac_hbm3")) == {"bandwidth_bytes_per_s": 819.2e9, "macs_per_s": 6144e9, "adds_per_s": 0.0}


def test_points_are_under_their_roofs(runs):
    figure, frame = roofline(runs)
    assert len(frame) == len(runs) and len(figure.axes) == 1
    assert (frame["attained_ops_per_s"] <= frame["dram_roof_ops_per_s"] * (1 + 1e-12)).all()
    assert (frame["attained_ops_per_s"] <= frame["lanes_roof_ops_per_s"] * (1 + 1e-12)).all()
    assert frame["share_of_roof"].between(0, 1).all()


def test_dense_attention_by_hand(runs):
    """8 query heads x 600 keys x 64 features, twice; K and V in float32 once, for both KV heads."""
    row = roofline(runs[1])[1].iloc[0]
    assert row["operations"] == 2 * 8 * 600 * 64
    assert row["traffic_bytes"] == runs[1].traffic_bytes["total"]
    assert row["intensity_ops_per_byte"] == pytest.approx(2 * 8 * 600 * 64 / (2 * 600 * 2 * 64 * 4), rel=0.02)
    assert row["dram_roof_ops_per_s"] == pytest.approx(row["intensity_ops_per_byte"] * 819.2e9)
    assert row["under"] == "dram"


def test_results_one_by_one_or_as_a_list(runs):
    assert roofline(runs)[1].equals(roofline(*runs)[1])


def test_what_is_no_result_is_named(runs):
    with pytest.raises(InputError, match="given no results"):
        roofline()
    with pytest.raises(InputError, match="takes results of santa_sim.run or simulate, not str"):
        roofline("mac_hbm3")
    with pytest.raises(InputError, match="has no roofline"):
        roofline(dataclasses.replace(runs[0], played=None))


def test_the_legend_names_each_roof_and_each_run(runs):
    figure, _ = roofline(runs)
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "mac_hbm3: MAC lanes 6.144 Top/s, DRAM 819.2 GB/s" in texts
    assert sum(text.startswith("s2anta-prop, S = 16") for text in texts) == 1
    assert len(texts) == 4 + 1 + len(runs) + 1  # adder_hbm3 has both kinds of lanes; the last for the runs' own roofs


def test_a_colour_a_machine_and_a_marker_a_method_on_it(runs):
    """Three dense runs on three machines, one sampled; of two workloads the legend says which."""
    points = [line for line in roofline(runs)[0].axes[0].lines if line.get_marker() != "None"]
    assert [line.get_marker() for line in points] == ["o", "o", "o", "s"]
    assert len({line.get_color() for line in points}) == 4
    one, other = (dataclasses.replace(run, workload=name) for run, name in zip(runs, "ab"))
    points = [line for line in roofline(one, other)[0].axes[0].lines if line.get_marker() != "None"]
    assert [line.get_marker() for line in points] == ["o", "s"]
    assert [line.get_label().partition(", ")[0] for line in points] == ["a", "b"]


def test_samples_are_whole_beside_runs_without(runs):
    figure, frame = roofline(runs)
    assert frame["samples"].isna().sum() == len(runs) - 1 and str(frame["samples"].iloc[-1]) == "16"
    assert not any("16.0" in text.get_text() for text in figure.axes[0].get_legend().get_texts())


def test_what_is_drawn_above_a_run_is_the_tables_roof(runs):
    """Scores and values of dense attention are as many: 4,096 lanes for scores wait for the 2,048 for values, less rounding."""
    figure, frame = roofline(runs)
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":" and len(line.get_xdata())]
    assert [line.get_ydata()[0] for line in dotted] == frame["lanes_roof_ops_per_s"].tolist()
    assert all(a < x < b for (a, b), x in zip((line.get_xdata() for line in dotted), frame["intensity_ops_per_byte"]))
    assert 0.95 * 4096e9 < frame["lanes_roof_ops_per_s"][0] <= 4096e9 < ceilings(load_hardware("mac_hbm3"))["macs_per_s"]
    assert "multiply-accumulate counts as 1 operation" in figure.axes[0].get_xlabel()


def test_a_gpu_by_hand():
    """h200: 132 multiprocessors at 1.98 GHz; 128 float32 lanes and 4,096 tensor operations, two to a multiply-accumulate, each."""
    roofs = ceilings(load_hardware("h200"))
    assert roofs == {"bandwidth_bytes_per_s": 4.8e12, "fp32_ops_per_s": 132 * 128 * 1.98e9, "tensor_macs_per_s": 132 * 2048 * 1.98e9}
    assert 2 * roofs["tensor_macs_per_s"] == pytest.approx(989e12 * 1.98 / 1.83, rel=2e-3)  # the white paper's, at its clock


def test_gpus_stand_beside_accelerators():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((8, 64), (600, 2, 64), (600, 2, 64)))
    traces = [attention(q, k, v, "sdpa")[1], attention(q, k, v, "s2anta-prop", 16)[1]]
    results = [simulate(trace, machine) for machine in ("h200", "rtx_4090", "mac_hbm3") for trace in traces]
    figure, frame = roofline(results)
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "h200: float32 lanes 33.45 Top/s, DRAM 4.8 TB/s" in texts and "h200: tensor cores 535.3 Top/s, DRAM 4.8 TB/s" in texts
    assert "mac_hbm3: MAC lanes 6.144 Top/s, DRAM 819.2 GB/s" in texts
    assert (frame["operations"][::2] == 2 * 8 * 600 * 64).all() and frame["share_of_roof"].between(0, 1).all()
    for result, row in zip(results[:4], frame.itertuples()):
        assert row.lanes_roof_ops_per_s == row.operations / max(result.busy_s[name] for name in ("issue", "fp64", "special", "tensor"))
        assert row.dram_roof_ops_per_s == row.intensity_ops_per_byte * ceilings(result.played[1])["bandwidth_bytes_per_s"]


def test_the_command_draws_what_can_be_run_and_names_the_rest(tmp_path):
    base = ["roofline", "smollm2_decode_2k", "-m", "sdpa", "-m", "s2anta-prop", "-S", "16", "--precision", "bf16", "--hardware", "h200", "--hardware", "adder_hbm3"]
    made = CliRunner().invoke(main, [*base, "--plot", str(tmp_path / "r.svg"), "-o", str(tmp_path / "r.parquet")])
    assert made.exit_code == 0 and "left out: sdpa on adder_hbm3: method 'sdpa'" in made.output and "op/s (dram)" in made.output
    assert "<svg" in (tmp_path / "r.svg").read_text()
    assert [(row["method"], row["hardware"]) for row in json.loads(CliRunner().invoke(main, [*base, "--plot", str(tmp_path / "r.svg"), "--json"]).output)] == [
        ("sdpa", "h200"), ("s2anta-prop", "h200"), ("s2anta-prop", "adder_hbm3")]  # fmt: skip
    assert len(pd.read_parquet(tmp_path / "r.parquet")) == 3
