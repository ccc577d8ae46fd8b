"""What a sweep runs: fixed arguments, axes that vary, and the points that they span, counted before any is made."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Set, ValuesView
from pathlib import Path

from ..api import machine_for
from ..errors import InputError, choose
from ..file_kinds import check_kind
from ..hardware_gpu import Gpu
from ..hardware_model import Hardware
from ..methods.spec import METHODS, PRECISIONS, SCORES
from ..schema import read_yaml, shown
from ..workload import load_workload, replace
from . import sweep_identity
from .kernels import DEFAULTS, Kernel
from .sweep_fields import ARGUMENTS, Field, field, machine_with, workload_changes

KEYS = (*ARGUMENTS, "grid", "points", "dram_detail")
DETAILS = ("full", "steady")
_WHOLE = ("S", "k", "B", "seed", "tile", "tensor_seed", "n_k", "batch")  # numbers of things, however they are written
_NAMES = {"method": METHODS, "score": SCORES, "precision": PRECISIONS}


@dataclasses.dataclass(frozen=True)
class Axis:
    """Fields that vary together: one value of each at every place."""

    fields: tuple[Field, ...]
    values: tuple[tuple[object, ...], ...]  # [places][fields]

    @functools.cached_property
    def kinds(self) -> tuple[str, ...]:
        """How the values of each field stand in a column: 'kept' as they are, 'real' as floats, or as 'text'."""
        return tuple(_kind([row[place] for row in self.values]) for place in range(len(self.fields)))


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A checked sweep. Points are numbered: what needs another kernel varies slowest, then what needs another machine, the
    last axis fastest.

    Attributes
    ----------
    fixed : arguments of `run` that don't vary
    kernel_axes, machine_axes : what varies
    dram_detail : 'full', or 'steady' for the shortcut of `simulator.steady`
    """

    fixed: Mapping[str, object]
    kernel_axes: tuple[Axis, ...]
    machine_axes: tuple[Axis, ...]
    dram_detail: str = "full"

    @property
    def kernels(self) -> int:
        """Kernels to run."""
        return math.prod(len(axis.values) for axis in self.kernel_axes)

    @property
    def machines(self) -> int:
        """Machines on which each kernel's trace is played."""
        return math.prod(len(axis.values) for axis in self.machine_axes)

    @property
    def points(self) -> int:
        return self.kernels * self.machines

    @property
    def fields(self) -> list[Field]:
        """All fields that vary, in the order of the axes."""
        return [one for axis in (*self.kernel_axes, *self.machine_axes) for one in axis.fields]

    def kernel_values(self, number: int) -> dict[Field, object]:
        return _at(self.kernel_axes, number)

    def machine_values(self, number: int) -> dict[Field, object]:
        return _at(self.machine_axes, number)

    def kernel(self, number: int) -> Kernel:
        """The kernel of a number; InputError if its arguments or workload can't be."""
        values = self.kernel_values(number)
        arguments = {one.path[0]: value for one, value in values.items() if one.kind == "argument"}
        given = {**self.fixed, **arguments}
        workload = load_workload(given.pop("workload"))
        changes = workload_changes({one: value for one, value in values.items() if one.kind == "workload"}, workload)
        given.pop("hardware", None)
        return Kernel.of(replace(workload, **changes) if changes else workload, given)

    def machine(self, kernel: int, number: int, method: str) -> Hardware | Gpu:
        """The machine of a number, for the method of a kernel; InputError if a value doesn't fit."""
        values = {**self.kernel_values(kernel), **self.machine_values(number)}
        values = {one: value for one, value in values.items() if not one.changes_kernel}
        base = next((value for one, value in values.items() if one.kind == "argument"), self.fixed.get("hardware"))
        return machine_with(machine_for(method, base), {one: value for one, value in values.items() if one.kind != "argument"})

    @functools.cached_property
    def identity(self) -> str:
        """Everything that the rows depend on, as JSON: the spec, what its names and files contain, the code."""
        return sweep_identity.identity(self)

    @property
    def fingerprint(self) -> str:
        """Short name of `identity`."""
        return sweep_identity.fingerprint(self.identity)


