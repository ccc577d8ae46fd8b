"""A DRAM, described: organisation, timing in memory clocks, address mapping, scheduling policy, energy.

`load_dram` reads one from a shipped YAML table, from a YAML file, or from a DRAMsim3 configuration file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ... import schema
from ...errors import InputError
from .mapping import Mapping, parse_mapping

Count = Annotated[schema.Integer, Field(ge=1)]
Clocks = Annotated[schema.Integer, Field(ge=0)]
# Limits that no memory comes near; what lies beyond them is in another unit than the field's.
Milliamperes = Annotated[schema.Real, Field(ge=0), schema.at_most(1e6, "a device draws some hundred mA")]
PicojoulesPerBit = Annotated[schema.Real, Field(ge=0), schema.at_most(1000, "memories take some pJ a bit; 3.48e-12 J are 3.48")]
Picojoules = Annotated[schema.Real, Field(ge=0), schema.at_most(1e9, "an activate costs about 1,000 pJ, a refresh some 100,000")]
Watts = Annotated[schema.Real, Field(ge=0), schema.at_most(1e4, "a rank draws some W")]
Buses = Annotated[Count, schema.at_most(1024, "a memory of more channels is several memories")]


# Transfers that a data pin makes in one clock of the command clock. GDDR6: 8 by JESD250, 16 as DRAMsim3 counts; LPDDR5:
# a data clock of four or two times the command clock. Rates of standards that are not here are the table's own.
TRANSFERS_A_CLOCK = {
    "DDR3": (2,), "DDR4": (2,), "DDR5": (2,), "LPDDR3": (2,), "LPDDR4": (2,), "LPDDR5": (8, 4), "LPDDR5X": (8, 4),
    "HBM": (2,), "HBM2": (2,), "HBM2E": (2,), "HBM3": (4,), "GDDR5": (4,), "GDDR5X": (8,), "GDDR6": (8, 16),
}  # fmt: skip
PIN_BITS_PER_S = (50e6, 50e9)  # the slowest SDRAM and the fastest GDDR7 lie between


class Organization(schema.Model):
    """Counts of everything. One channel (or pseudo-channel) has its own data bus, banks, queues and scheduler."""

    stacks: Buses = 1
    channels: Buses  # of one stack, or of the board
    pseudo_channels: Literal[1, 2] = 1  # 2: pairs of channels that share one command bus
    ranks: Count = 1
    bank_groups: Count
    banks_per_group: Count
    rows: Count
    page_bytes: Count  # of one bank of one rank, over the whole data bus of its (pseudo-)channel
    bus_bits: Count  # of one (pseudo-)channel
    burst_length: Count
    devices_per_rank: Count = 1
    command_buses: Literal[1, 2] = 1  # 2: a row and a column command can go out in the same clock (HBM)

    @property
    def burst_bytes(self) -> int:
        """Bytes that one column command moves."""
        return self.bus_bits // 8 * self.burst_length

    @property
    def buses(self) -> int:
        """Independent data buses: stacks x channels x pseudo-channels."""
        return self.stacks * self.channels * self.pseudo_channels

    @property
    def banks_per_rank(self) -> int:
        """Banks of one rank of one (pseudo-)channel."""
        return self.bank_groups * self.banks_per_group

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the whole memory."""
        return self.buses * self.ranks * self.banks_per_rank * self.rows * self.page_bytes

    @property
    def field_sizes(self) -> dict[str, int]:
        """How many of each thing the address selects: ch, ra, bg, ba, ro, co (bursts of a page)."""
        return {
            "ch": self.buses, "ra": self.ranks, "bg": self.bank_groups, "ba": self.banks_per_group, "ro": self.rows,
            "co": self.page_bytes // self.burst_bytes,
        }  # fmt: skip


