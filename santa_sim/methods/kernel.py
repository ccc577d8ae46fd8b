"""One attention layer on the CPU: the compiled stages in order, and the trace of what they did.

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
from ..fixed_point import BITS, fitting_format, is_power_of_two, parse_qformat, quantize, shift_right_round
from ..jit import parallel_map
from ..trace import TraceWriter
from . import accumulate, bernoulli, budgets, draw, exact, topk
from .numerics import BRAIN, HALF, PLAIN
from .spec import Spec

STATS_BYTES = 12  # a tile's float32 maximum and float64 sum
_FORMATS = {"fp32": PLAIN, "fp16": HALF, "bf16": BRAIN, "int8": PLAIN, "int16": PLAIN}
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "int16": 2}
_KINDS = {"bernoulli": bernoulli.MONTE_CARLO, "bernoulli-stratified": bernoulli.STRATIFIED,
          "bernoulli-mean-group": bernoulli.MEAN_GROUP}  # fmt: skip
_BLOCK_TILES = 8  # tiles per task of the score pass


@dataclasses.dataclass(frozen=True)
class Layer:
    """Q, K and V of one (sequence, layer) as the kernels take them.

    q : float32 or int32 [n_q, H, d], 1/sqrt(d) folded in;  k, v : stored [n_k, H_kv, d];  key_features : stored
    [H_kv * T, d, tile] (Bernoulli) or None;  q_step, k_step, v_step : float, value of one stored unit (1 for floats)
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    key_features: np.ndarray | None
    score_step: float
    value_step: float
    quantization_saturated: int


