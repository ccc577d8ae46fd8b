"""Which kind of file some YAML is, by keys that only this kind has: for errors when a file of another kind is given."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from .errors import InputError


class Kind(NamedTuple):
    """A kind in words, its telltale keys, where a file of it belongs, and where those are that ship and may be a base."""

    name: str
    keys: frozenset[str]
    place: str
    folder: tuple[str, str] | None = None


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


# By the words that `read_fields` calls them.
KINDS = {
    "hardware": Kind("a machine", _keys("memory technology clock_hz kv_layout k_buffer v_buffer weights_buffer write_buffer softmax stash "
                                        "gather accumulate merge normalize multiprocessors latency_cycles l2"),
                     "give it as hardware (--hardware FILE)", ("santa_sim.hwmodels", "")),
    "workload": Kind("a workload", _keys("n_k model_layers dtype"), "give it as the workload (santa-sim run FILE)"),
    "model": Kind("a language model", _keys("hidden ffn vocab parameters tied_embeddings qkv_bias sub_norms"), "give it to decode-step"),
    "DRAM": Kind("a DRAM table", _keys("organization timing address_mapping address_hash policy refresh standard"),
                 "name it in a machine's file, memory: {dram: FILE}", ("santa_sim.hwmodels", "dram")),
    "energy table": Kind("an energy table", _keys("node_nm supply_v add_j mult_j add_area_m2 mult_area_m2 composed sram sram_access_bits "
                                                  "sram_area_m2_per_byte leakage_w_per_m2"),
                         "name it in a machine's file, energy: FILE", ("santa_sim.hwmodels", "energy")),
    "sweep": Kind("a sweep", _keys("grid points"), "give it to santa-sim sweep"),
}  # fmt: skip


def check_kind(data: Mapping, wanted: str, path: Path) -> None:
    """InputError if nothing in a file tells of the wanted kind, and something of another: its keys, or its base's."""
    wants = KINDS.get(wanted)
    if wants is None or _signs(data, wants):
        return
    found = {name: _signs(data, kind) for name, kind in KINDS.items()}
    likely = max(found, key=lambda name: len(found[name]))
    if found[likely]:
        kind = KINDS[likely]
        raise InputError(f"{path}: this is {kind.name} (it has {', '.join(found[likely][:3])}), not {wants.name}: {kind.place}")


def _signs(data: Mapping, kind: Kind) -> list[str]:
    """What tells that some fields are of a kind."""
    base = data.get("base")
    ships = isinstance(base, str) and kind.folder is not None and _ships(base, *kind.folder)
    return [f"base: {base}"] * ships + [str(key) for key in data if key in kind.keys]


def _ships(name: str, package: str, folder: str) -> bool:
    return "/" not in name and (Path(str(resources.files(package))) / folder / f"{name}.yaml").is_file()
