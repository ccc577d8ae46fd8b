"""The stages of the attention methods as plain torch code, one short function each: the text to read beside the paper.

Shapes: H_kv KV heads; R rows (query positions x grouped heads); T tiles of `tile` keys. A row sees the first
`visible[r, t]` keys of tile t. The stash u [H_kv, R, T, tile] is 0 at keys that a row doesn't see; m is -inf and ell 0
in tiles without any that it sees.

Algorithms and equations are those of arXiv:2605.01910. u lies on a grid of 2^-40 and tile masses on one of 2^-32, so
that their float64 sums are exact and `cumsum` gives the same prefix in whatever order a device adds. Quotients are
written tensor by tensor: torch can turn a division of or by a Python number into a product with a rounded reciprocal.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_GRID = 2.0**-17  # float32's steps above this are multiples of 2^-40; adding and subtracting it rounds to them
_MASS_STEPS = 2.0**32
INT32 = (-(2**31), 2**31 - 1)


# ---- scores ---------------------------------------------------------------------------------------------------------


def by_tile(x: torch.Tensor, tile: int) -> torch.Tensor:
    """[..., n] -> [..., T, tile]; what is missing of the last tile is 0."""
    x = F.pad(x, (0, -x.shape[-1] % tile))
    return x.reshape(*x.shape[:-1], -1, tile)


def stash(scores: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Softmax of every tile by itself (Algorithm 3): u = exp(s - m), m = max s, ell = sum u.

    scores : float32 [H_kv, R, T, tile];  seen : bool [R, T, tile]

    Returns
    -------
    u : float32 [H_kv, R, T, tile], multiples of 2^-40;  m : float32 [H_kv, R, T];  ell : float64 [H_kv, R, T]
    """
    scores = scores.masked_fill(~seen, -torch.inf)
    m = scores.amax(-1)
    u = torch.exp(scores - m[..., None])
    u = torch.where(u >= _GRID, u, (u + _GRID) - _GRID).masked_fill(~seen, 0.0)
    return u, m, u.double().sum(-1)


def draw_features(magnitude: torch.Tensor, B: int, stratified: bool, random: torch.Tensor):
    """How often each query feature is drawn: B Bernoulli draws, or floor(B a) and one draw for the rest (Eq. 8-9).

    magnitude : float32 [..., d], >= 0;  random : float64 [..., B, d], or [..., 1, d] for stratified, in [0, 1)

    Returns
    -------
    drawn : int64 [..., d];  norm : float32 [..., 1], the largest magnitude
    """
    norm = magnitude.amax(-1, keepdim=True)
    share = torch.where(norm > 0, magnitude.double() / norm.double(), 0.0)
    if not stratified:
        return (random < share[..., None, :]).sum(-2), norm
    whole = torch.floor(B * share)
    return (whole + (random[..., 0, :] < B * share - whole)).long(), norm


def group_mean(magnitude: torch.Tensor) -> torch.Tensor:
    """Mean over the grouped heads, added in their order: float32 [..., G, d] -> [..., d]."""
    total = sum(magnitude.unbind(-2))
    return total / torch.full_like(total, magnitude.shape[-2])


# ---- budgets --------------------------------------------------------------------------------------------------------


def tile_masses(m: torch.Tensor, ell: torch.Tensor) -> torch.Tensor:
    """exp(m - max m) * ell on a grid of 2^-32, float64 [H_kv, R, T]."""
    top = m.amax(-1, keepdim=True)
    return torch.round(torch.exp(m.double() - top.double()) * ell * _MASS_STEPS) / _MASS_STEPS


def systematic(masses: torch.Tensor, S: int, offset: torch.Tensor):
    """One global systematic sample: the tiles' positions are prefix mass * S / Z + offset.

    offset : float64 [H_kv, R, 1] in [0, 1)

    Returns
    -------
    budgets : int64 [H_kv, R, T], whole numbers in (low, high];  low, high : float64, a tile's first and last position
    """
    prefix = masses.cumsum(-1)
    total = prefix[..., -1:]
    end = S + offset
    scale = torch.full_like(total, S) / total
    high = torch.where(prefix == total, end, torch.minimum(offset + scale * prefix, end))
    low = torch.cat([offset, high[..., :-1]], -1)
    return (torch.floor(high) - torch.floor(low)).long(), low, high


def largest_remainder(masses: torch.Tensor, S: int, holds_keys: torch.Tensor):
    """Tile budgets (Algorithm 4): whole parts of S * mass / Z, the rest to the largest fractions, ties to lower tiles.

    holds_keys : bool [R, T]

    Returns
    -------
    budgets : int64 [H_kv, R, T];  fraction : float64 [H_kv, R, T];  left : int64 [H_kv, R], samples given to fractions
    """
    total = masses.sum(-1, keepdim=True)
    share = torch.full_like(total, S) / total * masses
    whole = torch.floor(share)
    fraction = share - whole
    left = S - whole.sum(-1).long()
    order = torch.sort(torch.where(holds_keys, fraction, -1.0), descending=True, stable=True).indices
    rank = order.argsort(-1)  # the inverse permutation
    return whole.long() + (rank < left[..., None]) * holds_keys, fraction, left


