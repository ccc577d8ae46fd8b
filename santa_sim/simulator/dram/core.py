"""The compiled heart of the bank model: queues, arbitration, timing gates, refresh, and the front end that feeds them.

Everything acts on the state vector `s` (see `layout`) and the request ring `r`; time is in memory clocks. One clock is:
completions are seen, refresh falls due, each channel issues its command (or two, with separate row and column buses) and
moves one transaction to its command queues, then the ports offer requests. Clocks on which nothing can happen are skipped:
each bank knows the first clock at which its next command passes every gate.

Policies
--------
`dramsim3` follows what DRAMsim3 (Li et al., IEEE CAL 2020) does: per-bank command queues behind a transaction queue, a
round-robin scan from the bank after the last one served that takes the first ready command of any kind, a cap on row hits
while the queue's head waits for another row, writes drained by the bufferful.
`textbook` is FR-FCFS (Rixner et al., ISCA 2000): column commands before row commands, the oldest first, over all queued
requests of the current direction; writes drained between two watermarks; a row that has served `row_hit_cap` columns
yields to an older request for another row.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import layout as L
from .pointer import pointer_to


@njit(cache=True)
def _when(s, b):
    """First clock at which bank `b` can issue what it wants; NEVER if it wants nothing or is held for a refresh."""
    want = s[b + L.WANT]
    if want == 0 or s[b + L.BLOCKED] != 0:
        return L.NEVER
    g = s[b + L.GROUP]
    first = L.NEVER
    if want & L.W_RD:
        first = max(s[b + L.READY + L.T_RD], s[g + L.T_RD])
    if want & L.W_WR:
        first = min(first, max(s[b + L.READY + L.T_WR], s[g + L.T_WR]))
    if want & L.W_ACT:
        first = max(s[b + L.READY + L.T_ACT], s[g + L.T_ACT], s[s[b + L.RANK] + L.ACT_ALLOWED])
    if want & L.W_PRE:
        first = min(first, max(s[b + L.READY + L.T_PRE], s[g + L.T_PRE]))
    return first


@njit(cache=True)
def _survey(s, c):
    """Recompute the first clock of every bank, after something that may bring it forward (or hold it for good)."""
    for i in range(s[L.BANKS]):
        s[c + L.BANK_NEXT + i] = _when(s, s[c + L.BANK0] + i * L.BANK_SIZE)
    _soonest(s, c, -1)


@njit(cache=True)
def _soonest(s, c, clk):
    """First clock at which some bank of the channel may be ready; what is known of those due by `clk` is renewed.

    Commands of other banks only ever push a bank's first clock back, so what isn't renewed is a lower bound.
    """
    banks, at = s[L.BANKS], c + L.BANK_NEXT
    soon = L.NEVER
    for i in range(banks):
        soon = min(soon, s[at + i])
    if soon <= clk:
        for i in range(banks):
            if s[at + i] <= clk:
                s[at + i] = _when(s, s[c + L.BANK0] + i * L.BANK_SIZE)
        soon = L.NEVER
        for i in range(banks):
            soon = min(soon, s[at + i])
    s[c + L.SOON] = soon


@njit(cache=True)
def _is_ready(s, c, i, clk):
    """Whether bank number `i` can issue now; what is known of it may be out of date and is renewed."""
    at = c + L.BANK_NEXT + i
    if s[at] <= clk:
        s[at] = _when(s, s[c + L.BANK0] + i * L.BANK_SIZE)
    return s[at] <= clk


@njit(cache=True)
def _renew(s, c, b):
    """Recompute the first clock of bank `b`, which wants something else now."""
    t = _when(s, b)
    s[c + L.BANK_NEXT + s[b + L.INDEX]] = t
    s[c + L.SOON] = min(s[c + L.SOON], t)


@njit(cache=True)
def _choose(s, b):
    """Decide what bank `b` wants next from its queued transactions and its open row."""
    textbook = s[L.POLICY] == L.TEXTBOOK
    head = s[b + L.HEAD]
    if textbook and s[s[b + L.CHANNEL] + L.WRITE_MODE] != 0:
        head = s[b + L.HEAD_W]
    s[b + L.WANT] = 0
    if head < 0:
        return
    s[b + L.ROW_NODE] = head
    row = s[b + L.ROW]
    if row < 0:
        s[b + L.WANT] = L.W_ACT
        return
    read = write = -1
    n = head
    while n >= 0:
        if s[n + L.N_ROW] == row:
            if s[n + L.N_WRITE] == 0:
                if read < 0:
                    read = n
            elif write < 0:
                # a write waits for the reads of its own burst queued before it
                m = s[b + L.HEAD_W] if textbook else head
                while m != n and (s[m + L.N_WRITE] != 0 or s[m + L.N_BURST] != s[n + L.N_BURST]):
                    m = s[m + L.LINK]
                if m == n:
                    write = n
            if textbook or (read >= 0 and (write >= 0 or s[b + L.WRITES] == 0)):
                break
        n = s[n + L.LINK]
    want = 0
    if s[head + L.N_ROW] != row:
        capped = s[b + L.HITS] >= s[L.HIT_CAP]
        if capped or (read < 0 and write < 0):
            want = L.W_PRE
        if capped and textbook:
            read = write = -1
    if read >= 0:
        want |= L.W_RD
        s[b + L.COLUMN_NODE] = read
    if write >= 0:
        want |= L.W_WR
        s[b + L.WRITE_NODE] = write
    s[b + L.WANT] = want


@njit(cache=True)
def _hold_back(s, c, b, command, clk):
    """Apply the constraints that `command` on bank `b` puts on later commands."""
    rule = L.RULES + command * (L.N_TARGETS * L.N_RELATIONS)
    for k in range(L.N_TARGETS):
        t = clk + s[rule + k * L.N_RELATIONS + L.SAME_BANK]
        if t > s[b + L.READY + k]:
            s[b + L.READY + k] = t
    beyond = s[L.GROUP_TARGETS + command]
    if beyond == 0:
        return
    per_rank = s[L.GROUPS_PER_RANK]
    all_groups = s[L.GROUPS]
    own = s[b + L.INDEX] // s[L.BANKS_PER_GROUP]
    rank0 = own // per_rank * per_rank
    g0 = s[b + L.GROUP] - own * L.GROUP_SIZE
    for k in range(L.N_TARGETS):
        if beyond >> k & 1:
            at = rule + k * L.N_RELATIONS
            t = clk + s[at + L.SAME_RANK]
            for j in range(rank0, rank0 + per_rank):
                if j != own:
                    x = g0 + j * L.GROUP_SIZE + k
                    s[x] = max(s[x], t)
            x = g0 + own * L.GROUP_SIZE + k
            s[x] = max(s[x], clk + s[at + L.SAME_GROUP])
            t = clk + s[at + L.OTHER_RANK]
            if t > 0 and all_groups > per_rank:
                for j in range(all_groups):
                    if j < rank0 or j >= rank0 + per_rank:
                        x = g0 + j * L.GROUP_SIZE + k
                        s[x] = max(s[x], t)


@njit(cache=True)
def _hold_back_each(s, c, rank, bank, command, clk):
    """The same for a refresh: bank by bank over one rank (`bank` -1: an all-bank refresh, every bank is 'the same')."""
    rule = L.RULES + command * (L.N_TARGETS * L.N_RELATIONS)
    per_group = s[L.BANKS_PER_GROUP]
    for i in range(rank * s[L.BANKS_PER_RANK], (rank + 1) * s[L.BANKS_PER_RANK]):
        relation = L.SAME_BANK
        if bank >= 0 and i != bank:
            relation = L.SAME_GROUP if i // per_group == bank // per_group else L.SAME_RANK
        b = s[c + L.BANK0] + i * L.BANK_SIZE
        for k in range(L.N_TARGETS):
            t = clk + s[rule + k * L.N_RELATIONS + relation]
            if t > s[b + L.READY + k]:
                s[b + L.READY + k] = t


@njit(cache=True)
def _close(s, b, clk):
    """Bank `b` loses its open row; the rank goes idle with its last one."""
    s[b + L.ROW] = -1
    s[b + L.HITS] = 0
    rank = s[b + L.RANK]
    s[rank + L.OPEN_BANKS] -= 1
    if s[rank + L.OPEN_BANKS] == 0:
        s[rank + L.ACTIVE_CLOCKS] += clk - s[rank + L.ACTIVE_SINCE]


@njit(cache=True)
def _activate(s, c, b, clk):
    """Open the row of the bank's oldest transaction; remember the activate for the windows of four and thirty-two."""
    s[b + L.ROW] = s[s[b + L.ROW_NODE] + L.N_ROW]
    rank = s[b + L.RANK]
    if s[rank + L.OPEN_BANKS] == 0:
        s[rank + L.ACTIVE_SINCE] = clk
    s[rank + L.OPEN_BANKS] += 1
    pos = s[rank + L.FAW_POS]
    s[rank + L.FAW_RING + pos] = clk
    pos = (pos + 1) & 3
    s[rank + L.FAW_POS] = pos
    allowed = s[rank + L.FAW_RING + pos] + s[L.FAW]
    if s[L.AW32] > 0:
        pos = s[rank + L.AW32_POS]
        s[rank + L.AW32_RING + pos] = clk
        pos = (pos + 1) & 31
        s[rank + L.AW32_POS] = pos
        allowed = max(allowed, s[rank + L.AW32_RING + pos] + s[L.AW32])
    s[rank + L.ACT_ALLOWED] = allowed
    s[L.N_ACT] += 1
    _hold_back(s, c, b, L.ACT, clk)


