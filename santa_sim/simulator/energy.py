"""Energy and area tables: what one operation, one SRAM access and one lane cost, at the node of a machine."""

from __future__ import annotations

import functools
import itertools
import math
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from ..errors import InputError, suggestion
from ..schema import Model, TextOrInteger, TextOrReal, at_most, find_file, read_table, read_yaml, shipped, validate

NumberType = Literal["fp32", "fp16", "bf16", "int8", "int16", "int32"]
Positive = Annotated[TextOrReal, pydantic.Field(gt=0)]
NonNegative = Annotated[TextOrReal, pydantic.Field(ge=0)]
# Limits that no machine comes near; what lies beyond them lacks its exponent.
Joules = Annotated[NonNegative, at_most(1e-6, "operations cost pJ, a DRAM activate about a nJ: 909 pJ are 909e-12 J")]
Watts = Annotated[NonNegative, at_most(1e5, "a memory draws some W")]
SquareMetres = Annotated[NonNegative, at_most(1e-3, "a chip has less; 4,184 um^2 are 4184e-12 m^2")]
Parts = Annotated[NonNegative, at_most(10**6, "an operation of so many parts is a program")]
COMPOSED = ("exp", "random_number", "compare", "floor", "shift")


class Technology(Model):
    """Node [nm] and supply voltage [V] of logic and SRAM, one for the machine."""

    node_nm: Positive
    supply_v: Positive


class SramPoint(Model):
    """One published SRAM: its size [bytes] and the energy of one access [J]."""

    bytes: Annotated[TextOrInteger, pydantic.Field(gt=0, lt=10**15)]
    access_j: Annotated[Joules, pydantic.Field(gt=0)]


class EnergyTable(Model):
    """Costs of scalar operations and SRAM accesses at one node; see hwmodels/energy/ for the sources.

    Attributes
    ----------
    add_j, mult_j : dict of number type to float  [J]
    add_area_m2, mult_area_m2 : dict of number type to float  [m^2]
    composed : dict of operation to {'add_<type>' or 'mult_<type>': count}
    sram : list of SramPoint, growing in size
    sram_area_m2_per_byte, leakage_w_per_m2 : float or None (unknown)
    notes : tuple of str
        What a reader of its results should know; load_energy adds one where entries of another node were scaled.
    """

    source: str
    node_nm: Positive
    supply_v: Positive
    add_j: dict[NumberType, Joules]
    mult_j: dict[NumberType, Joules]
    add_area_m2: dict[NumberType, SquareMetres]
    mult_area_m2: dict[NumberType, SquareMetres]
    composed: dict[Literal["exp", "random_number", "compare", "floor", "shift"], dict[str, Parts]]
    sram_access_bits: Annotated[TextOrInteger, pydantic.Field(gt=0), at_most(2**20, "an access is some words wide")]
    sram: Annotated[list[SramPoint], pydantic.Field(min_length=1)]
    sram_area_m2_per_byte: SquareMetres | None
    leakage_w_per_m2: Annotated[NonNegative, at_most(1e9, "1 kW/mm^2")] | None
    notes: tuple[str, ...] = ()

    @pydantic.model_validator(mode="after")
    def _complete(self) -> EnergyTable:
        for field in ("add_j", "mult_j", "add_area_m2", "mult_area_m2"):
            missing = sorted(set(NumberType.__args__) - set(getattr(self, field)))
            if missing:
                raise ValueError(f"{field} lacks {', '.join(missing)}")
        missing = sorted(set(COMPOSED) - set(self.composed))
        if missing:
            raise ValueError(f"composed lacks {', '.join(missing)}")
        known = [f"{kind}_{name}" for kind in ("add", "mult") for name in NumberType.__args__]
        for operation, parts in self.composed.items():
            for part in parts:
                if part not in known:
                    raise ValueError(f"composed.{operation} = {part!r} is not known{suggestion(part, known)}")
        sizes = [point.bytes for point in self.sram]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"sram sizes must grow, not {sizes}")
        return self

    def operation_j(self, operation: str) -> float:
        """Energy [J] of 'add_<type>', 'mult_<type>' or a composed operation such as 'exp'."""
        return self._sum(operation, self.add_j, self.mult_j)

    def operation_area_m2(self, operation: str) -> float:
        """Area [m^2] of a unit that starts one such operation every cycle (composed operations fully pipelined)."""
        return self._sum(operation, self.add_area_m2, self.mult_area_m2)

    def _sum(self, operation: str, adds: dict, mults: dict) -> float:
        if operation in self.composed:
            return math.fsum(n * self._sum(part, adds, mults) for part, n in self.composed[operation].items())
        kind, _, number_type = operation.partition("_")
        return (adds if kind == "add" else mults)[number_type]

    def sram_access_j(self, size_bytes: int) -> float:
        """Energy [J] of one access to an SRAM of `size_bytes`: log-log between the points, banks of the last beyond."""
        points = self.sram
        if size_bytes <= points[0].bytes:
            return points[0].access_j
        for low, high in itertools.pairwise(points):
            if size_bytes <= high.bytes:
                share = math.log(size_bytes / low.bytes) / math.log(high.bytes / low.bytes)
                return low.access_j * (high.access_j / low.access_j) ** share
        return points[-1].access_j

    def sram_j(self, size_bytes: int, moved_bytes: int) -> float:
        """Energy [J] of moving `moved_bytes` in or out of an SRAM of `size_bytes`, in accesses of the table's width."""
        return moved_bytes * 8 / self.sram_access_bits * self.sram_access_j(size_bytes)


