"""The GPU timing model: bounds, monotony, bytes, what a cache keeps, sizes beyond the calibration, misuse."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_sim import InputError, load_hardware
from santa_sim.simulator.gpu import dense_work, predict
from santa_sim.simulator.gpu.timing import LIMITS

CURVE = {"bytes": [2**20, 2**26, 2**30], "seconds": [4e-6, 2e-5, 2.5e-4]}
CALIBRATION = {
    "source": "made up", "clock_hz": 1_900_000_000, "read": CURVE, "read_dirty": {**CURVE, "seconds": [5e-6, 2.4e-5, 2.8e-4]}, "write": CURVE,
    "launch": {"graph_s": 3e-6, "graph_next_s": 6e-7, "stream_s": 3.2e-6, "stream_next_s": 1.5e-6, "overlapped_next_s": 5e-7, "blocks_per_s": 1.6e9},
    "gather": [{"row_bytes": 256, "rows": n, "span_bytes": 2**30, "seconds": 3.2e-6 + n * 256 / 3e12} for n in (4096, 65536, 2**20)],
    "dram_latency_s": 3.5e-7, "loaded_latency_s": 6e-7, "l2_latency_s": 1.6e-7, "l2_bandwidth_bytes_per_s": 9e12, "atomic_s": 1.8e-9,
    "atomics_per_s": 1e12,
}  # fmt: skip
H200, ADA, MEASURED = load_hardware("h200"), load_hardware("rtx_6000_ada"), load_hardware({"base": "h200", "calibration": CALIBRATION})
METHODS = ("santa", "s2anta-strat", "s2anta-sys", "s2anta-prop", "s2anta-flash", "topk", "sdpa")


def work(method="s2anta-sys", n_k=8192, batch=1, S=128, **more):
    budget = {"topk": {"k": S}, "sdpa": {}}.get(method, {"S": S})
    return dense_work(n_k, batch=batch, method=method, allocation="largest-remainder" if method == "s2anta-prop" else None, **budget, **more)


def total(frame):
    return frame["time_s"].sum()


@pytest.mark.parametrize("machine", [H200, ADA, MEASURED], ids=["h200", "ada", "measured"])
@pytest.mark.parametrize("method", METHODS)
def test_no_launch_is_faster_than_any_of_its_limits(method, machine):
    frame = predict(work(method), machine, "ours")
    for limit in LIMITS:
        assert (frame["time_s"] >= frame["start_s"] + frame[f"{limit}_s"]).all()
    assert (frame[["blocks", "resident_blocks", "waves", "threads"]] >= 1).all(axis=None)
    assert (frame["waves"] >= frame["blocks"] / (frame["resident_blocks"] * machine.multiprocessors.count)).all()


@settings(max_examples=30, deadline=None)
@given(method=st.sampled_from(METHODS), n_k=st.integers(300, 60_000), batch=st.integers(1, 20), S=st.integers(1, 1500))
def test_bytes_are_those_of_the_shape(method, n_k, batch, S):
    x = work(method, n_k, batch, min(S, n_k))
    frame = predict(x, H200, "ours", cache="flushed")
    assert frame["k_read"].sum() == x.k_bytes == batch * n_k * 8 * 256
    assert frame["v_read"].sum() == x.v_bytes and frame["output_write"].sum() == x.output_bytes
    kinds = [name for name in frame if name.endswith("_read") and not name.startswith(("dram", "l2"))]
    assert frame[kinds].sum().sum() == pytest.approx(frame["dram_read_bytes"].sum())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("path", "factor"), [(("memory", "bandwidth_bytes_per_s"), 2), (("memory", "latency_s"), 0.5), (("clock_hz",), 1.5),
                                              (("l2", "latency_s"), 0.5), (("l2", "bandwidth_bytes_per_s"), 2)])  # fmt: skip
def test_a_better_card_is_never_slower(method, path, factor):
    def changed(data, keys):
        key, *rest = keys
        return {key: changed(data[key], rest) if rest else type(data[key])(data[key] * factor)}

    better = load_hardware({"base": "h200", **changed(H200.model_dump(), path)})
    for n_k in (4096, 65_536):
        assert total(predict(work(method, n_k, 4), better, "ours")) <= total(predict(work(method, n_k, 4), H200, "ours")) * (1 + 1e-12)


@pytest.mark.parametrize("machine", [H200, MEASURED], ids=["rule", "measured"])
@pytest.mark.parametrize("method", METHODS)
def test_longer_sequences_and_larger_batches_take_longer(method, machine):
    times = [total(predict(work(method, n, 1, 64), machine, "ours")) for n in (2**13, 2**15, 2**17, 2**19)]
    assert times == sorted(times)
    assert total(predict(work(method, 2**14, 16), machine, "ours")) > total(predict(work(method, 2**14, 1), machine, "ours"))


def test_beyond_the_calibrated_sizes_time_scales_with_bytes():
    """The last stretch of the made-up curve has a slope; twice the bytes beyond it cost that slope more, and never nothing."""
    one, two, four = (total(predict(work("sdpa", n, 1), MEASURED)) for n in (2**20, 2**21, 2**22))
    slope = (2.8e-4 - 2.4e-5) / (2**30 - 2**26)
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)
    assert two - one == pytest.approx(2**20 * 8 * 512 * slope, rel=0.05)


def test_a_stream_takes_what_was_measured():
    """A dense split of 2**26 bytes, where the curve has a point: the empty kernel's time is in the curve, once."""
    frame = predict(work("sdpa", 2**14), MEASURED, cache="clean")
    assert frame["dram_s"][0] == pytest.approx(2e-5 - 3e-6, rel=0.01)
    dirty = predict(work("sdpa", 2**14), MEASURED)
    assert dirty["dram_s"][0] == pytest.approx(2.4e-5 - 3e-6, rel=0.02)


