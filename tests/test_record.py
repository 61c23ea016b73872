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
    HostState,
    Kind,
    Measures,
    PoolEntry,
    Reason,
    Regret,
    Role,
    Sample,
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


def both_arms(name: str, play: int) -> list[Episode]:
    plain = dataclasses.replace(episode(play), environment_id=name)
    return [plain, dataclasses.replace(plain, arm=Arm.HINTED)]


def test_arms_of_a_play_stay_together_and_environments_come_in_turn() -> None:
    episodes = [e for play in (0, 1) for name in "abc" for e in both_arms(name, play)]
    kept = [
        [(e.environment_id, e.play, e.arm) for e in record.chosen(episodes, 4, k)] for k in (0, 1)
    ]
    assert kept == [
        [(name, play, arm) for name, play in two for arm in Arm]
        for two in ((("a", 0), ("b", 0)), (("b", 1), ("c", 1)))
    ]
    assert record.chosen(episodes, 3, 0) == episodes[:3]


def test_transcripts_say_what_was_trained(tmp_path: Path) -> None:
    learned, hinted = both_arms("a", 0)
    row = TokenRecord().read((1, 2)).wrote((3, 4), (0.0, 0.0)).read((5,))
    learned = dataclasses.replace(learned, records=(row,))
    sample = Sample(role=Role.AGENT, records=learned.records, advantage=0.5, version=0)
    record.write_episodes(
        tmp_path, 0, [learned, hinted], [sample], lambda ids: "".join("_abcde"[i] for i in ids)
    )
    lines = (tmp_path / "episodes" / "000000.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert first["advantage"] == 0.5
    assert first["rows"] == [[[False, 2, "ab"], [True, 2, "cd"], [False, 1, "e"]]]
    assert second["advantage"] is None
    assert second["rows"] == [[[False, 1, "a"], [False, 1, "b"]], [[False, 1, "c"]]]


def test_what_plays_returned_by_environment() -> None:
    environment = Environment(id="a", kind=Kind.GAME, skill="s", code="", iteration=0, hint="Add.")
    regret = Regret(mean=0.5, stderr=None, pairs=1)
    host = HostState(
        pool=(
            PoolEntry(environment=environment, regret=regret, hung=True),
            PoolEntry(environment=dataclasses.replace(environment, id="unplayed")),
        )
    )
    plain, hinted = both_arms("a", 0)
    broken = dataclasses.replace(plain, play=1, episode_return=None)
    line = {"iteration": 3, "environment_id": "a", "plain": [1.0, None], "hung": True}
    known = {"mean": 0.5, "stderr": None, "pairs": 1}
    assert list(record.plays(3, [plain, broken, hinted], host)) == [
        {**line, "hinted": [1.0], "regret": known, "hint": "Add."}
    ]
    # Without hinted plays the regret was measured in an earlier iteration, and is written there.
    assert list(record.plays(3, [plain, broken], host)) == [
        {**line, "hinted": [], "regret": None, "hint": None}
    ]


def test_given_environments_are_written_once(tmp_path: Path) -> None:
    given = Environment(
        id="../fixed 1", kind=Kind.GAME, skill="s", code="class A: pass", iteration=-1
    )
    for start, iterations in ((0, (0, 4)), (4, (4, 8))):  # and once more, resumed at 4
        environments = record.Environments(tmp_path, start)
        for iteration in iterations:
            pool = [given, dataclasses.replace(given, id=f"fixed-{iteration + 2}")]
            environments.write_given(iteration, pool)
        environments.close()
    assert [(line["iteration"], line["environment_id"]) for line in index(tmp_path)] == [
        *((0, "../fixed 1"), (0, "fixed-2"), (4, "fixed-6"), (8, "fixed-10")),
    ]
    files = [line["file"] for line in index(tmp_path)]
    assert files == [f"{n}.py" for n in ("000000-given-000", "000000-given-001")] + [
        f"{n}.py" for n in ("000004-given-000", "000008-given-000")
    ]
    assert (tmp_path / "environments" / files[0]).read_text() == "class A: pass"


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
