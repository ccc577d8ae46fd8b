"""Machines in YAML: what ships, what a file of one's own can say, and what a mistake in one says."""

import pytest
import yaml

from santa_sim.errors import InputError
from santa_sim.hardware import load_hardware
from santa_sim.hardware_model import Hardware, Technology
from santa_sim.simulator.energy import load_energy

SHIPPED = (
    "adder_ddr5", "adder_ddr5_iso_area", "adder_hbm3", "adder_hbm3_bandwidth", "adder_hbm3_iso_area", "adder_lpddr5",
    "adder_lpddr5_bandwidth", "adder_lpddr5_iso_area", "mac_ddr5", "mac_hbm3", "mac_hbm3_bandwidth", "mac_lpddr5", "mac_lpddr5_bandwidth",
)  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_machine_loads_under_its_name(name):
    machine = load_hardware(name)
    assert isinstance(machine, Hardware)
    assert machine.name == name
    assert load_hardware(machine) is machine
    assert machine.technology.node_nm == machine.energy.node_nm == 45


@pytest.mark.parametrize("memory", ["hbm3", "lpddr5", "ddr5", "hbm3_bandwidth", "lpddr5_bandwidth"])
def test_mac_and_adder_machines_have_equal_lanes_and_the_same_parts_otherwise(memory):
    mac, adder = load_hardware(f"mac_{memory}"), load_hardware(f"adder_{memory}")
    assert mac.score.mac_lanes == adder.score.mac_lanes + adder.score.adder_lanes
    assert mac.accumulate.lanes == adder.accumulate.lanes
    assert (mac.accumulate.kind, adder.accumulate.kind) == ("mac", "adder")
    differ = {"name", "description", "score", "accumulate", "v_offset_bytes"}  # where V lies is software
    assert mac.model_dump(exclude=differ) == adder.model_dump(exclude=differ)


@pytest.mark.parametrize("memory", ["hbm3", "lpddr5", "ddr5"])
def test_iso_area_machine_spends_the_multipliers_area_on_adders(memory):
    table = load_energy("horowitz_45nm")
    adder = table.operation_area_m2("add_fp32")
    mac = adder + table.operation_area_m2("mult_bf16")
    mac_machine, iso = load_hardware(f"mac_{memory}"), load_hardware(f"adder_{memory}_iso_area")
    budget = (mac_machine.score.mac_lanes + mac_machine.accumulate.lanes) * mac
    spent = iso.score.mac_lanes * mac + (iso.score.adder_lanes + iso.accumulate.lanes) * adder
    assert budget - 2 * adder < spent <= budget  # less than a lane of each stage unspent


def test_bandwidths_are_pins_times_rate():
    assert load_hardware("adder_hbm3").memory.bandwidth_bytes_per_s == 1024 * 6_400_000_000 // 8
    assert load_hardware("adder_lpddr5").memory.bandwidth_bytes_per_s == 64 * 6_400_000_000 // 8
    assert load_hardware("adder_ddr5").memory.bandwidth_bytes_per_s == pytest.approx(64 * 4_800_000_000 / 8, rel=1e-6)


def test_ddr5_and_lpddr5_machines_differ_in_their_memory_alone():
    other = {"name", "description", "memory"}
    for kind in ("mac_{}", "adder_{}", "adder_{}_iso_area"):
        ddr5, lpddr5 = load_hardware(kind.format("ddr5")), load_hardware(kind.format("lpddr5"))
        assert ddr5.model_dump(exclude=other) == lpddr5.model_dump(exclude=other)


def test_base_and_changes(tmp_path):
    path = tmp_path / "wide.yaml"
    path.write_text("base: adder_hbm3_bandwidth\nmemory: {bandwidth_bytes_per_s: 1638.4e9}\nscore: {mac_lanes: 4096}\n")
    wide, base = load_hardware(path), load_hardware("adder_hbm3_bandwidth")
    assert wide.name == "wide"
    assert wide.memory.bandwidth_bytes_per_s == 2 * base.memory.bandwidth_bytes_per_s
    assert wide.score.mac_lanes == 4096
    assert wide.score.adder_lanes == base.score.adder_lanes
    assert wide.memory.energy == base.memory.energy

    wider = tmp_path / "wider.yaml"
    wider.write_text(f"base: {path}\nclock_hz: 2e9\n")
    assert load_hardware(str(wider)).score.mac_lanes == 4096
    assert load_hardware({"base": "mac_hbm3", "clock_hz": 2e9}).name == "mac_hbm3 (changed)"


