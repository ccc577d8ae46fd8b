"""Runs the compiled stages on given scores and random numbers, and gives what each row drew."""

import dataclasses

import numpy as np

from santa_sim.methods import budgets as budget_stage
from santa_sim.methods import draw as draw_stage
from santa_sim.methods.numerics import stash_tile

DRAWERS = ("santa", "s2anta-strat", "s2anta-sys", "prop-systematic", "s2anta-prop", "s2anta-flash")
LARGEST_BELOW_ONE = 1 - 2.0**-24


@dataclasses.dataclass(frozen=True)
class Stash:
    """u [R, n], m and ell [R, T] of scores that each row sees up to its limit."""

    u: np.ndarray
    m: np.ndarray
    ell: np.ndarray
    limits: np.ndarray
    tiles: np.ndarray
    tile: int

    def row(self, r):
        """(u, m, ell) of what row r sees."""
        return self.u[r, : self.limits[r]], self.m[r, : self.tiles[r]], self.ell[r, : self.tiles[r]]


def stash(scores, tile, limits=None):
    """Stash of float32 scores [R, n]; keys beyond a row's limit are NaN, so that reading one shows."""
    scores = np.atleast_2d(np.asarray(scores, np.float32))
    R, n = scores.shape
    limits = np.full(R, n) if limits is None else np.asarray(limits)
    T = -(-n // tile)
    u, m, ell = np.full((R, n), np.nan, np.float32), np.full((R, T), -np.inf, np.float32), np.zeros((R, T))
    scratch = np.empty(tile, np.float32)
    for r in range(R):
        for t in range(-(-limits[r] // tile)):
            part = slice(t * tile, min((t + 1) * tile, limits[r]))
            row = np.empty(part.stop - part.start, np.float32)
            m[r, t], ell[r, t] = stash_tile(scores[r, part], len(row), scratch, row)
            u[r, part] = row
    return Stash(u, m, ell, limits.astype(np.int64), -(-limits // tile).astype(np.int64), tile)


def random_numbers(rng, method, R, T, S):
    """As many as the method takes, multiples of 2^-24 as the generator's are."""
    count = S if method in ("santa", "s2anta-strat") else T if method in ("s2anta-prop", "s2anta-flash") else 1
    return rng.integers(0, 2**24, (R, count)) * 2.0**-24


def draw(stashed, method, S, random, by_threshold=False):
    """Times each row drew each key, int [R, n], and the tile budgets [R, T]."""
    R, n = stashed.u.shape
    T = stashed.m.shape[1]
    m, ell, tiles = stashed.m, stashed.ell, stashed.tiles
    share = np.zeros((R, T), np.int64)
    counts = np.zeros(len(budget_stage.BUDGET_COUNTS), np.int64)
    drawing = np.zeros((T, len(draw_stage.DRAW_COUNTS)), np.int64)
    rows = np.full((R, S + T), -1, np.int32)
    if method in ("santa", "s2anta-strat"):
        residual = np.zeros((R, S))
        budget_stage.thresholds(m, ell, tiles, S, random, method == "s2anta-strat", counts, share, residual)
        draw_stage.draw_thresholds(stashed.u, ell, stashed.limits, stashed.tile, share, residual, drawing, rows)
    else:
        low, high = np.zeros((R, T)), np.zeros((R, T))
        if method == "s2anta-flash":
            budget_stage.uniform(tiles, S, random, counts, share, low, high)
        elif method == "s2anta-prop":
            budget_stage.largest_remainder(m, ell, tiles, S, random, counts, share, low, high)
        else:
            budget_stage.systematic(m, ell, tiles, S, random, counts, share, low, high)
        draw_stage.draw_positions(stashed.u, ell, stashed.limits, stashed.tile, share, low, high, by_threshold,
                                  method == "s2anta-sys", drawing, rows)  # fmt: skip
    drawn = [rows[r, : share[r].sum()] for r in range(R)]
    return np.array([np.bincount(x, minlength=n) for x in drawn]), share
