"""Machines from YAML: names, paths, `base` and what differs, tables scaled to the machine's technology."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .errors import InputError, choose
from .hardware_gpu import Gpu
from .hardware_model import Hardware, MemoryModel
from .schema import fields_of, find_yaml, is_path, overlaid, read_fields, shipped, shown, validate
from .simulator.dram.config import shipped_drams
from .simulator.energy import EnergyTable, Technology, energy_tables, load_energy, scaled, scaling_note

PACKAGE = "santa_sim.hwmodels"
KINDS = ("accelerator", "gpu")


def load_hardware(hardware: str | Path | Mapping | Hardware | Gpu) -> Hardware | Gpu:
    """Return a machine from a shipped name, a .yaml path, a mapping of the same fields, or a machine (returned as is).

    A file or mapping may start from another machine with `base: NAME_OR_PATH` and give only what differs. `energy` is
    the name or path of an energy table, or its fields; the table is scaled to the machine's `technology`. Paths in a
    file are relative to that file, in a mapping to the working directory. `kind: gpu` makes it a Gpu (docs/gpu.md).

    Raises
    ------
    InputError
        The machine isn't known, or a field is unknown, missing or out of range (named, with its value).
    """
    if isinstance(hardware, (Hardware, Gpu)):
        return hardware
    data, where, path = fields_of(hardware, "hardware", shipped(PACKAGE), "a Hardware, a Gpu")
    if not data:
        raise InputError(f"{where} has no fields; write at least a base, such as {{'base': 'adder_hbm3'}}")
    if path:
        data = _resolved(_located(data, path.parent), where, path.parent, (path.resolve(),))
    else:
        data = _resolved(data, where, None, ())
    data.setdefault("name", path.stem if path else "custom")
    try:
        kind = choose("kind", data.pop("kind", "accelerator"), KINDS)
        table, notes = _scaled_table(data)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if kind == "gpu":
        return validate(Gpu, {"kind": kind, **data}, where)
    if notes and isinstance(data.get("notes", ()), (list, tuple)):
        data["notes"] = list(dict.fromkeys([*data.get("notes", ()), *notes]))
    memory = data.get("memory")
    if isinstance(memory, Mapping) and "model" not in memory:
        data["memory"] = {"model": _model_of(memory) or "bandwidth", **memory}
    return validate(Hardware, {**data, "energy": table}, where)


def _scaled_table(data: Mapping) -> tuple[object, list[str]]:
    """The energy table of a machine's fields at the machine's technology, its notes and what was done to it."""
    table, technology = data.get("energy"), data.get("technology")
    if isinstance(table, (str, Path)):
        table = load_energy(table)
    elif isinstance(table, Mapping):
        table = validate(EnergyTable, dict(table), "energy")
    if not isinstance(table, EnergyTable) or not isinstance(technology, (Mapping, Technology)):
        return table, []  # one of them is missing or wrong, as the machine's own check will say
    technology = validate(Technology, technology, "technology")
    try:
        note = scaling_note(table, technology.node_nm, technology.supply_v)
    except InputError as error:
        raise InputError(f"technology.{error}") from None
    return scaled(table, technology.node_nm, technology.supply_v), [*table.notes, *([note] if note else [])]


def _located(data: dict, folder: Path) -> dict:
    """A file's fields, the paths of its energy table and DRAM made relative to where the caller stands."""
    table = data.get("energy")
    if isinstance(table, str) and table not in energy_tables() and is_path(table):
        data["energy"] = folder / table
    memory = data.get("memory")
    dram = memory.get("dram") if isinstance(memory, dict) else None
    if isinstance(dram, str) and dram not in shipped_drams() and (is_path(dram) or dram.endswith(".ini")):
        memory["dram"] = str(folder / dram)
    return data


def _resolved(data: dict, where: str, folder: Path | None, seen: tuple[Path, ...]) -> dict:
    """The fields with those of `base` (and its bases) underneath; a memory of another model replaces the base's whole."""
    if "base" not in data:
        return data
    changes = {key: value for key, value in data.items() if key != "base"}
    base = data["base"]
    if not isinstance(base, (str, Path)):
        raise InputError(f"{where}: base={shown(base)} must be a name or the path of a .yaml file")
    path = find_yaml(base, PACKAGE, f"{where}: base hardware", folder)
    if path.resolve() in seen:
        raise InputError(f"{where}: base={str(base)!r} leads back to itself")
    below = _resolved(_located(read_fields(path, "hardware"), path.parent), str(path), path.parent, (*seen, path.resolve()))
    if "name" not in changes and not seen:
        changes["name"] = f"{path.stem} (changed)" if changes else path.stem
    memory = changes.get("memory")
    if isinstance(memory, Mapping) and _model_of(memory) not in (None, _model_of(below.get("memory", {}))):
        below = {**below, "memory": {}}
    return overlaid(below, changes)


def _model_of(memory: Mapping) -> str | None:
    """Which memory model some of its fields mean, if they say."""
    if "model" in memory:
        return memory["model"]
    if "dram" in memory or "controller_latency_s" in memory:
        return "banks"
    return "bandwidth" if memory.keys() & MemoryModel.model_fields.keys() else None
