"""Notebooks run from end to end on small settings, and are stored without outputs."""

import json
import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest

from spade_jax import config
from tests import small_run

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "colabs").glob("*.ipynb"))
LONGEST = 15  # lines of a function in them: a plot


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def execute(name: str) -> tuple[str, int]:
    """Text of all outputs of a notebook run in its folder, and how many pictures it shows."""
    notebook = read(ROOT / "colabs" / f"{name}.ipynb")
    resources = {"metadata": {"path": str(ROOT / "colabs")}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    text, pictures = "", 0
    for output in (output for cell in code_cells(notebook) for output in cell.outputs):
        data = output.get("data", {})
        text += output.get("text", "") + data.get("text/markdown", "")
        pictures += "image/png" in data
    return text, pictures


def test_they_are_numbered() -> None:
    assert [path.stem[:3] for path in NOTEBOOKS] == ["01_", "02_", "03_", "04_", "05_"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(path: Path) -> None:
    cells = code_cells(read(path))
    assert cells and not any(cell.outputs or cell.execution_count for cell in cells)
    assert "pip" in cells[0].source  # installs where the package is missing
    for cell in cells:
        for function in f"\n{cell.source}".split("\ndef ")[1:]:
            assert len(function.split("\n\n\n")[0].splitlines()) <= LONGEST


def test_play_and_validate() -> None:
    text, _ = execute("01_play_and_validate")
    assert "environment: Done.   [reward 1]\nwon" in text  # by the solution
    assert "accepted: nothing to mend" in text and "solution=1.0" in text
    assert "leak: The first observation states the answer" in text


@pytest.mark.slow
def test_a_design_becomes_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy that ships designs; four in five of its designs are valid."""
    monkeypatch.setenv("SPADE_ENVIRONMENTS", "4")
    text, _ = execute("02_a_design_becomes_a_score")
    assert "[user] Design: " in text and "000000-003  " in text
    assert "accepted" in text and "Env:\n    def reset(self, seed=None):" in text
    assert ", plain arm, seed " in text and ", hinted arm, seed " in text
    assert "Regret(mean=" in text and "agent's advantages: [" in text and "  advantage " in text


@pytest.mark.slow
def test_train_and_plot(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.save(small_run.run_config(model_folder), tmp_path)
    monkeypatch.setenv("SPADE_CONFIG", str(tmp_path / config.FILE))
    monkeypatch.setenv("SPADE_WORKDIR", str(tmp_path / "run"))
    monkeypatch.setenv("SPADE_ITERATIONS", "1")
    monkeypatch.setenv("SPADE_PER_LEVEL", "1")
    text, pictures = execute("03_train_and_plot")
    assert "held-out success of 50 instances, iteration 0 to 1" in text
    assert pictures == 1
    assert (tmp_path / "run" / "report.html").exists()


def test_read_and_compare(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rate in (("slow", 1e-5), ("fast", 1e-3)):
        shutil.copytree(finished_run, tmp_path / name)
        fields = json.loads((tmp_path / name / config.FILE).read_text())
        fields["optimizer"]["lr"] = rate
        (tmp_path / name / config.FILE).write_text(json.dumps(fields))
    monkeypatch.setenv("SPADE_WORKDIR", str(finished_run))
    monkeypatch.setenv("SPADE_RUNS", str(tmp_path))
    text, pictures = execute("04_read_and_compare")
    assert f"{finished_run}: 2 iterations, 6 designs" in text
    assert "held-out success of 50 instances, iteration 0 to 2" in text
    assert pictures == 3
    newest = max((finished_run / "environments").glob("*.py"))
    assert newest.read_text() in text and newest.stem in text
    assert f"{newest.stem}, plain arm" in text and "\nreturn " in text
    assert "| optimizer.lr=1e-05 | 1 |" in text and "| optimizer.lr=0.001 | 1 |" in text


def test_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a TPU and its compiler it says what to install, and what it would do."""
    monkeypatch.setenv("SPADE_TOPOLOGY", "v5e:3x3x3")
    text, _ = execute("05_tpu")
    assert text.startswith("cpu ")
    assert "libtpu, the TPU's compiler, is not installed" in text or "no topology" in text
    assert text.count("launch/tpu_vm.sh --config=games:qwen3_0_6b") == 5
    assert "there is no TPU here" in text
