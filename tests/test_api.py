import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import santa_sim
from santa_sim import InputError
from santa_sim.workload import replace

KEYS = {
    "workload", "method", "score", "samples", "samples_drawn", "hardware", "precision", "seed", "latency_s", "cycles", "energy_j",
    "bound_by", "energy_breakdown_j", "traffic_bytes", "useful_bytes", "sram_bytes", "ops", "accesses",
    "value_rows_unique_per_head", "value_rows_unique_per_group", "value_row_fraction", "error", "utilization",
}  # fmt: skip
ENERGY = {
    "dram_activate", "dram_read", "dram_write", "dram_background", "sram", "score", "softmax", "selection", "sampling", "accumulate",
    "merge", "normalize", "leakage",
}  # fmt: skip
TRAFFIC = {"q_read", "k_read", "v_read", "stash_read", "stash_write", "partials_read", "partials_write", "output_write", "total"}
OPS = {
    "score": {"adds", "mults"}, "softmax": {"exps", "compares", "adds", "mults"}, "selection": {"compares"},
    "sampling": {"random_numbers", "compares", "adds", "mults", "floors"}, "value": {"adds", "mults", "shifts"},
    "merge": {"adds", "mults", "exps"},
}  # fmt: skip
METHODS = {
    "sdpa": {}, "topk": {"k": 64}, "santa": {"S": 64}, "s2anta-strat": {"S": 64}, "s2anta-sys": {"S": 64}, "s2anta-prop": {"S": 64},
    "s2anta-flash": {"S": 64},
}  # fmt: skip
SCORES = {"exact": {}, "bernoulli": {"B": 4}, "bernoulli-stratified": {"B": 4}, "bernoulli-mean-group": {"B": 4}}


def check(result):
    """What holds for every run."""
    d = result.to_dict()
    assert d.keys() >= KEYS
    assert json.loads(json.dumps(d)) == d
    assert d["energy_breakdown_j"].keys() == ENERGY
    assert d["traffic_bytes"].keys() == d["useful_bytes"].keys() == TRAFFIC
    assert {stage: set(ops) for stage, ops in d["ops"].items()} == OPS
    assert all(isinstance(n, int) for ops in d["ops"].values() for n in ops.values())
    assert d["energy_j"] == math.fsum(d["energy_breakdown_j"].values())
    for traffic in (d["traffic_bytes"], d["useful_bytes"]):
        assert traffic["total"] == sum(n for name, n in traffic.items() if name != "total")
    assert all(d["traffic_bytes"][name] >= d["useful_bytes"][name] for name in TRAFFIC)
    assert all(0 <= u <= 1 for u in d["utilization"].values())
    assert all(d["latency_s"] >= busy for busy in d["busy_s"].values())
    memory = d["memory"]
    assert memory["achieved_bandwidth_bytes_per_s"] <= memory["peak_bandwidth_bytes_per_s"]
    assert d["latency_s"] >= d["traffic_bytes"]["total"] / memory["peak_bandwidth_bytes_per_s"] * (1 - 1e-12)
    assert math.isfinite(d["error"]["relative_l2"])


