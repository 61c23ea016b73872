"""Games over many turns: a small one of our own, and those of the packages where they are."""

import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from spade_jax.envs.adapters import Adapted
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import games
from spade_jax.evals.games import Games
from spade_jax.evals.suites import Outcome
from spade_jax.types import UsageError
from tests.evals.courses import drive

HALVES = """
class HalvesEnv:
    def reset(self, seed=None):
        self.left = 2
        return f"Say {seed % 1000}.", {}

    def step(self, action):
        self.left -= 1
        if action == "stop":
            return "Bye.", 0.5, True, False, {}
        if action == "break":
            raise RuntimeError("broken")
        return "Again.", 0.0 if self.left else 1.0, self.left == 0, False, {}
"""


@pytest.fixture(scope="module")
def suite() -> Iterator[Games]:
    with Sandbox() as sandbox:
        yield Games("small_games", sandbox, {"halves": Adapted(code=HALVES, modules=())})


def play(suite: Games, number: int, reply: Callable[[str], str]) -> tuple[Outcome, list[str]]:
    """How an item ends where each observation is answered so, and what was said."""
    outcome, log = drive(suite.items()[number].course(0), reply, sandbox=suite.sandbox)
    return outcome, [say.messages[-1].content for say in log.says]


@pytest.mark.parametrize(
    ("action", "score", "won", "turns", "failed"),
    [
        ("go", 1.0, True, 2, ""),
        ("stop", 0.5, False, 1, ""),
        ("break", 0.0, False, 1, "RuntimeError: broken (line 12)"),
    ],
)
def test_scores(
    suite: Games, action: str, score: float, won: bool, turns: int, failed: str
) -> None:
    outcome, said = play(suite, 0, lambda text: rf"\boxed{{{action}}}")
    assert (outcome.score, outcome.won, outcome.failed) == (score, won, failed)
    assert outcome.details["turns"] == turns == len(said)


def test_instances_differ_and_come_again(suite: Games) -> None:
    items = suite.items()
    assert [item.id for item in items[:2]] == ["halves/0", "halves/1"] and len(items) == 20
    told = [play(suite, number, lambda text: r"\boxed{stop}")[1][0] for number in (0, 1, 0)]
    assert told[0] == told[2] != told[1]


def halving(text: str, bounds: list[int]) -> str:
    """Guesses a number by halves of what is left."""
    if told := re.findall(r"between (\d+) and (\d+)", text):  # the rules
        bounds[:] = map(int, told[-1])
    elif "higher" in text:
        bounds[0] = bounds[2] + 1
    elif "lower" in text:
        bounds[1] = bounds[2] - 1
    bounds[2:] = [(bounds[0] + bounds[1]) // 2]
    return rf"\boxed{{{bounds[2]}}}"


@pytest.mark.parametrize("package", ["gem", "textarena"])
def test_games_of_the_packages(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that halves wins at guessing numbers; one that says nothing of use wins nothing."""
    pytest.importorskip(package)
    known = games.GEM if package == "gem" else games.TEXTARENA
    chosen = [name for name in known if "GuessTheNumber" in name][:1]
    monkeypatch.setattr(games, "GEM" if package == "gem" else "TEXTARENA", tuple(chosen))
    with games.open_games(package) as suite:
        bounds: list[int] = []
        assert play(suite, 0, lambda text: halving(text, bounds))[0].won
        replies = itertools.repeat(r"\boxed{nothing}")
        assert not play(suite, 0, lambda text: next(replies))[0].won


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games.adapters.importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(UsageError, match="gem is not installed; run `bash launch/install_eval.sh`"),
        games.open_games("gem"),
    ):
        pass
