"""Whole decode steps: what they sum to, what bounds them, what Amdahl says."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import santa_sim
from santa_sim.cli import main
from santa_sim.errors import InputError
from santa_sim.explore.amdahl import plot_speedup
from santa_sim.explore.decode_step import Plan, _room, other_parts
from santa_sim.explore.decode_step_text import print_speedups, print_step
from santa_sim.explore.step_cost import Cost, Costs, attention_workload, combined, on_line
from santa_sim.models.layers import BF16, Matrix, load_model, parameter_count
from santa_sim.models.weight_formats import FORMATS

TINY = {
    "name": "tiny", "description": "for tests", "source": "made up", "layers": 3, "hidden": 256, "heads": 4, "kv_heads": 2,
    "head_dim": 32, "ffn": 512, "activation": "swiglu", "vocab": 2048, "tied_embeddings": False, "qkv_bias": True,
    "sub_norms": False,
}  # fmt: skip
MAC, ADDER = "mac_hbm3_bandwidth", "adder_hbm3_bandwidth"


def step(method="sdpa", S=None, model=TINY, n_k=96, hardware=MAC, **others):
    return santa_sim.decode_step(model, method, S, n_k=n_k, hardware=hardware, **others)


def test_parts_sum_to_the_step():
    made = step(batch=3)
    frame = made.to_frame()
    assert math.isclose(frame["latency_s"].sum(), made.latency_s, rel_tol=1e-12)
    assert math.isclose(frame["energy_j"].sum(), made.energy_j, rel_tol=1e-12)
    assert math.isclose(math.fsum(made.cost.energy_breakdown_j.values()), made.energy_j, rel_tol=1e-12)
    assert frame["traffic_bytes"].sum() == made.cost.traffic_bytes["total"]
    kinds = frame.groupby("kind")["latency_s"].sum()
    assert math.isclose(kinds["attention"] / made.latency_s, made.attention_share, rel_tol=1e-12)
    assert made.latency_per_token_s == made.latency_s / 3 and made.energy_per_token_j == made.energy_j / 3
    assert json.loads(json.dumps(made.to_dict()))["weight_bytes"] == made.weight_bytes


@pytest.mark.parametrize("tied", [False, True])
def test_weights_read_are_the_parameters(tied):
    """Each parameter once whatever the batch, of an untied embedding only the tokens' rows."""
    model = load_model({**TINY, "tied_embeddings": tied})
    for batch in (1, 4):
        made = step(model=model, batch=batch)
        once = parameter_count(model) - (0 if tied else model.vocab * model.hidden)
        assert made.weight_bytes == BF16 * (once + batch * model.hidden)
        streamed = sum(part.cost.useful_bytes["k_read"] for part in made.parts if part.kind != "attention")
        assert streamed == made.weight_bytes  # what the simulator moved


def test_llama_reads_eight_billion_parameters_by_the_simulators_count():
    """8,030,261,248 parameters at 2 B, less the embedding (128,256 x 4,096), plus one row of it: also on the line."""
    model, costs = load_model("llama8b"), Costs(santa_sim.load_hardware(MAC))
    parts = other_parts(model, Plan.of("sdpa", None, "bf16", "bf16", model, {}), 1, costs)
    moved = sum(part.cost.useful_bytes["k_read"] for part in parts)
    assert moved == 2 * (8_030_261_248 - 128_256 * 4_096 + 4_096)
    seconds = sum(part.cost.latency_s for part in parts)
    assert moved / 819.2e9 <= seconds <= 1.02 * moved / 819.2e9  # a stream but for the norms between


@pytest.mark.parametrize("hardware, method, S", [(MAC, "sdpa", None), (ADDER, "s2anta-prop", 16)])
@pytest.mark.parametrize("form", FORMATS)
def test_no_part_is_sooner_than_its_bytes_and_its_lanes(hardware, method, S, form):
    machine = santa_sim.load_hardware(hardware)
    for part in step(method, S, weights=form, hardware=machine, batch=2).parts:
        assert part.cost.latency_s >= part.cost.traffic_bytes["total"] / machine.memory.bandwidth_bytes_per_s * (1 - 1e-12)
        assert part.cost.latency_s >= max(part.cost.busy_s.values()) * (1 - 1e-12)


