"""A memory alone against closed forms, against other people's simulator, and against conservation laws."""

import csv
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_sim.errors import InputError
from santa_sim.simulator.dram import load_dram, replay, replay_chunks, shipped_drams
from santa_sim.simulator.dram.energy import command_energy

GOLDEN = Path(os.environ.get("SANTA_SIM_GOLDEN", Path(__file__).parents[4] / "shared" / "golden")) / "dram"
QUIET = {"refresh": {"kind": "none"}}


def one_bank_rows(config, n, bank=0):
    """Addresses of the first burst of n successive rows of one bank (no hashing)."""
    size = config.organization
    row_bytes = size.capacity_bytes // size.rows
    return np.arange(n, dtype=np.int64) * row_bytes + bank


def plain(name, **changes):
    """A shipped memory without refresh and hashing, rows on top of its mapping."""
    config = load_dram(name)
    mapping = " ".join(["ro", *[part for part in config.address_mapping.split() if part != "ro"]])
    return config.replace(**({"address_hash": {}, "address_mapping": mapping} | QUIET | changes))


# --- closed forms


@pytest.mark.parametrize("name", shipped_drams())
def test_a_stream_reaches_peak(name):
    config = plain(name)
    n = 4096 * config.organization.buses
    report = replay(np.arange(n) * config.organization.burst_bytes, False, config)
    share = report.bandwidth_bytes_per_s / config.peak_bytes_per_s
    assert 0.97 < share <= 1


@pytest.mark.parametrize("name", shipped_drams())
def test_row_conflicts_in_one_bank_are_bound_by_the_row_cycle(name):
    config, n = plain(name), 400
    t = config.timing
    report = replay(one_bank_rows(config, n), False, config)
    cycle = max(t.nRAS, t.nRCD_read + t.nRTP) + t.nRP
    tail = t.nRCD_read + t.nCL + t.nBL
    assert report.activates == n and report.read_row_hits == 0
    assert report.cycles == 1 + (n - 1) * cycle + tail + 1


@pytest.mark.parametrize("name", ["ddr4_3200", "hbm2", "hbm3", "lpddr5_6400"])
def test_random_rows_are_bound_by_the_four_activate_window(name):
    """All banks take turns, one burst a row, on one channel: four activates per window."""
    config = plain(name)
    t, o = config.timing, config.organization
    wide = config.replace(timing={"nFAW": 8 * max(t.nRRD_L, t.nBL)})
    banks = np.arange(2000) % o.banks_per_rank
    rows = np.arange(2000) // o.banks_per_rank
    order = parse_places(wide, banks, rows)
    report = replay(order, False, wide)
    assert report.activates == 2000
    assert report.cycles == pytest.approx(2000 / 4 * wide.timing.nFAW, rel=0.03)


