import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from santa_sim.cli import main
from santa_sim.errors import InputError
from santa_sim.explore.pareto import fronts, on_front, pareto, works


@given(hnp.arrays(float, st.tuples(st.integers(1, 40), st.integers(1, 4)), elements=st.integers(0, 5).map(float)))
def test_front_is_what_nobody_dominates(costs):
    dominated = [any((other <= point).all() and (other < point).any() for other in costs) for point in costs]
    assert (on_front(costs) == ~np.array(dominated)).all()


def test_front_keeps_order_and_leaves_failed_rows_out():
    frame = pd.DataFrame({"latency_s": [3.0, 1.0, 2.0, np.nan, 3.0], "energy_j": [1.0, 3.0, 3.0, 0.0, 1.0], "who": list("abcde")})
    with pytest.warns(UserWarning, match="left out: 1 of 5 rows without latency_s$"):
        assert pareto(frame, ["latency_s", "energy_j"]).who.tolist() == ["a", "b", "e"]
    frame["failure"], frame["hardware"] = [None, None, None, "no", None], ["m"] * 3 + ["n", "m"]
    best, left_out = fronts(frame, "latency_s")
    assert best.who.tolist() == ["b"] and left_out == ["1 of 5 rows without latency_s, 1 of them failed (on n)"]


def test_energies_that_lack_more_than_others_win_nothing():
    known, more = "dram_background; leakage", "dram_read; dram_background; leakage"
    frame = pd.DataFrame({"hardware": ["hbm3", "lpddr5", "hbm3", "gpu"], "latency_s": [1.0, 9.0, 2.0, 0.5], "energy_j": [5.0, 1.0, 4.0, np.nan],
                          "energy_dram_read_j": [3.0, 0.0, 2.0, np.nan], "energy_unknown": [known, more, known, more]})  # fmt: skip
    for columns in (["latency_s", "energy_j"], ["latency_s", "energy_dram_read_j"]):
        best, left_out = fronts(frame, columns)
        assert best.hardware.tolist() == ["hbm3", "hbm3"]
        assert left_out == [f"1 of 4 rows without {columns[1]} (on gpu)", "1 of 4 rows whose energy lacks dram_read, which others have (on lpddr5)"]
    assert pareto(frame, "latency_s").hardware.tolist() == ["gpu"]  # nobody's energy counts
    assert fronts(frame[:2].iloc[[1]], ["latency_s", "energy_j"])[1] == []  # all alike
    each = frame[:2].assign(energy_unknown=["dram_read", "leakage"])
    with pytest.raises(InputError, match=r"some energies lack dram_read \(on hbm3\), others leakage \(on lpddr5\): no winner"):
        pareto(each, ["latency_s", "energy_j"])


def test_each_work_has_its_front():
    frame = pd.DataFrame({"workload": list("aabb"), "n_k": [8, 16, 8, 8], "workload.source.sink_mass": 0.5, "S": [1, 2, 3, 4], "latency_s": [1.0, 4.0, 2.0, 3.0]})
    assert works(frame) == ["workload", "n_k"] and works(frame[2:]) == []
    assert pareto(frame, "latency_s").S.tolist() == [1, 2, 3]
    assert pareto(frame.drop(columns="n_k"), "latency_s").S.tolist() == [1, 3]
    assert pareto(frame, ["latency_s", "n_k"]).S.tolist() == [1, 3]  # what is minimised tells nothing apart


def test_an_energy_that_nobody_knows_is_none(tmp_path):
    table = str(tmp_path / "c.csv")
    made = CliRunner().invoke(main, ["compare", "smollm2_decode_2k", "-m", "sdpa", "--precision", "bf16", "--hardware", "h200", "--hardware", "mac_lpddr5",
                                     "--hardware", "mac_hbm3", "-o", table])  # fmt: skip
    cells = {line.split()[1]: line.split() for line in made.stdout.splitlines() if line.startswith("sdpa")}
    assert cells["h200"][3] == "-" and cells["mac_lpddr5"][3].endswith("*")
    frame = pd.read_csv(table).set_index("hardware")
    assert frame.energy_j.isna().tolist() == [True, False, False] and pd.isna(frame.energy_sram_j["h200"])
    printed = CliRunner().invoke(main, ["pareto", table, "--minimize", "latency_s,energy_j"])
    assert "1 of 3 rows are on the front" in printed.stdout
    assert "1 of 3 rows without energy_j (on h200)" in printed.stderr
    assert "lacks dram_activate, dram_read, dram_write, which others have (on mac_lpddr5)" in printed.stderr


def test_the_command_reads_what_compare_wrote(tmp_path):
    compared, best = str(tmp_path / "c.csv"), str(tmp_path / "best.parquet")
    assert CliRunner().invoke(main, ["compare", "smollm2_decode_2k", "-m", "s2anta-prop", "-S", "16", "-S", "64", "-o", compared]).exit_code == 0
    printed = CliRunner().invoke(main, ["pareto", compared, "--minimize", "latency_s, error_relative_l2", "-o", best]).output
    assert "2 of 2 rows are on the front" in printed and pd.read_parquet(best).samples.tolist() == [16, 64]
    alone = CliRunner().invoke(main, ["pareto", compared, "--minimize", "latency_s"]).output
    assert "1 of 2 rows" in alone and "S" in alone.splitlines()[1].split() and " 16 " in alone  # also where one row is left
    rows = json.loads(CliRunner().invoke(main, ["pareto", compared, "--minimize", "latency_s", "--json"]).output)
    assert [row["samples"] for row in rows] == [16]
    before = (tmp_path / "c.csv").read_text()
    itself = CliRunner().invoke(main, ["pareto", compared, "--minimize", "latency_s", "-o", str(tmp_path / "." / "c.csv")])
    assert itself.exit_code == 2 and "is the table itself" in itself.stderr and (tmp_path / "c.csv").read_text() == before
    (tmp_path / "no.parquet").write_text("x")
    broken = CliRunner().invoke(main, ["pareto", str(tmp_path / "no.parquet")])
    assert broken.exit_code == 2 and "is no table that can be read" in broken.stderr


def test_misuse():
    frame = pd.DataFrame({"latency_s": [3.0], "who": ["a"]})
    for columns, message in (([], "empty"), (["latency"], "did you mean 'latency_s'"), (["who"], "text")):
        with pytest.raises(InputError, match=message):
            pareto(frame, columns)
    with pytest.raises(InputError, match=r"not str: write pareto\(pandas.read_csv\('cmp.csv'\), ...\)"):
        pareto("cmp.csv", ["latency_s"])
    with pytest.raises(InputError, match="a DataFrame, not list"):
        pareto([frame])
