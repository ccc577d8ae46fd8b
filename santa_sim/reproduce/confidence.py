"""What a right kernel may miss by chance: limits for the largest of many z-scores, and seeds of independent streams."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

LEVEL = 1e-4  # chance that an item calls a right kernel wrong, over all tests of one row together


def z_limit(tests: int, level: float = LEVEL) -> float:
    """Two-sided limit of |z| that the largest of `tests` standard normal numbers passes with probability at most `level`.

    By Bonferroni, so the tests needn't be independent.
    """
    return NormalDist().inv_cdf(1 - level / (2 * tests))


def largest_z(samples: np.ndarray, expected: np.ndarray, resolution: float = 0.0) -> float:
    """Largest |mean - expected| in standard errors of the mean, over the components of samples [trials, ...].

    resolution : absolute error that rounding alone may give the mean, added to the standard error
    """
    error = samples.std(axis=0, ddof=1) / math.sqrt(len(samples)) + resolution
    difference = np.abs(samples.mean(axis=0, dtype=np.float64) - expected)
    return float(np.max(np.where(difference == 0, 0.0, difference / np.where(error == 0, np.finfo(float).tiny, error))))


def stream(seed: int, *indices: int) -> int:
    """A 64-bit seed of its own for every (seed, indices)."""
    return int(np.random.SeedSequence([seed, *indices]).generate_state(1, np.uint64)[0])