def parse_places(config, banks, rows):
    """Addresses of column 0 of the given banks and rows of channel 0, by searching the mapping for the bits."""
    pieces = config.mapping.pieces
    address = np.zeros(len(banks), np.int64)
    groups = config.organization.bank_groups
    fields = {2: banks % groups, 3: banks // groups, 4: rows}
    for bit, width, field, low in pieces:
        if field in fields:
            address |= ((fields[int(field)] >> low) & ((1 << int(width)) - 1)) << bit
    return address << config.mapping.burst_shift


@pytest.mark.parametrize("name", ["ddr4_3200", "ddr5_4800"])
def test_refresh_costs_its_share_of_a_stream(name):
    config = load_dram(name)
    t = config.timing
    n = 1 << 17
    address = np.arange(n) * config.organization.burst_bytes
    loss = replay(address, False, config).cycles / replay(address, False, config.replace(**QUIET)).cycles
    # while a refresh runs nothing else does; around it rows close and open again
    share = t.nRFC / t.nREFI
    reopen = (t.nRTP + t.nRP + t.nRCD_read + t.nRAS) / t.nREFI
    assert 1 / (1 - share) < loss < 1 / (1 - share - reopen)


def test_refreshes_fall_due_on_time():
    config = load_dram("ddr4_3200").replace(organization={"ranks": 2})
    report = replay(np.arange(1 << 16) * 64, False, config)
    assert report.refreshes == pytest.approx(2 * report.cycles / config.timing.nREFI, abs=1)
    banks = load_dram("hbm3")
    report = replay(np.arange(1 << 16) * 32, False, banks)
    assert report.bank_refreshes == pytest.approx(32 * report.cycles / banks.timing.nREFI_bank, abs=32)


def test_turnaround_costs_less_with_watermarks_further_apart():
    address = np.arange(40000) * 64
    write = np.arange(40000) % 2 == 1
    cycles = [
        replay(
            address,
            write,
            load_dram("ddr4_3200").replace(policy={"name": "textbook", "write_high": high, "write_low": low}),
        ).cycles
        for high, low in ((2, 1), (16, 8), (64, 0))
    ]
    assert cycles[0] > cycles[1] > cycles[2]


def test_closed_page_suits_random_rows_and_open_page_runs():
    rng = np.random.default_rng(0)
    lone = rng.integers(0, 1 << 21, 8000) * 4096
    run = np.arange(8000) * 64
    open_page, closed = (
        load_dram("ddr4_3200").replace(policy={"name": "textbook", "page": page}, **QUIET)
        for page in ("open", "closed")
    )
    assert replay(lone, False, closed, outstanding=4).cycles < replay(lone, False, open_page, outstanding=4).cycles
    assert replay(run, False, open_page, outstanding=1).cycles < replay(run, False, closed, outstanding=1).cycles
    assert replay(run, False, closed).precharges == 0  # auto-precharge rides on the column command


# --- conservation


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(shipped_drams()),
    st.integers(0, 2**32),
    st.integers(1, 400),
    st.sampled_from([None, 1, 9]),
    st.booleans(),
)
def test_bandwidth_stays_below_peak_and_everything_is_charged(name, seed, n, outstanding, dramsim3):
    config = load_dram(name)
    if dramsim3:
        config = config.replace(policy={"name": "dramsim3"})
    rng = np.random.default_rng(seed)
    address = rng.integers(0, 1 << 14, n) * config.organization.burst_bytes
    write = rng.random(n) < 0.3
    report = replay(address, write, config, outstanding=outstanding)
    assert 0 <= report.bandwidth_bytes_per_s <= config.peak_bytes_per_s
    assert report.reads + report.reads_merged + report.reads_forwarded == (~write).sum()
    assert report.writes + report.writes_coalesced == write.sum() and report.writes_pending == 0
    assert report.drained_cycles >= report.cycles
    one = command_energy(config)
    for kind, count, figure in (
        ("activate", report.activates, one.activate_j),
        ("read", report.reads, one.read_j),
        ("write", report.writes, one.write_j),
    ):
        assert report.energy_j[kind] == pytest.approx((figure or 0) * count)
    assert report.total_energy_j == pytest.approx(sum(report.energy_j.values()))


def test_the_same_address_again_and_again_stays_below_peak():
    report = replay(np.zeros(5000, np.int64), False, "ddr4_3200")
    assert report.reads + report.reads_merged == 5000 and report.reads_merged > 0
    assert report.bandwidth_bytes_per_s <= report.peak_bytes_per_s


def test_four_stacks_spend_the_same_on_the_same_bytes_and_four_times_the_standby():
    watts = {"active_w": 0.2, "idle_w": 0.2}
    one = load_dram("hbm3").replace(energy={"kind": "published", **watts})
    four = one.replace(organization={"stacks": 4})
    address = np.arange(1 << 17) * 32  # whole pages on both
    a, b = replay(address, False, one), replay(address, False, four)
    assert (a.reads, a.activates) == (b.reads, b.activates) or abs(
        a.activates - b.activates
    ) <= a.bank_refreshes + b.bank_refreshes
    assert a.energy_j["read"] == b.energy_j["read"]
    assert b.energy_j["background"] / b.time_s == pytest.approx(4 * a.energy_j["background"] / a.time_s)


def test_chunks_of_any_size_give_the_same_report():
    rng = np.random.default_rng(1)
    address, write = rng.integers(0, 1 << 20, 70_000) * 32, rng.random(70_000) < 0.1
    for issue in ("saturated", "in-order"):
        whole = replay(address, write, "hbm2", issue)
        edges = np.sort(rng.integers(0, 70_000, 300))
        pieces = [(a, w, None) for a, w in zip(np.split(address, edges), np.split(write, edges), strict=True)]
        assert replay_chunks(iter(pieces), "hbm2", issue) == whole