def load_sweep(spec: str | Path | Mapping | Sweep | None = None, **arguments: object) -> Sweep:
    """A sweep from a YAML file, a mapping or keyword arguments (which add to the file's).

    Keys: the arguments of `santa_sim.run`, each fixed or a list of alternatives; `grid`, a mapping of further fields to
    lists; `points`, a list of mappings of fields that vary together. `hardware` is one machine or a list of them.
    `dram_detail`: 'full' (default) plays every burst on the banks; 'steady' measures each DRAM's rate on the trace's requests
    once and plays that, where the stream is steady: within 1 % and many times faster (see `simulator.steady`).

    Raises
    ------
    InputError
        A key or field that doesn't exist (the nearest is named), an empty list, something that is missing or unknown.
    """
    if isinstance(spec, Sweep):
        return spec
    data: dict[str, object] = {}
    if isinstance(spec, Mapping):
        data = dict(spec)
    elif spec is not None:
        path = Path(spec)
        if not path.is_file():
            raise InputError(f"sweep {str(spec)!r} {'is a directory' if path.is_dir() else 'does not exist'}")
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise InputError(f"{path}: a sweep is a mapping of {', '.join(KEYS[:3])}, ..., grid and points, not {type(data).__name__}")
        check_kind(data, "sweep", path)
        data = _relative(data, path.parent)
    data = {**data, **arguments}
    for key, value in data.items():
        if key not in KEYS and _is_field(key):
            raise InputError(f"sweep key {key!r} is no argument of run but a field: write it under grid, as grid: {{{key}: {shown(value if isinstance(value, list) else [value])}}}")
        choose("sweep key", key, KEYS)
    grid, points = data.pop("grid", None) or {}, data.pop("points", None)
    detail = choose("dram_detail", data.pop("dram_detail", "full"), DETAILS)
    if not isinstance(grid, Mapping):
        raise InputError(f"grid={shown(grid)} is not a mapping of fields to lists, such as gather.outstanding: [64, 256]")
    data = {name: _listed(value) for name, value in data.items()}
    several = {name: value for name, value in data.items() if isinstance(value, list)}  # of S too: one per layer is a list in it
    fixed = {name: value for name, value in data.items() if name not in several}
    axes = [_axis(name, values) for name, values in [*several.items(), *grid.items()]]
    if points is not None:
        axes.append(_points(points))
    _check_once(axes, fixed)
    sweep = Sweep(fixed, tuple(a for a in axes if _for_kernel(a)), tuple(a for a in axes if not _for_kernel(a)), detail)
    if not axes:
        raise InputError("nothing varies: give grid: {field: [values]}, points: [{field: value}], or a list for an argument such as S: [64, 128]")
    for name in ("workload", "method"):
        if name not in fixed and not any(one.path == (name,) for one in sweep.fields):
            raise InputError(f"{name} is missing: give one, or several in a list")
    _check_names(sweep)
    return _loaded(sweep)


def _is_field(name: object) -> bool:
    try:
        return bool(field(name))
    except InputError:
        return False


def _relative(data: dict, folder: Path) -> dict:
    """Paths of workload and machine files made relative to where the caller stands."""

    def there(value: object) -> object:
        return str(folder / value) if isinstance(value, str) and value.endswith((".yaml", ".yml")) and (folder / value).is_file() else value

    out = dict(data)
    for name in ("workload", "hardware"):
        if name in out:
            out[name] = [there(entry) for entry in out[name]] if isinstance(out[name], list) else there(out[name])
    return out


def _axis(name: object, values: object) -> Axis:
    one, values = field(name), _listed(values)
    if not isinstance(values, (list, tuple, range)) or isinstance(values, str):
        raise InputError(f"grid: {name}={shown(values)} is not a list of values; write [{shown(values)}]")
    if not len(values):
        raise InputError(f"grid: {name}=[] is empty: no point to run; give at least one value, or leave it out")
    return Axis((one,), tuple((_value(one, value),) for value in values))


def _listed(values: object) -> object:
    """A list of what a numpy array, a pandas series, a range or a generator gives; anything else as it is (a tuple: one value)."""
    if hasattr(values, "tolist"):
        return values.tolist()
    return list(values) if isinstance(values, (range, Iterator, Set, ValuesView)) else values


