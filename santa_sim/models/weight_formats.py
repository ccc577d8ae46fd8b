"""How a model's weights are stored and multiplied: bytes of a row, types of operands and sums, what the scales cost."""

from __future__ import annotations

import dataclasses

from ..errors import choose


@dataclasses.dataclass(frozen=True)
class WeightFormat:
    """A storage format of weight matrices.

    Attributes
    ----------
    name : str
    bits : int  of a weight as stored
    operand, accumulator : str  number types of products and of sums
    multiplies : bool  False: weights are -1, 0 or 1 and activations are added, subtracted or left out
    activation_bytes : int  [B]  of an activation that comes in
    group : int or None  weights of a row that share a 16-bit scale; None: one scale a row, or a matrix where not `per_row`
    per_row : bool
    source : str
    """

    name: str
    bits: int
    operand: str
    accumulator: str
    multiplies: bool
    activation_bytes: int
    group: int | None
    per_row: bool
    source: str

    @property
    def scales_outputs(self) -> bool:
        """Sums are multiplied by a scale on their way out."""
        return self.activation_bytes == 1

    def groups(self, columns: int) -> int:
        """Scaled partial sums of a row; 0 where the scale applies to the whole of it, or there is none."""
        return -(-columns // self.group) if self.group else 0

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` weights with its scales [B]."""
        return -(-columns * self.bits // 8) + 2 * (self.groups(columns) or self.per_row)


FORMATS = {
    form.name: form
    for form in (
        WeightFormat("bf16", 16, "bf16", "fp32", True, 2, None, False, "the checkpoints' own type"),
        WeightFormat("int8", 8, "int8", "int32", True, 1, None, True,
                     "weights and activations in int8, a scale per row and per token: arXiv:2208.07339"),
        WeightFormat("int4", 4, "bf16", "fp32", True, 2, 128, False,
                     "weights alone in 4 bits, a scale per 128 of a row, products in 16 bits: arXiv:2306.00978"),
        WeightFormat("ternary", 2, "int8", "int32", False, 1, None, False,
                     "weights -1, 0, 1, four to a byte, one scale a matrix, activations in int8: arXiv:2504.12285"),
    )
}  # fmt: skip


def weight_format(name: str | WeightFormat, field: str = "weights") -> WeightFormat:
    """A format by its name, or one of your own; InputError names the nearest."""
    return name if isinstance(name, WeightFormat) else FORMATS[choose(field, name, FORMATS)]
