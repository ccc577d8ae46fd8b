"""The cost tables: published points, what is composed of them, interpolation and scaling."""

import math

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from santa_sim.errors import InputError
from santa_sim.schema import validate
from santa_sim.simulator.energy import EnergyTable, energy_tables, load_energy, scaled, scaling

TABLE = load_energy("horowitz_45nm")


def test_published_figures():
    assert (TABLE.add_j["int8"], TABLE.mult_j["int8"]) == (0.03e-12, 0.2e-12)
    assert (TABLE.add_j["int32"], TABLE.mult_j["int32"]) == (0.1e-12, 3.1e-12)
    assert (TABLE.add_j["fp16"], TABLE.mult_j["fp16"]) == (0.4e-12, 1.1e-12)
    assert (TABLE.add_j["fp32"], TABLE.mult_j["fp32"]) == (0.9e-12, 3.7e-12)
    assert [(point.bytes, point.access_j) for point in TABLE.sram] == [(8192, 1e-11), (32768, 2e-11), (1048576, 1e-10)]


def test_sram_area_is_the_published_memory_over_its_bytes():
    assert TABLE.sram_area_m2_per_byte == pytest.approx(594_786e-12 / (162 * 1024), rel=2e-3)  # EIE, Table II
    assert TABLE.sram_area_m2_per_byte / 8 > 0.346e-12  # more than Intel's bare cell at 45 nm


def test_interpolated_int16_multiplication_is_the_geometric_mean():
    assert TABLE.mult_j["int16"] == pytest.approx(math.sqrt(0.2e-12 * 3.1e-12), rel=1e-3)
    assert TABLE.mult_area_m2["int16"] == pytest.approx(math.sqrt(282e-12 * 3495e-12), rel=1e-3)


def test_composed_operations_are_sums_of_their_parts():
    assert TABLE.operation_j("exp") == pytest.approx(7 * 3.7e-12 + 7 * 0.9e-12)
    assert TABLE.operation_j("compare") == TABLE.add_j["fp32"]
    assert TABLE.operation_j("random_number") == pytest.approx(5 * 3.1e-12 + 4.5 * 0.1e-12)


@pytest.mark.parametrize(
    ("size", "energy"), [(1, 10e-12), (8192, 10e-12), (32768, 20e-12), (1 << 20, 100e-12), (1 << 24, 100e-12)]
)
def test_sram_access_at_and_beyond_the_points(size, energy):
    assert TABLE.sram_access_j(size) == pytest.approx(energy)


@given(st.integers(1, 1 << 22), st.integers(1, 1 << 22))
def test_a_larger_sram_never_costs_less_an_access(a, b):
    assert TABLE.sram_access_j(min(a, b)) <= TABLE.sram_access_j(max(a, b)) * (1 + 1e-12)


def test_sram_moves_cost_accesses_of_64_bits():
    assert TABLE.sram_j(8192, 80) == pytest.approx(10 * 10e-12)


def test_scaling_follows_the_polynomial_and_there_and_back_is_the_same():
    def switch(a2, a1, a0, v):
        return a2 * v * v + a1 * v + a0

    factor = scaling().energy_factor(45, 0.9, 7, 0.7)
    assert factor == pytest.approx(switch(0.1776, -0.09097, 0.02447, 0.7) / switch(1.103, -0.362, 0.2767, 0.9))
    assert factor * scaling().energy_factor(7, 0.7, 45, 0.9) == pytest.approx(1)
    assert scaling().area_factor(45, 7) == pytest.approx(0.059)
    assert scaled(TABLE, 45, 0.9) is TABLE
    small = scaled(TABLE, 7, 0.7)
    assert small.add_area_m2["fp32"] == pytest.approx(4184e-12 * 0.059)
    assert small.sram_area_m2_per_byte == pytest.approx(3.59e-12 * 0.059)
    assert "scaled from 45 nm" in small.source
    with pytest.raises(InputError, match=r"node_nm=5 is not in the scaling table; choose from 7, 10, 14"):
        scaled(TABLE, 5, 0.7)


def test_polynomials_are_used_only_where_a_higher_voltage_costs_more():
    table = scaling()
    for node, (low, high) in table.supply_v.items():
        costs = [table.energy_factor(45, 0.9, node, float(v)) for v in np.linspace(low, high, 51)]
        assert costs == sorted(costs)
    assert table.supply_v.keys() == table.energy_polynomial.keys() == table.area_from_45nm.keys()


@pytest.mark.parametrize(("node", "volts"), [(45, 0.01), (7, 1e30), (65, 0.55), (130, 1.57)])
def test_voltages_beyond_that_are_refused_with_the_range(node, volts):
    low, high = scaling().supply_v[node]
    with pytest.raises(InputError, match=f"supply_v=.*at node_nm={node}: write {low:g} ... {high:g} V"):
        scaled(TABLE, node, volts)


def test_a_table_outside_the_range_cannot_be_scaled_but_can_be_used():
    table = TABLE.model_copy(update={"supply_v": 2.0})
    assert scaled(table, 45, 2.0) is table
    with pytest.raises(InputError, match="supply_v=2.0 can't be scaled"):
        scaled(table, 45, 0.9)


