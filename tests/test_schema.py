"""YAML mistakes name the file, the field, the value and the right name."""

from typing import Literal

import pytest

from santa_sim.errors import InputError
from santa_sim.schema import Model, find_yaml, read_yaml, shipped, validate


class Memory(Model):
    hbm_bandwidth: float
    channels: int = 1


class Machine(Model):
    name: str
    kind: Literal["mac", "adder"] = "mac"
    memories: dict[str, Memory] | None = None
    extra: Memory | None = None


def test_a_valid_file_becomes_a_frozen_record():
    machine = validate(Machine, {"name": "a", "memories": {"hbm": {"hbm_bandwidth": 1.5}}}, "m.yaml")
    assert machine.memories["hbm"].hbm_bandwidth == 1.5
    with pytest.raises(Exception, match="frozen"):
        machine.name = "b"


@pytest.mark.parametrize("data, message", [
    ({"name": "a", "kinds": "mac"}, r"m.yaml: kinds: unknown key; did you mean 'kind'\?"),
    ({"name": "a", "memories": {"hbm": {"hbm_bandwith": 1}}}, r"memories.hbm.hbm_bandwith: unknown key; did you mean 'hbm_bandwidth'\?"),
    ({"name": "a", "extra": {"hbm_bandwidth": 1, "chanels": 2}}, r"extra.chanels: unknown key; did you mean 'channels'\?"),
    ({"name": "a", "kind": "macc"}, "kind = 'macc'"),
    ({"kind": "mac"}, "name: missing"),
    ({"name": "a", "extra": {"hbm_bandwidth": "fast"}}, "extra.hbm_bandwidth = 'fast'"),
    ({"name": "a", "extra": {"hbm_bandwidth": float("inf")}}, "extra.hbm_bandwidth = inf"),
    (["name"], "top level"),
    (None, "top level"),
])  # fmt: skip
def test_mistakes_are_named(data, message):
    with pytest.raises(InputError, match=message):
        validate(Machine, data, "m.yaml")


def test_all_mistakes_come_at_once():
    with pytest.raises(InputError) as error:
        validate(Machine, {"kind": 3, "other": 1}, "m.yaml")
    assert all(part in str(error.value) for part in ("name: missing", "kind = 3", "other: unknown key"))


def test_shipped_files_are_found_by_name_and_by_path():
    names = shipped("santa_sim.workloads")
    assert find_yaml("llama8b_decode_32k", "santa_sim.workloads", "workload") == names["llama8b_decode_32k"]
    assert find_yaml(names["llama8b_decode_32k"], "santa_sim.workloads", "workload") == names["llama8b_decode_32k"]


@pytest.mark.parametrize("name, message", [
    ("llama8b_decode_32", r"workload 'llama8b_decode_32' is not shipped; did you mean 'llama8b_decode_32k'\?"),
    ("none/such.yaml", "workload file 'none/such.yaml' does not exist"),
    ("llama8b_decode_32.yaml", r"file 'llama8b_decode_32.yaml' does not exist; did you mean 'llama8b_decode_32k'\?"),
])  # fmt: skip
def test_what_is_not_there_is_named(name, message):
    with pytest.raises(InputError, match=message):
        find_yaml(name, "santa_sim.workloads", "workload")


@pytest.mark.parametrize("content", [b"a: [1, 2", b"\xff\xfe\x00broken"])
def test_what_is_not_yaml_says_so(tmp_path, content):
    path = tmp_path / "m.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match="m.yaml: not readable as YAML"):
        read_yaml(path)
