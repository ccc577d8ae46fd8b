"""Figure 4: the model's numbers go into rows unchanged, and a slower prediction turns its row red."""

from santa_sim.reproduce import figure4


def test_speedups_within_a_fifth_and_a_slow_kernel_out(monkeypatch):
    frame = figure4.paper_figure4(figure4.LENGTHS)
    found = figure4.reproduce(lambda *_: None, 0, True)
    assert [row.verdict for row in found.rows if row.published is not None] == ["within", "within"]
    prop = frame[(frame["kernel"] == "s2anta-prop") & (frame["n_k"] == 32768)]
    assert found.rows[0].ours == prop["speedup"].item()
    assert found.plots["times"]() is not None
    slower = frame.assign(speedup=frame["speedup"] / 1.4)
    monkeypatch.setattr(figure4, "paper_figure4", lambda lengths: slower)
    assert [row.verdict for row in figure4.reproduce(lambda *_: None, 0, True).rows[:2]] == ["OUT", "OUT"]
