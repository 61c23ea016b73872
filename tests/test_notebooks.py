"""Notebooks run from end to end on a small run, and are stored without outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "colabs").glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(path: Path) -> None:
    cells = code_cells(read(path))
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)
    assert "pip" in cells[0].source  # installs where the package is missing


def test_read_a_run(finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPADE_WORKDIR", str(finished_run))
    notebook = read(ROOT / "colabs" / "01_read_a_run.ipynb")
    resources = {"metadata": {"path": str(ROOT / "colabs")}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    text, pictures = "", 0
    for cell in code_cells(notebook):
        for output in cell.outputs:
            text += output.get("text", "")
            pictures += "image/png" in output.get("data", {})
    assert f"{finished_run}: 2 iterations, 6 designs" in text
    assert "held-out success of 50 instances, iteration 0 to 2" in text
    assert pictures == 2
    newest = max((finished_run / "environments").glob("*.py"))
    assert newest.read_text() in text and newest.stem in text
    assert f"{newest.stem}, plain arm" in text and "\nreturn " in text