def test_a_larger_batch_takes_longer_and_less_a_token():
    steps = [step(batch=batch) for batch in (1, 2, 4, 8)]
    for before, after in zip(steps, steps[1:]):
        assert after.latency_s > before.latency_s and after.energy_j > before.energy_j
        assert after.latency_per_token_s < before.latency_per_token_s and after.energy_per_token_j < before.energy_per_token_j
        assert after.weight_bytes - before.weight_bytes == (after.batch - before.batch) * 256 * BF16  # rows of the embedding
        kv = [made.cost_of("attention").useful_bytes for made in (before, after)]
        assert kv[1]["k_read"] * before.batch == kv[0]["k_read"] * after.batch  # K per sequence


def test_ternary_adds_and_never_multiplies():
    made = step("s2anta-prop", 16, weights="ternary", lm_head="ternary", hardware=ADDER)
    table = santa_sim.load_hardware(ADDER).energy
    weights = sum(part.runs * rows * columns for part, (rows, columns) in zip(made.parts, [(256, 256), (256, 128), (1024, 256), (256, 512), (2048, 256)]))
    scores = sum(part.cost.energy_breakdown_j["score"] for part in made.parts if part.kind == "matrix")
    assert math.isclose(scores, weights * table.add_j["int32"], rel_tol=1e-12)


def test_fewer_bits_read_fewer_bytes_and_cost_less():
    made = {name: step("s2anta-prop", 16, weights=name, hardware=ADDER) for name in FORMATS}
    order = ["bf16", "int8", "int4", "ternary"]
    for more, fewer in zip(order, order[1:]):
        assert made[fewer].weight_bytes < made[more].weight_bytes
        assert made[fewer].cost_of("matrix").energy_breakdown_j["dram_read"] < made[more].cost_of("matrix").energy_breakdown_j["dram_read"]


def test_amdahl():
    """On one machine the step's speedup is Amdahl's of attention's share and speedup, and below the bound."""
    frame = santa_sim.end_to_end_speedup(TINY, "s2anta-prop", 8, n_k=[64, 400, 4096], batch=[1, 3], hardware=MAC)
    f, s = frame["attention_share"], frame["attention_speedup"]
    assert list(frame["speedup"]) == pytest.approx(1 / (1 - f + f / s), rel=1e-12)
    assert list(frame["amdahl_bound"]) == pytest.approx(1 / (1 - f), rel=1e-12)
    assert (frame["speedup"] < frame["amdahl_bound"]).all() and (frame["energy_gain"] < frame["energy_bound"]).all()
    f, s = frame["attention_energy_share"], frame["attention_energy_gain"]
    assert list(frame["energy_gain"]) == pytest.approx(1 / (1 - f + f / s), rel=1e-9)
    assert list(frame["n_k"]) == [64, 64, 400, 400, 4096, 4096] and list(frame["batch"]) == [1, 3] * 3


def test_gains_say_which_energy_nobody_knows():
    """LPDDR5 has no figure for its DRAM: beside the gain where both lack it, no gain where one does."""
    at = {"n_k": 64, "hardware": "mac_lpddr5"}
    both = santa_sim.end_to_end_speedup(TINY, "s2anta-prop", 8, **at)
    lacking = "; ".join(step(n_k=64, hardware="mac_lpddr5").energy_unknown)
    assert "dram_read" in lacking and both["energy_unknown"][0] == both["baseline_energy_unknown"][0] == lacking
    assert both["energy_gain"][0] > 1
    one = santa_sim.end_to_end_speedup(TINY, "s2anta-prop", 8, baseline_hardware=MAC, **at)
    assert one["energy_unknown"][0] == lacking != one["baseline_energy_unknown"][0]
    assert one[["energy_gain", "attention_energy_gain", "energy_bound"]].isna().all(axis=None) and one["speedup"][0] > 0


def test_a_single_length_shows_both_speedups():
    frame = santa_sim.end_to_end_speedup(TINY, "s2anta-prop", 8, n_k=64, batch=[1, 2], hardware=MAC)
    axes = plot_speedup(frame).axes[0]
    assert len(axes.lines) == 4 and all(line.get_marker() not in ("None", "", None) for line in axes.lines)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["batch 1", "batch 2", "attention for free"]


