"""One layer of `run` on the GPU: the counting build's results as the CPU's `Block` gives them, so that the trace is the same."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..attention import STORAGE
from ..errors import InputError
from ..methods import accumulate
from ..methods import kernel as cpu
from ..methods.layer import Layer
from ..methods.spec import Spec
from . import build, device
from .kernel import Counts, decode, feature_major, make_plan


class GpuBlock(cpu.Block):
    """One query block, run by the counting build; its trace items are written by the CPU's `Block`.

    The block's query positions run as that many decode steps in one launch, each over the keys that it may see. Several of
    them read K anew each; the trace has what a block that shares a pass over K reads, as the CPU's kernel does.
    """

    def run(self) -> cpu.Result:
        cupy = device.require_cupy()
        spec, H_kv, G, d, n = self.spec, self.H_kv, self.G, self.d, self.n
        B = len(self.positions)
        plan = make_plan(spec, B, H_kv * G, H_kv, d, n, S=spec.k or self.S, tile=self.tile, instrument=True)
        # the layer's query has 1/sqrt(d) folded in, in float32; rounding to 16 bits gives back exactly what was stored
        stored = (self.layer.q[self.positions] * np.float32(math.sqrt(d))).astype(STORAGE[spec.precision]).view(np.uint16)
        as_stored = cupy.float16 if spec.precision == "fp16" else cupy.uint16
        q, k, v = (cupy.asarray(x).view(as_stored) for x in (stored, self.layer.k[:n], self.layer.v[:n]))
        k = feature_major(k[None])[0] if plan.feature_major else k
        k, v = (cupy.broadcast_to(x, (B, *x.shape)) for x in (k, v))
        lengths, positions = cupy.asarray(self.limits[::G].astype(np.int32)), cupy.asarray(self.positions.astype(np.uint32))
        out = decode(plan, q, k, v, lengths=lengths, sequence=self.sequence, sequence_step=0, layer=self.layer_number, positions=positions)
        out = self.by_row(cupy.asnumpy(out))
        if not np.isfinite(out).all():
            raise InputError(f"layer {self.layer_number}: scores q.k or sums of V overflow float32; scale q, k or v down")
        counts = {field.name: cupy.asnumpy(getattr(plan.counts, field.name)) for field in dataclasses.fields(Counts)}
        sums = {name: counts[name].sum(axis=0) for name in ("scores", "sampling", "global_step", "drawing", "values", "merging", "tile_merging")}
        drawn = counts["drawn"] != 0  # [B, H_kv, G, d]
        if B > 1:
            sums["scores"][:, :, 2] = self.shared_reads(drawn.any(axis=0).sum(axis=(1, 2)) if plan.feature_major else np.full(H_kv, G * d))
        sampled, method = spec.method not in ("sdpa", "topk"), spec.method
        union = np.full((H_kv, n), method == "sdpa")
        self.seen[:, :, :n] |= method == "sdpa"
        for rows in cupy.asnumpy(plan.work["selected"]) if method == "topk" else counts["rows"]:
            for h, keys in enumerate(rows):
                self.seen[h // G, h % G, keys[keys >= 0]] = True
                union[h // G, keys[keys >= 0]] = True
        shares = self.by_row(counts["budgets"])
        return cpu.Result(
            out, sums["scores"], sampling=sums["sampling"] if plan.feature_major else None,
            features=drawn.any(axis=(0, 2)) if plan.feature_major else None, global_step=None if method == "sdpa" else sums["global_step"],
            budgets=None if method == "sdpa" else shares, drawing=sums["drawing"], values=sums["values"], merging=sums["tile_merging"],
            final_merge=sums["merging"], union=union, output=accumulate.output_counts(H_kv, out[0].size), draws=int(shares.sum()) if sampled else 0,
        )  # fmt: skip

    def by_row(self, x: np.ndarray) -> np.ndarray:
        """[B, H, ...] as [H_kv, B * G, ...]."""
        return x.reshape(len(x), self.H_kv, self.G, -1).transpose(1, 0, 2, 3).reshape(self.H_kv, self.R, -1)

    def shared_reads(self, per_key: np.ndarray) -> np.ndarray:
        """Scalars that a block with one pass over K reads, [H_kv, T]; per_key : [H_kv], of each key."""
        first = np.arange(self.T) * self.tile
        last = np.minimum(first + self.tile, self.n)
        start = first if self.spec.score != "exact" else np.maximum(first, self.keys_read)
        reads = np.maximum(last - start, 0) * per_key[:, None]
        reads[:, 0] += self.R * self.d
        return reads


def run_layer(spec: Spec, layer: Layer, sequence: int, layer_number: int, S: int | None, tile: int, writer, progress=None):
    """`methods.kernel.run_layer` with the stages on the GPU: the same arguments, output and trace.

    Raises
    ------
    InputError
        No CuPy or GPU, or what `make_plan` refuses.
    """
    device.require_cupy()
    build.variant(spec, layer.q.shape[2], layer.q.shape[1] // layer.k.shape[1], tile)
    return cpu.run_layer(spec, layer, sequence, layer_number, S, tile, writer, progress, GpuBlock)
