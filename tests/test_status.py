"""The status of a run on one screen."""

import io
import re
from pathlib import Path

import rich.console

from spade_jax import status
from tests.report import sample


def shown(folder: Path, width: int = 80, height: int = 24) -> list[str]:
    console = rich.console.Console(file=io.StringIO(), width=width, height=height, highlight=False)
    console.print(status.screen(sample.reading(folder), console.height))
    return console.file.getvalue().splitlines()


def test_one_screen(tmp_path: Path) -> None:
    lines = shown(sample.write_run(tmp_path / "seed1"))
    assert len(lines) <= 23
    assert lines[0] == "seed1  finished  iteration 3 of 3, 60.0 s each"
    text = "\n".join(lines)
    for words in ("success", "50.0%", "▁", "after 3 iterations  50.0% ± 98.0%", "few_valid"):
        assert words in text, words
    assert "last designs: 1 accepted, 1 leak" in text  # of the last regeneration
    assert re.search(r"000002-001  ChainEnv +Optimization +leak", text)


def test_a_higher_screen_shows_more_designs(tmp_path: Path) -> None:
    lines = shown(sample.write_run(tmp_path / "seed1"), width=100, height=40)
    [first] = [line for line in lines if "000000-000" in line]
    assert "SumEnv" in first and "won 75%" in first and "regret +0.50" in first


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    folder = sample.write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "plot.png", "plays.jsonl", "alarms.jsonl", "rewards.jsonl"):
        (folder / name).unlink()
    for name in ("evaluation", "environments"):
        for path in (folder / name).iterdir():
            path.unlink()
    lines = shown(folder)
    assert lines[0] == "run  running  iteration 0 of 3"
    assert any("no alarm was raised" in line for line in lines)


def test_sparks_by_hand() -> None:
    assert status.spark([0.0, 7.0, 3.0]) == "▁█▄"
    assert status.spark([2.0, 2.0]) == "▁▁"
    assert len(status.spark(list(range(1000)))) <= status.SPARK
