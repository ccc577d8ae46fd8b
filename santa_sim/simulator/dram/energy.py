"""Energy of DRAM commands and of standby, from data-sheet currents or from published figures."""

from __future__ import annotations

import dataclasses

from .config import Currents, DramConfig

KINDS = ("activate", "read", "write", "refresh", "background")


@dataclasses.dataclass(frozen=True)
class CommandEnergy:
    """Energy of each command and power of standby; None where nobody published a figure.

    Attributes
    ----------
    activate_j : one activate with its precharge  [J]
    read_j, write_j : one burst, without I/O where it comes from currents  [J]
    refresh_j, refresh_bank_j : one all-bank, one per-bank refresh  [J]
    active_w, idle_w : one rank with a row open, with none  [W]
    """

    activate_j: float | None
    read_j: float | None
    write_j: float | None
    refresh_j: float | None
    refresh_bank_j: float | None
    active_w: float | None
    idle_w: float | None


def command_energy(config: DramConfig) -> CommandEnergy:
    """Energies of a configuration.

    With currents (Micron TN-40-07, 'Calculating Memory Power for DDR4 SDRAM'): an activate is what IDD0 draws over tRC
    above standby, a burst is what IDD4 draws above IDD3N while it lasts, a refresh the same of IDD5 over tRFC; times
    voltage, times the devices of a rank. I/O and the IPP supply are not in it.
    """
    e, t = config.energy, config.timing
    if not isinstance(e, Currents):
        bits = config.organization.burst_bytes * 8
        per_burst = [None if pj is None else pj * bits * 1e-12 for pj in (e.read_pj_per_bit, e.write_pj_per_bit)]
        activate, refresh = (None if pj is None else pj * 1e-12 for pj in (e.activate_pj, e.refresh_pj))
        all_bank, per_bank = (None, refresh) if config.refresh.kind == "per-bank" else (refresh, None)
        return CommandEnergy(activate, *per_burst, all_bank, per_bank, e.active_w, e.idle_w)
    clock_s = t.clock_fs * 1e-15
    watts_per_ma = e.vdd_v * 1e-3 * config.organization.devices_per_rank
    per_clock = watts_per_ma * clock_s
    activate = per_clock * (e.idd0_ma * (t.nRAS + t.nRP) - e.idd3n_ma * t.nRAS - e.idd2n_ma * t.nRP)
    per_bank = None
    if e.idd5pb_ma is not None and t.nRFC_bank is not None:
        per_bank = per_clock * (e.idd5pb_ma - e.idd3n_ma) * t.nRFC_bank
    return CommandEnergy(
        activate_j=activate,
        read_j=per_clock * (e.idd4r_ma - e.idd3n_ma) * t.nBL,
        write_j=per_clock * (e.idd4w_ma - e.idd3n_ma) * t.nBL,
        refresh_j=per_clock * (e.idd5ab_ma - e.idd3n_ma) * t.nRFC,
        refresh_bank_j=per_bank,
        active_w=watts_per_ma * e.idd3n_ma,
        idle_w=watts_per_ma * e.idd2n_ma,
    )


def charge(
    config: DramConfig, counts: dict[str, int], active_s: float, idle_s: float
) -> tuple[dict[str, float], list[str]]:
    """Energy by kind (`KINDS`)  [J], and a note for each figure that isn't known and so isn't charged.

    `active_s` and `idle_s` are summed over ranks  [s].
    """
    e = command_energy(config)
    notes = []

    def times(figure: float | None, count: float, what: str) -> float:
        if figure is None:
            if count:
                notes.append(f"{config.name}: energy of {what} is not published; not charged")
            return 0.0
        return figure * count

    energy = {
        "activate": times(e.activate_j, counts["activates"], "activates"),
        "read": times(e.read_j, counts["reads"], "reads"),
        "write": times(e.write_j, counts["writes"], "writes"),
        "refresh": times(e.refresh_j, counts["refreshes"], "refreshes")
        + times(e.refresh_bank_j, counts["bank_refreshes"], "per-bank refreshes"),
        "background": times(e.active_w, active_s, "standby with an open row") + times(e.idle_w, idle_s, "idle standby"),
    }
    return energy, notes
