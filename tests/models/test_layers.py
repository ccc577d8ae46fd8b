"""Shapes and counts of whole models, and the traces of their matrices."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import santa_sim
from santa_sim.errors import InputError
from santa_sim.models.layer_traces import block_rows, elementwise_trace, matrix_trace
from santa_sim.models.layers import (
    BF16,
    Matrix,
    elementwise,
    load_model,
    matrices,
    model_names,
    parameter_count,
    weight_bytes,
)
from santa_sim.models.weight_formats import FORMATS, weight_format

# Parameters of the checkpoints as their model pages count them.
PUBLISHED = {"llama8b": 8_030_261_248, "deepseek7b": 7_615_616_512, "smollm2": 134_515_008}
BF = FORMATS["bf16"]


def test_parameter_counts_are_the_published_ones():
    assert set(model_names()) == {*PUBLISHED, "bitnet2b"}
    for name, published in PUBLISHED.items():
        assert parameter_count(load_model(name)) == published
    assert parameter_count(load_model("bitnet2b")) == 2_412_820_480  # the model card says about 2 billion


@pytest.mark.parametrize("workload, model", [("llama8b_decode_8k", "llama8b"), ("deepseek7b_decode_8k", "deepseek7b"),
                                             ("bitnet2b_decode_1k", "bitnet2b"), ("smollm2_decode_2k", "smollm2")])  # fmt: skip
def test_models_and_workloads_agree(workload, model):
    w, m = santa_sim.load_workload(workload), load_model(model)
    assert (w.heads, w.kv_heads, w.head_dim, w.model_layers) == (m.heads, m.kv_heads, m.head_dim, m.layers)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_step_reads_every_parameter_once(name):
    """In bf16: all matrices, biases and norms, and of an untied embedding only the tokens' rows."""
    model = load_model(name)
    once = sum(m.runs * weight_bytes(m, BF) for m in matrices(model)) + sum(e.runs * e.weight_bytes for e in elementwise(model, BF, BF))
    table = 0 if model.tied_embeddings else model.vocab * model.hidden
    assert once == BF16 * (parameter_count(model) - table)


def test_row_bytes_by_hand():
    assert FORMATS["bf16"].row_bytes(4096) == 8192
    assert FORMATS["int8"].row_bytes(4096) == 4096 + 2  # a scale a row
    assert FORMATS["int4"].row_bytes(4096) == 2048 + 32 * 2  # a scale per 128
    assert FORMATS["int4"].row_bytes(576) == 288 + 5 * 2  # the last group is half full
    assert FORMATS["ternary"].row_bytes(2560) == 640  # four to a byte


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 700), columns=st.integers(1, 3000), batch=st.integers(1, 9), form=st.sampled_from(sorted(FORMATS)),
       biased=st.booleans())  # fmt: skip
def test_matrix_traces_conserve_bytes_and_operations(rows, columns, batch, form, biased):
    form, matrix = FORMATS[form], Matrix("m", 1, rows, columns, biased=rows if biased else 0)
    trace = matrix_trace(matrix, form, batch)
    streams = [
        dict(zip(("buffer", "first", "bytes"), entry))
        for row in zip(*(trace.items[name] for name in ("stream_buffer", "stream_first_byte", "stream_bytes")))
        for entry in zip(*row)
    ]
    read = sorted((s["first"], s["first"] + s["bytes"]) for s in streams if s["buffer"] == "k")
    assert read[0][0] == 0 and read[-1][1] == weight_bytes(matrix, form)
    assert all(a[1] == b[0] for a, b in zip(read, read[1:]))  # each byte once
    assert sum(s["bytes"] for s in streams if s["buffer"] == "q") == batch * columns * form.activation_bytes
    assert sum(s["bytes"] for s in streams if s["buffer"] == "output") == batch * rows * BF16
    assert trace.total("score_adds") == batch * rows * columns
    assert trace.total("score_mults") == (batch * rows * (columns + form.groups(columns)) if form.multiplies else 0)
    assert trace.total("value_adds") == (batch * rows if biased else 0)
    assert trace.total("value_mults") == (batch * rows if form.scales_outputs else 0)


