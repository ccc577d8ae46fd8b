"""Messages name the field, show the value and point to the nearest right name."""

import pytest

from santa_sim.errors import InputError, choose, suggestion

METHODS = ("sdpa", "topk", "santa", "s2anta-strat", "s2anta-sys", "s2anta-prop", "s2anta-flash")
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int16")
DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize(
    ("name", "options", "meant"),
    [
        ("s2anta-sy", METHODS, "s2anta-sys"),
        ("sys", METHODS, "s2anta-sys"),
        ("S2ANTA-SYS", METHODS, "s2anta-sys"),
        ("flash", METHODS, "s2anta-flash"),
        ("sdpaa", METHODS, "sdpa"),
        ("BF16", PRECISIONS, "bf16"),
        ("float32", PRECISIONS, "fp32"),
        ("Float16", PRECISIONS, "fp16"),
        ("bfloat16", PRECISIONS, "bf16"),
        ("fp32", DTYPES, "float32"),
        ("bf16", DTYPES, "bfloat16"),
        ("int61", PRECISIONS, "int16"),
        ("mean-group", ("exact", "bernoulli", "bernoulli-stratified", "bernoulli-mean-group"), "bernoulli-mean-group"),
        ("llama8b_decode_32", ("llama8b_decode_32k", "llama8b_decode_32k_gaussian"), "llama8b_decode_32k"),
    ],
)
def test_a_near_miss_is_corrected(name, options, meant):
    assert suggestion(name, options) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("name", ["int4", "fp8", "fp64", "x", "", None, 3, "y" * 10**6])
def test_another_number_format_is_no_typo(name):
    assert suggestion(name, PRECISIONS) == "; choose from bf16, fp16, fp32, int16, int8"


def test_without_a_near_miss_all_options_are_listed():
    assert suggestion("zzz", ["b", "a"]) == "; choose from a, b"
    assert suggestion("zzz", []) == ""


def test_choose_returns_the_value_or_explains():
    assert choose("kernel", "cpu", ["cpu", "gpu"]) == "cpu"
    with pytest.raises(InputError, match=r"kernel='cpuu' is not known; did you mean 'cpu'\?"):
        choose("kernel", "cpuu", ["cpu", "gpu"])
    with pytest.raises(InputError, match="kernel=None is not known; choose from cpu, gpu"):
        choose("kernel", None, ["cpu", "gpu"])
    with pytest.raises(InputError, match=r"kernel=\['cpu'\] is not known"):
        choose("kernel", ["cpu"], ["cpu", "gpu"])


def test_input_errors_are_value_errors():
    assert issubclass(InputError, ValueError)