def test_base_that_leads_back_is_an_error(tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text(f"base: {path}\n")
    with pytest.raises(InputError, match="leads back to itself"):
        load_hardware(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hbm_bandwith": 1}, r"hbm_bandwith: unknown key; did you mean 'memory.bandwidth_bytes_per_s'\?"),
        ({"memory": {"hbm_bandwith": 1}}, r"memory.hbm_bandwith: .*; did you mean 'memory.bandwidth_bytes_per_s'\?"),
        ({"mac_lanes": 1}, r"mac_lanes: unknown key; did you mean 'score.mac_lanes'\?"),
        ({"q_buffer_bytes": 65536}, "q_buffer_bytes: unknown key"),
        ({"hbm": 1}, "hbm: unknown key; choose from accumulate, budget"),
        ({"memory": {"bandwith_bytes_per_s": 1e12}}, "did you mean 'bandwidth_bytes_per_s'"),
        ({"memory": {"bandwidth_bytes_per_s": 0}}, "memory.bandwidth_bytes_per_s = 0"),
        ({"memory": {"page_bytes": 100}}, "memory.page_bytes = 100: .*multiple of burst_bytes=32"),
        ({"memory": {"latency_s": -1e-9}}, "memory.latency_s = -1e-09"),
        ({"clock_hz": "fast"}, "clock_hz = 'fast'"),
        ({"clock_hz": 1.5e9 + 0.5}, "clock_hz = 1500000000.5"),
        ({"clock_hz": True}, "clock_hz = "),
        ({"score": {"mac_lanes": 0, "adder_lanes": 0}}, "score.adder_lanes = 0: .*nothing can score"),
        ({"score": {"mac_lanes": -4}}, "score.mac_lanes = -4"),
        ({"accumulate": {"kind": "multiplier"}}, "accumulate.kind = 'multiplier'"),
        ({"lookahead_tiles": 17}, "lookahead_tiles = 17: .*write lookahead_tiles: 16"),
        ({"gather": {"outstanding": 0}}, "gather.outstanding = 0"),
        ({"technology": {"node_nm": 28}}, "technology.node_nm=28.0 is not in the scaling table"),
        ({"energy": "horowitz_45"}, "did you mean 'horowitz_45nm'"),
        ({"base": 3}, "base=3"),
        ({"memory": {"latency_s": True}}, "memory.latency_s = True: true and false are not numbers"),
        ({"memory": {"energy": {"activate_j": True}}}, "activate_j = True: true and false"),
        ({"memory": {"energy": {"background_w": True}}}, "background_w = True: true and false"),
        ({"technology": {"supply_v": True}}, "supply_v = True: true and false"),
        ({"technology": {"supply_v": "0.9 V"}}, "supply_v = '0.9 V'"),
        ({"normalize": {"shifter": 1}}, "normalize.shifter = 1"),
        ({"softmax": {"adders_per_lane": 1e14}}, "softmax.adders_per_lane = .*more than 1,024"),
        ({"sampler": {"adders_per_lane": 1e14}}, "sampler.adders_per_lane = .*more than 1,024"),
        ({"softmax": {"lanes": 1e14}}, "softmax.lanes = .*more than 1,000,000,000"),
        ({"score": {"mac_lanes": 10**5000}}, r"score.mac_lanes = \(a number too long to print\)"),
        ({"gather": {"outstanding": 1e9}}, "gather.outstanding = .*more than 1,048,576"),
        ({"k_buffer": {"tile_bytes": 1e14}}, "k_buffer.tile_bytes = .*1 TiB"),
        ({"memory": {"energy": {"activate_j": 1e308}}}, "memory.energy.activate_j = 1e.308: more than 1e-06"),
        ({"memory": {"energy": {"read_j_per_bit": 3.48}}}, "read_j_per_bit = 3.48: more than 1e-06"),
        ({"technology": {"supply_v": 1e200}}, r"technology.supply_v=1e\+200 can't be scaled .* write 0.5 ... 1.32 V"),
        ({"technology": {"supply_v": 0.01}}, "hardware: technology.supply_v=0.01 can't be scaled"),
        ({"technology": 45}, "technology = 45"),
        ({"energy": 5}, "energy = 5"),
        ({"base": ""}, "base hardware='' is empty"),
        ({1: 2}, "1 = .*should be strings"),
    ],
)
def test_mistakes_name_field_and_value(change, message):
    with pytest.raises(InputError, match=message):
        load_hardware({"base": "adder_hbm3_bandwidth"} | change)


