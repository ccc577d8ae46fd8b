"""Tables 8 and 10, memory and grouped access: the rows hold for any seed, and a wrong kernel turns them red."""

import numpy as np
import pytest

from santa_sim import reproduce
from santa_sim.attention import attention
from santa_sim.methods import accumulate
from santa_sim.reproduce import counted, gqa
from santa_sim.reproduce.items import published


def test_published_formulas_are_numbers_for_their_letters():
    table = published()["table8"]
    assert counted.published_counts(table["santa"], n_k=100, d=8, S=5) == {"adds": 40, "mults": 8, "reads": 40, "writes": 8, "shifts": 0}
    assert counted.published_counts(table["santa"], shifts=True, n_k=100, d=8, S=5)["shifts"] == 8
    assert counted.published_counts(published()["table10"]["score"], n_q=3, n_k=4, d=2)["reads"] == 14


def test_bytes_read_are_streams_and_gathers():
    q, k, v = counted.gaussian(np.random.default_rng(0), None, 100, 4, 2, 16, np.float16)
    dense = attention(q, k, v, "sdpa")[1]
    assert counted.bytes_read(dense.items, "k").sum() == counted.bytes_read(dense.items, "v").sum() == 100 * 2 * 16 * 2
    sampled = attention(q, k, v, "santa", S=4)[1]
    assert counted.bytes_read(sampled.items, "v").sum() == sampled.total("unique_rows_per_group") * 16 * 2


@pytest.mark.parametrize("seed", [1, 2**31])
def test_counts_hold_for_any_seed(seed):
    report = reproduce.run(["table8", "table10"], seed=seed, fast=True)
    assert set(row.verdict for row in report.rows) == {"within", "consistent"}, report.to_frame().query("verdict == 'OUT'")
    assert {"s2anta-flash, fp16: adds", "santa, int16: shifts", "topk, random shapes: counts that differ"} <= {row.name for row in report.rows}


@pytest.mark.parametrize("item, method", [("table8", "s2anta-sys"), ("table10", "santa")])
def test_a_kernel_that_adds_a_row_too_few_turns_rows_red(item, method, monkeypatch):
    """add_rows, which sums the drawn rows, loses the last draw of each row's first tile that has any."""
    right = accumulate.add_rows

    def wrong(v, format, kv, rows, share, *rest):
        fewer = share.copy()
        for budgets in fewer:
            budgets[np.argmax(budgets > 0)] -= 1
        return right(v, format, kv, rows, fewer, *rest)

    monkeypatch.setattr(accumulate, "add_rows", wrong)
    report = reproduce.run([item], fast=True)
    red = {row.name for row in report.rows if row.verdict == "OUT"}
    assert not report.ok and any(name.startswith(f"{method}, fp16") and name.endswith("adds") for name in red)
    assert not any(name.startswith(("sdpa", "topk")) for name in red)  # they don't use it


@pytest.mark.parametrize("item", ["table8", "table10"])
def test_sums_that_are_not_divided_turn_rows_red(item, monkeypatch):
    """Without the division nothing counts one: neither the multiplications, nor the shifts."""

    def undivided(sums, S, bits, value_step, out, counts):
        out[:] = sums * np.float32(value_step)

    monkeypatch.setattr(accumulate, "divide_sums", undivided)
    report = reproduce.run([item], fast=True)
    red = {row.name.replace(": value ", ": ") for row in report.rows if row.verdict == "OUT"}
    assert {"santa, fp16: mults", "santa, fp16: writes", "santa, int16: shifts", "s2anta-prop, fp16: mults"} <= red
    assert not any(name.startswith(("sdpa", "topk", "s2anta-flash")) for name in red)  # they divide elsewhere


@pytest.mark.parametrize("n_k, group", [(64, 4), (90, 3)])
def test_disjoint_heads_reach_the_worst_case(n_k, group):
    trace = attention(*gqa.disjoint_heads(n_k, group, 16), "s2anta-sys", S=8, seed=3)[1]
    assert gqa.group_percent(trace, 1, n_k) == pytest.approx(100 * group * 8 / n_k)


def test_memory():
    report = reproduce.run(["memory"], seed=4, fast=True)
    assert report.ok and (report.verdicts["within"], report.verdicts["consistent"]) == (1, 2)
    by_name = {row.name: row for row in report.rows}
    assert by_name["K and V of one layer and token"].ours == 128
