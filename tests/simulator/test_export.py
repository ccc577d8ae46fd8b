"""The memory side of a trace: what is exported is what the machine's memory is asked for, in that order."""

import numpy as np
import pytest

from santa_sim.errors import InputError
from santa_sim.hardware import load_hardware
from santa_sim.simulator import simulate
from santa_sim.simulator.export import memory_requests
from santa_sim.simulator.kv_layout import LAYOUTS
from santa_sim.simulator.memory import BandwidthMemory

KINDS = [("prop", "exact"), ("flash", "exact"), ("sdpa", "exact"), ("topk", "exact"), ("prop", "bernoulli")]


def machine(layout="head-first", stash=1 << 20):
    return load_hardware({
        "base": "mac_hbm3", "memory": {"model": "banks", "dram": "hbm3", "controller_latency_s": 0}, "kv_layout": layout,
        "stash": {"bytes": stash},
    })  # fmt: skip


def joined(trace, hardware):
    addresses, writes = zip(*memory_requests(trace, hardware))
    return np.concatenate(addresses), np.concatenate(writes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("method", "score"), KINDS)
def test_as_many_bursts_as_the_run_is_charged(make_trace, method, score, layout):
    trace, hardware = make_trace(method, score, n_k=(96, 40), d=64), machine(layout, stash=2048)
    addresses, writes = joined(trace, hardware)
    traffic = simulate(trace, hardware).traffic_bytes
    written = sum(size for kind, size in traffic.items() if kind.endswith("_write"))
    assert (addresses.dtype, writes.dtype) == (np.int64, np.bool_)
    assert len(addresses) * 32 == traffic["total"]
    assert writes.sum() * 32 == written
    assert (addresses % 32 == 0).all()


@pytest.mark.parametrize(("method", "score"), KINDS)
def test_the_memory_is_asked_in_this_order(make_trace, monkeypatch, method, score):
    asked = []
    request, gather = BandwidthMemory.request, BandwidthMemory.gather

    def noted_request(self, now_fs, addresses, write):
        asked.append((addresses, np.full(len(addresses), write)))
        return request(self, now_fs, addresses, write)

    def noted_gather(self, addresses, row_ends, ready_fs, window):
        asked.append((addresses, np.zeros(len(addresses), bool)))
        return gather(self, addresses, row_ends, ready_fs, window)

    monkeypatch.setattr(BandwidthMemory, "request", noted_request)
    monkeypatch.setattr(BandwidthMemory, "gather", noted_gather)
    energy = dict.fromkeys(("activate_j", "read_j_per_bit", "write_j_per_bit", "background_w"))
    memory = {"model": "bandwidth", "bandwidth_bytes_per_s": 10**11, "latency_s": 0, "burst_bytes": 64, "page_bytes": 1024}
    hardware = load_hardware({"base": "mac_hbm3", "memory": {**memory, "energy": energy}, "stash": {"bytes": 2048}})
    trace = make_trace(method, score, n_k=(96, 40))
    exported = list(memory_requests(trace, hardware))
    simulate(trace, hardware)
    del asked[: -len(exported)]  # the orders that were tried
    assert len(exported) == len(asked)
    for (addresses, writes), (asked_addresses, asked_writes) in zip(exported, asked):
        np.testing.assert_array_equal(addresses, asked_addresses)
        np.testing.assert_array_equal(writes, asked_writes)


def test_layouts_ask_for_other_places(make_trace):
    """A head's K: one row of each token's [H_kv, d] lying sequence-first, one run head-first."""
    trace = make_trace("sdpa", n_k=(32,), kv_heads=4, d=32, tile=32)  # rows of 64 bytes: two bursts
    by_layout = {layout: joined(trace, machine(layout))[0] for layout in LAYOUTS}
    k = {layout: addresses[8:72] for layout, addresses in by_layout.items()}  # behind 2 x 2 queries of 64 bytes
    assert set(np.diff(k["head-first"])) == {32}
    assert set(np.diff(k["sequence-first"])) == {32, 4 * 64 - 32}
    assert set(np.diff(k["paged-16"])) > {32}


def test_a_trace_that_the_machine_cannot_play_is_refused_at_once(make_trace):
    with pytest.raises(InputError, match="multiplies in the value stage"):
        memory_requests(make_trace("sdpa"), load_hardware("adder_hbm3"))
