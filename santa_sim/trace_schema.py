"""The names, units, types and limits of a trace's columns."""

from __future__ import annotations

import pyarrow as pa

SCHEMA = "santa_sim.trace"
SCHEMA_VERSION = 1

KEYS = ("sequence", "layer", "kv_head", "query_block", "tile")
STAGES = ("score", "budget", "select", "value", "merge", "output")
COUNTERS = (
    "score_adds", "score_mults",
    "softmax_exps", "softmax_compares", "softmax_adds", "softmax_mults",
    "selection_compares",
    "sampling_random_numbers", "sampling_compares", "sampling_adds", "sampling_mults", "sampling_floors",
    "value_adds", "value_mults", "value_shifts",
    "merge_adds", "merge_mults", "merge_exps",
    "score_reads", "score_writes", "value_reads", "value_writes",
    "unique_rows_per_head", "unique_rows_per_group",
)  # fmt: skip
STREAMS = ("stream_buffer", "stream_first_byte", "stream_bytes", "stream_piece_bytes", "stream_stride_bytes",
           "stream_write")  # fmt: skip
GATHERS = ("gather_buffer", "gather_rows", "gather_first_byte", "gather_row_bytes", "gather_stride_bytes")
BUFFERS = ("q", "k", "v", "stash", "partials", "output")
GATHERED = ("k", "v")  # buffers that rows can be gathered from
UNITS = {
    **{name: "scalar operations" for name in COUNTERS},
    **{name: "scalars" for name in ("score_reads", "score_writes", "value_reads", "value_writes")},
    **{name: "rows" for name in ("unique_rows_per_head", "unique_rows_per_group", "gather_rows")},
    **{name: "bytes" for name in (*STREAMS[1:5], *GATHERS[2:])},
}

# A machine lists the bursts of an item one by one, so an item has to be of a size that can be listed.
LARGEST_PIECES = 2**20  # pieces and rows of one item
LARGEST_ITEM_BYTES = 2**31  # bytes of one item [B]
LARGEST_BYTE = 2**40  # where a buffer ends at the latest [B]: addresses of all buffers then fit into 64 bits
LARGEST_COUNT = 2**53  # of a counter over the whole trace: sums stay exact, in floating point too

_LISTS = {
    "stream_buffer": pa.string(), "stream_first_byte": pa.int64(), "stream_bytes": pa.int64(),
    "stream_piece_bytes": pa.int64(), "stream_stride_bytes": pa.int64(), "stream_write": pa.bool_(),
    "gather_rows": pa.int32(),
}  # fmt: skip


def arrow_schema() -> pa.Schema:
    """The columns of a trace file with their types, units in the fields' metadata."""
    fields = [pa.field(name, pa.int32()) for name in KEYS] + [pa.field("stage", pa.string())]
    fields += [pa.field(name, pa.int64()) for name in COUNTERS]
    for name in (*STREAMS, *GATHERS):
        kind = pa.list_(_LISTS[name]) if name in _LISTS else pa.string() if name == "gather_buffer" else pa.int64()
        fields.append(pa.field(name, kind))
    return pa.schema([field.with_metadata({"unit": UNITS[field.name]} if field.name in UNITS else {}) for field in fields])


COLUMNS = tuple(arrow_schema().names)