def test_attention_of_little_time_has_little_to_give():
    frame = santa_sim.end_to_end_speedup({**TINY, "layers": 1, "vocab": 32768}, "s2anta-prop", 4, n_k=16, hardware=MAC)
    share = frame["attention_share"][0]
    assert share < 0.1 and frame["speedup"][0] < 1 / (1 - share) < 1.12


def test_budgets_by_layer():
    """S per layer: the attention of each layer with its own; the same S everywhere is the same as one number."""
    one, same = step("s2anta-sys", 8), step("s2anta-sys", [8, 8, 8])
    assert same.latency_s == one.latency_s and same.samples == (8, 8, 8)
    mixed, other = step("s2anta-sys", [8, 32, 8]), step("s2anta-sys", 32)
    part = {made.parts[-1].name: made.parts[-1] for made in (one, other)}
    assert [p.name for p in mixed.parts[-2:]] == ["attention, S = 8", "attention, S = 32"]
    assert math.isclose(mixed.cost_of("attention").latency_s, (2 * one.parts[-1].cost.latency_s + other.parts[-1].cost.latency_s) / 3)
    assert set(part) == {"attention"}


@settings(max_examples=20, deadline=None)
@given(w=st.fractions(0, 5, max_denominator=9), n=st.integers(0, 10**9), x=st.integers(1, 1000))
def test_lines_are_exact_in_bytes(w, n, x):
    def cost(k):
        return Cost(k * 1e-9, {"sram": k * 1e-12}, {"total": k}, {"total": k}, {"dram": k * 1e-10})

    assert combined([(w, cost(n))]).traffic_bytes["total"] == round(Fraction(w) * n)
    line = on_line(x, 8, cost(8 * n), 16, cost(16 * n))
    assert line.traffic_bytes["total"] == x * n and math.isclose(line.latency_s, x * n * 1e-9, rel_tol=1e-9, abs_tol=1e-20)


def test_a_line_through_two_pieces_has_the_larger_ones_notes_once():
    said = [Cost(n * 1e-9, {}, {"total": n}, {"total": n}, {}, notes=(f"within {n}", "banks")) for n in (1, 2)]
    assert on_line(4, 1, said[0], 2, said[1]).notes == ("within 2", "banks")


def test_pieces_of_a_matrix_agree_with_all_of_it():
    """The line through 8 and 16 MiB against 24 MiB: bytes exactly, time within 0.5 %, energy within 0.1 %."""
    machine = santa_sim.load_hardware("mac_lpddr5")
    matrix = Matrix("m", 1, 3 * 1024 + 3, 4096)
    for batch in (1, 32):
        line, whole = (Costs(machine, full).matrix(matrix, FORMATS["bf16"], batch) for full in (False, True))
        assert line.useful_bytes == whole.useful_bytes
        assert math.isclose(line.latency_s, whole.latency_s, rel_tol=5e-3) and math.isclose(line.energy_j, whole.energy_j, rel_tol=1e-3)


def test_pieces_of_a_batch_agree_with_all_of_it():
    """Twelve sequences from four and eight: attention within 2 %, what is read within 0.2 %."""
    machine, model = santa_sim.load_hardware(MAC), load_model({**TINY, "kv_heads": 4})
    workload = attention_workload(model, 5000)
    for arguments in ({"method": "sdpa", "S": None}, {"method": "s2anta-prop", "S": 32}):
        line, whole = (Costs(machine, full).attention(workload, arguments, 12) for full in (False, True))
        assert math.isclose(line.latency_s, whole.latency_s, rel_tol=0.02)
        assert math.isclose(line.traffic_bytes["total"], whole.traffic_bytes["total"], rel_tol=2e-3)


