"""Every timing gate, on both sides: shut one clock before, open on the clock, and no later."""

import pytest

from santa_sim.errors import InputError
from santa_sim.simulator.dram import load_dram, shipped_drams
from santa_sim.simulator.dram.gates import Command, earliest

HERE, GROUP, RANK, OTHER = (
    {"rank": 0, "group": 0, "bank": 0}, {"rank": 0, "group": 0, "bank": 1}, {"rank": 0, "group": 1, "bank": 0},
    {"rank": 1, "group": 0, "bank": 0},
)  # fmt: skip


def two_ranks(name):
    config = load_dram(name)
    mapping = config.address_mapping if "ra" in config.address_mapping.split() else "ra " + config.address_mapping
    return config.replace(organization={"ranks": 2}, address_mapping=mapping)


def pairs(t):
    """(first, then, where, clocks) of each constraint, from the definitions in the standards."""
    write_end, ccd, rc = t.nCWL + t.nBL, max(t.nCCD_L, t.nBL), t.nRAS + t.nRP
    ccd_write = max(ccd, t.nCCD_L_write or 0)
    to_write = t.nRTW if t.nRTW is not None else t.nCL + t.nBL + t.nRTRS - t.nCWL
    yield from [
        ("ACT", "RD", HERE, t.nRCD_read), ("ACT", "RDA", HERE, t.nRCD_read), ("ACT", "WR", HERE, t.nRCD_write),
        ("ACT", "PRE", HERE, t.nRAS), ("ACT", "ACT", HERE, rc), ("ACT", "ACT", GROUP, t.nRRD_L),
        ("PRE", "ACT", HERE, t.nRP), ("PRE", "REF", HERE, t.nRP),
        ("RD", "RD", HERE, ccd), ("RD", "RD", GROUP, ccd), ("RD", "RD", OTHER, t.nBL + t.nRTRS),
        ("RD", "PRE", HERE, t.nRTP), ("RDA", "ACT", HERE, t.nRTP + t.nRP), ("RD", "WR", HERE, to_write),
        ("WR", "WR", GROUP, ccd_write), ("WR", "WR", OTHER, t.nBL + t.nRTRS), ("WR", "RD", GROUP, write_end + t.nWTR_L),
        ("WR", "RD", OTHER, max(1, write_end + t.nRTRS - t.nCL)), ("WR", "PRE", HERE, write_end + t.nWR),
        ("WRA", "ACT", HERE, write_end + t.nWR + t.nRP), ("REF", "ACT", GROUP, t.nRFC), ("REF", "REF", HERE, t.nRFC),
        ("REF", "ACT", OTHER, 0), ("PRE", "PRE", GROUP, t.nPPD),
    ]  # fmt: skip


def pairs_between_groups(t):
    yield from [
        ("ACT", "ACT", RANK, t.nRRD_S), ("RD", "RD", RANK, max(t.nCCD_S, t.nBL)),
        ("WR", "WR", RANK, max(t.nCCD_S, t.nBL)),
        ("WR", "RD", RANK, t.nCWL + t.nBL + t.nWTR_S),
    ]  # fmt: skip


def pairs_per_bank(t):
    yield from [
        ("REFB", "ACT", HERE, t.nRFC_bank), ("REFB", "REFB", HERE, t.nRFC_bank), ("REFB", "REF", HERE, t.nRFC_bank),
        ("REFB", "ACT", GROUP, t.nREFB_to_ACT if t.nREFB_to_ACT is not None else t.nRRD_L),
        ("PRE", "REFB", HERE, t.nRP),
        ("REFB", "REFB", GROUP, t.nREFB_to_REFB if t.nREFB_to_REFB is not None else t.nRFC_bank),
        ("ACT", "REFB", GROUP, t.nRRD_L),
    ]  # fmt: skip


def cases():
    for name in shipped_drams():
        config = two_ranks(name)
        t = config.timing
        found = list(pairs(t))
        found += pairs_between_groups(t) if config.organization.bank_groups > 1 else []
        found += pairs_per_bank(t) if config.refresh.kind == "per-bank" else []
        for first, then, where, clocks in found:
            yield pytest.param(
                name, first, then, where, clocks, id=f"{name}-{first}-{then}-{'-'.join(str(v) for v in where.values())}"
            )


@pytest.mark.parametrize(("name", "first", "then", "where", "clocks"), list(cases()))
def test_gate(name, first, then, where, clocks):
    start = 10_000
    opens = earliest(two_ranks(name), [(start, Command(first, **HERE))], Command(then, **where))
    refused_before = opens > start + clocks - 1 if clocks else True
    accepted_then = opens <= start + clocks
    assert refused_before and accepted_then, f"opens {opens - start} clocks after, not {clocks}"


@pytest.mark.parametrize("name", shipped_drams())
def test_four_activate_window(name):
    config = load_dram(name)
    t, groups = config.timing, config.organization.bank_groups
    banks = [Command("ACT", group=i % groups, bank=i // groups) for i in range(5)]
    apart = t.nRRD_L if groups == 1 else t.nRRD_S
    history = [(100 + apart * i, banks[i]) for i in range(4)]
    assert earliest(config, history, banks[4]) == max(
        100 + t.nFAW, history[3][0] + (t.nRRD_L if groups < 5 and groups == 1 else apart)
    )
    early = [(0, banks[0]), *history[1:]]  # the first of the four is long past
    assert earliest(config, early, banks[4]) == history[3][0] + apart


def test_thirty_two_activate_window():
    config = load_dram("gddr6_14000").replace(timing={"n32AW": 1000}, organization={"banks_per_group": 16})
    spaced = [(20 * i, Command("ACT", group=i % 4, bank=i // 4)) for i in range(33)]
    assert earliest(config, spaced[:32], spaced[32][1]) == 1000
    assert earliest(config, [(-500, spaced[0][1]), *spaced[1:32]], spaced[32][1]) == 31 * 20 + config.timing.nRRD_S


def test_windows_are_per_rank():
    config = two_ranks("ddr4_3200")
    history = [(4 * i, Command("ACT", group=i)) for i in range(4)]
    assert earliest(config, history, Command("ACT", rank=1)) == 0


def test_additive_latency_moves_the_column():
    config = load_dram("ddr4_3200").replace(timing={"nAL": 20})
    assert earliest(config, [(0, Command("ACT"))], Command("RD")) == 2
    assert earliest(config, [(0, Command("RD"))], Command("PRE")) == 20 + config.timing.nRTP


def test_unknown_command_and_bank():
    with pytest.raises(InputError, match="command='RAD'.*'RDA'|'RD'"):
        earliest("ddr4_3200", [], Command("RAD"))
    with pytest.raises(InputError, match="command.group = 4"):
        earliest("ddr4_3200", [], Command("RD", group=4))
