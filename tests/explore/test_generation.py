"""Generations: the lines between simulated lengths against every length simulated."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import santa_sim
from santa_sim.errors import InputError
from santa_sim.explore.generation import MOST_POINTS, Lines, stretches
from santa_sim.explore.step_cost import Cost
from santa_sim.methods.spec import Spec

TINY = {
    "name": "tiny", "description": "for tests", "source": "made up", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2,
    "head_dim": 16, "ffn": 128, "activation": "swiglu", "vocab": 512, "tied_embeddings": False, "qkv_bias": False,
    "sub_norms": False,
}  # fmt: skip
MAC = "mac_hbm3_bandwidth"


def cost(latency, energy=None):
    energy = latency if energy is None else energy
    return Cost(latency, {"sram": energy}, {"total": round(1000 * latency)}, {"total": 0}, {"dram": 0.0})


@pytest.mark.parametrize("method, S, n_k, tokens", [("sdpa", None, 1527, 20), ("s2anta-prop", 16, 300, 40)])
def test_lines_against_every_length(method, S, n_k, tokens):
    """Across a change of tile length (1,536) and within one: latency and energy within 1 % of all simulated."""
    line, every = (santa_sim.generation(TINY, method, S, n_k=n_k, tokens=tokens, hardware=MAC, full=full) for full in (False, True))
    assert len(every.points) == tokens and every.error_estimate == 0 and len(line.points) <= tokens / 2
    assert math.isclose(line.latency_s, every.latency_s, rel_tol=0.01) and math.isclose(line.energy_j, every.energy_j, rel_tol=0.002)
    assert math.isclose(line.attention.latency_s, every.attention.latency_s, rel_tol=0.05)
    assert line.rest == every.rest  # what doesn't depend on the length is the same
    steps = [santa_sim.decode_step(TINY, method, S, n_k=n, hardware=MAC, full=True) for n in (n_k, n_k + 1)]
    assert every.curve["latency_s"][:2] == pytest.approx([made.latency_s for made in steps], rel=1e-12)


def test_totals_are_the_sum_of_the_curve():
    made = santa_sim.generation(TINY, "s2anta-sys", 8, n_k=1500, tokens=70, hardware=MAC, batch=2)
    frame = made.to_frame()
    assert list(frame["n_k"]) == list(range(1500, 1570))
    assert math.isclose(frame["latency_s"].sum(), made.latency_s, rel_tol=1e-9) and math.isclose(frame["energy_j"].sum(), made.energy_j, rel_tol=1e-9)
    assert made.latency_per_token_s == made.latency_s / 140
    assert frame["latency_s"].iloc[0] == pytest.approx(made.first.latency_s) and frame["latency_s"].iloc[-1] == pytest.approx(made.last.latency_s)
    written = json.loads(json.dumps(made.to_dict()))
    assert written["points"] == list(made.points) and {1500, 1536, 1537, 1569} <= set(made.points)


def test_one_token_is_one_step():
    made, step = santa_sim.generation(TINY, "sdpa", n_k=77, tokens=1, hardware=MAC), santa_sim.decode_step(TINY, "sdpa", n_k=77, hardware=MAC)
    assert made.points == (77,) and math.isclose(made.latency_s, step.latency_s) and math.isclose(made.energy_j, step.energy_j)


def test_stretches_end_where_the_tile_changes():
    tile_for = Spec(method="sdpa").tile_for
    assert stretches(tile_for, 1000, 4000) == [(1000, 1536), (1537, 3072), (3073, 4000)]
    assert stretches(tile_for, 1536, 1537) == [(1536, 1536), (1537, 1537)]
    assert stretches(Spec(method="sdpa", tile=64).tile_for, 1000, 4000) == [(1000, 4000)]


@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.integers(1, 400), min_size=1, max_size=4), slopes=st.lists(st.floats(0.1, 9), min_size=4, max_size=4),
       start=st.integers(1, 10**6))  # fmt: skip
def test_straight_stretches_are_exact(pieces, slopes, start):
    """What is straight within each stretch, with any jump between them, is summed exactly: by hand, number by number."""
    ranges, first = [], start
    for length in pieces:
        ranges.append((first, first + length - 1))
        first += length

    def value(n):
        place = next(i for i, (a, b) in enumerate(ranges) if a <= n <= b)
        return 5.0 * place + slopes[place] * (n - start)

    lines = Lines(lambda n: cost(value(n)), ranges)
    lines.refine(1e-6, 1.0, 1.0)
    by_hand = math.fsum(value(n) for n in range(start, first))
    assert math.isclose(sum(float(w) * c.latency_s for w, c in lines.weights()), by_hand, rel_tol=1e-9)
    assert sum(w for w, _ in lines.weights()) == first - start
    numbers = np.arange(start, first)
    assert lines.values(numbers, lambda c: c.latency_s) == pytest.approx([value(n) for n in numbers], rel=1e-9)
    assert len(lines.played) <= 5 * len(pieces)


def test_bent_costs_are_followed():
    """A kink, as where a stash stops fitting: the estimate is met, and so is the truth, with few lengths."""

    def value(n):
        return 1e-3 * n + 5e-3 * max(0, n - 700)

    lines = Lines(lambda n: cost(value(n)), [(1, 2000)])
    lines.refine(0.002, 0.0, 0.0)
    truth = math.fsum(map(value, range(1, 2001)))
    assert abs(sum(float(w) * c.latency_s for w, c in lines.weights()) / truth - 1) < 0.002
    assert max(lines.errors(0.0, 0.0)) <= 0.002 and len(lines.played) < 20


def test_noise_stops_at_the_most_lengths_and_says_so():
    rng = np.random.default_rng(0)
    lines = Lines(lambda n: cost(1 + rng.random()), [(1, 10**5)])
    lines.refine(1e-6, 0.0, 0.0)
    assert len(lines.played) == MOST_POINTS and max(lines.errors(0.0, 0.0)) > 1e-6


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"tokens": 0}, "tokens=0: write a whole number from 1"),
        ({"tokens": 2, "n_k": 2**31 - 1}, "reach 2,147,483,648 keys"),
        ({"tokens": 2, "tolerance": 0}, "tolerance=0: write a number between 0 and 1"),
        ({"tokens": 2, "tolerance": "1%"}, "write a number between"),
        ({"tokens": 2, "tolerence": 1}, "did you mean 'tolerance'"),
    ],
)
def test_errors_say_what_to_write(arguments, words):
    with pytest.raises(InputError, match=words):
        santa_sim.generation(TINY, "sdpa", **{"n_k": 8, "hardware": MAC, **arguments})
