"""An instance played with given actions, and what is told of it."""

import pytest

from spade_jax.envs.playthrough import play_through, transcript
from spade_jax.envs.sandbox import Sandbox

COUNT = """
class CountEnv:
    def reset(self, seed=None):
        self.n = seed
        return f"Count down from {seed}.", {}

    def step(self, action):
        if not action:
            raise ValueError("say something")
        self.n -= 1
        return f"{self.n} left", float(self.n == 0), self.n == 0, False, {}

    def solution(self):
        return ["down"] * self.n
"""


def test_actions_are_taken_up_to_the_end() -> None:
    with Sandbox() as sandbox:
        shown = play_through(sandbox, COUNT, seed=2)
        won = play_through(sandbox, COUNT, 2, ("down", "down", "too many"))
        broken = play_through(sandbox, COUNT, 2, ("down", ""))
        none = play_through(sandbox, "class NoneEnv:\n    pass\n")
    assert transcript(shown) == "environment: Count down from 2."
    assert shown.solution == ("down", "down") and shown.hint is None
    assert transcript(won, ("down", "down", "too many")) == (
        "environment: Count down from 2.\n"
        "      agent: down\nenvironment: 1 left   [reward 0]\n"
        "      agent: down\nenvironment: 0 left   [reward 1]\n"
        "won"
    )
    assert transcript(broken, ("down", "")).endswith(
        "step broke: ValueError: say something (line 9)"
    )
    assert none.failure is not None and "reset" in transcript(none)


@pytest.mark.parametrize("actions", [(), ("down",)])
def test_an_episode_that_goes_on_is_neither_won_nor_lost(actions: tuple[str, ...]) -> None:
    with Sandbox() as sandbox:
        told = transcript(play_through(sandbox, COUNT, 3, actions), actions)
    assert told.splitlines()[-1].startswith("environment: ")
