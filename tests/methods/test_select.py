"""The counting heap against a stable sort."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_sim.methods import topk
from santa_sim.methods.select import select_largest

fast = settings(max_examples=60, deadline=None, derandomize=True)


@fast
@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=60), k=st.integers(0, 70))
def test_the_largest_with_ties_to_the_lowest_index(values, k):
    values = np.array(values, np.float64)
    heap = np.empty(len(values), np.int64)
    size, compares = select_largest(values, len(values), k, heap)
    expected = np.argsort(-values, kind="stable")[:k]
    assert size == len(expected) and sorted(heap[:size]) == sorted(expected)
    n = len(values)
    assert (compares >= n - 1 if 1 <= k < n else compares >= 0) and compares <= 2 * n + 2 * n * max(k, 1).bit_length()


def test_select_rows_in_key_order_within_the_limit():
    scores = np.array([[5, 1, 5, 5, 9, np.nan], [0, -1, -2, -3, -4, -5]], np.float32)
    rows, weights = np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32)
    counts, budgets = np.zeros(len(topk.SELECT_COUNTS), np.int64), np.zeros((2, 3), np.int64)
    topk.select_rows(scores, np.array([5, 2]), 3, 2, counts, budgets, rows, weights)
    assert rows[0].tolist() == [0, 2, 4] and rows[1, :2].tolist() == [0, 1]
    assert budgets.tolist() == [[1, 1, 1], [2, 0, 0]]
    np.testing.assert_allclose(weights[0], np.exp([-4, -4, 0]), rtol=1e-6)
    np.testing.assert_allclose(weights[1], [1, np.exp(-1), 0], rtol=1e-6)
    assert dict(zip(topk.SELECT_COUNTS, counts))["softmax_exps"] == 5
