"""Energies by hand."""

import pytest

from santa_sim.simulator.dram import load_dram
from santa_sim.simulator.dram.energy import charge, command_energy

COUNTS = {"activates": 10, "reads": 100, "writes": 50, "refreshes": 2, "bank_refreshes": 0}


def test_from_currents():
    one = command_energy(load_dram("ddr4_3200"))
    clock, device = 0.625e-9, 8
    assert one.activate_j == pytest.approx(1.2e-3 * (57 * 74 - 52 * 52 - 37 * 22) * clock * device)
    assert one.read_j == pytest.approx(1.2e-3 * (168 - 52) * 4 * clock * device)
    assert one.write_j == pytest.approx(1.2e-3 * (150 - 52) * 4 * clock * device)
    assert one.refresh_j == pytest.approx(1.2e-3 * (250 - 52) * 560 * clock * device)
    assert (one.active_w, one.idle_w) == (pytest.approx(1.2e-3 * 52 * 8), pytest.approx(1.2e-3 * 37 * 8))


def test_published_per_bit():
    config = load_dram("hbm3").replace(energy={"kind": "published", "read_pj_per_bit": 1.0})
    assert command_energy(config).read_j * 2 == pytest.approx(512e-12)  # a 64-byte request is two bursts
    energy, notes = charge(config, COUNTS, 1.0, 1.0)
    assert energy["activate"] == pytest.approx(10 * 909e-12)
    assert energy["background"] == 0 and any("idle standby is not published" in note for note in notes)


def test_what_nobody_published_is_said_and_not_charged():
    energy, notes = charge(load_dram("lpddr5_6400"), COUNTS, 1.0, 1.0)
    assert set(energy.values()) == {0.0}
    assert {note.split("energy of ")[1].split(" is")[0] for note in notes} == {
        "activates", "reads", "writes", "refreshes", "standby with an open row", "idle standby",
    }  # fmt: skip
