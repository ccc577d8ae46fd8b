"""The cost tables: published points, what is composed of them, interpolation and scaling."""

import math

import numpy as np
import pytest
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
