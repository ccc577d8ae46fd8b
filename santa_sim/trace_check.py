"""Whether a trace's table can be played: each column's types and limits, and what must fit together in a row.

All rows at once, as arrays; row by row only to find what to name in an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa

from .errors import InputError, suggestion
from .trace_meta import TraceMeta, shown
from .trace_schema import (
    BUFFERS,
    COLUMNS,
    COUNTERS,
    GATHERED,
    GATHERS,
    KEYS,
    LARGEST_BYTE,
    LARGEST_COUNT,
    LARGEST_ITEM_BYTES,
    LARGEST_PIECES,
    STAGES,
    STREAMS,
)

_UNIQUE = ("unique_rows_per_head", "unique_rows_per_group")


def check_items(items: object, facts: TraceMeta) -> None:
    """InputError, with row, column, value and what to write, unless the table is one that a machine can play.

    Parameters
    ----------
    items : pandas.DataFrame, columns COLUMNS and others;  facts : the trace's checked metadata
    """
    if not isinstance(items, pd.DataFrame):
        raise InputError(f"a trace's items are a pandas DataFrame, not {shown(items)}; see docs/trace.md")
    missing = [name for name in COLUMNS if name not in items.columns]
    if missing:
        raise InputError(f"trace lacks the columns {missing}; see docs/trace.md")
    twice = items.columns[items.columns.duplicated()].tolist()
    if twice:
        raise InputError(f"trace has the column {twice[0]!r} twice: keep one")
    if len(items) == 0:
        raise InputError("trace has no work items")
    stages = _names(items, "stage", STAGES, "stages are")
    sequences = _check_keys(items, stages, facts)
    _check_counters(items, stages, sequences, facts)
    streamed = _check_streams(items)
    gathered = _check_gathers(items, sequences, facts)
    for what, limit, totals in zip(("pieces and rows", "bytes"), (LARGEST_PIECES, LARGEST_ITEM_BYTES), streamed + gathered):
        if (totals > limit).any():
            row = int(np.argmax(totals > limit))
            raise InputError(
                f"trace row {row}: the item moves {int(totals[row]):,} {what}, a machine takes {limit:,} at most in one: "
                f"split it into tiles"
            )


def _fail(row: int, column: str, value: object, hint: str) -> NoReturn:
    raise InputError(f"trace row {row}: {column}={shown(value)}: {hint}")


def _check_keys(items: pd.DataFrame, stages: np.ndarray, facts: TraceMeta) -> np.ndarray:
    """The sequence of each row, int64; InputError if a key is none that the metadata speaks of."""
    sequence, layer, head, block, tile = (_integers(items, name) for name in KEYS)
    _within(sequence, "sequence", 0, len(facts.n_k) - 1, f"n_k in the metadata has {len(facts.n_k)} entries")
    sequence = sequence.astype(np.int64)
    strange = ~np.isin(layer, facts.layers)
    if strange.any():
        row = int(np.argmax(strange))
        _fail(row, "layer", layer[row], f"layers={shown(facts.layers)} in the metadata doesn't have it")
    _within(head, "kv_head", 0, facts.n_kv_heads - 1, f"n_kv_heads={facts.n_kv_heads} in the metadata")
    n_q, n_k = np.array(facts.n_q)[sequence], np.array(facts.n_k)[sequence]
    _within(block, "query_block", 0, n_q - 1, "n_q of this sequence in the metadata has no more positions")
    _within(tile, "tile", -1, n_k - 1, "write -1 for no tile; n_k of this sequence in the metadata has no more keys")
    lost = ((stages == "score") | (stages == "value")) & (tile < 0).astype(bool)
    if lost.any():
        row = int(np.argmax(lost))
        _fail(row, "tile", tile[row], f"a {stages[row]!r} item has a tile: write its number, from 0")
    return sequence


def _check_counters(items: pd.DataFrame, stages: np.ndarray, sequences: np.ndarray, facts: TraceMeta) -> None:
    for name in COUNTERS:
        values = _integers(items, name)
        _within(values, name, 0, LARGEST_COUNT, "a count")
        if values.sum(dtype=np.float64) > LARGEST_COUNT:
            raise InputError(f"trace counts more than {LARGEST_COUNT:,} {name} in all, which sums can't hold exactly")
    limits = np.array(facts.n_k)[sequences]
    heads = facts.n_heads // facts.n_kv_heads
    for name, share in zip(_UNIQUE, (heads, 1)):
        values = items[name].to_numpy().astype(np.int64, copy=False)
        if not values.any():
            continue
        misplaced = (values > 0) & (stages != "output")
        if misplaced.any():
            row = int(np.argmax(misplaced))
            _fail(row, name, values[row], "only an 'output' item has unique rows; write 0 here")
        totals = pd.Series(values).groupby([items[key].to_numpy() for key in KEYS[:3]]).transform("sum").to_numpy()
        beyond = totals > limits * share
        if beyond.any():
            row = int(np.argmax(beyond & (values > 0)))
            _fail(
                row, name, values[row],
                f"with its sequence, layer and KV head's others {totals[row]}, more than n_k={limits[row]} rows"
                + (f" for each of {share} grouped heads" if name == _UNIQUE[0] else ""),
            )  # fmt: skip


def _check_streams(items: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Pieces and bytes that each row streams, float64; InputError if a region is none."""
    columns, offsets = zip(*(_lists(items, name, *_KINDS[name]) for name in STREAMS))
    lengths = [np.diff(of) for of in offsets]
    for name, length in zip(STREAMS[1:], lengths[1:]):
        if (length != lengths[0]).any():
            row = int(np.argmax(length != lengths[0]))
            raise InputError(f"trace row {row}: {name} has {length[row]} entries, stream_buffer has {lengths[0][row]}")
    rows = np.repeat(np.arange(len(items)), lengths[0])
    buffer, first, nbytes, piece, stride, _ = columns
    for name in np.unique(buffer).tolist():
        if name not in BUFFERS:
            _fail(int(rows[np.argmax(buffer == name)]), "stream_buffer", name, f"unknown buffer{suggestion(name, BUFFERS)}")
    for name, values, low in zip(STREAMS[1:5], (first, nbytes, piece, stride), (0, 1, 1, 0)):
        _within(values, name, low, LARGEST_BYTE, "bytes of its buffer", rows)
    pieces = -(-nbytes // np.maximum(piece, 1))
    short = (pieces > 1) & (stride < piece)
    if short.any():
        at = int(np.argmax(short))
        _fail(
            int(rows[at]), "stream_stride_bytes", stride[at],
            f"pieces of stream_piece_bytes={piece[at]} would overlap: write at least {piece[at]}",
        )  # fmt: skip
    ends = first + (pieces - 1.0) * stride + np.minimum(piece, nbytes)
    _end_within(ends, rows, "stream")
    return tuple(np.bincount(rows, weights, len(items)) for weights in (pieces, nbytes))


def _check_gathers(items: pd.DataFrame, sequences: np.ndarray, facts: TraceMeta) -> tuple[np.ndarray, np.ndarray]:
    """Rows and bytes that each row gathers, float64; InputError if they can't be."""
    buffers = _names(items, "gather_buffer", ("", *GATHERED), "rows are gathered from 'k' or 'v'; write '' for none;")
    gathered, offsets = _lists(items, "gather_rows", *_KINDS["gather_rows"])
    first, row_bytes, stride = (_integers(items, name) for name in GATHERS[2:])
    for name, values in zip(GATHERS[2:], (first, row_bytes, stride)):
        _within(values, name, 0, LARGEST_BYTE, "bytes of its buffer")
    lengths = np.diff(offsets)
    gathers = lengths > 0
    for column, values, bad, hint in (
        ("gather_buffer", buffers, buffers == "", "the item gathers rows: write 'k' or 'v'"),
        ("gather_row_bytes", row_bytes, row_bytes < 1, "the item gathers rows: write the bytes of one"),
    ):
        if (gathers & bad.astype(bool)).any():
            row = int(np.argmax(gathers & bad.astype(bool)))
            _fail(row, column, values[row], hint)
    rows = np.repeat(np.arange(len(items)), lengths)
    # Rows of V are keys; of K keys for exact scores, features for Bernoulli scores, either for scores of another name.
    of_v, of_k = np.array(facts.n_k)[sequences], _rows_of_k(facts)[sequences]
    limit = np.where(buffers == "v", of_v, of_k)[rows]
    _within(gathered, "gather_rows", 0, limit - 1, "rows of its buffer (n_k keys; head_dim features of K)", rows)
    last = np.zeros(len(items), np.int64)
    np.maximum.at(last, rows, gathered)
    short = (last > 0) & (stride < row_bytes).astype(bool)
    if short.any():
        row = int(np.argmax(short))
        _fail(
            row, "gather_stride_bytes", stride[row],
            f"rows of gather_row_bytes={row_bytes[row]} would overlap: write at least {row_bytes[row]}",
        )  # fmt: skip
    ends = first.astype(np.float64) + last * stride.astype(np.float64) + row_bytes.astype(np.float64)
    _end_within(ends, np.arange(len(items)), "gather")
    return lengths.astype(np.float64), lengths * row_bytes.astype(np.float64)


def _rows_of_k(facts: TraceMeta) -> np.ndarray:
    n_k, features = np.array(facts.n_k), np.full(len(facts.n_k), facts.head_dim)
    if facts.score == "exact":
        return n_k
    return features if facts.score.startswith("bernoulli") else np.maximum(n_k, features)


def _within(values: np.ndarray, column: str, low: int, high: int | np.ndarray, hint: str, rows: np.ndarray | None = None) -> None:
    """InputError unless low <= values <= high; `rows` are the values' rows where there isn't one each."""
    bad = ((values < low) | (values > high)).astype(bool)
    if bad.any():
        at = int(np.argmax(bad))
        top = high if np.ndim(high) == 0 else high[at]
        _fail(at if rows is None else int(rows[at]), column, values[at], f"write a whole number from {low} to {top:,} ({hint})")


def _end_within(ends: np.ndarray, rows: np.ndarray, what: str) -> None:
    if (ends > LARGEST_BYTE).any():
        at = int(np.argmax(ends > LARGEST_BYTE))
        raise InputError(f"trace row {rows[at]}: its {what} ends at byte {ends[at]:.4g} of the buffer, beyond {LARGEST_BYTE:,}")


def _names(items: pd.DataFrame, column: str, known: Sequence[str], are: str) -> np.ndarray:
    """A column of names that are known, as an array of objects."""
    names = items[column].tolist()
    for row, name in enumerate(names):
        if not isinstance(name, str) or name not in known:
            near = suggestion(name, filter(None, known)) if isinstance(name, str) else ""
            _fail(row, column, name, f"{are} {', '.join(filter(None, known))}{near if 'did you mean' in near else ''}")
    return np.array(names, object)


def _integers(items: pd.DataFrame, column: str) -> np.ndarray:
    """A column of whole numbers: an integer array, or Python's integers where it has other types."""
    series = items[column]
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iu":
        return series.to_numpy()
    values = series.tolist()
    for row, value in enumerate(values):
        if not _is_whole(value):
            floats = isinstance(value, float) and value.is_integer()
            cast = f" (such as {int(value)}; items[{column!r}].astype('int64') converts a column)" if floats else ""
            _fail(row, column, value, f"{column!r} must hold whole numbers{cast}")
    return np.array(values, object)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


# Of each list column: the Arrow type of its entries, whether an entry is one, and what to write.
_WHOLE = (pa.types.is_integer, _is_whole, "whole numbers", np.int64)
_KINDS: dict[str, tuple] = {
    **dict.fromkeys((*STREAMS[1:5], "gather_rows"), _WHOLE),
    "stream_buffer": (
        lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
        lambda value: isinstance(value, str), "names of buffers", object,
    ),
    "stream_write": (pa.types.is_boolean, lambda value: isinstance(value, (bool, np.bool_)), "true or false", bool),
}  # fmt: skip


def _lists(items: pd.DataFrame, column: str, has_type: Callable[[pa.DataType], bool], is_one: Callable[[object], bool],
           entries: str, dtype: type) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """A list column end to end, and where each row's list starts and the last one's ends, int64 [rows + 1]."""
    lists = items[column].tolist()
    try:
        array = pa.array(lists)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        array = None
    if array is not None and pa.types.is_list(array.type) and not array.null_count and not array.values.null_count:
        if has_type(array.type.value_type) or len(array.values) == 0:
            values = array.values.to_numpy(zero_copy_only=False)
            return (values if len(values) else values.astype(dtype)), array.offsets.to_numpy().astype(np.int64)
    for row, entry in enumerate(lists):
        if not isinstance(entry, (list, tuple, np.ndarray)) or getattr(entry, "ndim", 1) != 1:
            _fail(row, column, entry, f"write a list of {entries}, [] for none")
        for value in entry:
            if not is_one(value) or (dtype is np.int64 and not -(2**63) <= value < 2**63):
                _fail(row, column, value, f"write a list of {entries}" + (" of 64 bits" if dtype is np.int64 else ""))
    lengths = [len(entry) for entry in lists]
    return np.array([value for entry in lists for value in entry], dtype), np.concatenate([[0], np.cumsum(lengths)])