class Timing(schema.Model):
    """Constraints in clocks of the command clock (n...), which lasts `clock_fs` femtoseconds."""

    clock_fs: Count
    nBL: Count  # clocks that one burst occupies the data bus
    nCL: Clocks
    nCWL: Clocks
    nAL: Clocks = 0  # additive latency
    nRCD_read: Count
    nRCD_write: Count
    nRP: Count
    nRAS: Count
    nCCD_S: Clocks
    nCCD_L: Clocks
    nCCD_L_write: Clocks | None = None  # write to write in one bank group, where it is longer than nCCD_L
    nRRD_S: Clocks
    nRRD_L: Clocks
    nFAW: Clocks
    n32AW: Clocks | None = None  # window of thirty-two activates (GDDR5)
    nRTP: Clocks
    nWR: Clocks
    nWTR_S: Clocks
    nWTR_L: Clocks
    nRTRS: Clocks  # idle clocks of the data bus when its driver changes: between ranks, and from reads to writes
    nRTW: Clocks | None = None  # read to write of one rank; None: from nRTRS and the latencies
    nPPD: Clocks = 0  # precharge to precharge of another bank
    nRFC: Clocks = 0  # all-bank refresh
    nRFC_bank: Clocks | None = None  # per-bank refresh
    nREFI: Count | None = None  # between all-bank refreshes of one rank
    nREFI_bank: Count | None = None  # between per-bank refreshes of one channel
    nREFB_to_REFB: Clocks | None = None  # per-bank refresh to one of another bank
    nREFB_to_ACT: Clocks | None = None  # per-bank refresh to an activate of another bank

    @property
    def read_delay(self) -> int:
        """Clocks from a read command to the end of its data."""
        return self.nAL + self.nCL + self.nBL

    @property
    def access_fs(self) -> int:
        """An access that nothing is before, from the activate to the last of its data  [fs]."""
        return (self.nRCD_read + self.read_delay) * self.clock_fs

    @property
    def write_delay(self) -> int:
        """Clocks from a write command to the end of its data."""
        return self.nAL + self.nCWL + self.nBL


class Textbook(schema.Model):
    """FR-FCFS over all queued requests: column commands before row commands, oldest first; see `core`."""

    name: Literal["textbook"]
    page: Literal["open", "closed"] = "open"
    read_queue: Count = 64
    write_queue: Count = 64
    write_high: Count = 48  # writes held at which the channel turns to writing
    write_low: Clocks = 16  # writes held at which it turns back, if a read waits
    row_hit_cap: Count = 16  # columns that an open row serves while an older request waits for another row


class Dramsim3(schema.Model):
    """What DRAMsim3's controller does (commit 2981759), with its constants as defaults; see `core`."""

    name: Literal["dramsim3"]
    page: Literal["open", "closed"] = "open"
    read_queue: Count = 32
    write_queue: Count = 32
    unified_queue: bool = False
    bank_queue: Count = 8
    queue_per: Literal["bank", "rank"] = "bank"
    drain_above: Clocks = 8  # writes drain above this many when the command queues are empty
    row_hit_cap: Count = 4
    # Its constraint tables depend on the protocol: precharge to precharge only where this is set (GDDR, LPDDR4).
    precharge_spacing: bool = False


class Refresh(schema.Model):
    """all-bank: ranks take turns, nREFI / ranks apart. per-bank: one bank at a time, bank group first.

    first-rank: only the first rank is refreshed, every nREFI (what DRAMsim3's RANK_LEVEL_SIMULTANEOUS comes to).
    """

    kind: Literal["all-bank", "per-bank", "first-rank", "none"]


class Currents(schema.Model):
    """Supply voltage and data-sheet currents of one device; energies follow as in Micron TN-40-07."""

    kind: Literal["currents"]
    vdd_v: Annotated[schema.Real, Field(gt=0), schema.at_most(100, "volts; no memory is supplied with that much")]
    idd0_ma: Milliamperes
    idd2n_ma: Milliamperes
    idd3n_ma: Milliamperes
    idd4r_ma: Milliamperes
    idd4w_ma: Milliamperes
    idd5ab_ma: Milliamperes
    idd5pb_ma: Milliamperes | None = None


class Published(schema.Model):
    """Energies as published; null where nobody published one: then it is not charged, and the report says so."""

    kind: Literal["published"]
    activate_pj: Picojoules | None  # one activate and precharge of one bank
    read_pj_per_bit: PicojoulesPerBit | None
    write_pj_per_bit: PicojoulesPerBit | None
    refresh_pj: Picojoules | None  # one refresh command
    active_w: Watts | None  # standby of one rank of one (pseudo-)channel with a row open
    idle_w: Watts | None  # with none open


