"""Where everything lives in the state of the bank model: one int64 vector, in records: compiled code passes one array.

A record is an offset into the vector; a field is a constant added to it: `s[bank + ROW]`. Times are memory clocks.
Fields of the header are absolute. Nothing here holds state.
"""

from __future__ import annotations

import numpy as np

LINE = 8  # values per cache line
NEVER = 1 << 60  # a time that doesn't come
NO_RULE = -(1 << 40)  # a constraint that isn't there

TEXTBOOK, DRAMSIM3 = 0, 1
REFRESH_OFF, REFRESH_STAGGERED, REFRESH_FIRST_RANK, REFRESH_BANK = range(4)

# Commands that issue, and commands that a constraint may hold back (a read is held back with or without
# auto-precharge).
RD, RDA, WR, WRA, ACT, PRE, REF, REFB = range(8)
COMMANDS = ("RD", "RDA", "WR", "WRA", "ACT", "PRE", "REF", "REFB")
T_RD, T_WR, T_ACT, T_PRE, T_REF, T_REFB = range(6)
TARGETS = ("RD", "WR", "ACT", "PRE", "REF", "REFB")
N_TARGETS = len(TARGETS)
# Whom a constraint binds: the bank itself, the other banks of its group, the other groups of its rank, other ranks.
SAME_BANK, SAME_GROUP, SAME_RANK, OTHER_RANK = range(4)
RELATIONS = ("bank", "group", "rank", "other")
N_RELATIONS = len(RELATIONS)

# What a bank wants next (bits), and the kind of a command for buses that carry one of each kind per clock.
W_RD, W_WR, W_ACT, W_PRE = 1, 2, 4, 8
AGE_SHIFT, ROW_KEY = 12, 1 << 58  # of what orders banks by age: arrival << AGE_SHIFT | bank, with ROW_KEY for a row command
KIND_NONE, KIND_ROW, KIND_COLUMN = 0, 1, 2

# --- header: configuration -------------------------------------------------------------------------------------------
(
    POLICY, CHANNELS, BANKS, GROUPS, RANKS, BANKS_PER_GROUP, BANKS_PER_RANK, GROUPS_PER_RANK,
    READ_SLOTS, WRITE_SLOTS, BANK_SLOTS, UNIFIED, BANKS_PER_QUEUE, QUEUES, DUAL, CLOSED, HIT_CAP, DRAIN_ABOVE,
    WRITE_HIGH, WRITE_LOW, REFRESH, REFRESH_INTERVAL, READ_DELAY, WRITE_DELAY, FAW, AW32, SHARED_BUS,
    BURST_SHIFT, KEEP,
    CHANNEL_AT, CHANNEL_SIZE, FIRST_AT, AGE_AT, QUEUE_AT, BANK_AT, SPREAD_AT, RANK_AT, NODE_AT, HASH_AT, HASH_MASK, PORTS,
    PORT_AT, PORT_SIZE,
    # --- header: state
    LISTS_AT, CLOCK, FREE_NODE, FLUSH, FRONT_NEXT, STARVED, ROOM, ROOM_W, TICKETS_DONE, WAITING_READS, WAITING_WRITES,
    LAST_DONE, LAST_WRITE,
    # --- header: counters
    N_ACT, N_PRE, N_RD, N_WR, N_RD_HIT, N_WR_HIT, N_REF, N_REFB, N_REFRESH_PRE, N_FORWARDED, N_MERGED, N_COALESCED,
    N_DONE_READS, N_DONE_WRITES, QUEUED_CLOCKS, N_TICKS,
    RULES,
) = range(73)  # fmt: skip
HEADER = RULES + len(COMMANDS) * N_TARGETS * N_RELATIONS
BEYOND = HEADER  # per command: bits of the targets that it holds back outside its own bank
HEADER_SIZE = HEADER + len(COMMANDS)

# --- one per bank
(ROW, HITS, HEAD, TAIL, HEAD_W, TAIL_W, WAITING, WAITING_W, WRITES, WANT, COLUMN_NODE, WRITE_NODE, ROW_NODE, OWNER,
 OWNED, BLOCKED,
 GROUP, RANK, INDEX, CHANNEL, READY) = range(21)  # fmt: skip
BANK_SIZE = READY + N_TARGETS
# --- one per rank
OPEN_BANKS, ACTIVE_SINCE, ACTIVE_CLOCKS, FAW_POS, FAW_RING = range(5)
AW32_POS = FAW_RING + 4
AW32_RING = AW32_POS + 1
RANK_SIZE = AW32_RING + 32
# --- one per channel (or pseudo-channel)
(NEXT, SOON, REFRESH_DUE, REFRESH_PENDING, REFRESH_POS, REFRESHING, REFRESH_NEXT, TURN, DRAINING, QUEUED, DIRTY,
 READS, WRITES_HELD, READ_FROM, WRITE_FROM, MOVABLE, MOVABLE_W, WRITE_MODE, STAMP, BUS_ROW, BUS_COLUMN, IN_WINDOW,
 BUS, BANK0) = range(24)  # fmt: skip
