"""What a result says: the keys, sums that match, unknowns in the notes, and the ways out (JSON, frame, plot)."""

import json
import math

import numpy as np
import pytest

import santa_sim
from santa_sim.hardware import load_hardware
from santa_sim.simulator import simulate

ENERGY = [
    "dram_activate",
    "dram_read",
    "dram_write",
    "dram_background",
    "sram",
    "score",
    "softmax",
    "selection",
    "sampling",
    "accumulate",
    "merge",
    "normalize",
    "leakage",
]
TRAFFIC = [
    "q_read",
    "k_read",
    "v_read",
    "stash_read",
    "stash_write",
    "partials_read",
    "partials_write",
    "output_write",
    "total",
]
OPS = {
    "score": ["adds", "mults"],
    "softmax": ["exps", "compares", "adds", "mults"],
    "selection": ["compares"],
    "sampling": ["random_numbers", "compares", "adds", "mults", "floors"],
    "value": ["adds", "mults", "shifts"],
    "merge": ["adds", "mults", "exps"],
}
TOP = [
    "workload",
    "method",
    "score",
    "samples",
    "samples_drawn",
    "hardware",
    "precision",
    "seed",
    "latency_s",
    "cycles",
    "energy_j",
    "bound_by",
    "energy_breakdown_j",
    "traffic_bytes",
    "useful_bytes",
    "sram_bytes",
    "ops",
    "accesses",
    "value_rows_unique_per_head",
    "value_rows_unique_per_group",
    "value_row_fraction",
    "error",
    "utilization",
]


@pytest.fixture(scope="module")
def result(make_trace):
    return simulate(make_trace("prop", n_k=(96, 40), layers=(3, 4), query_blocks=2), "adder_hbm3")


def test_keys(result):
    data = result.to_dict()
    assert set(TOP) <= set(data)
    assert list(data["energy_breakdown_j"]) == ENERGY
    assert list(data["traffic_bytes"]) == list(data["useful_bytes"]) == TRAFFIC
    assert {stage: list(names) for stage, names in data["ops"].items()} == OPS
    assert data["accesses"].keys() == {"score", "value"}
    assert data["sram_bytes"].keys() == {"read", "write"}
    assert {"dram", "score", "softmax", "sampler", "gather", "accumulate", "merge", "normalize"} <= set(
        data["utilization"]
    )


def test_sums_and_whole_numbers(result):
    assert result.energy_j == math.fsum(result.energy_breakdown_j.values())
    for table in (result.traffic_bytes, result.useful_bytes):
        assert table["total"] == sum(n for kind, n in table.items() if kind != "total")
        assert all(type(n) is int for n in table.values())
    counts = [result.cycles, *result.sram_bytes.values()]
    counts += [n for table in (result.ops, result.accesses) for stage in table.values() for n in stage.values()]
    assert all(type(n) is int for n in counts)


def test_operations_are_the_traces(make_trace, result):
    trace = make_trace("prop", n_k=(96, 40), layers=(3, 4), query_blocks=2)
    assert result.ops["score"]["mults"] == trace.total("score_mults") == 2 * 2 * 2 * 2 * (96 + 40) * 16
    assert result.accesses["value"]["reads"] == trace.total("value_reads")


def test_energy_of_operations_by_their_types(make_trace):
    table = load_hardware("adder_hbm3").energy
    result = simulate(make_trace("prop"), "adder_hbm3")
    ops, energy = result.ops, result.energy_breakdown_j
    normalisation = 2 * 2 * 16  # mults in the output items
    assert energy["score"] == pytest.approx(ops["score"]["adds"] * 0.9e-12 + ops["score"]["mults"] * 1.1e-12)
    assert energy["accumulate"] == pytest.approx(ops["value"]["adds"] * 0.9e-12)
    assert energy["normalize"] == pytest.approx(normalisation * 3.7e-12)
    softmax = ops["softmax"]
    assert energy["softmax"] == pytest.approx(
        softmax["exps"] * table.operation_j("exp")
        + (softmax["compares"] + softmax["adds"]) * 0.9e-12
        + softmax["mults"] * 3.7e-12
    )
    assert energy["merge"] == energy["selection"] == 0


