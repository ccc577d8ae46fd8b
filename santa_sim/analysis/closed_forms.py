"""Operation, access and coverage counts as closed forms of the shape alone: Tables 8 and 10 of arXiv:2605.01910.

The kernels count what they do while they do it; these formulas say what that must come to. Nothing here is imported by a
kernel, and tests hold the two equal as integers. Everything is per query head, for all of its queries.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..errors import InputError, choose
from ..fixed_point import is_power_of_two
from ..methods.spec import METHODS


@dataclasses.dataclass(frozen=True)
class Counts:
    """Scalar operations and logical scalar accesses of one stage.

    Attributes
    ----------
    adds, mults, shifts : int  [scalar operations];  a division counts as a multiplication
    reads, writes : int  [scalars]
    """

    adds: int
    mults: int
    reads: int
    writes: int
    shifts: int = 0

    def times(self, n: int) -> Counts:
        """The same for n heads."""
        return Counts(*(n * value for value in dataclasses.astuple(self)))


def keys_visible(n_q: int, n_k: int, causal: bool = True) -> np.ndarray:
    """int64 [n_q], keys that each query sees: the last query sees all n_k; without a mask every query does.

    Raises
    ------
    InputError
        n_q outside 1 ... n_k.
    """
    if not 1 <= n_q <= n_k:
        raise InputError(f"n_q={n_q} must be 1 ... n_k={n_k}")
    return np.arange(n_k - n_q + 1, n_k + 1) if causal else np.full(n_q, n_k)


def samples_drawn(method: str, S: int, n_q: int, n_k: int, tile: int, causal: bool = True) -> int:
    """Draws of all queries of a head: n_q * S, or for flash the sum over queries of T * max(1, floor(S / T)).

    T = ceil(keys visible / tile) is each query's own number of tiles.
    """
    if method != "s2anta-flash":
        return n_q * S
    tiles = -(-keys_visible(n_q, n_k, causal) // tile)
    return int((tiles * np.maximum(1, S // tiles)).sum())


def score_stage(n_q: int, n_k: int, d: int, causal: bool = True) -> Counts:
    """Exact scores (Table 10): every visible pair costs d multiplications and d additions and one write.

    Queries and keys are read once each, (n_q + n_k) * d, whatever the mask.
    """
    pairs = int(keys_visible(n_q, n_k, causal).sum())
    return Counts(adds=pairs * d, mults=pairs * d, reads=(n_q + n_k) * d, writes=pairs)


def bernoulli_score_stage(draws: np.ndarray, n_k: int, mean_group: bool = False) -> Counts:
    """Bernoulli scores of one decode query (Eq. 5 and 13), from how often each feature was drawn.

    Parameters
    ----------
    draws : int [d], draws of each feature; the sign is ignored
    mean_group : the features belong to the group's mean query: every drawn one is multiplied and added once

    Returns
    -------
    Counts : n_k additions per draw (repeats counted), or n_k multiplications and additions per drawn feature; d scalars of
        the query and n_k of each drawn feature read
    """
    drawn = int(np.count_nonzero(draws))
    adds = n_k * (drawn if mean_group else int(np.abs(draws).sum()))
    return Counts(adds=adds, mults=n_k * drawn if mean_group else 0, reads=n_k * drawn + len(draws), writes=n_k)


def value_stage(method: str, n_q: int, n_k: int, d: int, budget: int | None = None, causal: bool = True,
                tile: int | None = None, fixed_point: bool = False) -> Counts:  # fmt: skip
    """The value stage (Table 8 for n_q = 1, Table 10 without a mask; sums over visible keys with one).

    Parameters
    ----------
    budget : k of top-k (a query that sees fewer keys takes all of them), S of the sampled methods
    tile : keys per tile, needed for flash's number of draws
    fixed_point : values are integers, so that a division by a power of two is a shift

    Returns
    -------
    Counts : normalisation is d multiplications per query, or d shifts; the merge of flash's tiles is not in Table 8 and
        not in here. Dense and top-k normalise in the softmax, so nothing is added for it.

    Raises
    ------
    InputError
        An unknown method, or flash without its tile length.
    """
    choose("method", method, METHODS)
    visible = keys_visible(n_q, n_k, causal)
    writes = n_q * d
    if method in ("sdpa", "topk"):
        products = int((visible if method == "sdpa" else np.minimum(visible, budget)).sum()) * d
        return Counts(products, products, products, writes)
    if method == "s2anta-flash" and tile is None:
        raise InputError("tile=None: flash's number of draws needs the keys per tile")
    adds = samples_drawn(method, budget, n_q, n_k, tile, causal) * d
    if method == "s2anta-flash":
        tiles = -(-visible // tile)
        by_shift = fixed_point and all(is_power_of_two(int(each)) for each in np.maximum(1, budget // tiles))
    else:
        by_shift = fixed_point and is_power_of_two(budget)
    return Counts(adds, 0 if by_shift else writes, adds, writes, writes if by_shift else 0)


def expected_unique_rows(p: np.ndarray, S: int, method: str) -> float:
    """Rows that one query is expected to touch with S draws from p.

    Parameters
    ----------
    p : float [n_k], attention weights, adding up to 1
    method : 'santa' (independent draws), 's2anta-strat' (one draw in each of S equal strata of the CDF) or 's2anta-sys'
        (a grid of spacing 1/S with one random offset)

    Returns
    -------
    float  [rows] : independent sum 1 - (1 - p)^S; stratified 1 - product over strata of (1 - S * overlap); systematic
        sum min(1, S p)
    """
    choose("method", method, ("santa", "s2anta-strat", "s2anta-sys"))
    p = np.asarray(p, np.float64)
    if method == "santa":
        return float(-np.expm1(S * np.log1p(-np.minimum(p, 1.0 - 1e-16))).sum())
    if method == "s2anta-sys":
        return float(np.minimum(1.0, S * p).sum())
    after = S * np.cumsum(p)
    before = np.concatenate(([0.0], after[:-1]))
    missed = np.ones(len(p))
    # a key whose interval holds a whole stratum is always drawn; else it overlaps at most two of them
    edge = np.ceil(before)
    inside = after <= edge
    missed[inside] = 1 - (after - before)[inside]
    across = ~inside
    whole = np.floor(after) - edge
    left, right = (edge - before)[across], (after - np.floor(after))[across]
    missed[across] = np.where(whole[across] >= 1, 0.0, (1 - left) * (1 - right))
    return float((1 - missed).sum())


def uniform_prefill_coverage(n_k: int, S: int) -> float:
    """Expected fraction of V's rows that a causal prefill over n_k = n_q equal weights touches with independent draws.

    Row j (from 1) is missed by query i >= j with probability (1 - 1/i)^S; the product over i = j ... n_k telescopes to
    ((j - 1) / n_k)^S, so the mean tends to S / (S + 1): 50, 80, 88.9 and 94.1 % for S = 1, 4, 8 and 16, which is what
    Table 9 of arXiv:2605.01910 reports for Gaussian inputs.
    """
    return float(1 - ((np.arange(n_k) / n_k) ** S).mean())