@njit(cache=True)
def _precharge(s, c, b, clk):
    s[L.N_PRE] += 1
    _close(s, b, clk)
    _hold_back(s, c, b, L.PRE, clk)


@njit(cache=True)
def _bucket(s, address, write):
    """Where the chain of pending transactions with this address starts."""
    h = address * 2 + write
    return s[L.HASH_AT] + ((h ^ (h >> 7) ^ (h >> 17)) & s[L.HASH_MASK])


@njit(cache=True)
def _find(s, address, write):
    """The pending transaction of this address and direction, or -1."""
    n = s[_bucket(s, address, write)]
    while n >= 0 and (s[n + L.N_ADDRESS] != address or s[n + L.N_WRITE] != write):
        n = s[n + L.N_CHAIN]
    return n


@njit(cache=True)
def _forget(s, n):
    """Take a transaction out of the table of pending ones."""
    at = _bucket(s, s[n + L.N_ADDRESS], s[n + L.N_WRITE])
    while s[at] != n:
        at = s[at] + L.N_CHAIN
    s[at] = s[n + L.N_CHAIN]


@njit(cache=True)
def _slot(r, uid, capacity):
    """Offset of a request in the ring."""
    return ((uid & 255) * capacity + ((uid >> 8) & (capacity - 1))) * L.REQUEST_SIZE


