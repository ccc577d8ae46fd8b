"""Requests and transactions of the compiled model: where they wait, how they are found, and what completes them.

A request has a place in the ring `r`, whose port and number make its `uid`; a transaction is a node in the state vector `s`. Nodes
are chained twice: in their bank's list, oldest first, and in the table of pending addresses.
"""

from __future__ import annotations

from numba import njit

from . import layout as L


@njit(cache=True)
def bucket(s, address, write):
    """Where the chain of pending transactions with this address starts."""
    h = address * 2 + write
    return s[L.HASH_AT] + ((h ^ (h >> 7) ^ (h >> 17)) & s[L.HASH_MASK])


@njit(cache=True)
def find(s, address, write):
    """The pending transaction of this address and direction, or -1."""
    n = s[bucket(s, address, write)]
    while n >= 0 and (s[n + L.N_ADDRESS] != address or s[n + L.N_WRITE] != write):
        n = s[n + L.N_CHAIN]
    return n


@njit(cache=True)
def forget(s, n):
    """Take a transaction out of the table of pending ones."""
    at = bucket(s, s[n + L.N_ADDRESS], s[n + L.N_WRITE])
    while s[at] != n:
        at = s[at] + L.N_CHAIN
    s[at] = s[n + L.N_CHAIN]


@njit(cache=True)
def slot(r, uid, capacity):
    """Offset of a request in the ring."""
    return ((uid & 255) * capacity + ((uid >> 8) & (capacity - 1))) * L.REQUEST_SIZE


@njit(cache=True)
def complete(s, r, capacity, uid, port, done, slow):
    """Account for a request that completes at clock `done`; `slow` tells reads from memory from posted ones."""
    q = slot(r, uid, capacity)
    r[q + L.R_DONE] = done
    s[L.LAST_DONE] = max(s[L.LAST_DONE], done)
    if r[q + L.R_TICKET] >= 0:
        first = slot(r, r[q + L.R_TICKET] << 8 | (uid & 255), capacity)
        r[first + L.R_LEFT] -= 1
        if r[first + L.R_LEFT] == 0:
            s[L.TICKETS_DONE] += 1
    limit = s[port + L.OUTSTANDING]
    if limit > 0:
        mask = s[port + L.RING_MASK]
        ring = port + L.CANDIDATES_AT + 2 * s[L.CHANNELS]
        if slow:
            s[ring + ((s[port + L.SLOW_HEAD] + s[port + L.SLOW_COUNT]) & mask)] = done
            s[port + L.SLOW_COUNT] += 1
        else:
            s[ring + mask + 1 + ((s[port + L.FAST_HEAD] + s[port + L.FAST_COUNT]) & mask)] = done
            s[port + L.FAST_COUNT] += 1
        s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], done)


@njit(cache=True)
def unlink(s, b, n, head_field):
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
def may_take(s, c, number, write):
    """Put a queue of channel `c` on the list of those that may take a request of port `number`."""
    queue = c + s[L.LISTS_AT] + (2 * number + write) * L.WAITING_SIZE
    if s[queue + L.W_HEAD] >= 0 and s[queue + L.W_LISTED] == 0:
        port = s[L.PORT_AT] + number * s[L.PORT_SIZE]
        s[queue + L.W_LISTED] = 1
        s[port + L.CANDIDATES_AT + s[port + L.CANDIDATES]] = 2 * c + write
        s[port + L.CANDIDATES] += 1


@njit(cache=True)
def freed(s, c, clk):
    """A queue of channel `c` has room again: have the ports offer, if a request of theirs may be waiting for it."""
    if s[c + L.IN_WINDOW] > 0:
        for number in range(s[L.PORTS]):
            may_take(s, c, number, 0)
            may_take(s, c, number, 1)
        s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], clk)
    elif s[L.STARVED] != 0:
        s[L.FRONT_NEXT] = min(s[L.FRONT_NEXT], clk)


@njit(cache=True)
def enter_queue(s, c, held):
    """One more in a channel's queue (`held`: of its writes); ROOM and ROOM_W count the queues that aren't full."""
    if held:
        s[c + L.WRITES_HELD] += 1
        s[L.ROOM_W] -= s[c + L.WRITES_HELD] == s[L.WRITE_SLOTS]
    else:
        s[c + L.READS] += 1
        s[L.ROOM] -= s[c + L.READS] == s[L.READ_SLOTS]


@njit(cache=True)
def leave_queue(s, c, held):
    """One less in a channel's queue."""
    if held:
        s[L.ROOM_W] += s[c + L.WRITES_HELD] == s[L.WRITE_SLOTS]
        s[c + L.WRITES_HELD] -= 1
    else:
        s[L.ROOM] += s[c + L.READS] == s[L.READ_SLOTS]
        s[c + L.READS] -= 1
