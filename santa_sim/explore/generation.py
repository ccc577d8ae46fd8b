"""`santa_sim.generation`: T tokens from n_k keys on, from a few simulated lengths and straight lines between them.

All but attention costs the same at every length. Attention's cost is smooth in n_k but where the tile length changes
(with the default tiles behind 1,536 and 3,072 keys): lines never cross these. Where the middle of a line doesn't lie on
it, it is broken there, until what the remaining ones can be off is below the tolerance.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..hardware_model import Hardware
from ..models.layers import LanguageModel, load_model
from ..models.weight_formats import WeightFormat
from ..schema import shown
from ..workload import LONGEST
from .decode_step import BATCHES, DecodeStep, Plan, accelerator, step_of, whole
from .step_cost import Cost, Costs, combined

if TYPE_CHECKING:
    import pandas as pd

MOST_TOKENS = 2**24
MOST_POINTS = 33  # lengths that are simulated


@dataclasses.dataclass(frozen=True)
class Generation:
    """Tokens generated one after the other, `batch` sequences at once.

    Attributes
    ----------
    first, last : DecodeStep  the first and the last step
    tokens : int  of each sequence
    points : tuple of int  the lengths n_k that were simulated
    attention, rest : Cost  of all steps: attention, and everything else
    error_estimate : float  of latency and energy, the larger one, relative: what the lines are expected to be off at most;
        0 where every length was simulated. An estimate, not a bound.
    curve : dict of 'n_k', 'latency_s', 'energy_j' to array [tokens]  of each step
    """

    first: DecodeStep
    last: DecodeStep
    tokens: int
    points: tuple[int, ...]
    attention: Cost
    rest: Cost
    error_estimate: float
    curve: dict[str, np.ndarray] = dataclasses.field(repr=False)

    @property
    def latency_s(self) -> float:
        """Of all steps [s]."""
        return self.attention.latency_s + self.rest.latency_s

    @property
    def energy_j(self) -> float:
        """Of all steps [J]."""
        return self.attention.energy_j + self.rest.energy_j

    @property
    def latency_per_token_s(self) -> float:
        """Over all tokens of all sequences [s]."""
        return self.latency_s / (self.tokens * self.first.batch)

    @property
    def energy_per_token_j(self) -> float:
        """Over all tokens of all sequences [J]."""
        return self.energy_j / (self.tokens * self.first.batch)

    @property
    def attention_share(self) -> float:
        """Of the latency, attention's."""
        return self.attention.latency_s / self.latency_s

    @property
    def attention_energy_share(self) -> float:
        """Of the energy, attention's."""
        return self.attention.energy_j / self.energy_j if self.energy_j else 0.0

    def to_frame(self) -> pd.DataFrame:
        """A row a step: n_k, latency_s, energy_j."""
        import pandas as pd

        return pd.DataFrame(self.curve)

    def to_dict(self) -> dict:
        """All but the curve, JSON-able, SI units."""
        what = self.first.summary()
        given = ("model", "hardware", "method", "score", "samples", "weights", "lm_head", "precision", "n_k", "batch", "seed")
        numbers = ("latency_s", "energy_j", "latency_per_token_s", "energy_per_token_j", "attention_share", "attention_energy_share",
                   "error_estimate", "points")  # fmt: skip
        return json.loads(json.dumps({
            **{name: what[name] for name in given}, "tokens": self.tokens, **{name: getattr(self, name) for name in numbers},
            "first_step_latency_s": self.first.latency_s, "last_step_latency_s": self.last.latency_s,
            "memory_needed_bytes": self.last.memory_needed_bytes, "memory_holds_bytes": self.last.memory_holds_bytes, "fits": self.last.fits,
            "energy_breakdown_j": combined([(1, self.attention), (1, self.rest)]).energy_breakdown_j,
            "energy_unknown": self.first.energy_unknown, "notes": self.last.notes,
        }))  # fmt: skip


