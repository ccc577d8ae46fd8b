"""One attention layer as plain torch code, on CUDA where there is a GPU, else on the CPU: the reference to read.

The same methods, random numbers, counters and trace as the compiled stages of `kernel`. Given the same u, m, ell and
tile masses the budgets, counts and rows are equal; scores differ in their last bits, as torch adds in its own order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import torch

from .. import rng
from ..fixed_point import BITS, is_power_of_two
from ..trace import TraceWriter
from . import accumulate, bernoulli, budgets, draw, exact, kernel, topk
from . import torch_stages as stages
from .kernel import Block, Result, Tally
from .layer import Layer
from .select import select_largest
from .spec import Spec

_STORED = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Tensors:
    """K and V of one layer on the device, widened.

    k, v : [n_k, H_kv, d], float32; fixed point as whole numbers in float64, where all their sums of products are exact
    (below 2^53) and which, unlike integers, every device can multiply as matrices
    """

    k: torch.Tensor
    v: torch.Tensor

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.k.device


def to_device(spec: Spec, layer: Layer, device: str | torch.device | None = None) -> Tensors:
    """Widen one layer's K and V on `device`; None takes CUDA where there is a GPU, else the CPU."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")

    def widen(x: np.ndarray) -> torch.Tensor:
        if spec.precision in _STORED:
            return torch.tensor(x.view(np.int16), device=device).view(_STORED[spec.precision]).float()
        return torch.tensor(x, device=device, dtype=torch.float64 if spec.precision in BITS else torch.float32)

    return Tensors(widen(layer.k), widen(layer.v))


def run_layer(spec: Spec, layer: Layer, sequence: int, layer_number: int, S: int | None, tile: int, writer: TraceWriter,
              progress: Callable[[int], None] | None = None) -> tuple[np.ndarray, Tally]:  # fmt: skip
    """Run one attention layer and append its work items, as `kernel.run_layer` does.

    Returns
    -------
    output : float32 [n_q, H, d], in value units;  tally : Tally
    """
    make_block = functools.partial(TorchBlock, to_device(spec, layer))
    return kernel.run_layer(spec, layer, sequence, layer_number, S, tile, writer, progress, make_block)


