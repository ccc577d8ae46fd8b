"""The table for people: prefixes, and what the energy leaves out."""

import dataclasses
import io

import numpy as np
import pytest
from rich.console import Console

import santa_sim
from santa_sim.report import render, si


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 J"), (8.784e-5, "87.84 µJ"), (1.0, "1 J"), (2.5e12, "2.5 TJ"), (3e-16, "3e-16 J")]
)
def test_numbers_have_prefixes(value, text):
    assert si(value, "J") == text


@pytest.fixture(scope="module")
def result():
    q, k = np.ones((2, 8), np.float32), np.ones((16, 1, 8), np.float32)
    return santa_sim.simulate(santa_sim.attention(q, k, k, "santa", S=4)[1], "adder_lpddr5")


def energy_line(result):
    console = Console(file=io.StringIO(), width=200)
    console.print(render(result))
    return next(line for line in console.file.getvalue().splitlines() if line.startswith("energy "))


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        (["dram_activate", "dram_read", "dram_write", "dram_background"], " without DRAM (not known)"),
        (["dram_background", "leakage"], " without DRAM background, leakage (not known)"),
        ([], ""),
    ],
)
def test_the_energy_says_what_it_leaves_out(result, unknown, said):
    line = energy_line(dataclasses.replace(result, energy_unknown=unknown))
    assert line.rstrip().endswith(si(result.energy_j, "J") + said)


def test_what_the_machine_does_not_know_gets_there(result):
    assert "leakage" in result.energy_unknown
    assert "leakage (not known)" in energy_line(result)


def line_of(result, name):
    console = Console(file=io.StringIO(), width=200)
    console.print(render(result))
    return next(line for line in console.file.getvalue().splitlines() if line.startswith(f"{name} "))


def test_the_area_is_the_sum_of_its_parts_and_says_what_it_is_of(result):
    assert result.area_m2 == pytest.approx(sum(result.area_breakdown_m2.values()))
    assert line_of(result, "area").split(maxsplit=1)[1].rstrip() == f"{result.area_m2 * 1e6:.4g} mm²  (lanes and SRAM, 45 nm)"
    bare = dataclasses.replace(result, area_breakdown_m2=result.area_breakdown_m2 | {"sram": 0.0}, played=None)
    assert line_of(bare, "area").rstrip().endswith("mm²  (lanes)")
    assert dataclasses.replace(result, area_breakdown_m2={}).area_m2 is None


def test_what_drams_row_waits_for_is_the_next_requests(result):
    waits = dataclasses.replace(result, stalls_fs={"requests": {"space_k_buffer": 95, "work_sampler": 5}}, utilization={"dram": 0.96})
    assert line_of(waits, "dram").split("96.0 %")[1].strip() == "the next request, meanwhile: buffer space (K) 95.0 %, work from sampler 5.0 %"
