"""The facts beside a trace's table: wrong ones are refused with what to write, NumPy's become plain."""

import json
import typing

import numpy as np
import pytest

from santa_sim.errors import InputError
from santa_sim.methods.spec import METHODS, PRECISIONS, SCORES
from santa_sim.simulator import energy
from santa_sim.trace_meta import LARGEST, REQUIRED, NumberType, TraceMeta, check_meta, shown

TYPES = {"operand": "bf16", "accumulator": "fp32"}
META = {"method": "sdpa", "score": "exact", "kind": "decode", "precision": "bf16", "n_heads": 4, "n_kv_heads": 2, "head_dim": 8,
        "n_q": [1, 1], "n_k": [4, 70], "layers": [0, 5], "tile": 4, "score_types": TYPES, "value_types": TYPES,
        "normalization": "multiply"}  # fmt: skip

WRONG = [
    ("n_kv_heads", 0), ("n_heads", "32"), ("n_heads", True), ("n_heads", 4.0), ("n_heads", None), ("head_dim", -1),
    ("head_dim", LARGEST + 1), ("n_k", 16), ("n_k", []), ("n_k", [0, 4]), ("n_k", [4, None]), ("n_k", ["4", "4"]), ("n_q", "x"),
    ("layers", 5), ("layers", [-1]), ("layers", []), ("tile", -3), ("tile", 0), ("tile", 2.5),
    ("kind", "banana"), ("precision", "fp3"), ("normalization", "divide"), ("method", 5), ("method", ""), ("score", ["exact"]),
    ("value_types", {"operand": "fp8", "accumulator": "fp32"}), ("score_types", {"operand": "bf16"}), ("score_types", "bf16"),
    ("score_types", {**TYPES, "operand": None}),
    ("notes", 5), ("notes", ["a", 5]), ("workload", 7), ("samples", 0), ("samples", "128"), ("samples", [1, -1]),
    ("samples_drawn", -1), ("samples_drawn", "all"), ("budget_k", 1.5), ("budget_B", False), ("seed", -1), ("seed", "0"),
    ("quality", "good"), ("quality", {"foo": 1}), ("quality", {"relative_l2": "small"}), ("quality", {"relative_l2": -1}),
    ("quality", {"relative_l2": float("nan")}), ("quality", {"relative_l2": 0.1, "max_abs": "0.2"}),
    ("kernel", 1), ("allocation", []), ("sampler", {}),
]  # fmt: skip


@pytest.mark.parametrize("name, value", WRONG)
def test_a_wrong_fact_is_named_with_its_value_and_what_to_write(name, value):
    with pytest.raises(InputError) as caught:
        check_meta({**META, name: value})
    hint = TraceMeta.model_fields[name].description
    assert str(caught.value) == f"trace metadata: {name}={shown(value)}: write {hint}"


def test_all_wrong_facts_are_named_at_once():
    with pytest.raises(InputError, match="kind='x': write \"decode\".*; trace metadata: tile=0: write the keys per tile"):
        check_meta({**META, "tile": 0, "kind": "x"})


@pytest.mark.parametrize("changes, message", [
    ({"n_heads": 3}, "n_heads=3 is not a multiple of n_kv_heads=2"),
    ({"n_q": [1]}, r"n_q=\[1\] has 1 entries, n_k=\[4, 70\] has 2: write one per sequence"),
    ({"layers": [3, 3]}, r"layers=\[3, 3\] names a layer twice"),
])  # fmt: skip
def test_facts_that_contradict_each_other(changes, message):
    with pytest.raises(InputError, match=message):
        check_meta({**META, **changes})


@pytest.mark.parametrize("meta", [5, None, "x", [META]])
def test_no_dictionary(meta):
    with pytest.raises(InputError, match="trace metadata is .*; write a dictionary"):
        check_meta(meta)


@pytest.mark.parametrize("value, message", [
    ({1: 2}, "mine has the key 1: write a string"),
    ({"a": {2}}, r"mine.a=\{2\} can't be kept as JSON"),
    ([object], r"mine\[0\]=.*can't be kept as JSON"),
    (2**64, "mine=18446744073709551616 can't be kept as JSON"),
    pytest.param(10**5000, "mine=a number of 16,610 bits can't be kept as JSON", id="huge"),
    ("\ud800", "mine=.*can't be kept as JSON"),
    (np.datetime64("2020-01-01"), "mine=.*can't be kept as JSON"),
])  # fmt: skip
def test_what_json_doesnt_have(value, message):
    with pytest.raises(InputError, match=message):
        check_meta({**META, "mine": value})


def test_a_dictionary_in_itself():
    meta = dict(META)
    meta["self"] = meta
    with pytest.raises(InputError, match="nested more than 16 deep"):
        check_meta(meta)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_fact(name):
    with pytest.raises(InputError, match=rf"trace metadata lacks \['{name}'\]; see docs/trace.md"):
        check_meta({key: value for key, value in META.items() if key != name})


def test_numpy_numbers_become_plain():
    given = {**META, "n_heads": np.int64(4), "n_k": np.array([4, 70]), "layers": (np.int32(0), 5), "tile": np.uint8(4),
             "seed": np.uint64(2**64 - 1), "quality": {"relative_l2": np.float32(0.5)}, "mine": [np.bool_(True), np.str_("x")]}  # fmt: skip
    plain, facts = check_meta(given)
    assert facts.n_k == [4, 70]
    assert json.loads(json.dumps(plain)) == plain
    assert plain == {**META, "seed": 2**64 - 1, "quality": {"relative_l2": 0.5}, "mine": [True, "x"]}


def test_other_keys_are_the_writers_own():
    own = {"tensor_seed": 3, "machine": {"racks": [1, None, 2.5]}, "n_head": 2}
    assert check_meta({**META, **own})[0] == {**META, **own}
    assert check_meta({**META, "quality": {"relative_l2": float("inf"), "accuracy": -0.5}})[1].quality.accuracy == -0.5


def test_names_are_the_packages(request):
    assert typing.get_args(TraceMeta.model_fields["precision"].annotation) == PRECISIONS
    assert set(typing.get_args(NumberType)) == set(typing.get_args(energy.NumberType))
    text = (request.config.rootpath / "docs" / "trace.md").read_text()
    for name in (*TraceMeta.model_fields, *METHODS, *SCORES):
        assert f"`{name}`" in text, name
