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
from santa_sim.explore.pareto import on_front, pareto


@given(hnp.arrays(float, st.tuples(st.integers(1, 40), st.integers(1, 4)), elements=st.integers(0, 5).map(float)))
def test_front_is_what_nobody_dominates(costs):
    dominated = [any((other <= point).all() and (other < point).any() for other in costs) for point in costs]
    assert (on_front(costs) == ~np.array(dominated)).all()


def test_front_keeps_order_and_leaves_failed_rows_out():
    frame = pd.DataFrame({"latency_s": [3.0, 1.0, 2.0, np.nan, 3.0], "energy_j": [1.0, 3.0, 3.0, 0.0, 1.0], "who": list("abcde")})
    assert pareto(frame, ["latency_s", "energy_j"]).who.tolist() == ["a", "b", "e"]
    assert pareto(frame, "latency_s").who.tolist() == ["b"]


def test_the_command_reads_what_compare_wrote(tmp_path):
    compared, best = str(tmp_path / "c.csv"), str(tmp_path / "best.parquet")
    assert CliRunner().invoke(main, ["compare", "smollm2_decode_2k", "-m", "s2anta-prop", "-S", "16", "-S", "64", "-o", compared]).exit_code == 0
    printed = CliRunner().invoke(main, ["pareto", compared, "--minimize", "latency_s, error_relative_l2", "-o", best]).output
    assert "2 of 2 rows are on the front" in printed and pd.read_parquet(best).samples.tolist() == [16, 64]
    alone = CliRunner().invoke(main, ["pareto", compared, "--minimize", "latency_s"]).output
    assert "1 of 2 rows" in alone and "S" in alone.splitlines()[1].split() and " 16 " in alone  # also where one row is left
    rows = json.loads(CliRunner().invoke(main, ["pareto", compared, "--minimize", "latency_s", "--json"]).output)
    assert [row["samples"] for row in rows] == [16]
    (tmp_path / "no.parquet").write_text("x")
    broken = CliRunner().invoke(main, ["pareto", str(tmp_path / "no.parquet")])
    assert broken.exit_code == 2 and "is no table that can be read" in broken.stderr


def test_misuse():
    frame = pd.DataFrame({"latency_s": [3.0], "who": ["a"]})
    for columns, message in (([], "empty"), (["latency"], "did you mean 'latency_s'"), (["who"], "text")):
        with pytest.raises(InputError, match=message):
            pareto(frame, columns)
