"""Workloads: what ships is right, what is wrong is named."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from santa_sim.errors import InputError
from santa_sim.schema import shipped
from santa_sim.workload import PACKAGE, SinkZipf, Workload, load_workload, replace

SMALL = {
    "name": "small", "model": "none", "kind": "decode", "heads": 4, "kv_heads": 2, "head_dim": 8, "n_k": 10,
    "model_layers": 1, "dtype": "float32", "source": {"type": "gaussian"},
}  # fmt: skip
ZIPF = {"type": "sink_zipf", "sink_mass": 0.5, "exponent": 1.2, "fitted_at_keys": 8192}

# name: (kind, H, H_kv, d, n_k, the model's layers, source)
SHIPPED = {
    "llama8b_decode_4k": ("decode", 32, 8, 128, 4096, 32, "sink_zipf"),
    "llama8b_decode_8k": ("decode", 32, 8, 128, 8192, 32, "sink_zipf"),
    "llama8b_decode_32k": ("decode", 32, 8, 128, 32768, 32, "sink_zipf"),
    "llama8b_decode_128k": ("decode", 32, 8, 128, 131072, 32, "sink_zipf"),
    "llama8b_decode_32k_gaussian": ("decode", 32, 8, 128, 32768, 32, "gaussian"),
    "llama8b_prefill_4k": ("prefill", 32, 8, 128, 4096, 32, "gaussian"),
    "deepseek7b_decode_8k": ("decode", 28, 4, 128, 8192, 28, "sink_zipf"),
    "bitnet2b_decode_1k": ("decode", 20, 5, 128, 1024, 30, "sink_zipf"),
    "smollm2_decode_2k": ("decode", 9, 3, 64, 2048, 30, "captured"),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_workload(name):
    w = load_workload(name)
    assert w.name == name
    assert (w.kind, w.heads, w.kv_heads, w.head_dim, w.n_k, w.model_layers, w.source.type) == SHIPPED[name]


def test_every_shipped_workload_is_listed_here():
    assert set(shipped(PACKAGE)) == set(SHIPPED)


@pytest.mark.parametrize("name", [name for name, row in SHIPPED.items() if row[-1] == "sink_zipf"])
def test_sink_zipf_workloads_say_that_other_lengths_extrapolate(name):
    w = load_workload(name)
    assert (w.source.sink_mass, w.source.exponent, w.source.fitted_at_keys) == (0.521, 1.262, 8192)
    assert w.source.group_overlap == "independent"
    assert any("extrapolation" in note for note in w.notes)


def test_properties():
    w = load_workload(SMALL | {"n_k": [3, 5]})
    assert (w.group, w.lengths, w.query_lengths) == (2, (3, 5), (1, 1))
    assert load_workload(SMALL | {"kind": "prefill"}).query_lengths == (10,)
    assert load_workload(SMALL).lengths == (10,)


def test_a_workload_is_hashable_frozen_and_passes_through():
    w = load_workload(SMALL | {"n_k": [3, 5]})
    assert hash(w) == hash(load_workload(SMALL | {"n_k": (3, 5)}))
    assert load_workload(w) is w
    with pytest.raises(ValueError, match="frozen"):
        w.heads = 8


def test_a_path_works_and_captured_files_are_found_beside_the_yaml(tmp_path):
    source = {"type": "captured", "file": "data/x.npz", "layers": [0]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SMALL | {"source": source}))
    w = load_workload(tmp_path / "mine.yaml")
    assert w.source.file == str((tmp_path / "data/x.npz").resolve())
    assert load_workload(str(tmp_path / "mine.yaml")) == w


def test_a_key_given_twice_is_an_error_with_its_line(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SMALL, sort_keys=False) + "heads: 8\n")
    with pytest.raises(InputError, match="mine.yaml: .*line 12: 'heads' is given a second time"):
        load_workload(tmp_path / "mine.yaml")


# (changed fields, what the message must contain)
WRONG = [
    ({"heads": 3}, ["kv_heads = 2", "heads must be a multiple", "heads = 3"]),
    ({"n_k": 0}, ["n_k = 0", "empty cache", "at least 1"]),
    ({"n_k": [5, 0]}, ["n_k = [5, 0]", "empty cache"]),
    ({"n_k": []}, ["n_k = []", "at least one sequence"]),
    ({"n_k": -3}, ["n_k = -3"]),
    ({"n_k": 8.5}, ["n_k = 8.5", "not an integer"]),
    ({"n_k": True}, ["n_k = True", "not an integer"]),
    ({"n_k": "4k"}, ["'4k'", "not an integer"]),
    ({"n_k": 10**15}, ["n_k = 1000000000000000", "more than 2,147,483,647 keys", "32 bits"]),
    ({"n_k": [5] * 10**5}, ["100,000 sequences"]),
    ({"head_dim": 0}, ["head_dim = 0"]),
    ({"head_dim": 10**12}, ["head_dim = 1000000000000", "more than 16,384"]),
    ({"heads": 10**6, "kv_heads": 10**6}, ["heads = 1000000", "kv_heads = 1000000"]),
    ({"heads": True}, ["heads = True", "true and false are not numbers"]),
    ({"heads": "32"}, ["heads = '32'", "integer"]),
    ({"heads": 4.0}, ["heads = 4.0", "integer"]),
    ({"layers": 10**9}, ["layers = 1000000000", "more than 65,536"]),
    ({"model_layers": False}, ["model_layers = False"]),
    ({"source": ZIPF | {"sink_mass": "0.5"}}, ["sink_mass = '0.5'"]),
    ({"source": ZIPF | {"exponent": True}}, ["exponent = True"]),
    ({"source": ZIPF | {"exponent": 1e308}}, ["exponent = 1e+308", "more than 100"]),
    ({"dtype": "bf16"}, ["dtype = 'bf16'", "did you mean 'bfloat16'"]),
    ({"dtype": "FLOAT32"}, ["did you mean 'float32'"]),
    ({"kind": "train"}, ["kind = 'train'", "decode"]),
    ({"dtype": "float64"}, ["dtype = 'float64'", "bfloat16"]),
    ({"head_dims": 8}, ["head_dims: unknown key", "did you mean 'head_dim'"]),
    ({"source": {"type": "sink_zip"}}, ["type='sink_zip'", "did you mean 'sink_zipf'"]),
    ({"source": {}}, ["source = {}", "type is missing", "gaussian"]),
    ({"source": ZIPF | {"exponant": 1.0}}, ["exponant: unknown key", "did you mean 'exponent'"]),
    ({"source": ZIPF | {"sink_mass": 1.0}}, ["sink_mass = 1.0"]),
    ({"source": ZIPF | {"group_overlap": "some"}}, ["group_overlap = 'some'", "shared"]),
    ({"source": ZIPF, "kind": "prefill"}, ["kind must be decode", "gaussian"]),
    ({"source": ZIPF, "head_dim": 1}, ["head_dim must be at least 2", "head_dim = 1"]),
    ({"source": {"type": "captured", "file": "x.npz", "layers": []}}, ["layers = []"]),
    ({"source": {"type": "captured", "file": "x.npz", "layers": [1, 2]}}, ["2 layers", "layers = 1"]),
    ({"source": {"type": "captured", "file": "x.npz", "layers": [1]}, "kind": "prefill"}, ["kind must be decode"]),
    ({"source": {"type": "captured", "file": "x.npz", "layers": [True]}}, ["layers.0 = True"]),
    ({"source": {"type": "captured", "file": "x.npz", "layers": [1, 1]}, "layers": 2}, ["layer 1 is named twice"]),
]


@pytest.mark.parametrize(("change", "parts"), WRONG)
def test_a_mistake_is_named(change, parts):
    with pytest.raises(InputError) as error:
        load_workload(SMALL | change)
    assert [part for part in parts if part not in str(error.value)] == [], str(error.value)


def test_a_missing_field_is_named():
    with pytest.raises(InputError, match="heads: missing"):
        load_workload({key: value for key, value in SMALL.items() if key != "heads"})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("llama8b_decode_32", "did you mean 'llama8b_decode_32k'"),
        ("nowhere/llama8b_decode_32k.yaml", "does not exist"),
        (7, "workload=7"),
        ("", "workload='' is empty"),
        ({}, "heads: missing"),
    ],
)
def test_an_unknown_workload_is_named(name, part):
    with pytest.raises(InputError, match=part):
        load_workload(name)


def test_replace_checks_again():
    w = replace("llama8b_decode_32k", n_k=1024, heads=16)
    assert (w.n_k, w.heads, w.group) == (1024, 16, 2)
    assert replace(SMALL, batch=3).n_k == (10, 10, 10)
    assert replace(SMALL, batch=2, n_k=7).n_k == (7, 7)
    assert replace(SMALL, n_k=[3, 4]).n_k == (3, 4)
    assert replace(SMALL, batch=np.int64(2), n_k=np.int32(7), heads=np.int8(6)) == replace(SMALL, n_k=(7, 7), heads=6)
    assert replace(SMALL, n_k=np.array([3, 4])).n_k == (3, 4)
    for fields, part in (
        ({"heads": 5}, "multiple"), ({"n_keys": 5}, "n_keys: unknown key"), ({"n_k": 0}, "n_k = 0"),
        ({"batch": 0}, "batch=0"), ({"batch": 10**9}, "batch=1000000000 is more than"), ({"batch": True}, "batch=True"),
        ({"batch": 2, "n_k": [3, 4]}, "batch=2"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=part):
            replace(SMALL, **fields)


@given(
    group=st.integers(1, 8), kv_heads=st.integers(1, 8), d=st.integers(8, 256),
    n_k=st.integers(1, 10**6) | st.lists(st.integers(1, 10**6), min_size=1, max_size=4),
)  # fmt: skip
def test_a_workload_survives_the_way_through_yaml(group, kv_heads, d, n_k):
    w = load_workload(
        SMALL | {"heads": group * kv_heads, "kv_heads": kv_heads, "head_dim": d, "n_k": n_k, "source": ZIPF}
    )
    assert isinstance(w, Workload)
    assert isinstance(w.source, SinkZipf)
    assert load_workload(yaml.safe_load(yaml.safe_dump(w.model_dump(mode="json")))) == w