class DramConfig(schema.Model):
    """Everything that `Dram` needs to know about a memory."""

    name: str
    standard: str
    description: str = ""
    organization: Organization
    timing: Timing
    address_mapping: str
    address_hash: dict[str, list[str]] = {}
    policy: Annotated[Textbook | Dramsim3, Field(discriminator="name")]
    refresh: Refresh
    energy: Annotated[Currents | Published, Field(discriminator="kind")]
    notes: list[str] = []

    @property
    def mapping(self) -> Mapping:
        """The address mapping, decoded."""
        o = self.organization
        return parse_mapping(self.address_mapping, self.address_hash, o.field_sizes, o.burst_bytes)

    @property
    def peak_bytes_per_s(self) -> float:
        """Bandwidth with every data bus busy all the time  [B/s]."""
        o, t = self.organization, self.timing
        return o.buses * o.burst_bytes * 1e15 / (t.nBL * t.clock_fs)

    def replace(self, **changes: object) -> DramConfig:
        """A copy with some fields changed and everything checked again; sections merge: `organization={"stacks": 4}`.

        Raises
        ------
        InputError
            A field is unknown or the result isn't valid.
        """
        data = self.model_dump()
        for name, value in changes.items():
            if isinstance(value, schema.Model):
                value = value.model_dump()
            keep = name in ("organization", "timing", "refresh") or (
                name in ("policy", "energy")
                and isinstance(value, dict)
                and value.get("name", data[name].get("name")) == data[name].get("name")
                and value.get("kind", data[name].get("kind")) == data[name].get("kind")
            )
            data[name] = data[name] | value if keep and isinstance(value, dict) else value
        return checked(data, self.name)


def checked(data: object, where: str) -> DramConfig:
    """A configuration from plain data, with its values checked against each other.

    Raises
    ------
    InputError
        Names each wrong field, with `where` in front.
    """
    config = schema.validate(DramConfig, data, where)
    _check(config, where)
    return config


def _check(config: DramConfig, where: str) -> None:
    for check in (_check_counts, _check_rate, _check_timing, _check_refresh, _check_policy, _check_energy):
        check(config, where)
    try:
        config.mapping  # noqa: B018  parsed for its errors
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def _check_energy(config: DramConfig, where: str) -> None:
    """InputError if the currents make a command give energy back."""
    from .energy import command_energy

    for name, value in vars(command_energy(config)).items():
        if value is not None and value < 0:
            raise InputError(f"{where}: energy: the currents make {name} = {value:.3g} J; an operating current lies above its standby current")


def _check_counts(config: DramConfig, where: str) -> None:
    o = config.organization
    for name in (
        "stacks",
        "channels",
        "ranks",
        "bank_groups",
        "banks_per_group",
        "rows",
        "page_bytes",
        "bus_bits",
        "burst_length",
    ):
        value = getattr(o, name)
        if value & (value - 1):
            raise InputError(
                f"{where}: organization.{name} = {value} is not a power of two: address bits can't select it"
            )
    if o.bus_bits < 8:
        raise InputError(f"{where}: organization.bus_bits = {o.bus_bits} is less than a byte")
    if o.page_bytes < o.burst_bytes:
        raise InputError(
            f"{where}: organization.page_bytes = {o.page_bytes} is less than one burst of {o.burst_bytes} bytes"
        )


def _check_rate(config: DramConfig, where: str) -> None:
    """InputError if the pins are faster or slower than any, or a burst doesn't take the clocks that its transfers take."""
    o, t = config.organization, config.timing
    per_clock = TRANSFERS_A_CLOCK.get(config.standard.upper())
    if per_clock and all(t.nBL * rate != o.burst_length for rate in per_clock):
        clocks = " or ".join(f"{o.burst_length / rate:g}" for rate in per_clock)
        raise InputError(
            f"{where}: timing.nBL = {t.nBL} clocks don't fit organization.burst_length = {o.burst_length}: {config.standard} makes "
            f"{' or '.join(map(str, per_clock))} transfers a clock, so that a burst takes {clocks}"
        )
    rate = o.burst_length * 1e15 / (t.nBL * t.clock_fs)
    low, high = PIN_BITS_PER_S
    if not low <= rate <= high:
        raise InputError(
            f"{where}: timing.clock_fs = {t.clock_fs:,} makes {rate / 1e9:,.4g} Gb/s a pin ({o.burst_length} transfers in {t.nBL} clocks); "
            f"memories lie between {low / 1e9:g} and {high / 1e9:g}. It is in femtoseconds: 1250000 for 1.25 ns"
        )


