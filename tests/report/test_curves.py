"""Curves: points and intervals worked out by hand."""

import math
from pathlib import Path

import pytest

from spade_jax.report import curves
from spade_jax.report.runs import group
from tests.report import sample


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sample.write_run(tmp_path / "run")


def test_success_has_the_interval_over_environments(folder: Path) -> None:
    plain = curves.success("plain")(sample.reading(folder))
    # Iteration 0: one of two won, and of the other environment's one known play none: 1/2 and 0.
    # Mean 1/4, variance 1/8, half width 1.96 sqrt(1/16) = 0.49. Iteration 2 has one environment.
    assert plain[1] == pytest.approx((0.25, 0.49))
    assert plain[2] == pytest.approx((0.5, 0.98))
    assert plain[3] == (1.0, None)
    assert curves.success("hinted")(sample.reading(folder))[1] == pytest.approx((0.75, 0.49))


def test_regret_has_its_own_interval(folder: Path) -> None:
    points = curves.metric("designer/regret_mean", "designer/regret_stderr")
    assert points(sample.reading(folder)) == {1: (0.25, 0.098), 3: (0.25, 0.098)}


def test_held_out_success_by_hand(folder: Path) -> None:
    # 0 and 1: variance 1/2, half width 1.96 sqrt(1/4).
    assert curves.held_out(sample.reading(folder)) == {0: (0.0, 0.0), 3: (0.5, 0.98)}


def test_intervals_over_seeds_by_hand() -> None:
    # Mean 2, variance 1: 4.30 / sqrt(3) of it. Of two, half their distance.
    assert curves.centre_and_half([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.30 / math.sqrt(3)))
    assert curves.centre_and_half([1.0, 4.0]) == (2.5, 1.5)
    long = curves.centre_and_half([0.0, 1.0] * 50)
    assert long[1] == pytest.approx(1.984 * math.sqrt(25 / 99 / 100), rel=1e-3)  # t of 99 degrees
    runs = [{1: (1.0, 0.1), 2: (3.0, None)}, {1: (2.0, 0.1), 3: (1.0, None)}]
    assert curves.over_seeds(runs) == {1: (1.5, 0.5)}
    assert curves.over_seeds(runs[:1]) == runs[0]


def test_groups_are_told_apart_by_colour_and_sources_by_dash(tmp_path: Path) -> None:
    folders = [
        sample.write_run(tmp_path / "a"),
        sample.write_run(tmp_path / "b", corpus__enabled=False),
    ]
    groups = group([sample.reading(each) for each in folders])
    charts = {chart["id"]: chart for chart in curves.overlays(groups)}
    both = [(s["label"], s["colour"], s["dash"]) for s in charts["success"]["series"]]
    assert both == [
        ("corpus.enabled=True · plain", 0, 0),
        ("corpus.enabled=True · hinted", 0, 1),
        ("corpus.enabled=False · plain", 1, 0),
        ("corpus.enabled=False · hinted", 1, 1),
    ]
    alone = {chart["id"]: chart for chart in curves.overlays(groups[:1])}
    assert [(s["label"], s["colour"]) for s in alone["success"]["series"]] == [
        ("plain", 0),
        ("hinted", 1),
    ]
    assert "length" not in charts  # nobody measured it


def test_benchmarks_have_a_chart_once_they_are_played(folder: Path) -> None:
    reading = sample.reading(folder)
    assert "benchmarks" not in {chart["id"] for chart in curves.overlays(group([reading]))}
    reading.metrics[1]["evaluation/suite/gsm8k-0/success"] = 0.25
    [chart] = [c for c in curves.overlays(group([reading])) if c["id"] == "benchmarks"]
    assert [(s["label"], s["x"], s["y"]) for s in chart["series"]] == [("gsm8k-0", [2], [0.25])]


def test_parts_of_a_whole(folder: Path) -> None:
    charts = {chart["id"]: chart for chart in curves.stacks(group([sample.reading(folder)])[0])}
    verdicts = {part["label"]: part["y"] for part in charts["verdicts"]["parts"]}
    assert charts["verdicts"]["x"] == [1, 3]
    assert verdicts == {"accepted": [0.5, 0.5], "parse": [0.5, 0.5]}
    assert {part["label"]: part["y"] for part in charts["time"]["parts"]} == {
        "play": [20.0] * 3,
        "learn": [40.0] * 3,
    }
    rates = charts["win-rates"]["parts"]
    assert [rates[n]["y"] for n in (0, 3, 6)] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_long_curves_are_thinned_to_their_end() -> None:
    assert curves.thinned(range(1, 11), 4) == [1, 4, 7, 10]
    assert curves.thinned([], 4) == [] and curves.thinned([5, 3], 4) == [3, 5]


def test_every_metric_keeps_to_a_number_of_values(folder: Path) -> None:
    groups = group([sample.reading(folder)])
    series, every = curves.every_metric(groups, 10**6)
    assert every == 1
    assert series["agent/success"] == [
        {"label": "run", "colour": 0, "x": [1, 2, 3], "y": [0.0, 0.25, 0.5]}
    ]
    series, every = curves.every_metric(groups, 40)
    assert every > 1 and len(series["agent/success"][0]["x"]) < 3
    assert curves.meanings(["agent/success", "of another version"]) == {
        "agent/success": "share of plain plays with a return above 0.5 [share]"
    }
