"""Timing constraints as tables: after this command, that command waits this long, here.

A row is (commands, targets, relation, clocks). Relations: 'bank' the same bank, 'group' other banks of its bank group,
'rank' other bank groups of its rank, 'other' other ranks of the channel. An all-bank refresh counts every bank of its
rank as the same bank. Activates also wait for the windows of four and of thirty-two, which are no pairwise rule.
"""

from __future__ import annotations

import numpy as np

from . import layout as L
from .config import DramConfig

Row = tuple[str, str, str, int]


def jedec_rows(config: DramConfig) -> list[Row]:
    """Constraints of the textbook policy, as JESD79-4 (DDR4), JESD209-4 (LPDDR4) and JESD235 (HBM) define them.

    Read to write and write to read are written from the data bus: the second burst starts nRTRS clocks after the first
    one ends, or nWTR after it within a rank.
    """
    t = config.timing
    ccd_l, ccd_s = max(t.nBL, t.nCCD_L), max(t.nBL, t.nCCD_S)
    ccd_l_write = max(ccd_l, t.nCCD_L_write or 0)
    read, write = t.nAL + t.nCL, t.nAL + t.nCWL
    read_to_write = max(t.nBL, read + t.nBL + t.nRTRS - write)
    read_to_write_here = read_to_write if t.nRTW is None else t.nRTW
    write_to_read_other = max(1, write + t.nBL + t.nRTRS - read)
    write_end = write + t.nBL
    to_precharge_r, to_precharge_w = t.nAL + t.nRTP, write_end + t.nWR
    rc = t.nRAS + t.nRP
    rows: list[Row] = [
        ("ACT", "RD", "bank", t.nRCD_read - t.nAL),
        ("ACT", "WR", "bank", t.nRCD_write - t.nAL),
        ("ACT", "PRE", "bank", t.nRAS),
        ("ACT", "ACT REF REFB", "bank", rc),
        ("ACT", "ACT REFB", "group", t.nRRD_L),
        ("ACT", "ACT REFB", "rank", t.nRRD_S),
        ("RD RDA", "RD", "bank group", ccd_l),
        ("RD RDA", "RD", "rank", ccd_s),
        ("RD RDA", "RD", "other", t.nBL + t.nRTRS),
        ("RD RDA", "WR", "bank group rank", read_to_write_here),
        ("RD RDA", "WR", "other", read_to_write),
        ("RD", "PRE", "bank", to_precharge_r),
        ("RDA", "ACT REF REFB", "bank", to_precharge_r + t.nRP),
        ("WR WRA", "WR", "bank group", ccd_l_write),
        ("WR WRA", "WR", "rank", ccd_s),
        ("WR WRA", "WR", "other", t.nBL + t.nRTRS),
        ("WR WRA", "RD", "bank group", write_end + t.nWTR_L),
        ("WR WRA", "RD", "rank", write_end + t.nWTR_S),
        ("WR WRA", "RD", "other", write_to_read_other),
        ("WR", "PRE", "bank", to_precharge_w),
        ("WRA", "ACT REF REFB", "bank", to_precharge_w + t.nRP),
        ("PRE", "ACT REF REFB", "bank", t.nRP),
        ("REF", "ACT REF REFB", "bank", t.nRFC),
    ]
    if t.nPPD:
        rows.append(("PRE", "PRE", "group rank", t.nPPD))
    if t.nRFC_bank is not None:
        apart = t.nREFB_to_REFB if t.nREFB_to_REFB is not None else t.nRFC_bank
        rows += [
            ("REFB", "ACT REF REFB", "bank", t.nRFC_bank),
            ("REFB", "REF", "group rank", t.nRFC_bank),
            ("REFB", "REFB", "group rank", apart),
            ("REFB", "ACT", "group rank", t.nREFB_to_ACT if t.nREFB_to_ACT is not None else t.nRRD_L),
        ]
    return rows


