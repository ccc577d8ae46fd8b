"""The paper's tables and figures, number by number: `santa_sim.reproduce.run(["table8"]).to_frame()`."""

from .items import ITEMS, NEEDS_MODEL
from .report import Report, run
from .rows import Found, Row

__all__ = ["ITEMS", "NEEDS_MODEL", "Found", "Report", "Row", "run"]
