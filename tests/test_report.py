"""Runs side by side: rows of runs and of groups worked out by hand, and the curves."""

import json
from pathlib import Path

import msgspec
import pytest

from spade_jax import report
from spade_jax.folder import Outcome


def outcomes(*wins: tuple[str, float]) -> bytes:
    return msgspec.json.encode([Outcome(family=f, level=1, won=w) for f, w in wins])


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Two iterations of 90 and 30 seconds; family a gains two instances, b one."""
    folder = tmp_path / "seed1"
    (folder / "evaluation").mkdir(parents=True)
    before = outcomes(("a", 0.0), ("a", 0.0), ("b", 0.0), ("b", 1.0))
    after = outcomes(("a", 1.0), ("a", 1.0), ("b", 1.0), ("b", 1.0))
    (folder / "evaluation" / "000000.json").write_bytes(before)
    (folder / "evaluation" / "000002.json").write_bytes(after)
    lines = [
        {
            "step": 0,
            "time/iteration_s": 90.0,
            **{"designer/regret_mean": 0.25, "designer/regret_stderr": 0.05},
            **{"designer/regret_pairs": 8, "designer/valid_share": 0.75},
            **{"designer/new_share": 0.5, "designer/class_names": 7},
        },
        {"step": 1, "time/iteration_s": 30.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_row_by_hand(workdir: Path) -> None:
    cells = [cell.strip() for cell in report.row(workdir).strip("|").split("|")]
    # Gains 1, 1, 1, 0: variance (3 / 16 + 9 / 16) / 3 = 1/4, half width 1.96 / 4 = 0.49; before
    # has the same spread. Two of the three gained instances are of family a. 0.25 - 1.96 * 0.05.
    assert cells == [
        *("seed1", "2, 2 min", "25.0% ± 49.0%", "100.0% ± 0.0%", "75.0% ± 49.0%"),
        *("67%", "+0.152", "75%", "50%", "7"),
    ]


def evaluated(folder: Path, *wins: tuple[float, float]) -> Path:
    """A run whose iterations 0 and 2 won so much of each instance."""
    (folder / "evaluation").mkdir(parents=True)
    for k, outcome in zip((0, 2), zip(*wins, strict=True), strict=True):
        (folder / "evaluation" / f"{k:06d}.json").write_bytes(
            outcomes(*(("a", w) for w in outcome))
        )
    return folder


@pytest.fixture
def four(tmp_path: Path) -> list[Path]:
    return [
        evaluated(tmp_path / "full1", (0, 1), (0, 1), (1, 1), (0, 0)),
        evaluated(tmp_path / "full2", (0, 1), (0, 0), (1, 1), (0, 1)),
        evaluated(tmp_path / "frozen-1", (0, 0), (0, 0), (1, 1), (0, 1)),
        evaluated(tmp_path / "frozen-2", (0, 0), (0, 0), (1, 1), (0, 1)),
    ]


def test_runs_that_differ_in_a_number_are_a_group(four: list[Path]) -> None:
    found = report.groups(four)
    assert {name: [w.name for w in ws] for name, ws in found.items()} == {
        "full": ["full1", "full2"],
        "frozen": ["frozen-1", "frozen-2"],
    }
    names = ("seed1", "seed=2", "no_corpus-seed=1", "no_corpus-seed=2")
    assert list(report.groups([Path(name) for name in names])) == ["whole", "no_corpus"]
    assert report.shares_won(found["full"]) == {0: [0, 0, 1, 0], 2: [1, 0.5, 1, 0.5]}


def test_groups_by_hand(four: list[Path]) -> None:
    full, frozen = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in report.group_rows(report.groups(four))
    )
    # Gains of instances 1, 1/2, 0, 1/2: variance (1/4 + 1/4) / 3, half width 1.96 sqrt(1/24).
    # Each run alone gained 2 of 4 instances.
    assert full == ["full", "2", "25.0% ± 49.0%", "75.0% ± 28.3%", "50.0% ± 40.0%"] + [
        "50.0% to 50.0%",
        "",
    ]
    # Against the first group's 1, 1/2, 1, 1/2 it ended with 0, 0, 1, 1: -1, -1/2, 0, 1/2, whose
    # mean is -1/4 and variance (9/16 + 1/16 + 1/16 + 9/16) / 3; half width 1.96 sqrt(5/48).
    assert frozen[-3:] == ["25.0% ± 49.0%", "25.0% to 25.0%", "-25.0% ± 63.3%"]


def test_curves_run_over_iterations(workdir: Path, four: list[Path]) -> None:
    [axis] = report.overlay({"seed1": [workdir], "full": four[:2]}).axes
    assert axis.lines[0].get_xydata().tolist() == [[0, 0.25], [2, 1.0]]
    assert axis.lines[1].get_xydata().tolist() == [[0, 0.25], [2, 0.75]]
    assert [line.get_label() for line in axis.lines] == ["seed1", "full (2 runs)"]
