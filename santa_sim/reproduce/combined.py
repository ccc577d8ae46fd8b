"""Shares of K and V that a decode step reads with mean-group Bernoulli scores, B = 4, and S independent value draws, beside
Table 7, on captured heads and on a workload of the paper's model's shape (BitNet-2B; its queries are Gaussian here). The
table's GSM8K prompts are a few hundred tokens of unpublished length, and the share of V falls with it; the share of K
depends on how uneven the queries' magnitudes are. So the published shares stand beside; the verdicts are on what must hold
for any model: a feature of K is read with probability 1 - (1 - a)^B, a the group's mean magnitude over its largest; S doesn't
change what is read of K; the rows of V that a group reads number sum_j 1 - prod_h (1 - p_hj)^S on average given the scores,
whose own average is taken over scores that the score stage draws anew.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from .confidence import stream
from .counted import bytes_read
from .draws import bernoulli_scores, feature_major
from .heads import CAPTURED, CAPTURED_NOTE, Heads, expected_union, five_errors, heads_of, repeated
from .items import Progress, published
from .rows import Found, Row

ITEM = "combined"
B = 4
WORKLOADS = {"captured": CAPTURED, "BitNet's shape": "bitnet2b_decode_1k"}


def reproduce(progress: Progress, seed: int, fast: bool) -> Found:
    table, times = published()["table7"], 4 if fast else 16
    rows, measured = [], {}
    for name, workload in WORKLOADS.items():
        layers = heads_of(workload, seed)
        for place, S in enumerate(table["S"]):
            progress(f"{name}, S = {S}", place, len(table["S"]))
            measured[name, S] = accesses(layers, S, times, seed)
        progress(f"{name}, scores", 0, 1)
        unions = expected_value_shares(layers, table["S"], 2 * times, seed)
        rows += _rows(name, layers, table, {S: measured[name, S] for S in table["S"]}, unions, times)
    return Found(tuple(rows), {"access": lambda: _plot(table, measured)})


def accesses(layers: list[Heads], S: int, times: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shares of K's features and of V's rows that each KV group reads, float [times, layers * H_kv] each  [%]."""
    k_shares, v_shares = [], []
    for number, heads in enumerate(layers):
        n_k, H_kv, d = heads.k.shape
        trace = repeated(heads, "santa", times, seed + 1000 * number, S=S, score="bernoulli-mean-group", B=B)[1]
        frame = trace.items[["sequence", "kv_head", "unique_rows_per_group"]].assign(k_bytes=bytes_read(trace.items, "k"))
        sums = frame.groupby(["sequence", "kv_head"])[["k_bytes", "unique_rows_per_group"]].sum()
        k_shares.append(100 * sums["k_bytes"].to_numpy().reshape(times, H_kv) / (n_k * d * heads.k.itemsize))
        v_shares.append(100 * sums["unique_rows_per_group"].to_numpy().reshape(times, H_kv) / n_k)
    return np.concatenate(k_shares, axis=1), np.concatenate(v_shares, axis=1)


def expected_key_shares(heads: Heads) -> np.ndarray:
    """1 - (1 - a)^B, mean over features, of each group, float64 [H_kv]  [%]."""
    mean = np.abs(heads.q.astype(np.float64)).reshape(heads.k.shape[1], -1, heads.q.shape[1]).mean(axis=1)
    return 100 * (1 - (1 - mean / mean.max(axis=1, keepdims=True)) ** B).mean(axis=1)


def expected_value_shares(layers: list[Heads], budgets: list[int], draws: int, seed: int) -> dict[int, np.ndarray]:
    """Expected shares of V's rows given the scores of each of `draws` score stages, float64 [draws, layers * H_kv] by S  [%]."""
    found = {S: [] for S in budgets}
    for draw in range(draws):
        shares = {S: [] for S in budgets}
        for number, heads in enumerate(layers):
            n_k, H_kv, _ = heads.k.shape
            layer = feature_major(heads.q.astype(np.float32), heads.k.astype(np.float32))
            scores = bernoulli_scores(layer, "bernoulli-mean-group", B, stream(seed, 70, draw, number)).scores.astype(np.float64)
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            for S in budgets:
                shares[S].append(100 * expected_union(p, S, "santa", len(p) // H_kv) / n_k)
        for S in budgets:
            found[S].append(np.concatenate(shares[S]))
    return {S: np.array(of_draws) for S, of_draws in found.items()}


def _rows(name: str, layers: list[Heads], table: dict, measured: dict, unions: dict, times: int):
    n_k, H_kv, _ = layers[0].k.shape
    group = layers[0].q.shape[0] // H_kv
    about = CAPTURED_NOTE if name == "captured" else f"{n_k:,} keys, {H_kv} groups of {group}"
    budgets = list(measured)
    keys = measured[budgets[0]][0]
    expected = np.concatenate([expected_key_shares(heads) for heads in layers])
    statistics = {"runs": times, "groups": len(layers) * H_kv, **five_errors(keys - expected)}
    yield Row(ITEM, f"{name}: K access, B = {B}", keys.mean(), table["k_access"][0], expected=expected.mean(),
              tolerance=5 * statistics["standard_error"], unit="%", note=f"of the group's features; {about}; published: BitNet-2B, GSM8K", statistics=statistics)  # fmt: skip
    spread = max(float(np.abs(measured[S][0] - keys).max()) for S in budgets)
    yield Row(ITEM, f"{name}: change of K access with S", spread, expected=0, tolerance=0, unit="%", note="the published column is constant, too")
    for S, published_share in zip(budgets, table["v_access"]):
        values = measured[S][1]
        error = float(np.hypot(*(five_errors(shares)["standard_error"] for shares in (values, unions[S]))))
        yield Row(ITEM, f"{name}: V access, S = {S}", values.mean(), published_share, expected=unions[S].mean(), tolerance=5 * error, unit="%",
                  note=f"of the group's rows, against the mean given {len(unions[S])} other draws of the scores; at most G S / n_k; {about}",
                  statistics={"runs": times, **five_errors(values), "standard_error": error})  # fmt: skip


def _plot(table: dict, measured: dict) -> Figure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(table["S"], table["v_access"], "o-", color="black", label="V, published (BitNet-2B, GSM8K)")
    axes.plot(table["S"], table["k_access"], "s-", color="black", mfc="none", label="K, published")
    for color, name in zip(("#0072B2", "#E69F00"), WORKLOADS):
        axes.plot(table["S"], [measured[name, S][1].mean() for S in table["S"]], "o--", color=color, label=f"V, {name}")
        axes.plot(table["S"], [measured[name, S][0].mean() for S in table["S"]], "s--", color=color, mfc="none", label=f"K, {name}")
    axes.set(xscale="log", yscale="log", xlabel="S, samples per query and head", ylabel="read per group (%)",
             title=f"Bernoulli scores (B = {B}) and sampled values")  # fmt: skip
    axes.set_xticks(table["S"], [str(S) for S in table["S"]])
    axes.minorticks_off()
    axes.set_yticks([0.2, 0.5, 1, 2, 5, 10, 20, 50, 100], ["0.2", "0.5", "1", "2", "5", "10", "20", "50", "100"])
    axes.set_ylim(0.2, 120)
    axes.legend(fontsize=8, ncols=2, loc="lower right")
    return figure