def generation(model: str | Path | Mapping | LanguageModel, method: str, S=None, *, n_k: int, tokens: int, batch: int = 1,
               weights: str | WeightFormat | None = None, lm_head: str | WeightFormat = "bf16",
               hardware: str | Path | Mapping | Hardware | None = None, tolerance: float = 0.01, full: bool = False,
               progress: Callable[[str, int, int], None] | None = None, **attention) -> Generation:  # fmt: skip
    """Cost a generation: step i has n_k + i keys per sequence, i = 0 ... tokens - 1.

    Parameters
    ----------
    n_k : int  keys of the first step, the current token included.  tokens : int  of each sequence
    tolerance : relative error of the lines that is aimed for, as estimated; at most 33 lengths are simulated
    full : simulate every length, every row and every sequence
    others : as in `decode_step`

    Raises
    ------
    InputError
        Anything that can't be costed, named with its value and what to write instead.
    """
    model = load_model(model)
    plan = Plan.of(method, S, weights, lm_head, model, attention, "generation", ("tokens", "tolerance"))
    costs = Costs(accelerator(method, hardware), full, progress)
    start, tokens, batch = whole("n_k", n_k, LONGEST), whole("tokens", tokens, MOST_TOKENS), whole("batch", batch, BATCHES)
    if start + tokens - 1 > LONGEST:
        raise InputError(f"n_k={start:,} and tokens={tokens:,} reach {start + tokens - 1:,} keys; a cache holds {LONGEST:,}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
        raise InputError(f"tolerance={shown(tolerance)}: write a number between 0 and 1, such as 0.01")

    steps: dict[int, DecodeStep] = {}

    def at(length: int) -> Cost:
        if length not in steps:
            steps[length] = step_of(model, plan, length, batch, costs)
        return steps[length].cost_of("attention")

    lines = Lines(at, stretches(plan.spec.tile_for, start, start + tokens - 1))
    rest = combined([(1, part.cost) for part in step_of_rest(model, plan, start, batch, costs, steps)])
    if full:
        lines.play_all()
    else:
        lines.refine(tolerance, tokens * rest.latency_s, tokens * rest.energy_j)
    lengths = np.arange(start, start + tokens)
    curve = {
        "n_k": lengths,
        "latency_s": rest.latency_s + lines.values(lengths, lambda cost: cost.latency_s),
        "energy_j": rest.energy_j + lines.values(lengths, lambda cost: cost.energy_j),
    }
    return Generation(
        steps[start], steps[start + tokens - 1], tokens, tuple(sorted(steps)), combined(lines.weights()), combined([(tokens, rest)]),
        max(lines.errors(tokens * rest.latency_s, tokens * rest.energy_j)), curve,
    )  # fmt: skip


def step_of_rest(model, plan, n_k, batch, costs, steps) -> list:
    """The parts of the step at n_k, but for attention."""
    if n_k not in steps:
        steps[n_k] = step_of(model, plan, n_k, batch, costs)
    return [part for part in steps[n_k].parts if part.kind != "attention"]


def stretches(tile_for: Callable[[int], int], first: int, last: int) -> list[tuple[int, int]]:
    """first ... last cut into (first, last) with one tile length each; `tile_for` grows with the length."""
    found = []
    while first <= last:
        end = first + bisect.bisect_right(range(first, last + 1), tile_for(first), key=tile_for) - 1
        found.append((first, end))
        first = end + 1
    return found


class Lines:
    """A cost over whole numbers, played at some and on straight lines between them.

    Attributes
    ----------
    played : dict of int to Cost
    spans : dict of (a, b) to what its middle is expected to be off, (latency [s], energy [J]): as much as the middle of
        the line that was broken to make it, which is twice to four times too much where the cost is smooth and right where
        it is rough. Infinite until a stretch has been played at its ends and three numbers between
    """

    def __init__(self, at: Callable[[int], Cost], pieces: list[tuple[int, int]]) -> None:
        self.at, self.pieces = at, pieces
        self.played = {n: at(n) for piece in pieces for n in piece}
        self.spans = {(a, b): ((np.inf, np.inf) if b - a > 1 else (0.0, 0.0)) for a, b in pieces}

    def play_all(self) -> None:
        """Play every number."""
        self.spans = {}
        for a, b in self.pieces:
            self.played.update({n: self.at(n) for n in range(a, b + 1)})
            self.spans.update({(n, n + 1): (0.0, 0.0) for n in range(a, b)} or {(a, b): (0.0, 0.0)})

    def refine(self, tolerance: float, other_latency_s: float, other_energy_j: float) -> None:
        """Break lines, the most doubtful first, until the expected error is below `tolerance` of the total or all is played."""
        while len(self.played) < MOST_POINTS:
            if max(self.errors(other_latency_s, other_energy_j)) <= tolerance:
                return
            latency, energy = self._totals(other_latency_s, other_energy_j)
            a, b = max(self.spans, key=lambda s: (s[1] - s[0]) * max(self.spans[s][0] / latency, self.spans[s][1] / energy))
            self._break(a, b)

    def _break(self, a: int, b: int) -> None:
        middle = (a + b) // 2 + _aside(a, b)
        share = Fraction(middle - a, b - a)
        guess = combined([(1 - share, self.played[a]), (share, self.played[b])])
        found = self.played[middle] = self.at(middle)
        off = abs(found.latency_s - guess.latency_s), abs(found.energy_j - guess.energy_j)
        del self.spans[a, b]
        if (a, b) in self.pieces:  # one middle is too few to judge a stretch by: look into both halves too
            off = (np.inf, np.inf)
        for span in ((a, middle), (middle, b)):
            self.spans[span] = off if span[1] - span[0] > 1 else (0.0, 0.0)

    def errors(self, other_latency_s: float, other_energy_j: float) -> tuple[float, float]:
        """Expected error of the totals, latency and energy, relative: of each line half its length times its middle's."""
        totals = self._totals(other_latency_s, other_energy_j)
        return tuple(
            sum((b - a) / 2 * off[i] for (a, b), off in self.spans.items()) / totals[i] if totals[i] else 0.0 for i in range(2)
        )

    def _totals(self, other_latency_s: float, other_energy_j: float) -> tuple[float, float]:
        terms = self.weights()
        return (
            other_latency_s + sum(float(w) * cost.latency_s for w, cost in terms),
            other_energy_j + sum(float(w) * cost.energy_j for w, cost in terms),
        )

    def weights(self) -> list[tuple[Fraction, Cost]]:
        """How often each played cost counts in the sum over all numbers."""
        counts: dict[int, Fraction] = dict.fromkeys(self.played, Fraction(0))
        for a, b in self.spans:  # the numbers a ... b - 1
            counts[a] += Fraction(b - a + 1, 2) if b > a else 0
            counts[b] += Fraction(b - a - 1, 2) if b > a else 0
        for _, last in self.pieces:
            counts[last] += 1
        return [(weight, self.played[n]) for n, weight in counts.items()]

    def values(self, numbers: np.ndarray, of: Callable[[Cost], float]) -> np.ndarray:
        """A quantity at each number."""
        out = np.empty(len(numbers))
        for a, b in self.pieces:
            inside = (numbers >= a) & (numbers <= b)
            known = sorted(n for n in self.played if a <= n <= b)
            out[inside] = np.interp(numbers[inside], known, [of(self.played[n]) for n in known])
        return out


def _aside(a: int, b: int) -> int:
    """Steps to the side of the middle, up to an eighth of the line: lengths then fill their last tile to all degrees."""
    return int((((a + b) * 0.6180339887) % 1 - 0.5) * (b - a) / 4) if b - a > 8 else 0
