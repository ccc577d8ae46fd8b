"""The memory side of a trace: the bursts that a machine asks its memory for, in the order of its program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..trace import Trace
from .compile import addresses_of, addresses_of_rows, compile_trace
from .orders import order

if TYPE_CHECKING:
    from ..hardware import Hardware


def memory_requests(trace: Trace, hardware: Hardware) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Requests of a trace on a machine, a piece per memory job: what `simulate` hands to the machine's memory.

    The order is the one in which the machine hands jobs to its memory, fixed before the run. When a job is handed
    over, and how many gathered rows are in flight, depends on time and isn't in it.

    Yields
    ------
    addresses : int64 [n], first byte of each burst of `hardware.memory.burst_bytes`, K and V where
        `hardware.kv_layout` puts them
    writes : bool [n], all the same in one piece

    Raises
    ------
    InputError
        The machine lacks a unit that the trace needs, or the trace's items don't hang together.
    """
    if getattr(hardware, "kind", None) == "gpu":
        raise InputError(f"hardware={hardware.name!r}: a GPU's memory requests aren't modelled one by one; write an accelerator, such as 'adder_hbm3'")
    jobs = order(compile_trace(trace, hardware), hardware).jobs["dram"]
    return _requests(jobs, hardware.memory.burst_bytes)


def _requests(jobs: list, burst: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for job in jobs:
        if job.regions:
            addresses, _ = addresses_of(job.regions, burst)
            yield addresses, np.full(len(addresses), job.write)
        if job.rows is not None:
            addresses, _ = addresses_of_rows(job.rows, burst)
            yield addresses, np.zeros(len(addresses), np.bool_)