DUE = 24
DUE_TARGETS = 4  # read, write, activate, precharge: what a bank can want
# DUE: DUE_TARGETS x BANKS first clocks at which a bank can issue what it wants (NEVER for what it doesn't want); then
# N_TARGETS x BANKS first clocks as far as commands of other banks have a say; BANKS first clocks of any command (at
# FIRST_AT of the channel); BANKS ages of what a bank wants (at AGE_AT; textbook policy); READ_SLOTS and WRITE_SLOTS entries
# of the transaction queues (at QUEUE_AT); for each port, reads and writes, the requests in its window that wait for this
# channel, oldest first (at LISTS_AT).
W_HEAD, W_TAIL, W_LISTED = range(3)  # first and last request (or -1), whether the port's list of candidates has this queue
WAITING_SIZE = 3
# --- one per queued transaction
LINK, N_ROW, N_BURST, N_ADDRESS, N_WRITE, N_BANK, N_UID, N_STAMP, N_CHAIN, N_ACCEPTED = range(10)
NODE_SIZE = 10
# --- one per port; then the queues that may take a request of its window, then two rings of completion times
(FIRST, ENTER, SUBMITTED, WINDOW, LOOKAHEAD, PER_CLOCK, OUTSTANDING, IN_FLIGHT, SLOW_HEAD, SLOW_COUNT,
 FAST_HEAD, FAST_COUNT, RING_MASK, WINDOW_WRITES, WRITES_AHEAD, CANDIDATES,
 CANDIDATES_AT) = range(17)  # fmt: skip
# --- one per request, in a second vector
R_ADDRESS, R_CHANNEL, R_BANK, R_ROW, R_WRITE, R_READY, R_DONE, R_MERGED, R_TICKET, R_LEFT = range(10)
# once a request is in a queue, R_ROW is -1 minus the clock of that, and R_BANK -1, with KEEP set then the clock of its column
# command; R_MERGED: of a request in a window, the next one for its queue; R_LEFT counts down in the first request of those
# handed in together, whose number is R_TICKET
REQUEST_SIZE = 10
MAX_PORTS = 256  # a request's id is (number << 8) | port


def power_of_two_at_least(n: int) -> int:
    """The smallest power of two that is >= n."""
    return 1 << max(0, int(n) - 1).bit_length()


