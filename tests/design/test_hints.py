"""Hints written by a reader of the program: what is asked, what is read, what is unknown."""

from collections.abc import Callable

import pytest

from spade_jax.design import hints, prompts
from spade_jax.policy.conversation import Budget
from spade_jax.policy.endpoint import Endpoint
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Environment, Generation, Kind, StopReason
from tests.policy.test_endpoint import Misbehaving, misbehaving, refuses, says, settings

__all__ = ["misbehaving"]  # a fixture

ENVIRONMENTS = [
    Environment(id=name, kind=Kind.GAME, skill="s", code=f"class {name}Env: ...\n", iteration=0)
    for name in ("A", "B", "C")
]


def reply(text: str, stop: StopReason = StopReason.STOP) -> Generation:
    return Generation(ids=(), logp=(), text=text, stop=stop)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Add the tens.", "Add the tens."),
        ("<think>Hint: no</think>\n\n**Hint:** Add.\n\nThen carry.\n", "Add.\n\nThen carry."),
        ("Hint:", None),
        ("<think>For ever", None),
        (" \n", None),
    ],
)
def test_what_is_read(text: str, hint: str | None) -> None:
    assert hints.read(reply(text)) == hint


def test_a_hint_that_is_cut_off_or_never_came_is_unknown() -> None:
    assert hints.read(reply("Add the", StopReason.LENGTH)) is None
    assert hints.read(None) is None


def test_an_endpoint_writes_hints_and_its_failures_are_unknown(
    misbehaving: Callable[..., Misbehaving],
) -> None:
    server = misbehaving(says("Add."), refuses(500), says("  "))
    budget = Budget(64, 1000, Sampling(0.3))
    with Endpoint(settings(server, concurrency=1)) as endpoint:
        written = hints.write(
            endpoint, ENVIRONMENTS, budget, seed=1, iteration=0, prompt_set="games"
        )
    assert written == ["Add.", None, None]
    for body, environment in zip(server.bodies, ENVIRONMENTS, strict=True):
        asked = prompts.hint_messages(environment.kind, environment.code, "games")
        assert body["messages"] == [{"role": m.role, "content": m.content} for m in asked]
        assert (body["temperature"], body["max_tokens"]) == (0.3, 64)
    assert len({body["seed"] for body in server.bodies}) == 3
