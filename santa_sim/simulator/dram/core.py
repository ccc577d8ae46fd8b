"""The compiled bank model: the front end that feeds the channels, and the clock.

One clock is: refresh falls due, each channel issues its command (or two, with separate row and column buses) and moves
one transaction to its command queues, then completions are seen and the ports offer requests. Clocks on which nothing
can happen are skipped: each channel knows its next one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from . import layout as L
from .bank import append
from .pointer import pointer_to
from .queues import bucket, complete, enter_queue, find, may_take, slot
from .scheduler import tick, turns


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
        enter_queue(s, c, write)
        append(s, b, n, L.HEAD_W if write else L.HEAD)
        if turns(s, c):
            s[c + L.DIRTY] = 1
        s[c + L.NEXT] = min(s[c + L.NEXT], max(s[c + L.SOON], clk + 1))
    else:
        held = write != 0 and s[L.UNIFIED] == 0
        count = s[c + (L.WRITES_HELD if held else L.READS)]
        s[c + s[L.QUEUE_AT] + (s[L.READ_SLOTS] if held else 0) + count] = n
        enter_queue(s, c, held)
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
def _refill(s, r, capacity, number, port, clk):
    """Let requests into a port's window, in order, as far as its limits go; when the next one is ready, or NEVER."""
    limit = s[port + L.OUTSTANDING]
    size = s[port + L.WINDOW]
    again = L.NEVER
    while s[port + L.ENTER] < s[port + L.SUBMITTED] and size < s[port + L.LOOKAHEAD]:
        if limit > 0 and size + s[port + L.IN_FLIGHT] >= limit:
            break
        uid = s[port + L.ENTER] << 8 | number
        q = slot(r, uid, capacity)
        if r[q + L.R_READY] > clk:
            again = r[q + L.R_READY]
            break
        c, write = r[q + L.R_CHANNEL], r[q + L.R_WRITE]
        queue = c + s[L.LISTS_AT] + (2 * number + write) * L.WAITING_SIZE
        r[q + L.R_MERGED] = -1
        if s[queue + L.W_HEAD] < 0:
            s[queue + L.W_HEAD] = uid
        else:
            r[slot(r, s[queue + L.W_TAIL], capacity) + L.R_MERGED] = uid
        s[queue + L.W_TAIL] = uid
        s[c + L.IN_WINDOW] += 1
        if _has_room(s, c, write):
            may_take(s, c, number, write)
        s[port + L.WINDOW_WRITES] += write
        s[port + L.WRITES_AHEAD] -= write
        size += 1
        s[port + L.ENTER] += 1
    s[port + L.WINDOW] = size
    return again


@njit(cache=True)
def _oldest(s, r, capacity, number, port):
    """The oldest request of a port's window that its queue can take, or -1; queues that can't are struck off the list."""
    oldest = L.NEVER
    i = 0
    while i < s[port + L.CANDIDATES]:
        key = s[port + L.CANDIDATES_AT + i]
        c, write = key >> 1, key & 1
        queue = c + s[L.LISTS_AT] + (2 * number + write) * L.WAITING_SIZE
        uid = -1
        if _has_room(s, c, write):
            uid = s[queue + L.W_HEAD]
            while write != 0 and uid >= 0 and _must_wait(s, 1, r[slot(r, uid, capacity) + L.R_ADDRESS]):
                uid = r[slot(r, uid, capacity) + L.R_MERGED]
        if uid < 0:
            s[queue + L.W_LISTED] = 0
            s[port + L.CANDIDATES] -= 1
            s[port + L.CANDIDATES_AT + i] = s[port + L.CANDIDATES_AT + s[port + L.CANDIDATES]]
        else:
            oldest = min(oldest, uid)
            i += 1
    return -1 if oldest == L.NEVER else oldest


