"""The k largest of a row, by a heap that counts its comparisons; ties go to the lowest index."""

from __future__ import annotations

from ..jit import jit


@jit
def _before(value_a, index_a, value_b, index_b):
    """True if a leaves the selection before b: it is smaller, or equal and later."""
    return value_a < value_b or (value_a == value_b and index_a > index_b)


@jit
def _sift_down(values, heap, size, root):
    compares = 0
    while True:
        child = 2 * root + 1
        if child >= size:
            return compares
        if child + 1 < size:
            compares += 1
            if _before(values[heap[child + 1]], heap[child + 1], values[heap[child]], heap[child]):
                child += 1
        compares += 1
        if not _before(values[heap[child]], heap[child], values[heap[root]], heap[root]):
            return compares
        heap[root], heap[child] = heap[child], heap[root]
        root = child


@jit
def select_largest(values, n, k, heap):
    """Indices of the k largest of values[:n] (all of them if k >= n).

    Parameters
    ----------
    values : float [n];  heap : int64 [>= min(k, n)], receives the indices in no particular order

    Returns
    -------
    size : int, min(k, n);  compares : int, comparisons made
    """
    size = min(k, n)
    for j in range(size):
        heap[j] = j
    compares = 0
    for root in range(size // 2 - 1, -1, -1):
        compares += _sift_down(values, heap, size, root)
    if size > 0:
        for j in range(size, n):
            compares += 1
            if values[j] > values[heap[0]]:
                heap[0] = j
                compares += _sift_down(values, heap, size, 0)
    return size, compares