@njit(cache=True)
def _complete(s, port, done, slow):
    """Account for one request that completes at clock `done`; `slow` tells reads from memory from posted ones."""
    s[L.LAST_DONE] = max(s[L.LAST_DONE], done)
    limit = s[port + L.OUTSTANDING]
    if limit > 0:
        mask = s[port + L.RING_MASK]
        ring = port + L.WINDOW_AT + 2 * (s[port + L.WINDOW_MASK] + 1)
        if slow:
            s[ring + ((s[port + L.SLOW_HEAD] + s[port + L.SLOW_COUNT]) & mask)] = done
            s[port + L.SLOW_COUNT] += 1
        else:
            s[ring + mask + 1 + ((s[port + L.FAST_HEAD] + s[port + L.FAST_COUNT]) & mask)] = done
            s[port + L.FAST_COUNT] += 1
        s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], done)


@njit(cache=True)
def _unlink(s, b, n, head_field):
    """Take transaction `n` out of its bank's list."""
    before = s[b + head_field]
    if before == n:
        s[b + head_field] = s[n + L.LINK]
        if s[n + L.LINK] < 0:
            s[b + head_field + 1] = -1
        return
    while s[before + L.LINK] != n:
        before = s[before + L.LINK]
    s[before + L.LINK] = s[n + L.LINK]
    if s[n + L.LINK] < 0:
        s[b + head_field + 1] = before


@njit(cache=True)
def _column(s, r, capacity, c, b, n, clk):
    """Issue the read or write `n` to bank `b`, with auto-precharge where the page policy wants it."""
    textbook = s[L.POLICY] == L.TEXTBOOK
    write = s[n + L.N_WRITE]
    row = s[b + L.ROW]
    _unlink(s, b, n, L.HEAD_W if textbook and write else L.HEAD)
    s[b + L.WRITES] -= write
    owner = s[b + L.OWNER]
    s[owner + L.OWNED] -= 1
    s[c + L.QUEUED] -= 1
    _forget(s, n)
    hit = s[b + L.HITS] != 0
    if write:
        s[L.N_WR] += 1
        s[L.N_WR_HIT] += hit
        s[L.WAITING_WRITES] -= 1
        s[L.LAST_WRITE] = max(s[L.LAST_WRITE], clk + s[L.WRITE_DELAY])
    else:
        s[L.N_RD] += 1
        s[L.N_RD_HIT] += hit
        done = clk + s[L.READ_DELAY]
        uid = s[n + L.N_UID]
        while uid >= 0:
            q = _slot(r, uid, capacity)
            r[q + L.R_DONE] = done
            s[L.WAITING_READS] -= 1
            s[L.N_DONE_READS] += 1
            s[L.LATENCY_CLOCKS] += done - r[q + L.R_READY]
            _complete(s, s[L.PORT_AT] + (uid & 255) * s[L.PORT_SIZE], done, True)
            uid = r[q + L.R_MERGED]
    s[L.QUEUED_CLOCKS] += clk - s[n + L.N_ACCEPTED]
    shut = s[L.CLOSED] != 0
    if textbook:
        s[c + (L.WRITES_HELD if write else L.READS)] -= 1
        s[L.FREED] = 1
        s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], clk)
        for head in (s[b + L.HEAD], s[b + L.HEAD_W]):
            m = head
            while shut and m >= 0:
                shut = s[m + L.N_ROW] != row
                m = s[m + L.LINK]
    else:
        if s[owner + L.OWNED] == s[L.BANK_SLOTS] - 1:
            s[c + L.MOVABLE] += s[owner + L.WAITING]
            s[c + L.MOVABLE_W] += s[owner + L.WAITING_W]
            s[c + L.READ_FROM] = s[c + L.WRITE_FROM] = 0
        if s[c + L.MOVABLE] + s[c + L.WRITES_HELD] > 0:
            s[c + L.DIRTY] = 1
    if shut:
        _close(s, b, clk)
    else:
        s[b + L.HITS] += 1
    _hold_back(s, c, b, (L.WRA if shut else L.WR) if write else (L.RDA if shut else L.RD), clk)
    s[n + L.LINK] = s[L.FREE_NODE]
    s[L.FREE_NODE] = n


