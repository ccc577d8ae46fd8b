import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from santa_sim.errors import InputError
from santa_sim.hardware import load_hardware
from santa_sim.simulator.compile import compile_trace
from santa_sim.simulator.kv_layout import LAYOUTS, place

ROW = 256


def cache(n_k, heads, tile):
    """Every byte of K and V of one layer, as a trace addresses it: streams of K, gathers of V."""
    keys, streams, gathers = [], [], []
    for head in range(heads):
        for first in range(0, n_k, tile):
            tokens = min(tile, n_k - first)
            keys.append((0, 3, head, 0))
            streams.append([(len(streams), "k", (first * heads + head) * ROW, tokens * ROW, ROW, heads * ROW, False)])
            gathers.append(("v", head * ROW, heads * ROW, ROW, np.arange(first, first + tokens)))
    return keys, streams, gathers


def rows_of(streams, gathers):
    """Row numbers touched: of K by streams, of V by gathers, in order."""
    k = [r for entries in streams for _, _, first, nbytes, _, _, _ in entries for r in range(first // ROW, (first + nbytes) // ROW)]
    v = [int(r) * g[2] // ROW + g[1] // ROW for g in gathers for r in g[4]]
    return k, v


@pytest.mark.parametrize("layout", LAYOUTS)
@given(n_k=st.integers(1, 200), heads=st.integers(2, 5), tile=st.integers(1, 64))
def test_every_row_has_one_place(layout, n_k, heads, tile):
    keys, streams, gathers = cache(n_k, heads, tile)
    streams, gathers = place(layout, heads, [n_k], keys, streams, gathers)
    if layout == "sequence-first":
        streams = [[(r, b, f + i * s, p, p, p, w) for i in range(n // p)] for ((r, b, f, n, p, s, w),) in streams]
    k, v = rows_of(streams, gathers)
    assert len(set(k)) == len(k) == n_k * heads == len(set(v)) == len(v)
    if not layout.startswith("paged"):
        assert set(k) == set(v) == set(range(n_k * heads))
    assert sum(entry[3] for entries in streams for entry in entries) == n_k * heads * ROW


def test_head_first_streams_are_contiguous():
    keys, streams, gathers = cache(100, 4, 32)
    streams, gathers = place("head-first", 4, [100], keys, streams, gathers)
    assert streams[4] == [(4, "k", 100 * ROW, 32 * ROW, 32 * ROW, 32 * ROW, False)]  # head 1, tile 0
    assert gathers[5][:4] == ("v", 0, ROW, ROW)
    assert gathers[5][4].tolist() == list(range(100 + 32, 100 + 64))


def test_pages_are_whole_and_shuffled():
    keys, streams, gathers = cache(256, 2, 256)
    streams, _ = place("paged-16", 2, [256], keys, streams, gathers)
    starts = [entry[2] // ROW for entry in streams[0]]
    assert all(start % 32 == 0 for start in starts)  # head 0 of a page of 16 tokens x 2 heads
    assert all(entry[3] == 16 * ROW for entry in streams[0])
    assert starts != sorted(starts)


def test_other_addresses_stay():
    keys = [(0, 0, 0, 0)] * 3
    streams = [[(0, "k", 128, 512, 512, 512, False)], [(1, "stash", 0, 1024, 256, 512, True)], []]
    gathers = [None, None, ("k", 0, 512, 256, np.array([1, 2]))]
    assert place("head-first", 2, [8], keys, streams, gathers) == (streams, gathers)


@pytest.mark.parametrize("offset", [None, 0, 4096, 262_144])
def test_v_begins_where_the_machine_wants_it(make_trace, offset):
    machine = load_hardware({"base": "mac_hbm3", "v_offset_bytes": offset})
    program = compile_trace(make_trace("sdpa", n_k=(5000, 300), kv_heads=2, d=64, tile=256), machine)
    ranges = {}
    for group in program.groups:
        for stage in ("score", "value"):
            for item in group.items[stage]:
                for region in item.reads:
                    first, end = ranges.get((region.kind, group.number // 2), (region.first, region.end))
                    ranges[region.kind, group.number // 2] = min(first, region.first), max(end, region.end)
    for sequence in (0, 1):
        (k, k_end), (v, _) = ranges["k_read", sequence], ranges["v_read", sequence]
        assert k_end <= v < k_end + 4096 if offset is None else k_end <= v < k_end + 2**20 and (v - k) % 2**20 == offset
    stretches = sorted(ranges.values())
    assert all(end <= start for (_, end), (start, _) in zip(stretches, stretches[1:]))


@pytest.mark.parametrize("offset, message", [(100, "multiple of 4096"), (2**20, "less than 1048576"), (-4096, "greater than or equal to 0")])
def test_offsets_that_are_none(offset, message):
    with pytest.raises(InputError, match=message):
        load_hardware({"base": "mac_hbm3", "v_offset_bytes": offset})
