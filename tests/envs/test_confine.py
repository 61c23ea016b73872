"""What harmless programs keep in each tier; what is said where a machine cannot give it."""

from collections.abc import Iterator

import pytest

from spade_jax.envs.confine import Report, Tier
from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.types import FailureKind, Kind, StepResult, UsageError
from tests.envs.programs import game

TIERS = [Tier.A, Tier.B, Tier.C]

# Tells what became of a statement: "denied" and the error, or "got" and what it put into x.
TRY = """
def attempt(statement):
    try:
        exec(statement, globals())
        return "got " + repr(globals().get("x"))
    except BaseException as error:
        return "denied " + type(error).__name__
"""


@pytest.fixture(scope="module", params=TIERS)
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(step_seconds=10.0, tier=request.param) as box:
        try:
            assert box.confinement.tier is request.param
        except UsageError as error:
            pytest.skip(str(error))
        yield box


def attempt(box: Sandbox, statement: str) -> str:
    one = box.open(game(top=TRY, step="observation = attempt(action)"), Kind.GAME)
    box.exchange([(one, Reset(1))])
    [answer] = box.exchange([(one, Step(statement))])
    box.close_instances([one])
    assert isinstance(answer, StepResult), answer
    return answer.observation


def test_native_modules_are_not_loaded_late(box: Sandbox) -> None:
    assert attempt(box, "import _curses; x = 1").startswith("denied ")


def test_what_harmless_programs_need_works(box: Sandbox) -> None:
    assert attempt(box, "import json; x = json.loads('[1]')") == "got [1]"
    assert attempt(box, "x = __import__('datetime').date(2020, 1, 2).isoformat()") == (
        "got '2020-01-02'"
    )
    assert attempt(box, "import time; x = time.sleep(0.001)") == "got None"


def test_patched_builtins_change_the_program_alone(box: Sandbox) -> None:
    code = game(top="import builtins", step="builtins.len = builtins.isinstance = None")
    one = box.open(code, Kind.GAME)
    answers = [box.exchange([(one, call)])[0] for call in (Reset(1), Step("a"), Step("b"))]
    assert [answer.observation for answer in answers] == ["go", "got a", "got b"]
    box.close_instances([one])


def test_a_tier_that_cannot_be_had_is_refused() -> None:
    box = Sandbox(tier=Tier.A)
    with pytest.raises(UsageError, match=r"cannot give tier A \(empty root: no\); .* ask for B"):
        box._check_tier(Report(Tier.B, {"empty root": "no"}))
    box.close()


def test_no_filter_is_refused_unless_unsafe() -> None:
    nothing = Report(Tier.NONE, {"system-call filter": "no"})
    box, unsafe = Sandbox(), Sandbox(unsafe=True)
    with pytest.raises(UsageError, match=r"cannot confine .* \(system-call filter: no\)"):
        box._check_tier(nothing)
    unsafe._check_tier(nothing)
    box.close()
    unsafe.close()


def test_failures_stay_failures(box: Sandbox) -> None:
    one = box.open(game(step="import os; os._exit(0)"), Kind.GAME)
    box.exchange([(one, Reset(1))])
    [failure] = box.exchange([(one, Step("x"))])
    assert failure.kind is FailureKind.CRASH
