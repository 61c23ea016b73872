"""The contract: what reset, step, hint and solution may answer."""

import math

import numpy as np
import pytest

from spade_jax.envs import contract
from spade_jax.envs.contract import ContractError
from spade_jax.types import StepResult

CAP = 20


class Text(str):
    """A subclass that answers differently from the text it is."""

    def __str__(self) -> str:
        return "forged"


def test_reset_takes_a_pair_or_bare_text() -> None:
    assert contract.reset_result(("go", {}), CAP) == StepResult(observation="go")
    assert contract.reset_result("go", CAP) == StepResult(observation="go")


def test_observations_become_plain_text() -> None:
    observation = contract.reset_result((Text("real"), {}), CAP).observation
    assert observation == "real"
    assert type(observation) is str
    assert contract.reset_result("a\ud800b", CAP).observation == "a?b"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "None"),
        (("go", {}, 1), "a tuple of 3"),
        ((None, {}), "must be text"),
        ((b"go", {}), "type bytes"),
        (("  ", {}), "empty"),
        (("x" * 21, {}), "21 characters, the limit is 20"),
    ],
)
def test_bad_resets(value: object, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract.reset_result(value, CAP)


@pytest.mark.parametrize(
    ("reward", "value"),
    [
        (1, 1.0),
        (True, 1.0),
        (-10.0, -10.0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array([0.25]), 0.25),
    ],
)
def test_rewards_are_normalised(reward: object, value: float) -> None:
    result = contract.step_result(("ok", reward, np.bool_(False), True, {}), CAP)
    assert result == StepResult(observation="ok", reward=value, truncated=True)
    assert type(result.reward) is float
    assert type(result.terminated) is bool


@pytest.mark.parametrize(
    "reward",
    [math.nan, math.inf, -math.inf, 10.1, 1e300, 10**400, "1", None, 1j, np.nan, np.array([1, 2])],
)
def test_bad_rewards(reward: object) -> None:
    with pytest.raises(ContractError, match="reward"):
        contract.step_result(("ok", reward, True, False, {}), CAP)


@pytest.mark.parametrize("value", [None, ("ok", 0.0, True, {}), ["ok", 0.0, True, False, {}]])
def test_steps_of_another_form(value: object) -> None:
    with pytest.raises(ContractError, match="tuple of 5"):
        contract.step_result(value, CAP)


@pytest.mark.parametrize("flag", [None, 1, "yes", np.array([True, False])])
def test_flags_are_booleans(flag: object) -> None:
    with pytest.raises(ContractError, match="terminated must be True or False"):
        contract.step_result(("ok", 0.0, flag, False, {}), CAP)


def test_won_needs_the_end_and_more_than_half() -> None:
    assert contract.won(StepResult(observation="x", reward=0.6, terminated=True))
    assert not contract.won(StepResult(observation="x", reward=0.5, terminated=True))
    assert not contract.won(StepResult(observation="x", reward=1.0, truncated=True))


def test_hints_and_solutions() -> None:
    assert contract.hint_text(" go ", CAP) == "go"
    assert contract.hint_text("  ", CAP) is None
    assert contract.hint_text(None, CAP) is None
    assert contract.solution_actions(["a", "b"], CAP) == ("a", "b")
    assert contract.solution_actions(None, CAP) is None
    for bad in ([], "ab", ["a", 1], ["x" * 21]):
        with pytest.raises(ContractError, match=r"solution"):
            contract.solution_actions(bad, CAP)
    with pytest.raises(ContractError, match="hint"):
        contract.hint_text(3, CAP)
