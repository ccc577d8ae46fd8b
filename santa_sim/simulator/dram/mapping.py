"""Address mapping: which bits of a burst's number select channel, rank, bank group, bank, row and column.

A mapping is written from the most significant field down, above the offset within a burst: `ro ra ba bg co ch`. A field
may be split, with a width on all of its parts but one: `ro ba bg co ch co:2` leaves two column bits below the channel,
so that consecutive groups of four bursts go to different channels. Hashing comes on top: `{bg0: [ro0, ro4]}` makes bit
0 of the bank group the XOR of itself and of bits 0 and 4 of the row. Twelve letters without blanks, as DRAMsim3 writes
them (`rochrababgco`), mean the same as with blanks.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

FIELDS = ("ch", "ra", "bg", "ba", "ro", "co")
NAMES = {"ch": "channel", "ra": "rank", "bg": "bank group", "ba": "bank", "ro": "row", "co": "column"}


@dataclasses.dataclass(frozen=True)
class Mapping:
    """A decoded mapping.

    Attributes
    ----------
    pieces : int64 [n, 4]: bit in the burst number, width, field (position in `FIELDS`), bit in the field
    hashing : int64 [n, 4]: field, bit, source field, source bit
    burst_shift : bits of the offset within a burst
    """

    pieces: np.ndarray
    hashing: np.ndarray
    burst_shift: int

    def decode(self, addresses: np.ndarray) -> dict[str, np.ndarray]:
        """Field values of byte addresses, by field name."""
        burst = np.asarray(addresses, np.int64) >> self.burst_shift
        out = {name: np.zeros(burst.shape, np.int64) for name in FIELDS}
        for bit, width, field, low in self.pieces:
            out[FIELDS[field]] |= ((burst >> bit) & ((1 << int(width)) - 1)) << low
        for field, bit, source, source_bit in self.hashing:
            out[FIELDS[field]] ^= ((out[FIELDS[source]] >> source_bit) & 1) << bit
        return out


def parse_mapping(text: str, hashing: dict[str, list[str]], sizes: dict[str, int], burst_bytes: int) -> Mapping:
    """Read a mapping string for a memory with `sizes` of each field.

    Raises
    ------
    ValueError
        A field is unknown or missing, or its bits don't cover what it selects; names `address_mapping` or
        `address_hash`.
    """
    if re.fullmatch(r"([a-z]{2}){6}", text):
        text = " ".join(text[i : i + 2] for i in range(0, 12, 2))
    parts: list[tuple[str, int | None]] = []
    for token in text.split():
        match = re.fullmatch(r"([a-z]{2})(?::(\d+))?", token)
        if not match or match[1] not in FIELDS:
            raise ValueError(
                f"address_mapping = {text!r}: {token!r} is not one of {', '.join(FIELDS)}, with ':bits' or without"
            )
        parts.append((match[1], int(match[2]) if match[2] is not None else None))
    widths = {name: sizes[name].bit_length() - 1 for name in FIELDS}
    open_width = {}
    for name in FIELDS:
        given = [width for part, width in parts if part == name]
        if not given and widths[name]:
            raise ValueError(
                f"address_mapping = {text!r} doesn't cover the capacity: {name!r} is missing, "
                f"it selects {sizes[name]} {NAMES[name]}s"
            )
        stated = sum(width for width in given if width is not None)
        if given.count(None) > 1 or (None not in given and given and stated != widths[name]) or stated > widths[name]:
            raise ValueError(
                f"address_mapping = {text!r} doesn't cover the capacity: {name!r} has {stated} bits for "
                f"{sizes[name]} {NAMES[name]}s, which take {widths[name]} (leave the width off one of its parts)"
            )
        open_width[name] = widths[name] - stated
    pieces, bit, low = [], 0, dict.fromkeys(FIELDS, 0)
    for name, width in reversed(parts):
        width = open_width[name] if width is None else width
        if width:
            pieces.append((bit, width, FIELDS.index(name), low[name]))
        bit += width
        low[name] += width
    rules = []
    for target, sources in hashing.items():
        field, target_bit = _bit(target, widths)
        for source in sources:
            source_field, source_bit = _bit(source, widths)
            if any(_bit(other, widths)[0] == source_field for other in hashing):
                raise ValueError(
                    f"address_hash[{target!r}] = {sources}: {source!r} is itself of a hashed field, "
                    "so addresses could collide"
                )
            rules.append((field, target_bit, source_field, source_bit))
    return Mapping(
        np.array(pieces, np.int64).reshape(-1, 4),
        np.array(rules, np.int64).reshape(-1, 4),
        burst_bytes.bit_length() - 1,
    )


def _bit(text: str, widths: dict[str, int]) -> tuple[int, int]:
    match = re.fullmatch(r"([a-z]{2})(\d+)", str(text))
    if not match or match[1] not in FIELDS:
        raise ValueError(f"address_hash: {text!r} is not a bit such as 'bg0' or 'ro3'")
    if int(match[2]) >= widths[match[1]]:
        raise ValueError(f"address_hash: {text!r} is beyond the {widths[match[1]]} bits of {match[1]!r}")
    return FIELDS.index(match[1]), int(match[2])