def test_sram_counts_dram_in_and_out_stash_and_waiting_exponentials(make_trace):
    result = simulate(make_trace("prop"), "adder_hbm3")
    through = sum(result.useful_bytes[kind] for kind in ("q_read", "k_read", "v_read", "output_write"))
    stash = 2 * 2 * 96 * 4
    assert result.sram_bytes == {"write": through + stash, "read": through + stash}
    flash = simulate(make_trace("flash"), "adder_hbm3")
    through = sum(flash.useful_bytes[kind] for kind in ("q_read", "k_read", "v_read", "output_write"))
    partials = 2 * 3 * 2 * 16 * 4
    assert flash.sram_bytes["write"] == through + partials + 4 * flash.ops["softmax"]["exps"]


def test_unique_rows_are_averaged_over_sequences_layers_and_heads(result):
    assert result.value_rows_unique_per_head == 5
    assert result.value_rows_unique_per_group == 7
    assert result.value_row_fraction == pytest.approx((7 / 96 + 7 / 40) / 2)


def test_unknown_energies_are_zero_and_said(make_trace):
    result = simulate(make_trace("prop"), "adder_lpddr5")
    assert result.energy_breakdown_j["dram_read"] == 0
    assert any("DRAM read energy of adder_lpddr5 is not known" in note for note in result.notes)
    unknown = ["dram_activate", "dram_read", "dram_write", "dram_background", "leakage"]
    assert result.energy_unknown == result.to_dict()["energy_unknown"] == unknown
    assert result.to_frame().iloc[0]["energy_unknown"] == "; ".join(unknown)
    hbm = simulate(make_trace("prop"), "adder_hbm3")
    assert "dram_read" not in hbm.energy_unknown
    assert all(hbm.energy_breakdown_j[part] == 0 for part in hbm.energy_unknown)
    assert hbm.energy_breakdown_j["dram_read"] > 0
    assert not any("DRAM read energy" in note for note in hbm.notes)
    assert any("leakage of adder_hbm3 is not known" in note for note in hbm.notes)


def test_background_and_leakage_are_power_times_time(make_trace):
    table = load_hardware("adder_hbm3").energy.model_dump() | {"leakage_w_per_m2": 1e4, "sram_area_m2_per_byte": 1e-12}
    machine = {"base": "adder_hbm3_bandwidth", "energy": table, "memory": {"energy": {"background_w": 2.5}}}
    result = simulate(make_trace("prop"), machine)
    assert result.energy_breakdown_j["dram_background"] == pytest.approx(2.5 * result.latency_s)
    area = math.fsum(result.area_breakdown_m2.values())
    assert result.energy_breakdown_j["leakage"] == pytest.approx(1e4 * area * result.latency_s)
    assert not any("not known" in note for note in result.notes)
    assert result.energy_unknown == []


def test_scaling_is_noted(make_trace):
    machine = {"base": "adder_hbm3", "technology": {"node_nm": 7, "supply_v": 0.7}, "notes": ["a machine of mine"]}
    result = simulate(make_trace("prop"), machine)
    assert "a machine of mine" in result.notes
    assert sum("scaled from 45 nm, 0.9 V to 7 nm, 0.7 V" in note for note in result.notes) == 1
    assert not any("scaled" in note for note in simulate(make_trace("prop"), "adder_hbm3").notes)


def test_many_adders_in_a_lane_cost_their_area_and_no_time_to_add_up(make_trace):
    few, many = (
        simulate(make_trace("prop"), {"base": "adder_hbm3", "softmax": {"adders_per_lane": n}}).area_breakdown_m2
        for n in (2, 1024)
    )
    assert many["softmax"] - few["softmax"] == pytest.approx(32 * 1022 * 4184e-12)


