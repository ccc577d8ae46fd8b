"""Value-stage energy from the accounting: the paper's pJ, the parts that it leaves out, and an error that turns a row red."""

import pytest

import santa_sim
from santa_sim.methods import accumulate
from santa_sim.reproduce import energy
from santa_sim.workload import load_workload

SMALL = {"name": "small", "model": "none", "kind": "decode", "heads": 4, "kv_heads": 1, "head_dim": 32, "n_k": 512, "model_layers": 1,
         "dtype": "float16", "source": {"type": "gaussian"}}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """The item on a small workload, and HBM3 alone."""
    make = energy.make
    monkeypatch.setattr(energy, "make", lambda _, method, precision, seed: make(load_workload(SMALL), method, precision, seed))
    return lambda: energy.reproduce(lambda *_: None, 0, True)


def test_paper_arithmetic_comes_out_of_the_accounting(small):
    found = small()
    ours = {row.name: row.ours for row in found.rows}
    assert ours["FP32, fp32 sums: top-k, per element"] == pytest.approx(4.6)
    assert ours["FP32, fp32 sums: SANTA, per element"] == pytest.approx(0.9)
    assert ours["FP32, fp32 sums: top-k over SANTA, division by S counted"] == pytest.approx(4.6 / (0.9 + 3.7 / 128))
    assert ours["FP16, fp16 sums: top-k over SANTA"] == pytest.approx(1.5 / 0.4)
    assert ours["FP16, fp32 sums: top-k over SANTA"] == pytest.approx(2.0 / 0.9)
    assert {row.verdict for row in found.rows} == {"consistent", "beside"}
    assert all(draw() is not None for draw in found.plots.values())


def test_a_multiplication_that_is_not_counted_turns_its_row_red(small, monkeypatch):
    right = accumulate.weighted_rows

    def forgetful(*arguments):
        normalizing = right(*arguments)
        arguments[11][:, 1] -= 1  # counts: value_mults of every tile
        return normalizing

    monkeypatch.setattr(accumulate, "weighted_rows", forgetful)
    red = {row.name for row in small().rows if row.verdict == "OUT"}
    assert "FP32, fp32 sums: top-k, per element" in red and "FP32, fp32 sums: SANTA, per element" not in red


def test_without_values_takes_away_the_reads_of_v_and_nothing_else():
    trace = energy.make(load_workload(SMALL), "santa", "fp16", 0)
    rest = energy.without_values(trace)
    whole, less = santa_sim.simulate(trace, "adder_hbm3"), santa_sim.simulate(rest, "adder_hbm3")
    assert less.useful_bytes["v_read"] == 0 < whole.useful_bytes["v_read"]
    assert {k: n for k, n in less.useful_bytes.items() if k not in ("v_read", "total")} == {
        k: n for k, n in whole.useful_bytes.items() if k not in ("v_read", "total")
    }
    assert less.ops == whole.ops
    saved = whole.energy_breakdown_j["dram_read"] - less.energy_breakdown_j["dram_read"]
    assert saved == pytest.approx(whole.traffic_bytes["v_read"] * 8 * 3.48e-12)  # hbm3.yaml: 3.48 pJ/bit


def test_same_rows_isolate_the_arithmetic():
    topk = energy.Parts(4.6, 0.0, 0.0, 40.0, 60.0, 0.0, 1.0)
    santa = energy.Parts(0.9, 0.1, 0.0, 4.0, 6.0, 0.0, 1.0)
    assert energy.same_rows(topk, santa) == pytest.approx(104.6 / 101.0)
    assert energy.arithmetic_share(santa) == pytest.approx(1 / 11)
