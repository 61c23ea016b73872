"""Designs, transcripts and held-out outcomes on disk."""

import dataclasses
import json
from pathlib import Path

import pytest

from spade_jax import folder, record
from spade_jax.evals.heldout import Item
from spade_jax.types import (
    Arm,
    Design,
    DesignTask,
    Document,
    Environment,
    Episode,
    EpisodeEnd,
    Failure,
    FailureKind,
    Kind,
    Measures,
    Reason,
    StopReason,
    TokenRecord,
    Turn,
    Verdict,
)

SHARES = {"null": 0.0, "constant": 0.1, "random": 0.2, "solution": 1.0, "changes": 0.5}
ACCEPTED = Verdict(
    reason=Reason.ACCEPTED,
    fingerprint="f",
    behaviour="b",
    measures=Measures(**SHARES, cpu_seconds=0.7, memory_mb=9.0),
)
CUT = Verdict(reason=Reason.EXTRACT, message="Close the block.")


def design(iteration: int, slot: int, code: str | None) -> Design:
    task = DesignTask(
        iteration=iteration,
        slot=slot,
        skill="Optimization",
        kind=Kind.GAME,
        document=Document(id="3:bees", text="Bees."),
    )
    return Design(task=task, reply="hm — ", stop=StopReason.STOP, record=TokenRecord(), code=code)


def episode(play: int, value: float | None = 1.0) -> Episode:
    return Episode(
        environment_id="000000-001",
        arm=Arm.PLAIN,
        play=play,
        seed=play,
        turns=(Turn(observation="Größe?", reply="\\boxed{2}", action="2", reward=1.0),),
        end=EpisodeEnd.TERMINATED,
        records=(TokenRecord().read((1,)).wrote((2,), (-0.5,)), TokenRecord().read((3,))),
        episode_return=value,
    )


def index(workdir: Path) -> list[dict]:
    lines = (workdir / "environments" / "index.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_design_is_kept_with_its_verdict(tmp_path: Path) -> None:
    environments = record.Environments(tmp_path, 0)
    environments.write([design(0, 0, "class AEnv: pass"), design(0, 1, None)], [ACCEPTED, CUT])
    environments.close()
    assert (tmp_path / "environments" / "000000-000.py").read_text() == "class AEnv: pass"
    assert (tmp_path / "environments" / "000000-001.txt").read_text() == "hm — "
    first, second = index(tmp_path)
    assert (first["reason"], first["fingerprint"]) == ("accepted", "f")
    assert (second["reason"], second["message"]) == ("extract", "Close the block.")
    assert (first["measures"], second["measures"]) == (SHARES, None)  # and no time
    assert first["document"] == "3:bees" and first["file"] == "000000-000.py"


def test_a_resumed_run_writes_later_designs_again(tmp_path: Path) -> None:
    for start in (0, 4):
        environments = record.Environments(tmp_path, start)
        for iteration in range(start, 9, 4):
            environments.write([design(iteration, 0, f"# {start}")], [ACCEPTED])
        environments.close()
    assert [line["iteration"] for line in index(tmp_path)] == [0, 4, 8]
    texts = [(tmp_path / "environments" / line["file"]).read_text() for line in index(tmp_path)]
    assert texts == ["# 0", "# 4", "# 4"]


@pytest.mark.parametrize(
    ("most", "kept"),
    [(-1, [0, 1, 2, 3, 4, 5, 6]), (7, [0, 1, 2, 3, 4, 5, 6]), (3, [1, 2, 3]), (2, [3, 4])],
)
def test_transcripts_go_on_where_the_last_iteration_stopped(
    tmp_path: Path, most: int, kept: list[int]
) -> None:
    some = record.chosen([episode(play) for play in range(7)], most, 12)
    record.write_episodes(tmp_path, 12, some)
    text = (tmp_path / "episodes" / "000012.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["play"] for line in lines] == kept
    assert lines[0]["tokens"] == 3 and "records" not in lines[0]
    assert lines[0]["turns"][0]["observation"] == "Größe?" in text


def test_no_transcripts_where_none_are_wanted(tmp_path: Path) -> None:
    record.write_episodes(tmp_path, 0, record.chosen([episode(0)], 0, 0))
    record.write_episodes(tmp_path, 0, record.chosen([], -1, 0))
    assert not list(tmp_path.iterdir())


def test_outcomes_come_back_by_iteration(tmp_path: Path) -> None:
    environment = Environment(id="e", kind=Kind.GAME, skill="s", code="", iteration=-1)
    items = [Item(environment, family, level, 0) for family, level in (("sum", 1), ("grid", 5))]
    broken = Episode(
        **{f: getattr(episode(0), f) for f in ("environment_id", "arm", "play", "seed", "turns")},
        end=EpisodeEnd.FAILED,
        records=(),
        episode_return=None,
        failure=Failure(phase="step", kind=FailureKind.TIMEOUT, message="slow"),
    )
    record.write_evaluation(tmp_path, 10, items, [episode(0), broken])
    record.write_evaluation(tmp_path, 0, items, [episode(0, 0.5), episode(0, 0.75)])
    found = folder.read_evaluations(tmp_path)
    assert list(found) == [0, 10]
    assert [(o.family, o.level, o.won) for o in found[10]] == [("sum", 1, 1.0), ("grid", 5, 0.0)]
    assert [o.won for o in found[0]] == [0.0, 1.0]  # a success is a return above one half
    assert not list((tmp_path / "evaluation").glob("*.draft"))


def test_a_repaired_design_is_kept_as_it_is_played(tmp_path: Path) -> None:
    mended = dataclasses.replace(
        design(0, 0, "class BEnv: pass"), repairs=1, mended="so", first=Reason.PARSE, hint="Add."
    )
    failed = dataclasses.replace(mended, code=None)
    environments = record.Environments(tmp_path, 0)
    environments.write([mended], [ACCEPTED])
    environments.write([failed], [CUT])
    environments.close()
    assert (tmp_path / "environments" / "000000-000.py").read_text() == "class BEnv: pass"
    assert (tmp_path / "environments" / "000000-000.txt").read_text() == "so"
    for line, reason in zip(index(tmp_path), ("accepted", "extract"), strict=True):
        assert (line["reason"], line["first"], line["repairs"]) == (reason, "parse", 1)
        assert line["hint"] == "Add."
