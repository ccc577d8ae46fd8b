"""The fields that a sweep can vary: arguments of `run`, fields of the workload, of the machine, of its DRAM."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping

import pydantic

from ..errors import InputError, nearest, suggestion
from ..hardware import load_hardware
from ..hardware_gpu import Gpu
from ..hardware_model import BankMemoryModel, Hardware, MemoryModel
from ..schema import Model, _models_in
from ..simulator.dram.config import DramConfig
from ..workload import Workload
from .kernels import DEFAULTS

ARGUMENTS = ("workload", "hardware", *DEFAULTS)
_NOT_SWEPT = ("name", "description", "notes")


@dataclasses.dataclass(frozen=True)
class Field:
    """One field that varies.

    Attributes
    ----------
    name : as written, the name of its column
    kind : 'argument', 'workload', 'machine' or 'dram'
    path : where it is, from the top of its kind
    """

    name: str
    kind: str
    path: tuple[str, ...]

    @property
    def changes_kernel(self) -> bool:
        """True if the method must run again for another value; False if its trace is played again."""
        return self.kind == "workload" or (self.kind == "argument" and self.path != ("hardware",))


def field(name: object) -> Field:
    """The field of a name such as 'S', 'n_k', 'gather.outstanding', 'dram.channels' or 'dram.timing.nCL'.

    'workload.' or 'hardware.' may stand in front, 'memory/dram.channels' means 'dram.channels'; a field of the DRAM may be
    named without its section.

    Raises
    ------
    InputError
        There is no such field: the nearest is named.
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"sweep field {name!r} is not a name such as 'S' or 'gather.outstanding'")
    path = name.replace("/", ".").removeprefix("hardware.")
    path = path.removeprefix("memory.") if path.startswith("memory.dram.") else path
    if path in ARGUMENTS:
        return Field(name, "argument", (path,))
    if path == "dram":
        path = "memory.dram"
    if path.startswith("dram."):
        return Field(name, "dram", _dram_path(path.removeprefix("dram."), name))
    inside = path.removeprefix("workload.")
    if inside in workload_fields() and (inside != path or inside not in machine_fields()):
        return Field(name, "workload", tuple(inside.split(".")))
    if inside == path and _within(path, machine_fields()):
        return Field(name, "machine", tuple(path.split(".")))
    known = [*ARGUMENTS, *workload_fields(), *machine_fields(), *(f"dram.{leaf}" for leaf in _dram_leaves())]
    hint = suggestion(path, known)
    if nearest(path, known) is None:
        hint = "; a field is an argument of run (S, method, ...), of the workload (n_k, ...), of the machine (gather.outstanding, ...) or dram.(...)"
    raise InputError(f"sweep field {name!r} doesn't exist{hint}")


def machine_with(machine: Hardware | Gpu, changes: Mapping[Field, object]) -> Hardware | Gpu:
    """A machine with some fields changed and everything checked again.

    Raises
    ------
    InputError
        A value is out of range, or the machine has no such field.
    """
    if not changes:
        return machine
    data = machine.model_dump()
    for where, value in changes.items():
        inner = data
        path = ("memory", "dram_changes", *where.path) if where.kind == "dram" else where.path
        if where.kind == "dram" and "dram" not in data.get("memory", {}):
            raise InputError(f"{where.name}={value!r}: the memory of {machine.name} is not a bank-level DRAM")
        for part in path[:-1]:
            entry = inner.get(part)
            inner[part] = dict(entry) if isinstance(entry, Mapping) else {}
            inner = inner[part]
        old = inner.get(path[-1])
        both = isinstance(old, Mapping) and isinstance(value, Mapping) and not (path == ("memory",) and ("dram" in old) != ("dram" in value))
        inner[path[-1]] = {**old, **value} if both else dict(value) if isinstance(value, Mapping) else value
    memory = data.get("memory")
    if isinstance(memory, dict) and "dram" in memory:
        memory["model"] = "banks"
    return load_hardware(data)


def workload_changes(changes: Mapping[Field, object], workload: Workload) -> dict[str, object]:
    """What `santa_sim.workload.replace` takes for some fields of the workload."""
    out: dict[str, object] = {}
    for where, value in changes.items():
        if len(where.path) == 1:
            out[where.path[0]] = value
        else:
            out[where.path[0]] = {**out.get(where.path[0], getattr(workload, where.path[0]).model_dump()), where.path[1]: value}
    return out


@functools.lru_cache(maxsize=1)
def workload_fields() -> tuple[str, ...]:
    """Dotted names of the workload's fields; `batch` repeats one length."""
    return ("batch", *_leaves(Workload))


@functools.lru_cache(maxsize=1)
def machine_fields() -> tuple[str, ...]:
    """Dotted names of all fields of machines, sections included."""
    return tuple(dict.fromkeys([*_leaves(Hardware), *_leaves(Gpu), *(f"memory.{name}" for model in (BankMemoryModel, MemoryModel) for name in model.model_fields)]))


@functools.lru_cache(maxsize=1)
def _dram_leaves() -> tuple[str, ...]:
    return _leaves(DramConfig)


def _dram_path(path: str, name: str) -> tuple[str, ...]:
    leaves = _dram_leaves()
    if path in leaves:
        return tuple(path.split("."))
    found = [leaf for leaf in leaves if leaf.rpartition(".")[2] == path]
    if len(found) == 1:
        return tuple(found[0].split("."))
    if found:
        raise InputError(f"sweep field {name!r} is one of {', '.join(f'dram.{leaf}' for leaf in found)}: write which")
    ends = {leaf.rpartition(".")[2]: leaf for leaf in leaves}
    near = nearest(path, [*leaves, *ends])
    hint = f"; did you mean 'dram.{near}'?" if near else f"; choose from {', '.join(sorted(ends))}"
    raise InputError(f"sweep field {name!r} doesn't exist{hint}")


def _within(path: str, known: tuple[str, ...]) -> bool:
    """The path is known, or leads into a field that is a table of its own keys (energy.add_j.fp32)."""
    return path in known or any(path.startswith(f"{table}.") for table in _tables() if table in known)


@functools.lru_cache(maxsize=1)
def _tables() -> tuple[str, ...]:
    return tuple(name for model in (Hardware, Gpu) for name in _leaves(model, tables=True))


def _leaves(model: type[Model], prefix: str = "", tables: bool = False) -> tuple[str, ...]:
    """Dotted names of a model's fields and of the fields of its sections; `tables`: only those that are dicts."""
    found: list[str] = []
    for name, info in model.model_fields.items():
        if name in _NOT_SWEPT and not prefix:
            continue
        path = f"{prefix}{name}"
        if not tables or _is_dict(info):
            found.append(path)
        for inner in _models_in(info.annotation, containers=False):
            found += _leaves(inner, f"{path}.", tables)
    return tuple(dict.fromkeys(found))


def _is_dict(info: pydantic.fields.FieldInfo) -> bool:
    return typing.get_origin(info.annotation) is dict
