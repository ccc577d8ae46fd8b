"""Configurations: what ships is consistent, and a mistake is an error that names the field."""

import numpy as np
import pytest

from santa_sim.errors import InputError
from santa_sim.hardware import load_hardware
from santa_sim.simulator.dram import load_dram, replay, shipped_drams

PEAK_GB_S = {
    "ddr4_3200": 25.6, "ddr5_4800": 38.4, "gddr6_14000": 448, "hbm2": 256, "hbm2e": 409.6, "hbm3": 819.2,
    "lpddr4_3200": 25.6,
    "lpddr5_6400": 51.2,
}  # fmt: skip


def test_what_ships():
    assert shipped_drams() == sorted(PEAK_GB_S)


@pytest.mark.parametrize("name", sorted(PEAK_GB_S))
def test_peak_is_pins_times_rate(name):
    assert load_dram(name).peak_bytes_per_s == pytest.approx(PEAK_GB_S[name] * 1e9, rel=2e-6)


@pytest.mark.parametrize("name", sorted(PEAK_GB_S))
def test_every_number_has_its_source_beside_it(name):
    from importlib import resources

    lines = (resources.files("santa_sim.hwmodels") / "dram" / f"{name}.yaml").read_text().splitlines()
    bare = [
        line for line in lines
        if line.startswith("  ") and any(c.isdigit() for c in line.split(":")[1]) and "#" not in line
    ]  # fmt: skip
    currents = [line for line in bare if "_ma:" in line or "vdd_v:" in line]  # their section says it once
    assert bare == currents


def test_stacks_multiply():
    one, four = load_dram("hbm3"), load_dram("hbm3").replace(organization={"stacks": 4})
    assert four.organization.capacity_bytes == 4 * one.organization.capacity_bytes
    assert four.peak_bytes_per_s == 4 * one.peak_bytes_per_s


def change(section, **fields):
    return {section: fields}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (change("timing", nRAS=10), "nRAS = 10.*tRAS.*nRCD_read = 22"),
        (change("timing", nREFI=500), "nREFI = 500.*nRFC"),
        (change("timing", nCCD_L=2), r"timing.nCCD_S = 4 is above timing.nCCD_L = 2"),
        (change("timing", nRCD=22), "nRCD: unknown key.*nRCD_read|nRCD"),
        (change("timing", clock_fs=0), "clock_fs = 0"),
        (change("timing", nRRD_L=400), "nRRD_L = 400"),
        (change("organization", channels=0), "channels = 0"),
        (change("organization", channels=3), "channels = 3 is not a power of two"),
        (change("organization", page_bytes=32), "page_bytes = 32 is less than one burst"),
        (change("organization", pseudo_channels=3), "pseudo_channels = 3"),
        (change("refresh", kind="per-bank"), "timing.nREFI_bank is missing"),
        (change("refresh", kind="sometimes"), "kind = 'sometimes'"),
        ({"policy": {"name": "textbook", "write_high": 80}}, "write_high = 80"),
        ({"policy": {"name": "textbook", "row_hit_capp": 4}}, "row_hit_capp: unknown key.*row_hit_cap"),
        ({"policy": {"name": "fcfs"}}, "policy"),
        ({"polizy": {"name": "textbook"}}, "polizy: unknown key.*policy"),
    ],
)
def test_a_mistake_names_the_field(changes, match):
    with pytest.raises(InputError, match=match):
        load_dram("ddr4_3200").replace(**changes)


def test_names_and_paths():
    with pytest.raises(InputError, match="'hbm33' is not shipped; did you mean"):
        load_dram("hbm33")
    with pytest.raises(InputError, match="nowhere.ini.*does not exist"):
        load_dram("nowhere.ini")
    with pytest.raises(InputError, match="nowhere.yaml.*does not exist"):
        load_dram("nowhere.yaml")


def test_a_file_of_ones_own(tmp_path):
    import yaml

    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(load_dram("lpddr5_6400").replace(name="mine").model_dump()))
    assert load_dram(path).name == "mine"
    assert load_dram(load_dram(path)).timing == load_dram("lpddr5_6400").timing


@pytest.mark.parametrize("name", ["ddr4_3200", "hbm3"])
def test_addresses_beyond_capacity(name):
    config = load_dram(name)
    end = config.organization.capacity_bytes
    assert replay(np.array([end - 1]), False, config).reads == 1
    with pytest.raises(InputError, match="addresses: .* is beyond the capacity"):
        replay(np.array([0, end]), False, config)
    with pytest.raises(InputError, match="addresses: -64 is negative"):
        replay(np.array([-64]), False, config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"timing": {"nRCD_read": True}}, "nRCD_read"),
        ({"organization": {"channels": 1 << 20}}, "channels"),
        ({"energy": {"idd0_ma": 1.0}}, "activate_j"),
        ({"energy": {"idd4r_ma": -3.0}}, "idd4r_ma"),
    ],
)
def test_slips_are_named(change, said):
    with pytest.raises(InputError, match=said):
        load_dram("ddr4_3200").replace(**change)


@pytest.mark.parametrize(
    ("energy", "said"),
    [
        ({"activate_pj": -1.0}, "activate_pj"),
        ({"read_pj_per_bit": 1e9}, r"read_pj_per_bit = 1000000000.0: more than 1,000 \(memories take some pJ a bit"),
        ({"refresh_pj": 1e12}, "refresh_pj"),
        ({"idle_w": 1e6}, "idle_w"),
    ],
)
def test_a_published_energy_is_neither_negative_nor_in_another_unit(energy, said):
    with pytest.raises(InputError, match=said):
        load_dram("hbm2").replace(energy=energy)


@pytest.mark.parametrize("clock_fs", [1, 10, 1250, 10**9])
def test_a_clock_in_another_unit_is_named_on_every_way_in(clock_fs):
    said = f"timing.clock_fs = {clock_fs:,} makes .* Gb/s a pin .*femtoseconds: 1250000 for 1.25 ns"
    with pytest.raises(InputError, match=said):
        load_dram("lpddr5_6400").replace(timing={"clock_fs": clock_fs})
    with pytest.raises(InputError, match=said):
        load_hardware({"base": "adder_lpddr5", "memory": {"dram_changes": {"timing": {"clock_fs": clock_fs}}}})


@pytest.mark.parametrize(("name", "nBL", "clocks"), [("ddr5_4800", 4, "8"), ("lpddr5_6400", 1, "2 or 4"), ("hbm3", 4, "2"), ("gddr6_14000", 4, "2 or 1")])
def test_a_burst_takes_the_clocks_of_its_transfers(name, nBL, clocks):
    with pytest.raises(InputError, match=rf"timing.nBL = {nBL} clocks don't fit .* so that a burst takes {clocks}$"):
        load_dram(name).replace(timing={"nBL": nBL})


def test_slower_data_clocks_and_unknown_standards_are_the_tables_own():
    whole = load_dram("lpddr5_6400")
    assert whole.replace(timing={"nBL": 4}).peak_bytes_per_s == whole.peak_bytes_per_s / 2
    assert whole.replace(standard="mine", timing={"nBL": 8}).peak_bytes_per_s == whole.peak_bytes_per_s / 4


def test_a_key_given_twice_in_an_ini(tmp_path):
    (tmp_path / "twice.ini").write_text("[timing]\ntRCD = 22\ntRCD = 30\n")
    with pytest.raises(InputError, match="line 3: tRCD is given a second time"):
        load_dram(tmp_path / "twice.ini")