def bisect(first: torch.Tensor, last: torch.Tensor, reached) -> tuple[torch.Tensor, torch.Tensor]:
    """Binary search of many at once: the smallest index in first ... last where reached(index) is true, else `last`.

    first, last : int64, inclusive;  reached : function of an index tensor, monotone

    Returns
    -------
    index, and steps : int64, the comparisons that each search made
    """
    steps = torch.zeros_like(first)
    while (searching := first < last).any():
        middle = (first + last) >> 1
        found = reached(middle)
        last = torch.where(searching & found, middle, last)
        first = torch.where(searching & ~found, middle + 1, first)
        steps = steps + searching
    return first, steps


def find_tiles(masses, ell, tiles, S: int, random: torch.Tensor, stratified: bool):
    """Tiles of S independent draws (Algorithm 2), or of one in each of S equal strata of the CDF.

    masses, ell : [H_kv, R, T];  tiles : int64 [R], tiles that hold visible keys
    random : float64 [H_kv, R, S] in [0, 1);  stratified : draw j falls in stratum j

    Returns
    -------
    tile_of : int64 [H_kv, R, S], ascending;  inside : float64 [H_kv, R, S], what is left of each draw in its tile, in
    units of u;  steps : int64 [H_kv, R, S]
    """
    prefix = masses.cumsum(-1)
    total = prefix[..., -1:]
    strata = torch.arange(S, device=masses.device) + random
    threshold = strata * (total / torch.full_like(total, S)) if stratified else random * total

    def reached(t):
        after = prefix.gather(-1, t)
        return (after > threshold) | (after == total)

    last = (tiles - 1)[:, None].expand(random.shape)
    tile_of, steps = bisect(torch.zeros_like(last), last, reached)
    before = (prefix - masses).gather(-1, tile_of)
    inside = (threshold - before) * (ell.gather(-1, tile_of) / masses.gather(-1, tile_of))
    order = torch.argsort(tile_of, stable=True)
    return tile_of.gather(-1, order), inside.gather(-1, order), steps


# ---- draws ----------------------------------------------------------------------------------------------------------


def draw_by_weights(u, ell, low, high, scanned) -> torch.Tensor:
    """Systematic draws (Algorithm 5): a key is drawn floor(position after it) - floor(position before it) times.

    low, high : float64 [H_kv, R, T];  scanned : bool [H_kv, R, T], tiles that are looked at

    Returns
    -------
    rows : int64 [draws], drawn keys in order of head, row, tile, key
    """
    cumulative = u.double().cumsum(-1)
    scale = (high - low) / ell
    position = torch.minimum(low[..., None] + scale[..., None] * cumulative, high[..., None])
    position = torch.where(cumulative == ell[..., None], high[..., None], position)
    floors = torch.floor(torch.cat([low[..., None], position], -1)).long()
    times = (floors.diff(dim=-1) * scanned[..., None]).flatten(-2)
    keys = torch.arange(times.shape[-1], device=u.device).expand(times.shape)
    return keys.flatten().repeat_interleave(times.flatten())


def draw_by_thresholds(u, ell, low, high, budgets) -> torch.Tensor:
    """The same rows (up to rounding at the thresholds) with a multiplication per sample instead of one per key.

    A whole number k in (low, high] belongs to the first key whose cumulative u reaches (k - low) * ell / (high - low).
    """
    tile = u.shape[-1]
    running = u.double().cumsum(-1).flatten()
    budgets, ell, low, high = (x.flatten() for x in (budgets, ell, low, high))
    place = torch.arange(len(budgets), device=u.device).repeat_interleave(budgets)  # which (head, row, tile), per draw
    number = torch.arange(len(place), device=u.device) - (budgets.cumsum(0) - budgets)[place]
    k = torch.floor(low).long()[place] + 1 + number
    inverse = torch.where(high > low, ell / (high - low), 0.0)
    threshold = torch.minimum((k - low[place]) * inverse[place], ell[place])
    first = place * tile
    found, _ = bisect(first, first + tile - 1, lambda j: running[j] >= threshold)
    n_tiles = u.shape[-2]
    return found - first + place % n_tiles * tile