class TorchBlock(Block):
    """One query block: the stages in torch, for all KV heads at once; what they did goes into the same `Result`."""

    def __init__(self, tensors: Tensors, *block):
        super().__init__(*block)
        self.tensors = tensors
        tiles = np.arange(self.T)
        visible = np.clip(self.limits[:, None] - tiles * self.tile, 0, self.tile)
        self.visible = self.tensor(visible)  # [R, T], keys of each tile that a row sees
        self.pairs = visible.sum(0)  # [T], (row, key) pairs
        self.keys = visible.max(0)  # [T], keys that any row sees

    def tensor(self, x: np.ndarray) -> torch.Tensor:
        """To the device."""
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.tensors.device)

    def random(self, count: int, word: int) -> torch.Tensor:
        """Random numbers [H_kv, R, count]."""
        return self.tensor(np.stack([self.uniforms(kv, count, word) for kv in range(self.H_kv)]))

    # ---- scores -----------------------------------------------------------------------------------------------------

    def scores(self, result: Result):
        """u [H_kv, R, T, tile], m and ell [H_kv, R, T]; for top-k the scores [H_kv, R, n] and nothing else."""
        scores = self.exact_scores(result) if self.spec.score == "exact" else self.bernoulli_scores(result)
        if self.spec.method == "topk":
            return scores, None, None
        seen = torch.arange(self.tile, device=scores.device) < self.visible[..., None]
        return stages.stash(stages.by_tile(scores, self.tile), seen)

    def exact_scores(self, result: Result) -> torch.Tensor:
        """Every visible key against every grouped query: float32 [H_kv, R, n]."""
        q, k = self.tensor(self.q), self.tensors.k[: self.n]
        products = self.pairs * self.d
        first = np.arange(self.T) * self.tile
        unread = np.maximum(first + self.keys - np.maximum(first, self.keys_read), 0)
        self._count_scores(result, score_adds=products, score_mults=products, score_reads=unread * self.d * self.G)
        return (q.to(k.dtype) @ k.permute(1, 2, 0)).float() * float(np.float32(self.layer.score_step))

    def bernoulli_scores(self, result: Result) -> torch.Tensor:
        """Scores from the drawn features only (Section 5 of arXiv:2605.01910): float32 [H_kv, R, n]."""
        B, d, H_kv, G, R = self.spec.B, self.d, self.H_kv, self.G, self.R
        q = self.tensor(self.q)
        stratified, mean_group = (self.spec.score == f"bernoulli-{x}" for x in ("stratified", "mean-group"))
        each = 1 if stratified else B
        random = self.random(each * d, rng.SCORE_WORD).reshape(H_kv, R, each, d)
        magnitude = q.abs()
        if mean_group:  # one draw per query position and group, with the random numbers of the group's first head
            mean = stages.group_mean(magnitude.reshape(H_kv, -1, G, d))
            drawn, norm = stages.draw_features(mean, B, False, random[:, ::G])
            drawn, norm, mean = (x.repeat_interleave(G, 1) for x in (drawn, norm, mean))
            # m_hat * q / m, rounded to float32 once
            weights = torch.where(drawn > 0, drawn.double() * (q / mean).double(), 0.0).float()
            additions = (drawn != 0).sum(-1)
        else:
            drawn, norm = stages.draw_features(magnitude, B, stratified, random)
            weights = torch.where(q < 0, -drawn, drawn).to(self.tensors.k.dtype)
            additions = drawn.sum(-1)
        result.features = _numpy(drawn.any(1))
        self._count_features(result, drawn, stratified, mean_group)
        adds = _numpy(additions) @ _numpy(self.visible)
        per_head = drawn.reshape(H_kv, -1, G, d).any(1).sum((1, 2))  # features read by each grouped head, summed
        self._count_scores(result, score_adds=adds, score_mults=adds if mean_group else 0,
                           score_reads=_numpy(per_head)[:, None] * self.keys, softmax_mults=self.pairs)  # fmt: skip
        k = self.tensors.k[: self.n].to(weights.dtype)
        sums = torch.empty(H_kv, R, self.n, device=k.device, dtype=k.dtype)
        for kv in range(H_kv):
            read = torch.nonzero(drawn[kv].any(0))[:, 0]  # the other features of K are never read
            sums[kv] = weights[kv][:, read] @ k[:, kv, read].T
        return sums.float() * (norm / torch.full_like(norm, B) * float(np.float32(self.layer.score_step)))

    def _count_scores(self, result: Result, score_reads, **counts) -> None:
        """One score written per pair, queries read once; u = exp(s - m), m and ell unless top-k keeps the scores."""
        score_reads = score_reads + np.where(np.arange(self.T) == 0, self.R * self.d, 0)
        counts.update(score_reads=score_reads, score_writes=self.pairs)
        if self.spec.method != "topk":
            counts.update(softmax_exps=self.pairs, softmax_compares=self.pairs, softmax_adds=2 * self.pairs)
        result.scores = _table(exact.SCORE_COUNTS, (self.H_kv, self.T), counts)

    def _count_features(self, result: Result, drawn: torch.Tensor, stratified: bool, mean_group: bool) -> None:
        """What drawing features cost; drawn : int64 [H_kv, R, d], a mean-group's draw repeated for its G heads."""
        queries = self.R // self.G if mean_group else self.R
        features = queries * self.d
        numbers = features if stratified else features * self.spec.B
        # the norm takes features' worth of comparisons, and every random number one; then |q| / norm
        counts = {"sampling_random_numbers": numbers, "sampling_mults": features}
        counts["sampling_compares"] = features + numbers
        if stratified:
            counts.update(sampling_floors=features, sampling_adds=2 * features, sampling_mults=2 * features)
        elif mean_group:  # the mean first; m_hat * q / m of every grouped head last
            counts["sampling_adds"] = self.R * self.d + drawn.sum((1, 2)) // self.G
            counts["sampling_mults"] = 2 * features + 2 * (drawn != 0).sum((1, 2))
        else:
            counts["sampling_adds"] = drawn.sum((1, 2))
        result.sampling = _table(bernoulli.FEATURE_COUNTS, (self.H_kv,), counts)

    # ---- values -----------------------------------------------------------------------------------------------------

    def dense(self, u, m, ell, result: Result) -> None:
        """Every row of V, multiplied by its weight."""
        steps = self.weight_steps(self.tile)
        value_step = float(np.float32(self.layer.value_step / max(steps, 1)))
        result.out = _numpy(stages.dense_values(self.tensors.v[: self.n], u, m, ell, steps, value_step))
        rows = _numpy((self.visible > 0).sum(0))  # rows that merge each tile
        products = self.pairs * self.d
        counts = {"value_adds": products, "value_mults": products, "value_reads": products}
        result.values = _table(accumulate.VALUE_COUNTS, (self.H_kv, self.T), counts)
        counts = {"merge_adds": rows * (self.d + 1), "merge_mults": rows * 2 * (self.d + 1), "merge_exps": rows * 2}
        result.merging = _table(accumulate.MERGE_COUNTS, (self.H_kv, self.T), counts)
        result.output = accumulate.output_counts(self.H_kv, result.out[0].size)
        result.union[:] = True
        self.seen[:, :, : self.n] = True

    def topk(self, scores, m, ell, result: Result) -> None:
        """The k largest scores of every row, ties to the lowest key, and the softmax over them."""
        k = min(self.spec.k, self.n)
        steps = self.weight_steps(k)
        limits = self.visible.sum(-1)
        keys = torch.arange(self.n, device=scores.device)
        scores = scores.masked_fill(keys >= limits[:, None], -torch.inf)
        order = torch.sort(scores, descending=True, stable=True).indices[..., :k]
        sizes = limits.clamp(max=k)  # [R]
        kept = (keys[:k] < sizes[:, None]).expand(order.shape)
        selected = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, kept)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = (weights.double() * selected).sum(-1, keepdim=True)
        if steps:
            weights = torch.round(weights.double() * steps)
        rows = keys.expand(selected.shape)[selected]
        lengths = sizes.expand(self.H_kv, -1)
        sums = stages.gather_add(self.tensors.v, rows, lengths, weights[selected].to(self.tensors.v.dtype)).float()
        value_step = float(np.float32(self.layer.value_step / max(steps, 1)))
        result.out = _numpy(sums * value_step * torch.reciprocal(total).float())
        size = int(sizes.sum())
        compares = _heap_compares(scores, limits.expand(self.H_kv, -1), sizes.expand(self.H_kv, -1))
        counts = {"selection_compares": compares, "softmax_exps": size, "softmax_compares": size}
        counts["softmax_adds"] = 2 * size
        result.global_step = _table(topk.SELECT_COUNTS, (self.H_kv,), counts)
        result.budgets = _numpy(stages.by_tile(selected, self.tile).sum(-1))
        self._count_rows(result, selected, mults=True)
        result.output = accumulate.output_counts(self.H_kv, result.out[0].size)

    def sampled(self, u, m, ell, result: Result) -> None:
        """Draw rows of V in proportion to the stashed weights, add them, divide by their number."""
        method = self.spec.method
        flash = method == "s2anta-flash"
        if method in ("santa", "s2anta-strat"):
            rows, share = self._independent(u, m, ell, result)
        else:
            rows, share = self._systematic(u, m, ell, result)
        result.budgets = _numpy(share)
        lengths = share if flash else share.sum(-1)
        if self.integer:
            sums, lost = stages.gather_add_int32(self.tensors.v, rows, lengths)
            result.saturated += lost
        else:
            sums = stages.gather_add(self.tensors.v, rows, lengths)
        if flash:
            out = stages.merge_partials(sums, m, ell, share[0, :, 0], float(np.float32(self.layer.value_step)))
            n = int(self.tiles.sum())  # partial sums
            mults = n * (self.d + 1) + self.R * self.d
            counts = {"merge_adds": n * (self.d + 2), "merge_mults": mults, "merge_exps": n}
            result.final_merge = _table(accumulate.MERGE_COUNTS, (self.H_kv,), counts)
        else:
            out = self._divide(sums)
        result.out = _numpy(out)
        by_shift = self.integer and all(map(is_power_of_two, share[0, :, 0].unique().tolist() if flash else [self.S]))
        result.output = accumulate.output_counts(self.H_kv, result.out[0].size, by_shift)
        result.draws = int(share.sum())
        owner = torch.arange(self.H_kv * self.R, device=u.device).repeat_interleave(share.sum(-1).flatten())
        drawn = torch.zeros(self.H_kv * self.R, self.n, dtype=torch.bool, device=u.device)
        drawn[owner, rows] = True
        self._count_rows(result, drawn.reshape(self.H_kv, self.R, self.n), mults=False)

    def _divide(self, sums: torch.Tensor) -> torch.Tensor:
        """sums / S in value units: a shift, rounding half up, where S is a power of two and values are fixed point."""
        S = self.S
        if not self.integer:
            return sums * float(np.float32(self.layer.value_step / S))
        if not is_power_of_two(S):
            return (sums * float(np.float32(self.layer.value_step / S))).float()
        shift = S.bit_length() - 1
        return (((sums.long() + (S >> 1)) >> shift) * float(np.float32(self.layer.value_step))).float()

    def _systematic(self, u, m, ell, result: Result) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [draws] and budgets [H_kv, R, T] of sys, prop and flash: a range of positions for each tile."""
        S, method = self.S, self.spec.method
        holds_keys = self.visible > 0
        tiles = int(self.tiles.sum())
        if method == "s2anta-flash":
            n = self.tensor(self.tiles)
            each = (S // n).clamp(min=1)
            share = (each[:, None] * holds_keys).expand(self.H_kv, -1, -1)
            low = self.random(self.T, rng.VALUE_WORD)
            high = low + share
            counts = {"sampling_random_numbers": tiles}
        elif method == "s2anta-prop" and self.spec.allocation == "largest-remainder":
            share, fraction, left = stages.largest_remainder(stages.tile_masses(m, ell), S, holds_keys)
            low = self.random(self.T, rng.VALUE_WORD)
            high = low + share
            compares = _heap_compares(fraction, self.tensor(self.tiles).expand(self.H_kv, -1), left)
            counts = self._mass_counts() | {
                "sampling_random_numbers": tiles, "sampling_compares": compares, "sampling_floors": tiles,
                "sampling_adds": 3 * tiles + left.sum(-1), "sampling_mults": tiles + self.R,
            }  # fmt: skip
        else:
            share, low, high = stages.systematic(stages.tile_masses(m, ell), S, self.random(1, rng.VALUE_WORD))
            counts = self._mass_counts() | {
                "sampling_random_numbers": self.R, "sampling_floors": tiles, "sampling_adds": 3 * tiles,
                "sampling_mults": tiles + self.R,
            }  # fmt: skip
        result.global_step = _table(budgets.BUDGET_COUNTS, (self.H_kv,), counts)
        scanned = holds_keys & ((share > 0) | (method == "s2anta-sys"))
        w, scans = (self.visible * scanned).sum(1), scanned.sum(1)  # keys and tiles that were looked at, [H_kv, T]
        drawn = share.sum(1)
        if self.spec.sampler == "scaled-thresholds":
            counts = {"sampling_compares": w + drawn, "sampling_mults": scans + drawn}
            counts["sampling_adds"] = scans + w + drawn
            rows = stages.draw_by_thresholds(u, ell, low, high, share)
        else:
            counts = {"sampling_adds": 3 * w, "sampling_mults": scans + w, "sampling_floors": scans + w}
            rows = stages.draw_by_weights(u, ell, low, high, scanned)
        result.drawing = _table(draw.DRAW_COUNTS, (self.H_kv, self.T), counts)
        return rows, share

    def _independent(self, u, m, ell, result: Result) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [H_kv * R * S], by tile and then by draw, and budgets [H_kv, R, T] of i.i.d. and stratified draws."""
        S, stratified = self.S, self.spec.method == "s2anta-strat"
        random = self.random(S, rng.VALUE_WORD)
        masses = stages.tile_masses(m, ell)
        tile_of, inside, tile_steps = stages.find_tiles(masses, ell, self.tensor(self.tiles), S, random, stratified)
        rows, key_steps = stages.find_keys(u, ell, self.visible, tile_of, inside)
        none = torch.zeros(self.H_kv, self.R, self.T, dtype=torch.int64, device=u.device)
        share = none.scatter_add(-1, tile_of, torch.ones_like(tile_of))
        draws = self.R * S
        counts = self._mass_counts() | {
            "sampling_random_numbers": draws, "sampling_compares": tile_steps.sum((1, 2)), "sampling_mults": 2 * draws,
            "sampling_adds": int(self.tiles.sum()) + (2 if stratified else 1) * draws,
        }  # fmt: skip
        result.global_step = _table(budgets.BUDGET_COUNTS, (self.H_kv,), counts)
        compares = none.scatter_add(-1, tile_of, key_steps).sum(1)
        counts = {"sampling_compares": compares, "sampling_adds": self.pairs}
        result.drawing = _table(draw.DRAW_COUNTS, (self.H_kv, self.T), counts)
        return rows.flatten(), share

    # ---- counting ---------------------------------------------------------------------------------------------------

    def _mass_counts(self) -> dict[str, int]:
        """What the softmax over the tile masses costs; their prefix takes one addition each besides."""
        names = ("softmax_exps", "softmax_compares", "softmax_adds", "softmax_mults")
        return dict.fromkeys(names, int(self.tiles.sum()))

    def _count_rows(self, result: Result, drawn: torch.Tensor, mults: bool) -> None:
        """Rows of V that were read and added, and which they were; drawn : bool [H_kv, R, n]."""
        added = result.budgets.sum(1) * self.d
        counts = {"value_adds": added, "value_reads": added, "value_mults": added if mults else 0}
        result.values = _table(accumulate.VALUE_COUNTS, (self.H_kv, self.T), counts)
        per_head = drawn.reshape(self.H_kv, -1, self.G, self.n).any(1)
        self.seen[:, :, : self.n] |= _numpy(per_head)
        result.union = _numpy(per_head.any(1))


def _heap_compares(values: torch.Tensor, lengths: torch.Tensor, k: torch.Tensor) -> np.ndarray:
    """Comparisons that the heap of `select` makes to find the k largest of each row: it is run for its count alone.

    A sort picks the same elements; the trace counts what a selection unit would compare.

    values : [H_kv, R, n];  lengths, k : int64 [H_kv, R];  result : int64 [H_kv]
    """
    values, lengths, k = _numpy(values), _numpy(lengths), _numpy(k)
    heap = np.empty(max(int(k.max()), 1), np.int64)
    found = [[select_largest(*row, heap)[1] for row in zip(*head)] for head in zip(values, lengths, k)]
    return np.array(found, np.int64).sum(1)


def _numpy(x: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.cpu().numpy())


def _table(names: tuple[str, ...], shape: tuple[int, ...], counts: dict) -> np.ndarray:
    """int64 [*shape, len(names)] of named counts (numbers, or arrays that broadcast to `shape`); unnamed ones are 0."""
    table = np.zeros((*shape, len(names)), np.int64)
    for name, count in counts.items():
        count = _numpy(count) if isinstance(count, torch.Tensor) else np.asarray(count)
        table[..., names.index(name)] = count
    return table
