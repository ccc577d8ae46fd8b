"""What a layer's run counts, streams and gathers: integers equal to the closed forms, and the trace consistent with itself."""

import itertools

import numpy as np
import pytest

import santa_sim
from santa_sim.analysis import closed_forms
from santa_sim.fixed_point import BITS
from santa_sim.methods.items import STATS_BYTES
from santa_sim.methods.layer import ITEM_BYTES
from santa_sim.methods.spec import METHODS, SAMPLED

SHAPES = 36


def tensors(seed, n_q, n_k, H, H_kv, d):
    rng = np.random.default_rng(seed)
    q = rng.normal(0, 1, (n_q, H, d)).astype(np.float32)
    k, v = (rng.normal(0, 1, (n_k, H_kv, d)).astype(np.float32) for _ in range(2))
    return q, k, v


def random_case(index):
    """A shape, drawn at random; every method and precision comes up, decode and prefill, causal or not."""
    rng = np.random.default_rng(1000 + index)
    G, H_kv, d = int(rng.integers(1, 9)), int(rng.integers(1, 4)), int(rng.integers(1, 40))
    n_k = int(rng.integers(1, 260))
    n_q = 1 if index % 2 else int(rng.integers(1, min(n_k, 90) + 1))
    precision = ("fp32", "bf16", "int8", "fp16", "int16")[index % 5]
    budget = int(2 ** rng.integers(0, 9)) if rng.random() < 0.5 else int(rng.integers(1, 300))
    return {"n_q": n_q, "n_k": n_k, "H": G * H_kv, "H_kv": H_kv, "d": d, "precision": precision, "budget": budget, "tile": int(rng.integers(1, 150)),
                "causal": bool(rng.random() < 0.6), "query_block": int(rng.integers(1, 40))}  # fmt: skip


def shape(**changes):
    """A small decode step, with changes."""
    plain = {"n_q": 1, "n_k": 100, "H": 4, "H_kv": 2, "d": 4, "precision": "fp32", "budget": 24, "tile": 32, "causal": True, "query_block": 64}
    return plain | changes


def run(case, method, seed=0, **more):
    q, k, v = tensors(seed, case["n_q"], case["n_k"], case["H"], case["H_kv"], case["d"])
    budget = {"S": case["budget"]} if method in SAMPLED else {"k_top": case["budget"]} if method == "topk" else {}
    options = {name: case[name] for name in ("precision", "tile", "causal", "query_block")}
    return santa_sim.attention(q, k, v, method, **budget, **{**options, **more}, seed=seed)


@pytest.mark.parametrize("index", range(SHAPES))
def test_counts_equal_the_closed_forms(index):
    case = random_case(index)
    n_q, n_k, d, H, tile, causal = (case[name] for name in ("n_q", "n_k", "d", "H", "tile", "causal"))
    score = closed_forms.score_stage(n_q, n_k, d, causal).times(H)
    for method in METHODS:
        _, trace = run(case, method)
        value = closed_forms.value_stage(method, n_q, n_k, d, case["budget"], causal, tile, case["precision"] in BITS).times(H)
        assert closed_forms.Counts(*(trace.total(f"score_{name}") for name in ("adds", "mults", "reads", "writes"))) == score
        counted = [trace.total(f"value_{name}") for name in ("adds", "mults", "reads", "writes", "shifts")]
        if method == "s2anta-flash" and value.mults and value.shifts == 0:
            # in prefill the queries' divisors differ: a block counts shifts only if all of its divisors are powers of two
            assert counted[1] + counted[4] == value.mults
            counted[1], counted[4] = value.mults, 0
        assert closed_forms.Counts(*counted) == value, method
        if method in SAMPLED:
            drawn = closed_forms.samples_drawn(method, case["budget"], n_q, n_k, tile, causal)
            assert trace.meta["samples_drawn"] == drawn / n_q and trace.total("value_adds") == drawn * H * d


@pytest.mark.parametrize("method", METHODS)
def test_a_partial_tile_counts_its_keys_only(method):
    case = shape(n_k=1000, d=8, budget=64, tile=128)
    _, trace = run(case, method)
    assert trace.total("score_adds") == trace.total("score_mults") == 4 * 1000 * 8
    assert trace.total("score_writes") == 4 * 1000
    assert trace.total("value_adds") == {"sdpa": 4 * 1000 * 8}.get(method, 4 * 64 * 8)


@pytest.mark.parametrize("precision, S, mults, shifts", [("int8", 64, 0, 40), ("int16", 1, 0, 40), ("int8", 65, 40, 0), ("fp32", 64, 40, 0)])
def test_a_power_of_two_divides_by_shift_in_fixed_point(precision, S, mults, shifts):
    case = shape(n_k=90, d=10, precision=precision, budget=S)
    _, trace = run(case, "s2anta-prop")
    assert (trace.total("value_mults"), trace.total("value_shifts")) == (mults, shifts)
    assert trace.meta["normalization"] == ("shift" if shifts else "multiply")


def streamed(trace, buffer, write):
    return sum(size for names, sizes, writes in zip(trace.items["stream_buffer"], trace.items["stream_bytes"], trace.items["stream_write"])
               for name, size, w in zip(names, sizes, writes) if name == buffer and w == write)  # fmt: skip


