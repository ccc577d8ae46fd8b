"""Home-made traces of the shapes that kernels write: two-pass sampled, flash, dense, top-k, Bernoulli scores."""

import numpy as np
import pytest

from santa_sim.trace import TraceWriter

F32 = {"operand": "bf16", "accumulator": "fp32"}


def _score_counters(g, keys, d, score, features):
    n = g * keys
    counters = {"softmax_exps": n, "softmax_compares": n, "softmax_adds": n, "score_writes": n, "score_reads": (g + keys) * d}
    if score == "exact":
        return counters | {"score_adds": n * d, "score_mults": n * d}
    return counters | {"score_adds": n * features, "score_reads": keys * features}


def write_trace(method="prop", score="exact", n_k=(96,), layers=(0,), kv_heads=2, g=2, d=16, tile=32, query_blocks=1, samples=8,
                seed=0, element=2):  # fmt: skip
    """A trace of `method` in prop, flash, sdpa, topk and `score` in exact, bernoulli; K and V as [n_k, kv_heads, d]."""
    rng = np.random.default_rng(seed)
    writer = TraceWriter()
    row_bytes, token = d * element, kv_heads * d * element
    normal = {"value_mults": g * d} if method != "sdpa" else {"softmax_mults": g * d}
    for s, keys_in_all in enumerate(n_k):
        tiles = [(t, start, min(tile, keys_in_all - start)) for t, start in enumerate(range(0, keys_in_all, tile))]
        for layer in layers:
            for block in range(query_blocks):
                for head in range(kv_heads):
                    q0 = (block * kv_heads + head) * g * row_bytes
                    stash0 = (block * kv_heads + head) * g * keys_in_all * 4
                    part0 = (block * kv_heads + head) * len(tiles) * g * d * 4
                    features = np.sort(rng.choice(d, max(1, d // 2), replace=False)).astype(np.int32)

                    def item(tile_number, stage, counters, streams=(), gather=None):
                        writer.item(s, layer, head, block, tile_number, stage, counters, list(streams), gather)

                    def score_item(t, start, keys):
                        counters = _score_counters(g, keys, d, score, len(features))
                        streams, gather = [], None
                        if t == 0:
                            streams.append(("q", q0, g * row_bytes, g * row_bytes, g * row_bytes, False))
                            if score != "exact":
                                counters["sampling_random_numbers"] = g * d
                                counters["sampling_compares"] = g * d
                        if score == "exact":
                            streams.append(("k", start * token + head * row_bytes, keys * row_bytes, row_bytes, token, False))
                        else:  # feature-major K: a row is one feature of all keys, a tile reads a piece of it
                            base = head * d * keys_in_all * element + start * element
                            gather = ("k", features, base, keys * element, keys_in_all * element)
                        if method in ("prop", "topk"):
                            size = g * keys * 4
                            streams.append(("stash", stash0 + g * start * 4, size, size, size, True))
                        item(t, "score", counters, streams, gather)

                    def value_item(t, start, keys):
                        size = g * keys * 4
                        counters, streams, gather = {}, [], None
                        if method == "sdpa":
                            counters = {"value_adds": g * keys * d, "value_mults": g * keys * d}
                            streams = [("v", start * token + head * row_bytes, keys * row_bytes, row_bytes, token, False)]
                        else:
                            drawn = np.sort(rng.integers(0, keys, samples)) + start
                            rows = np.unique(drawn).astype(np.int32)
                            gather = ("v", rows, head * row_bytes, row_bytes, token)
                            counters = {"value_adds": samples * d, "value_reads": len(rows) * d}
                            if method == "topk":
                                counters["value_mults"] = samples * d
                            else:
                                counters |= {"sampling_adds": g * keys, "sampling_mults": g * keys, "sampling_floors": g * keys}
                            if method == "prop":
                                streams = [("stash", stash0 + g * start * 4, size, size, size, False)]
                            if method == "flash":
                                part = g * d * 4
                                counters["sampling_random_numbers"] = g
                                streams = [("partials", part0 + t * part, part, part, part, True)]
                        item(t, "value", counters, streams, gather)

                    for each in tiles:
                        score_item(*each)
                        if method == "sdpa":
                            value_item(*each)
                    if method == "prop":
                        n = g * len(tiles)
                        item(-1, "budget", {"sampling_adds": n, "sampling_mults": n, "softmax_exps": n, "sampling_compares": 4 * n})
                    if method == "topk":
                        size = g * keys_in_all * 4
                        item(-1, "select", {"selection_compares": g * keys_in_all, "softmax_exps": g * samples},
                             [("stash", stash0, size, size, size, False)])  # fmt: skip
                    if method != "sdpa":
                        for each in tiles:
                            value_item(*each)
                    if method == "flash":
                        n, size = g * len(tiles) * d, len(tiles) * g * d * 4
                        item(-1, "merge", {"merge_adds": n, "merge_mults": n, "merge_exps": g * len(tiles)},
                             [("partials", part0, size, size, size, False)])  # fmt: skip
                    out = g * d * 4
                    counters = {"unique_rows_per_head": g * 5, "unique_rows_per_group": 7} if block == query_blocks - 1 else {}
                    item(-1, "output", normal | counters, [("output", (block * kv_heads + head) * out, out, out, out, True)])
    return writer.finish({
        "method": {"prop": "s2anta-prop", "flash": "s2anta-flash"}.get(method, method), "score": score, "kind": "decode",
        "precision": "bf16", "n_heads": kv_heads * g, "n_kv_heads": kv_heads, "head_dim": d, "n_q": [1] * len(n_k), "n_k": list(n_k),
        "layers": list(layers), "tile": tile, "score_types": F32, "value_types": F32, "normalization": "multiply",
        "samples": samples, "seed": seed, "workload": "home-made",
    })  # fmt: skip


@pytest.fixture(scope="session")
def make_trace():
    """write_trace, for tests that draw its arguments."""
    return write_trace
