"""The table and the plot of a run, from outcomes whose intervals were worked out by hand."""

from pathlib import Path

import pytest

from spade_jax import summary
from spade_jax.folder import Outcome
from spade_jax.outcomes import regret_of

BEFORE = {("a", 1): 1, ("a", 2): 0, ("b", 1): 0, ("b", 2): 0}
AFTER = {("a", 1): 1, ("a", 2): 1, ("b", 1): 0, ("b", 2): 1}
METRICS = [
    {
        "step": 0,
        **{"designer/regret_mean": 0.5, "designer/regret_stderr": 0.5, "designer/regret_pairs": 2},
        **{"designer/valid_share": 0.5, "designer/new_share": 0.25, "designer/class_names": 3},
        **{"agent/return_mean": 0.125, "agent/return_hinted_mean": 0.25},
    },
    {"step": 1, "agent/return_mean": 0.375},
    {
        "step": 2,
        **{"designer/regret_mean": 0.0, "designer/regret_stderr": 0.0, "designer/regret_pairs": 2},
        **{"designer/valid_share": 0.75, "designer/new_share": 1.0, "designer/class_names": 5},
        **{"agent/return_mean": 0.25, "agent/return_hinted_mean": 0.5},
    },
]


def outcomes(wins: dict[tuple[str, int], float]) -> list[Outcome]:
    return [Outcome(family=f, level=v, won=float(won)) for (f, v), won in wins.items()]


def row(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.split()[:1] == [name]]
    return [cell for cell in line.replace("±", " ").split()[1:]]


def test_table_by_hand() -> None:
    text = summary.table({0: outcomes(BEFORE), 5: outcomes(AFTER)}, METRICS)
    assert "of 4 instances, iteration 0 to 5" in text
    # 1 of 4: variance (0.75^2 + 3 * 0.25^2) / 3 = 1/4, half width 1.96 sqrt(1/4 / 4) = 0.49.
    # Differences 0, 1, 0, 1: variance 4 * 0.25 / 3, half width 1.96 sqrt(1/12) = 0.566.
    assert row(text, "all") == ["25.0%", "49.0%", "75.0%", "49.0%", "50.0%", "56.6%", "100%"]
    # a: 1, 0 to 1, 1. Half width 1.96 sqrt(0.5 / 2) = 0.98; one of the two instances gained.
    assert row(text, "a") == ["50.0%", "98.0%", "100.0%", "0.0%", "50.0%", "98.0%", "50%"]
    assert row(text, "b") == ["0.0%", "0.0%", "50.0%", "98.0%", "50.0%", "98.0%", "50%"]
    assert row(text, "1") == ["50.0%", "98.0%", "50.0%", "98.0%", "0.0%", "0.0%", "0%"]
    assert row(text, "2") == ["0.0%", "0.0%", "100.0%", "0.0%", "100.0%", "0.0%", "100%"]
    # Pairs 0, 1, 0, 0: mean 1/4, error sqrt((3 / 16 + 9 / 16) / 3 / 4) = 1/4, 1.96 of it 0.49.
    assert "paired regret over the run: +0.250, 95% interval -0.240 to +0.740, 4 pairs" in text
    assert "first regeneration: 50% valid, 25% of these new, 3 class names" in text
    assert "last regeneration: 75% valid, 100% of these new, 5 class names" in text


def test_nothing_gained_has_no_shares() -> None:
    text = summary.table({0: outcomes(BEFORE), 1: outcomes(BEFORE)}, [])
    assert [row(text, name)[-1] for name in ("all", "a", "1")] == ["-", "-", "-"]
    assert "nan" not in text and "regret" not in text and "regeneration" not in text


def test_a_family_that_lost_has_a_negative_share() -> None:
    lost = {("a", 1): 0, ("a", 2): 0, ("b", 1): 1, ("b", 2): 1}
    text = summary.table({0: outcomes(BEFORE), 1: outcomes(lost)}, [])
    assert [row(text, name)[-1] for name in ("a", "b")] == ["-100%", "200%"]


def test_plot_shows_every_evaluation_and_iteration() -> None:
    figure = summary.plot({0: outcomes(BEFORE), 5: outcomes(AFTER)}, METRICS)
    success, families, play, regret = figure.axes
    assert success.lines[0].get_xydata().tolist() == [[0, 0.25], [5, 0.75]]
    assert {line.get_label(): line.get_ydata().tolist() for line in families.lines} == {
        "a": [0.5, 1.0],
        "b": [0.0, 0.5],
    }
    assert {line.get_label(): line.get_xydata().tolist() for line in play.lines} == {
        "plain return": [[0, 0.125], [1, 0.375], [2, 0.25]],
        "hinted return": [[0, 0.25], [2, 0.5]],
        "valid designs": [[0, 0.5], [2, 0.75]],
    }
    assert regret.lines[0].get_xydata().tolist() == [[0, 0.5], [2, 0.0]]


def test_plot_of_a_run_in_which_no_play_counted() -> None:
    figure = summary.plot({0: outcomes(BEFORE)}, [{"step": 0, "agent/return_mean": None}])
    assert figure.axes[2].get_legend() is None


def test_written_files(finished_run: Path, tmp_path: Path) -> None:
    text = summary.write(finished_run)
    table = (finished_run / "summary.txt").read_text()
    assert text.startswith(table.rstrip("\n"))
    assert table.startswith("held-out success of 50 instances, iteration 0 to 2")
    assert (finished_run / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_regret_needs_known_values() -> None:
    unknown = {"designer/regret_mean": None, "designer/regret_stderr": None}
    regret = regret_of([unknown | {"designer/regret_pairs": 0}, METRICS[0], METRICS[1]])
    assert (regret.mean, regret.pairs) == (0.5, 2)
    assert regret.stderr == pytest.approx(0.5)
