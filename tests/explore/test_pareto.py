import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from santa_sim.errors import InputError
from santa_sim.explore.pareto import on_front, pareto


@given(hnp.arrays(float, st.tuples(st.integers(1, 40), st.integers(1, 4)), elements=st.integers(0, 5).map(float)))
def test_front_is_what_nobody_dominates(costs):
    dominated = [any((other <= point).all() and (other < point).any() for other in costs) for point in costs]
    assert (on_front(costs) == ~np.array(dominated)).all()


def test_front_keeps_order_and_leaves_failed_rows_out():
    frame = pd.DataFrame({"latency_s": [3.0, 1.0, 2.0, np.nan, 3.0], "energy_j": [1.0, 3.0, 3.0, 0.0, 1.0], "who": list("abcde")})
    assert pareto(frame, ["latency_s", "energy_j"]).who.tolist() == ["a", "b", "e"]
    assert pareto(frame, "latency_s").who.tolist() == ["b"]


def test_misuse():
    frame = pd.DataFrame({"latency_s": [3.0], "who": ["a"]})
    for columns, message in (([], "empty"), (["latency"], "did you mean 'latency_s'"), (["who"], "text")):
        with pytest.raises(InputError, match=message):
            pareto(frame, columns)
