"""Validated YAML: every file the package reads is a pydantic model, and a mistake in it names the field."""

from __future__ import annotations

import copy
import difflib
import functools
import os
import re
import reprlib
import stat
import types
import typing
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import pydantic
import yaml

from .errors import InputError, choose, nearest, suggestion
from .file_kinds import check_kind


class Model(pydantic.BaseModel):
    """Frozen record read from YAML; a key it doesn't know is an error."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=Model)

# Numbers. Pydantic alone would take true for 1 and "32" for 32.

_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?")


def _plain(value: object) -> object:
    """NumPy's numbers as Python's; booleans are refused."""
    if isinstance(value, bool | np.bool_):
        raise ValueError("true and false are not numbers; write the number")
    return value.item() if isinstance(value, np.generic) else value


def _from_text(value: object) -> object:
    """Text that is a number, as 1e9 is to YAML readers that want a dot in it, becomes the number."""
    value = _plain(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    return value


def _whole_from_text(value: object) -> object:
    value = _from_text(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, pydantic.Strict(), pydantic.BeforeValidator(_plain)]
Real = Annotated[float, pydantic.Strict(), pydantic.BeforeValidator(_plain)]
# Also "1e9" and, for a whole number, 7.0.
TextOrInteger = Annotated[int, pydantic.Strict(), pydantic.BeforeValidator(_whole_from_text)]
TextOrReal = Annotated[float, pydantic.Strict(), pydantic.BeforeValidator(_from_text)]


def at_most(limit: float, reason: str) -> pydantic.AfterValidator:
    """An upper limit for an annotated number, with the reason that its message gives."""

    def check(value: float) -> float:
        if value > limit:
            raise ValueError(f"more than {limit:,} ({reason})" if limit >= 1 else f"more than {limit:g} ({reason})")
        return value

    return pydantic.AfterValidator(check)


# Messages

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 120
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 8


def shown(value: object) -> str:
    """repr of a value that may be anything, cut to a readable length."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python won't print integers of thousands of digits
        return "(a number too long to print)"


def _models_in(annotation: object, containers: bool = True) -> list[type[Model]]:
    """The Model classes mentioned in a type annotation (unions looked through, lists and dicts if wanted)."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    origin = typing.get_origin(annotation)
    if origin in (dict, list, tuple) and not containers:
        return []
    if isinstance(annotation, types.GenericAlias) or origin is not None:
        return [model for part in typing.get_args(annotation) for model in _models_in(part, containers)]
    return []


def _walk(model: type[Model], location: tuple) -> tuple[list[str], list[type[Model]]]:
    """What the user wrote of pydantic's location, which also has the tags of unions, and the models that it leads to."""
    models, written, may_be_tag = [model], [], False
    for place, part in enumerate(location):
        found = [m.model_fields[part] for m in models if part in m.model_fields]
        tagged = [m for m in models if any(typing.get_args(f.annotation) == (part,) for f in m.model_fields.values())]
        if found:
            models = [inner for field in found for inner in _models_in(field.annotation)]
        elif tagged and may_be_tag and place < len(location) - 1:
            models, may_be_tag = tagged, False
            continue
        written.append(str(part))
        may_be_tag = bool(found)
    return written, models


def _fields_at(model: type[Model], location: tuple) -> list[str]:
    """The field names allowed where an unknown key was found."""
    return sorted({name for m in _walk(model, (*location, ""))[1] for name in m.model_fields})


def _paths(model: type[Model], above: str = "") -> list[str]:
    """Every field of a model and of its sections, as 'memory.latency_s'."""
    paths = []
    for name, field in model.model_fields.items():
        sections = _models_in(field.annotation, containers=False)
        paths += [above + name] if not sections else []
        paths += [path for section in sections for path in _paths(section, f"{above}{name}.")]
    return list(dict.fromkeys(paths))


