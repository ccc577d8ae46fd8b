"""The machine model: a trace goes in, time, energy and traffic come out."""

from .result import Result
from .run import simulate

__all__ = ["Result", "simulate"]
