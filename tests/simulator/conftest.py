"""Home-made traces of the shapes that kernels write: two-pass sampled, flash, dense, top-k, Bernoulli scores."""

import itertools

import numpy as np
import pytest

from santa_sim.hardware import load_hardware
from santa_sim.trace import TraceWriter

TYPES = {"operand": "bf16", "accumulator": "fp32"}


class _Head:
    """Writes the items of one (sequence, layer, query block, KV head)."""

    def __init__(self, writer, rng, key, keys_in_all, shape):
        self.writer, self.rng, self.key, self.n_k = writer, rng, key, keys_in_all
        (self.method, self.score, self.heads, self.g, self.d, tile, self.samples, self.element) = shape
        self.tiles = [(t, start, min(tile, keys_in_all - start)) for t, start in enumerate(range(0, keys_in_all, tile))]
        self.row, self.token = self.d * self.element, self.heads * self.d * self.element
        self.head, self.slot = key[2], key[3] * self.heads + key[2]
        self.features = np.sort(rng.choice(self.d, max(1, self.d // 2), replace=False)).astype(np.int32)

    def item(self, tile, stage, counters, streams=(), gather=None):
        self.writer.item(*self.key, tile, stage, counters, list(streams), gather)

    def stash(self, start, keys, write):
        size = self.g * keys * 4
        return ("stash", self.slot * self.g * self.n_k * 4 + self.g * start * 4, size, size, size, write)

    def partials(self, tile, tiles, write):
        size = tiles * self.g * self.d * 4
        return ("partials", (self.slot * len(self.tiles) + tile) * self.g * self.d * 4, size, size, size, write)

    def cache(self, buffer, start, keys):
        return (buffer, start * self.token + self.head * self.row, keys * self.row, self.row, self.token, False)

    def write_score(self, t, start, keys):
        g, d, n = self.g, self.d, self.g * keys
        counters = {
            "softmax_exps": n,
            "softmax_compares": n,
            "softmax_adds": n,
            "score_writes": n,
            "score_reads": (g + keys) * d,
        }
        streams, gather = [], None
        if t == 0:
            streams.append(("q", self.slot * g * self.row, g * self.row, g * self.row, g * self.row, False))
        if self.score == "exact":
            counters |= {"score_adds": n * d, "score_mults": n * d}
            streams.append(self.cache("k", start, keys))
        else:  # feature-major K: a row is one feature of all keys, of which a tile reads a piece
            counters["score_adds"] = n * len(self.features)
            first = (self.head * d * self.n_k + start) * self.element
            gather = ("k", self.features, first, keys * self.element, self.n_k * self.element)
            if t == 0:
                counters |= {"sampling_random_numbers": g * d, "sampling_compares": g * d}
        if self.method in ("prop", "topk"):
            streams.append(self.stash(start, keys, True))
        self.item(t, "score", counters, streams, gather)

    def write_value(self, t, start, keys):
        g, d, samples = self.g, self.d, self.samples
        if self.method == "sdpa":
            return self.item(
                t, "value", {"value_adds": g * keys * d, "value_mults": g * keys * d}, [self.cache("v", start, keys)]
            )
        rows = np.unique(self.rng.integers(0, keys, samples) + start).astype(np.int32)
        counters, streams = {"value_adds": samples * d, "value_reads": len(rows) * d}, []
        if self.method == "topk":
            counters["value_mults"] = samples * d
        else:
            counters |= dict.fromkeys(("sampling_adds", "sampling_mults", "sampling_floors"), g * keys)
        if self.method == "prop":
            streams.append(self.stash(start, keys, False))
        if self.method == "flash":
            counters["sampling_random_numbers"] = g
            streams.append(self.partials(t, 1, True))
        return self.item(t, "value", counters, streams, ("v", rows, self.head * self.row, self.row, self.token))

    def write(self, last_block):
        g, tiles = self.g, len(self.tiles)
        for each in self.tiles:
            self.write_score(*each)
            if self.method == "sdpa":
                self.write_value(*each)
        if self.method == "prop":
            names = ("sampling_adds", "sampling_mults", "softmax_exps", "sampling_compares")
            self.item(-1, "budget", dict.fromkeys(names, g * tiles))
        if self.method == "topk":
            counters = {"selection_compares": g * self.n_k, "softmax_exps": g * self.samples}
            self.item(-1, "select", counters, [self.stash(0, self.n_k, False)])
        for each in self.tiles if self.method != "sdpa" else ():
            self.write_value(*each)
        if self.method == "flash":
            n = g * tiles * self.d
            counters = {"merge_adds": n, "merge_mults": n, "merge_exps": g * tiles}
            self.item(-1, "merge", counters, [self.partials(0, tiles, False)])
        counters = {"softmax_mults" if self.method == "sdpa" else "value_mults": g * self.d}
        if last_block:
            counters |= {"unique_rows_per_head": g * min(5, self.n_k), "unique_rows_per_group": min(7, self.n_k)}
        size = g * self.d * 4
        self.item(-1, "output", counters, [("output", self.slot * size, size, size, size, True)])


def write_trace(
    method="prop",
    score="exact",
    n_k=(96,),
    layers=(0,),
    kv_heads=2,
    g=2,
    d=16,
    tile=32,
    query_blocks=1,
    samples=8,
    seed=0,
    element=2,
):
    """A trace of `method` in prop, flash, sdpa, topk and `score` in exact, bernoulli; K and V as [n_k, kv_heads, d]."""
    rng, writer = np.random.default_rng(seed), TraceWriter()
    shape = (method, score, kv_heads, g, d, tile, samples, element)
    for sequence, keys in enumerate(n_k):
        for layer, block, head in itertools.product(layers, range(query_blocks), range(kv_heads)):
            _Head(writer, rng, (sequence, layer, head, block), keys, shape).write(block == query_blocks - 1)
    return writer.finish(
        {
            "method": {"prop": "s2anta-prop", "flash": "s2anta-flash"}.get(method, method),
            "score": score,
            "kind": "decode" if query_blocks == 1 else "prefill",
            "precision": "bf16",
            "n_heads": kv_heads * g,
            "n_kv_heads": kv_heads,
            "head_dim": d,
            "n_q": [query_blocks] * len(n_k),
            "n_k": list(n_k),
            "layers": list(layers),
            "tile": tile,
            "score_types": TYPES,
            "value_types": TYPES,
            "normalization": "multiply",
            "samples": samples,
            "seed": seed,
            "workload": "home-made",
        }
    )


@pytest.fixture(scope="session")
def make_trace():
    """write_trace, for tests that draw its arguments."""
    return write_trace


def _tiny_machine(**changes):
    """A machine whose numbers are easy to follow by hand: 1 GHz, a burst of 64 bytes a nanosecond, 10 ns latency, one
    lane
    of everything or as `changes` (fields of a machine, merged) say."""
    fields = {
        "base": "mac_hbm3_bandwidth",
        "name": "tiny",
        "lookahead_tiles": 1,
        "memory": {
            "bandwidth_bytes_per_s": 64_000_000_000,
            "latency_s": 10e-9,
            "burst_bytes": 64,
            "energy": {"activate_j": 0, "read_j_per_bit": 1e-12, "write_j_per_bit": 1e-12},
        },
        "k_buffer": {"tiles": 2, "tile_bytes": 4096},
        "v_buffer": {"tiles": 2, "tile_bytes": 4096},
        "weights_buffer": {"tiles": 2, "tile_bytes": 4096},
        "write_buffer": {"tiles": 2, "tile_bytes": 4096},
        "score": {"mac_lanes": 1, "adder_lanes": 1, "queue_tiles": 1},
        "softmax": {"lanes": 1, "adders_per_lane": 1},
        "stash": {"bytes": 8192, "port_bytes_per_cycle": 8},
        "budget": {"lanes": 1},
        "selection": {"compares_per_cycle": 1, "lookahead_tiles": 1},
        "sampler": {
            "lanes": 1,
            "adders_per_lane": 1,
            "queue_tiles": 1,
            "random_numbers_per_cycle": 1,
            "search_compares_per_cycle": 1,
        },
        "gather": {"addresses_per_cycle": 1, "outstanding": 4, "queue_items": 1},
        "accumulate": {"lanes": 1},
        "merge": {"lanes": 1, "lookahead_tiles": 0},
        "normalize": {"lanes": 1},
        "output": {"port_bytes_per_cycle": 8, "buffer_items": 1},
    }
    return load_hardware(_merged(fields, changes))


def _merged(fields, changes):
    merged = dict(fields)
    for key, value in changes.items():
        merged[key] = (
            _merged(merged[key], value) if isinstance(value, dict) and isinstance(merged.get(key), dict) else value
        )
    return merged


@pytest.fixture(scope="session")
def tiny_machine():
    """A function that makes a machine for hand-computed timelines, with changes."""
    return _tiny_machine