def test_pending_writes_are_left_only_when_asked():
    address, write = np.arange(40) * 64, np.ones(40, bool)
    config = load_dram("ddr4_3200").replace(policy={"name": "dramsim3"})
    kept, drained = replay(address, write, config, drain=False), replay(address, write, config)
    assert kept.writes + kept.writes_pending == 40 and kept.writes_pending > 0
    assert drained.writes == 40 and drained.cycles == kept.cycles < drained.drained_cycles


def test_timed_requests_are_not_early():
    ready = np.arange(100) * 1000
    report = replay(np.arange(100) * 64, False, "ddr4_3200", "timed", ready_cycles=ready)
    assert 99_000 < report.cycles < 99_100
    with pytest.raises(InputError, match="issue='timed' needs ready_cycles"):
        replay(np.arange(100) * 64, False, "ddr4_3200", "timed")


def test_requests_of_several_bursts():
    small = replay((np.arange(256) * 64)[:, None] + np.array([0, 32]), False, "hbm3")
    large = replay(np.arange(256) * 64, False, "hbm3", request_bytes=64)
    assert large == small and large.requests == 512
    with pytest.raises(InputError, match="request_bytes = 48 must be a multiple"):
        replay(np.arange(4), False, "hbm3", request_bytes=48)


def test_an_empty_trace_and_wrong_choices():
    empty = replay(np.zeros(0, np.int64), False, "ddr4_3200")
    assert (empty.cycles, empty.requests, empty.bandwidth_bytes_per_s, empty.total_energy_j) == (0, 0, 0.0, 0.0)
    with pytest.raises(InputError, match="issue='saturate' is not known; did you mean 'saturated'"):
        replay(np.zeros(1, np.int64), False, "ddr4_3200", "saturate")
    with pytest.raises(InputError, match="writes has shape"):
        replay(np.zeros(2, np.int64), np.zeros(3, bool), "ddr4_3200")


def test_a_write_behind_a_read_of_its_own_address_is_not_starved():
    """The write buffer is full of writes to addresses that reads wait for: DRAMsim3 would stop here."""
    address = np.repeat(np.arange(64) * 64, 4)
    write = np.tile([False, True, False, True], 64)
    config = load_dram("ddr4_3200").replace(policy={"name": "dramsim3"})
    rng = np.random.default_rng(0)
    for _ in range(20):
        order = rng.permutation(len(address))
        report = replay(address[order], write[order], config)
        assert report.reads + report.reads_merged + report.reads_forwarded == 128


# --- DRAMsim3's results


def golden_rows():
    if not (GOLDEN / "golden.csv").is_file():
        return []
    with (GOLDEN / "golden.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def golden_traces():
    path = GOLDEN / "make_traces.py"
    if not path.is_file():
        pytest.skip(
            f"{path.name} of the golden DRAM results is missing: set SANTA_SIM_GOLDEN to the folder that holds dram/"
        )
    spec = importlib.util.spec_from_file_location("golden_make_traces", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.traces()


@pytest.mark.skipif(
    not golden_rows(),
    reason="golden.csv of the golden DRAM results is missing: set SANTA_SIM_GOLDEN to the folder that holds dram/",
)
@pytest.mark.parametrize("row", golden_rows(), ids=lambda row: f"{row['config']}-{row['trace']}-{row['issue']}")
def test_every_golden_row_exactly(row, golden_traces):
    address, write = golden_traces[row["trace"]]
    config = load_dram(GOLDEN / "configs" / f"{row['config']}.ini")
    report = replay(address, write, config, row["issue"].replace("_", "-"), drain=False)
    for name in ("cycles", "activates", "reads", "writes", "read_row_hits", "refreshes"):
        assert getattr(report, name) == int(row[name]), name
    for kind, column in (("activate", "act"), ("read", "read"), ("write", "write"), ("refresh", "refresh")):
        assert report.energy_j[kind] * 1e12 == pytest.approx(float(row[f"{column}_energy_pj"]), rel=1e-6), kind
    assert report.total_energy_j * 1e12 == pytest.approx(float(row["total_energy_pj"]), rel=1e-6)
