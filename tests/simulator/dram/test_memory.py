"""The memory with state: the outcome doesn't depend on how it is asked, limits hold, nothing is lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_sim.errors import InputError
from santa_sim.simulator.dram import Dram, Port, load_dram
from santa_sim.simulator.dram.memory import check_addresses

CONFIGS = {
    "ddr4": load_dram("ddr4_3200"),
    "hbm3": load_dram("hbm3"),
    "closed": load_dram("lpddr5_6400").replace(policy={"name": "textbook", "page": "closed", "read_queue": 8,
    "write_queue": 8, "write_high": 6, "write_low": 2}),
    "dramsim3": load_dram("ddr4_3200").replace(policy={"name": "dramsim3"}),
    "dramsim3_hbm": load_dram("hbm2").replace(policy={"name": "dramsim3"}, refresh={"kind": "all-bank"},
    organization={"pseudo_channels": 1}),
}  # fmt: skip


def requests(seed, n, config, writes=0.2):
    """Short runs of bursts in a small region (so that reads merge and writes are read back), with times."""
    rng = np.random.default_rng(seed)
    burst = config.organization.burst_bytes
    starts = rng.integers(0, (1 << 20) // burst, n)[:, None] + np.arange(4)
    address = (starts.ravel()[:n] * burst).astype(np.int64)
    ready = np.cumsum(rng.integers(0, 6, n)) * config.timing.clock_fs
    return address, rng.random(n) < writes, ready


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(CONFIGS)), st.integers(0, 2**32), st.integers(1, 120), st.lists(st.integers(1, 119),
    max_size=6), st.sampled_from([None, 1, 3, 32]), st.integers(0, 5),
)  # fmt: skip
def test_cutting_the_stream_changes_nothing(name, seed, n, cuts, outstanding, extra):
    config = CONFIGS[name]
    address, write, ready = requests(seed, n, config)
    port = Port(outstanding=outstanding, lookahead=4, per_clock=2)

    whole = Dram(config, [port])
    ticket = whole.request(0, address, write, ready_fs=ready)
    whole.finish()

    cut = Dram(config, [port])
    parts = []
    edges = sorted({0, n, *(c for c in cuts if c < n)})
    for first, last in zip(edges, edges[1:], strict=False):
        now = int(ready[first])
        for step in range(extra + 1):  # advancing in steps, up to when the next part is asked for
            cut.advance(cut.now_fs + (now - cut.now_fs) * (step + 1) // (extra + 1))
        parts.append(
            cut.request(max(now, cut.now_fs), address[first:last], write[first:last], ready_fs=ready[first:last])
        )
    cut.finish()

    assert np.array_equal(np.concatenate([part.done_fs for part in parts]), ticket.done_fs)
    assert cut.counts() == whole.counts()
    assert cut.now_fs == whole.now_fs
    assert cut.energy_j() == whole.energy_j()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(CONFIGS)), st.integers(0, 2**32), st.integers(1, 150), st.floats(0, 1))
def test_nothing_is_lost(name, seed, n, writes):
    config = CONFIGS[name]
    address, write, ready = requests(seed, n, config, writes)
    memory = Dram(config, [Port()])
    ticket = memory.request(0, address, write, ready_fs=ready)
    memory.finish()
    counts = memory.counts()
    assert ticket.complete and (ticket.done_fs > ready).all()
    assert (
        counts["reads_completed"]
        == (~write).sum()
        == counts["reads"] + counts["reads_merged"] + counts["reads_forwarded"]
    )
    assert counts["writes_completed"] == write.sum() == counts["writes"] + counts["writes_coalesced"]
    assert counts["writes_pending"] == 0
    assert counts["precharges"] <= counts["activates"]
    assert counts["read_row_hits"] + counts["write_row_hits"] <= counts["reads"] + counts["writes"]


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("limit", [1, 2, 7, 64])
def test_outstanding_requests_are_the_requesters(name, limit):
    config = CONFIGS[name]
    rng = np.random.default_rng(3)
    address = rng.integers(0, 1 << 14, 400) * 4096
    memory = Dram(config, [Port(outstanding=limit)])
    done = memory.wait(memory.request(0, address)).astype(np.int64)
    # Each request was sent when at most `limit` of those before it were under way: the (i - limit)-th completion in
    # order.
    clock = config.timing.clock_fs
    soonest = np.sort(done)
    assert (soonest[limit:] >= soonest[:-limit] + (config.timing.read_delay + 1) * clock).all()


def test_more_outstanding_is_faster_until_the_banks_are_busy():
    rng = np.random.default_rng(5)
    address = rng.integers(0, 1 << 20, 1500) * 256
    times = []
    for limit in (1, 8, 64, 512):
        memory = Dram("hbm3", [Port(outstanding=limit, lookahead=limit)])
        times.append(memory.wait(memory.request(0, address)).max())
    assert times[0] > 6 * times[1] > 20 * times[2] and times[2] >= times[3]


def test_a_lone_read_takes_activate_plus_read_latency():
    config = load_dram("ddr4_3200")
    t = config.timing
    memory = Dram(config)
    done = memory.wait(memory.request(0, np.array([0])))
    # offered in clock 0, activated in clock 1
    assert done.tolist() == [(1 + t.nRCD_read + t.nCL + t.nBL) * t.clock_fs]
    again = memory.wait(memory.request(memory.now_fs, np.array([64])))
    # asked for as soon as the first was known to complete: a row hit, the long column spacing after it
    assert again.tolist() == [(1 + t.nRCD_read + t.nCCD_L + t.nCL + t.nBL) * t.clock_fs]
    assert memory.counts()["read_row_hits"] == 1


def test_ports_share_the_memory_fairly():
    config = CONFIGS["ddr4"]
    rng = np.random.default_rng(0)
    memory = Dram(config, [Port(outstanding=16), Port(outstanding=16)])
    tickets = [memory.request(0, rng.integers(0, 1 << 20, 800) * 64, port=i) for i in range(2)]
    memory.finish()
    last = [ticket.last_fs for ticket in tickets]
    assert abs(last[0] - last[1]) < 0.05 * max(last)


def test_a_request_waits_for_the_one_before_it():
    config = CONFIGS["ddr4"]
    memory = Dram(config)
    ready = np.array([10**9, 0])
    done = memory.wait(memory.request(0, np.array([0, 1 << 20]), ready_fs=ready))
    assert (done > 10**9).all()


def test_posted_writes_complete_early_and_reads_see_them():
    memory = Dram("ddr4_3200")
    write = memory.wait(memory.request(0, np.array([0]), True))
    read = memory.wait(memory.request(memory.now_fs, np.array([0])))
    assert write[0] <= 3 * memory.config.timing.clock_fs and read[0] >= write[0]
    memory.finish()
    assert memory.counts()["writes"] == 1


def test_memory_does_not_grow_with_the_stream():
    memory = Dram("hbm3", [Port(outstanding=64)])
    address = np.arange(4096) * 32
    sizes = set()
    for _ in range(20):
        memory.wait(memory.request(memory.now_fs, address))
        sizes.add((memory._ring.size, memory._state.size))
    assert len(sizes) == 1


def test_late_and_wrong_requests():
    memory = Dram("ddr4_3200")
    memory.advance(10**9)
    with pytest.raises(InputError, match="now_fs = 5 lies before"):
        memory.request(5, np.array([0]))
    with pytest.raises(InputError, match="port = 1 does not exist"):
        memory.request(10**9, np.array([0]), port=1)
    with pytest.raises(InputError, match="ready_fs has shape"):
        memory.request(10**9, np.array([0, 64]), ready_fs=np.array([0]))
    with pytest.raises(InputError, match="outstanding=0"):
        Port(outstanding=0)
    with pytest.raises(InputError, match="lookahead=1.5"):
        Port(lookahead=1.5)
    with pytest.raises(InputError, match="ports = 0"):
        Dram("ddr4_3200", [])
    check_addresses(memory.config, np.zeros(0, np.int64))


def test_no_requests_are_complete_at_once():
    memory = Dram("ddr4_3200")
    ticket = memory.request(0, np.zeros(0, np.int64))
    assert ticket.complete and ticket.last_fs == 0 and memory.next_done(10**12) == [ticket]
    assert memory.next_done(10**12) == [] and memory.now_fs <= 10**12
