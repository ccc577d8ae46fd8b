"""Traces on GPUs: bytes of the trace are the bytes predicted, results keep their meaning, what can't run says so."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import santa_sim
from santa_sim import InputError, load_hardware, simulate
from santa_sim.simulator.export import memory_requests
from santa_sim.simulator.gpu import dense_work, predict, work_of

H, H_KV, D, N = 8, 2, 64, 700


def trace_of(method, n_q=1, seed=0, **spec):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((H, D) if n_q == 1 else (n_q, H, D)).astype(np.float32)
    k, v = (rng.standard_normal((N, H_KV, D)).astype(np.float32) for _ in range(2))
    return santa_sim.attention(q, k, v, method=method, precision="bf16", tile=128, **spec)[1]


CASES = [("sdpa", {}), ("topk", {"k_top": 16}), ("santa", {"S": 16}), ("s2anta-strat", {"S": 16}), ("s2anta-sys", {"S": 16}), ("s2anta-prop", {"S": 16}),
         ("s2anta-flash", {"S": 24}), ("s2anta-sys", {"S": 16, "score": "bernoulli-mean-group", "B": 4}),
         ("s2anta-sys", {"S": 16, "score": "bernoulli", "B": 4}), ("topk", {"k_top": 16, "score": "bernoulli-stratified", "B": 4})]  # fmt: skip


@pytest.mark.parametrize(("method", "spec"), CASES, ids=[f"{m}-{s.get('score', 'exact')}" for m, s in CASES])
@pytest.mark.parametrize("n_q", [1, 5])
def test_every_method_plays_with_its_own_bytes(method, spec, n_q):
    trace = trace_of(method, n_q, **spec)
    work, = work_of(trace)
    result = simulate(trace, "h200", spans=True)
    rows = {(row, head) for head, buffer, some in zip(trace.items.kv_head, trace.items.gather_buffer, trace.items.gather_rows) if buffer == "v" for row in some}
    if method != "sdpa":
        assert work.v_rows == len(rows) and result.traffic_bytes["v_read"] == len(rows) * D * 2
    if spec.get("score") is None:
        assert result.traffic_bytes["k_read"] == N * H_KV * D * 2
    else:
        assert 0 < result.traffic_bytes["k_read"] <= (N + 16) * H_KV * D * 2
    assert result.traffic_bytes["total"] == sum(n for kind, n in result.traffic_bytes.items() if kind != "total")
    assert all(0 <= share <= 1 for share in result.utilization.values()) and result.bound_by in result.utilization
    launches = {name: seconds for name, seconds in result.busy_s.items() if name.startswith("launch ")}
    assert sum(launches.values()) == pytest.approx(result.latency_s)
    assert result.energy_j == 0 and set(result.energy_unknown) == set(result.energy_breakdown_j)
    assert result.spans[-1].end_fs == pytest.approx(result.latency_s * 1e15, rel=1e-6)
    assert result.cycles == pytest.approx(result.latency_s * load_hardware("h200").clock_hz, abs=1)
    result.to_dict(), result.to_frame(), result.plot()


def test_what_only_units_have_says_what_there_is_instead(tmp_path):
    result = simulate(trace_of("s2anta-sys", S=16), "h200")
    for ask, what in ((result.stalls, "stalls"), (lambda: result.stalls(channels=True), "stalls"), (lambda: result.timeline(tmp_path / "t"), "timeline")):
        with pytest.raises(InputError, match=f"h200 is a GPU.* it has no {what}. Result.busy_s .*accelerators, such as hardware='mac_hbm3'"):
            ask()
    assert not list(tmp_path.iterdir())


def test_layers_run_one_after_another():
    parts = [trace_of("s2anta-sys", S=16, seed=seed) for seed in (0, 1)]
    items = [part.items.assign(layer=layer) for layer, part in enumerate(parts)]
    both = santa_sim.Trace(pd.concat(items, ignore_index=True), {**parts[0].meta, "layers": [0, 1], "samples": [16, 16]})
    one, two = simulate(parts[0], "h200"), simulate(both, "h200")
    assert one.latency_s < two.latency_s < 2 * one.latency_s  # the events around a graph stand once
    assert two.traffic_bytes["k_read"] == 2 * one.traffic_bytes["k_read"]


def test_gpu_and_accelerator_read_the_same_operations():
    trace = trace_of("s2anta-prop", S=16)
    gpu, accelerator = simulate(trace, "rtx_4090"), simulate(trace, "adder_hbm3")
    assert gpu.ops == accelerator.ops and gpu.accesses == accelerator.accesses
    assert gpu.value_rows_unique_per_group == accelerator.value_rows_unique_per_group
    assert set(gpu.traffic_bytes) == set(accelerator.traffic_bytes) and set(gpu.energy_breakdown_j) == set(accelerator.energy_breakdown_j)


def test_int8_has_no_gpu_kernels():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((H, D), (N, H_KV, D), (N, H_KV, D)))
    trace = santa_sim.attention(q, k, v, method="s2anta-sys", S=16, precision="int8")[1]
    with pytest.raises(InputError, match="'bf16' or 'fp16'"):
        simulate(trace, "h200")


def test_a_gpu_has_no_single_memory_requests():
    with pytest.raises(InputError, match="one by one"):
        list(memory_requests(trace_of("sdpa"), load_hardware("h200")))


def test_run_takes_a_gpu():
    result = santa_sim.run("bitnet2b_decode_1k", "s2anta-sys", 16, hardware="rtx_6000_ada", kernel="cpu")
    assert result.hardware == "rtx_6000_ada" and result.latency_s > 0
    assert any("not calibrated" in note for note in result.notes)


def test_a_cache_larger_than_the_memory_is_named_with_both_sizes():
    work = dense_work(2**17, batch=64, method="s2anta-sys", S=128)  # 2 x 8 heads x 256 B a key: 34.4 GB
    assert work.cache_bytes == 2**17 * 64 * 4096
    with pytest.raises(InputError, match=r"34,359,738,368 bytes.*rtx_4090 holds 25,769,803,776"):
        predict(work, load_hardware("rtx_4090"))
    assert len(predict(work, load_hardware("h200"))) == 2


def test_dense_on_a_gpu_names_types_it_has_not_and_plays_bernoulli_scores_with_our_kernels():
    with pytest.raises(InputError, match="'bf16' and 'fp16'"):
        predict(dense_work(4096, precision="int8"), load_hardware("h200"))
    estimated = dataclasses.replace(dense_work(4096), score="bernoulli", features=900.0)
    with pytest.raises(InputError, match="exact scores"):
        predict(estimated, load_hardware("h200"), "split-kv")
    assert "merge" in set(predict(estimated, load_hardware("h200")).launch) and "split" not in set(predict(estimated, load_hardware("h200")).launch)


def test_a_short_step_is_bound_by_starts_or_waits_and_a_long_one_by_memory():
    short, = set(predict(dense_work(64), load_hardware("h200"))["bound_by"][:1])
    assert short in ("start", "latency")
    long = predict(dense_work(2**20), load_hardware("h200"))
    assert long.bound_by[0] == "dram"
    result = simulate(trace_of("s2anta-sys", S=16), "h200")
    assert result.bound_by in ("start", "latency") and {"start", "latency", "blocks"} <= set(result.utilization)
