"""Address mapping: bits where the string says, every address one place, and errors that name the field."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_sim.errors import InputError
from santa_sim.simulator.dram import load_dram, shipped_drams
from santa_sim.simulator.dram.mapping import parse_mapping

SIZES = {"ch": 4, "ra": 1, "bg": 4, "ba": 2, "ro": 16, "co": 32}


def test_fields_from_the_most_significant_down():
    mapping = parse_mapping("ro ba bg ch co", {}, SIZES, 64)
    address = ((((0b1010 * 2 + 1) * 4 + 2) * 4 + 3) * 32 + 17) * 64 + 5
    got = {name: int(v[0]) for name, v in mapping.decode(np.array([address])).items()}
    assert got == {"ch": 3, "ra": 0, "bg": 2, "ba": 1, "ro": 0b1010, "co": 17}


def test_twelve_letters_read_as_six_fields():
    addresses = np.arange(4 * 4 * 2 * 16 * 32) * 64
    short, long = parse_mapping("rorababgchco", {}, SIZES, 64), parse_mapping("ro ra ba bg ch co", {}, SIZES, 64)
    for name, values in long.decode(addresses).items():
        assert np.array_equal(values, short.decode(addresses)[name])


def test_split_column_interleaves_channels():
    mapping = parse_mapping("ro ba bg co ch co:2", {}, SIZES, 64)
    channels = mapping.decode(np.arange(16) * 64)["ch"]
    assert channels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert mapping.decode(np.array([16 * 64]))["co"].tolist() == [4]


def test_hash_is_an_exclusive_or():
    mapping = parse_mapping("ro ba bg ch co", {"bg0": ["ro0", "ro2"]}, SIZES, 64)
    row = 4 * 32 * 4 * 2 * 64
    assert mapping.decode(np.array([0, 1, 4, 5]) * row)["bg"].tolist() == [0, 1, 1, 0]


@settings(max_examples=40, deadline=None)
@given(st.permutations(["ro", "ba", "bg", "co", "ch", "co:2", "ro:1"]), st.booleans())
def test_every_address_has_its_own_place(order, hashed):
    hashing = {"bg0": ["ro0"], "bg1": ["ro3", "co1"], "ch0": ["ro1"]} if hashed else {}
    decoded = parse_mapping(" ".join(order), hashing, SIZES, 64).decode(np.arange(4 * 4 * 2 * 16 * 32) * 64)
    places = np.stack(list(decoded.values()), axis=1)
    assert len(np.unique(places, axis=0)) == len(places)
    assert all(decoded[name].max() == SIZES[name] - 1 for name in SIZES)


@pytest.mark.parametrize(
    ("text", "hashing", "match"),
    [
        ("ro ba bg ch", {}, "address_mapping.*doesn't cover the capacity.*'co' is missing"),
        ("ro ba:2 bg ch co", {}, "address_mapping.*'ba' has 2 bits for 2 banks, which take 1"),
        ("ro ba bg ch:1 co", {}, "address_mapping.*'ch' has 1 bits for 4 channels"),
        ("ro ba bg ch co co", {}, "address_mapping.*'co'"),
        ("ro ba bg ch col", {}, "address_mapping.*'col' is not one of"),
        ("ro ba bg ch co", {"bg2": ["ro0"]}, "address_hash: 'bg2' is beyond the 2 bits"),
        ("ro ba bg ch co", {"bg0": ["row0"]}, "address_hash: 'row0' is not a bit"),
        ("ro ba bg ch co", {"bg0": ["ba0"], "ba0": ["ro1"]}, "address_hash.*itself of a hashed field"),
    ],
)
def test_a_wrong_mapping_names_the_field(text, hashing, match):
    with pytest.raises(ValueError, match=match):
        parse_mapping(text, hashing, SIZES, 64)


def test_a_wrong_mapping_in_a_configuration_is_an_input_error():
    with pytest.raises(InputError, match="address_mapping"):
        load_dram("hbm3").replace(address_mapping="ro ba co bg co:3")


@pytest.mark.parametrize("name", shipped_drams())
def test_a_value_row_of_256_bytes_stays_in_one_page(name):
    config = load_dram(name)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, config.organization.capacity_bytes // 256, 500)
    decoded = config.mapping.decode(rows[:, None] * 256 + np.arange(0, 256, config.organization.burst_bytes))
    assert all((decoded[field] == decoded[field][:, :1]).all() for field in ("ch", "ra", "bg", "ba", "ro"))