@njit(cache=True)
def _serve(s, r, capacity, c, b, clk):
    """Issue the first ready command of bank `b` in its queue's order; returns its kind."""
    want = s[b + L.WANT]
    g = s[b + L.GROUP]
    kind = L.KIND_ROW
    if want & L.W_ACT:
        _activate(s, c, b, clk)
    elif want & L.W_PRE and max(s[b + L.READY + L.T_PRE], s[g + L.T_PRE]) <= clk:
        _precharge(s, c, b, clk)
    else:
        n = -1
        if want & L.W_RD and max(s[b + L.READY + L.T_RD], s[g + L.T_RD]) <= clk:
            n = s[b + L.COLUMN_NODE]
        if want & L.W_WR and max(s[b + L.READY + L.T_WR], s[g + L.T_WR]) <= clk:
            w = s[b + L.WRITE_NODE]
            if n < 0 or s[w + L.N_STAMP] < s[n + L.N_STAMP]:
                n = w
        _column(s, r, capacity, c, b, n, clk)
        kind = L.KIND_COLUMN
    _choose(s, b)
    _renew(s, c, b)
    return kind


@njit(cache=True)
def _first_stamp(s, b, clk):
    """Arrival stamp of the transaction that `_serve` would act for."""
    want = s[b + L.WANT]
    g = s[b + L.GROUP]
    if want & L.W_ACT or (want & L.W_PRE and max(s[b + L.READY + L.T_PRE], s[g + L.T_PRE]) <= clk):
        return s[s[b + L.ROW_NODE] + L.N_STAMP]
    stamp = L.NEVER
    if want & L.W_RD and max(s[b + L.READY + L.T_RD], s[g + L.T_RD]) <= clk:
        stamp = s[s[b + L.COLUMN_NODE] + L.N_STAMP]
    if want & L.W_WR and max(s[b + L.READY + L.T_WR], s[g + L.T_WR]) <= clk:
        stamp = min(stamp, s[s[b + L.WRITE_NODE] + L.N_STAMP])
    return stamp


@njit(cache=True)
def _pick_round_robin(s, c, clk):
    """The bank to serve: from the queue after the last one served, the first queue with a ready command; -1 if none."""
    if s[c + L.SOON] > clk:
        return -1
    queues = s[L.QUEUES]
    width = s[L.BANKS_PER_QUEUE]
    turn = s[c + L.TURN]
    for _ in range(queues):
        turn += 1
        if turn == queues:
            turn = 0
        if width == 1:
            if s[c + L.BANK_NEXT + turn] <= clk and _is_ready(s, c, turn, clk):
                s[c + L.TURN] = turn
                return s[c + L.BANK0] + turn * L.BANK_SIZE
        else:
            best, stamp = -1, L.NEVER
            for i in range(turn * width, (turn + 1) * width):
                if _is_ready(s, c, i, clk):
                    b = s[c + L.BANK0] + i * L.BANK_SIZE
                    t = _first_stamp(s, b, clk)
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
    column_bank = row_bank = -1
    column_stamp = row_stamp = L.NEVER
    for i in range(s[L.BANKS]):
        if s[c + L.BANK_NEXT + i] <= clk and _is_ready(s, c, i, clk):
            b = s[c + L.BANK0] + i * L.BANK_SIZE
            want = s[b + L.WANT]
            if want & (L.W_ACT | L.W_PRE):
                stamp = s[s[b + L.ROW_NODE] + L.N_STAMP]
                if rows and stamp < row_stamp:
                    row_bank, row_stamp = b, stamp
            elif columns:
                stamp = s[s[b + (L.WRITE_NODE if want & L.W_WR else L.COLUMN_NODE)] + L.N_STAMP]
                if stamp < column_stamp:
                    column_bank, column_stamp = b, stamp
    return column_bank if column_bank >= 0 else row_bank


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
        _survey(s, c)
    target = L.T_REF if bank < 0 else L.T_REFB
    wait_close, wait_refresh = L.NEVER, 0
    for i in range(first, last):
        b = s[c + L.BANK0] + i * L.BANK_SIZE
        if s[b + L.ROW] >= 0:
            t = max(s[b + L.READY + L.T_PRE], s[s[b + L.GROUP] + L.T_PRE])
            if t <= clk:
                _precharge(s, c, b, clk)
                s[L.N_REFRESH_PRE] += 1
                _choose(s, b)
                s[c + L.REFRESH_NEXT] = clk + 1
                return L.KIND_ROW
            wait_close = min(wait_close, t)
        else:
            wait_refresh = max(wait_refresh, s[b + L.READY + target], s[s[b + L.GROUP] + target])
    if wait_close < L.NEVER or wait_refresh > clk:
        s[c + L.REFRESH_NEXT] = wait_close if wait_close < L.NEVER else wait_refresh
        return L.KIND_NONE
    s[L.N_REF if bank < 0 else L.N_REFB] += 1
    _hold_back_each(s, c, rank, bank, L.REF if bank < 0 else L.REFB, clk)
    s[c + L.REFRESHING] = -1
    for i in range(s[L.BANKS]):
        s[s[c + L.BANK0] + i * L.BANK_SIZE + L.BLOCKED] = 0
    s[c + L.REFRESH_PENDING] -= 1
    pos = s[c + L.REFRESH_POS] + 1
    end = s[L.RANKS] if bank < 0 else s[L.BANKS]
    s[c + L.REFRESH_POS] = 0 if pos == end or s[L.REFRESH] == L.REFRESH_FIRST_RANK else pos
    s[c + L.REFRESH_NEXT] = clk + 1
    _survey(s, c)
    return L.KIND_ROW