@pytest.mark.parametrize("index", range(1, 12, 2))
def test_decode_streams_what_it_says(index):
    """K once; Q and the output once; stash and statistics written once and read by the methods that scan them."""
    case = random_case(index)
    n_k, d, H, H_kv, tile = (case[name] for name in ("n_k", "d", "H", "H_kv", "tile"))
    T, item = -(-n_k // tile), ITEM_BYTES[case["precision"]]
    for method in METHODS:
        _, trace = run(case, method)
        assert streamed(trace, "k", False) == n_k * H_kv * d * item
        assert streamed(trace, "q", False) == H * d * item
        assert streamed(trace, "v", False) == (n_k * H_kv * d * item if method == "sdpa" else 0)
        two_pass = method not in ("sdpa", "s2anta-flash")
        statistics = H * T * STATS_BYTES if method not in ("sdpa", "s2anta-flash", "topk") else 0
        assert streamed(trace, "stash", True) == (H * n_k * 4 + statistics if two_pass else 0)
        read = streamed(trace, "stash", False)
        if method == "s2anta-prop":
            assert statistics < read <= H * n_k * 4 + statistics
        else:
            assert read == (H * n_k * 4 + statistics if two_pass else 0)
        partials = H * T * (4 * d + STATS_BYTES) if method == "s2anta-flash" else 0
        assert streamed(trace, "partials", True) == streamed(trace, "partials", False) == partials


def test_dense_bytes_at_32_and_8_kv_heads_are_4_to_1():
    sizes = []
    for H_kv in (32, 8):
        case = shape(n_k=300, H=32, H_kv=H_kv, d=16, precision="bf16", budget=None, tile=64)
        _, trace = run(case, "sdpa")
        sizes.append(streamed(trace, "k", False) + streamed(trace, "v", False))
    assert sizes[0] == 4 * sizes[1] == 2 * 300 * 32 * 16 * 2


def pieces(row, index):
    first, size, piece, stride = (row[f"stream_{name}"][index] for name in ("first_byte", "bytes", "piece_bytes", "stride_bytes"))
    assert size % piece == 0
    return [(first + i * stride, first + i * stride + piece) for i in range(size // piece)]


@pytest.mark.parametrize("method", METHODS)
def test_regions_tile_their_buffers_without_overlap(method):
    """Q, K, V and output pieces of all items cover each buffer exactly once; stash writes never overlap."""
    case = shape(n_k=77, H=6, H_kv=3, d=5, precision="bf16", budget=20, tile=16)
    _, trace = run(case, method)
    ranges = {}
    for _, row in trace.items.iterrows():
        for i, buffer in enumerate(row["stream_buffer"]):
            ranges.setdefault((buffer, bool(row["stream_write"][i])), []).extend(pieces(row, i))
    whole = {("q", False): 6 * 5 * 2, ("k", False): 77 * 3 * 5 * 2, ("v", False): 77 * 3 * 5 * 2, ("output", True): 6 * 5 * 2}
    for key, found in ranges.items():
        found.sort()
        if key[1] or key[0] in ("q", "k", "v"):
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(found)), key
        if key in whole:
            assert (found[0][0], found[-1][1]) == (0, whole[key]) and sum(b - a for a, b in found) == whole[key]


@pytest.mark.parametrize("method", ["topk", *SAMPLED])
def test_gathered_rows_are_the_unique_rows(method):
    case = shape(n_k=200, H=8)
    _, trace = run(case, method)
    items = trace.items
    for kv in range(2):
        of_head = items[items["kv_head"] == kv]
        rows = np.concatenate([np.asarray(x) for x in of_head["gather_rows"]])
        last = of_head.iloc[-1]
        assert last["stage"] == "output"
        assert len(rows) == len(set(rows)) == last["unique_rows_per_group"]
        assert last["unique_rows_per_group"] <= last["unique_rows_per_head"] <= 4 * 24 + 4 * 7
        for _, item in of_head[of_head["gather_buffer"] == "v"].iterrows():
            assert (np.asarray(item["gather_rows"]) // 32 == item["tile"]).all()
            assert (item["gather_first_byte"], item["gather_row_bytes"], item["gather_stride_bytes"]) == (kv * 16, 16, 32)


@pytest.mark.parametrize("method", METHODS)
def test_items_of_a_head_stand_together_in_stage_order(method):
    case = shape(n_q=50, n_k=80, budget=8, tile=16, query_block=20)
    _, trace = run(case, method)
    groups = trace.items[["query_block", "kv_head"]].drop_duplicates()
    assert len(groups) == 3 * 2
    order = {"score": 0, "budget": 1, "select": 1, "value": 2, "merge": 3, "output": 4}
    keys = list(zip(trace.items["query_block"], trace.items["kv_head"], trace.items["stage"].map(order), trace.items["tile"]))
    assert keys == sorted(keys)
    assert (trace.items["stage"] == "output").sum() == 6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("causal", [True, False])
def test_query_blocks_change_neither_output_nor_counts(method, causal):
    """Scores of small integers are exact whatever the order of addition, so nothing may differ at all (dense: rounding)."""
    rng = np.random.default_rng(9)
    q = rng.integers(-4, 5, (45, 4, 16)).astype(np.float32)
    k, v = (rng.integers(-4, 5, (60, 2, 16)).astype(np.float32) for _ in range(2))
    budget = {"S": 12} if method in SAMPLED else {"k_top": 12} if method == "topk" else {}
    results = [santa_sim.attention(q, k, v, method, **budget, tile=16, causal=causal, query_block=block) for block in (45, 1, 7)]
    first, reference = results[0]
    for output, trace in results[1:]:
        np.testing.assert_allclose(output, first, rtol=2e-6, atol=2e-6)
        same = [name for name in reference.items if name.endswith(("adds", "mults", "exps", "compares", "floors", "numbers", "reads", "writes"))]
        for counter in ("unique_rows_per_head", "unique_rows_per_group", "value_shifts", *same):
            assert trace.total(counter) == reference.total(counter), counter
