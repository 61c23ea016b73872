"""Environments of other packages as programs: fakes of their form, and the real ones if there."""

import importlib.util
import sys
import types
import warnings
from typing import Any

import pytest

from spade_jax.envs import contract
from spade_jax.envs.adapters import Adapted, adapt
from spade_jax.types import Kind, StepResult, UsageError

CAP = 8192


def start(adapted: Adapted) -> Any:
    """An environment object of the program, found as the sandbox finds it."""
    namespace: dict[str, Any] = {"__name__": contract.MODULE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(adapted.code, "<environment>", "exec"), namespace)
        return contract.environment_class(namespace, adapted.kind, type("Base", (), {}))()


def step(env: Any, action: str) -> StepResult:
    return contract.step_result(env.step(action), CAP)


class Counter:
    """Of gymnasium's form: the answer is the seed and what it was made with."""

    def __init__(self, plus: int = 0) -> None:
        self.plus = plus

    def reset(self, *, seed=None):
        self.answer = str(seed + self.plus)
        return f"What is {seed} and {self.plus}?", {}

    def step(self, action):
        return f"You said {action}.", float(self.answer in action), True, False, {}

    def close(self):
        pass


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, members in {
        "counting": {"Counter": Counter},
        "gem": {"make": lambda name, **options: {"game:Count-v0": Counter}[name](**options)},
    }.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


def test_anything_of_gymnasiums_form(fakes: None) -> None:
    adapted = adapt("counting:Counter", plus=4)
    assert (adapted.modules, adapted.kind) == (("numpy", "counting"), Kind.GAME)
    env = start(adapted)
    assert contract.reset_result(env.reset(seed=3), CAP).observation == "What is 3 and 4?"
    result = step(env, "7")
    assert result == StepResult(observation="You said 7.", reward=1.0, terminated=True)
    assert env.hint() is None and env.solution() is None
    env.close()


def test_gem_reads_boxes(fakes: None) -> None:
    env = start(adapt("gem/game:Count-v0"))
    assert contract.reset_result(env.reset(seed=3), CAP).observation == "What is 3 and 0?"
    assert step(env, "3").observation == r"You said \boxed{3}."
    assert step(env, r"\boxed{3}").observation == r"You said \boxed{3}."


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("chess", {}, "'chess' names no environment; use reasoning_gym/NAME, textarena/NAME"),
        ("nothing/here", {}, "names no environment"),
        ("a.1b:C", {}, "names no environment"),
        ("counting:Counter.x", {}, "names no environment"),
        ("no_such_package:Env", {}, "no_such_package is not installed; run `pip install no_such"),
        ("counting:Counter", {"plus": object()}, "the options of counting:Counter are not plain"),
        ("counting:Counter", {"plus": float("nan")}, "are not plain"),
    ],
)
def test_wrong_names_and_options(
    fakes: None, name: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        adapt(name, **options)


def installed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def test_a_dataset_of_reasoning_gym() -> None:
    installed("reasoning_gym")
    env = start(adapt("reasoning_gym/chain_sum", min_terms=2, max_terms=2, max_digits=1))
    first = contract.reset_result(env.reset(seed=3), CAP)
    assert "arithmetic problem" in first.observation
    [answer] = contract.solution_actions(env.solution(), CAP, Kind.GAME)
    assert contract.won(step(env, answer)) and not contract.won(step(env, "x"))
    assert contract.reset_result(env.reset(seed=3), CAP) == first
    assert any(contract.reset_result(env.reset(seed=n), CAP) != first for n in range(4))
    no_answer = start(adapt("reasoning_gym/graph_color"))
    no_answer.reset(seed=0)
    assert no_answer.solution() is None
    assert step(no_answer, "no colouring").reward < 0.5


def test_a_game_of_textarena() -> None:
    installed("textarena")
    env = start(adapt("textarena/GuessTheNumber-v0"))
    first = contract.reset_result(env.reset(seed=3), CAP).observation
    assert "between 1 and 20" in first
    target = env.game.state.game_state["game_number"]
    wrong = step(env, str(target - 1 if target > 1 else target + 1))
    assert not wrong.terminated and "between 1 and 20" not in wrong.observation
    assert contract.won(step(env, f"[{target}]"))
