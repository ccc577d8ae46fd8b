"""What a trace asks of a GPU: the shape of its attention, its bytes in whole sectors, its draws and rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...errors import InputError
from ...trace import Trace

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "int16": 2}
SECTOR = 32  # bytes; all of a trace's buffers start at a multiple of it


@dataclasses.dataclass(frozen=True)
class Work:
    """Decode steps of one layer that one sequence of launches takes; a prefill is one step per query.

    Attributes
    ----------
    method, score, allocation, precision : as in the trace's metadata
    H, H_kv, d : query heads, KV heads, head dimension;  tile : keys per tile
    lengths : keys of each step
    S, k : samples, or kept keys, per head and step; None where the method has none
    samples : rows of V that are added up, repeats counted, over all heads and steps
    head_rows : rows that differ within a head and step, over all heads and steps
    v_rows : rows of V that differ within a KV head's group, over all KV heads and sequences
    k_bytes, v_bytes, q_bytes, output_bytes : bytes that have to come or go once, in whole sectors [B]
    k_requested_bytes : of K that all steps ask for together [B]
    features : (feature, KV head) pairs of K that are read, for Bernoulli scores, over all sequences; None for exact scores
    prefill : the steps are the queries of one pass, which kernels may take together
    layer : number of the layer
    """

    method: str
    score: str
    allocation: str | None
    precision: str
    H: int
    H_kv: int
    d: int
    tile: int
    lengths: tuple[int, ...]
    S: int | None
    k: int | None
    samples: int
    head_rows: int
    v_rows: int
    k_bytes: int
    v_bytes: int
    q_bytes: int
    output_bytes: int
    k_requested_bytes: int
    features: float | None = None
    prefill: bool = False
    layer: int = 0

    @property
    def G(self) -> int:
        """Query heads per KV head."""
        return self.H // self.H_kv

    @property
    def batch(self) -> int:
        """Steps in one launch."""
        return len(self.lengths)

    @property
    def element_bytes(self) -> int:
        """Of Q, K and V [B]."""
        return ELEMENT_BYTES[self.precision]

    @property
    def row_bytes(self) -> int:
        """Of a row of K or V [B]."""
        return self.d * self.element_bytes

    @property
    def tiles(self) -> int:
        """Tiles of the longest step."""
        return -(-max(self.lengths) // self.tile)

    @property
    def tile_count(self) -> int:
        """Tiles of all steps."""
        return sum(-(-n // self.tile) for n in self.lengths)

    @property
    def cache_bytes(self) -> int:
        """Of K and V in memory [B]; the queries of a prefill share them."""
        return 2 * (self.k_bytes if self.prefill else self.keys * self.H_kv * self.row_bytes)

    @property
    def keys(self) -> int:
        """Keys of all steps."""
        return sum(self.lengths)


def dense_work(n_k: int, *, batch: int = 1, H: int = 32, H_kv: int = 8, d: int = 128, precision: str = "bf16", tile: int = 128,
               method: str = "sdpa", S: int | None = None, k: int | None = None, v_rows: int | None = None,
               allocation: str | None = None) -> Work:  # fmt: skip
    """Work of equal decode steps with exact scores, without a trace.

    `v_rows`: rows of V that differ per KV head and step; None: as many as can (S samples or k keys for each head, no two the same).
    """
    budget = S if S is not None else k if k is not None else n_k
    T = -(-n_k // tile)
    if method == "s2anta-flash":
        budget = T * max(1, budget // T)
    per_head = min(n_k, budget)
    rows = min(n_k, per_head * (H // H_kv)) if v_rows is None else v_rows
    row = d * ELEMENT_BYTES[precision]
    return Work(
        method=method, score="exact", allocation=allocation, precision=precision, H=H, H_kv=H_kv, d=d, tile=tile, lengths=(n_k,) * batch,
        S=S, k=k, samples=batch * H * budget, head_rows=batch * H * per_head, v_rows=batch * H_kv * rows, k_bytes=batch * n_k * H_kv * row,
        v_bytes=batch * H_kv * rows * row, q_bytes=batch * H * row, output_bytes=batch * H * row, k_requested_bytes=batch * n_k * H_kv * row,
    )  # fmt: skip


def work_of(trace: Trace) -> list[Work]:
    """What each layer of a trace asks for.

    Raises
    ------
    InputError
        The trace is of a method or score stage that no GPU implementation is described for.
    """
    meta, items = trace.meta, trace.items
    layers = items["layer"].to_numpy()
    samples, layer_numbers = meta.get("samples"), list(meta["layers"])
    works = []
    for number in layer_numbers:
        part = items[layers == number]
        S = samples[layer_numbers.index(number)] if isinstance(samples, list) else samples
        works.append(_work_of_layer(trace, part, number, S))
    return works


def _work_of_layer(trace: Trace, items, layer: int, S: int | None) -> Work:
    meta = trace.meta
    d, element = meta["head_dim"], ELEMENT_BYTES[meta["precision"]]
    lengths = []
    for n_q, n_k in zip(meta["n_q"], meta["n_k"], strict=True):
        first = n_k - n_q + 1 if meta.get("causal", True) else n_k
        lengths += list(range(first, n_k + 1)) if first != n_k else [n_k] * n_q
    if not lengths or min(lengths) < 0:
        raise InputError(f"trace metadata: n_q={meta['n_q']}, n_k={meta['n_k']}: a causal query sees at least itself")
    seen = _Sectors()
    features, requested_k = 0.0, 0
    streamed = [items[name].to_numpy() for name in ("stream_buffer", "stream_first_byte", "stream_bytes", "stream_piece_bytes", "stream_stride_bytes")]
    sequences, heads = items["sequence"].to_numpy(), items["kv_head"].to_numpy()
    for sequence, head, *entry in zip(sequences, heads, *streamed):
        for buffer, first, nbytes, piece, stride in zip(*entry):
            if buffer in ("q", "k", "v", "output"):
                seen.add((sequence, head, buffer), first, nbytes, piece, stride)
                requested_k += nbytes if buffer == "k" else 0
    gathered = [items[name].to_numpy() for name in ("gather_buffer", "gather_rows", "gather_first_byte", "gather_row_bytes", "gather_stride_bytes")]
    tiles = items["tile"].to_numpy()
    for sequence, head, tile, buffer, rows, first, nbytes, stride in zip(sequences, heads, tiles, *gathered):
        if not buffer:
            continue
        seen.gather((sequence, head, buffer), np.asarray(rows, np.int64), first, nbytes, stride)
        if buffer == "k":
            requested_k += len(rows) * nbytes
            features += len(rows) if tile == 0 else 0
    queries = sum(meta["n_q"])
    asked = requested_k if meta["kind"] == "decode" else sum(lengths) * meta["n_kv_heads"] * d * element
    adds = int(items["value_adds"].to_numpy()[(items["stage"] != "output").to_numpy()].sum())
    rows = seen.rows("v", d * element)
    return Work(
        method=meta["method"], score=meta["score"], allocation=meta.get("allocation"), precision=meta["precision"], H=meta["n_heads"],
        H_kv=meta["n_kv_heads"], d=d, tile=meta["tile"], lengths=tuple(lengths), S=S, k=meta.get("budget_k"), samples=adds // d,
        head_rows=min(int(items["unique_rows_per_head"].sum()) * max(1, queries // len(meta["n_k"])), adds // d), v_rows=rows,
        k_bytes=seen.bytes("k"), v_bytes=seen.bytes("v"), q_bytes=seen.bytes("q"), output_bytes=seen.bytes("output"),
        k_requested_bytes=max(int(asked), 1), features=features if meta["score"] != "exact" else None, prefill=meta["kind"] == "prefill",
        layer=layer,
    )  # fmt: skip


class _Sectors:
    """Sectors that a layer touches, by (sequence, KV head, buffer); a sector that is touched again counts once."""

    def __init__(self) -> None:
        self._ranges: dict[tuple, list[np.ndarray]] = {}

    def add(self, key: tuple, first: int, nbytes: int, piece: int, stride: int) -> None:
        if nbytes <= 0:
            return
        if piece == stride or nbytes <= piece:
            starts, ends = np.array([first]), np.array([first + nbytes])
        else:
            starts = first + stride * np.arange(-(-nbytes // piece))
            ends = starts + piece
            ends[-1] = starts[-1] + (nbytes - piece * (len(starts) - 1))
        self._ranges.setdefault(key, []).append(np.stack([starts // SECTOR, (ends - 1) // SECTOR + 1]))

    def gather(self, key: tuple, rows: np.ndarray, first: int, nbytes: int, stride: int) -> None:
        starts = first + rows * stride
        self._ranges.setdefault(key, []).append(np.stack([starts // SECTOR, (starts + nbytes - 1) // SECTOR + 1]))

    def _merged(self, key: tuple) -> np.ndarray:
        starts, ends = np.concatenate(self._ranges[key], axis=1)
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        before = np.concatenate([[np.iinfo(np.int64).min], ends[:-1]])
        return np.maximum(ends - np.maximum(starts, before), 0)

    def bytes(self, buffer: str) -> int:
        """All sectors of a buffer [B]."""
        return SECTOR * sum(int(self._merged(key).sum()) for key in self._ranges if key[2] == buffer)

    def rows(self, buffer: str, row_bytes: int) -> int:
        """Rows of a buffer that are touched, from its sectors."""
        return round(self.bytes(buffer) / max(row_bytes, SECTOR))
