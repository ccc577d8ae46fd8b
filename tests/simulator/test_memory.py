"""The memory bus: exact arithmetic, hand-computed timelines, burst addresses against their definition."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from santa_sim.hardware_model import DramEnergy, MemoryModel
from santa_sim.simulator.compile import Region, Rows, addresses_of, addresses_of_rows
from santa_sim.simulator.memory import BandwidthMemory, Window, address_times_fs, cycles_fs

NS = 10**6
FREE = DramEnergy(activate_j=None, read_j_per_bit=None, write_j_per_bit=None, background_w=None)


def memory(bandwidth=64_000_000_000, latency_s=10e-9, burst=64, page=1024):
    return BandwidthMemory(
        MemoryModel(
            bandwidth_bytes_per_s=bandwidth, latency_s=latency_s, burst_bytes=burst, page_bytes=page, energy=FREE
        )
    )


def bursts(*numbers, burst=64):
    return np.array(numbers, np.int64) * burst


def test_stream_timeline():
    bus = memory()  # a burst a nanosecond
    assert bus.request(0, bursts(0, 1, 2, 3), False) == 14 * NS
    assert bus.request(2 * NS, bursts(4), False) == 15 * NS  # the bus is busy until 4 ns
    assert bus.request(20 * NS, bursts(5, 6), True) == 32 * NS  # idle from 5 to 20 ns
    report = bus.report()
    assert (report.read_bursts, report.write_bursts, report.activates) == (5, 2, 1)
    assert report.busy_s == pytest.approx(7e-9)


def test_gather_timeline_with_two_rows_in_flight():
    bus, window = memory(), Window.of(2)
    ready = np.array([1, 2, 3, 4], np.int64) * NS
    # Two bursts a row. Row 0: issued 1, done 1 + 2 + 10 = 13. Row 1: bus free at 3, done 15.
    # Row 2 waits for row 0: 13 + 2 + 10.
    # Row 3 waits for row 1 (15), the bus is free then: 15 + 2 + 10.
    rows = bursts(0, 1, 10, 11, 20, 21, 30, 31)
    assert bus.gather(rows[:4], np.array([2, 4]), ready[:2], window) == 15 * NS
    assert bus.gather(rows[4:], np.array([2, 4]), ready[2:], window) == 27 * NS
    assert bus.request(0, bursts(40), False) == 28 * NS


def test_gather_in_one_call_or_many_is_the_same():
    rng = np.random.default_rng(1)
    addresses, ready = bursts(*rng.integers(0, 1000, 60)), np.sort(rng.integers(0, 300 * NS, 60))
    one, many = memory(), memory()
    whole = one.gather(addresses, np.arange(1, 61), ready, Window.of(5))
    window = Window.of(5)
    for a, b in ((0, 7), (7, 8), (8, 40), (40, 60)):
        last = many.gather(addresses[a:b], np.arange(1, b - a + 1), ready[a:b], window)
    assert whole == last
    assert one.report() == many.report()


def test_ten_bytes_a_cycle_is_never_exceeded():
    bus = memory(bandwidth=10_000_000_000, latency_s=0.0)  # 10 bytes a cycle of 1 GHz: a burst of 64 takes 6.4 cycles
    for n in range(1, 2000):
        done = bus.request(0, bursts(n), False)
        exact = Fraction(n * 64 * 10**15, 10_000_000_000)
        assert done - 1 < exact <= done


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 50 * NS)), min_size=1, max_size=30),
    st.integers(10**6, 10**13),
)
def test_achieved_bandwidth_stays_below_the_configured_one(jobs, bandwidth):
    bus, now, start, moved, end = memory(bandwidth, 0.0), 0, None, 0, 0
    for n, gap in jobs:
        now += gap
        start = now if start is None else start
        end = bus.request(now, bursts(*range(n)), False)
        moved += n * 64
    assert moved * 10**15 <= bandwidth * (end - start)


@given(st.data())
def test_earlier_requests_are_never_served_later(data):
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    late = data.draw(st.lists(st.integers(0, 40_000), min_size=len(sizes), max_size=len(sizes)))
    early = [data.draw(st.integers(0, time)) for time in late]
    bandwidth = data.draw(st.integers(10**12, 10**14))
    buses = memory(bandwidth), memory(bandwidth)
    for n, a, b in zip(sizes, early, late):
        assert buses[0].request(a, bursts(*range(n)), False) <= buses[1].request(b, bursts(*range(n)), False)


def test_activates_count_page_changes_in_request_order():
    bus = memory(page=128)
    bus.request(0, bursts(0, 1, 2, 3, 0), False)  # pages 0 0 1 1 0
    bus.request(0, bursts(1), True)  # page 0 is open
    assert bus.report().activates == 3


@given(
    st.integers(0, 500),
    st.integers(1, 300),
    st.integers(1, 90),
    st.integers(0, 200),
    st.integers(0, 40),
    st.sampled_from([8, 32, 64]),
)
def test_addresses_are_the_bursts_of_the_bytes(first, nbytes, piece, gap, skip, burst):
    skip = min(skip, nbytes - 1)
    stride = piece + gap
    wanted = []
    for byte in range(skip, nbytes):
        number, offset = divmod(byte, piece)
        address = (first + number * stride + offset) // burst * burst
        if not wanted or wanted[-1] != address:
            wanted.append(address)
    got, counts = addresses_of([Region("k_read", first, nbytes, min(piece, nbytes), stride, skip)], burst)
    assert got.tolist() == wanted
    assert counts == [len(wanted)]


def test_a_burst_shared_by_neighbouring_regions_is_moved_once():
    regions = [Region("k_read", 0, 96, 96, 96), Region("k_read", 96, 32, 32, 32), Region("v_read", 4096, 1, 1, 1)]
    addresses, counts = addresses_of(regions, 64)
    assert addresses.tolist() == [0, 64, 4096]
    assert counts == [2, 0, 1]


def test_gathered_rows_share_a_burst_once():
    addresses, ends = addresses_of_rows(Rows("v_read", 32, 48, 48, np.array([0, 1, 5])), 64)
    # rows at bytes 32-79, 80-127, 272-319
    assert addresses.tolist() == [0, 64, 256]
    assert ends.tolist() == [2, 2, 3]


@given(st.integers(0, 10**12), st.integers(1, 400), st.integers(1, 9), st.integers(10**6, 10**12))
def test_address_times_are_whole_cycles_rounded_up(start, rows, per_cycle, clock):
    times = address_times_fs(start, rows, per_cycle, clock)
    assert times.tolist() == [start + cycles_fs(i // per_cycle + 1, clock) for i in range(rows)]
