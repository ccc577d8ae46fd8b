"""Messages name the field, show the value and point to the nearest right name."""

import pytest

from santa_sim.errors import InputError, choose, suggestion


def test_a_near_miss_is_corrected():
    assert suggestion("s2anta-sy", ["sdpa", "s2anta-sys"]) == "; did you mean 's2anta-sys'?"


def test_without_a_near_miss_all_options_are_listed():
    assert suggestion("zzz", ["b", "a"]) == "; choose from a, b"
    assert suggestion("zzz", []) == ""


def test_choose_returns_the_value_or_explains():
    assert choose("kernel", "cpu", ["cpu", "gpu"]) == "cpu"
    with pytest.raises(InputError, match=r"kernel='cpuu' is not known; did you mean 'cpu'\?"):
        choose("kernel", "cpuu", ["cpu", "gpu"])
    with pytest.raises(InputError, match="kernel=None is not known; choose from cpu, gpu"):
        choose("kernel", None, ["cpu", "gpu"])


def test_input_errors_are_value_errors():
    assert issubclass(InputError, ValueError)
