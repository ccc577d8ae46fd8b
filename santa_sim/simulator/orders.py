"""Which order a machine follows: of those that it has room for, the fastest.

To put work off longer isn't always better, and what must wait needs room. So a list of orders is made, with little and much
waiting; which ones are in the list, the trace and the look-aheads say, neither the buffers nor the lanes. Of those that
fit into the machine's buffers, the one that ends first is taken, on a memory of bandwidth and latency alone. A machine
with more of anything has at least the same orders to choose from, and each is as fast there or faster: so it is never slower.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .compile import Program
from .jobs import Schedule
from .machine import play
from .memory import BandwidthMemory
from .ports import DirectPort
from .rooms import EVERY, WORK, Waiting
from .schedule import schedule

if TYPE_CHECKING:
    from ..hardware_model import Hardware

OUTPUTS = (1, EVERY)
WRITES = (1, 4, EVERY)
GAIN = 0.02  # On banks, whose ups and downs the choice doesn't see, an order that lets less wait must be faster by so much.


def fitting(program: Program, hardware: Hardware) -> list[Schedule]:
    """The orders of a program that a machine has room for, the most waiting last; there is always one."""
    return [order for order in _orders(program, hardware) if order.fits]


def order(program: Program, hardware: Hardware) -> Schedule:
    """The one that a machine follows."""
    orders, plain = fitting(program, hardware), hardware.on_bandwidth()
    return orders[fastest(orders, lambda each: _time_fs(each, plain), hardware)]


def fastest(orders: list, time_fs: Callable[[object], int], hardware: Hardware) -> int:
    """Which of `fitting` orders, in some form that `time_fs` times; of equal ones the last."""
    if len(orders) == 1:
        return 0
    times = [time_fs(each) for each in orders]
    least = min(times)
    if hardware.memory.model == "banks" and times[-1] * (1 - GAIN) <= least:
        return len(orders) - 1
    return max(number for number, time in enumerate(times) if time == least)


def _orders(program: Program, hardware: Hardware) -> Iterator[Schedule]:
    """All that differ. Where a limit was never reached, a higher one makes the same order."""
    for outputs in OUTPUTS:
        reached: set[str] = set()
        for writes in WRITES:
            written: set[str] = set()
            for work in (2**n for n in itertools.count()):
                made = schedule(program, hardware, Waiting(work, writes, outputs))
                yield made
                written |= made.full
                if made.full.isdisjoint(WORK):
                    break
            reached |= written
            if written <= {*WORK, "output_writes"}:
                break
        if "output_writes" not in reached:
            break


def _time_fs(made: Schedule, plain: Hardware) -> int:
    return play(made, lambda env: DirectPort(env, BandwidthMemory(plain.memory), plain.gather.outstanding), plain).end_fs