def _alike(key: str, path: str) -> float:
    """The share of a key's letters that stand in words which the path has too, typos allowed."""
    words = [word for word in re.split(r"[_\W]+", key.lower()) if len(word) > 2]
    known = re.split(r"[_\W]+", path.lower())
    found = sum(len(word) for word in words if difflib.get_close_matches(word, known, n=1, cutoff=0.8))
    return found / max(1, sum(map(len, words)))


def _meant(model: type[Model], parent: tuple, key: object) -> str:
    """What to write instead of an unknown key: a field beside it, else one in another section that shares words."""
    beside = _fields_at(model, parent)
    near = nearest(key, beside)
    if near is None and len(str(key)) <= 100:
        likeness = {path: _alike(str(key), path) for path in _paths(model)}
        best = max(likeness.values(), default=0.0)
        likely = [path for path, share in likeness.items() if share == best]
        if best >= 0.5 and len(likely) <= 4:
            return f"; did you mean {' or '.join(map(repr, likely))}?"
    return suggestion(key, beside)


def validate(model: type[M], data: object, where: str) -> M:
    """Build `model` from plain data.

    Raises
    ------
    InputError
        Names each bad field with its value and, for an unknown key, the nearest right one.
    """
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        lines = []
        for problem in error.errors():
            location = ".".join(_walk(model, problem["loc"])[0]) or "(top level)"
            if problem["type"] == "extra_forbidden":
                lines.append(f"{location}: unknown key{_meant(model, problem['loc'][:-1], problem['loc'][-1])}")
            elif problem["type"] == "missing":
                lines.append(f"{location}: missing")
            else:
                why = problem["ctx"]["error"] if problem["type"] == "value_error" else problem["msg"]
                if problem["type"] == "literal_error":
                    near = nearest(problem["input"], re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
                    why += f"; did you mean {near!r}?" if near else ""
                lines.append(f"{location} = {shown(problem['input'])}: {why}")
        raise InputError(f"{where}: " + "; ".join(lines)) from None


# Files


def shipped(package: str, folder: str = "") -> dict[str, Path]:
    """{name: path} of the YAML files that ship in a data package such as 'santa_sim.workloads', or in a folder of it."""
    return {path.stem: path for path in sorted((Path(str(resources.files(package))) / folder).glob("*.yaml"))}


def existing_file(path: Path, what: str, instead: str = "") -> Path:
    """Return `path` if a file is there; else an InputError that says what is wrong with it."""
    name = shown(str(path))
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{what} {name} does not exist{instead}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{what} {name} can't be read: {getattr(error, 'strerror', None) or error}{instead}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{what} {name} is a directory; write the path of a file in it")
    if not stat.S_ISREG(mode):
        raise InputError(f"{what} {name} is not a regular file")
    return path


def is_path(text: str) -> bool:
    """True for what can only be a path, not a shipped name."""
    return text.endswith((".yaml", ".yml")) or "/" in text or os.sep in text


def find_file(name_or_path: str | Path, names: Mapping[str, Path], kind: str, folder: Path | None = None) -> Path:
    """Return the file of a name in `names`, or of a path, relative to `folder` or the working directory.

    Raises
    ------
    InputError
        The name isn't shipped (the nearest one is named), or the path is no file or not readable.
    """
    text = str(name_or_path)
    if not text.strip():
        raise InputError(f"{kind}={text!r} is empty; write a .yaml file's path or one of {', '.join(sorted(names))}")
    if text in names:
        return names[text]
    path = (folder or Path()) / text
    if not is_path(text) and not _is_folder(path):
        hint = f"{suggestion(text, names)}; or give the path of a .yaml file"
        raise InputError(f"{kind} {shown(text)} is not shipped{hint}")
    return existing_file(path, f"{kind} file", suggestion(path.stem, names))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def find_yaml(name_or_path: str | Path, package: str, kind: str, folder: Path | None = None) -> Path:
    """Return the file of a name that ships in `package`, or of a path that ends in .yaml; see `find_file`."""
    return find_file(name_or_path, shipped(package), kind, folder)


def fields_of(given: object, what: str, names: Mapping[str, Path], record: str) -> tuple[dict, str, Path | None]:
    """What a name in `names`, the path of a .yaml file, or a mapping stands for: fields, what messages call them, the file or None.

    `what` and `record` are for messages: 'workload', and what else the caller takes, 'a Workload'. InputError: nothing of
    the kind, or as `find_file` and `read_yaml`.
    """
    if isinstance(given, Mapping):
        return dict(given), f"{what} {shown(given['name'])}" if "name" in given else what, None
    if not isinstance(given, (str, Path)):
        raise InputError(f"{what}={shown(given)} is none of: a name, the path of a .yaml file, a mapping of fields, {record}")
    path = find_file(given, names, what)
    return read_fields(path, what), str(path), path


def read_fields(path: Path, what: str) -> dict:
    """Parse a YAML file that is a mapping of fields, once as long as it doesn't change; InputError as `read_yaml`, or if it is none."""
    data = _read_again(path, path.stat().st_mtime_ns)
    if not isinstance(data, dict):
        raise InputError(f"{path}: a {what} file is a mapping of fields, not {type(data).__name__}")
    check_kind(data, what, path)
    return copy.deepcopy(data)


@functools.lru_cache(maxsize=32)
def _read_again(path: Path, _changed: int) -> object:
    return read_yaml(path)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with a key given twice an error, and 1e9 a number as in YAML 1.2."""

    def compose_mapping_node(self, anchor: object) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                again = f"{key.value!r} is given a second time; the first is in line {lines[name]}"
                raise yaml.YAMLError(f"line {line}: {again}")
            lines[name] = line
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$"), list("-+.0123456789")
)


def overlaid(below: Mapping, changes: Mapping) -> dict:
    """`changes` over `below`, mapping by mapping; lists and numbers are replaced."""
    merged = dict(below)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = overlaid(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged


Adapt = Callable[[dict, dict, Path, Path], dict]


def read_table(path: Path, names: Mapping[str, Path], what: str, adapt: Adapt | None = None, seen: tuple[Path, ...] = ()) -> dict:
    """Parse one YAML table; `base: NAME_OR_PATH` in it puts the fields of that table under its own.

    `names` are the shipped ones, paths are relative to the file, `what` is for messages. `adapt(below, own, base, path)`
    returns the base's fields as they go below the file's own.

    Raises
    ------
    InputError
        As `read_fields`; the base is none of `names` and no file; bases lead back to the table.
    """
    own = read_fields(path, what)
    if "base" not in own:
        return own
    seen = (*seen, path.resolve())
    try:
        base = _base_file(own.pop("base"), names, what, path.parent)
        if base.resolve() in seen:
            raise InputError(f"base={str(base)!r} leads back to itself")
        below = read_table(base, names, what, adapt, seen)
        if adapt is not None:
            below = adapt(below, own, base, path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return overlaid({**below, "name": path.stem} if "name" in below else below, own)


def _base_file(base: object, names: Mapping[str, Path], what: str, folder: Path) -> Path:
    if isinstance(base, str) and base not in names and is_path(base):
        return existing_file(folder / base, f"base {what} file", suggestion(Path(base).stem, names))
    return names[choose("base", base, sorted(names))]


def last_changes(path: Path) -> tuple[int, ...]:
    """When a table and the files that it starts from were last written [ns]; what can't be read counts as never."""
    times: list[int] = []
    while len(times) < 16:  # a ring of bases is an error elsewhere
        try:
            changed = path.stat().st_mtime_ns
            base = _read_again(path, changed).get("base")
        except (OSError, ValueError, AttributeError):
            return tuple(times)
        times.append(changed)
        if not (isinstance(base, str) and is_path(base)):
            break
        path = path.parent / base
    return tuple(times)


def read_yaml(path: Path) -> object:
    """Parse one YAML file; InputError, with the line, if it can't be read or isn't YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from None
    except RecursionError:
        raise InputError(f"{path}: not readable as YAML: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, a date that doesn't exist, endless digits
        raise InputError(f"{path}: not readable as YAML: {error}") from None
