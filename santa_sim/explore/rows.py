"""Results as rows of a table: one column a quantity, units in the names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import choose
from ..simulator.result import Result, _flat

if TYPE_CHECKING:
    import pandas as pd

# What stands first, in this order; the rest follows in the order of Result's fields.
FIRST = (
    "workload", "method", "score", "samples", "budget_k", "budget_B", "precision", "seed", "hardware", "failure",
    "latency_s", "cycles", "energy_j", "energy_unknown", "area_m2", "error_relative_l2", "bound_by",
)  # fmt: skip
_TEXT = ("workload", "method", "score", "precision", "hardware", "failure", "energy_unknown", "bound_by", "notes", "error")
_LEFT_OUT = ("output", "spans", "stalls_fs", "played")


def row_of(result: Result) -> dict[str, object]:
    """A result as one flat row: numbers, text or None, nothing nested.

    `area_m2` is the sum of the machine's parts; energies are None where no part is known (GPUs); `failure` is None. Samples that differ by layer are text, such as
    '64,128', in `samples_by_layer`, and `samples` is None. Notes are joined by '; '.
    """
    flat: dict[str, object] = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if field.name in _LEFT_OUT or (field.name == "error" and value is None):
            continue
        if isinstance(value, Mapping):
            flat.update({name: _scalar(entry) for name, entry in _flat(field.name, value).items()})
        elif field.name in ("samples", "samples_drawn"):
            several = isinstance(value, (list, tuple))
            flat[field.name] = None if several else value
            if several:
                flat[f"{field.name}_by_layer"] = ",".join(map(str, value))
        else:
            flat[field.name] = _scalar(value)
    flat["area_m2"] = result.area_m2
    if set(result.energy_breakdown_j) <= set(result.energy_unknown):
        flat |= dict.fromkeys(["energy_j", *_flat("energy_breakdown_j", result.energy_breakdown_j)])
    flat["failure"] = None
    return {name: flat.get(name) for name in FIRST} | {name: value for name, value in flat.items() if name not in FIRST}


def check_column(what: str, name: str, fields: Sequence[str]) -> None:
    """InputError for a name that no column of numbers can have: neither a quantity, nor one of the `fields` that vary. Those of a
    kind (energy_..._j) depend on the machine and pass."""
    scalar = [one.name for one in dataclasses.fields(Result) if one.name not in _LEFT_OUT and str(one.type).split("[")[0] != "dict"]
    known = [one for one in dict.fromkeys([*FIRST, *scalar, *fields]) if one not in _TEXT]
    kinds = [one.name.removesuffix("_breakdown_j").removesuffix("_breakdown_m2").removesuffix("_bytes").removesuffix("_s")
             for one in dataclasses.fields(Result) if one.name not in _LEFT_OUT and (str(one.type).startswith("dict") or one.name == "error")]  # fmt: skip
    if not any(name.startswith(f"{kind}_") for kind in kinds):
        choose(what, name, known)


def failed_row(error: BaseException, **known: object) -> dict[str, object]:
    """The row of a combination that couldn't be run: what it was, and why not."""
    samples = known.get("samples")
    if isinstance(samples, (list, tuple)):
        known = {**known, "samples": None, "samples_by_layer": ",".join(map(str, samples))}
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return {**dict.fromkeys(FIRST), **known, "failure": f"{kind}{error}"}


def frame_of(rows: list[dict[str, object]]) -> pd.DataFrame:
    """Rows as a table; whole numbers stay whole (Int64) also where some rows lack them."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    for name in frame.columns:
        values = [row[name] for row in rows if row.get(name) is not None]
        if values and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            frame[name] = pd.array([row.get(name) for row in rows], dtype="Int64" if max(map(abs, values)) < 2**63 else "Float64")
    return frame


def _scalar(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return "; ".join(map(str, value))
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    return value.item() if hasattr(value, "item") else value