def _whole_lines(n: int) -> int:
    """`n` rounded up to whole cache lines of eight values, on which vector instructions work best."""
    return -(-n // LINE) * LINE


def channel_size(banks: int, read_slots: int, write_slots: int, ports: int) -> int:
    """Length of one channel's record."""
    return _whole_lines(DUE + (DUE_TARGETS + N_TARGETS + 2) * banks + read_slots + write_slots + 2 * WAITING_SIZE * ports)


def port_size(channels: int, outstanding: int) -> int:
    """Length of one port's record; `outstanding` 0 stands for no limit (then nothing is remembered in its rings)."""
    return (
        CANDIDATES_AT
        + 2 * channels
        + (2 * power_of_two_at_least(outstanding) if outstanding else 0)
    )


def build(*, settings: dict[int, int], ports: list[tuple[int, int, int]], rules: np.ndarray, nodes: int) -> np.ndarray:
    """Lay out and initialise the state vector.

    Parameters
    ----------
    settings : values of the configuration fields of the header, by field number (POLICY ... SHARED_BUS)
    ports : (lookahead, per_clock, outstanding or 0) of each port
    rules : int64 [commands, targets, relations]  [clocks], NO_RULE where there is none
    nodes : transactions that the queues hold in all
    """
    get = settings.__getitem__
    banks, groups, ranks, channels = get(BANKS), get(GROUPS), get(RANKS), get(CHANNELS)
    c_size = channel_size(banks, get(READ_SLOTS), get(WRITE_SLOTS), len(ports))
    p_size = max(port_size(channels, outstanding) for _, _, outstanding in ports)
    buckets = power_of_two_at_least(4 * nodes)
    place = _whole_lines(HEADER_SIZE)
    at = {}
    for field, size in (
        (CHANNEL_AT, channels * c_size), (BANK_AT, channels * banks * BANK_SIZE),
        (SPREAD_AT, len(COMMANDS) * groups * N_TARGETS * banks), (RANK_AT, channels * ranks * RANK_SIZE),
        (NODE_AT, nodes * NODE_SIZE), (HASH_AT, buckets), (PORT_AT, len(ports) * p_size),
    ):  # fmt: skip
        at[field], place = place, place + _whole_lines(size)
    s = _aligned(place)
    for field, value in (
        settings
        | at
        | {
            CHANNEL_SIZE: c_size,
            FIRST_AT: DUE + (DUE_TARGETS + N_TARGETS) * banks,
            AGE_AT: DUE + (DUE_TARGETS + N_TARGETS + 1) * banks,
            QUEUE_AT: DUE + (DUE_TARGETS + N_TARGETS + 2) * banks,
            LISTS_AT: DUE + (DUE_TARGETS + N_TARGETS + 2) * banks + get(READ_SLOTS) + get(WRITE_SLOTS),
            ROOM: channels,
            ROOM_W: channels,
            HASH_MASK: buckets - 1,
            PORTS: len(ports),
            PORT_SIZE: p_size,
        }
    ).items():
        s[field] = value
    s[RULES : RULES + rules.size] = rules.ravel()
    _init_spread(s, rules)
    s[LAST_DONE] = s[LAST_WRITE] = -1
    _init_channels(s)
    s[at[HASH_AT] : at[HASH_AT] + buckets] = -1
    node = at[NODE_AT] + np.arange(nodes) * NODE_SIZE
    s[node + LINK] = node + NODE_SIZE
    s[node[-1] + LINK] = -1
    s[FREE_NODE] = at[NODE_AT]
    for i, (lookahead, per_clock, outstanding) in enumerate(ports):
        p = at[PORT_AT] + i * p_size
        s[p + LOOKAHEAD], s[p + PER_CLOCK], s[p + OUTSTANDING] = lookahead, per_clock, outstanding
        s[p + RING_MASK] = power_of_two_at_least(outstanding) - 1 if outstanding else 0
    return s


def _aligned(n: int) -> np.ndarray:
    """Zeros that start on a cache line."""
    s = np.zeros(n + LINE, np.int64)
    skip = -(s.ctypes.data // s.itemsize) % LINE
    return s[skip : skip + n]


def _init_spread(s: np.ndarray, rules: np.ndarray) -> None:
    """For each command and bank group that it may go to: how long each bank of the channel waits, by target."""
    groups, banks = int(s[GROUPS]), int(s[BANKS])
    group = np.arange(banks) // s[BANKS_PER_GROUP]
    rank = np.arange(banks) // s[BANKS_PER_RANK]
    spread = np.full((len(COMMANDS), groups, N_TARGETS, banks), NO_RULE, np.int64)
    for own in range(groups):
        relation = np.where(
            group == own, SAME_GROUP, np.where(rank == own // s[GROUPS_PER_RANK], SAME_RANK, OTHER_RANK)
        )
        spread[:, own] = rules[:, :, relation]
    s[s[SPREAD_AT] : s[SPREAD_AT] + spread.size] = spread.ravel()
    for command in range(len(COMMANDS)):
        targets = [k for k in range(N_TARGETS) if (spread[command, :, k] > NO_RULE).any()]
        if s[REFRESH] != REFRESH_BANK:
            targets = [k for k in targets if k != T_REFB]
        s[BEYOND + command] = sum(1 << k for k in targets)


def _init_channels(s: np.ndarray) -> None:
    channels, banks, ranks = int(s[CHANNELS]), int(s[BANKS]), int(s[RANKS])
    at = s[CHANNEL_AT] + np.arange(channels) * s[CHANNEL_SIZE]
    bank0 = s[BANK_AT] + np.arange(channels) * banks * BANK_SIZE

    c = s[s[CHANNEL_AT] : s[CHANNEL_AT] + channels * s[CHANNEL_SIZE]].reshape(channels, -1)
    c[:, [SOON, REFRESH_NEXT]] = NEVER
    c[:, [NEXT, REFRESH_DUE]] = s[REFRESH_INTERVAL] if s[REFRESH] != REFRESH_OFF else NEVER
    c[:, [REFRESHING, BUS_ROW, BUS_COLUMN]] = -1
    c[:, BANK0] = bank0
    c[:, BUS] = at[np.arange(channels) // s[SHARED_BUS] * s[SHARED_BUS]]  # of pseudo-channels, the first one's
    c[:, DUE : DUE + DUE_TARGETS * banks] = NEVER
    c[:, s[FIRST_AT] : s[FIRST_AT] + banks] = NEVER
    lists = c[:, s[LISTS_AT] : s[LISTS_AT] + 2 * WAITING_SIZE * s[PORTS]].reshape(channels, -1, WAITING_SIZE)
    lists[:, :, [W_HEAD, W_TAIL]] = -1
    c[:, s[LISTS_AT] : s[LISTS_AT] + 2 * WAITING_SIZE * s[PORTS]] = lists.reshape(channels, -1)

    b = s[s[BANK_AT] : s[BANK_AT] + channels * banks * BANK_SIZE].reshape(channels, banks, BANK_SIZE)
    number = np.arange(banks)
    b[:, :, [ROW, HEAD, TAIL, HEAD_W, TAIL_W, COLUMN_NODE, WRITE_NODE, ROW_NODE]] = -1
    b[:, :, OWNER] = bank0[:, None] + number // s[BANKS_PER_QUEUE] * s[BANKS_PER_QUEUE] * BANK_SIZE
    b[:, :, GROUP] = number // s[BANKS_PER_GROUP]
    rank = np.arange(channels)[:, None] * ranks + number // s[BANKS_PER_RANK]
    b[:, :, RANK] = s[RANK_AT] + rank * RANK_SIZE
    b[:, :, INDEX] = number
    b[:, :, CHANNEL] = at[:, None]

    r = s[s[RANK_AT] : s[RANK_AT] + channels * ranks * RANK_SIZE].reshape(-1, RANK_SIZE)
    r[:, FAW_RING : FAW_RING + 4] = -NEVER
    r[:, AW32_RING : AW32_RING + 32] = -NEVER
