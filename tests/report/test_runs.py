"""Reading runs, and which of them are one method."""

import os
from pathlib import Path

import pytest

from spade_jax import config as configs
from spade_jax.report import runs
from spade_jax.types import UsageError
from tests.report import sample


def test_a_folder_is_read_as_it_stands(tmp_path: Path) -> None:
    reading = sample.reading(sample.write_run(tmp_path / "seed1"))
    assert (reading.name, reading.done, reading.seconds) == ("seed1", 3, 180.0)
    assert (len(reading.index), len(reading.plays), len(reading.alarms)) == (5, 5, 1)
    assert sorted(reading.evaluations) == [0, 3]
    assert reading.config["iterations"] == 3 and reading.config["play.plays"] == 8


def test_a_folder_without_a_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no run \(no readable config.json\); give the"):
        sample.reading(tmp_path)


def test_fields_of_later_versions_have_their_defaults(tmp_path: Path) -> None:
    folder = sample.write_run(tmp_path / "run")
    reading = runs.read(folder, {"new.field": 3, "play.plays": 1})
    assert (reading.config["new.field"], reading.config["play.plays"]) == (3, 8)


def test_states_by_hand(tmp_path: Path) -> None:
    folder = sample.write_run(tmp_path / "run")
    lines = sample.reading(folder).metrics
    assert runs.state(folder, lines, 3) == "finished"
    os.utime(folder / "metrics.jsonl", (1000.0, 1000.0))
    os.utime(folder / "config.json", (900.0, 900.0))
    # Iterations take 60 s: after 5 of them, which is QUIET_SECONDS, it counts as stopped.
    assert runs.state(folder, lines, 4, now=1299.0) == "running"
    assert runs.state(folder, lines, 4, now=1301.0) == "stopped"
    long = [{"step": 0, "time/iteration_s": 1000.0}]
    assert runs.state(folder, long, 4, now=5999.0) == "running"


def test_a_sweep_stands_for_its_runs(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    a, b = (sample.write_run(sweep / name) for name in ("b", "a"))
    (sweep / "b.log").write_text("")
    other = sample.write_run(tmp_path / "other")
    assert runs.workdirs([str(other), str(sweep), str(a)]) == [other, b, a]
    assert runs.workdirs([str(tmp_path / "none")]) == [tmp_path / "none"]


def labels(tmp_path: Path, *fields: dict[str, object]) -> list[tuple[str, int]]:
    folders = [sample.write_run(tmp_path / str(k), **each) for k, each in enumerate(fields)]
    found = runs.group([sample.reading(folder) for folder in folders])
    return [(group.label, len(group.runs)) for group in found]


def test_most_are_the_base_and_others_say_how_they_differ(tmp_path: Path) -> None:
    assert labels(
        tmp_path,
        {"corpus__enabled": False},
        {"seed": 1},
        {"seed": 2, "log__episodes": 3, "evaluation__every": 7},
        {"memory__enabled": False, "reward__w_regret": 0.5},
    ) == [
        ("base", 2),
        ("corpus.enabled=False", 1),
        ("memory.enabled=False, reward.w_regret=0.5", 1),
    ]


def test_without_a_majority_every_group_says_its_value(tmp_path: Path) -> None:
    rates = ({"optimizer__lr": 1e-4}, {"optimizer__lr": 3e-4}, {"optimizer__lr": 1e-3})
    assert labels(tmp_path, *rates) == [
        ("optimizer.lr=0.0001", 1),
        ("optimizer.lr=0.0003", 1),
        ("optimizer.lr=0.001", 1),
    ]


def test_one_run_is_called_by_its_name(tmp_path: Path) -> None:
    assert labels(tmp_path, {}) == [("0", 1)]


def test_flattened_configs_are_as_json_has_them() -> None:
    flat = runs.flatten(configs.load("tiny").to_dict())
    assert flat["learn.row_tokens"] == [192, 640] and flat["model.lora.rank"] == 0
