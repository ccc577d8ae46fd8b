"""Which command a channel issues: two policies, and refresh.

`dramsim3` follows what DRAMsim3 (Li et al., IEEE CAL 2020) does: per-bank command queues behind a transaction queue, a
round-robin scan from the bank after the last one served that takes the first ready command of any kind, a cap on row
hits while the queue's head waits for another row, writes drained by the bufferful.
`textbook` is FR-FCFS (Rixner et al., ISCA 2000): column commands before row commands, the oldest first, over all queued
requests of the current direction; writes drained between two watermarks; a row that has served `row_hit_cap` columns
yields to an older request for another row.
"""

from __future__ import annotations

from numba import njit

from . import layout as L
from .bank import append, choose, first_stamp, hold_back_each, precharge, renew, serve, soonest
from .queues import find, freed, leave_queue


@njit(cache=True)
def _pick_round_robin(s, c, clk):
    """The bank to serve: from the queue after the last one served, the first queue with a ready command; -1 if none."""
    if s[c + L.SOON] > clk:
        return -1
    queues = s[L.QUEUES]
    width = s[L.BANKS_PER_QUEUE]
    first = c + s[L.FIRST_AT]
    turn = s[c + L.TURN]
    for _ in range(queues):
        turn += 1
        if turn == queues:
            turn = 0
        best = -1
        if width == 1:
            if s[first + turn] <= clk:
                best = s[c + L.BANK0] + turn * L.BANK_SIZE
        else:
            stamp = L.NEVER
            for i in range(turn * width, (turn + 1) * width):
                if s[first + i] <= clk:
                    b = s[c + L.BANK0] + i * L.BANK_SIZE
                    t = first_stamp(s, c, b, clk)
                    if t < stamp:
                        best, stamp = b, t
        if best >= 0:
            s[c + L.TURN] = turn
            return best
    return -1


@njit(cache=True)
def _pick_oldest(s, c, clk, columns, rows):
    """The bank to serve by age: ready column commands first, then ready row commands; -1 if none."""
    if s[c + L.SOON] > clk:
        return -1
    first, age = c + s[L.FIRST_AT], c + s[L.AGE_AT]
    flip = 0 if columns else L.ROW_KEY
    oldest = L.NEVER
    for i in range(s[L.BANKS]):
        oldest = min(oldest, s[age + i] ^ flip if s[first + i] <= clk else L.NEVER)
    if oldest == L.NEVER or (oldest & L.ROW_KEY and not (columns and rows)):
        return -1
    return s[c + L.BANK0] + (oldest & ((1 << L.AGE_SHIFT) - 1)) * L.BANK_SIZE


@njit(cache=True)
def _refresh_target(s, c):
    """(rank, bank index or -1) that the oldest pending refresh is for."""
    pos = s[c + L.REFRESH_POS]
    if s[L.REFRESH] == L.REFRESH_BANK:
        groups, per_group = s[L.GROUPS_PER_RANK], s[L.BANKS_PER_GROUP]
        group, bank, rank = pos % groups, pos // groups % per_group, pos // (groups * per_group)
        return rank, rank * s[L.BANKS_PER_RANK] + group * per_group + bank
    return pos, -1


