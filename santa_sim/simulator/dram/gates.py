"""When a command may go out, given those before it: the model's own timing gates, to look at and to test."""

from __future__ import annotations

import dataclasses

import numpy as np
from numba import njit

from ...errors import InputError, choose
from . import layout as L
from .bank import activate, close, hold_back, hold_back_each, precharge
from .config import DramConfig, load_dram
from .memory import Port, build_state
from .pointer import pointer_to


@dataclasses.dataclass(frozen=True)
class Command:
    """A command (one of `layout.COMMANDS`) to a bank of the first channel; REF goes to the whole rank."""

    name: str
    rank: int = 0
    group: int = 0
    bank: int = 0


def earliest(config: DramConfig | str, history: list[tuple[int, Command]], command: Command) -> int:
    """First clock at which `command` passes every timing gate after `history`, a list of (clock, command)  [clocks].

    Rows and states aren't looked at, only timing.

    Raises
    ------
    InputError
        A command or bank doesn't exist.
    """
    config = load_dram(config)
    state = build_state(config, [Port()])
    for clock, past in history:
        _apply(state, _number(past), _bank(config, past), clock)
    return int(_first(state, _number(command), _bank(config, command)))


def _number(command: Command) -> int:
    return L.COMMANDS.index(choose("command", command.name, L.COMMANDS))


def _bank(config: DramConfig, command: Command) -> int:
    o = config.organization
    for field, count in (("rank", o.ranks), ("group", o.bank_groups), ("bank", o.banks_per_group)):
        if not 0 <= getattr(command, field) < count:
            raise InputError(
                f"command.{field} = {getattr(command, field)} does not exist; {config.name} has {count}, from 0"
            )
    return (command.rank * o.bank_groups + command.group) * o.banks_per_group + command.bank


@njit(cache=True)
def _apply(state: np.ndarray, command: int, bank: int, clk: int) -> None:
    s = pointer_to(state)
    c = s[L.CHANNEL_AT]
    b = s[c + L.BANK0] + bank * L.BANK_SIZE
    if command == L.ACT:
        s[b + L.ROW_NODE] = s[L.NODE_AT]
        activate(s, c, b, clk)
    elif command == L.PRE:
        precharge(s, c, b, clk)
    elif command == L.REF or command == L.REFB:
        hold_back_each(s, c, bank // s[L.BANKS_PER_RANK], bank if command == L.REFB else -1, command, clk)
    else:
        if command == L.RDA or command == L.WRA:
            close(s, b, clk)
        hold_back(s, c, b, command, clk)


@njit(cache=True)
def _first(state: np.ndarray, command: int, bank: int) -> int:
    s = pointer_to(state)
    c = s[L.CHANNEL_AT]
    if command == L.REF:
        first, last = (
            bank // s[L.BANKS_PER_RANK] * s[L.BANKS_PER_RANK],
            (bank // s[L.BANKS_PER_RANK] + 1) * s[L.BANKS_PER_RANK],
        )
    else:
        first, last = bank, bank + 1
    k = (
        L.T_RD
        if command == L.RDA
        else L.T_WR
        if command == L.WRA
        else command - 2
        if command >= L.ACT
        else command // 2
    )
    clk = 0
    for i in range(first, last):
        clk = max(
            clk, s[s[c + L.BANK0] + i * L.BANK_SIZE + L.READY + k], s[c + L.DUE + (L.DUE_TARGETS + k) * s[L.BANKS] + i]
        )
    return clk