def find_keys(u, ell, visible, tile_of, inside) -> tuple[torch.Tensor, torch.Tensor]:
    """Independent draws inside their tiles: binary search in the running sum of u.

    visible : int64 [R, T];  tile_of, inside : from `find_tiles`

    Returns
    -------
    rows : int64 [H_kv, R, S];  steps : int64 [H_kv, R, S]
    """
    first_key = tile_of * u.shape[-1]
    running = u.double().cumsum(-1).flatten(-2)
    total = ell.gather(-1, tile_of)

    def reached(j):
        at = running.gather(-1, j)
        return (at > inside) | (at == total)

    last = first_key + visible.expand_as(ell).gather(-1, tile_of) - 1
    return bisect(first_key, last, reached)


# ---- values ---------------------------------------------------------------------------------------------------------


def gather_add(v: torch.Tensor, rows, lengths, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Add drawn rows of V: no multiplication unless `weights` are given (top-k).

    v : [n_k, H_kv, d];  rows : int64 [draws], by accumulator;  lengths : int64 [H_kv, ...], rows of each accumulator
    weights : [draws], of v's type

    Returns
    -------
    [H_kv, ..., d], of v's type
    """
    n_k, H_kv, d = v.shape
    index, starts = _addresses(v, rows, lengths)
    sums = F.embedding_bag(index, v.reshape(n_k * H_kv, d), starts, mode="sum", per_sample_weights=weights)
    return sums.reshape(*lengths.shape, d)


def gather_add_int32(v: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, int]:
    """`gather_add` with accumulators of 32 bits that saturate, row after row; v holds whole numbers as float64.

    Returns
    -------
    sums : float64, whole numbers;  saturated : int, additions that hit the end of the range
    """
    low, high = INT32
    if gather_add(v.abs(), rows, lengths).amax() <= high:
        return gather_add(v, rows, lengths), 0
    n_k, H_kv, d = v.shape
    table = v.reshape(n_k * H_kv, d)
    index, starts = _addresses(v, rows, lengths)
    sums = torch.zeros(len(starts), d, dtype=v.dtype, device=v.device)
    saturated = 0
    for step in range(int(lengths.amax())):
        active = torch.nonzero(lengths.flatten() > step)[:, 0]
        exact = sums[active] + table[index[starts[active] + step]]
        kept = exact.clamp(low, high)
        saturated += int((kept != exact).sum())
        sums[active] = kept
    return sums.reshape(*lengths.shape, d), saturated


def _addresses(v, rows, lengths):
    """Drawn rows as rows of [n_k * H_kv, d], and where each accumulator's begin."""
    H_kv = v.shape[1]
    of_head = lengths.reshape(H_kv, -1).sum(-1)
    heads = torch.arange(H_kv, device=rows.device).repeat_interleave(of_head)
    lengths = lengths.flatten()
    return rows * H_kv + heads, lengths.cumsum(0) - lengths


def dense_values(v: torch.Tensor, u, m, ell, steps: int, value_step: float) -> torch.Tensor:
    """Dense attention from the stash, tile by tile with the running maximum of flash attention.

    v : [n, H_kv, d];  u, m, ell : as stashed;  steps : fixed point's steps per unit of a weight, 0 for floats
    value_step : value of one unit of the sums

    Returns
    -------
    float32 [H_kv, R, d], normalised
    """
    H_kv, R, T, tile = u.shape
    out = torch.zeros(H_kv, R, v.shape[-1], device=v.device)
    top = torch.full((H_kv, R, 1), -torch.inf, dtype=torch.float64, device=v.device)
    total = torch.zeros_like(top)
    for t in range(T):
        rows = v[t * tile : (t + 1) * tile].transpose(0, 1)
        weights = u[:, :, t, : rows.shape[1]]
        if steps:
            weights = torch.round(weights.double() * steps)
        partial = (weights @ rows).float()
        here = m[:, :, t, None].double()
        new = torch.maximum(top, here)
        old_scale, new_scale = torch.exp(top - new).float(), torch.exp(here - new).float()
        out = out * old_scale + partial * (new_scale * value_step)
        total = total * old_scale + ell[:, :, t, None] * new_scale
        top = new
    return out * torch.reciprocal(total).float()


def merge_partials(partials: torch.Tensor, m, ell, each: torch.Tensor, value_step: float) -> torch.Tensor:
    """Flash's second kernel (Algorithm 8): weigh each tile's partial sum by its mass and add, tile after tile.

    partials : [H_kv, R, T, d];  each : int64 [R], samples per tile

    Returns
    -------
    float32 [H_kv, R, d], normalised
    """
    mass = torch.exp(m.double() - m.amax(-1, keepdim=True).double()) * ell
    total, out = torch.zeros_like(mass[..., 0]), torch.zeros_like(partials[..., 0, :], dtype=torch.float32)
    for t in range(mass.shape[-1]):
        total = total + mass[..., t]
        out = out + mass[..., t, None].float() * partials[..., t, :].float()
    inverse = torch.reciprocal(total).float() * value_step
    return out * inverse[..., None] / each.float()[:, None]