def dramsim3_rows(config: DramConfig) -> list[Row]:
    """Constraints as DRAMsim3 (commit 2981759) has them; they differ from the above in what the comments say."""
    t = config.timing
    ccd_l, ccd_s = max(t.nBL, t.nCCD_L), max(t.nBL, t.nCCD_S)
    read, write = t.nAL + t.nCL, t.nAL + t.nCWL
    to_precharge_r, to_precharge_w = t.nAL + t.nRTP, write + t.nBL + t.nWR
    rows: list[Row] = [
        ("ACT", "RD", "bank", t.nRCD_read - t.nAL),
        ("ACT", "WR", "bank", t.nRCD_write - t.nAL),
        ("ACT", "PRE", "bank", t.nRAS),
        ("ACT", "ACT", "bank", t.nRAS + t.nRP),
        ("ACT", "ACT", "group", t.nRRD_L),
        ("ACT", "ACT", "rank", t.nRRD_S),
        ("ACT", "REFB", "group rank", t.nRAS + t.nRP),  # of other banks, tRC
        ("RD RDA", "RD", "group", ccd_l),
        ("RD RDA", "RD", "rank", ccd_s),
        ("RD RDA", "RD", "other", t.nBL + t.nRTRS),
        ("RD RDA", "WR", "group rank", read + t.nBL - write + t.nRTRS),
        ("RD RDA", "WR", "other", t.read_delay + t.nBL + t.nRTRS - t.write_delay),
        ("RD", "RD", "bank", ccd_l),
        ("RD", "WR", "bank", read + t.nBL - write + t.nRTRS),
        ("RD", "PRE", "bank", to_precharge_r),
        ("RDA", "ACT", "bank", t.nAL + t.nBL + t.nRTP + t.nRP),  # a burst longer than without auto-precharge
        ("RDA", "REF REFB", "bank", to_precharge_r + t.nRP),
        ("WR WRA", "WR", "group", ccd_l),
        ("WR WRA", "WR", "rank", ccd_s),
        ("WR WRA", "WR", "other", t.nBL),  # no gap between ranks
        ("WR WRA", "RD", "group", t.write_delay + t.nWTR_L),
        ("WR WRA", "RD", "rank", t.write_delay + t.nWTR_S),
        ("WR WRA", "RD", "other", t.write_delay + t.nBL + t.nRTRS - t.read_delay),
        ("WR", "WR", "bank", ccd_l),
        ("WR", "RD", "bank", t.write_delay + t.nWTR_L),
        ("WR", "PRE", "bank", to_precharge_w),
        ("WRA", "ACT REF REFB", "bank", to_precharge_w + t.nRP),
        ("PRE", "ACT REF REFB", "bank", t.nRP),
        ("REF", "ACT REF", "bank", t.nRFC),
        # A per-bank refresh holds back the other banks, by the all-bank figures, and not its own.
        ("REFB", "ACT", "group rank", t.nRFC),
    ]
    if t.nREFI is not None:
        rows.append(("REFB", "REFB", "group rank", t.nREFI))
    if config.policy.precharge_spacing:
        rows.append(("PRE", "PRE", "group rank", t.nPPD))
    return rows


def rules(config: DramConfig) -> np.ndarray:
    """The constraint table of a configuration: int64 [commands, targets, relations]  [clocks], or NO_RULE."""
    table = np.full((len(L.COMMANDS), L.N_TARGETS, L.N_RELATIONS), L.NO_RULE, np.int64)
    for commands, targets, relations, clocks in (dramsim3_rows if config.policy.name == "dramsim3" else jedec_rows)(
        config
    ):
        for command in commands.split():
            for target in targets.split():
                for relation in relations.split():
                    cell = L.COMMANDS.index(command), L.TARGETS.index(target), L.RELATIONS.index(relation)
                    table[cell] = max(table[cell], clocks)
    return table
