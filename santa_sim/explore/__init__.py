"""Beyond one run: comparisons, sweeps, timelines, rooflines and whole decode steps."""

from .roofline import roofline

__all__ = ["roofline"]
