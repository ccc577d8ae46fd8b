"""Tensors: the logits that were asked for, streams that depend on nothing else, captured files that are checked."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_sim import tensors
from santa_sim.errors import InputError
from santa_sim.synthetic import sink_zipf_logits, sink_zipf_masses
from santa_sim.tensors import free_bytes, make_tensors, tensor_bytes
from santa_sim.workload import load_workload, replace

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ZIPF = {"type": "sink_zipf", "sink_mass": 0.521, "exponent": 1.262, "fitted_at_keys": 8192}
SMALL = load_workload({
    "name": "small", "model": "none", "kind": "decode", "heads": 8, "kv_heads": 2, "head_dim": 16, "n_k": 300,
    "model_layers": 1, "dtype": "float32", "source": ZIPF,
})  # fmt: skip


def logits_of(q, k):
    """float64 [H, n_k]: q . k / sqrt(d), grouped heads sharing a KV head."""
    h, d = q.shape
    grouped = q.astype(np.float64).reshape(k.shape[1], -1, d)
    return np.einsum("hgd,nhd->hgn", grouped, k.astype(np.float64)).reshape(h, -1) / np.sqrt(d)


def probabilities_of(q, k):
    s = logits_of(q, k)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def wanted_logits(workload, seed, sequence=0, layer=0):
    return np.concatenate(
        [sink_zipf_logits(workload, seed, sequence, layer, kv_head).T for kv_head in range(workload.kv_heads)]
    )


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# arXiv:2605.01910, Table 17, S2ANTA-sys
@pytest.mark.parametrize(("samples", "published"), [(32, 13.0), (64, 21.7), (128, 36.4), (256, 61.6)])
def test_the_fit_gives_the_papers_unique_keys_at_8k(samples, published):
    source = load_workload("llama8b_decode_8k").source
    p = sink_zipf_masses(8192, source.sink_mass, source.exponent)
    # Systematic sampling with S samples draws key j at least once with probability min(1, S p_j).
    assert np.minimum(1, samples * p).sum() == pytest.approx(published, rel=0.005)


def test_the_tensors_give_the_papers_unique_keys_at_8k():
    t = make_tensors("llama8b_decode_8k", "bfloat16", 0)
    p = probabilities_of(t.q[0][0], t.k[0][0])
    for samples, published in ((32, 13.0), (64, 21.7), (128, 36.4), (256, 61.6)):
        assert np.minimum(1, samples * p).sum(axis=1).mean() == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(("overlap", "rows"), [("independent", 146.4), ("shared", 99.7)])
def test_rows_of_a_group_at_32k(overlap, rows):
    w = replace("llama8b_decode_32k", source=ZIPF | {"group_overlap": overlap})
    unions = []
    for kv_head in range(w.kv_heads):
        p = np.exp(sink_zipf_logits(w, 0, 0, 0, kv_head))
        p /= p.sum(axis=0)
        unions.append((1 - np.prod(1 - np.minimum(1, 128 * p), axis=1)).sum())
    assert np.mean(unions) == pytest.approx(rows, abs=0.5)


@given(n_k=st.integers(1, 3000), sink=st.floats(0.01, 0.99), exponent=st.floats(0, 3))
def test_masses_sum_to_one_and_fall(n_k, sink, exponent):
    p = sink_zipf_masses(n_k, sink, exponent)
    assert p.shape == (n_k,)
    assert p.sum() == pytest.approx(1)
    assert p[0] == pytest.approx(sink if n_k > 1 else 1)
    assert (np.diff(p[1:]) <= 0).all()


@given(
    group=st.integers(1, 6), kv_heads=st.integers(1, 3), extra=st.integers(8, 80), n_k=st.integers(1, 200),
    seed=st.integers(0, 2**40), overlap=st.sampled_from(["independent", "shared"]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_every_grouped_query_gets_its_logits(group, kv_heads, extra, n_k, seed, overlap):
    w = replace(SMALL, heads=group * kv_heads, kv_heads=kv_heads, head_dim=group + extra, n_k=n_k,
                source=ZIPF | {"group_overlap": overlap})  # fmt: skip
    t = make_tensors(w, "float32", seed)
    missed = logits_of(t.q[0][0], t.k[0][0]) - wanted_logits(w, seed)
    assert np.abs(missed).max() < 1e-3
    assert t.report["logits_max_abs_deviation"] == pytest.approx(np.abs(missed).max(), abs=1e-5)


@pytest.mark.parametrize(("dtype", "largest"), [("float32", 1e-5), ("float16", 5e-3), ("bfloat16", 5e-2)])
def test_the_report_is_the_deviation_of_the_stored_tensors(dtype, largest):
    w = replace("llama8b_decode_8k", n_k=3000)
    t = make_tensors(w, dtype, 5)
    missed = logits_of(t.q[0][0], t.k[0][0]) - wanted_logits(w, 5)
    assert t.report["logits_max_abs_deviation"] == pytest.approx(np.abs(missed).max(), rel=1e-2, abs=2e-6)
    assert t.report["logits_rms_deviation"] == pytest.approx(np.sqrt(np.mean(missed**2)), rel=1e-2, abs=1e-6)
    assert t.report["logits_max_abs_deviation"] < largest
    assert any("extrapolation" in note and "3000" in note for note in t.report["notes"])
    assert json.loads(json.dumps(t.report)) == t.report


def test_no_extrapolation_where_it_was_fitted():
    report = make_tensors("llama8b_decode_8k", "bfloat16", 0).report
    assert not any("extrapolation" in note for note in report["notes"])


def test_the_rest_of_a_key_is_random():
    """Off the span of the group's queries, keys are standard normal: the squared length has mean d - G."""
    t = make_tensors(replace(SMALL, n_k=4000, head_dim=64), "float32", 1)
    for kv_head in range(2):
        queries = t.q[0][0][kv_head * 4 : kv_head * 4 + 4].astype(np.float64)
        keys = t.k[0][0][:, kv_head].astype(np.float64)
        rest = keys - keys @ np.linalg.pinv(queries) @ queries
        squared = (rest**2).sum(axis=1)
        # chi-squared with d - G = 60 degrees: variance 120, 4,000 rows, five standard errors
        assert squared.mean() == pytest.approx(60, abs=5 * np.sqrt(120 / 4000))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_gaussian_moments(name):
    w = replace(SMALL, source={"type": "gaussian"}, heads=64, kv_heads=16, head_dim=64, n_k=200, kind="prefill")
    x = getattr(make_tensors(w, "float32", 2), name)[0][0].astype(np.float64)
    n = x.size
    assert x.mean() == pytest.approx(0, abs=5 / np.sqrt(n))
    assert (x**2).mean() == pytest.approx(1, abs=5 * np.sqrt(2 / n))
    assert (x**4).mean() == pytest.approx(3, abs=5 * np.sqrt(96 / n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", [ZIPF, {"type": "gaussian"}], ids=["sink_zipf", "gaussian"])
def test_shapes_types_and_read_only(dtype, source):
    w = replace(SMALL, n_k=[5, 2100, 1], layers=2, source=source)
    t = make_tensors(w, dtype, 0)
    for sequence, n_k in enumerate((5, 2100, 1)):
        for layer in range(2):
            arrays = t.q[sequence][layer], t.k[sequence][layer], t.v[sequence][layer]
            assert [a.shape for a in arrays] == [(8, 16), (n_k, 2, 16), (n_k, 2, 16)]
            assert all(a.dtype == DTYPES[dtype] and a.flags.c_contiguous and not a.flags.writeable for a in arrays)
            assert all(np.isfinite(a.astype(np.float32)).all() for a in arrays)
    assert [len(part) for part in (t.q, t.k, t.v)] == [3, 3, 3]


def test_prefill_shapes():
    w = replace(SMALL, kind="prefill", n_k=[7, 3], source={"type": "gaussian"})
    t = make_tensors(w, "float16", 0)
    assert [a[0].shape for a in t.q] == [(7, 8, 16), (3, 8, 16)]
    assert [a[0].shape for a in t.k] == [(7, 2, 16), (3, 2, 16)]


@pytest.mark.parametrize("source", [ZIPF, {"type": "gaussian"}], ids=["sink_zipf", "gaussian"])
def test_a_sequence_does_not_depend_on_the_others(source):
    a = make_tensors(replace(SMALL, n_k=[100, 40], layers=2, source=source), "float32", 3)
    b = make_tensors(replace(SMALL, n_k=[9, 40, 5], layers=2, source=source), "float32", 3)
    for layer in range(2):
        assert all(same(x[1][layer], y[1][layer]) for x, y in zip((a.q, a.k, a.v), (b.q, b.k, b.v), strict=True))


def test_no_two_streams_are_the_same():
    w = replace(SMALL, n_k=[20, 20], layers=2, source={"type": "gaussian"})
    arrays = {}
    for seed in (0, 1):
        t = make_tensors(w, "float32", seed)
        for sequence in range(2):
            for layer in range(2):
                k, v = t.k[sequence][layer], t.v[sequence][layer]
                for part in (t.q[sequence][layer], k[:, 0], k[:, 1], v[:, 0], v[:, 1]):
                    arrays[part.tobytes()] = (seed, sequence, layer)
    assert len(arrays) == 2 * 2 * 2 * 5


def test_the_thread_count_changes_nothing(monkeypatch):
    w = replace(SMALL, n_k=5000, kv_heads=4)
    many = make_tensors(w, "bfloat16", 11)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    for seed in (12, 13):  # push the first result out of the cache
        make_tensors(w, "bfloat16", seed)
    one = make_tensors(w, "bfloat16", 11)
    assert one.k[0][0] is not many.k[0][0]
    assert all(same(x[0][0], y[0][0]) for x, y in zip((many.q, many.k, many.v), (one.q, one.k, one.v), strict=True))
    assert one.report == many.report


def test_the_last_results_are_kept_and_their_reports_are_the_callers_own():
    first = make_tensors(SMALL, "float32", 0)
    first.report["notes"].append("mine")
    again = make_tensors(SMALL, "float32", 0)
    assert again.k[0][0] is first.k[0][0]
    assert "mine" not in again.report["notes"]


@pytest.mark.parametrize(
    ("dtype", "seed", "part"),
    [
        ("float64", 0, "dtype='float64'"),
        ("bfloat", 0, "did you mean 'bfloat16'"),
        ("float32", -1, "seed=-1"),
        ("float32", 1.5, "seed=1.5"),
        ("float32", True, "seed=True"),
    ],
)
def test_wrong_arguments_are_named(dtype, seed, part):
    with pytest.raises(InputError, match=part):
        make_tensors(SMALL, dtype, seed)


def test_keys_that_do_not_fit_the_dtype_are_an_error():
    """One feature, so a key is logit / q: among many heads a small query asks for more than float16 holds."""
    w = replace(SMALL, heads=300, kv_heads=300, head_dim=1, source=ZIPF | {"exponent": 50.0})
    with pytest.raises(InputError, match="dtype='float16' at head_dim=1.*smaller exponent"):
        make_tensors(w, "float16", 0)
    assert make_tensors(w, "float32", 0).report["logits_max_abs_deviation"] < 0.01


# Captured files


def captured(tmp_path, change=(), **fields):
    """A workload of layers 4 and 1 of a file that captured layers 1, 4 and 6; `change` replaces or drops its arrays."""
    rng = np.random.default_rng(0)
    arrays = {
        "q": rng.standard_normal((3, 4, 8)).astype(np.float16),
        "k": rng.standard_normal((3, 10, 2, 8)).astype(np.float16),
        "v": rng.standard_normal((3, 10, 2, 8)).astype(np.float16),
        "layers": np.array([1, 4, 6]), "provenance": np.array('{"model": "none"}'),
    }  # fmt: skip
    arrays = {name: array for name, array in (arrays | dict(change)).items() if array is not None}
    np.savez(tmp_path / "x.npz", **arrays)
    source = {"type": "captured", "file": str(tmp_path / "x.npz"), "layers": [4, 1]}
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 8, "n_k": 10, "layers": 2, "source": source}
    return replace(SMALL, **(shape | fields)), arrays


@pytest.mark.parametrize("dtype", DTYPES)
def test_captured_layers_are_read_in_the_order_asked_for(tmp_path, dtype):
    w, arrays = captured(tmp_path)
    t = make_tensors(w, dtype, 0)
    for layer, index in enumerate((1, 0)):
        for name in "qkv":
            assert same(getattr(t, name)[0][layer], arrays[name][index].astype(DTYPES[dtype]))
    assert t.report["layers"] == [4, 1]
    assert t.report["provenance"] == {"model": "none"}
    converted = [note for note in t.report["notes"] if "converted" in note]
    assert converted == ([] if dtype == "float16" else [f"captured in float16, converted to {dtype}"])
    assert json.loads(json.dumps(t.report)) == t.report


def test_a_file_written_anew_is_read_anew(tmp_path):
    w, _ = captured(tmp_path)
    before = make_tensors(w, "float16", 0).q[0][0]
    captured(tmp_path, {"q": np.zeros((3, 4, 8), np.float16), "note": np.zeros(1)})
    assert before.any()
    assert not make_tensors(w, "float16", 0).q[0][0].any()


@pytest.mark.parametrize(
    ("change", "fields", "part"),
    [
        ({"k": None}, {}, "no array 'k'"),
        ({"q": np.zeros((3, 5, 8), np.float16)}, {}, r"q in .* has shape \(3, 5, 8\).*\(3, 4, 8\)"),
        ({}, {"n_k": 11}, r"k in .* has shape \(3, 10, 2, 8\).*\(3, 11, 2, 8\)"),
        ({}, {"n_k": [10, 10]}, "one sequence"),
        ({"v": np.zeros((3, 10, 2, 8), np.int32)}, {}, "v in .* has dtype int32"),
        ({"v": np.full((3, 10, 2, 8), np.nan, np.float16)}, {}, "v in .* NaN"),
        ({"layers": np.array([1, 3, 6])}, {}, "layer 4 was not captured.*1, 3, 6"),
        ({"provenance": np.array("{")}, {}, "provenance in .* is not JSON"),
        ({"provenance": np.array("[" * 10**5)}, {}, "provenance in .* is not JSON"),
        ({"layers": np.array(["one", "four", "six"])}, {}, "layers in .* must be a list of whole numbers"),
        ({"layers": np.array([[1, 4, 6]])}, {}, "layers in .* must be a list of whole numbers"),
    ],
)
def test_a_captured_file_that_does_not_fit_is_an_error(tmp_path, change, fields, part):
    w, _ = captured(tmp_path, change, **fields)
    with pytest.raises(InputError, match=part):
        make_tensors(w, "float16", 0)


def test_values_beyond_float16_are_an_error(tmp_path):
    w, _ = captured(tmp_path, {"k": np.full((3, 10, 2, 8), 1e6, np.float32)})
    with pytest.raises(InputError, match="dtype='float16'"):
        make_tensors(w, "float16", 0)


@pytest.mark.parametrize("content", [None, b"not a zip", b"PK\x03\x04 cut short"])
def test_a_missing_or_broken_file_is_an_error(tmp_path, content):
    w, _ = captured(tmp_path)
    (tmp_path / "x.npz").unlink()
    if content is not None:
        (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz.*" + ("does not exist" if content is None else "not readable")):
        make_tensors(w, "float16", 0)


def test_a_folder_an_array_and_flipped_bits_are_no_capture(tmp_path):
    w, arrays = captured(tmp_path)
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    whole = (tmp_path / "x.npz").read_bytes()
    for place in range(40, len(whole), 97):
        flipped = bytes(255 - byte for byte in whole[place : place + 8])
        (tmp_path / "x.npz").write_bytes(whole[:place] + flipped + whole[place + 8 :])
        try:
            make_tensors(w, "float16", 0)
        except InputError as error:
            assert "x.npz" in str(error)
    with open(tmp_path / "x.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match="not readable as .npz"):
        make_tensors(w, "float16", 0)
    (tmp_path / "x.npz").unlink()
    (tmp_path / "x.npz").mkdir()
    with pytest.raises(InputError, match="source.file = .*x.npz' is a directory"):
        make_tensors(w, "float16", 0)


# Memory


def test_tensor_bytes_are_those_of_the_arrays():
    for fields in ({}, {"n_k": [7, 11]}, {"kind": "prefill", "source": {"type": "gaussian"}, "n_k": 9, "layers": 2}):
        w = replace(SMALL, **fields)
        t = make_tensors(w, "float16", 0)
        arrays = [x for part in (t.q, t.k, t.v) for layers in part for x in layers]
        assert tensor_bytes(w, "float16") == sum(x.nbytes for x in arrays)


@pytest.mark.parametrize(("fields", "said"), [
    ({"n_k": 2**31 - 1, "head_dim": 2**14, "kv_heads": 8}, "Q, K and V would take 2,251,799.8 GB in float32"),
    ({"kind": "prefill", "source": {"type": "gaussian"}, "n_k": [10**9] * 3}, "GB in float32"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_an_error_that_says_their_size(fields, said):
    with pytest.raises(InputError, match=said + ".* GB of memory are free; write a smaller n_k"):
        make_tensors(replace(SMALL, **fields), "float32", 0)


def test_memory_that_runs_out_is_an_error_too(monkeypatch):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr(tensors, "free_bytes", lambda: None)
    monkeypatch.setattr(tensors, "make_synthetic", refuse)
    with pytest.raises(InputError, match="Q, K and V would take .* GB in float32"):
        make_tensors(replace(SMALL, name="none is kept of this"), "float32", 0)
    assert free_bytes() is None or free_bytes() > 0


def test_the_shipped_capture_gives_the_models_own_attention():
    """Exact attention on the float16 tensors against what the model's layer computed in float32, within rounding."""
    w = load_workload("smollm2_decode_2k")
    t = make_tensors(w, "float16", 0)
    with np.load(w.source.file) as file:
        outputs = file["attention_output"]
    for layer in range(w.layers):
        q, k, v = t.q[0][layer], t.k[0][layer], t.v[0][layer].astype(np.float64)
        p = probabilities_of(q, k).reshape(w.kv_heads, w.group, -1)
        again = np.einsum("hgn,nhd->hgd", p, v).reshape(w.heads, w.head_dim)
        missed = np.linalg.norm(again - outputs[layer], axis=1) / np.linalg.norm(outputs[layer], axis=1)
        assert missed.max() < 5e-3
    assert t.report["provenance"]["answers_needle"] is True
    assert t.report["provenance"]["licence"] == "Apache-2.0"


def test_the_shipped_capture_holds_a_sink_and_a_needle():
    w = load_workload("smollm2_decode_2k")
    t = make_tensors(w, "bfloat16", 0)
    sink_layer, needle_layer = (w.source.layers.index(layer) for layer in (18, 23))
    assert probabilities_of(t.q[0][sink_layer], t.k[0][sink_layer])[:, 0].mean() > 0.5
    # The needle stands at tokens 811 ... 824; one head of layer 23 puts nearly all of its mass there.
    assert probabilities_of(t.q[0][needle_layer], t.k[0][needle_layer])[:, 806:824].sum(axis=1).max() > 0.9
