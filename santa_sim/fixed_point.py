"""Fixed point: Qm.n in int8 or int16, int32 accumulation that saturates, normalisation by arithmetic shift.

Rounding: to the storage grid, to nearest with ties to even; in the shift, half up (add half a step, shift right). Python's
`>>` on negative integers and NumPy's on signed arrays are both arithmetic, so a Python-integer reference is bit-exact.
"""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np

from .errors import InputError

BITS = {"int8": 8, "int16": 16}


@dataclasses.dataclass(frozen=True)
class QFormat:
    """Signed fixed point with a sign bit, `integer` integer bits and `fraction` fraction bits (either may be negative)."""

    integer: int
    fraction: int

    @property
    def bits(self) -> int:
        """Width in bits, the sign bit included."""
        return 1 + self.integer + self.fraction

    @property
    def step(self) -> float:
        """Value of one unit in the last place."""
        return 2.0**-self.fraction

    def __str__(self) -> str:
        return f"Q{self.integer}.{self.fraction}"


def parse_qformat(text: str, bits: int) -> QFormat:
    """'Q2.5' -> QFormat(2, 5).

    Raises
    ------
    InputError
        Not of the form Qm.n, or 1 + m + n isn't `bits`.
    """
    match = re.fullmatch(r"[Qq](-?\d+)\.(-?\d+)", str(text))
    if not match:
        raise InputError(f"value_format={text!r} is not of the form 'Qm.n', such as 'Q2.{bits - 3}'")
    found = QFormat(int(match[1]), int(match[2]))
    if found.bits != bits:
        raise InputError(f"value_format={text!r} has {found.bits} bits with its sign; int{bits} needs m + n = {bits - 1}")
    return found


def fitting_format(x: np.ndarray, bits: int) -> QFormat:
    """The finest format of `bits` bits in which no element of `x` saturates."""
    largest = float(np.max(np.abs(x))) if x.size else 0.0
    integer = math.frexp(largest)[1] if largest > 0 else 0  # largest < 2^integer
    if largest > 0 and round(largest * 2.0 ** (bits - 1 - integer)) > 2 ** (bits - 1) - 1:
        integer += 1
    return QFormat(integer, bits - 1 - integer)


def quantize(x: np.ndarray, form: QFormat, dtype: type) -> tuple[np.ndarray, int]:
    """Round to nearest (ties to even) and saturate.

    Returns
    -------
    integers of `dtype`, and how many elements saturated
    """
    top = 2 ** (form.bits - 1)
    scaled = np.rint(np.asarray(x, np.float64) * 2.0**form.fraction)
    saturated = int(np.count_nonzero((scaled > top - 1) | (scaled < -top)))
    return np.clip(scaled, -top, top - 1).astype(dtype), saturated


def shift_right_round(x: np.ndarray, shift: int) -> np.ndarray:
    """x / 2^shift by arithmetic shift, rounding half up: (x + 2^(shift - 1)) >> shift, in int64 so that it can't wrap."""
    wide = np.asarray(x, np.int64)
    return wide if shift == 0 else (wide + (1 << (shift - 1))) >> shift


def is_power_of_two(n: int) -> bool:
    """True for 1, 2, 4, 8, ..."""
    return n > 0 and n & (n - 1) == 0
