"""A GPU as a machine: a trace played kernel by kernel (docs/gpu.md)."""

from .implementations import IMPLEMENTATIONS
from .timing import predict
from .work import Work, dense_work, work_of

__all__ = ["IMPLEMENTATIONS", "Work", "dense_work", "predict", "work_of"]