def test_tables_are_listed_and_mistakes_named(tmp_path):
    assert "horowitz_45nm" in energy_tables()
    with pytest.raises(InputError, match="did you mean 'horowitz_45nm'"):
        load_energy("horowitz_54nm")
    good = TABLE.model_dump()
    for change, message in (
        ({"add_j": {"fp32": 1e-12}}, "add_j lacks bf16"),
        ({"add_j": good["add_j"] | {"fp32": 0.9}}, "add_j.fp32 = 0.9: more than 1e-06"),
        ({"mult_j": good["mult_j"] | {"fp32": True}}, "mult_j.fp32 = True: true and false are not numbers"),
        ({"composed": good["composed"] | {"exp": {"mul_fp32": 1}}}, "did you mean 'mult_fp32'"),
        ({"composed": {"exp": {"mult_fp32": 1}}}, "composed lacks compare"),
        ({"sram": good["sram"][::-1]}, "sizes must grow"),
        ({"supply_v": 0}, "supply_v = 0"),
    ):
        with pytest.raises(InputError, match=message):
            validate(EnergyTable, good | change, "table")


def test_what_a_table_inherits_is_scaled_to_its_own_node_and_what_it_gives_stands(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: horowitz_45nm\nnode_nm: 7\nsupply_v: 0.7\nadd_j: {fp32: 0.1e-12}\nmult_area_m2: {bf16: 5.0e-12}\n")
    energy = (0.1776 * 0.49 - 0.09097 * 0.7 + 0.02447) / (1.103 * 0.81 - 0.362 * 0.9 + 0.2767)  # 0.0559
    mine = load_energy(path)
    assert (mine.node_nm, mine.supply_v, mine.add_j["fp32"], mine.mult_area_m2["bf16"]) == (7, 0.7, 0.1e-12, 5e-12)
    assert mine.add_j["bf16"] == pytest.approx(0.4e-12 * energy)
    assert mine.mult_j["fp32"] == pytest.approx(3.7e-12 * energy)
    assert mine.sram_access_j(8192) == pytest.approx(10e-12 * energy)
    assert mine.add_area_m2["fp32"] == pytest.approx(4184e-12 * 0.059)
    assert mine.sram_area_m2_per_byte == pytest.approx(3.59e-12 * 0.059)
    assert mine.operation_j("exp") == pytest.approx(7 * 0.1e-12 + 7 * 3.7e-12 * energy)
    (note,) = mine.notes
    assert note.startswith("mine.yaml: what it doesn't give (add_j of int8 int16 int32 fp16 bf16, mult_j, add_area_m2,")
    assert "is that of horowitz_45nm, scaled from 45 nm, 0.9 V to 7 nm, 0.7 V" in note
    assert "scaled from 45 nm" in mine.source
    above = tmp_path / "above.yaml"  # another file on top, at the same node: nothing more changes
    above.write_text("base: mine.yaml\nsource: ours\n")
    assert load_energy(above) == mine.model_copy(update={"source": "ours"})
    path.write_text(path.read_text().replace("fp32: 0.1e-12", "fp32: 0.2e-12"))
    assert load_energy(above).add_j["fp32"] == 0.2e-12


@pytest.mark.parametrize("at", ["", "node_nm: 45\n", "node_nm: 45.0\nsupply_v: 0.9\n"])
def test_a_table_at_the_node_of_its_base_keeps_the_bases_figures(tmp_path, at):
    (tmp_path / "mine.yaml").write_text(f"base: horowitz_45nm\n{at}add_j: {{fp32: 0.7e-12}}\n")
    assert load_energy(tmp_path / "mine.yaml") == TABLE.model_copy(update={"add_j": TABLE.add_j | {"fp32": 0.7e-12}})


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("node_nm: 5\nsupply_v: 0.7", r"mine.yaml: node_nm=5.* is not in the scaling table; choose from 7, 10.*; or give in the file .*: add_j of int8 .*sram"),
        ("node_nm: 7", "mine.yaml: supply_v=0.9 can't be scaled at node_nm=7: write 0.5 ... 0.84 V"),
        ("node_nm: seven", "mine.yaml: energy table: node_nm = 'seven'"),
    ],
)
def test_what_cannot_be_scaled_to_a_tables_node_is_refused(tmp_path, at, message):
    (tmp_path / "mine.yaml").write_text(f"base: horowitz_45nm\n{at}\nadd_j: {{fp32: 0.1e-12}}\n")
    with pytest.raises(InputError, match=message):
        load_energy(tmp_path / "mine.yaml")


def test_a_table_that_inherits_no_figure_may_be_of_any_node(tmp_path):
    figures = TABLE.model_dump(mode="json", include={"add_j", "mult_j", "add_area_m2", "mult_area_m2", "sram", "sram_area_m2_per_byte"})
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"base": "horowitz_45nm", "node_nm": 3, "supply_v": 0.6, **figures}))
    assert load_energy(tmp_path / "mine.yaml") == TABLE.model_copy(update={"node_nm": 3.0, "supply_v": 0.6})
