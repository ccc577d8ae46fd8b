"""Validated YAML: every file the package reads is a pydantic model, and a mistake in it names the field."""

from __future__ import annotations

import types
import typing
from importlib import resources
from pathlib import Path
from typing import TypeVar

import pydantic
import yaml

from .errors import InputError, suggestion


class Model(pydantic.BaseModel):
    """Frozen record read from YAML; a key it doesn't know is an error."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=Model)


def _models_in(annotation: object) -> list[type[Model]]:
    """The Model classes mentioned in a type annotation (Optional, unions, lists and dicts looked through)."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    if isinstance(annotation, types.GenericAlias) or typing.get_origin(annotation) is not None:
        return [model for part in typing.get_args(annotation) for model in _models_in(part)]
    return []


def _fields_at(model: type[Model], location: tuple) -> list[str]:
    """The field names allowed where an unknown key was found."""
    models = [model]
    for part in location:
        found = [m.model_fields[part] for m in models if part in m.model_fields]
        if found:
            models = [inner for field in found for inner in _models_in(field.annotation)]
    return sorted({name for m in models for name in m.model_fields})


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
            location = ".".join(str(part) for part in problem["loc"]) or "(top level)"
            if problem["type"] == "extra_forbidden":
                parent, key = problem["loc"][:-1], problem["loc"][-1]
                lines.append(f"{location}: unknown key{suggestion(key, _fields_at(model, parent))}")
            elif problem["type"] == "missing":
                lines.append(f"{location}: missing")
            else:
                lines.append(f"{location} = {problem['input']!r}: {problem['msg']}")
        raise InputError(f"{where}: " + "; ".join(lines)) from None


def shipped(package: str) -> dict[str, Path]:
    """{name: path} of the YAML files that ship in a data package, e.g. 'santa_sim.workloads'."""
    folder = Path(str(resources.files(package)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_yaml(name_or_path: str | Path, package: str, kind: str) -> Path:
    """Return the file of a shipped name, or of a path that ends in .yaml.

    Raises
    ------
    InputError
        The path doesn't exist, or the name isn't shipped (the nearest one is named).
    """
    text = str(name_or_path)
    names = shipped(package)
    if text in names:
        return names[text]
    if text.endswith((".yaml", ".yml")) or "/" in text:
        path = Path(text)
        if path.is_file():
            return path
        raise InputError(f"{kind} file {text!r} does not exist{suggestion(path.stem, names)}")
    raise InputError(f"{kind} {text!r} is not shipped{suggestion(text, names)}; or give the path of a .yaml file")


def read_yaml(path: Path) -> object:
    """Parse one YAML file; InputError with the line if it isn't YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable as YAML: {error}") from None
