"""The compiled bank model: the front end that feeds the channels, and the clock.

One clock is: refresh falls due, each channel issues its command (or two, with separate row and column buses) and moves
one transaction to its command queues, then completions are seen and the ports offer requests. Clocks on which nothing
can happen are skipped: each channel knows its next one.

Numba's cache watches this file alone: after a change to `bank`, `scheduler` or `layout`, save this one too.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import layout as L
from .bank import append, bucket, complete, find, slot
from .pointer import pointer_to
from .scheduler import tick


@njit(cache=True)
def _has_room(s, c, write):
    """Whether the channel's queue for this direction can take one more."""
    if write and s[L.UNIFIED] == 0:
        return s[c + L.WRITES_HELD] < s[L.WRITE_SLOTS]
    return s[c + L.READS] < s[L.READ_SLOTS]


@njit(cache=True)
def _must_wait(s, write, address):
    """Textbook policy: a write isn't taken while a read of its address is queued, which it would overtake."""
    return write != 0 and s[L.POLICY] == L.TEXTBOOK and find(s, address, 0) >= 0


@njit(cache=True)
def _accept(s, r, capacity, q, uid, port, clk):
    """Take one request into its channel (which has room): forward, merge, coalesce or queue it."""
    c, address, write = r[q + L.R_CHANNEL], r[q + L.R_ADDRESS], r[q + L.R_WRITE]
    posted = find(s, address, 1) if s[L.WAITING_WRITES] > 0 else -1
    if write != 0 or posted >= 0:
        done = clk + 2
        complete(s, r, capacity, uid, port, done, False)
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
        n = find(s, address, 0)
        if n >= 0:
            r[q + L.R_MERGED] = s[n + L.N_UID]
            s[n + L.N_UID] = uid
            s[L.N_MERGED] += 1
            return
    n = s[L.FREE_NODE]
    s[L.FREE_NODE] = s[n + L.LINK]
    b = r[q + L.R_BANK]
    s[n + L.N_ROW] = r[q + L.R_ROW]
    r[q + L.R_ROW], r[q + L.R_BANK] = -1 - clk, -1
    s[n + L.N_BURST] = address >> s[L.BURST_SHIFT]
    s[n + L.N_ADDRESS] = address
    s[n + L.N_WRITE] = write
    s[n + L.N_BANK] = b
    s[n + L.N_UID] = uid
    s[n + L.N_ACCEPTED] = clk
    at = bucket(s, address, write)
    s[n + L.N_CHAIN] = s[at]
    s[at] = n
    if s[L.POLICY] == L.TEXTBOOK:
        s[c + (L.WRITES_HELD if write else L.READS)] += 1
        append(s, b, n, L.HEAD_W if write else L.HEAD)
        s[c + L.DIRTY] = 1
    else:
        held = write != 0 and s[L.UNIFIED] == 0
        count_at = c + (L.WRITES_HELD if held else L.READS)
        s[c + s[L.QUEUE_AT] + (s[L.READ_SLOTS] if held else 0) + s[count_at]] = n
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
    again_from_start = s[L.FREED] != 0
    s[L.FREED] = 0
    s[L.STARVED] = 0
    ports = s[L.PORTS]
    for turn in range(ports):
        number = 0 if ports == 1 else (turn + clk) % ports
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
            q = slot(r, uid, capacity)
            if r[q + L.R_READY] > clk:
                again = min(again, r[q + L.R_READY])
                break
            at = window + 2 * ((base + size) & mask)
            s[at] = uid
            s[at + 1] = r[q + L.R_CHANNEL] * 2 + r[q + L.R_WRITE]
            s[port + L.WINDOW_WRITES] += r[q + L.R_WRITE]
            s[r[q + L.R_CHANNEL] + L.IN_WINDOW] += 1
            s[port + L.WRITES_AHEAD] -= r[q + L.R_WRITE]
            size += 1
            s[port + L.ENTER] += 1
        room = 0  # queues that can take one of these
        for i in range(s[L.CHANNELS]):
            c = s[L.CHANNEL_AT] + i * s[L.CHANNEL_SIZE]
            room += _has_room(s, c, 0)
            if s[port + L.WINDOW_WRITES] > 0 and s[L.UNIFIED] == 0:
                room += _has_room(s, c, 1)
        kept = 0 if again_from_start else s[port + L.CHECKED]
        left = s[port + L.PER_CLOCK]
        i = kept
        while i < size and left > 0 and room > 0:
            at = window + 2 * ((base + i) & mask)
            uid, key = s[at], s[at + 1]
            taken = _has_room(s, key >> 1, key & 1)
            if taken:
                q = slot(r, uid, capacity)
                taken = not _must_wait(s, r[q + L.R_WRITE], r[q + L.R_ADDRESS])
                if taken:
                    _accept(s, r, capacity, q, uid, port, clk)
                    s[port + L.IN_FLIGHT] += 1
                    s[port + L.WINDOW_WRITES] -= key & 1
                    s[(key >> 1) + L.IN_WINDOW] -= 1
                    left -= 1
                    room -= not _has_room(s, key >> 1, key & 1)
            if not taken:
                if kept != i:
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
                again = clk + 1  # refill the window and go on
            else:
                s[L.STARVED] = 1  # refill it when any queue has room again
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
def run(state, ring, capacity, until, more, to_end, to_ticket):
    """Advance the memory, up to clock `until` (not included).

    Parameters
    ----------
    state : int64 vector, changed in place; ring : int64 ring of requests, [ports x capacity x REQUEST_SIZE]
    until : stop before this clock
    more : requests are still to come: stop as soon as a port's window would lack them
    to_ticket : stop as soon as requests handed in together are all known to complete
    to_end : stop one clock after the last submitted request has completed (with FLUSH set: the last write too)

    Returns
    -------
    bool : True if it stopped because everything submitted has completed.
    """
    s, r = pointer_to(state), pointer_to(ring)
    clk = s[L.CLOCK]
    channels, c_size, first, shared = s[L.CHANNELS], s[L.CHANNEL_SIZE], s[L.CHANNEL_AT], s[L.SHARED_BUS]
    while clk < until:
        if more and _hungry(s):
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
                tick(s, r, capacity, c, clk)
        if s[L.FRONT_NEXT] <= clk:
            _offer(s, r, capacity, clk)
        soon = s[L.FRONT_NEXT]
        for i in range(channels):
            soon = min(soon, s[first + i * c_size + L.NEXT])
        if to_end:  # look again when what is known so far has completed
            for done in (s[L.LAST_DONE], s[L.LAST_WRITE]):
                if done >= clk:
                    soon = min(soon, done + 1)
        clk = min(until, clk + 1 if to_ticket and s[L.TICKETS_DONE] > 0 else max(clk + 1, soon))
        if to_ticket and s[L.TICKETS_DONE] > 0:
            break
    s[L.CLOCK] = clk
    if to_end and s[L.WAITING_READS] == 0 and (s[L.FLUSH] == 0 or s[L.WAITING_WRITES] == 0) and _unaccepted(s) == 0:
        return clk > s[L.LAST_DONE] and (s[L.FLUSH] == 0 or clk > s[L.LAST_WRITE])
    return False


