"""Where K and V lie: a trace's sequence-first addresses moved to the layout that a machine keeps its cache in.

Traces address K and V as the kernels' cache [n_k, H_kv, d] (sequence-first). Streams and gathers that have its strides are
moved; others (a feature-major K, a home-made trace's own addresses) stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

LAYOUTS = ("sequence-first", "head-first", "paged-16", "paged-64")
ALIGNMENT = 4096  # of each buffer in the address space [bytes]
OFFSET_PERIOD = 2**20  # a machine's v_offset_bytes counts from its multiples [bytes]
_SEED = 0x5A7A  # of the pages' order


def place(layout: str, n_kv_heads: int, n_k: list[int], keys: list[tuple], streams: list[list[tuple]],
          gathers: list[tuple | None]) -> tuple[list[list[tuple]], list[tuple | None]]:  # fmt: skip
    """Move the K and V streams and gathers of all items.

    Parameters
    ----------
    layout : 'sequence-first' [n, H_kv, d]; 'head-first' [H_kv, n, d]; 'paged-16', 'paged-64': pages of so many tokens, each
        [H_kv, tokens, d], in shuffled order, as paged caches have after a while
    n_k : keys of each sequence;  keys : (sequence, layer, ...) of each item
    streams : per item, (row, buffer, first byte, bytes, piece, stride, write);  gathers : per item None or
        (buffer, first byte, stride, row bytes, rows int64)

    Returns
    -------
    streams, gathers : the same, moved
    """
    if layout == "sequence-first":
        return streams, gathers
    place_of: dict[tuple, Callable] = {}
    moved, rows = [], []
    for key, entries, gather in zip(keys, streams, gathers):
        length = n_k[key[0]]

        def runs(buffer: str, tokens: np.ndarray, head: int, row: int, key: tuple = key, length: int = length) -> np.ndarray:
            """First byte of each token's row."""
            where = (*key[:2], buffer)
            if where not in place_of:
                place_of[where] = _places(layout, length, n_kv_heads, where)
            return place_of[where](tokens, head) * row

        moved.append([part for entry in entries for part in _stream(entry, n_kv_heads, length, runs)])
        rows.append(_gather(gather, n_kv_heads, length, runs))
    return moved, rows


def _places(layout: str, n_k: int, n_kv_heads: int, where: tuple) -> Callable[[np.ndarray, int], np.ndarray]:
    """(tokens, head) -> number of the row in the buffer."""
    if layout == "head-first":
        return lambda tokens, head: head * n_k + tokens
    size = int(layout.removeprefix("paged-"))
    sequence, layer, buffer = where
    order = np.random.default_rng([_SEED, sequence, layer, buffer == "v"]).permutation(-(-n_k // size))
    return lambda tokens, head: (order[tokens // size] * n_kv_heads + head) * size + tokens % size


def _stream(entry: tuple, n_kv_heads: int, n_k: int, runs: Callable) -> list[tuple]:
    """One K or V stream as contiguous runs in the new layout."""
    row, buffer, first, nbytes, piece, stride, write = entry
    token, inside = divmod(first, stride)
    head, rest = divmod(inside, piece)
    tokens = nbytes // piece
    if buffer not in ("k", "v") or stride != n_kv_heads * piece or rest or nbytes % piece or token + tokens > n_k:
        return [entry]
    starts = runs(buffer, np.arange(token, token + tokens), head, piece)
    breaks = np.flatnonzero(np.diff(starts) != piece) + 1
    begins, ends = np.concatenate([[0], breaks]), np.concatenate([breaks, [tokens]])
    return [(row, buffer, int(starts[a]), int(b - a) * piece, int(b - a) * piece, int(b - a) * piece, write) for a, b in zip(begins, ends)]


def _gather(gather: tuple | None, n_kv_heads: int, n_k: int, runs: Callable) -> tuple | None:
    """Gathered rows of V in the new layout."""
    if gather is None:
        return None
    buffer, first, stride, row_bytes, rows = gather
    head, rest = divmod(first, row_bytes)
    if buffer != "v" or stride != n_kv_heads * row_bytes or rest or head >= n_kv_heads or rows.max() >= n_k:
        return gather
    return buffer, 0, row_bytes, row_bytes, runs(buffer, rows, head, row_bytes) // row_bytes