class Scaling(Model):
    """Technology scaling: energy polynomials in the supply voltage and areas relative to 45 nm."""

    source: str
    energy_polynomial: dict[int, tuple[TextOrReal, TextOrReal, TextOrReal]]
    supply_v: dict[int, tuple[Positive, Positive]]
    area_from_45nm: dict[int, Positive]

    def energy_factor(self, from_nm: float, from_v: float, to_nm: float, to_v: float) -> float:
        """Energy of a circuit at (to_nm, to_v) over its energy at (from_nm, from_v): ratio of a2 V^2 + a1 V + a0.

        Raises
        ------
        InputError
            A node isn't in the table, or a voltage is outside the range in which its polynomial is used.
        """
        return self._switch(to_nm, to_v) / self._switch(from_nm, from_v)

    def area_factor(self, from_nm: float, to_nm: float) -> float:
        """Area of a circuit at to_nm over its area at from_nm; InputError if a node isn't in the table."""
        return self._at(self.area_from_45nm, to_nm) / self._at(self.area_from_45nm, from_nm)

    def _switch(self, node_nm: float, supply_v: float) -> float:
        a2, a1, a0 = self._at(self.energy_polynomial, node_nm)
        low, high = self._at(self.supply_v, node_nm)
        if not low <= supply_v <= high:
            raise InputError(
                f"supply_v={supply_v!r} can't be scaled at node_nm={node_nm:g}: write {low:g} ... {high:g} "
                "V, or an energy table of that node and voltage (hwmodels/technology says why)"
            )
        return (a2 * supply_v + a1) * supply_v + a0

    @staticmethod
    def _at(table: dict, node_nm: float):
        if node_nm not in table:
            nodes = ", ".join(map(str, sorted(table)))
            raise InputError(f"node_nm={node_nm!r} is not in the scaling table; choose from {nodes}")
        return table[node_nm]


@functools.lru_cache(maxsize=1)
def scaling() -> Scaling:
    """The shipped technology scaling table."""
    path = Path(str(resources.files("santa_sim.hwmodels"))) / "technology" / "stillmaker_baas_2017.yaml"
    return validate(Scaling, read_yaml(path), str(path))


def energy_tables() -> dict[str, Path]:
    """{name: path} of the energy tables that ship in hwmodels/energy/."""
    return shipped("santa_sim.hwmodels", "energy")


def load_energy(name_or_path: str | Path) -> EnergyTable:
    """Read an energy table by its shipped name or from a .yaml file, which may start from another with `base: NAME_OR_PATH`.

    Where such a file gives a node or voltage of its own, what it inherits is `scaled` to them from the base's, and a note
    of the table says so; what the file gives stands.

    Raises
    ------
    InputError
        The table isn't shipped (the nearest is named), the file doesn't exist, a field is wrong, or what it inherits
        can't be scaled to its node and voltage.
    """
    path = find_file(name_or_path, energy_tables(), "energy table")
    try:
        return validate(EnergyTable, read_table(path, energy_tables(), "energy table", _at_own_node), str(path))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from None