@njit(cache=True)
def _refresh(s, c, clk):
    """Work on the pending refresh: hold its banks, precharge them one a clock, refresh. Returns the kind issued."""
    rank, bank = _refresh_target(s, c)
    first, last = rank * s[L.BANKS_PER_RANK], (rank + 1) * s[L.BANKS_PER_RANK]
    if bank >= 0:
        first, last = bank, bank + 1
    if s[c + L.REFRESHING] < 0:
        s[c + L.REFRESHING] = rank
        owner = s[s[c + L.BANK0] + first * L.BANK_SIZE + L.OWNER]
        for i in range(s[L.BANKS]):
            b = s[c + L.BANK0] + i * L.BANK_SIZE
            if first <= i < last or s[b + L.OWNER] == owner:
                s[b + L.BLOCKED] = 1
                renew(s, c, b)
        soonest(s, c)
    target = L.T_REF if bank < 0 else L.T_REFB
    shared = c + L.DUE + L.DUE_TARGETS * s[L.BANKS]
    wait_close, wait_refresh = L.NEVER, 0
    for i in range(first, last):
        b = s[c + L.BANK0] + i * L.BANK_SIZE
        if s[b + L.ROW] >= 0:
            t = max(s[b + L.READY + L.T_PRE], s[shared + L.T_PRE * s[L.BANKS] + i])
            if t <= clk:
                precharge(s, c, b, clk)
                s[L.N_REFRESH_PRE] += 1
                choose(s, b)
                soonest(s, c)
                s[c + L.REFRESH_NEXT] = clk + 1
                return L.KIND_ROW
            wait_close = min(wait_close, t)
        else:
            wait_refresh = max(wait_refresh, s[b + L.READY + target], s[shared + target * s[L.BANKS] + i])
    if wait_close < L.NEVER or wait_refresh > clk:
        s[c + L.REFRESH_NEXT] = wait_close if wait_close < L.NEVER else wait_refresh
        return L.KIND_NONE
    s[L.N_REF if bank < 0 else L.N_REFB] += 1
    hold_back_each(s, c, rank, bank, L.REF if bank < 0 else L.REFB, clk)
    s[c + L.REFRESHING] = -1
    for i in range(s[L.BANKS]):
        b = s[c + L.BANK0] + i * L.BANK_SIZE
        s[b + L.BLOCKED] = 0
        renew(s, c, b)
    s[c + L.REFRESH_PENDING] -= 1
    pos = s[c + L.REFRESH_POS] + 1
    end = s[L.RANKS] if bank < 0 else s[L.BANKS]
    s[c + L.REFRESH_POS] = 0 if pos == end or s[L.REFRESH] == L.REFRESH_FIRST_RANK else pos
    s[c + L.REFRESH_NEXT] = clk + 1
    soonest(s, c)
    return L.KIND_ROW


@njit(cache=True)
def _first_movable(s, c, writes):
    """Position of the first transaction of a queue whose bank has room (there is one); it is remembered."""
    from_at = c + (L.WRITE_FROM if writes else L.READ_FROM)
    queue = c + s[L.QUEUE_AT] + (s[L.READ_SLOTS] if writes else 0)
    i = s[from_at]
    while s[s[s[s[queue + i] + L.N_BANK] + L.OWNER] + L.OWNED] >= s[L.BANK_SLOTS]:
        i += 1
    s[from_at] = i
    return i


@njit(cache=True)
def _move_one(s, c, clk):
    """Move the first transaction whose bank has room from the transaction queue to its command queue."""
    if s[L.UNIFIED] == 0 and s[c + L.DRAINING] == 0:
        held = s[c + L.WRITES_HELD]
        leftover = s[L.FLUSH] != 0 and held > 0 and s[c + L.READS] == 0
        if held >= s[L.WRITE_SLOTS] or ((held > s[L.DRAIN_ABOVE] or leftover) and s[c + L.QUEUED] == 0):
            s[c + L.DRAINING] = held
    writes = s[L.UNIFIED] == 0 and s[c + L.DRAINING] > 0
    s[c + L.DIRTY] = 0
    if s[c + (L.MOVABLE_W if writes else L.MOVABLE)] == 0:
        return
    i = _first_movable(s, c, writes)
    if writes and find(s, s[s[c + s[L.QUEUE_AT] + s[L.READ_SLOTS] + i] + L.N_ADDRESS], 0) >= 0:
        s[c + L.DRAINING] = 0  # a read of the same address goes first
        held = s[c + L.WRITES_HELD]
        if s[c + L.QUEUED] > 0 or (held <= s[L.DRAIN_ABOVE] and held < s[L.WRITE_SLOTS]):
            s[c + L.DIRTY] = 1
            return
        writes = False  # DRAMsim3 would turn to this write for ever, while the read waits behind it
        i = _first_movable(s, c, writes)
    if writes:
        s[c + L.DRAINING] -= 1
    queue = c + s[L.QUEUE_AT] + (s[L.READ_SLOTS] if writes else 0)
    n = s[queue + i]
    leave_queue(s, c, writes)
    for j in range(i, s[c + (L.WRITES_HELD if writes else L.READS)]):
        s[queue + j] = s[queue + j + 1]
    b = s[n + L.N_BANK]
    owner = s[b + L.OWNER]
    s[owner + (L.WAITING_W if writes else L.WAITING)] -= 1
    s[c + (L.MOVABLE_W if writes else L.MOVABLE)] -= 1
    append(s, b, n, L.HEAD)
    if s[owner + L.OWNED] == s[L.BANK_SLOTS]:
        s[c + L.MOVABLE] -= s[owner + L.WAITING]
        s[c + L.MOVABLE_W] -= s[owner + L.WAITING_W]
    if s[c + L.MOVABLE] + s[c + L.WRITES_HELD] > 0:
        s[c + L.DIRTY] = 1
    freed(s, c, clk)


