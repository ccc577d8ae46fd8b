"""Top-k attention: the k keys with the largest scores, softmax over them alone (Gupta et al. 2021); biased."""

from __future__ import annotations

import numpy as np

from ..jit import jit
from .select import select_largest

# what selection counts, per KV head, in this order
SELECT_COUNTS = ("selection_compares", "softmax_exps", "softmax_compares", "softmax_adds")


@jit
def select_rows(scores, limits, k, tile, counts, budgets, rows, weights):
    """Rows and weights of the k largest scores of each query; ties go to the lowest key.

    Parameters
    ----------
    scores : float32 [R, n];  limits : int64 [R];  counts : int64 [len(SELECT_COUNTS)]
    budgets : int64 [R, T], selected keys per tile;  rows : int32 [R, k], in key order;  weights : float32 [R, k],
        exp(score - largest), results
    """
    R = scores.shape[0]
    heap = np.empty(k, np.int64)
    for r in range(R):
        size, compares = select_largest(scores[r], limits[r], k, heap)
        keys = np.sort(heap[:size])
        budgets[r] = 0
        top = scores[r, keys[0]]
        for i in range(1, size):
            top = max(top, scores[r, keys[i]])
        for i in range(size):
            rows[r, i] = keys[i]
            weights[r, i] = np.exp(scores[r, keys[i]] - top)
            budgets[r, keys[i] // tile] += 1
        counts[0] += compares
        counts[1] += size
        counts[2] += size
        counts[3] += 2 * size