def _at_own_node(below: dict, own: dict, base: Path, path: Path) -> dict:
    """A base's fields at the node and voltage of the file above it, with a note on what that changed."""
    table = validate(EnergyTable, below, str(base))
    at = validate(Technology, {name: own.get(name, getattr(table, name)) for name in Technology.model_fields}, "energy table")
    kept = _inherited(table, own)
    if (at.node_nm, at.supply_v) == (table.node_nm, table.supply_v) or not kept:
        return below
    try:
        change = _change(table, at.node_nm, at.supply_v)
    except InputError as error:
        raise InputError(f"{error}; or give in the file what it takes from {base.stem}: {', '.join(kept)}") from None
    note = f"{path.name}: what it doesn't give ({', '.join(kept)}) is that of {base.stem}, scaled {change}"
    if table.leakage_w_per_m2 is not None and "leakage_w_per_m2" not in own:
        note += "; leakage has no factor and becomes unknown"
    moved = scaled(table, at.node_nm, at.supply_v)
    return moved.model_dump(mode="json") | {"notes": [*table.notes, note]}


def _inherited(table: EnergyTable, own: dict) -> list[str]:
    """The priced entries of a base, in words, that stay where `own` goes over it."""
    kept = []
    for field in ("add_j", "mult_j", "add_area_m2", "mult_area_m2"):
        given = own.get(field, {})
        left = [name for name in getattr(table, field) if name not in given] if isinstance(given, dict) else []
        kept += [field if not given else f"{field} of {' '.join(left)}"] if left else []
    kept += [field for field in ("sram", "sram_area_m2_per_byte") if field not in own and getattr(table, field) is not None]
    return kept


def _change(table: EnergyTable, node_nm: float, supply_v: float) -> str:
    energy = scaling().energy_factor(table.node_nm, table.supply_v, node_nm, supply_v)
    area = scaling().area_factor(table.node_nm, node_nm)
    return (
        f"from {table.node_nm:g} nm, {table.supply_v:g} V to {node_nm:g} nm, {supply_v:g} V: "
        f"energies x {energy:.3g}, areas x {area:.3g} ({scaling().source})"
    )


def scaling_note(table: EnergyTable, node_nm: float, supply_v: float) -> str | None:
    """What `scaled` does to a table, for the notes of a result; None where nothing changes."""
    if node_nm == table.node_nm and supply_v == table.supply_v:
        return None
    return f"logic and SRAM are scaled {_change(table, node_nm, supply_v)}; speed is not scaled"


def scaled(table: EnergyTable, node_nm: float, supply_v: float) -> EnergyTable:
    """The table moved to another node and voltage; itself where nothing changes.

    Energies scale by Stillmaker and Baas's polynomials, areas by their table (doi:10.1016/j.vlsi.2017.02.002); logic
    and SRAM by the same factors. Leakage has no factor there: it becomes unknown.
    """
    if node_nm == table.node_nm and supply_v == table.supply_v:
        return table
    energy = scaling().energy_factor(table.node_nm, table.supply_v, node_nm, supply_v)
    area = scaling().area_factor(table.node_nm, node_nm)
    sram_area = table.sram_area_m2_per_byte
    return table.model_copy(update={
        "source": f"{table.source}; scaled from {table.node_nm:g} nm, {table.supply_v:g} V to {node_nm:g} nm, "
        f"{supply_v:g} V by {scaling().source}",
        "node_nm": node_nm, "supply_v": supply_v,
        "add_j": {name: value * energy for name, value in table.add_j.items()},
        "mult_j": {name: value * energy for name, value in table.mult_j.items()},
        "add_area_m2": {name: value * area for name, value in table.add_area_m2.items()},
        "mult_area_m2": {name: value * area for name, value in table.mult_area_m2.items()},
        "sram": [point.model_copy(update={"access_j": point.access_j * energy}) for point in table.sram],
        "sram_area_m2_per_byte": None if sram_area is None else sram_area * area,
        "leakage_w_per_m2": None,
    })  # fmt: skip
