"""Every command that the schedulers issue, checked one by one against the constraint table and the buses.

The compiled code keeps no log, so this runs the same code interpreted, in a process of its own, and writes one down.
"""

import json
import os
import subprocess
import sys

import pytest

LOGGER = """
import json, sys
import numpy as np
from santa_sim.simulator.dram import bank, load_dram, replay, scheduler
from santa_sim.simulator.dram import layout as L

changes, count, seed = json.loads(sys.argv[2]), 600, 0
config = load_dram(sys.argv[1]).replace(**changes)
log, hold_back, hold_back_each = [], bank.hold_back, bank.hold_back_each

def note(s, c, bank_number, command, clk):
    log.append((int((c - s[L.CHANNEL_AT]) // s[L.CHANNEL_SIZE]), int(command), int(bank_number), int(clk)))

def one(s, c, b, command, clk):
    note(s, c, s[b + L.INDEX], command, clk)
    hold_back(s, c, b, command, clk)

def each(s, c, rank, bank_number, command, clk):
    note(s, c, bank_number if bank_number >= 0 else -1 - rank, command, clk)
    hold_back_each(s, c, rank, bank_number, command, clk)

bank.hold_back, scheduler.hold_back_each = one, each
rng = np.random.default_rng(seed)
rows = rng.integers(0, 1 << 10, count // 4)[:, None] * 64 + np.arange(4)
address = (rows * config.organization.burst_bytes).ravel()
ready = np.cumsum(np.repeat(rng.integers(0, 2, count // 100) * 12, 100))
report = replay(address, rng.random(count) < 0.3, config, "timed", ready_cycles=ready)
counts = [report.activates, report.reads, report.writes, report.refreshes + report.bank_refreshes]
print(json.dumps({"log": log, "counts": counts}))
"""
REFRESH_OFTEN = {"nREFI": 1200}
CASES = {
    "ddr4": ("ddr4_3200", {"organization": {"ranks": 2}, "timing": REFRESH_OFTEN}),
    "ddr4-closed": ("ddr4_3200", {"policy": {"name": "textbook", "page": "closed"}, "timing": REFRESH_OFTEN}),
    "ddr4-dramsim3": ("ddr4_3200", {"policy": {"name": "dramsim3"}, "timing": REFRESH_OFTEN}),
    "hbm3": ("hbm3", {"organization": {"channels": 1}}),
    "lpddr5-closed": (
        "lpddr5_6400",
        {"policy": {"name": "textbook", "page": "closed"}, "organization": {"channels": 1}},
    ),
}


def commands(case):
    """The configuration, and what was issued: (bus, command, bank or -1 - rank, clock)."""
    from santa_sim.simulator.dram import load_dram

    name, changes = CASES[case]
    out = subprocess.run(
        [sys.executable, "-c", LOGGER, name, json.dumps(changes)], env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    got = json.loads(out.stdout)
    return load_dram(name).replace(**changes), got["log"], got["counts"]


def relation(config, past, now):
    """How bank `now` stands to a past command's: 0 the same (or its rank refreshed), 1 group, 2 rank, 3 other."""
    per_rank, per_group = config.organization.banks_per_rank, config.organization.banks_per_group
    if past < 0:
        return 0 if now // per_rank == -1 - past else None
    if past == now:
        return 0
    return 1 if past // per_group == now // per_group else 2 if past // per_rank == now // per_rank else 3


@pytest.mark.parametrize("case", CASES)
def test_no_command_breaks_a_rule(case):
    from santa_sim.simulator.dram import layout as L
    from santa_sim.simulator.dram.timing import rules

    config, log, counts = commands(case)
    o, table = config.organization, rules(config)
    target = {
        L.RD: L.T_RD,
        L.RDA: L.T_RD,
        L.WR: L.T_WR,
        L.WRA: L.T_WR,
        L.ACT: L.T_ACT,
        L.PRE: L.T_PRE,
        L.REF: L.T_REF,
        L.REFB: L.T_REFB,
    }
    issued = [command for _, command, _, _ in log]
    columns = (L.RD, L.RDA, L.WR, L.WRA)
    assert counts == [
        issued.count(L.ACT), issued.count(L.RD) + issued.count(L.RDA), issued.count(L.WR) + issued.count(L.WRA),
        issued.count(L.REF) + issued.count(L.REFB),
    ]  # fmt: skip
    assert counts[3] > 0
    on_time = 0
    for bus in {entry[0] for entry in log}:
        mine = [entry[1:] for entry in log if entry[0] == bus]
        is_open, activates = [False] * (o.banks_per_rank * o.ranks), {}
        for i, (command, bank, clk) in enumerate(mine):
            rank = -1 - bank if bank < 0 else bank // o.banks_per_rank
            banks = range(rank * o.banks_per_rank, (rank + 1) * o.banks_per_rank) if bank < 0 else [bank]
            for past, past_bank, past_clk in mine[max(0, i - 40) : i]:
                for b in banks:
                    where = relation(config, past_bank, b)
                    if where is not None:
                        wait = table[past, target[command], where]
                        assert clk - past_clk >= wait, (L.COMMANDS[past], L.COMMANDS[command], where, past_clk, clk)
                        on_time += clk - past_clk == wait
            assert all(is_open[b] == (command in (*columns, L.PRE)) for b in banks), (L.COMMANDS[command], clk)
            if command in (L.ACT, L.PRE, L.RDA, L.WRA):
                is_open[bank] = command == L.ACT
            if command == L.ACT:
                times = activates.setdefault(rank, [])
                times.append(clk)
                assert len(times) < 5 or times[-1] - times[-5] >= config.timing.nFAW
    assert on_time > len(log) // 4  # and they don't dawdle
    shared = {}
    for bus, command, _, clk in log:
        kind = command in columns if o.command_buses == 2 else None
        shared.setdefault((bus // o.pseudo_channels, clk, kind), []).append(command)
    assert all(len(together) == 1 for together in shared.values())
