"""Beyond one run: comparisons, sweeps, timelines, rooflines and whole decode steps."""
