"""Bank-level DRAM: rows, banks, channels and the commands that they allow, clock by clock.

`load_dram` reads a memory, `Dram` is one with state, `replay` plays a trace on one alone.
"""

from .config import DramConfig, load_dram, shipped_drams
from .memory import Dram, Port, Ticket
from .process import DramProcess
from .replay import Report, replay, replay_chunks
from .traces import read_trace, write_trace

__all__ = [
    "Dram", "DramConfig", "DramProcess", "Port", "Report", "Ticket", "load_dram", "read_trace", "replay",
    "replay_chunks", "shipped_drams", "write_trace",
]  # fmt: skip