def test_starts_are_the_measured_ones():
    graph, stream = (predict(work("s2anta-sys"), MEASURED, start=start)["start_s"].tolist() for start in ("graph", "stream"))
    assert graph == [3e-6, 5e-7]  # the second launch overlaps the first
    assert stream == [3.2e-6, 5e-7]
    assert predict(work("sdpa"), MEASURED, start="stream")["start_s"].tolist() == [3.2e-6, 1.5e-6]
    assert (predict(work("s2anta-sys"), ADA)["start_s"][1:] > 5e-7).all()  # no programmatic dependent launch there


def test_a_small_stash_stays_in_the_cache_and_a_large_one_does_not():
    small, large = predict(work("s2anta-sys", 8192), H200), predict(work("s2anta-sys", 32_768, 32, 1024), H200)
    assert small["stash_write"].sum() == small["stash_read"].sum() == 0
    made = 32 * 32 * 32_768 * 4
    assert 0.5 * made < large["stash_write"].sum() < 1.1 * made and large["stash_read"].sum() > 0
    flushed = predict(work("s2anta-sys", 8192), H200, cache="flushed")
    assert flushed["stash_read"].sum() > 0


def test_a_dirty_cache_costs_time_and_no_bytes():
    clean, dirty = (predict(work("s2anta-sys", 32_768), H200, cache=cache) for cache in ("clean", "dirty"))
    assert total(dirty) > total(clean)
    assert dirty["dram_read_bytes"].sum() == clean["dram_read_bytes"].sum()


def test_more_samples_cost_more():
    times = [total(predict(work("s2anta-sys", 32_768, 16, S), H200)) for S in (64, 256, 1024, 4096)]
    assert times == sorted(times) and times[-1] > 1.5 * times[0]


@pytest.mark.parametrize(("arguments", "said"), [
    ({"implementation": "our"}, "did you mean 'ours'"), ({"start": "grph"}, "did you mean 'graph'"), ({"cache": "cold"}, "cache='cold'"),
    ({"implementation": "split-kv"}, "implementation='ours'"), ({"implementation": "authors"}, "s2anta-prop and s2anta-flash"),
])  # fmt: skip
def test_misuse_says_what_to_write(arguments, said):
    with pytest.raises(InputError) as error:
        predict(work("s2anta-sys"), H200, **arguments)
    assert said in str(error.value)


@pytest.mark.parametrize(("more", "said"), [({"precision": "fp32"}, "'bf16' or 'fp16'"), ({"tile": 1024}, "1 ... 512"), ({"d": 96}, "64, 128 or 256"),
                                            ({"H": 72}, "G of 1 ... 8")])  # fmt: skip
def test_shapes_that_the_kernels_do_not_take(more, said):
    with pytest.raises(InputError) as error:
        predict(work("s2anta-sys", **more), H200)
    assert said in str(error.value)


def test_only_a_gpu_predicts():
    with pytest.raises(InputError, match="no GPU"):
        predict(work(), load_hardware("adder_hbm3"))
    with pytest.raises(InputError, match="Trace or a Work"):
        predict([1, 2], H200)
