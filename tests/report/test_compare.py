"""Runs side by side: rows of runs and of groups worked out by hand, and the curves."""

from pathlib import Path

import pytest

from spade_jax.folder import Outcome
from spade_jax.report import compare, plot
from spade_jax.report.compare import Cell
from spade_jax.report.runs import Group, Reading, group
from tests.report import sample

Wins = tuple[tuple[str, float], ...]


def run(name: str, before: Wins, after: Wins, seed: int = 1, **fields: object) -> Reading:
    """Two iterations of 90 and 30 seconds, evaluated before and after."""
    first = {
        "step": 0,
        "time/iteration_s": 90.0,
        **{"designer/regret_mean": 0.25, "designer/regret_stderr": 0.05},
        **{"designer/regret_pairs": 8, "designer/valid_share": 0.75},
        **{"designer/new_share": 0.5, "designer/class_names": 7},
    }
    evaluations = {
        k: [Outcome(family=family, level=1, won=won) for family, won in wins]
        for k, wins in ((0, before), (2, after))
    }
    return Reading(
        name=name,
        workdir=Path(name),
        config={"seed": seed, "iterations": 2, "log.episodes": seed, **fields},
        metrics=[first, {"step": 1, "time/iteration_s": 30.0}],
        evaluations=evaluations,
        alarms=[],
        index=[],
        plays=[],
        rewards=[],
        state="finished",
    )


def gained(name: str, *wins: tuple[float, float], seed: int = 1, **fields: object) -> Reading:
    """A run that won so much of each instance, before and after."""
    before, after = ([("a", w) for w in outcomes] for outcomes in zip(*wins, strict=True))
    return run(name, tuple(before), tuple(after), seed, **fields)


ONE = run(
    "seed1",
    (("a", 0.0), ("a", 0.0), ("b", 0.0), ("b", 1.0)),
    (("a", 1.0), ("a", 1.0), ("b", 1.0), ("b", 1.0)),
)


def texts(row: compare.Row) -> list[str]:
    return [cell.text for cell in row]


def test_row_by_hand() -> None:
    # Gains 1, 1, 1, 0: variance (3 / 16 + 9 / 16) / 3 = 1/4, half width 1.96 / 4 = 0.49; before
    # has the same spread. Two of the three gained instances are of family a. 0.25 - 1.96 * 0.05.
    assert texts(compare.run_row(ONE)) == [
        *("seed1", "2, 2 min", "25.0% ± 49.0%", "100.0% ± 0.0%", "75.0% ± 49.0%"),
        *("67%", "+0.152", "75%", "50%", "7"),
    ]


@pytest.fixture
def four() -> list[Group]:
    return group(
        [
            gained("full1", (0, 1), (0, 1), (1, 1), (0, 0), train=True),
            gained("full2", (0, 1), (0, 0), (1, 1), (0, 1), seed=2, train=True),
            gained("frozen-1", (0, 0), (0, 0), (1, 1), (0, 1), train=False),
            gained("frozen-2", (0, 0), (0, 0), (1, 1), (0, 1), seed=2, train=False),
        ]
    )


def test_runs_that_differ_in_their_seed_are_a_group(four: list[Group]) -> None:
    assert {each.label: [run.name for run in each.runs] for each in four} == {
        "train=True": ["full1", "full2"],
        "train=False": ["frozen-1", "frozen-2"],
    }
    assert compare.shares_won(four[0].runs) == {0: [0, 0, 1, 0], 2: [1, 0.5, 1, 0.5]}


def test_groups_by_hand(four: list[Group]) -> None:
    full, frozen = map(texts, compare.group_rows(four))
    # Gains of instances 1, 1/2, 0, 1/2: variance (1/4 + 1/4) / 3, half width 1.96 sqrt(1/24).
    # Each run alone gained 2 of 4 instances.
    assert full == ["train=True", "2", "25.0% ± 49.0%", "75.0% ± 28.3%", "50.0% ± 40.0%"] + [
        "50.0% to 50.0%",
        "",
    ]
    # Against the first group's 1, 1/2, 1, 1/2 it ended with 0, 0, 1, 1: -1, -1/2, 0, 1/2, whose
    # mean is -1/4 and variance (9/16 + 1/16 + 1/16 + 9/16) / 3; half width 1.96 sqrt(5/48).
    assert frozen[-3:] == ["25.0% ± 49.0%", "25.0% to 25.0%", "-25.0% ± 63.3%"]


def test_other_instances_are_not_compared(four: list[Group]) -> None:
    other = group([ONE])[0]
    assert texts(compare.group_rows([four[0], other])[1])[-1] == "-"


def test_the_best_of_a_column_is_marked() -> None:
    rows = [
        (Cell("a"), Cell("1", 1.0), Cell("2", 2.0), Cell("3", 3.0)),
        (Cell("b"), Cell("4", 4.0), Cell("-"), Cell("3", 3.0)),
        (Cell("c"), Cell("4", 4.0), Cell("1", 1.0), Cell("3", 3.0)),
    ]
    best = [[cell.best for cell in row] for row in compare.mark_best(rows)]
    assert best == [  # a column of equal values has no best one
        [False, False, True, False],
        [False, True, False, False],
        [False, True, False, False],
    ]
    assert compare.mark_best([]) == []
    assert compare.markdown(("x", "y"), [(Cell("a"), Cell("1", 1.0, True))]) == (
        "| x | y |\n|---|---|\n| a | **1** |"
    )


def test_a_run_that_has_just_begun_has_a_row(tmp_path: Path) -> None:
    folder = sample.write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "plot.png", "evaluation/000003.json"):
        (folder / name).unlink()
    reading = sample.reading(folder)
    assert texts(compare.run_row(reading)) == ["run", "0, 0 min", *"-" * 8]
    assert texts(compare.group_rows(group([reading]))[0]) == ["run", "1", *"----", ""]


def test_curves_run_over_iterations(four: list[Group]) -> None:
    [axis] = plot.overlay([group([ONE])[0], four[0]]).axes
    assert axis.lines[0].get_xydata().tolist() == [[0, 0.25], [2, 1.0]]
    assert axis.lines[1].get_xydata().tolist() == [[0, 0.25], [2, 0.75]]
    assert [line.get_label() for line in axis.lines] == ["seed1", "train=True (2 runs)"]