@njit(cache=True)
def _append(s, b, n, head_field):
    """Put transaction `n` at the end of its bank's list."""
    s[n + L.LINK] = -1
    if s[b + head_field] < 0:
        s[b + head_field] = n
    else:
        s[s[b + head_field + 1] + L.LINK] = n
    s[b + head_field + 1] = n
    s[b + L.WRITES] += s[n + L.N_WRITE]
    s[s[b + L.OWNER] + L.OWNED] += 1
    c = s[b + L.CHANNEL]
    s[c + L.QUEUED] += 1
    s[n + L.N_STAMP] = s[c + L.STAMP]
    s[c + L.STAMP] += 1
    _choose(s, b)
    _renew(s, c, b)


@njit(cache=True)
def _move_one(s, c, clk):
    """Move the first transaction whose bank has room from the transaction queue to its command queue."""
    if s[L.UNIFIED] == 0 and s[c + L.DRAINING] == 0:
        held = s[c + L.WRITES_HELD]
        leftover = s[L.FLUSH] != 0 and held > 0 and s[c + L.READS] == 0
        if held >= s[L.WRITE_SLOTS] or ((held > s[L.DRAIN_ABOVE] or leftover) and s[c + L.QUEUED] == 0):
            s[c + L.DRAINING] = held
    writes = s[L.UNIFIED] == 0 and s[c + L.DRAINING] > 0
    count_at = c + (L.WRITES_HELD if writes else L.READS)
    from_at = c + (L.WRITE_FROM if writes else L.READ_FROM)
    queue = c + L.BANK_NEXT + s[L.BANKS] + (s[L.READ_SLOTS] if writes else 0)
    s[c + L.DIRTY] = 0
    if s[c + (L.MOVABLE_W if writes else L.MOVABLE)] == 0:
        return
    i = s[from_at]  # those before it have been found blocked
    n = s[queue + i]
    while s[s[s[n + L.N_BANK] + L.OWNER] + L.OWNED] >= s[L.BANK_SLOTS]:
        i += 1
        n = s[queue + i]
    s[from_at] = i
    if writes:
        if _find(s, s[n + L.N_ADDRESS], 0) >= 0:
            s[c + L.DRAINING] = 0  # a read of the same address goes first
            s[c + L.DIRTY] = 1
            return
        s[c + L.DRAINING] -= 1
    s[count_at] -= 1
    for j in range(i, s[count_at]):
        s[queue + j] = s[queue + j + 1]
    b = s[n + L.N_BANK]
    owner = s[b + L.OWNER]
    s[owner + (L.WAITING_W if writes else L.WAITING)] -= 1
    s[c + (L.MOVABLE_W if writes else L.MOVABLE)] -= 1
    _append(s, b, n, L.HEAD)
    if s[owner + L.OWNED] == s[L.BANK_SLOTS]:
        s[c + L.MOVABLE] -= s[owner + L.WAITING]
        s[c + L.MOVABLE_W] -= s[owner + L.WAITING_W]
    if s[c + L.MOVABLE] + s[c + L.WRITES_HELD] > 0:
        s[c + L.DIRTY] = 1
    s[L.FREED] = 1
    s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], clk)


@njit(cache=True)
def _direction(s, c):
    """Textbook policy: turn to writes at the high watermark or when no read waits, back at the low one when a read does."""
    reads, writes = s[c + L.READS], s[c + L.WRITES_HELD]
    mode = s[c + L.WRITE_MODE]
    if mode == 0 and (writes >= s[L.WRITE_HIGH] or (reads == 0 and writes > 0)):
        mode = 1
    elif mode == 1 and (writes == 0 or (writes <= s[L.WRITE_LOW] and reads > 0)):
        mode = 0
    if mode != s[c + L.WRITE_MODE]:
        s[c + L.WRITE_MODE] = mode
        for i in range(s[L.BANKS]):
            _choose(s, s[c + L.BANK0] + i * L.BANK_SIZE)
        _survey(s, c)