def test_missing_field_unknown_name_and_wrong_kind():
    with pytest.raises(InputError, match="clock_hz: missing"):
        load_hardware({"description": "nothing"})
    with pytest.raises(InputError, match="did you mean 'mac_hbm3'"):
        load_hardware("mac_hmb3")
    with pytest.raises(InputError, match="does not exist"):
        load_hardware("machines/none.yaml")
    with pytest.raises(InputError, match="hardware=7"):
        load_hardware(7)


@pytest.mark.parametrize("nothing", ["", " ", {}])
def test_nothing_is_no_machine(nothing):
    with pytest.raises(InputError, match="is empty|has no fields"):
        load_hardware(nothing)


def test_numbers_may_come_as_text_without_a_dot_as_yaml_readers_give_them():
    memory = {"latency_s": "1e-7", "energy": {"background_w": "2"}}
    machine = load_hardware({"base": "adder_hbm3_bandwidth", "clock_hz": "2e9", "memory": memory, "softmax": {"lanes": 64.0}})
    assert (machine.clock_hz, machine.memory.latency_s, machine.memory.energy.background_w) == (2 * 10**9, 1e-7, 2.0)
    assert machine.softmax.lanes == 64


def test_dram_and_energy_tables_of_ones_own_may_start_from_shipped_ones(tmp_path):
    (tmp_path / "mine.yaml").write_text("base: lpddr5_6400\ntiming: {nCL: 20}\nenergy: {read_pj_per_bit: 4.0}\n")
    (tmp_path / "logic.yaml").write_text("base: horowitz_45nm\nsource: ours\nadd_j: {fp32: 0.5e-12}\n")
    (tmp_path / "machine.yaml").write_text("base: adder_lpddr5\nmemory: {dram: mine.yaml}\nenergy: logic.yaml\n")
    machine, shipped = load_hardware(tmp_path / "machine.yaml"), load_hardware("adder_lpddr5")
    dram, below = machine.memory.config, shipped.memory.config
    assert (dram.name, dram.timing.nCL, dram.energy.read_pj_per_bit) == ("mine", 20, 4.0)
    assert dram.timing.nRP == below.timing.nRP and dram.organization == below.organization
    assert machine.energy.source == "ours"
    assert machine.energy.add_j == shipped.energy.add_j | {"fp32": 0.5e-12}
    assert machine.energy.sram == shipped.energy.sram


def test_tables_may_start_from_files_of_ones_own(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "slow.yaml").write_text("base: lpddr5_6400\ntiming: {nCL: 20}\n")
    (tmp_path / "mine.yaml").write_text("base: tables/slow.yaml\ntiming: {nRP: 17}\n")
    machine = load_hardware({"base": "adder_lpddr5", "memory": {"dram": str(tmp_path / "mine.yaml")}})
    dram = machine.memory.config
    assert (dram.name, dram.timing.nCL, dram.timing.nRP) == ("mine", 20, 17)
    (tmp_path / "tables" / "slow.yaml").write_text("base: lpddr5_6400\ntiming: {nCL: 2000}\n")
    assert machine.memory.config.timing.nCL == 2000  # the file below is read again


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("lpddr5_640", "mine.yaml: base='lpddr5_640' is not known; did you mean 'lpddr5_6400'"),
        ("[1]", "mine.yaml: base=.* is not known; choose from ddr4_3200"),
        ("mine.yaml", "mine.yaml: base='.*mine.yaml' leads back to itself"),
        ("other.yaml", "mine.yaml: base DRAM file '.*other.yaml' does not exist"),
    ],
)
def test_the_base_of_a_table_is_another_one(tmp_path, base, message):
    path = tmp_path / "mine.yaml"
    path.write_text(f"base: {base}\n")
    with pytest.raises(InputError, match=message):
        load_hardware({"base": "adder_lpddr5", "memory": {"dram": str(path)}})


def test_a_table_that_was_scaled_says_so_among_the_machines_notes(tmp_path):
    (tmp_path / "logic.yaml").write_text("base: horowitz_45nm\nnode_nm: 7\nsupply_v: 0.7\nadd_j: {fp32: 0.1e-12}\n")
    (tmp_path / "mine.yaml").write_text("base: adder_hbm3\nenergy: logic.yaml\ntechnology: {node_nm: 7, supply_v: 0.7}\n")
    machine = load_hardware(tmp_path / "mine.yaml")
    (note,) = machine.notes
    assert "logic.yaml: what it doesn't give" in note and machine.energy.add_j["fp32"] == 0.1e-12
    assert load_hardware(machine.model_dump()) == machine


