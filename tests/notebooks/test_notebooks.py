"""Every notebook runs from top to bottom, as it lies there, and carries the pictures of its last run."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

pytest.importorskip("ipykernel", reason="needs ipykernel: pip install -e '.[notebooks]'")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install -e '.[notebooks]'")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install -e '.[notebooks]'")


def pictures(notebook) -> int:
    """How many PNG outputs a notebook holds."""
    return sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path):
    notebook = nbformat.read(path, as_version=4)
    kept = pictures(notebook)
    assert kept > 0, "run the notebook and save it with its pictures"
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"] == list(
        range(1, 1 + sum(cell.cell_type == "code" for cell in notebook.cells))
    ), "saved after running its cells in another order"
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbclient.NotebookClient(notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
    assert pictures(notebook) == kept
