"""Runs in which nothing is designed: environments of a pool from outside, and procedural ones."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from ml_collections import config_dict

from spade_jax import config, epoch, measures, metrics, scoring, train
from spade_jax import run as run_setup
from spade_jax.checkpoint import host_from_builtins, host_to_builtins
from spade_jax.envs.sandbox import Sandbox
from spade_jax.learn.difficulty import Schedule
from spade_jax.types import Difficulty, Environment, HostState, Kind, PoolEntry, Tracker, UsageError
from tests import small_run
from tests.design.test_fixed_pool import ROWS, row, write_jsonl
from tests.test_resume import outcome

# What a designer would need is as wrong as can be: it does not matter.
ACTOR = {
    "corpus__path": "absent.jsonl",
    "design__max_tokens": 100_000,
    "design__num_envs": 3,
    "design__regenerate_every": 1,
    "learn__designer_delay": 4,
    "play__hint_plays": 0,
    "skills_per_epoch": 100,
}
PROCEDURAL = {
    "environments__source": "procedural",
    "environments__tasks": ("sum", "sequence"),
    "environments__max_level": 2,
    "environments__attempts": 2,
    "environments__success": 0.01,
}


def run_both_ways(c: config_dict.ConfigDict, folder: Path) -> tuple[HostState, list[dict]]:
    """Two iterations at once and one after the other, which must agree."""
    config.check(c)
    through, parts = folder / "through", folder / "parts"
    assert train.train(c, through) == 0
    for iterations in (1, 2):
        c.iterations = iterations
        assert train.train(c, parts) == 0
    assert config.load(f"{parts}/config.json") == config.load(f"{through}/config.json")
    (ours, host), (theirs, other) = outcome(c, through), outcome(c, parts)
    assert host == other
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (through / "summary.txt").read_text() == (parts / "summary.txt").read_text()
    return host, metrics.read_metrics(through)


@pytest.mark.slow
def test_a_pool_from_outside(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    broken = row("broken", "none", "class BrokenEnv:\n    def step(self, action): pass\n")
    table = write_jsonl(tmp_path / "pool.jsonl", [*ROWS, broken])
    fields = {"environments__source": "fixed", "environments__path": str(table)}
    c = small_run.run_config(model_folder, **ACTOR, **fields)
    host, lines = run_both_ways(c, tmp_path)
    assert [line["play/failed_share"] for line in lines] == [1 / 3] * 2
    assert [line["learn/samples/agent"] for line in lines] == [2 * 2] * 2
    told = [k for k, v in lines[0].items() if k.startswith("designer/") and v is not None]
    assert not told
    assert set(host.trackers) == {"Mathematical Reasoning", "Supply Chains"}
    assert f"3 environments of 3 in {table} every 1 iterations" in capsys.readouterr().out
    assert "regret" not in (tmp_path / "through" / "summary.txt").read_text()


@pytest.mark.slow
def test_procedural_tasks(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    c = small_run.run_config(model_folder, **ACTOR, **PROCEDURAL)
    host, lines = run_both_ways(c, tmp_path)
    assert {e.environment.id for e in host.pool} == {"000001-000", "000001-001", "000001-002"}
    assert set(host.difficulty) == {"sum", "sequence"}
    assert [line["learn/samples/agent"] for line in lines] == [3 * 2] * 2
    assert lines[0]["difficulty/level_mean"] == 1.0
    assert "3 environments of 2 tasks of families at up to 2 levels" in capsys.readouterr().out
    summary = (tmp_path / "through" / "summary.txt").read_text()
    assert "mean level of the environments played: 1.00 in the first iteration" in summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("provider", "package", "task"),
    [("reasoning_gym", "reasoning_gym", "chain_sum"), ("rlve_gym", "Gym", "Sorting")],
)
def test_tasks_of_packages(
    model_folder: Path, tmp_path: Path, provider: str, package: str, task: str
) -> None:
    pytest.importorskip(package)
    fields = {"environments__provider": provider, "environments__tasks": (task,)}
    c = small_run.run_config(model_folder, **ACTOR, **PROCEDURAL | fields, play__plays=2)
    host, lines = run_both_ways(c, tmp_path)
    assert set(host.difficulty) == {task}
    assert [line["play/failed_share"] for line in lines] == [0, 0]


# -- parts ------------------------------------------------------------------------------------


def test_plays_enter_the_difficulty_of_their_task() -> None:
    schedule = Schedule(
        by="window",
        width=4,
        attempts=4,
        success=0.5,
        gamma_fast=0.35,
        gamma_slow=0.15,
        random_share=0.5,
        won=0.5,
    )

    def entry(
        task: str, level: int, *windows: tuple[float, ...], retired: bool = False
    ) -> PoolEntry:
        environment = Environment(
            id=f"{task}{level}{windows}", kind=Kind.GAME, skill="s", code="", iteration=0
        )
        environment = dataclasses.replace(environment, task=task, level=level)
        return PoolEntry(environment=environment, plain=windows, retired=retired)

    host = HostState(
        pool=(
            entry("a", 1, (1.0, 1.0, 1.0), (1.0, 0.0)),  # the last iteration counts
            entry("a", 1, (0.0, 0.0), (1.0, 0.0)),
            entry("b", 2, (1.0,)),
            entry("b", 1, (1.0, 1.0, 1.0)),  # below the top
            entry("", 0, (1.0,)),  # of no task
            entry("b", 2, (1.0, 1.0, 1.0), retired=True),  # played earlier, and counted then
        ),
        difficulty={
            "a": Difficulty(levels=3),
            "b": Difficulty(levels=3, top=2),
            "c": Difficulty(levels=3, trackers=(Tracker(fast=1.0, slow=1.0),)),
        },
    )
    written = msgspec.json.encode(host_to_builtins(host))
    assert host_from_builtins(msgspec.json.decode(written)) == host, "a checkpoint keeps it"
    assert measures.of_difficulty(HostState()) == {}
    assert measures.of_difficulty(host) == {"difficulty/level_mean": 5 / 5}
    rising = dataclasses.replace(host, difficulty={"a": Difficulty(levels=3, top=2)})
    assert measures.of_difficulty(rising)["difficulty/top_mean"] == 2
    assert scoring.rate_difficulty(schedule, host).difficulty == {
        "a": Difficulty(levels=3, top=2),
        "b": Difficulty(levels=3, top=2, attempts=1, wins=1),
        "c": host.difficulty["c"],
    }


def test_a_probe_that_leaves_nothing_is_said() -> None:
    broken = Environment(id="0", kind=Kind.GAME, skill="a", code="no ( python", iteration=0)
    c = small_run.configured("tiny:fixed_pool", {"design.num_envs": 1, "environments.probe": True})
    with Sandbox() as sandbox:
        run = SimpleNamespace(config=c, fixed_pool=[broken], tasks={}, sandbox=sandbox)
        with pytest.raises(
            UsageError, match="none of the 1 .* of 1 in the bundled pool can be res"
        ):
            epoch.open_given(run, HostState())


def test_a_probe_leaves_out_what_breaks_at_once() -> None:
    good = "class GoodEnv:\n    def reset(self, seed=None): return 'a', {}\n"
    good += "    def step(self, action): return 'b', 0.0, True, False, {}\n"
    drawn = [
        Environment(id=str(n), kind=Kind.GAME, skill="s", code=code, iteration=0)
        for n, code in enumerate([good, "class BadEnv: pass", good.replace("'a'", "1 / 0"), good])
    ]
    with Sandbox(max_instances=3) as sandbox:
        assert epoch.probe(sandbox, drawn) == [True, False, False, True]


def test_a_pool_too_small(model_folder: Path, tmp_path: Path) -> None:
    table = write_jsonl(tmp_path / "pool.jsonl", ROWS)
    fields = {"environments__source": "fixed", "environments__path": str(table)}
    c = small_run.run_config(model_folder, **fields)
    with pytest.raises(UsageError, match=r"pool\.jsonl holds 2 environments, but design\.num_envs"):
        run_setup.open_pool(c)
