"""Verdicts come from the numbers; a failing item loses nothing; unknown names are answered with the nearest."""

import json

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from santa_sim import reproduce
from santa_sim.cli import main
from santa_sim.errors import InputError
from santa_sim.reproduce import Found, Row, items
from santa_sim.reproduce.report import Section


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ({"ours": 1.1, "published": 1.0}, "beside"),
        ({"ours": 1.1, "published": 1.0, "tolerance": 0.2}, "within"),
        ({"ours": 1.3, "published": 1.0, "tolerance": 0.2}, "OUT"),
        ({"ours": 0.7, "published": 1.0, "tolerance": 0.2}, "OUT"),
        ({"ours": 1.3, "published": 1.0, "expected": 1.3, "tolerance": 0.0}, "consistent"),
        ({"ours": 0.7, "published": 1.0, "tolerance": 0.2, "bound": "<="}, "within"),
        ({"ours": 1.3, "published": 1.0, "tolerance": 0.2, "bound": "<="}, "OUT"),
        ({"ours": 1.3, "published": 1.0, "tolerance": 0.2, "bound": ">="}, "within"),
        ({"ours": 0.7, "published": 1.0, "tolerance": 0.2, "bound": ">="}, "OUT"),
        ({"ours": 1.1, "published": 1.0, "expected": 1.4, "tolerance": 0.2}, "OUT"),
        ({"ours": 1.3, "published": 1.0, "tolerance": 0.2, "explained_if": (("a", 1, 2), ("b", 3, 3))}, "explained"),
        ({"ours": 1.3, "published": 1.0, "tolerance": 0.2, "explained_if": (("a", 1, 2), ("b", 4, 3))}, "OUT"),
        ({"ours": None}, "OUT"),
        ({"ours": float("nan"), "published": 1.0, "tolerance": 1.0}, "OUT"),
    ],
)
def test_verdict_is_computed(numbers, verdict):
    assert Row("table8", "x", **numbers).verdict == verdict


def test_rows_that_cannot_have_a_verdict_are_refused():
    with pytest.raises(ValueError, match="needs a published or an expected"):
        Row("table8", "x", 1.0, tolerance=0.1)
    with pytest.raises(ValueError, match="bound='<'"):
        Row("table8", "x", 1.0, bound="<")


@pytest.fixture
def two_items(monkeypatch):
    """table8 breaks, table10 has one row within and a plot."""

    def load(name):
        def reproduce(progress, seed, fast):
            progress("working", 1, 2)
            if name == "table8":
                raise RuntimeError("no luck")
            return Found((Row(name, "a | b", 1.0, 1.0, tolerance=0, statistics={"seed": seed}),), {"line": Figure})

        return reproduce, f"How {name} is done."

    monkeypatch.setattr("santa_sim.reproduce.report.load_item", load)


def test_a_failing_item_is_a_row_and_the_rest_goes_on(two_items, tmp_path):
    steps = []
    report = reproduce.run(["table10", "table8", "table8"], seed=3, folder=tmp_path / "a" / "b", progress=lambda *step: steps.append(step))
    assert [section.item for section in report.sections] == ["table8", "table10"]
    assert report.verdicts == {"within": 1, "consistent": 0, "explained": 0, "OUT": 1, "beside": 0} and not report.ok
    assert "RuntimeError: no luck" in report.rows[0].note
    assert "1 within the paper's tolerance, 0 consistent" in report.agreement and not report.missing
    assert ("table10: working", 1, 2) in steps
    folder = tmp_path / "a" / "b"
    assert {path.name for path in folder.iterdir()} == {"report.md", "report.json", "table10_line.png"}
    text = (folder / "report.md").read_text()
    assert "**OUT**" in text and "a \\| b" in text and "![line](table10_line.png)" in text and "How table10 is done." in text
    assert json.loads((folder / "report.json").read_text()) == json.loads(json.dumps(report.to_dict()))
    assert list(report.to_frame()["verdict"]) == ["OUT", "within"]


def test_a_report_that_is_broken_off_says_so(two_items, tmp_path):
    class Stop(BaseException):
        pass

    def stop(name):
        if name == "table10":
            raise Stop

    with pytest.raises(Stop):
        reproduce.run(["table8", "table10"], folder=tmp_path, begun=stop)
    text = (tmp_path / "report.md").read_text()
    assert "**Partial**: 1 of 2 items; missing: table10." in text
    assert json.loads((tmp_path / "report.json").read_text())["missing"] == ["table10"]
    reproduce.run(["table8", "table10"], folder=tmp_path)
    assert "Partial" not in (tmp_path / "report.md").read_text()


def test_agreement_with_the_paper_is_counted_apart():
    rows = (Row("table8", "a", 1.0, 1.0, tolerance=0), Row("table8", "b", 2.0, 9.0, expected=2.0, tolerance=0), Row("table8", "c", 2.0, 9.0, tolerance=0))
    assert [row.compared_with for row in rows] == ["paper", "own expectation", "paper"]
    report = reproduce.Report((Section("table8", "t", rows, {}, "", 0.0),), (), 0, False)
    assert report.agreement == ("1 within the paper's tolerance, 1 consistent with our closed forms and limits, 0 explained, 0 beside, "
                                "1 OUT (1 of the paper's numbers, 0 of our own)")  # fmt: skip


def test_command(two_items, tmp_path):
    def invoke(*arguments):
        return CliRunner().invoke(main, ["reproduce", *arguments])

    assert invoke("table10").exit_code == 0
    broken = invoke("table8", "table10", "-o", str(tmp_path))
    assert broken.exit_code == 1 and "OUT  table8" in broken.stdout and "no luck" in broken.stdout
    assert broken.stderr.splitlines()[:2] == ["table8: started", "table8: done, 0 s, RuntimeError: no luck"]
    printed = json.loads(invoke("table10", "--json", "--seed", "5").stdout)
    assert printed["items"][0]["rows"][0]["statistics"] == {"seed": 5} and printed["ok"] and not printed["needs_model"]
    model = invoke("table1")
    assert model.exit_code == 0 and "santa-sim evaluate" in model.stdout and "not shipped yet" in model.stdout
    unknown = invoke("tabel8")
    assert unknown.exit_code == 2 and "did you mean 'table8'" in unknown.stderr
    (tmp_path / "file").touch()
    assert "needs a folder" in invoke("table10", "-o", str(tmp_path / "file")).stderr


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(InputError, match="did you mean 'theorem-b1'"):
        reproduce.run(["theorem_b1"])
    with pytest.raises(InputError, match="seed=-1"):
        reproduce.run(["table8"], seed=-1)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="can't be made"):
        reproduce.run(["table1"], folder=tmp_path / "file" / "x")


def test_every_item_has_its_module_and_docstring():
    for name in items.ITEMS:
        function, method = items.load_item(name)
        assert callable(function) and method
