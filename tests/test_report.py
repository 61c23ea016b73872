"""Runs side by side: the row of a run worked out by hand, and the curves over minutes."""

import json
from pathlib import Path

import msgspec
import pytest

from spade_jax import report
from spade_jax.record import Outcome


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


def test_curves_run_over_minutes_of_training(workdir: Path) -> None:
    [axis] = report.overlay([workdir]).axes
    assert axis.lines[0].get_xydata().tolist() == [[0.0, 0.25], [2.0, 1.0]]
    assert axis.lines[0].get_label() == "seed1"
