"""Procedural tasks: of the bundled families, and of packages where these are installed."""

import random
from collections.abc import Iterator

import pytest

from spade_jax.design import procedural
from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES
from spade_jax.envs.sandbox import Reset, Sandbox, Solution, Step
from spade_jax.types import Environment, Failure, StepResult, UsageError


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as opened:
        yield opened


def tasks(
    sandbox: Sandbox, provider: str, *names: str, max_level: int = 16
) -> dict[str, procedural.Procedural]:
    with Corpus("", seed=1, max_words=24) as corpus:
        return procedural.tasks(provider, names, max_level, sandbox, corpus)


def begin(sandbox: Sandbox, environment: Environment, seed: int = 0) -> tuple[str, str]:
    """First observation and solution."""
    instance = sandbox.open(environment.code, environment.kind, modules=environment.modules)
    [first] = sandbox.exchange([(instance, Reset(seed))])
    [solution] = sandbox.exchange([(instance, Solution())])
    assert isinstance(first, StepResult), first
    sandbox.close_instances([instance])
    return first.observation, solution[-1]


def score(sandbox: Sandbox, environment: Environment, action: str) -> float:
    instance = sandbox.open(environment.code, environment.kind, modules=environment.modules)
    sandbox.exchange([(instance, Reset(0))])
    [result] = sandbox.exchange([(instance, Step(action))])
    sandbox.close_instances([instance])
    assert isinstance(result, StepResult), result
    assert result.terminated
    return result.reward


# -- families ---------------------------------------------------------------------------------


def test_families_have_five_levels(sandbox: Sandbox) -> None:
    found = tasks(sandbox, "families")
    assert list(found) == list(FAMILIES) and {t.levels for t in found.values()} == {5}
    assert {t.levels for t in tasks(sandbox, "families", max_level=3).values()} == {3}
    environment = found["sum"].make(random.Random(1), 5, "000003-001", 3)
    again = found["sum"].make(random.Random(1), 5, "000003-001", 3)
    assert environment == again
    assert (environment.task, environment.level, environment.iteration) == ("sum", 5, 3)
    assert environment.skill == "Mathematical Reasoning" and environment.modules is None
    assert environment.code != found["sum"].make(random.Random(1), 1, "000003-001", 3).code
    observation, answer = begin(sandbox, environment)
    assert observation != begin(sandbox, environment, seed=1)[0]
    assert score(sandbox, environment, answer) == 1.0


def test_names_choose_among_the_tasks(sandbox: Sandbox) -> None:
    assert list(tasks(sandbox, "families", "lock", "sum")) == ["lock", "sum"]
    with pytest.raises(UsageError, match=r"'lok', which is no task of families \(it has lock"):
        tasks(sandbox, "families", "lok")


# -- packages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "sentence"),
    [
        ("reasoning_gym", "reasoning_gym is not installed; run `pip install reasoning-gym`"),
        ("rlve_gym", "Gym is not installed; run `pip install rlve-gym torch networkx sympy`"),
    ],
)
def test_a_missing_package_is_named(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, provider: str, sentence: str
) -> None:
    monkeypatch.setattr(procedural.adapters.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        tasks(sandbox, provider)
    assert str(caught.value) == sentence


def test_a_package_that_does_not_import_says_why(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = procedural.Package(
        modules=("reasoning_gym",), program="", tasks="import absent_module\nclass TasksEnv: pass"
    )
    monkeypatch.setitem(procedural.PACKAGES, "reasoning_gym", package)
    monkeypatch.setattr(procedural.adapters, "to_import", lambda modules: ())
    with pytest.raises(UsageError) as caught:
        tasks(sandbox, "reasoning_gym")
    assert "No module named 'absent_module'" in str(caught.value)
    assert "run `pip install reasoning-gym`, or choose another" in str(caught.value)


def check_package(sandbox: Sandbox, found: dict[str, procedural.Procedural], name: str) -> None:
    """One instance a program, the same in every play, won by its own answer and by no other."""
    task = found[name]
    easy, hard = (task.make(random.Random(2), level, "a", 0) for level in (1, 4))
    shown, answer = begin(sandbox, easy)
    assert begin(sandbox, easy, seed=9) == (shown, answer)
    other = task.make(random.Random(3), 1, "a", 0)
    assert len({shown, begin(sandbox, hard)[0], begin(sandbox, other)[0]}) == 3
    assert score(sandbox, easy, answer) == 1.0
    assert score(sandbox, easy, "no answer at all") < 0.5


def test_reasoning_gym(sandbox: Sandbox) -> None:
    pytest.importorskip("reasoning_gym")
    found = tasks(sandbox, "reasoning_gym")
    assert len(found) > 100 and "composite" not in found
    assert found["chain_sum"].levels == 11 and found["acre"].levels == 1
    assert tasks(sandbox, "reasoning_gym", "chain_sum", max_level=4)["chain_sum"].levels == 4
    check_package(sandbox, found, "chain_sum")


def test_rlve_gym(sandbox: Sandbox) -> None:
    pytest.importorskip("Gym")
    found = tasks(sandbox, "rlve_gym")
    assert len(found) == 400 and {task.levels for task in found.values()} == {16}
    check_package(sandbox, found, "Sorting")
    integral = found["Integral"].make(random.Random(2), 1, "a", 0)  # bounds its time by threads
    answer = begin(sandbox, integral)[1]
    assert not isinstance(answer, Failure) and score(sandbox, integral, answer) == 1.0
