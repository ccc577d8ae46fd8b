"""Fixed point, bit for bit against Python integers: quantisation, the value stage, shifts; saturation is reported."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import santa_sim
from santa_sim.errors import InputError
from santa_sim.fixed_point import (
    BITS,
    QFormat,
    fitting_format,
    is_power_of_two,
    parse_qformat,
    quantize,
    shift_right_round,
)

fast = settings(max_examples=100, deadline=None, derandomize=True)


def to_nearest_even(x: Fraction) -> int:
    return round(x)  # Python rounds fractions half to even


@fast
@given(values=st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=20), fraction=st.integers(-2, 9))
def test_quantisation_equals_exact_fractions(values, fraction):
    form = QFormat(7 - fraction, fraction)
    found, saturated = quantize(np.array(values, np.float32), form, np.int8)
    exact = [to_nearest_even(Fraction(x) * Fraction(2) ** fraction) for x in values]
    assert found.tolist() == [min(max(x, -128), 127) for x in exact]
    assert saturated == sum(not -128 <= x <= 127 for x in exact)


@fast
@given(x=st.integers(-(2**31), 2**31 - 1), shift=st.integers(0, 24))
def test_the_shift_rounds_half_up(x, shift):
    exact = Fraction(x, 2**shift) + Fraction(1, 2)
    assert int(shift_right_round(np.array([x], np.int32), shift)[0]) == exact.numerator // exact.denominator


@pytest.mark.parametrize("x, shift, expected", [(-1, 1, 0), (-3, 1, -1), (-5, 2, -1), (-6, 2, -1), (-7, 2, -2), (5, 1, 3), (-(2**31), 1, -(2**30))])
def test_negative_shifts(x, shift, expected):
    assert shift_right_round(x, shift) == expected


@fast
@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=10), bits=st.sampled_from([8, 16]))
def test_the_fitting_format_is_the_finest_that_does_not_saturate(values, bits):
    x = np.array(values, np.float32)
    form = fitting_format(x, bits)
    assert form.bits == bits
    assert quantize(x, form, np.int16)[1] == 0
    if np.abs(x).max() > 0:
        largest = max(round(abs(Fraction(float(v))) * 2 * Fraction(2) ** form.fraction) for v in x)
        assert largest > 2 ** (bits - 1) - 1  # one bit finer and the largest magnitude is off the positive end


@pytest.mark.parametrize("text, message", [
    ("Q2.6", "has 9 bits with its sign; int8 needs m \\+ n = 7"), ("2.5", "not of the form 'Qm.n', such as 'Q2.5'"),
    ("Qx", "not of the form"), ("Q2.5 ", "not of the form"),
])  # fmt: skip
def test_bad_formats_are_named(text, message):
    with pytest.raises(InputError, match=message):
        parse_qformat(text, 8)


def test_formats():
    assert parse_qformat("q-1.8", 8) == QFormat(-1, 8)
    assert str(QFormat(2, 5)) == "Q2.5" and QFormat(2, 5).step == 1 / 32
    assert [n for n in range(-1, 10) if is_power_of_two(n)] == [1, 2, 4, 8]


# ---- the value stage, through attention() ---------------------------------------------------------------------------------


def decode(d=90, n=90, H=2, scale=3.0, seed=1):
    """q [H, d], and k, v [n, 2, d] in which both KV heads have the same keys."""
    rng = np.random.default_rng(seed)
    q = np.repeat(rng.normal(0, 1, (1, d)), H, axis=0).astype(np.float32)
    k = np.repeat(rng.normal(0, 1, (n, 1, d)), 2, axis=1).astype(np.float32)
    return q, k, (rng.normal(0, scale, (n, 2, d))).astype(np.float32)


def drawn_rows(trace, kv_head):
    items = trace.items[(trace.items["kv_head"] == kv_head) & (trace.items["gather_buffer"] == "v")]
    return np.concatenate([np.asarray(rows) for rows in items["gather_rows"]])


@pytest.mark.parametrize("method", ["santa", "s2anta-strat", "s2anta-sys", "s2anta-prop"])
@pytest.mark.parametrize("precision", BITS)
@pytest.mark.parametrize("S", [64, 100])
def test_sampled_outputs_equal_python_integers(precision, S, method):
    """The counts come from a run on identity values with the same scores and seed, the sums from Python integers."""
    q, k, v = decode()
    n, _, d = v.shape
    identity = np.repeat(np.eye(n, d, dtype=np.float32)[:, None], 2, axis=1)
    shown, _ = santa_sim.attention(q, k, identity, method, S=S, precision=precision, tile=16, seed=5, value_format=f"Q1.{BITS[precision] - 2}")
    output, trace = santa_sim.attention(q, k, v, method, S=S, precision=precision, tile=16, seed=5)
    form = fitting_format(v, BITS[precision])
    stored = quantize(v, form, np.int64)[0].tolist()
    for h in range(2):
        counts = np.rint(shown[h] * S).astype(int).tolist()
        assert sum(counts) == S and sorted(np.flatnonzero(counts)) == drawn_rows(trace, h).tolist()
        sums = [sum(c * stored[n][h][i] for n, c in enumerate(counts)) for i in range(d)]
        if S == 64:
            exact = [((x + 32) >> 6) * form.step for x in sums]
        else:
            exact = [np.float32(x) * np.float32(form.step / S) for x in sums]
        assert output[h].tolist() == [float(x) for x in exact]
    assert trace.meta["saturations"] == 0 and trace.meta["normalization"] == ("shift" if S == 64 else "multiply")


def test_values_that_do_not_fit_their_format_are_reported():
    q, k, v = decode()
    v[3, 1, 2], v[4, 0, 0] = 100.0, -100.0
    output, trace = santa_sim.attention(q, k, v, "s2anta-sys", S=16, precision="int8", value_format="Q4.3")
    beyond = int(((np.rint(v.astype(np.float64) * 8) > 127) | (np.rint(v.astype(np.float64) * 8) < -128)).sum())
    assert trace.meta["saturations"] == beyond >= 2
    assert trace.meta["notes"] == [f"fixed point: {beyond} values saturated"]
    assert np.abs(output).max() <= 16
    assert santa_sim.attention(q, k, v, "s2anta-sys", S=16, precision="int8")[1].meta["notes"] == []


def test_an_accumulator_that_fills_is_reported():
    """2^17 draws of 32,767 leave int32; the sum stops at its end and the shift brings back half of the value."""
    q, k = np.zeros((1, 2), np.float32), np.zeros((1, 1, 2), np.float32)
    v = np.full((1, 1, 2), 32767.0, np.float32)
    output, trace = santa_sim.attention(q, k, v, "s2anta-sys", S=2**17, precision="int16", value_format="Q15.0")
    assert output.tolist() == [[float((2**31 - 1 + 2**16) >> 17)] * 2]
    assert trace.meta["saturations"] == 2 * (2**17 - (2**31 - 1) // 32767)


@pytest.mark.parametrize("options, field", [({"score": "bernoulli", "B": 600}, "B=600"), ({"score": "bernoulli-stratified", "B": 600}, "B=600")])
def test_score_sums_that_could_wrap_are_refused(options, field):
    q, k, v = np.ones((1, 128), np.float32), np.ones((4, 1, 128), np.float32), np.ones((4, 1, 128), np.float32)
    with pytest.raises(InputError, match=f"{field}: with d = 128 features.*use B <= 511"):
        santa_sim.attention(q, k, v, "sdpa", precision="int16", **options)
    santa_sim.attention(q, k, v, "sdpa", precision="int16", **{**options, "B": 511})


def test_top_k_sums_that_could_wrap_are_refused():
    n = 2**15
    q, k, v = np.zeros((1, 1), np.float32), np.zeros((n, 1, 1), np.float32), np.full((n, 1, 1), 3.0, np.float32)
    with pytest.raises(InputError, match="k=32768.*use k <= 32767"):
        santa_sim.attention(q, k, v, "topk", k_top=n, precision="int16")
    assert santa_sim.attention(q, k, v, "topk", k_top=n - 1, precision="int16")[0].tolist() == [[3.0]]