def _points(points: object) -> Axis:
    points = _listed(points)
    if not isinstance(points, (list, tuple)) or not all(isinstance(point, Mapping) and point for point in points):
        raise InputError(f"points={shown(points)} is not a list of mappings of fields to values, such as [{{S: 64, gather.outstanding: 32}}]")
    if not points:
        raise InputError("points=[] is empty: no point to run; give at least one, or leave it out")
    names = list(points[0])
    fields = tuple(field(name) for name in names)
    for number, point in enumerate(points):
        if set(point) != set(names):
            odd = sorted(set(point) ^ set(names), key=str)
            raise InputError(f"points[{number}] and points[0] differ in {', '.join(map(str, odd))}: each point names the same fields")
    return Axis(fields, tuple(tuple(_value(one, point[name]) for name, one in zip(names, fields)) for point in points))


def _value(one: Field, value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"sweep field {one.name}={value} is not a finite number")
    if hasattr(value, "tolist") and not isinstance(value, str):
        value = value.tolist()
    if isinstance(value, float) and value.is_integer() and one.path[-1] in _WHOLE:
        value = int(value)  # 1e9
    return tuple(value) if isinstance(value, list) else value


def _for_kernel(axis: Axis) -> bool:
    return any(one.changes_kernel for one in axis.fields)


def _check_once(axes: list[Axis], fixed: Mapping[str, object]) -> None:
    seen: dict[tuple, str] = {}
    for one in [one for axis in axes for one in axis.fields]:
        if (one.kind, one.path) in seen or (one.kind == "argument" and one.path[0] in fixed):
            raise InputError(f"sweep field {one.name!r} is given twice ({seen.get((one.kind, one.path), 'as a fixed argument')}): keep one")
        seen[one.kind, one.path] = one.name


def _check_names(sweep: Sweep) -> None:
    """Names that no point could use are errors now."""
    values = {name: [value] for name, value in sweep.fixed.items()}
    for axis in (*sweep.kernel_axes, *sweep.machine_axes):
        for place, one in enumerate(axis.fields):
            if one.kind == "argument":
                values[one.path[0]] = [row[place] for row in axis.values]
    for name, known in _NAMES.items():
        for value in values.get(name, []):
            if value is not None:
                choose(name, value, known)
    for value in values["workload"]:
        load_workload(value)
    for value in values.get("hardware", []):
        if value is not None:
            machine_for("", value)
    unknown = set(values) - {"workload", "hardware", *DEFAULTS}
    assert not unknown, unknown


def _at(axes: tuple[Axis, ...], number: int) -> dict[Field, object]:
    values: dict[Field, object] = {}
    for axis in reversed(axes):
        number, place = divmod(number, len(axis.values))
        values = {**dict(zip(axis.fields, axis.values[place])), **values}
    return values


def _kind(column: list) -> str:
    known = [entry for entry in column if entry is not None]
    if all(isinstance(entry, bool) for entry in known) or all(isinstance(entry, int) and not isinstance(entry, bool) for entry in known):
        return "kept"
    return "real" if all(isinstance(entry, (int, float)) and not isinstance(entry, bool) for entry in known) else "text"


def _loaded(sweep: Sweep) -> Sweep:
    """The sweep with what its own machine and workload files hold now in place of their paths: they may change while it runs,
    and its workers may not see them."""
    loads = {("workload",): load_workload, ("hardware",): lambda value: machine_for("", value)}

    def value_of(path: tuple[str, ...], value: object) -> object:
        own = path in loads and (isinstance(value, (Path, Mapping)) or (isinstance(value, str) and value.endswith((".yaml", ".yml"))))
        return loads[path](value) if own else value

    def axis_of(axis: Axis) -> Axis:
        return Axis(axis.fields, tuple(tuple(value_of(one.path, value) for one, value in zip(axis.fields, row)) for row in axis.values))

    fixed = {name: value_of((name,), value) for name, value in sweep.fixed.items()}
    return Sweep(fixed, tuple(map(axis_of, sweep.kernel_axes)), tuple(map(axis_of, sweep.machine_axes)), sweep.dram_detail)