@njit(cache=True)
def _leave_window(s, r, capacity, number, port, uid):
    """Take a request out of its port's window."""
    q = slot(r, uid, capacity)
    c, write = r[q + L.R_CHANNEL], r[q + L.R_WRITE]
    queue = c + s[L.LISTS_AT] + (2 * number + write) * L.WAITING_SIZE
    before, n = -1, s[queue + L.W_HEAD]
    while n != uid:
        before, n = n, r[slot(r, n, capacity) + L.R_MERGED]
    after = r[q + L.R_MERGED]
    if before < 0:
        s[queue + L.W_HEAD] = after
    else:
        r[slot(r, before, capacity) + L.R_MERGED] = after
    if after < 0:
        s[queue + L.W_TAIL] = before
    s[c + L.IN_WINDOW] -= 1
    s[port + L.WINDOW] -= 1
    s[port + L.WINDOW_WRITES] -= write


@njit(cache=True)
def _offer(s, r, capacity, clk):
    """Each port refills its window and offers it, oldest first; what is refused stays, what follows may pass it."""
    s[L.FRONT_NEXT] = L.NEVER
    s[L.STARVED] = 0
    ports = s[L.PORTS]
    number = clk % ports if ports > 1 else 0
    for _ in range(ports):
        port = s[L.PORT_AT] + number * s[L.PORT_SIZE]
        again = L.NEVER
        if s[port + L.OUTSTANDING] > 0:
            ring = port + L.CANDIDATES_AT + 2 * s[L.CHANNELS]
            again = _retire_ring(s, port, ring, L.SLOW_HEAD, clk)
            again = min(again, _retire_ring(s, port, ring + s[port + L.RING_MASK] + 1, L.FAST_HEAD, clk))
        again = min(again, _refill(s, r, capacity, number, port, clk))
        writes = s[port + L.WINDOW_WRITES] > 0 and s[L.UNIFIED] == 0
        left = s[port + L.PER_CLOCK]
        while left > 0 and s[port + L.CANDIDATES] > 0:
            uid = _oldest(s, r, capacity, number, port)
            if uid < 0:
                break
            _leave_window(s, r, capacity, number, port, uid)
            _accept(s, r, capacity, slot(r, uid, capacity), uid, port, clk)
            s[port + L.IN_FLIGHT] += 1
            left -= 1
        if left < s[port + L.PER_CLOCK]:
            room = s[L.ROOM] > 0 or (writes and s[L.ROOM_W] > 0)
            if room or s[port + L.WRITES_AHEAD] > 0:
                again = clk + 1  # refill the window and go on
            else:
                s[L.STARVED] = 1  # refill it when any queue has room again
        s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], again)
        number = number + 1 if number + 1 < ports else 0


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
def make_room(state, ring, capacity, number, count):
    """See that `count` more requests fit into port `number`'s ring: the ring and its capacity, larger ones if need be."""
    port = state[L.PORT_AT] + number * state[L.PORT_SIZE]
    needed = state[port + L.SUBMITTED] - state[port + L.FIRST] + count
    if needed <= capacity:
        return ring, capacity
    wider = capacity
    while wider < needed:
        wider *= 2
    grown = np.zeros(state[L.PORTS] * wider * L.REQUEST_SIZE, np.int64)
    for other in range(state[L.PORTS]):
        port = state[L.PORT_AT] + other * state[L.PORT_SIZE]
        for uid in range(state[port + L.FIRST], state[port + L.SUBMITTED]):
            to = (other * wider + (uid & (wider - 1))) * L.REQUEST_SIZE
            old = (other * capacity + (uid & (capacity - 1))) * L.REQUEST_SIZE
            grown[to : to + L.REQUEST_SIZE] = ring[old : old + L.REQUEST_SIZE]
    return grown, wider


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
    alike = 0  # low bits of a burst's number that choose a column alone
    for j in range(len(mapping)):
        if mapping[j, 0] == 0 and mapping[j, 2] == 5:
            alike = mapping[j, 1]
    for j in range(len(hashing)):
        if hashing[j, 2] == 5:
            alike = 0
    c = bank = 0
    before = -1
    for i in range(len(addresses)):
        burst = addresses[i] >> burst_shift
        if burst >> alike != before:
            before = burst >> alike
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