@njit(cache=True)
def turns(s, c):
    """Textbook policy: whether a channel is to change its direction; see `_direction`."""
    reads, writes = s[c + L.READS], s[c + L.WRITES_HELD]
    if s[c + L.WRITE_MODE] == 0:
        return writes >= s[L.WRITE_HIGH] or (reads == 0 and writes > 0)
    return writes == 0 or (writes <= s[L.WRITE_LOW] and reads > 0)


@njit(cache=True)
def _direction(s, c):
    """Textbook policy: write from the high watermark, or if no read waits; read from the low one, if a read does."""
    if turns(s, c):
        s[c + L.WRITE_MODE] = 1 - s[c + L.WRITE_MODE]
        for i in range(s[L.BANKS]):
            b = s[c + L.BANK0] + i * L.BANK_SIZE
            choose(s, b)
            renew(s, c, b)
        soonest(s, c)


@njit(cache=True)
def _tick_dramsim3(s, r, capacity, c, clk):
    kind = L.KIND_NONE
    if s[c + L.REFRESH_PENDING] > 0:
        kind = _refresh(s, c, clk)
    if kind == L.KIND_NONE:
        b = _pick_round_robin(s, c, clk)
        if b >= 0:
            kind = serve(s, r, capacity, c, b, clk)
    if kind != L.KIND_NONE and s[L.DUAL] != 0:
        b = _pick_round_robin(s, c, clk)
        if b >= 0:
            # the scan moves on even when what it finds is of the kind already issued
            due = c + L.DUE + s[b + L.INDEX]
            row = min(s[due + L.T_ACT * s[L.BANKS]], s[due + L.T_PRE * s[L.BANKS]]) <= clk
            if (kind == L.KIND_COLUMN) == row:
                serve(s, r, capacity, c, b, clk)
    if s[c + L.DIRTY] != 0:
        _move_one(s, c, clk)


@njit(cache=True)
def _tick_textbook(s, r, capacity, c, clk):
    if s[c + L.DIRTY] != 0:
        s[c + L.DIRTY] = 0
        _direction(s, c)
    bus = s[c + L.BUS]
    columns, rows = s[bus + L.BUS_COLUMN] < clk, s[bus + L.BUS_ROW] < clk
    if s[c + L.REFRESH_PENDING] > 0:
        if rows:
            if _refresh(s, c, clk) != L.KIND_NONE:
                rows = False
                columns = columns and s[L.DUAL] != 0
                s[bus + L.BUS_ROW] = clk
                if s[L.DUAL] == 0:
                    s[bus + L.BUS_COLUMN] = clk
        else:
            s[c + L.REFRESH_NEXT] = clk + 1
    while columns or rows:
        b = _pick_oldest(s, c, clk, columns, rows)
        if b < 0:
            break
        if serve(s, r, capacity, c, b, clk) == L.KIND_COLUMN:
            columns = False
            s[bus + L.BUS_COLUMN] = clk
            _direction(s, c)
        else:
            rows = False
            s[bus + L.BUS_ROW] = clk
        if s[L.DUAL] == 0:
            columns = rows = False
            s[bus + L.BUS_COLUMN] = s[bus + L.BUS_ROW] = clk


@njit(cache=True)
def tick(s, r, capacity, c, clk):
    """One channel, one clock; sets the channel's next clock."""
    while s[c + L.REFRESH_DUE] <= clk:
        s[c + L.REFRESH_PENDING] += 1
        s[c + L.REFRESH_DUE] += s[L.REFRESH_INTERVAL]
        s[c + L.REFRESH_NEXT] = clk
    if s[L.POLICY] == L.TEXTBOOK:
        _tick_textbook(s, r, capacity, c, clk)
    else:
        _tick_dramsim3(s, r, capacity, c, clk)
    soon = s[c + L.SOON]
    if s[c + L.REFRESH_PENDING] > 0:
        soon = min(soon, s[c + L.REFRESH_NEXT])
    if s[c + L.DIRTY] != 0:
        soon = clk
    s[c + L.NEXT] = min(s[c + L.REFRESH_DUE], max(soon, clk + 1))
