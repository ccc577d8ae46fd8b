"""Which items there are, where they live, and the published numbers that they stand beside."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
from collections.abc import Callable

import yaml

from ..errors import choose
from .rows import Found

Progress = Callable[[str, int, int], None]

# Item and what it is. The item `theorem-b1` lives in the module `theorem_b1`, which has
#     reproduce(progress, seed, fast) -> Found
# with progress(what, done, total), and a docstring that says how; `fast` takes smaller samples for the same verdicts.
ITEMS = {
    "table8": "Table 8: operations and accesses of a decode step's value stage",
    "table10": "Table 10: operations and accesses of a prefill",
    "table9": "Table 9: unique V rows in a causal prefill",
    "table17": "Table 17: unique keys of a decode step",
    "figure6": "Figure 6: error of Bernoulli scores",
    "bernoulli-access": "Tables 5 and 6: share of key features read by Bernoulli scores",
    "figure7": "Figure 7: variance against S",
    "theorem-b1": "Theorem B.1: vector Bernstein bound",
    "unbiased": "Propositions A.2 and A.4: unbiased estimates",
    "gqa": "V rows read under grouped queries",
    "energy": "Value-stage energy",
    "memory": "Memory traffic of a token",
    "figure4": "Figure 4: kernel speedups on an RTX 6000 Ada",
    "combined": "Table 7: Bernoulli scores and sampled values together",
}

# Tables whose numbers need the weights of a language model, and what will run them.
_HARNESS = "santa-sim evaluate --model {model} --task {task}"
NOT_YET = "the evaluation harness is not shipped yet"
NEEDS_MODEL = {
    "table1": ("Table 1: Llama-3.1-8B, 32k-token tasks", _HARNESS.format(model="llama-3.1-8b", task="ruler-32k")),
    "table2": ("Tables 2 and 12: Llama-3.1-8B, GSM8K", _HARNESS.format(model="llama-3.1-8b", task="gsm8k")),
    "table3": ("Tables 3 and 14: Llama-3.1-8B, MMLU", _HARNESS.format(model="llama-3.1-8b", task="mmlu")),
    "table4": ("Tables 4 and 15: Llama-3.1-8B, 8k-token tasks", _HARNESS.format(model="llama-3.1-8b", task="ruler-8k")),
    "table5": ("Table 5, accuracy: BitNet-2B, GSM8K", _HARNESS.format(model="bitnet-b1.58-2b-4t", task="gsm8k")),
    "table6": ("Table 6, accuracy: Llama-3.1-8B, 4k-token tasks", _HARNESS.format(model="llama-3.1-8b", task="ruler-4k")),
    "table7": ("Table 7, accuracy: BitNet-2B, GSM8K", _HARNESS.format(model="bitnet-b1.58-2b-4t", task="gsm8k")),
    "table11": ("Table 11: DeepSeek-7B, GSM8K", _HARNESS.format(model="deepseek-r1-distill-qwen-7b", task="gsm8k")),
    "table13": ("Table 13: DeepSeek-7B, MMLU", _HARNESS.format(model="deepseek-r1-distill-qwen-7b", task="mmlu")),
    "table16": ("Table 16: learned budgets, DeepSeek-7B", _HARNESS.format(model="deepseek-r1-distill-qwen-7b", task="gsm8k")),
    "table23": ("Table 23: kernels, Llama-3.1-8B, 8k-token tasks", _HARNESS.format(model="llama-3.1-8b", task="ruler-8k")),
}


def choose_items(names: list[str] | tuple[str, ...] | None) -> list[str]:
    """The items asked for, each once, in the paper's order; all that need no model if none is named.

    Raises
    ------
    InputError
        An unknown item, with the nearest one.
    """
    for name in names or ():
        choose("item", name, [*ITEMS, *NEEDS_MODEL])
    wanted = set(names or ITEMS)
    return [name for name in [*ITEMS, *NEEDS_MODEL] if name in wanted]


def load_item(name: str) -> tuple[Callable[[Progress, int, bool], Found], str]:
    """An item's function, and how it is done (its module's docstring)."""
    module = importlib.import_module(f"{__package__}.{name.replace('-', '_')}")
    return module.reproduce, (module.__doc__ or "").strip()


@functools.cache
def published() -> dict:
    """The published numbers, from `published.yaml`, which names their source."""
    text = importlib.resources.files(__package__).joinpath("published.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)