@pytest.mark.parametrize("workload", ["smollm2_decode_2k", "synthetic"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_score_stage_runs(workload, method, score):
    if workload == "synthetic":
        workload = replace("llama8b_decode_4k", n_k=(700, 1000), heads=10, kv_heads=2, head_dim=64)
    result = santa_sim.run(workload, method, score=score, **METHODS[method], **SCORES[score])
    check(result)
    ternary = score in ("bernoulli", "bernoulli-stratified")
    assert (result.ops["score"]["mults"] == 0) == ternary
    queries_times_d = result.accesses["value"]["writes"]
    if method in ("sdpa", "topk"):
        assert result.ops["value"]["mults"] == result.ops["value"]["adds"]
    else:
        assert result.ops["value"]["mults"] == queries_times_d
        assert result.ops["value"]["adds"] == result.samples_drawn * queries_times_d


def test_the_readme_example_at_full_size():
    """The example of the README, and the same on integers: Llama-8B at 32k."""
    result = santa_sim.run(workload="llama8b_decode_32k", method="s2anta-prop", S=128)
    check(result)
    assert result.output.shape == (32, 128)
    assert result.useful_bytes["k_read"] == 32768 * 8 * 128 * 2
    assert result.ops["value"]["adds"] == 32 * 128 * 128
    assert result.ops["score"]["adds"] == 32 * 32768 * 128
    assert 0.02 < result.error["relative_l2"] < 0.2
    shifted = santa_sim.run("llama8b_decode_32k", "s2anta-prop", 128, precision="int8")
    check(shifted)
    assert shifted.ops["value"] == {"adds": 32 * 128 * 128, "mults": 0, "shifts": 32 * 128}
    assert shifted.useful_bytes["k_read"] == 32768 * 8 * 128


def test_prefill_counts_are_causal_sums():
    workload = replace("llama8b_prefill_4k", n_k=200, heads=4, kv_heads=2, head_dim=32)
    result = santa_sim.run(workload, "s2anta-sys", S=16)
    check(result)
    assert result.ops["score"]["adds"] == 4 * 32 * sum(range(1, 201))
    assert result.ops["value"]["adds"] == 4 * 32 * 200 * 16


def test_expected_error_of_iid_sampling_is_met():
    """E|error|^2 = tr(Sigma)/S: the mean over 40 seeds lies within 5 standard errors, and strat's closed form below it."""
    workload = replace("llama8b_decode_4k", n_k=512, heads=8, kv_heads=2, head_dim=32)
    for method in ("santa", "s2anta-strat"):
        runs = [santa_sim.run(workload, method, 32, precision="fp32", seed=seed) for seed in range(40)]
        squares = np.array([run.error["relative_l2"] ** 2 for run in runs])
        expected = runs[0].error["expected_relative_l2"] ** 2
        assert abs(squares.mean() - expected) < 5 * squares.std(ddof=1) / math.sqrt(len(squares)), method
    iid = santa_sim.run(workload, "santa", 32, precision="fp32").error["variance_trace"]
    strat = santa_sim.run(workload, "s2anta-strat", 32, precision="fp32").error["variance_trace"]
    assert strat < iid


def test_one_S_per_layer():
    result = santa_sim.run("smollm2_decode_2k", "s2anta-sys", S=[16, 32, 64, 128])
    assert result.ops["value"]["adds"] == 9 * 64 * (16 + 32 + 64 + 128)
    assert result.samples == [16, 32, 64, 128]
    assert result.samples_drawn == 60


def test_dense_kv_bytes_are_four_to_one():
    grouped = santa_sim.run(replace("llama8b_decode_4k", n_k=600), "sdpa")
    full = santa_sim.run(replace("llama8b_decode_4k", n_k=600, kv_heads=32), "sdpa")
    for buffer in ("k_read", "v_read"):
        assert full.useful_bytes[buffer] == 4 * grouped.useful_bytes[buffer]
        assert full.traffic_bytes[buffer] == 4 * grouped.traffic_bytes[buffer]


def test_trace_replays_to_the_same_result(tmp_path):
    trace = santa_sim.make_trace("smollm2_decode_2k", "s2anta-flash", 64)
    trace.save(tmp_path / "t.parquet")
    replayed = santa_sim.simulate(santa_sim.Trace.load(tmp_path / "t.parquet"), "adder_hbm3")
    assert replayed.to_dict() == santa_sim.run("smollm2_decode_2k", "s2anta-flash", 64).to_dict()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (dict(method="s2anta-prop", sample=128), ["sample", "did you mean 'S'"]),
        (dict(method="s2anta-prop", S=128, hardwre="x"), ["hardwre", "did you mean 'hardware'"]),
        (dict(method="s2anta-prop"), ["S is missing", "S=128"]),
        (dict(method="s2anta-prop", S=0), ["S=0"]),
        (dict(method="s2anta-prop", S=-4), ["S=-4"]),
        (dict(method="s2anta-prop", S=12.5), ["S=12.5", "whole number"]),
        (dict(method="s2anta-prop", S=True), ["S=True", "whole number"]),
        (dict(method="s2anta-prop", S=[64, 64]), ["2 entries", "4 layers"]),
        (dict(method="s2anta-pro", S=64), ["s2anta-pro", "did you mean 's2anta-prop'"]),
        (dict(method="topk"), ["k is missing", "k=128"]),
        (dict(method="topk", k=0), ["k=0"]),
        (dict(method="topk", k=64, S=64), ["S=64", "topk"]),
        (dict(method="sdpa", k=4), ["k=4"]),
        (dict(method="sdpa", score="bernouli", B=4), ["bernouli", "did you mean 'bernoulli'"]),
        (dict(method="sdpa", score="bernoulli"), ["B is missing", "B=4"]),
        (dict(method="sdpa", score="bernoulli", B=0), ["B=0"]),
        (dict(method="sdpa", B=4), ["B=4", "exact"]),
        (dict(method="sdpa", hardware="adder_hbm3"), ["adder_hbm3"]),
        (dict(method="sdpa", hardware="mac_hbm"), ["mac_hbm", "did you mean 'mac_hbm3'"]),
        (dict(method="sdpa", precision="bf61"), ["bf61", "did you mean 'bf16'"]),
        (dict(method="sdpa", kernel="cuda"), ["cuda", "cpu"]),
        (dict(method="s2anta-sys", S=4, seed=-1), ["seed=-1"]),
        (dict(method="s2anta-sys", S=4, tile=0), ["tile=0"]),
        (dict(method="s2anta-sys", S=4, allocation="systematic"), ["allocation", "s2anta-prop"]),
        (dict(method="s2anta-sys", S=4, value_format="Q1.6"), ["value_format", "int8"]),
        (dict(method="s2anta-sys", S=4, precision="int8", value_format="Q3.6"), ["Q3.6", "10 bits"]),
    ],
)
def test_bad_arguments_are_named_with_their_value(arguments, said):
    with pytest.raises(InputError) as error:
        santa_sim.run("smollm2_decode_2k", **arguments)
    assert all(part in str(error.value) for part in said), str(error.value)


