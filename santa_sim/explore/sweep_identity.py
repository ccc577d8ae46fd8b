"""What the rows of a sweep depend on: its spec, what the spec's names and files contain, and the code that makes rows."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ..api import machine_for
from ..hardware_gpu import Gpu
from ..hardware_model import Hardware
from ..workload import load_workload

if TYPE_CHECKING:
    from .sweep_spec import Sweep

_FILES = (".yaml", ".yml", ".ini", ".npz")
_WORDS = {
    "version": "version of the package", "code": "its code or tables", "fixed": "fixed arguments", "dram_detail": "dram_detail",
    "axes": "what varies", "hardware": "contents of its machines", "workload": "contents of its workloads", "files": "contents of its files",
}  # fmt: skip


def identity(sweep: Sweep) -> str:
    """Everything that the rows depend on, as JSON."""
    axes = (*sweep.kernel_axes, *sweep.machine_axes)
    machines, workloads = {}, {}
    for where, named, load in (("hardware", machines, lambda value: machine_for("", value)), ("workload", workloads, load_workload)):
        values = [row[axis.fields.index(one)] for axis in axes for one in axis.fields if one.path == (where,) for row in axis.values]
        for value in values or [sweep.fixed.get(where)]:
            if value is not None:
                named[_text(value)] = load(value).model_dump(mode="json")
    facts = {
        "version": importlib.metadata.version("santa-sim"), "code": code_digest(), "fixed": dict(sweep.fixed), "dram_detail": sweep.dram_detail,
        "axes": [[[one.name for one in axis.fields], [list(row) for row in axis.values]] for axis in axes],
        "hardware": machines, "workload": workloads,
    }  # fmt: skip
    facts = json.loads(json.dumps(facts, default=_text))
    return json.dumps({**facts, "files": _digests(facts)}, sort_keys=True)


def fingerprint(identity: str) -> str:
    """Its short name."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


@functools.cache
def code_digest() -> str:
    """Short name of the code and tables that make rows: of two copies of the package with the same one, rows are the same."""
    package, tables = (Path(str(resources.files(name))) for name in ("santa_sim", "santa_sim.hwmodels"))
    code = [path for path in package.rglob("*.py") if "reproduce" not in path.parts and not path.name.endswith("command.py") and "cli" not in path.stem.split("_")]
    found = {str(path.relative_to(package)): path for path in code}
    found.update({str(path.relative_to(tables)): path for folder in ("dram", "energy", "technology") for path in (tables / folder).glob("*.yaml")})
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0".encode() + hashlib.sha256(found[name].read_bytes()).digest())
    return digest.hexdigest()[:16]


def differences(found: str, mine: str) -> str:
    """In words, in what two identities differ; '' if one of them can't be read."""
    try:
        one, other = json.loads(found), json.loads(mine)
        return ", ".join(word for name, word in _WORDS.items() if one.get(name) != other.get(name))
    except (ValueError, AttributeError):
        return ""


def _digests(value: object) -> dict[str, str]:
    """Contents of the files that some facts name, by name."""
    if isinstance(value, dict):
        return {name: digest for entry in value.values() for name, digest in _digests(entry).items()}
    if isinstance(value, list):
        return {name: digest for entry in value for name, digest in _digests(entry).items()}
    if isinstance(value, str) and value.endswith(_FILES) and Path(value).is_file():
        return {value: hashlib.sha256(Path(value).read_bytes()).hexdigest()[:16]}
    return {}


def _text(value: object) -> str:
    if isinstance(value, (Hardware, Gpu)) or hasattr(value, "model_dump"):
        return json.dumps(value.model_dump(mode="json"), sort_keys=True)
    return json.dumps(value, sort_keys=True, default=str)
