"""Tables of runs in files (CSV, Parquet) and on the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..schema import existing_file

if TYPE_CHECKING:
    import pandas as pd

FORMATS = (".csv", ".parquet")
# Columns of the printed table: (column, heading, factor, format)
_SHOWN = (
    ("workload", "workload", None, ""), ("method", "method", None, ""), ("score", "score", None, ""), ("samples", "S", None, ""),
    ("budget_k", "k", None, ""), ("budget_B", "B", None, ""), ("precision", "precision", None, ""), ("hardware", "hardware", None, ""),
    ("latency_s", "latency [µs]", 1e6, ".4g"), ("energy_j", "energy [µJ]", 1e6, ".4g"), ("area_m2", "area [mm²]", 1e6, ".4g"),
    ("traffic_total_bytes", "DRAM [MB]", 1e-6, ".4g"), ("error_relative_l2", "error [%]", 100, ".3g"), ("bound_by", "bound by", None, ""),
)  # fmt: skip
COLUMNS = (*(entry[0] for entry in _SHOWN), "energy_unknown", "failure")


def names_a_run(column: str) -> bool:
    """Whether a column of the printed table says what was run, not what came out."""
    return any(name == column and factor is None and name != "bound_by" for name, _, factor, _ in _SHOWN)


def check_format(path: str | Path) -> Path:
    """InputError unless the file's name ends in .csv or .parquet."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise InputError(f"{str(path)!r}: write a name that ends in .csv or .parquet")
    return path


def write(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table as CSV or Parquet, by the end of the name."""
    path = check_format(path)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path, index=False)


def read(path: str | Path) -> pd.DataFrame:
    """A table that `write`, or a sweep, wrote; InputError if it can't be read."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = existing_file(check_format(path), "table")
    try:
        if path.suffix == ".csv":
            return pd.read_csv(path, dtype_backend="numpy_nullable")
        return pq.read_table(path).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)  # whole numbers stay whole where some rows lack them
    except (ValueError, OSError) as error:
        raise InputError(f"{str(path)!r} is no table that can be read: {error}") from None


def as_json(frame: pd.DataFrame) -> str:
    """The rows as JSON objects, SI units; what is missing is null."""
    return json.dumps(json.loads(frame.to_json(orient="records", double_precision=15)), indent=2)


def show(frame: pd.DataFrame, fields: tuple[str, ...] = ()) -> None:
    """Print the rows: what differs and the main figures; below, why some failed and which energies lack the DRAM's."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = [(name, name, None, "") for name in fields if name in frame and name not in [entry[0] for entry in _SHOWN]]
    own = {"S": "samples", "k": "budget_k", "B": "budget_B"}  # an axis and its column in the result
    said = {own[name] for name in fields if name in own}
    shown += [entry for entry in _SHOWN if entry[0] in frame and entry[0] not in said and frame[entry[0]].notna().any()]
    shown = [entry for entry in shown if entry[2] or entry[0] in ("method", "hardware", *fields) or frame[entry[0]].nunique(dropna=False) > 1]
    for _, heading, factor, _ in shown:
        table.add_column(heading, justify="right" if factor else "left", no_wrap=True)
    missing = frame.isna()
    unknown = frame["energy_unknown"].fillna("") if "energy_unknown" in frame else [""] * len(frame)
    has_energy = frame["energy_j"].notna() if "energy_j" in frame else [False] * len(frame)
    without_dram = ["dram_read" in parts and has for parts, has in zip(unknown, has_energy)]
    for index in range(len(frame)):
        cells = []
        for name, _, factor, form in shown:
            value = frame[name].iloc[index]
            mark = "*" if name == "energy_j" and without_dram[index] else ""
            cells.append("-" if missing[name].iloc[index] else format(value * factor, form) if factor else str(value))
            cells[-1] += mark
        table.add_row(*cells)
    console = Console(width=max(Console().width, 160), markup=False)  # no markup: [mm²] is a unit
    console.print(table)
    if any(without_dram):
        console.print("* without DRAM, whose energy nobody has published: not to be compared with energies that have it")
    reasons = frame["failure"].dropna().unique() if "failure" in frame else []
    for reason in reasons:
        console.print(f"failed: {reason}", markup=False, highlight=False, soft_wrap=True)
