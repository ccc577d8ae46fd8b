"""One bank's part of the compiled model: what it wants next, what each command does to it and to the others.

Everything acts on the state vector `s` (see `layout`) and the request ring `r`, both bare pointers; time is in memory
clocks. For each bank and each command that it wants, `s` holds the first clock at which every gate is open (`DUE`).
"""

from __future__ import annotations

from numba import njit

from . import layout as L
from .queues import complete, forget, freed, leave_queue, slot, unlink


@njit(cache=True)
def renew(s, c, b):
    """Recompute when bank `b` can issue what it wants now: one clock per target, NEVER for what it doesn't want."""
    banks = s[L.BANKS]
    due = c + L.DUE + s[b + L.INDEX]
    shared = due + L.DUE_TARGETS * banks
    want = s[b + L.WANT] * (1 - s[b + L.BLOCKED])
    first = L.NEVER
    for k in range(L.DUE_TARGETS):
        t = L.NEVER
        if want >> k & 1:
            t = max(s[b + L.READY + k], s[shared + k * banks])
            first = min(first, t)
        s[due + k * banks] = t
    s[due + (L.DUE_TARGETS + L.N_TARGETS) * banks] = first
    s[c + L.SOON] = min(s[c + L.SOON], first)
    if want != 0 and s[L.POLICY] == L.TEXTBOOK:  # which wants one thing at a time
        key = s[b + L.INDEX]
        if want & (L.W_ACT | L.W_PRE):
            key += L.ROW_KEY
            node = s[b + L.ROW_NODE]
        else:
            node = s[b + (L.WRITE_NODE if want & L.W_WR else L.COLUMN_NODE)]
        s[c + s[L.AGE_AT] + s[b + L.INDEX]] = key + (s[node + L.N_STAMP] << L.AGE_SHIFT)


@njit(cache=True)
def soonest(s, c):
    """Find each bank's first clock, and the channel's."""
    banks = s[L.BANKS]
    at = c + L.DUE
    first = at + (L.DUE_TARGETS + L.N_TARGETS) * banks
    soon = L.NEVER
    for i in range(banks):
        t = min(min(s[at + i], s[at + banks + i]), min(s[at + 2 * banks + i], s[at + 3 * banks + i]))
        s[first + i] = t
        soon = min(soon, t)
    s[c + L.SOON] = soon


@njit(cache=True)
def choose(s, b):
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
def _at_least(now, t):
    """max(now, t) of times: written so that what is stored is always stored, as masked stores are slow on some processors."""
    more = t - now
    return now + (more & ~(more >> 63))


@njit(cache=True)
def hold_back(s, c, b, command, clk):
    """Apply the constraints that `command` on bank `b` puts on later commands of its channel."""
    rule = L.RULES + command * (L.N_TARGETS * L.N_RELATIONS)
    for k in range(L.N_TARGETS):
        t = clk + s[rule + k * L.N_RELATIONS + L.SAME_BANK]
        if t > s[b + L.READY + k]:
            s[b + L.READY + k] = t
    beyond = s[L.BEYOND + command]
    if beyond == 0:
        return
    banks = s[L.BANKS]
    spread = s[L.SPREAD_AT] + (command * s[L.GROUPS] + s[b + L.GROUP]) * L.N_TARGETS * banks
    for k in range(L.N_TARGETS):
        if beyond >> k & 1:
            wait = spread + k * banks
            shared = c + L.DUE + (L.DUE_TARGETS + k) * banks
            due = c + L.DUE + min(k, L.DUE_TARGETS - 1) * banks
            for i in range(banks):
                s[shared + i] = _at_least(s[shared + i], clk + s[wait + i])
            if k < L.DUE_TARGETS:
                for i in range(banks):
                    s[due + i] = _at_least(s[due + i], s[shared + i])


@njit(cache=True)
def hold_back_each(s, c, rank, bank, command, clk):
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
def close(s, b, clk):
    """Bank `b` loses its open row; the rank goes idle with its last one."""
    s[b + L.ROW] = -1
    s[b + L.HITS] = 0
    rank = s[b + L.RANK]
    s[rank + L.OPEN_BANKS] -= 1
    if s[rank + L.OPEN_BANKS] == 0:
        s[rank + L.ACTIVE_CLOCKS] += clk - s[rank + L.ACTIVE_SINCE]


@njit(cache=True)
def activate(s, c, b, clk):
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
    s[L.N_ACT] += 1
    hold_back(s, c, b, L.ACT, clk)
    first = s[b + L.INDEX] // s[L.BANKS_PER_RANK] * s[L.BANKS_PER_RANK]
    due = c + L.DUE + L.T_ACT * s[L.BANKS]
    for x in range(due + first, due + first + s[L.BANKS_PER_RANK]):
        s[x] = _at_least(s[x], allowed)
    for x in range(due + first + L.DUE_TARGETS * s[L.BANKS], due + first + L.DUE_TARGETS * s[L.BANKS] + s[L.BANKS_PER_RANK]):
        s[x] = _at_least(s[x], allowed)