@njit(cache=True)
def _tick_dramsim3(s, r, capacity, c, clk):
    kind = L.KIND_NONE
    if s[c + L.REFRESH_PENDING] > 0:
        kind = _refresh(s, c, clk)
    if kind == L.KIND_NONE:
        b = _pick_round_robin(s, c, clk)
        if b >= 0:
            kind = _serve(s, r, capacity, c, b, clk)
    if kind != L.KIND_NONE and s[L.DUAL] != 0:
        b = _pick_round_robin(s, c, clk)
        if b >= 0:
            # the scan moves on even when what it finds is of the kind already issued
            g = s[b + L.GROUP]
            want = s[b + L.WANT]
            row = want & L.W_ACT or (want & L.W_PRE and max(s[b + L.READY + L.T_PRE], s[g + L.T_PRE]) <= clk)
            if (kind == L.KIND_COLUMN) == (row != 0):
                _serve(s, r, capacity, c, b, clk)
    if s[c + L.DIRTY] != 0:
        _move_one(s, c, clk)


@njit(cache=True)
def _tick_textbook(s, r, capacity, c, clk):
    if s[c + L.DIRTY] != 0:
        s[c + L.DIRTY] = 0
        _direction(s, c)
    bus = s[L.CHANNEL_AT] + (c - s[L.CHANNEL_AT]) // s[L.CHANNEL_SIZE] // s[L.SHARED_BUS] * s[L.SHARED_BUS] * s[L.CHANNEL_SIZE]
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
        if _serve(s, r, capacity, c, b, clk) == L.KIND_COLUMN:
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
def _tick(s, r, capacity, c, clk):
    """One channel, one clock; sets the channel's next clock."""
    while s[c + L.REFRESH_DUE] <= clk:
        s[c + L.REFRESH_PENDING] += 1
        s[c + L.REFRESH_DUE] += s[L.REFRESH_INTERVAL]
        s[c + L.REFRESH_NEXT] = clk
    if s[L.POLICY] == L.TEXTBOOK:
        _tick_textbook(s, r, capacity, c, clk)
    else:
        _tick_dramsim3(s, r, capacity, c, clk)
    if s[c + L.SOON] <= clk + 1:
        _soonest(s, c, clk + 1)
    soon = s[c + L.SOON]
    if s[c + L.REFRESH_PENDING] > 0:
        soon = min(soon, s[c + L.REFRESH_NEXT])
    if s[c + L.DIRTY] != 0:
        soon = clk
    s[c + L.NEXT] = min(s[c + L.REFRESH_DUE], max(soon, clk + 1))


@njit(cache=True)
def _has_room(s, c, write):
    if write and s[L.UNIFIED] == 0:
        return s[c + L.WRITES_HELD] < s[L.WRITE_SLOTS]
    return s[c + L.READS] < s[L.READ_SLOTS]


@njit(cache=True)
def _accept(s, r, q, uid, port, clk):
    """Take one request into its channel (which has room): forward, merge, coalesce or queue it."""
    c, address, write = r[q + L.R_CHANNEL], r[q + L.R_ADDRESS], r[q + L.R_WRITE]
    posted = _find(s, address, 1)
    if write != 0 or posted >= 0:
        done = clk + 2
        r[q + L.R_DONE] = done
        s[L.LATENCY_CLOCKS] += done - r[q + L.R_READY]
        _complete(s, port, done, False)
        if write == 0:
            s[L.N_DONE_READS] += 1
            s[L.N_FORWARDED] += 1
            return
        s[L.N_DONE_WRITES] += 1
        if posted >= 0:
            s[L.N_COALESCED] += 1
            return
        s[L.WAITING_WRITES] += 1
    else:
        r[q + L.R_MERGED] = -1
        s[L.WAITING_READS] += 1
        n = _find(s, address, 0)
        if n >= 0:
            r[q + L.R_MERGED] = s[n + L.N_UID]
            s[n + L.N_UID] = uid
            s[L.N_MERGED] += 1
            return
    n = s[L.FREE_NODE]
    s[L.FREE_NODE] = s[n + L.LINK]
    b = r[q + L.R_BANK]
    s[n + L.N_ROW] = r[q + L.R_ROW]
    s[n + L.N_BURST] = address >> s[L.BURST_SHIFT]
    s[n + L.N_ADDRESS] = address
    s[n + L.N_WRITE] = write
    s[n + L.N_BANK] = b
    s[n + L.N_UID] = uid
    s[n + L.N_ACCEPTED] = clk
    at = _bucket(s, address, write)
    s[n + L.N_CHAIN] = s[at]
    s[at] = n
    if s[L.POLICY] == L.TEXTBOOK:
        s[c + (L.WRITES_HELD if write else L.READS)] += 1
        _append(s, b, n, L.HEAD_W if write else L.HEAD)
        s[c + L.DIRTY] = 1
    else:
        held = write != 0 and s[L.UNIFIED] == 0
        count_at = c + (L.WRITES_HELD if held else L.READS)
        s[c + L.BANK_NEXT + s[L.BANKS] + (s[L.READ_SLOTS] if held else 0) + s[count_at]] = n
        s[count_at] += 1
        owner = s[b + L.OWNER]
        s[owner + (L.WAITING_W if held else L.WAITING)] += 1
        if s[owner + L.OWNED] < s[L.BANK_SLOTS]:
            s[c + (L.MOVABLE_W if held else L.MOVABLE)] += 1
        if s[c + L.MOVABLE] + s[c + L.WRITES_HELD] > 0:
            s[c + L.DIRTY] = 1
    if s[c + L.DIRTY] != 0 or s[c + L.SOON] <= clk + 1:
        s[c + L.NEXT] = min(s[c + L.NEXT], clk + 1)


