"""One attention layer on the CPU: the compiled stages in order.

Rows are the queries that share a pass over K and V: (query position of the block) x (grouped head), so that decode is a
block of one position and prefill the same code with more rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from .. import rng
from ..errors import InputError
from ..fixed_point import BITS, is_power_of_two
from ..jit import parallel_map
from ..trace import TraceWriter
from . import accumulate, bernoulli, budgets, draw, exact, items, topk
from .layer import FORMATS, Layer, check_int32
from .spec import Spec

_KINDS = {"bernoulli": bernoulli.MONTE_CARLO, "bernoulli-stratified": bernoulli.STRATIFIED,
          "bernoulli-mean-group": bernoulli.MEAN_GROUP}  # fmt: skip
_BLOCK_TILES = 8  # tiles per task of the score pass


@dataclasses.dataclass(frozen=True)
class Tally:
    """What a layer's run adds up to beyond its trace items."""

    draws: int
    queries: int
    saturated: int


def run_layer(spec: Spec, layer: Layer, sequence: int, layer_number: int, S: int | None, tile: int, writer: TraceWriter,
              progress: Callable[[int], None] | None = None,
              make_block: Callable[..., Block] | None = None) -> tuple[np.ndarray, Tally]:  # fmt: skip
    """Run one attention layer and append its work items.

    Parameters
    ----------
    progress : called with the number of query positions done after each block
    make_block : what runs a query block, with `Block`'s arguments; None takes `Block`, the compiled stages

    Returns
    -------
    output : float32 [n_q, H, d], in value units;  tally : Tally
    """
    n_q, H, d = layer.q.shape
    n_k, H_kv, _ = layer.k.shape
    G = H // H_kv
    out = np.empty((n_q, H, d), np.float32)
    seen = np.zeros((H_kv, G, n_k), bool)
    draws = saturated = 0
    keys_read = 0
    for first in range(0, n_q, spec.query_block):
        positions = np.arange(first, min(first + spec.query_block, n_q))
        limits = n_k - n_q + positions + 1 if spec.causal else np.full(len(positions), n_k)
        block = (make_block or Block)(spec, layer, sequence, layer_number, S, tile, positions, np.repeat(limits, G), keys_read, seen)
        result = block.run()
        last = positions[-1] == n_q - 1
        items.write(writer, block, result, first // spec.query_block, last)
        out[positions] = result.out.reshape(H_kv, len(positions), G, d).transpose(1, 0, 2, 3).reshape(len(positions), H, d)
        draws += result.draws
        saturated += result.saturated
        keys_read = int(limits.max())
        if progress:
            progress(len(positions))
    return out, Tally(draws, n_q * H, saturated + layer.quantization_saturated)


@dataclasses.dataclass
class Result:
    """Everything a block's stages produced; arrays lead with the KV head."""

    out: np.ndarray
    scores: np.ndarray  # counts [H_kv, T, ...]
    sampling: np.ndarray | None = None  # feature draws [H_kv, ...]
    features: np.ndarray | None = None  # bool [H_kv, d]
    global_step: np.ndarray | None = None  # budget or selection counts [H_kv, ...]
    budgets: np.ndarray | None = None  # [H_kv, R, T]
    drawing: np.ndarray | None = None
    values: np.ndarray | None = None
    merging: np.ndarray | None = None
    final_merge: np.ndarray | None = None
    union: np.ndarray | None = None  # bool [H_kv, n_k]
    output: np.ndarray | None = None  # normalisation and writes [H_kv, ...]
    draws: int = 0
    saturated: int = 0


class Block:
    """One query block of one layer and its stages."""

    def __init__(self, spec, layer, sequence, layer_number, S, tile, positions, limits, keys_read, seen):
        self.spec, self.layer, self.S, self.tile, self.seen = spec, layer, S, tile, seen
        self.sequence, self.layer_number, self.keys_read = sequence, layer_number, keys_read
        self.positions, self.limits = positions, limits.astype(np.int64)
        self.H_kv = layer.k.shape[1]
        self.G = layer.q.shape[1] // self.H_kv
        self.d = layer.q.shape[2]
        self.R = len(limits)
        self.n = int(limits.max())
        self.T = -(-self.n // tile)
        self.tiles = -(-self.limits // tile)
        self.integer = spec.precision in BITS
        self.format = FORMATS[spec.precision]
        q = layer.q[positions].reshape(len(positions), self.H_kv, self.G, self.d).transpose(1, 0, 2, 3)
        self.q = np.ascontiguousarray(q.reshape(self.H_kv, self.R, self.d))
        self.row_heads = np.tile(np.arange(self.G), len(positions))
        self.row_positions = np.repeat(positions, self.G)

    def uniforms(self, kv: int, count: int, word: int) -> np.ndarray:
        """Random numbers [R, count] of one KV head's rows."""
        heads = self.layer_number * self.H_kv * self.G + kv * self.G + self.row_heads
        return rng.uniforms(self.spec.seed, self.sequence, heads, self.row_positions, count, word)

    def run(self) -> Result:
        H_kv, R, T, d = self.H_kv, self.R, self.T, self.d
        result = Result(np.zeros((H_kv, R, d), np.float32), np.zeros((H_kv, T, len(exact.SCORE_COUNTS)), np.int64))
        u, m, ell = self.scores(result)
        result.values = np.zeros((H_kv, T, len(accumulate.VALUE_COUNTS)), np.int64)
        result.output = np.zeros((H_kv, len(accumulate.OUTPUT_COUNTS)), np.int64)
        result.union = np.zeros((H_kv, self.n), bool)
        stage = {"sdpa": self.dense, "topk": self.topk}.get(self.spec.method, self.sampled)
        stage(u, m, ell, result)
        result.saturated += int(result.values[:, :, 3].sum())
        if not np.isfinite(result.out).all():
            raise InputError(f"layer {self.layer_number}: sums of V overflow float32; scale V down")
        return result

    def scores(self, result):
        """The score stage: u (or the scores themselves, for top-k) [H_kv, R, n], m and ell [H_kv, R, T]."""
        keep_scores = self.spec.method == "topk"
        u = np.empty((self.H_kv, self.R, self.n), np.float32)
        m, ell = np.zeros((self.H_kv, self.R, self.T), np.float32), np.zeros((self.H_kv, self.R, self.T))
        stage = self.exact_scores if self.spec.score == "exact" else self.bernoulli_scores
        stage(keep_scores, u, m, ell, result)
        if keep_scores:
            finite = all(np.isfinite(u[:, r, : self.limits[r]]).all() for r in range(self.R))
        else:
            finite = np.isfinite(ell).all() and np.isfinite(m[ell > 0]).all()
        if not finite:
            raise InputError(f"layer {self.layer_number}: scores q.k overflow float32; scale q or k down")
        return u, m, ell

    def exact_scores(self, keep_scores, u, m, ell, result):
        scale = np.float32(self.layer.score_step)
        if self.R <= 8:  # decode: all heads of a token together, as the cache lies in memory
            parts = [((0, self.H_kv), (t, min(t + _BLOCK_TILES, self.T))) for t in range(0, self.T, _BLOCK_TILES)]
        else:
            parts = [((kv, kv + 1), (0, self.T)) for kv in range(self.H_kv)]
        parallel_map(exact.score_tiles, [
            (self.q, self.layer.k, self.format, scale, self.limits, self.keys_read, self.G, self.tile, heads, tiles,
             keep_scores, u, m, ell, result.scores)
            for heads, tiles in parts
        ])  # fmt: skip

    def bernoulli_scores(self, keep_scores, u, m, ell, result):
        H_kv, R, d, B = self.H_kv, self.R, self.d, self.spec.B
        kind = _KINDS[self.spec.score]
        result.sampling = np.zeros((H_kv, len(bernoulli.FEATURE_COUNTS)), np.int64)
        result.features = np.zeros((H_kv, d), bool)
        summed = np.int32 if self.integer and kind != bernoulli.MEAN_GROUP else np.float32

        def head(kv):
            random = self.uniforms(kv, d if kind == bernoulli.STRATIFIED else B * d, rng.SCORE_WORD)
            drawn, weights, norms = np.zeros((R, d), np.int64), np.zeros((R, d), np.float32), np.zeros(R, np.float32)
            bernoulli.draw_features(self.q[kv], self.G, B, kind, random, result.sampling[kv], drawn, weights, norms)
            T_cache = self.layer.key_features.shape[0] // H_kv
            bernoulli.score_features(
                self.layer.key_features[kv * T_cache : (kv + 1) * T_cache], self.format, np.float32(self.layer.score_step),
                drawn, weights, norms, kind, B, self.limits, self.G, self.tile, (0, self.T), keep_scores,
                np.zeros((R, self.tile), summed), u[kv], m[kv], ell[kv], result.scores[kv], result.features[kv],
            )  # fmt: skip

        parallel_map(head, [(kv,) for kv in range(H_kv)])

    def weight_steps(self, terms: int) -> int:
        """Fixed point: 2^bits of a weight, the bits that an int32 sum of `terms` products leaves; 0 for floats."""
        if not self.integer:
            return 0
        bits = BITS[self.spec.precision]
        if terms > 1:
            check_int32("k", terms, 2, self.spec.precision, "weights of 1 bit")  # dense tiles are too short to get there
        return 2 ** min(bits - 1, max(31 - bits - math.ceil(math.log2(max(terms, 1))), 1))

    def dense(self, u, m, ell, result):
        steps = self.weight_steps(self.tile)
        value_step = np.float32(self.layer.value_step / max(steps, 1))
        result.merging = np.zeros((self.H_kv, self.T, len(accumulate.MERGE_COUNTS)), np.int64)

        def head(kv):
            partial = np.zeros((self.R, self.d), np.int32 if self.integer else np.float32)
            accumulate.dense_values(
                self.layer.v, self.format, kv, u[kv], m[kv], ell[kv], self.limits, self.tile, steps, value_step,
                partial, result.out[kv], result.values[kv], result.merging[kv], result.output[kv],
            )  # fmt: skip

        parallel_map(head, [(kv,) for kv in range(self.H_kv)])
        result.union[:] = True
        self.seen[:, :, : self.n] = True
        result.draws = 0

    def topk(self, u, m, ell, result):
        k = min(self.spec.k, self.n)
        steps = self.weight_steps(k)
        value_step = np.float32(self.layer.value_step / max(steps, 1))
        result.global_step = np.zeros((self.H_kv, len(topk.SELECT_COUNTS)), np.int64)
        result.budgets = np.zeros((self.H_kv, self.R, self.T), np.int64)

        def head(kv):
            rows, weights = np.zeros((self.R, k), np.int32), np.zeros((self.R, k), np.float32)
            topk.select_rows(u[kv], self.limits, k, self.tile, result.global_step[kv], result.budgets[kv], rows, weights)
            partial = np.zeros(self.d, np.int32 if self.integer else np.float32)
            accumulate.weighted_rows(
                self.layer.v, self.format, kv, rows, weights, result.budgets[kv], self.tiles, steps, value_step, partial,
                result.out[kv], result.values[kv], self.seen[kv], result.union[kv], result.output[kv],
            )  # fmt: skip

        parallel_map(head, [(kv,) for kv in range(self.H_kv)])

    def sampled(self, u, m, ell, result):
        spec, S, R, T, d = self.spec, self.S, self.R, self.T, self.d
        flash = spec.method == "s2anta-flash"
        independent = spec.method in ("santa", "s2anta-strat")
        per_tile = flash or (spec.method == "s2anta-prop" and spec.allocation == "largest-remainder")
        most = int((self.tiles * np.maximum(1, S // self.tiles)).max()) if flash else S
        integer_sum = np.int32 if self.integer else np.float32
        may_saturate = self.integer and most * 2 ** (BITS[spec.precision] - 1) > 2**31 - 1
        result.global_step = np.zeros((self.H_kv, len(budgets.BUDGET_COUNTS)), np.int64)
        result.budgets = np.zeros((self.H_kv, R, T), np.int64)
        result.drawing = np.zeros((self.H_kv, T, len(draw.DRAW_COUNTS)), np.int64)
        if flash:
            result.final_merge = np.zeros((self.H_kv, len(accumulate.MERGE_COUNTS)), np.int64)

        def head(kv):
            counts, share = result.global_step[kv], result.budgets[kv]
            rows = np.zeros((R, most), np.int32)
            random = self.uniforms(kv, S if independent else T if per_tile else 1, rng.VALUE_WORD)
            if independent:
                residual = np.zeros((R, S))
                budgets.thresholds(m[kv], ell[kv], self.tiles, S, random, spec.method == "s2anta-strat", counts, share, residual)
                draw.draw_thresholds(u[kv], ell[kv], self.limits, self.tile, share, residual, result.drawing[kv], rows)
            else:
                low, high = np.zeros((R, T)), np.zeros((R, T))
                if flash:
                    budgets.uniform(self.tiles, S, random, counts, share, low, high)
                elif per_tile:
                    budgets.largest_remainder(m[kv], ell[kv], self.tiles, S, random, counts, share, low, high)
                else:
                    budgets.systematic(m[kv], ell[kv], self.tiles, S, random, counts, share, low, high)
                draw.draw_positions(u[kv], ell[kv], self.limits, self.tile, share, low, high, spec.sampler == "scaled-thresholds",
                                    spec.method == "s2anta-sys", result.drawing[kv], rows)  # fmt: skip
            sums = np.zeros((R, T if flash else 1, d), integer_sum)
            accumulate.add_rows(self.layer.v, self.format, kv, rows, share, self.tiles, may_saturate, flash,
                                sums, result.values[kv], self.seen[kv], result.union[kv])  # fmt: skip
            # what the sums are divided by: S, or flash's samples per tile
            by_shift = self.integer and all(is_power_of_two(int(each)) for each in (np.unique(share[:, 0]) if flash else (S,)))
            if flash:
                accumulate.merge_tiles(sums, m[kv], ell[kv], self.tiles, share, np.float32(self.layer.value_step), by_shift,
                                       result.out[kv], result.final_merge[kv], result.output[kv])  # fmt: skip
            else:
                bits = S.bit_length() - 1 if by_shift else -1
                accumulate.divide_sums(sums[:, 0], S, bits, self.layer.value_step, result.out[kv], result.output[kv])

        parallel_map(head, [(kv,) for kv in range(self.H_kv)])
        result.draws = int(result.budgets.sum())