@njit(cache=True)
def precharge(s, c, b, clk):
    s[L.N_PRE] += 1
    close(s, b, clk)
    hold_back(s, c, b, L.PRE, clk)


@njit(cache=True)
def _column(s, r, capacity, c, b, n, clk):
    """Issue the read or write `n` to bank `b`, with auto-precharge where the page policy wants it."""
    textbook = s[L.POLICY] == L.TEXTBOOK
    write = s[n + L.N_WRITE]
    row = s[b + L.ROW]
    unlink(s, b, n, L.HEAD_W if textbook and write else L.HEAD)
    s[b + L.WRITES] -= write
    owner = s[b + L.OWNER]
    s[owner + L.OWNED] -= 1
    s[c + L.QUEUED] -= 1
    forget(s, n)
    hit = s[b + L.HITS] != 0
    if write:
        s[L.N_WR] += 1
        s[L.N_WR_HIT] += hit
        s[L.WAITING_WRITES] -= 1
        s[L.LAST_WRITE] = max(s[L.LAST_WRITE], clk + s[L.WRITE_DELAY])
        if s[L.KEEP] != 0:
            r[slot(r, s[n + L.N_UID], capacity) + L.R_BANK] = clk
    else:
        s[L.N_RD] += 1
        s[L.N_RD_HIT] += hit
        done = clk + s[L.READ_DELAY]
        uid = s[n + L.N_UID]
        while uid >= 0:
            q = slot(r, uid, capacity)
            if s[L.KEEP] != 0:
                r[q + L.R_BANK] = clk
            s[L.WAITING_READS] -= 1
            s[L.N_DONE_READS] += 1
            complete(s, r, capacity, uid, s[L.PORT_AT] + (uid & 255) * s[L.PORT_SIZE], done, True)
            uid = r[q + L.R_MERGED]
    s[L.QUEUED_CLOCKS] += clk - s[n + L.N_ACCEPTED]
    shut = s[L.CLOSED] != 0
    if textbook:
        leave_queue(s, c, write)
        freed(s, c, clk)
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
        close(s, b, clk)
    else:
        s[b + L.HITS] += 1
    hold_back(s, c, b, (L.WRA if shut else L.WR) if write else (L.RDA if shut else L.RD), clk)
    s[n + L.LINK] = s[L.FREE_NODE]
    s[L.FREE_NODE] = n


@njit(cache=True)
def serve(s, r, capacity, c, b, clk):
    """Issue the first ready command of bank `b` in its queue's order; returns its kind."""
    banks = s[L.BANKS]
    due = c + L.DUE + s[b + L.INDEX]
    kind = L.KIND_ROW
    if s[due + L.T_ACT * banks] <= clk:
        activate(s, c, b, clk)
    elif s[due + L.T_PRE * banks] <= clk:
        precharge(s, c, b, clk)
    else:
        n = -1
        if s[due + L.T_RD * banks] <= clk:
            n = s[b + L.COLUMN_NODE]
        if s[due + L.T_WR * banks] <= clk:
            w = s[b + L.WRITE_NODE]
            if n < 0 or s[w + L.N_STAMP] < s[n + L.N_STAMP]:
                n = w
        if n < 0:
            return L.KIND_NONE  # nothing is due after all
        _column(s, r, capacity, c, b, n, clk)
        kind = L.KIND_COLUMN
    choose(s, b)
    renew(s, c, b)
    soonest(s, c)
    return kind


@njit(cache=True)
def first_stamp(s, c, b, clk):
    """Arrival stamp of the transaction that `serve` would act for."""
    banks = s[L.BANKS]
    due = c + L.DUE + s[b + L.INDEX]
    if s[due + L.T_ACT * banks] <= clk or s[due + L.T_PRE * banks] <= clk:
        return s[s[b + L.ROW_NODE] + L.N_STAMP]
    stamp = L.NEVER
    if s[due + L.T_RD * banks] <= clk:
        stamp = s[s[b + L.COLUMN_NODE] + L.N_STAMP]
    if s[due + L.T_WR * banks] <= clk:
        stamp = min(stamp, s[s[b + L.WRITE_NODE] + L.N_STAMP])
    return stamp


@njit(cache=True)
def append(s, b, n, head_field):
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
    if s[L.POLICY] != L.TEXTBOOK or s[b + L.WANT] & (L.W_RD | L.W_WR | L.W_ACT) == 0:
        choose(s, b)  # what an older transaction wants of the bank doesn't change, under textbook
        renew(s, c, b)