def test_workload_that_does_not_exist():
    with pytest.raises(InputError, match="did you mean 'llama8b_decode_32k'"):
        santa_sim.run("lama8b_decode_32k", "sdpa")
    with pytest.raises(InputError, match="nowhere/w.yaml.*does not exist"):
        santa_sim.run("nowhere/w.yaml", "sdpa")


def test_import_is_light():
    """torch, CuPy, matplotlib and transformers are imported only when something needs them."""
    code = "import sys, santa_sim; print([m for m in ('torch', 'cupy', 'matplotlib', 'transformers', 'dask') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert run.stdout.strip() == "[]"


def test_numpy_numbers_are_numbers():
    plain = santa_sim.run("smollm2_decode_2k", "s2anta-sys", S=8, seed=3)
    for S in (np.int64(8), np.array(8)):
        assert santa_sim.run("smollm2_decode_2k", "s2anta-sys", S=S, seed=np.int64(3)).to_dict() == plain.to_dict()
    assert santa_sim.run("smollm2_decode_2k", "s2anta-sys", S=np.array([8, 8, 8, 8])).to_dict()["samples"] == [8, 8, 8, 8]


def test_rewritten_captured_file_is_read_anew(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((1, *shape)).astype(np.float16) for name, shape in (("q", (2, 8)), ("k", (50, 1, 8)), ("v", (50, 1, 8)))}
    workload = dict(name="mine", model="mine", kind="decode", heads=2, kv_heads=1, head_dim=8, n_k=50, layers=1, model_layers=1, dtype="float16",
                    source={"type": "captured", "file": str(tmp_path / "c.npz"), "layers": [0]})  # fmt: skip
    np.savez(tmp_path / "c.npz", layers=np.array([0]), provenance='"test"', **arrays)
    assert np.abs(santa_sim.run(workload, "sdpa").output.astype(float)).max() > 0
    np.savez(tmp_path / "c.npz", layers=np.array([0]), provenance='"test, again"', **{**arrays, "v": arrays["v"] * 0})
    again = santa_sim.run(workload, "sdpa")
    assert (again.output == 0).all()
    assert again.error["relative_l2"] == 0


def test_notes_say_what_the_run_rests_on():
    assert any("biased" in note for note in santa_sim.run("smollm2_decode_2k", "s2anta-prop", 16).notes)
    assert not any("biased" in note for note in santa_sim.run("smollm2_decode_2k", "s2anta-prop", 16, allocation="systematic").notes)
    assert any("32 per query and head" in note for note in santa_sim.run("smollm2_decode_2k", "s2anta-flash", 16).notes)


@pytest.mark.parametrize(("name", "meant"), [("samples", "S"), ("smaples", "S"), ("top_k", "k_top"), ("precison", "precision")])
def test_attention_names_misspelled_arguments(name, meant):
    x = np.ones((1, 4), np.float32)
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        santa_sim.attention(x, x[None], x[None], "sdpa", **{name: 4})


def test_works_from_a_checkout_that_shadows_the_installed_copy(tmp_path):
    """`python -c 'import santa_sim'` in a checkout imports its folder; the data folders lie beside it there."""
    import shutil
    from pathlib import Path

    source = Path(santa_sim.__file__).parent
    beside = source.parent if (source.parent / "workloads").is_dir() else source
    for name, folder in (("santa_sim", source), ("workloads", beside / "workloads"), ("hwmodels", beside / "hwmodels"), ("gpu", beside / "gpu")):
        shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "captured"), dirs_exist_ok=True)
    code = """
import sys
# what an editable install adds is taken away, so that only the folder is left
sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in repr(finder).lower()]
import santa_sim
print(santa_sim.__file__, len(santa_sim.list_workloads()), len(santa_sim.list_hardware()))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[0] == str(tmp_path / "santa_sim" / "__init__.py")
    assert int(run.stdout.split()[1]) >= 9


def test_an_integer_run_says_which_storage_its_logits_are_those_of():
    workload = {"name": "w", "model": "m", "kind": "decode", "heads": 2, "kv_heads": 1, "head_dim": 16, "n_k": [64], "model_layers": 1,
                "dtype": "bfloat16", "source": {"type": "sink_zipf", "sink_mass": 0.5, "exponent": 1.2, "fitted_at_keys": 64}}  # fmt: skip
    said = [" ".join(santa_sim.run(workload, "s2anta-sys", 16, precision=p).notes) for p in ("bf16", "int8")]
    assert "after rounding to bfloat16 the logits" in said[0] and "logits reached after rounding to bfloat16, evaluated" in said[0]
    assert "after rounding to bfloat16, before they are quantised to int8, the logits" in said[1]