@njit(cache=True)
def _retire_ring(s, port, ring, head_field, clk):
    """Forget the completions of one ring that have happened; returns the time of the next one."""
    mask = s[port + L.RING_MASK]
    while s[port + head_field + 1] > 0:
        t = s[ring + (s[port + head_field] & mask)]
        if t > clk:
            return t
        s[port + head_field] += 1
        s[port + head_field + 1] -= 1
        s[port + L.IN_FLIGHT] -= 1
    return L.NEVER


@njit(cache=True)
def _offer(s, r, capacity, clk):
    """Each port refills its window and offers it, oldest first; what is refused stays, what follows may pass it."""
    s[L.FRONT_NEXT] = L.NEVER
    freed = s[L.FREED]
    s[L.FREED] = 0
    ports = s[L.PORTS]
    for turn in range(ports):
        number = (turn + clk) % ports
        port = s[L.PORT_AT] + number * s[L.PORT_SIZE]
        window = port + L.WINDOW_AT
        limit = s[port + L.OUTSTANDING]
        again = L.NEVER
        if limit > 0:
            ring = window + 2 * (s[port + L.WINDOW_MASK] + 1)
            again = _retire_ring(s, port, ring, L.SLOW_HEAD, clk)
            again = min(again, _retire_ring(s, port, ring + s[port + L.RING_MASK] + 1, L.FAST_HEAD, clk))
        size, base, mask = s[port + L.WINDOW], s[port + L.WINDOW_BASE], s[port + L.WINDOW_MASK]
        while s[port + L.ENTER] < s[port + L.SUBMITTED] and size < s[port + L.LOOKAHEAD]:
            if limit > 0 and size + s[port + L.IN_FLIGHT] >= limit:
                break
            uid = s[port + L.ENTER] << 8 | number
            q = _slot(r, uid, capacity)
            if r[q + L.R_READY] > clk:
                again = min(again, r[q + L.R_READY])
                break
            at = window + 2 * ((base + size) & mask)
            s[at] = uid
            s[at + 1] = r[q + L.R_CHANNEL] * 2 + r[q + L.R_WRITE]
            s[port + L.WINDOW_WRITES] += r[q + L.R_WRITE]
            s[port + L.WRITES_AHEAD] -= r[q + L.R_WRITE]
            size += 1
            s[port + L.ENTER] += 1
        room = 0  # queues that can take one of these
        for i in range(s[L.CHANNELS]):
            c = s[L.CHANNEL_AT] + i * s[L.CHANNEL_SIZE]
            room += _has_room(s, c, 0)
            if s[port + L.WINDOW_WRITES] > 0 and s[L.UNIFIED] == 0:
                room += _has_room(s, c, 1)
        kept = 0 if freed else s[port + L.CHECKED]
        left = s[port + L.PER_CLOCK]
        i = kept
        while i < size and left > 0 and room > 0:
            at = window + 2 * ((base + i) & mask)
            uid, key = s[at], s[at + 1]
            if _has_room(s, key >> 1, key & 1):
                _accept(s, r, _slot(r, uid, capacity), uid, port, clk)
                s[port + L.IN_FLIGHT] += 1
                s[port + L.WINDOW_WRITES] -= key & 1
                left -= 1
                room -= not _has_room(s, key >> 1, key & 1)
            else:
                to = window + 2 * ((base + kept) & mask)
                s[to], s[to + 1] = uid, key
                kept += 1
            i += 1
        accepted = i - kept
        if accepted > 0:
            for j in range(kept - 1, -1, -1):  # what was refused moves up to what wasn't offered
                at, to = window + 2 * ((base + j) & mask), window + 2 * ((base + j + accepted) & mask)
                s[to], s[to + 1] = s[at], s[at + 1]
            s[port + L.WINDOW_BASE] = (base + accepted) & mask
            size -= accepted
            if room > 0 or s[port + L.WRITES_AHEAD] > 0:
                again = clk + 1  # refill the window and go on; else when a queue has room again
        s[port + L.CHECKED] = kept if room > 0 else size
        s[port + L.WINDOW] = size
        s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], again)


@njit(cache=True)
def _unaccepted(s):
    """Requests submitted that no channel has taken yet."""
    left = 0
    for number in range(s[L.PORTS]):
        port = s[L.PORT_AT] + number * s[L.PORT_SIZE]
        left += s[port + L.SUBMITTED] - s[port + L.ENTER] + s[port + L.WINDOW]
    return left


