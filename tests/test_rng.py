"""Philox 4x32-10 against its authors' known answers, and the numbers made of it."""

import numpy as np
import pytest

from santa_sim import rng

ONES = 0xFFFFFFFF


@pytest.mark.parametrize("counter, key, answer", [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])  # fmt: skip
def test_known_answers(counter, key, answer):
    """Known-answer test vectors of the Random123 library for philox4x32, 10 rounds."""
    assert tuple(int(word) for word in rng.philox(*map(np.uint64, counter), *map(np.uint64, key))) == answer


def test_uniforms_are_the_top_24_bits_of_their_counter():
    heads, positions = np.array([3, 70]), np.array([0, 9])
    seed = (5 << 32) | 7
    for word in (rng.VALUE_WORD, rng.SCORE_WORD):
        found = rng.uniforms(seed, 2, heads, positions, 4, word)
        for r in range(2):
            for j in range(4):
                words = rng.philox(*map(np.uint64, (2, heads[r], positions[r], j, 7, 5)))
                assert found[r, j] == (int(words[word]) >> 8) / 2**24


def test_more_numbers_extend_fewer():
    heads, positions = np.arange(4), np.zeros(4, int)
    assert (rng.uniforms(1, 0, heads, positions, 9, 0)[:, :5] == rng.uniforms(1, 0, heads, positions, 5, 0)).all()


@pytest.mark.parametrize("change", ["seed", "sequence", "head", "position", "word"])
def test_every_part_of_the_counter_matters(change):
    plain = {"seed": 1, "sequence": 0, "heads": np.array([0]), "positions": np.array([0]), "count": 8, "word": 0}
    changed = plain | {"seed": {"seed": 1 + 2**40}, "sequence": {"sequence": 1}, "head": {"heads": np.array([1])},
                       "position": {"positions": np.array([1])}, "word": {"word": 1}}[change]  # fmt: skip
    assert not (rng.uniforms(**plain) == rng.uniforms(**changed)).any()


def test_the_numbers_are_uniform():
    """Chi-square of 2^18 numbers in 256 cells: 255 degrees of freedom, below 385 but for a chance of 3e-7."""
    numbers = rng.uniforms(0, 0, np.arange(64), np.zeros(64, int), 4096, 0)
    assert numbers.min() >= 0 and numbers.max() < 1
    cells = np.bincount((numbers * 256).astype(int).ravel(), minlength=256)
    assert ((cells - 1024) ** 2 / 1024).sum() < 385