@njit(cache=True)
def submit(state, ring, capacity, number, addresses, writes, ready, mapping, hashing, burst_shift, ticket):
    """Decode requests and append them to port `number`'s ring (which has room).

    mapping : int64 [pieces, 4] of (bit in the burst number, width, field 0..5 = ch ra bg ba ro co, bit in the field);
    ticket : count them down together, to know when all have completed
    hashing : int64 [rules, 4] of (field, bit, source field, source bit); ready : int64 [n] or [1]  [clocks].
    """
    s, r = pointer_to(state), pointer_to(ring)
    port = s[L.PORT_AT] + number * s[L.PORT_SIZE]
    field = np.zeros(6, np.int64)
    first = s[port + L.SUBMITTED]
    for i in range(len(addresses)):
        burst = addresses[i] >> burst_shift
        field[:] = 0
        for j in range(len(mapping)):
            field[mapping[j, 2]] |= ((burst >> mapping[j, 0]) & ((1 << mapping[j, 1]) - 1)) << mapping[j, 3]
        for j in range(len(hashing)):
            field[hashing[j, 0]] ^= ((field[hashing[j, 2]] >> hashing[j, 3]) & 1) << hashing[j, 1]
        c = s[L.CHANNEL_AT] + field[0] * s[L.CHANNEL_SIZE]
        bank = field[1] * s[L.BANKS_PER_RANK] + field[2] * s[L.BANKS_PER_GROUP] + field[3]
        q = slot(r, s[port + L.SUBMITTED] << 8 | number, capacity)
        r[q + L.R_ADDRESS] = addresses[i]
        r[q + L.R_CHANNEL] = c
        r[q + L.R_BANK] = s[c + L.BANK0] + bank * L.BANK_SIZE
        r[q + L.R_ROW] = field[4]
        r[q + L.R_WRITE] = writes[i]
        r[q + L.R_READY] = ready[i if len(ready) > 1 else 0]
        r[q + L.R_DONE] = -1
        r[q + L.R_TICKET] = first if ticket else -1
        r[q + L.R_LEFT] = len(addresses)
        s[port + L.SUBMITTED] += 1
        s[port + L.WRITES_AHEAD] += r[q + L.R_WRITE]
    s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], s[L.CLOCK])
