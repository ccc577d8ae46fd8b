"""DRAMsim3 configuration files."""

import pytest

from santa_sim.errors import InputError
from santa_sim.simulator.dram import load_dram

DDR4 = """
[dram_structure]
protocol = DDR4
bankgroups = 4
banks_per_group = 4
rows = 65536
columns = 1024
device_width = 8
BL = 8
[timing]
tCK = 0.63 ; nanoseconds
CL = 22
CWL = 16
tRCD = 22
tRP = 22
tRAS = 52
tRFC = 560
tREFI = 12480
tCCD_S = 4
tCCD_L = 8
tRTRS = 1
[power]
VDD = 1.2
[system]
channel_size = 16384
channels = 1
bus_width = 64
address_mapping = rochrababgco
[other]
epoch_period = 1587301
"""


def read(tmp_path, text):
    path = tmp_path / "x.ini"
    path.write_text(text)
    return load_dram(path)


def test_derived_quantities(tmp_path):
    config = read(tmp_path, DDR4)
    o, t = config.organization, config.timing
    assert (o.ranks, o.page_bytes, o.burst_bytes, o.devices_per_rank) == (2, 8192, 64, 8)
    assert o.capacity_bytes == 16 << 30
    assert (t.clock_fs, t.nBL, t.nRTP, t.nWR) == (630_000, 4, 5, 10)  # tRTP and tWR are its defaults
    assert config.policy.name == "dramsim3" and config.policy.bank_queue == 16 and config.policy.read_queue == 32


def test_protocols(tmp_path):
    hbm = (
        DDR4.replace("DDR4", "HBM")
        .replace("device_width = 8", "device_width = 128")
        .replace("bus_width = 64", "bus_width = 128")
    )
    config = read(tmp_path, hbm.replace("BL = 8", "BL = 4").replace("columns = 1024", "columns = 64"))
    assert config.organization.command_buses == 2 and config.organization.page_bytes == 2048
    assert config.timing.nRCD_read == 24 and config.timing.nRCD_write == 20  # tRCDRD and tRCDWR are its defaults
    gddr = DDR4.replace("DDR4", "GDDR6").replace("BL = 8", "BL = 16").replace("columns = 1024", "columns = 128")
    config = read(tmp_path, gddr.replace("BL = 16", "BL = 16\nbankgroup_enable = false"))
    o, t = config.organization, config.timing
    assert (o.bank_groups, o.banks_per_group, t.nBL, t.n32AW, t.nCCD_L) == (1, 16, 1, 330, 4)
    assert config.policy.precharge_spacing


def test_the_closed_page_and_its_other_choices(tmp_path):
    text = DDR4.replace(
        "[system]", "[system]\nrow_buf_policy = CLOSE_PAGE\nqueue_structure = PER_RANK\nunified_queue = True"
    )
    policy = read(tmp_path, text).policy
    assert (policy.page, policy.queue_per, policy.unified_queue) == ("closed", "rank", True)


def test_a_rank_beyond_the_channel_is_noted(tmp_path):
    config = read(tmp_path, DDR4.replace("channel_size = 16384", "channel_size = 1024"))
    assert config.organization.ranks == 1 and "channel_size = 1024" in config.notes[0]


def test_an_empty_value_takes_the_default_and_says_so(tmp_path):
    config = read(tmp_path, DDR4.replace("tRFC = 560", "tRFC ="))
    assert config.timing.nRFC == 74
    assert config.notes == ["x.ini, line 17: tRFC has no value; 74, DRAMsim3's default"]


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("tRAS = 52", "tRAS = 12", "nRAS = 12 .tRAS. is below"),
        ("tRAS = 52", "tRASS = 52", "line 16: tRASS is an unknown key; did you mean 'tRAS'"),
        ("tRAS = 52", "tRAS = soon", "tRAS = 'soon' must be a whole number"),
        ("tRAS = 52", "tRAS = 13.5", "tRAS = '13.5' must be a whole number"),
        ("tCK = 0.63", "tCK = 0", "tCK = 0.0 must be above 0"),
        ("channels = 1", "channels = 0", "channels = 0 must be at least 1"),
        ("protocol = DDR4", "protocol = DDR44", "protocol='DDR44' is not known; did you mean"),
        ("protocol = DDR4", "protocol = HMC", "protocol = 'HMC' is not modelled"),
        ("BL = 8", "BL = 0", "BL = 0 must be at least 1"),
        ("[other]", "[system]\nenable_self_refresh = true\n[other]", "enable_self_refresh = true is not modelled"),
        ("address_mapping = rochrababgco", "address_mapping = rochrababg", "address_mapping"),
        ("CL = 22\n", "CL\n", "line 12: 'CL' is neither"),
        ("[power]", "[power]\ntRP = 3", "tRP stands in .power.; it belongs in .timing."),
    ],
)
def test_a_mistake_names_the_key(tmp_path, old, new, match):
    with pytest.raises(InputError, match=match):
        read(tmp_path, DDR4.replace(old, new, 1))