def test_paths_in_a_file_are_relative_to_it(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "tables").mkdir()
    table = load_energy("horowitz_45nm").model_dump(mode="json") | {"source": "mine"}
    (tmp_path / "tables" / "mine.yaml").write_text(yaml.safe_dump(table))
    (tmp_path / "below.yaml").write_text("base: adder_hbm3\nenergy: tables/mine.yaml\n")
    (tmp_path / "tables" / "above.yaml").write_text("base: ../below.yaml\nclock_hz: 2e9\n")
    for path in ("../tables/above.yaml", tmp_path / "tables" / "above.yaml"):
        machine = load_hardware(path)
        assert (machine.energy.source, machine.clock_hz) == ("mine", 2 * 10**9)
    (tmp_path / "broken.yaml").write_text("base: adder_hbm3\nenergy: mine.yaml\n")
    with pytest.raises(InputError, match=f"broken.yaml: energy table file '{tmp_path}/mine.yaml' does not exist"):
        load_hardware(tmp_path / "broken.yaml")


def test_bases_in_a_ring_are_found_whatever_their_paths_look_like(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.yaml").write_text("base: ../b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: inner/../inner/a.yaml\n")
    with pytest.raises(InputError, match="leads back to itself"):
        load_hardware(tmp_path / "b.yaml")


def test_file_that_is_no_mapping(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n")
    with pytest.raises(InputError, match="mapping of fields, not list"):
        load_hardware(path)


def test_another_node_scales_logic_and_sram_together_and_leaves_dram():
    here, there = (
        load_hardware("adder_hbm3"),
        load_hardware({"base": "adder_hbm3", "technology": {"node_nm": 7, "supply_v": 0.7}}),
    )
    ratio = there.energy.add_j["fp32"] / here.energy.add_j["fp32"]
    assert 0 < ratio < 0.2
    assert there.energy.sram[0].access_j / here.energy.sram[0].access_j == pytest.approx(ratio)
    assert there.memory == here.memory
    assert here.notes == ()
    (note,) = there.notes
    assert "scaled from 45 nm, 0.9 V to 7 nm, 0.7 V" in note
    assert "doi:10.1016/j.vlsi.2017.02.002" in note
    assert load_hardware(there.model_dump()) == there


def test_technology_as_a_record_scales_too():
    changed = {"base": "adder_hbm3", "technology": Technology(node_nm=7, supply_v=0.7)}
    assert load_hardware(changed).energy.node_nm == 7


def test_a_memory_of_another_model_replaces_the_whole(tmp_path):
    bus = load_hardware({"base": "adder_hbm3", "memory": {
        "bandwidth_bytes_per_s": 400e9, "latency_s": 1e-7, "burst_bytes": 64, "page_bytes": 2048,
        "energy": {"activate_j": None, "read_j_per_bit": None, "write_j_per_bit": None, "background_w": None},
    }})  # fmt: skip
    assert bus.memory.model == "bandwidth"
    banks = load_hardware({"base": "mac_hbm3_bandwidth", "memory": {"dram": "ddr5_4800", "controller_latency_s": 0}})
    assert banks.memory.model == "banks"
    assert banks.memory.burst_bytes == 64
    assert load_hardware({"base": "adder_hbm3", "memory": {"dram": "hbm2e"}}).memory.controller_latency_s == 50e-9


def test_a_dram_table_lies_beside_the_machine(tmp_path):
    import santa_sim.hwmodels.dram as tables

    folder = tmp_path / "mine"
    folder.mkdir()
    text = (next(iter(tables.__path__)) if hasattr(tables, "__path__") else "") + "/hbm2.yaml"
    (folder / "my_dram.yaml").write_text(open(text).read())
    (folder / "machine.yaml").write_text("base: adder_hbm3\nmemory: {dram: my_dram.yaml}\n")
    assert load_hardware(folder / "machine.yaml").memory.config.standard == "HBM2"
    with pytest.raises(InputError, match="memory.*hbm33"):
        load_hardware({"base": "adder_hbm3", "memory": {"dram": "hbm33"}})
    with pytest.raises(InputError, match="did you mean 'sequence-first'"):
        load_hardware({"base": "adder_hbm3", "kv_layout": "sequence_first"})
    with pytest.raises(InputError, match="bandwith_bytes_per_s"):
        load_hardware({"base": "adder_hbm3", "memory": {"bandwith_bytes_per_s": 1e9}})
