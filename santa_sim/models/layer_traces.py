"""Traces of a decode step's matrices and element-wise work, which any machine plays like those of attention.

A matrix is streamed as K is: its rows go through the score engine in tiles, every sequence of the batch multiplies with
each weight that passes, sums leave by the output port. Buffers of the trace: `k` the weights, `q` activations that come
in, `output` those that go out. Element-wise work goes through the softmax lanes in fp32.
"""

from __future__ import annotations

from ..trace import Trace, TraceWriter
from .layers import BF16, Elementwise, Matrix
from .weight_formats import WeightFormat

TILE_BYTES = 65536  # of weights in an item, as 256 keys of 128 bf16 features
BLOCK_TILES = 16  # of a block of rows, the outputs of which leave together


def block_rows(matrix: Matrix, form: WeightFormat) -> int:
    """Rows of a full block: whole rows in tiles of at most TILE_BYTES (or one row)."""
    return BLOCK_TILES * _tile_rows(matrix, form)


def _tile_rows(matrix: Matrix, form: WeightFormat) -> int:
    return max(1, TILE_BYTES // form.row_bytes(matrix.columns))


def matrix_trace(matrix: Matrix, form: WeightFormat, batch: int, rows: int | None = None) -> Trace:
    """`batch` vectors times the first `rows` of a matrix (all by default).

    Counters: a multiplication and an addition per weight and sequence (ternary: an addition, zeros too); per scaled
    group of weights a multiplication more; per output of integer sums a multiplication by its scale, per bias an
    addition.
    """
    rows = matrix.rows if rows is None else rows
    row_bytes, groups = form.row_bytes(matrix.columns), form.groups(matrix.columns)
    per_tile, per_block = _tile_rows(matrix, form), block_rows(matrix, form)
    activations = batch * matrix.columns * form.activation_bytes
    writer = TraceWriter()
    bias_at = matrix.rows * row_bytes
    for block, start in enumerate(range(0, rows, per_block)):
        end = min(rows, start + per_block)
        biased = max(0, min(end, matrix.biased) - start)
        for tile, first in enumerate(range(start, end, per_tile)):
            here = min(end, first + per_tile) - first
            streams = [_whole("q", 0, activations)] if block == tile == 0 else []
            streams.append(_whole("k", first * row_bytes, here * row_bytes))
            if biased and tile == 0:
                streams.append(_whole("k", bias_at + start * BF16, biased * BF16))
            counts = {"score_adds": batch * here * matrix.columns}
            if form.multiplies:
                counts["score_mults"] = batch * here * (matrix.columns + groups)
            writer.item(0, 0, 0, block, tile, "score", counts, streams)
        counts = {"value_mults": batch * (end - start) if form.scales_outputs else 0, "value_adds": batch * biased}
        out = [_whole("output", start * batch * BF16, (end - start) * batch * BF16, True)]
        writer.item(0, 0, 0, block, -1, "output", counts, out)
    blocks = -(-rows // per_block)
    types = {"operand": form.operand, "accumulator": form.accumulator}
    return writer.finish(_meta("matrix", blocks, max(rows, per_tile), matrix.columns, types, "fp32"))


def elementwise_trace(work: Elementwise, batch: int) -> Trace:
    """One run of element-wise work on a batch: sequences in pieces of about TILE_BYTES, each read, done and written."""
    moved = max(work.read_bytes + work.table_bytes, 1)
    per_piece = max(1, TILE_BYTES // moved)
    writer = TraceWriter()
    pieces = range(0, batch, per_piece)
    for piece, start in enumerate(pieces):
        here = min(batch, start + per_piece) - start
        streams = [_whole("q", start * work.read_bytes, here * work.read_bytes)] if work.read_bytes else []
        if work.table_bytes:  # a row of the embedding per sequence; which ones, nobody knows: spread
            at = (2 * start * work.table_bytes, here * work.table_bytes, work.table_bytes, 2 * work.table_bytes)
            streams.append(("k", *at, False))
        if work.weight_bytes and piece == 0:
            streams.append(_whole("k", 0, work.weight_bytes))
        names = ("adds", "mults", "exps", "compares")
        counts = {f"softmax_{name}": here * getattr(work, name) for name in names}
        writer.item(0, 0, 0, piece, 0, "score", counts, streams)
        writer.item(0, 0, 0, piece, -1, "output", {}, [_whole("output", start * work.write_bytes, here * work.write_bytes, True)])
    types = {"operand": "fp32", "accumulator": "fp32"}
    return writer.finish(_meta("element-wise", len(pieces), 1, 1, types, "fp32"))


def _whole(buffer: str, first: int, nbytes: int, write: bool = False) -> tuple:
    """A stretch of bytes in one piece. Its stride is none of a cache's, so that no cache layout moves it."""
    return (buffer, first, nbytes, nbytes, 0, write)


def _meta(method: str, blocks: int, rows: int, columns: int, types: dict, value_type: str) -> dict:
    return {
        "method": method, "score": "exact", "kind": "decode", "precision": "bf16", "n_heads": 1, "n_kv_heads": 1,
        "head_dim": columns, "n_q": [blocks], "n_k": [rows], "layers": [0], "tile": 1, "score_types": types,
        "value_types": {"operand": value_type, "accumulator": value_type}, "normalization": "multiply",
    }  # fmt: skip