def _check_timing(config: DramConfig, where: str) -> None:
    t = config.timing
    if t.nRAS < t.nRCD_read:
        raise InputError(
            f"{where}: timing.nRAS = {t.nRAS} (tRAS) is below timing.nRCD_read = {t.nRCD_read} (tRCD): "
            "a row would close before it can be read"
        )
    if t.nRRD_L > t.nRAS + t.nRP:
        raise InputError(f"{where}: timing.nRRD_L = {t.nRRD_L} (tRRD_L) is above tRC = nRAS + nRP = {t.nRAS + t.nRP}")
    if config.organization.bank_groups > 1 and config.policy.name == "textbook":
        for short, long in (("nCCD_S", "nCCD_L"), ("nWTR_S", "nWTR_L"), ("nRRD_S", "nRRD_L")):
            if getattr(t, short) > getattr(t, long):
                raise InputError(
                    f"{where}: timing.{short} = {getattr(t, short)} is above timing.{long} = {getattr(t, long)}"
                )


def _check_refresh(config: DramConfig, where: str) -> None:
    t, o, kind = config.timing, config.organization, config.refresh.kind
    needs = {"all-bank": ("nREFI",), "first-rank": ("nREFI",), "per-bank": ("nREFI_bank", "nRFC_bank"), "none": ()}
    for name in needs[kind]:
        if getattr(t, name) is None:
            raise InputError(f"{where}: timing.{name} is missing: refresh.kind = {kind!r} needs it")
    if kind in ("all-bank", "first-rank") and t.nREFI <= t.nRFC:
        raise InputError(
            f"{where}: timing.nREFI = {t.nREFI} (tREFI) must be above nRFC = {t.nRFC} (tRFC): "
            "nothing else would ever run"
        )
    if kind == "all-bank" and t.nREFI < o.ranks:
        raise InputError(f"{where}: timing.nREFI = {t.nREFI} is less than one clock for each of {o.ranks} ranks")
    if (
        kind == "per-bank"
        and config.policy.name == "textbook"
        and t.nREFI_bank <= t.nRFC_bank / (o.banks_per_rank * o.ranks)
    ):
        raise InputError(
            f"{where}: timing.nREFI_bank = {t.nREFI_bank} leaves no time beside timing.nRFC_bank = {t.nRFC_bank}"
        )


def _check_policy(config: DramConfig, where: str) -> None:
    p = config.policy
    if p.name == "textbook" and not p.write_low < p.write_high <= p.write_queue:
        raise InputError(
            f"{where}: policy.write_low = {p.write_low}, policy.write_high = {p.write_high}, "
            f"policy.write_queue = {p.write_queue}: they must rise, write_low < write_high <= write_queue"
        )


def load_dram(name_or_path: str | Path | DramConfig) -> DramConfig:
    """Read a memory: the name of a shipped table ('ddr4_3200'), a .yaml file, or a DRAMsim3 .ini file.

    A .yaml file may start from another table with `base: NAME_OR_PATH` and give only what differs.

    Raises
    ------
    InputError
        It doesn't exist (the nearest name is given), or a field of it is wrong.
    """
    from .ini import read_ini

    if isinstance(name_or_path, DramConfig):
        _check(name_or_path, name_or_path.name)
        return name_or_path
    if str(name_or_path).endswith(".ini"):
        path = Path(name_or_path)
        if not path.is_file():
            raise InputError(f"DRAM configuration {str(path)!r} does not exist")
        return read_ini(path)
    path = schema.find_yaml(name_or_path, "santa_sim.hwmodels.dram", "DRAM")
    return checked(schema.read_table(path, schema.shipped("santa_sim.hwmodels.dram"), "DRAM"), path.name)


def shipped_drams() -> list[str]:
    """Names of the DRAM tables that come with the package."""
    return list(schema.shipped("santa_sim.hwmodels.dram"))