@pytest.mark.parametrize("precision", ["int8", "int16"])
def test_mean_group_scores_multiply_and_add_in_fp32_also_on_integer_keys(precision):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 16), (40, 2, 16), (40, 2, 16)))
    _, trace = santa_sim.attention(q, k, v, "santa", S=8, score="bernoulli-mean-group", B=4, precision=precision)
    result = simulate(trace, "adder_hbm3")
    assert trace.meta["score_types"] == {"operand": "fp32", "accumulator": "fp32"}
    assert trace.meta["value_types"] == {"operand": precision, "accumulator": "int32"}
    adds, mults = result.ops["score"]["adds"], result.ops["score"]["mults"]
    assert mults > 0
    assert result.energy_breakdown_j["score"] == pytest.approx(adds * 0.9e-12 + mults * 3.7e-12)


def test_activates_are_charged(make_trace):
    result = simulate(make_trace("prop"), "adder_hbm3")
    assert result.energy_breakdown_j["dram_activate"] == pytest.approx(result.memory["activates"] * 909e-12)


def test_an_adder_machine_is_smaller_at_equal_lanes_and_iso_area_is_not_larger(make_trace):
    trace = make_trace("prop")
    areas = {}
    for name in ("mac_hbm3", "adder_hbm3", "adder_hbm3_iso_area"):
        breakdown = simulate(trace, name).area_breakdown_m2
        areas[name] = breakdown["score"] + breakdown["accumulate"]
    assert (
        areas["adder_hbm3"] < areas["adder_hbm3_iso_area"] <= areas["mac_hbm3"] < areas["adder_hbm3_iso_area"] * 1.001
    )


def test_json_frame_and_file(result, tmp_path):
    path = tmp_path / "r.json"
    result.save(path)
    assert json.loads(path.read_text()) == result.to_dict()
    frame = result.to_frame()
    assert len(frame) == 1
    row = frame.iloc[0]
    assert row["energy_dram_read_j"] == result.energy_breakdown_j["dram_read"]
    assert row["traffic_k_read_bytes"] == result.traffic_bytes["k_read"]
    assert row["ops_score_adds"] == result.ops["score"]["adds"]
    assert row["utilization_dram"] == result.utilization["dram"]


def test_plot_stacks_energy_and_traffic(result):
    figure = result.plot()
    energy, traffic = figure.axes
    heights = [bar.get_height() for bar in energy.patches]
    assert sum(heights) == pytest.approx(result.energy_j * 1e6)
    assert sum(bar.get_height() for bar in traffic.patches) == pytest.approx(result.traffic_bytes["total"] * 1e-6)


def test_spans_are_kept_only_when_asked_for(make_trace, result):
    assert result.spans is None
    spans = simulate(make_trace("prop"), "adder_hbm3", spans=True).spans
    assert {span.unit for span in spans} >= {"dram", "score", "gather"}
    assert all(span.start_fs <= span.end_fs for span in spans)


def test_notes_name_the_memory(make_trace):
    """Which memory a result rests on, and what of its energy nobody knows."""
    banks = simulate(make_trace("prop"), "adder_hbm3")
    assert any(note.startswith("DRAM: HBM3") and "head-first" in note for note in banks.notes)
    assert {"row_hit_rate", "queue_occupancy", "activates", "refreshes"} <= banks.memory.keys()
    bus = simulate(make_trace("prop"), "adder_hbm3_bandwidth")
    assert any(note.startswith("DRAM: bandwidth, latency") for note in bus.notes)
    assert "row_hit_rate" not in bus.memory


def test_unpublished_refresh_energy_is_named(make_trace):
    machine = {"base": "adder_hbm3", "memory": {"dram": "gddr6_14000"}}
    long = make_trace("prop", n_k=(4096,), d=128, kv_heads=4)
    result = simulate(long, machine)
    assert result.memory["refreshes"] + result.memory["bank_refreshes"] > 0
    assert "dram_background" in result.energy_unknown
