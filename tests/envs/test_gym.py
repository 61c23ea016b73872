"""Programs as gymnasium environments: gymnasium's own checker, spaces, failures."""

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from spade_jax.envs.gym import ID, EnvironmentBroke, ProgramEnv, Text
from spade_jax.types import FailureKind
from tests.envs.programs import CHAIN, SEARCH, SUM, game


def make(folder: Path, code: str, **options: str) -> gymnasium.Env:
    (folder / "x.py").write_text(code)
    return gymnasium.make(ID, path=str(folder / "x.py"), **options)


@pytest.fixture
def search(tmp_path: Path) -> Iterator[gymnasium.Env]:
    env = make(tmp_path, SEARCH)
    yield env
    env.close()


@pytest.mark.parametrize("code", [SUM, SEARCH, CHAIN], ids=["sum", "search", "chain"])
def test_gymnasium_accepts_every_program(tmp_path: Path, code: str) -> None:
    env = make(tmp_path, code).unwrapped
    check_env(env)
    env.close()


def test_an_episode_by_its_own_solution(search: gymnasium.Env) -> None:
    assert search.reset(seed=5) == ("Find the number from 1 to 100.", {"seed": 5})
    game = search.unwrapped
    assert "of five" in game.hint()
    rewards = [search.step(action)[1:4] for action in game.solution()]
    assert rewards == [(0.0, False, False)] * (len(rewards) - 1) + [(1.0, True, False)]


def test_instances_follow_the_seeds(search: gymnasium.Env) -> None:
    answers = []
    for seed in (7, None, None, 7, None):
        _, info = search.reset(seed=seed)
        answers.append((info["seed"], search.unwrapped.solution()[-1]))
    assert answers[0] == answers[3] and answers[1] == answers[4] != answers[2]


def test_a_vector_of_environments(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(SUM)
    envs = gymnasium.make_vec(ID, 2, vectorization_mode="sync", path=str(tmp_path / "x.py"))
    observations, info = envs.reset(seed=[3, 4])
    assert list(info["seed"]) == [3, 4]
    assert observations[0] == "Bees: add 41 and 86."
    _, rewards, terminations, *_ = envs.step(("127", "127"))
    assert list(rewards) == [1.0, 0.0] and all(terminations)
    envs.close()


def test_rendering_as_text(tmp_path: Path) -> None:
    env = make(tmp_path, SUM, render_mode="ansi")
    env.reset(seed=3)
    assert env.render() == "Bees: add 41 and 86."
    env.close()


def test_a_program_that_breaks_says_so_and_starts_again(tmp_path: Path) -> None:
    env = make(tmp_path, game(step="1 / len(action)")).unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    env.reset(seed=1)
    with pytest.raises(EnvironmentBroke, match="x.py broke in step: ZeroDivisionError") as caught:
        env.step("")
    assert caught.value.failure.kind is FailureKind.ERROR
    with pytest.raises(EnvironmentBroke):
        env.step("x")
    assert env.reset(seed=1)[0] == "go" and env.step("x")[0] == "got x"
    env.close()


def test_what_cannot_be_played(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"\xff")
    with pytest.raises(EnvironmentBroke, match="x.py cannot be played: The file is not text"):
        ProgramEnv(tmp_path / "x.py")
    (tmp_path / "y.py").write_text(SUM)
    env = ProgramEnv(tmp_path / "y.py", kind="tool_use")
    with pytest.raises(EnvironmentBroke, match="must subclass ToolUseBaseEnv"):
        env.reset()
    env.close()


def test_the_text_space() -> None:
    space = Text(4)
    assert all(text in space for text in ("", "größ", "日本語!", "a\nb\0"))
    assert all(value not in space for value in ("12345", b"a", None, "\ud800"))
    assert space == Text(4) != Text(5)
    one, other = Text(seed=3), Text(seed=3)
    drawn = [one.sample() for _ in range(50)]
    assert drawn == [other.sample() for _ in range(50)] and len(set(drawn)) > 40
    assert all(text in one for text in drawn) and max(map(len, drawn)) == 16
    assert all(text in Text(2) for text in [Text(2).sample() for _ in range(9)])