@njit(cache=True)
def _hungry(s):
    """True if a port could take more into its window this clock than it has been given."""
    for number in range(s[L.PORTS]):
        port = s[L.PORT_AT] + number * s[L.PORT_SIZE]
        if s[port + L.SUBMITTED] - s[port + L.ENTER] < s[port + L.LOOKAHEAD] - s[port + L.WINDOW]:
            return True
    return False


@njit(cache=True)
def run(state, ring, capacity, until, more, to_end):
    """Advance the memory, up to clock `until` (not included).

    Parameters
    ----------
    state : int64 vector, changed in place; ring : int64 ring of requests, [ports x capacity x REQUEST_SIZE]
    until : stop before this clock
    more : requests are still to come: stop as soon as a port's window would lack them
    to_end : stop one clock after the last submitted request has completed (with FLUSH set: the last write too)

    Returns
    -------
    bool : True if it stopped because everything submitted has completed.
    """
    s, r = pointer_to(state), pointer_to(ring)
    clk = s[L.CLOCK]
    channels, c_size, first, shared = s[L.CHANNELS], s[L.CHANNEL_SIZE], s[L.CHANNEL_AT], s[L.SHARED_BUS]
    while clk < until:
        if more and s[L.FRONT_NEXT] <= clk and _hungry(s):
            break
        if to_end and s[L.WAITING_READS] == 0 and (s[L.FLUSH] == 0 or s[L.WAITING_WRITES] == 0) and _unaccepted(s) == 0:
            end = s[L.LAST_DONE] + 1
            if s[L.FLUSH] != 0:
                end = max(end, s[L.LAST_WRITE] + 1)
            if clk >= end:
                s[L.CLOCK] = clk
                return True
            until = min(until, end)
        s[L.N_TICKS] += 1
        for i in range(channels):
            c = first + (i ^ (clk & (shared - 1))) * c_size
            if s[c + L.NEXT] <= clk:
                _tick(s, r, capacity, c, clk)
        if s[L.FRONT_NEXT] <= clk:
            _offer(s, r, capacity, clk)
        soon = s[L.FRONT_NEXT]
        for i in range(channels):
            soon = min(soon, s[first + i * c_size + L.NEXT])
        if to_end:  # look again when what is known so far has completed
            for done in (s[L.LAST_DONE], s[L.LAST_WRITE]):
                if done >= clk:
                    soon = min(soon, done + 1)
        clk = min(until, max(clk + 1, soon))
    s[L.CLOCK] = clk
    if to_end and s[L.WAITING_READS] == 0 and (s[L.FLUSH] == 0 or s[L.WAITING_WRITES] == 0) and _unaccepted(s) == 0:
        return clk > s[L.LAST_DONE] and (s[L.FLUSH] == 0 or clk > s[L.LAST_WRITE])
    return False


@njit(cache=True)
def submit(state, ring, capacity, number, addresses, writes, ready, mapping, hashing, burst_shift):
    """Decode requests and append them to port `number`'s ring (which has room).

    mapping : int64 [pieces, 4] of (bit in the burst number, width, field 0..5 = ch ra bg ba ro co, bit in the field);
    hashing : int64 [rules, 4] of (field, bit, source field, source bit); ready : int64 [n] or [1]  [clocks].
    """
    s, r = pointer_to(state), pointer_to(ring)
    port = s[L.PORT_AT] + number * s[L.PORT_SIZE]
    field = np.zeros(6, np.int64)
    for i in range(len(addresses)):
        burst = addresses[i] >> burst_shift
        field[:] = 0
        for j in range(len(mapping)):
            field[mapping[j, 2]] |= ((burst >> mapping[j, 0]) & ((1 << mapping[j, 1]) - 1)) << mapping[j, 3]
        for j in range(len(hashing)):
            field[hashing[j, 0]] ^= ((field[hashing[j, 2]] >> hashing[j, 3]) & 1) << hashing[j, 1]
        c = s[L.CHANNEL_AT] + field[0] * s[L.CHANNEL_SIZE]
        bank = field[1] * s[L.BANKS_PER_RANK] + field[2] * s[L.BANKS_PER_GROUP] + field[3]
        q = _slot(r, s[port + L.SUBMITTED] << 8 | number, capacity)
        r[q + L.R_ADDRESS] = addresses[i]
        r[q + L.R_CHANNEL] = c
        r[q + L.R_BANK] = s[c + L.BANK0] + bank * L.BANK_SIZE
        r[q + L.R_ROW] = field[4]
        r[q + L.R_WRITE] = writes[i]
        r[q + L.R_READY] = ready[i if len(ready) > 1 else 0]
        r[q + L.R_DONE] = -1
        s[port + L.SUBMITTED] += 1
        s[port + L.WRITES_AHEAD] += r[q + L.R_WRITE]
    s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], s[L.CLOCK])