def prepare(spec: Spec, q: np.ndarray, k: np.ndarray, v: np.ndarray, tile: int) -> Layer:
    """Bring one layer's tensors into the kernels' form; quantises them for fixed-point precisions."""
    d = q.shape[-1]
    scaled = q.astype(np.float32) * np.float32(1 / math.sqrt(d))
    score_step = value_step = 1.0
    saturated = 0
    if spec.precision in BITS:
        bits = BITS[spec.precision]
        dtype = np.dtype(spec.precision).type
        k_format = fitting_format(k, bits)
        k, lost_k = quantize(k, k_format, dtype)
        v_format = parse_qformat(spec.value_format, bits) if spec.value_format else fitting_format(v, bits)
        v, lost_v = quantize(v, v_format, dtype)
        saturated, score_step, value_step = lost_k + lost_v, k_format.step, v_format.step
        if spec.score == "exact":
            # the query gets the bits that an int32 sum of d products leaves
            q_format = fitting_format(scaled, 1 + min(bits - 1, 31 - bits - math.ceil(math.log2(d))))
            scaled, lost_q = quantize(scaled, q_format, np.int32)
            saturated, score_step = saturated + lost_q, score_step * q_format.step
    elif spec.precision != "fp32":
        k, v = k.view(np.uint16), v.view(np.uint16)
    features = None
    if spec.score != "exact":
        if spec.precision in BITS and spec.score != "bernoulli-mean-group":
            _check_int32("B", spec.B, d, spec.precision, f"d = {d} features")
        n_k, H_kv, _ = k.shape
        T = -(-n_k // tile)
        padded = np.zeros((T * tile, H_kv, d), k.dtype)
        padded[:n_k] = k
        features = np.ascontiguousarray(padded.reshape(T, tile, H_kv, d).transpose(2, 0, 3, 1)).reshape(H_kv * T, d, tile)
    return Layer(np.ascontiguousarray(scaled), np.ascontiguousarray(k), np.ascontiguousarray(v), features,
                 score_step, value_step, saturated)  # fmt: skip


def _check_int32(field: str, budget: int, per_unit: int, precision: str, what: str) -> None:
    """InputError if `budget` times `per_unit` additions of stored integers could leave an int32 accumulator's range."""
    most = (2**31 - 1) // (2 ** (BITS[precision] - 1) * per_unit)
    if budget > most:
        raise InputError(f"{field}={budget}: with {what}, sums of {precision} can overflow their int32 accumulator; use {field} <= {most}")


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
        block.write(writer, result, first // spec.query_block, last)
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
    normalizing: int = 0
    draws: int = 0
    saturated: int = 0


class Block:
    """One query block of one layer: run its stages, then write its trace items."""

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
        self.format = _FORMATS[spec.precision]
        q = layer.q[positions].reshape(len(positions), self.H_kv, self.G, self.d).transpose(1, 0, 2, 3)
        self.q = np.ascontiguousarray(q.reshape(self.H_kv, self.R, self.d))
        self.row_heads = np.tile(np.arange(self.G), len(positions))
        self.row_positions = np.repeat(positions, self.G)

    def uniforms(self, kv: int, count: int, word: int) -> np.ndarray:
        """Random numbers [R, count] of one KV head's rows."""
        heads = self.layer_number * self.H_kv * self.G + kv * self.G + self.row_heads
        return rng.uniforms(self.spec.seed, self.sequence, heads, self.row_positions, count, word)

    # ---- stages -----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        H_kv, R, T, d = self.H_kv, self.R, self.T, self.d
        result = Result(np.zeros((H_kv, R, d), np.float32), np.zeros((H_kv, T, len(exact.SCORE_COUNTS)), np.int64))
        u, m, ell = self.scores(result)
        result.values = np.zeros((H_kv, T, len(accumulate.VALUE_COUNTS)), np.int64)
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
            _check_int32("k", terms, 2, self.spec.precision, "weights of 1 bit")  # dense tiles are too short to get there
        return 2 ** min(bits - 1, max(31 - bits - math.ceil(math.log2(max(terms, 1))), 1))

    def dense(self, u, m, ell, result):
        steps = self.weight_steps(self.tile)
        value_step = np.float32(self.layer.value_step / max(steps, 1))
        result.merging = np.zeros((self.H_kv, self.T, len(accumulate.MERGE_COUNTS)), np.int64)

        def head(kv):
            partial = np.zeros((self.R, self.d), np.int32 if self.integer else np.float32)
            return accumulate.dense_values(
                self.layer.v, self.format, kv, u[kv], m[kv], ell[kv], self.limits, self.tile, steps, value_step,
                partial, result.out[kv], result.values[kv], result.merging[kv],
            )  # fmt: skip

        result.normalizing = parallel_map(head, [(kv,) for kv in range(self.H_kv)])[0]
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
            return accumulate.weighted_rows(
                self.layer.v, self.format, kv, rows, weights, result.budgets[kv], self.tiles, steps, value_step, partial,
                result.out[kv], result.values[kv], self.seen[kv], result.union[kv],
            )  # fmt: skip

        result.normalizing = parallel_map(head, [(kv,) for kv in range(self.H_kv)])[0]

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
            accumulate.add_rows(self.layer.v, self.format, kv, rows, share, self.tiles, self.tile, may_saturate, flash,
                                sums, result.values[kv], self.seen[kv], result.union[kv])  # fmt: skip
            step = np.float32(self.layer.value_step)
            if flash:
                return accumulate.merge_tiles(sums, m[kv], ell[kv], self.tiles, share, step, result.out[kv], result.final_merge[kv])
            if self.integer and is_power_of_two(S):
                result.out[kv] = shift_right_round(sums[:, 0], S.bit_length() - 1) * step
            else:
                result.out[kv] = sums[:, 0] * np.float32(self.layer.value_step / S)
            return R * d

        result.normalizing = parallel_map(head, [(kv,) for kv in range(self.H_kv)])[0]
        result.draws = int(result.budgets.sum())

    # ---- trace ------------------------------------------------------------------------------------------------------

    def write(self, writer: TraceWriter, result: Result, block: int, last_block: bool) -> None:
        """Append the block's items, KV head by KV head."""
        for kv in range(self.H_kv):
            at = (self.sequence, self.layer_number, kv, block)
            for t in range(self.T):
                writer.item(*at, t, "score", *self._score_item(result, kv, t))
            if self.spec.method != "sdpa":
                if self.spec.method == "topk":
                    writer.item(*at, -1, "select", dict(zip(topk.SELECT_COUNTS, result.global_step[kv])), self._stash_reads(kv))
                elif self.spec.method != "s2anta-flash":
                    counts = dict(zip(budgets.BUDGET_COUNTS, result.global_step[kv]))
                    writer.item(*at, -1, "budget", counts, [self._stats_read(kv)])
            for t in range(self.T):
                if self.spec.method in ("sdpa", "s2anta-sys", "santa", "s2anta-strat") or result.budgets[kv, :, t].any():
                    writer.item(*at, t, "value", *self._value_item(result, kv, t))
            if self.spec.method == "s2anta-flash":
                size = self.R * (4 * self.d + STATS_BYTES)
                streams = [("partials", kv * self.T * size, self.T * size, self.T * size, self.T * size, False)]
                writer.item(*at, -1, "merge", dict(zip(accumulate.MERGE_COUNTS, result.final_merge[kv])), streams)
            writer.item(*at, -1, "output", *self._output_item(result, kv, last_block))

    def _divisors(self, result: Result) -> set[int]:
        """What the sums are divided by: S, or flash's samples per tile."""
        return set(np.unique(result.budgets[:, :, 0]).tolist()) if self.spec.method == "s2anta-flash" else {self.S}

    def _rows_visible(self, t: int) -> np.ndarray:
        return np.clip(self.limits - t * self.tile, 0, self.tile)

    def _head_bytes(self, kv: int, buffer: str, item_bytes: int, write: bool) -> tuple:
        """This head's part of a [n_q, H, d] buffer."""
        piece = self.G * self.d * item_bytes
        stride = self.H_kv * piece
        return (buffer, int(self.positions[0]) * stride + kv * piece, len(self.positions) * piece, piece, stride, write)

    def _stash_region(self, kv: int, t: int) -> int:
        return (kv * self.T + t) * self.R * (4 * self.tile + STATS_BYTES)

    def _stats_read(self, kv: int) -> tuple:
        size = self.R * (4 * self.tile + STATS_BYTES)
        first = self._stash_region(kv, 0) + self.R * 4 * self.tile
        return ("stash", first, self.T * self.R * STATS_BYTES, self.R * STATS_BYTES, size, False)

    def _stash_reads(self, kv: int) -> list[tuple]:
        size = [int(self._rows_visible(t).sum()) * 4 for t in range(self.T)]
        return [("stash", self._stash_region(kv, t), size[t], size[t], size[t], False) for t in range(self.T)]

    def _score_item(self, result: Result, kv: int, t: int) -> tuple[dict, list, tuple | None]:
        item_bytes = ITEM_BYTES[self.spec.precision]
        counts = dict(zip(exact.SCORE_COUNTS, result.scores[kv, t]))
        streams, gather = [], None
        if t == 0:
            streams.append(self._head_bytes(kv, "q", item_bytes, False))
            if result.sampling is not None:
                counts.update(zip(bernoulli.FEATURE_COUNTS, result.sampling[kv]))
        visible = self._rows_visible(t)
        w, row = int(visible.max()), self.d * item_bytes
        if result.features is None:
            first = (t * self.tile * self.H_kv + kv) * row
            streams.append(("k", first, w * row, row, self.H_kv * row, False))
        else:
            T_cache = self.layer.key_features.shape[0] // self.H_kv
            stride = self.tile * item_bytes
            first = (kv * T_cache + t) * self.d * stride
            gather = ("k", np.flatnonzero(result.features[kv]).astype(np.int32), first, w * item_bytes, stride)
        if self.spec.method not in ("sdpa", "s2anta-flash"):
            size = int(visible.sum()) * 4
            streams.append(("stash", self._stash_region(kv, t), size, size, size, True))
            if self.spec.method != "topk":
                first = self._stash_region(kv, t) + self.R * 4 * self.tile
                size = self.R * STATS_BYTES
                streams.append(("stash", first, size, size, size, True))
        return counts, streams, gather

    def _value_item(self, result: Result, kv: int, t: int) -> tuple[dict, list, tuple | None]:
        row = self.d * ITEM_BYTES[self.spec.precision]
        counts = dict(zip(accumulate.VALUE_COUNTS[:3], result.values[kv, t, :3]))
        visible = self._rows_visible(t)
        if self.spec.method == "sdpa":
            counts.update(zip(accumulate.MERGE_COUNTS, result.merging[kv, t]))
            w = int(visible.max())
            return counts, [("v", (t * self.tile * self.H_kv + kv) * row, w * row, row, self.H_kv * row, False)], None
        streams = []
        if self.spec.method != "topk":
            counts.update(zip(draw.DRAW_COUNTS, result.drawing[kv, t]))
        if self.spec.method == "s2anta-flash":
            if t == 0:
                counts["sampling_random_numbers"] = int(result.global_step[kv].sum())
            size = self.R * (4 * self.d + STATS_BYTES)
            streams.append(("partials", (kv * self.T + t) * size, size, size, size, True))
        elif self.spec.method != "topk":
            every = self.spec.method != "s2anta-prop"
            size = int(visible[slice(None) if every else result.budgets[kv, :, t] > 0].sum()) * 4
            streams.append(("stash", self._stash_region(kv, t), size, size, size, False))
        n0 = t * self.tile
        rows = (n0 + np.flatnonzero(result.union[kv, n0 : n0 + self.tile])).astype(np.int32)
        gather = ("v", rows, kv * row, row, self.H_kv * row) if len(rows) else None
        return counts, streams, gather

    def _output_item(self, result: Result, kv: int, last_block: bool) -> tuple[dict, list]:
        spec = self.spec
        item_bytes = ITEM_BYTES[spec.precision]
        counts: dict[str, int] = {"value_writes": self.R * self.d}
        if spec.method in ("sdpa", "topk"):
            counts["softmax_mults"] = result.normalizing
            item_bytes = 4 if self.integer else item_bytes
        else:
            by_shift = self.integer and all(is_power_of_two(S) for S in self._divisors(result))
            counts["value_shifts" if by_shift else "value_mults"] = result.normalizing
            if self.integer and (spec.method == "s2anta-flash" or not by_shift):
                item_bytes = 4
        if last_block:
            counts["unique_rows_per_head"] = int(self.seen[kv].sum())
            counts["unique_rows_per_group"] = int(self.seen[kv].any(axis=0).sum())
        return counts, [self._head_bytes(kv, "output", item_bytes, True)]