def test_a_model_that_does_not_fit_says_so(capsys):
    machine = santa_sim.load_hardware("mac_lpddr5")
    made = step(hardware=machine)
    capacity = machine.memory.config.organization.capacity_bytes
    assert made.memory_needed_bytes == BF16 * parameter_count(load_model(TINY)) + 96 * 3 * 2 * 2 * 32 * BF16 < capacity
    assert made.memory_holds_bytes == capacity and made.fits and not any("holds" in note for note in made.notes)
    assert "as though it held them" in _room("mac_lpddr5", capacity + 1, capacity)[0] and not _room("mac_lpddr5", capacity, capacity)
    small = {"base": "mac_lpddr5", "name": "small", "memory": {"dram_changes": {"organization": {"rows": 16}}}}
    made, row = step(hardware=small), santa_sim.end_to_end_speedup(TINY, "s2anta-prop", 4, n_k=96, hardware=small, baseline_hardware="mac_lpddr5").iloc[0]
    assert not made.fits and made.memory_needed_bytes > made.memory_holds_bytes == made.to_dict()["memory_holds_bytes"]
    assert re.match(r"does not fit: weights and cache take 0\.\d+ GB, the memory of small holds 0\.\d+ GB", made.notes[0])
    assert (row["fits"], row["baseline_fits"], row["memory_holds_bytes"]) == (False, True, made.memory_holds_bytes)
    alone = step(hardware="mac_hbm3_bandwidth")  # a memory without a size
    assert alone.fits and alone.memory_holds_bytes is None
    print_step(made), print_speedups(row.to_frame().T)
    printed = " ".join(capsys.readouterr().out.split())
    assert "costed as though it held them" in printed and "B†" in printed and "† weights and cache are more than the" in printed


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: step(hardware="h200"), "is a GPU"),
        (lambda: step(weights="int9"), "weights='int9' is not known"),
        (lambda: step(lm_head="bf61"), "lm_head='bf61' is not known; did you mean 'bf16'"),
        (lambda: step(batch=0), "batch=0: write a whole number from 1"),
        (lambda: step(n_k=True), "n_k=True: write a whole number"),
        (lambda: step("s2anta-prop", [4, 4]), "tiny has 3 layers"),
        (lambda: step(sead=3), r"no argument 'sead' \(given as sead=3\); did you mean 'seed'"),
        (lambda: step(hardware=ADDER), "accumulate.kind='adder'"),
        (lambda: santa_sim.end_to_end_speedup(TINY, "s2anta-prop", 4, n_k=[]), r"n_k=\[\] is empty"),
        (lambda: santa_sim.end_to_end_speedup(TINY, "s2anta-prop", 4, n_k=8, baseline="topk"), "takes a budget of its own"),
    ],
)
def test_errors_say_what_to_write(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.fixture
def tiny_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(TINY), encoding="utf-8")
    return str(path)


def test_command(tiny_file, tmp_path):
    base = ["decode-step", tiny_file, "--method", "s2anta-prop", "-S", "8", "--n-k", "64", "--hardware", MAC]
    run = CliRunner().invoke
    printed = run(main, [*base, "-o", str(tmp_path / "step.json")])
    assert printed.exit_code == 0 and "LM head" in printed.output and "a token" in printed.output
    written = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    assert written == json.loads(run(main, [*base, "--json"]).output) and written["latency_s"] > 0
    made = json.loads(run(main, [*base, "--tokens", "5", "--json"]).output)
    assert made["tokens"] == 5 and made["latency_s"] > 4 * written["latency_s"]
    assert "lengths" in run(main, [*base, "--tokens", "5"]).output
    table = [*base, "--n-k", "128", "--over", "sdpa"]
    rows = json.loads(run(main, [*table, "--json", "-o", str(tmp_path / "t.csv"), "--plot", str(tmp_path / "t.png")]).output)
    assert [row["n_k"] for row in rows] == [64, 128]
    assert (tmp_path / "t.csv").read_text(encoding="utf-8").startswith("model,") and (tmp_path / "t.png").stat().st_size > 1000
    text = run(main, table).output
    assert "speedup" in text and "n_k" in text and "* both energies without" in text
    lpddr5 = [*base, "--hardware", "mac_lpddr5", "--over", "sdpa"]
    assert "* both energies without DRAM, leakage (not known)" in run(main, lpddr5).output
    assert "dram_read" in json.loads(run(main, [*lpddr5, "--json"]).output)[0]["energy_unknown"]
    for wrong, words in ([[*base, "--n-k", "9"], "need --over"], [[*base, "--plot", "p.png"], "needs --over"],
                         [[*table, "--tokens", "3"], "don't go together"]):  # fmt: skip
        failed = run(main, wrong)
        assert failed.exit_code == 2 and words in failed.output
