"""Looking out before going to sleep: while it pays, and rarely where it does not."""

import pytest

from spade_jax.envs import lookout
from spade_jax.envs.instances import Instance
from spade_jax.envs.lookout import MAX_LEFT_OUT, SHORT, Lookout
from spade_jax.envs.sandbox import Reset, Sandbox
from spade_jax.types import Kind, StepResult
from tests.envs.programs import game


class Looks:
    """Finds what it is given, each time after some seconds on a clock of its own."""

    def __init__(self, patch: pytest.MonkeyPatch, found: str | None, seconds: float) -> None:
        self.found, self.seconds = found, seconds
        self.n, self.now = 0, 0.0
        patch.setattr(lookout, "_clock", lambda: self.now)

    def __call__(self) -> str | None:
        self.n += 1
        self.now += self.seconds
        return self.found


def watched(look: Looks, out: Lookout, waits: int) -> list[int]:
    """Numbers of the waits in which it looked at all."""
    seen = []
    for i in range(waits):
        before = look.n
        found = out.watch()
        assert found == (look.found if look.n > before else None)
        if look.n > before:
            seen.append(i)
    return seen


def test_what_comes_soon_is_found_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Looks(monkeypatch, "answer", SHORT / 3)
    assert watched(look, Lookout(look), 10) == list(range(10))
    assert look.n == 10


def test_waits_in_vain_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Looks(monkeypatch, None, SHORT / 4)
    out = Lookout(look)
    assert watched(look, out, 40) == [0, 3, 8, 17, 34]  # 2, 4, 8 and 16 are left out between
    assert look.n == 5 * 4
    seen = watched(look, out, 5 * MAX_LEFT_OUT)
    assert seen[-1] - seen[-2] == MAX_LEFT_OUT + 1
    look.found = "answer"
    assert len(watched(look, out, MAX_LEFT_OUT + 100)) >= 100


def test_what_comes_late_is_returned_but_did_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Looks(monkeypatch, "answer", 2 * SHORT)
    assert watched(look, Lookout(look), 4) == [0, 3]
    assert look.n == 2


def test_instances_look_out_while_few_calls_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    say = Instance.say

    def listen(self: Instance, *arguments: object, few: bool, **options: object) -> None:
        told.append(few)
        say(self, *arguments, few=few, **options)

    monkeypatch.setattr(Instance, "say", listen)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    with Sandbox() as box:
        instances = [box.open(game(), Kind.GAME) for _ in range(3)]
        for some in (instances[:2], instances):
            answers = box.exchange([(one, Reset(1)) for one in some])
            assert answers == [StepResult(observation="go")] * len(some)
    assert told == [True, True, False, False, False]
