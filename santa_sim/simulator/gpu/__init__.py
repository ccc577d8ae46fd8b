"""A GPU as a machine: a trace played kernel by kernel (docs/gpu.md)."""

from .figure4 import paper_figure4
from .implementations import IMPLEMENTATIONS
from .timing import predict
from .work import Work, dense_work, work_of

__all__ = ["IMPLEMENTATIONS", "Work", "dense_work", "paper_figure4", "predict", "work_of"]