@pytest.mark.parametrize("hardware", ["mac_hbm3_bandwidth", "adder_hbm3_bandwidth", "mac_lpddr5"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_matrix_takes_its_bytes_and_its_operations(hardware, form):
    """No sooner than bytes / bandwidth and operations / lanes; within 5 % of the larger and the first access."""
    machine, form = santa_sim.load_hardware(hardware), FORMATS[form]
    for batch in (1, 24):
        matrix = Matrix("m", 1, 3072, 2048)
        result = santa_sim.simulate(matrix_trace(matrix, form, batch), machine)
        assert result.useful_bytes["k_read"] == weight_bytes(matrix, form)
        lanes = machine.score.mac_lanes if form.multiplies or not machine.score.adder_lanes else machine.score.adder_lanes
        bound = max(result.useful_bytes["total"] / machine.memory.bandwidth_bytes_per_s,
                    batch * matrix.rows * matrix.columns / lanes / machine.clock_hz)  # fmt: skip
        assert bound <= result.latency_s <= 1.08 * bound + 1e-6


def test_energy_of_a_matrix_by_hand():
    """Products at the operand's type, sums at the accumulator's; ternary adds alone."""
    machine = santa_sim.load_hardware("adder_hbm3_bandwidth")
    table, matrix, n = machine.energy, Matrix("m", 1, 96, 256), 3 * 96 * 256
    expected = {
        "bf16": n * (table.mult_j["bf16"] + table.add_j["fp32"]),
        "int8": n * (table.mult_j["int8"] + table.add_j["int32"]),
        "int4": n * (table.mult_j["bf16"] + table.add_j["fp32"]) + 3 * 96 * 2 * table.mult_j["bf16"],
        "ternary": n * table.add_j["int32"],
    }
    for name, joules in expected.items():
        result = santa_sim.simulate(matrix_trace(matrix, FORMATS[name], 3), machine)
        assert math.isclose(result.energy_breakdown_j["score"], joules, rel_tol=1e-12), name
        scaled = 3 * 96 * table.mult_j["fp32"] if FORMATS[name].scales_outputs else 0.0
        assert math.isclose(result.energy_breakdown_j["normalize"], scaled, rel_tol=1e-12), name


@pytest.mark.parametrize("model, form", [("bitnet2b", "ternary"), ("smollm2", "bf16"), ("llama8b", "int8")])
def test_elementwise_work_conserves_bytes_and_operations(model, form):
    for work in elementwise(load_model(model), FORMATS[form], BF):
        for batch in (1, 5):
            result = santa_sim.simulate(elementwise_trace(work, batch), "mac_hbm3_bandwidth")
            assert result.useful_bytes["total"] == work.weight_bytes + batch * (work.read_bytes + work.write_bytes + work.table_bytes)
            assert result.ops["softmax"] == {name: batch * getattr(work, name) for name in ("exps", "compares", "adds", "mults")}


def test_norms_by_hand():
    """Llama-3.1-8B: a residual sum, a square, a scaling and a weight per element, one inverse root."""
    work = {e.name: e for e in elementwise(load_model("llama8b"), BF, BF)}["feed-forward norm"]
    assert (work.adds, work.mults, work.exps, work.weight_bytes) == (2 * 4096, 3 * 4096, 1, 8192)


def test_blocks_are_whole_tiles():
    assert block_rows(matrices(load_model("llama8b"))[0], BF) * 8192 == 2**20


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: load_model("lama8b"), "did you mean 'llama8b'"),
        (lambda: load_model(3), "model=3 is none of: a name"),
        (lambda: load_model({**load_model("smollm2").model_dump(), "ffn": 1535}), "these shapes have"),
        (lambda: load_model({**load_model("smollm2").model_dump(), "fnn": 1}), "did you mean 'ffn'"),
        (lambda: weight_format("int5"), "weights='int5' is not known"),
        (lambda: weight_format("ternery"), "did you mean 'ternary'"),
    ],
)
def test_errors_say_what_to_write(call, words):
    with pytest.raises(InputError, match=words):
        call()
