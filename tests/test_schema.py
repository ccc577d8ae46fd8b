"""YAML mistakes name the file, the field, the value and the right name."""

import os
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pydantic
import pytest

from santa_sim.errors import InputError
from santa_sim.hardware import load_hardware
from santa_sim.models.layers import load_model
from santa_sim.schema import (
    Integer,
    Model,
    Real,
    TextOrInteger,
    TextOrReal,
    existing_file,
    find_yaml,
    read_yaml,
    shipped,
    validate,
)
from santa_sim.workload import load_workload


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
    ({"name": "a", "memories": {"hbm": {"hbm_bandwith": 1}}}, r"memories.hbm.hbm_bandwith: .*did you mean 'hbm_bandwidth'\?"),
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


class Cat(Model):
    kind: Literal["cat"]
    lives: Integer = 9


class Dog(Model):
    kind: Literal["dog"]
    tricks: Integer = 0


class Home(Model):
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@pytest.mark.parametrize("pet, message", [
    ({"kind": "cat", "lives": "many"}, "home: pet.lives = 'many'"),
    ({"kind": "cat", "live": 1}, r"home: pet.live: unknown key; did you mean 'lives'\?"),
    ({"kind": "cat", "trick": 1}, r"home: pet.trick: unknown key; did you mean 'pet.tricks'\?"),
    ({"kind": "cat", "cat": 1}, "home: pet.cat: unknown key; choose from kind, lives"),
    ({"kind": "cow"}, "home: pet = .*'cat', 'dog'"),
])  # fmt: skip
def test_the_choice_between_sections_is_not_in_the_place_of_a_mistake(pet, message):
    with pytest.raises(InputError, match=message):
        validate(Home, {"pet": pet}, "home")


class Numbers(Model):
    whole: Integer = 1
    real: Real = 1.0
    text_whole: TextOrInteger = 1
    text_real: TextOrReal = 1.0


@pytest.mark.parametrize(("field", "value"), [
    *[(field, value) for field in Numbers.model_fields for value in (True, np.False_, "many", "", None, [1], np.inf)],
    ("real", 10**400), ("text_real", 10**400),
    ("whole", "32"), ("whole", 32.0), ("real", "0.5"), ("text_whole", 0.5), ("text_whole", "1e400"),
    ("text_real", "nan"),
])  # fmt: skip
def test_what_is_no_number_is_refused(field, value):
    with pytest.raises(InputError, match=f"numbers: {field} = "):
        validate(Numbers, {field: value}, "numbers")


@pytest.mark.parametrize(("field", "value", "read"), [
    ("whole", np.int32(7), 7), ("real", np.float32(0.5), 0.5), ("real", 3, 3.0),
    ("text_whole", "1e9", 10**9), ("text_whole", 819.2e9, 819_200_000_000), ("text_real", "1e-9", 1e-9),
    ("text_real", "5", 5.0),
])  # fmt: skip
def test_what_is_a_number_is_read(field, value, read):
    number = getattr(validate(Numbers, {field: value}, "numbers"), field)
    assert (number, type(number)) == (read, type(read))


@pytest.mark.parametrize(("content", "message"), [
    ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "line 5: 'c' is given a second time; the first is in line 3"),
    ("a: 1\n'a': 2\n", "line 2: 'a' is given a second time"),
    ("{a: 1, a: 2}", "line 1: 'a' is given a second time"),
    ("a: " + "9" * 5000, "not readable as YAML"),
    ("a: 2020-13-45", "not readable as YAML"),
    ("[" * 600, "not readable as YAML"),
    ("a: !!python/object:os.system {}", "not readable as YAML"),
])  # fmt: skip
def test_yaml_that_means_nothing_certain_is_refused(tmp_path, content, message):
    (tmp_path / "m.yaml").write_text(content)
    with pytest.raises(InputError, match=message):
        read_yaml(tmp_path / "m.yaml")


def test_anchors_merges_and_numbers_without_a_dot_are_read(tmp_path):
    text = "b: {x: &a {<<: &c {k: 1, l: 2}, k: 3}}\nd: {<<: *a, k: 4}\ne: [1e9, -2E-3, +.5e1, 1_0e0]\n"
    (tmp_path / "m.yaml").write_text(text)
    assert read_yaml(tmp_path / "m.yaml") == {
        "b": {"x": {"k": 3, "l": 2}}, "d": {"k": 4, "l": 2}, "e": [1e9, -2e-3, 5.0, 10.0]
    }  # fmt: skip


def test_a_folder_is_no_file(tmp_path, monkeypatch):
    (tmp_path / "machines").mkdir()
    for name in (tmp_path, f"{tmp_path}/machines"):
        with pytest.raises(InputError, match="is a directory; write the path of a file in it"):
            find_yaml(name, "santa_sim.workloads", "workload")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="workload file 'machines' is a directory"):
        find_yaml("machines", "santa_sim.workloads", "workload")


@pytest.mark.parametrize("name", ["x/" + "y" * 5000 + ".yaml", "x" * 5000 + ".yaml", "a\0b.yaml"])
def test_paths_that_no_file_can_have(name):
    with pytest.raises(InputError, match="can't be read|does not exist"):
        find_yaml(name, "santa_sim.workloads", "workload")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "m.yaml"
    path.write_text("a: 1")

    def refuse(*_, **__):
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(InputError, match="m.yaml: can't be read: Permission denied"):
        read_yaml(path)
    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(InputError, match="workload file '.*m.yaml' can't be read: Permission denied"):
        existing_file(path, "workload file")


@pytest.mark.parametrize(("load", "what"), [(load_workload, "workload"), (load_model, "model"), (load_hardware, "hardware")])
def test_what_can_be_loaded_by_name_says_the_same_of_the_same_mistake(load, what, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("- heads: 3\n")
    for given, said in (
        (3, f"^{what}=3 is none of: a name, the path of a .yaml file, a mapping"),
        ({"name": "mine", "hedas": 3}, f"^{what} 'mine': .*hedas: unknown key"),
        ("lama", f"^{what} 'lama' is not shipped; "),
        (tmp_path / "yours.yaml", f"^{what} file '.*yours.yaml' does not exist"),
        (path, f"^{path}: a {what} file is a mapping of fields, not list"),
    ):
        with pytest.raises(InputError, match=said):
            load(given)
    os.utime(path, ns=(0, 1))
    path.write_text("hedas: 3\n")  # a changed file is read again
    with pytest.raises(InputError, match=f"^{path}: .*hedas: unknown key"):
        load(path)


def test_messages_of_our_own_checks_come_without_a_prefix():
    with pytest.raises(InputError, match=r"^numbers: whole = True: true and false are not numbers"):
        validate(Numbers, {"whole": True}, "numbers")


def test_a_value_is_shown_in_short():
    with pytest.raises(InputError) as error:
        validate(Numbers, {"whole": "x" * 10**6}, "numbers")
    assert len(str(error.value)) < 500
