"""Area: by hand for one machine, equal where it should be, scaled with the node, and nothing that works left out."""

import math

import numpy as np
import pytest

import santa_sim
from santa_sim.explore.tornado import times
from santa_sim.hardware import PACKAGE, load_hardware
from santa_sim.schema import shipped
from santa_sim.simulator import simulate
from santa_sim.simulator.accounting import area, sram_sizes
from santa_sim.simulator.compile import compile_trace
from santa_sim.simulator.schedule import schedule

ISO = [name for name in shipped(PACKAGE) if name.endswith("_iso_area")]
ACCUMULATOR = {"bf16": "fp32", "fp16": "fp32", "fp32": "fp32", "int8": "int32", "int16": "int32"}


def meta(operand):
    types = {"operand": operand, "accumulator": ACCUMULATOR[operand]}
    return {"score_types": types, "value_types": types}


def total(hardware, operand="bf16"):
    return math.fsum(area(meta(operand), load_hardware(hardware))[0].values())


@pytest.fixture(scope="module")
def sampled():
    """The trace of a sampled attention that needs every composed operation."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 16), (600, 2, 16), (600, 2, 16)))
    return santa_sim.attention(q, k, v, "s2anta-prop", S=32, precision="bf16")[1]


def test_area_of_one_machine_by_hand():
    add, mult_bf16, mult, int_add, int_mult = 4184, 1640, 7700, 137, 3495  # um^2: fp32, bf16, fp32, int32, int32
    exp, compare, floor, random_number = 7 * mult + 7 * add, add, int_add, 5 * int_mult + 4.5 * int_add
    by_hand = {
        "score": 2048 * (add + mult_bf16) + 2048 * add,
        "softmax": 32 * (compare + exp + mult + 2 * add),
        "selection": 64 * compare,
        "budget": 16 * (add + mult + compare + floor + exp),
        "sampler": 32 * (mult + floor + 3 * add) + 8 * random_number + 32 * compare,
        "accumulate": 2048 * add,
        "merge": 128 * (add + mult + exp),
        "normalize": 128 * (mult + int_add),
        "sram": 3.59 * (2 * 8 * 65536 + 2 * 16 * 4096 + 4 * 8 * 4096 + 1_114_112),
    }
    breakdown, notes = area(meta("bf16"), load_hardware("adder_hbm3"))
    assert breakdown == pytest.approx({unit: um2 * 1e-12 for unit, um2 in by_hand.items()}, rel=1e-12)
    assert notes == ["area counts arithmetic lanes and SRAM, not registers, control, wires or address generation"]


def test_every_buffer_of_bytes_that_the_machine_uses_is_in_the_area(make_trace):
    hardware = load_hardware("adder_hbm3")
    capacities = schedule(compile_trace(make_trace("prop"), hardware), hardware).capacities
    slot_bytes = {"k_buffer": hardware.k_buffer, "v_buffer": hardware.v_buffer, "weights": hardware.weights_buffer,
                  "stash_reads": hardware.weights_buffer}  # fmt: skip
    slot_bytes |= {name: hardware.write_buffer for name in capacities if name.endswith("_writes") and name != "output_writes"}
    registers = {"q_buffer", "scores", "rows", "stash_tiles", "output_writes"}
    assert set(capacities) == set(slot_bytes) | registers
    assert sram_sizes(hardware) == {name: capacities[name] * slot.tile_bytes for name, slot in slot_bytes.items()} | {"stash": hardware.stash.bytes}


@pytest.mark.parametrize("name", ISO)
def test_equal_area_machines_differ_from_the_mac_machine_by_less_than_two_lanes(name):
    machine, mac = load_hardware(name), load_hardware(name.replace("adder", "mac").removesuffix("_iso_area"))
    iso, dense = area(meta("bf16"), machine)[0], area(meta("bf16"), mac)[0]
    assert 0 <= sum(dense.values()) - sum(iso.values()) < 2 * machine.energy.operation_area_m2("add_fp32")
    assert sum(iso.values()) == pytest.approx(sum(dense.values()), rel=2e-4)
    changed = {"score", "accumulate"}
    assert {unit: one for unit, one in iso.items() if unit not in changed} == {unit: one for unit, one in dense.items() if unit not in changed}
    assert iso["sram"] > 0
    for factor in (0.71, 1.66):  # the spread of SRAM's area moves both alike
        moved = [sum(area(meta("bf16"), one.model_copy(update={"energy": times(one.energy, "sram_area_m2_per_byte", factor)}))[0].values())
                 for one in (machine, mac)]  # fmt: skip
        assert moved[0] == pytest.approx(moved[1], rel=2e-4)
        assert moved[1] - sum(dense.values()) == pytest.approx((factor - 1) * dense["sram"], rel=1e-9)


@pytest.mark.parametrize(("operand", "ratio"), [("fp16", 0.9999), ("int8", 0.969), ("int16", 0.888), ("fp32", 0.754)])
def test_equal_area_holds_for_16_bit_floats_and_is_less_for_other_types(operand, ratio):
    assert total("adder_hbm3_iso_area", operand) / total("mac_hbm3", operand) == pytest.approx(ratio, abs=5e-4)


def test_area_scales_with_the_node_sram_too():
    there = area(meta("bf16"), load_hardware({"base": "adder_hbm3", "technology": {"node_nm": 7, "supply_v": 0.7}}))[0]
    here = area(meta("bf16"), load_hardware("adder_hbm3"))[0]
    assert there == pytest.approx({unit: 0.059 * m2 for unit, m2 in here.items()}, rel=1e-9)


@pytest.mark.parametrize(
    ("operation", "units", "stages", "count"),
    [
        ("exp", {"softmax": 32, "budget": 16, "merge": 128}, ("softmax",), "exps"),
        ("random_number", {"sampler": 8}, ("sampling",), "random_numbers"),
        ("compare", {"softmax": 32, "selection": 64, "budget": 16, "sampler": 32}, ("softmax", "sampling"), "compares"),
        ("floor", {"budget": 16, "sampler": 32}, ("sampling",), "floors"),
    ],
)
def test_composed_operations_are_in_area_and_energy(sampled, operation, units, stages, count):
    machine = load_hardware("adder_hbm3")
    free = machine.model_copy(update={"energy": times(machine.energy, f"composed.{operation}", 0.0)})
    with_it, without = simulate(sampled, machine), simulate(sampled, free)
    each = machine.energy.operation_area_m2(operation)
    for unit, m2 in with_it.area_breakdown_m2.items():
        assert m2 - without.area_breakdown_m2[unit] == pytest.approx(units.get(unit, 0) * each, abs=1e-20)
    for stage in stages:
        assert with_it.ops[stage][count] > 0
        charged = with_it.energy_breakdown_j[stage] - without.energy_breakdown_j[stage]
        assert charged == pytest.approx(with_it.ops[stage][count] * machine.energy.operation_j(operation), rel=1e-6)


def test_an_unknown_sram_area_counts_as_0_and_is_named():
    machine = load_hardware({"base": "adder_hbm3", "energy": load_hardware("adder_hbm3").energy.model_dump() | {"sram_area_m2_per_byte": None}})
    breakdown, notes = area(meta("bf16"), machine)
    assert breakdown["sram"] == 0
    assert notes[0].startswith("area counts arithmetic lanes, not") and notes[1].startswith("SRAM area of adder_hbm3")
