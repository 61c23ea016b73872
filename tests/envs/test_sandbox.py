"""The sandbox: answers, failures of every kind as values, and nothing left behind."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spade_jax.envs.sandbox import (
    Hint,
    Instance,
    Reset,
    Rollout,
    Rollouts,
    Sandbox,
    Solution,
    Step,
)
from spade_jax.types import Failure, FailureKind, Kind, StepResult
from tests.envs.programs import CHAIN, SEARCH, SUM, game
from tests.envs.witness import PATIENCE, descendants, wait_for_end

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(step_seconds=5.0, memory_mb=64, max_observation=1000) as box:
        yield box


@pytest.fixture(scope="module")
def hasty() -> Iterator[Sandbox]:
    with Sandbox(step_seconds=0.2) as box:
        yield box


@pytest.fixture
def started() -> Callable[[], set[int]]:
    """The processes below this one that the test has started."""
    before = descendants(os.getpid())
    return lambda: descendants(os.getpid()) - before


def ask(box: Sandbox, instance: Instance, call: object) -> object:
    [answer] = box.exchange([(instance, call)])
    return answer


def fail(box: Sandbox, code: str, kind: Kind = Kind.GAME) -> Failure:
    """Reset and step a program until it fails; the instance is dead afterwards."""
    instance = box.open(code, kind)
    answer = ask(box, instance, Reset(1))
    if not isinstance(answer, Failure):
        answer = ask(box, instance, Step("x"))
    assert isinstance(answer, Failure), answer
    assert not instance.running
    assert ask(box, instance, Step("again")) == answer
    return answer


def test_a_game_is_played(sandbox: Sandbox) -> None:
    game_ = sandbox.open(SUM, Kind.GAME)
    first = ask(sandbox, game_, Reset(7))
    numbers = [int(word.strip(".")) for word in first.observation.split() if word[0].isdecimal()]
    assert ask(sandbox, game_, Solution()) == (str(sum(numbers)),)
    assert ask(sandbox, game_, Hint()).startswith("The tens make ")
    won = StepResult(observation="Done.", reward=1.0, terminated=True)
    assert ask(sandbox, game_, Step(str(sum(numbers)))) == won
    assert ask(sandbox, game_, Reset(7)) == first
    sandbox.close_instances([game_])
    assert ask(sandbox, game_, Step("1")).kind is FailureKind.CRASH


def test_tools_are_used(sandbox: Sandbox) -> None:
    chain = sandbox.open(CHAIN, Kind.TOOL_USE)
    ask(sandbox, chain, Reset(3))
    *calls, answer = ask(sandbox, chain, Solution())
    assert [ask(sandbox, chain, Step(call)).terminated for call in calls] == [False, False]
    assert ask(sandbox, chain, Step(answer)).reward == 1.0
    sandbox.close_instances([chain])


def test_many_at_once_in_order(sandbox: Sandbox) -> None:
    code = game(step="observation = f'{self.r} {action}'")
    instances = [sandbox.open(code, Kind.GAME) for _ in range(40)]
    resets = sandbox.exchange([(instance, Reset(5)) for instance in instances])
    assert resets == [StepResult(observation="go")] * 40
    steps = sandbox.exchange([(one, Step(str(i))) for i, one in enumerate(instances)])
    assert [step.observation.split()[1] for step in steps] == [str(i) for i in range(40)]
    assert len({step.observation.split()[0] for step in steps}) == 1
    sandbox.close_instances(instances)


def test_instances_of_one_program_share_nothing(sandbox: Sandbox) -> None:
    code = game(top="seen = []", step="seen.append(1); observation = str(len(seen))")
    one, other = sandbox.open(code, Kind.GAME), sandbox.open(code, Kind.GAME)
    sandbox.exchange([(one, Reset(1)), (other, Reset(1))])
    assert ask(sandbox, one, Step("x")).observation == "1"
    assert ask(sandbox, one, Step("x")).observation == "2"
    assert ask(sandbox, other, Step("x")).observation == "1"
    sandbox.close_instances([one, other])


def test_rollouts_use_fresh_objects_and_stop_at_the_end(sandbox: Sandbox) -> None:
    search = sandbox.open(SEARCH, Kind.GAME)
    [asked] = ask(sandbox, search, Rollouts((Rollout(4, (), True),)))
    assert asked.hint.startswith("It lies in twenty ")
    too_long = (*asked.solution, "1", "1")
    plays = ask(sandbox, search, Rollouts((Rollout(4, too_long), Rollout(4, ("0",) * 9))))
    assert [len(play.steps) for play in plays] == [1 + len(asked.solution), 8]
    assert [play.steps[-1].reward for play in plays] == [1.0, 0.0]
    assert asked.failure is None and plays[0].hint is None and plays[0].solution is None
    sandbox.close_instances([search])


def test_a_broken_rollout_leaves_the_others(sandbox: Sandbox) -> None:
    one = sandbox.open(game(step="assert action != 'bad'"), Kind.GAME)
    bad, good = ask(sandbox, one, Rollouts((Rollout(1, ("a", "bad")), Rollout(1, ("a", "b")))))
    assert (bad.failure.phase, bad.failure.kind) == ("step", FailureKind.ERROR)
    assert len(bad.steps) == 2 and len(good.steps) == 3 and good.failure is None
    sandbox.close_instances([one])


def test_global_generators_follow_the_seed(sandbox: Sandbox) -> None:
    code = game(
        top="import numpy as np",
        step="observation = f'{random.random()} {np.random.rand()} {hash(\"x\")}'",
    )
    pair = [sandbox.open(code, Kind.GAME) for _ in range(2)]
    salted = sandbox.open(code, Kind.GAME, hash_seed=1)
    sandbox.exchange([(instance, Reset(9)) for instance in (*pair, salted)])
    one, other, third = sandbox.exchange([(i, Step("x")) for i in (*pair, salted)])
    assert one == other
    assert one.observation.split()[:2] == third.observation.split()[:2]
    assert one.observation.split()[2] != third.observation.split()[2]
    sandbox.close_instances([*pair, salted])


@pytest.mark.parametrize("phase", ["construct", "reset", "step"])
def test_endless_loops_are_cut(hasty: Sandbox, phase: str) -> None:
    where = {"construct": "init", "reset": "reset", "step": "step"}[phase]
    failure = fail(hasty, game(**{where: "exec('while True: pass')"}))
    assert (failure.phase, failure.kind) == (phase, FailureKind.TIMEOUT)
    assert "0.2 s" in failure.message


def test_hangs_do_not_hold_up_others(hasty: Sandbox) -> None:
    hung = [hasty.open(game(reset="exec('while 1: pass')"), Kind.GAME) for _ in range(3)]
    good = [hasty.open(game(), Kind.GAME) for _ in range(3)]
    answers = hasty.exchange([(instance, Reset(1)) for instance in (*hung, *good)])
    assert [type(answer) for answer in answers] == [Failure] * 3 + [StepResult] * 3
    hasty.close_instances(good)


def test_cpu_time_is_limited() -> None:
    with Sandbox(step_seconds=PATIENCE, cpu_seconds=1.0) as box:
        failure = fail(box, game(step="exec('while 1: pass')"))
    assert (failure.phase, failure.kind) == ("step", FailureKind.TIMEOUT)
    assert "1 s of CPU" in failure.message


def test_exceptions_say_their_line(sandbox: Sandbox) -> None:
    failure = fail(sandbox, game(step="1 / 0"))
    assert (failure.phase, failure.kind) == ("step", FailureKind.ERROR)
    assert failure.message == "ZeroDivisionError: division by zero (line 15)"


def test_syntax_errors_say_their_line(sandbox: Sandbox) -> None:
    failure = fail(sandbox, "x = 1\nclass AEnv:\n    def (\n")
    assert (failure.phase, failure.kind) == ("construct", FailureKind.ERROR)
    assert "SyntaxError" in failure.message and "(line 3)" in failure.message


def test_tool_use_needs_its_base(sandbox: Sandbox) -> None:
    failure = fail(sandbox, SUM, Kind.TOOL_USE)
    assert (failure.kind, failure.phase) == (FailureKind.CONTRACT, "construct")
    assert "ToolUseBaseEnv" in failure.message


def test_speaking_without_being_asked(sandbox: Sandbox) -> None:
    code = game(
        top="import os, signal",
        init="signal.signal(signal.SIGALRM, lambda *_: os.write(3, bytes(9)))",
        step="signal.setitimer(signal.ITIMER_REAL, 0.01)",
    )
    loud, good = sandbox.open(code, Kind.GAME), sandbox.open(game(), Kind.GAME)
    sandbox.exchange([(loud, Reset(1)), (good, Reset(1))])
    assert ask(sandbox, loud, Step("now")) == StepResult(observation="got now")
    limit = time.monotonic() + PATIENCE
    while loud.failure is None and time.monotonic() < limit:
        assert ask(sandbox, good, Step("x")) == StepResult(observation="got x")
    assert ask(sandbox, loud, Step("x")).kind is FailureKind.PROTOCOL
    assert "without being asked" in loud.failure.message
    sandbox.close_instances([good])


def test_a_long_action_that_is_never_read(hasty: Sandbox) -> None:
    deaf = hasty.open(game(step="exec('while 1: pass')"), Kind.GAME)
    ask(hasty, deaf, Reset(1))
    assert ask(hasty, deaf, Step("x" * (1 << 23))).kind is FailureKind.TIMEOUT


def test_long_actions_arrive(sandbox: Sandbox) -> None:
    one = sandbox.open(game(step="observation = str(len(action))"), Kind.GAME)
    ask(sandbox, one, Reset(1))
    assert ask(sandbox, one, Step("x" * (1 << 23))).observation == str(1 << 23)
    sandbox.close_instances([one])


def test_output_goes_nowhere(sandbox: Sandbox, capfd: pytest.CaptureFixture[str]) -> None:
    one = sandbox.open(game(step="print('x' * 10**6)"), Kind.GAME)
    ask(sandbox, one, Reset(1))
    assert isinstance(ask(sandbox, one, Step("x")), StepResult)
    assert capfd.readouterr() == ("", "")
    sandbox.close_instances([one])


def test_the_first_of_what_is_printed_is_kept(sandbox: Sandbox) -> None:
    one = sandbox.open(game(init="print('caf\u00e9')", step="1 / 0"), Kind.GAME)
    ask(sandbox, one, Reset(1))
    assert one.output == "caf\u00e9\n"
    flood = sandbox.open(game(step="[print('y' * 99) for _ in range(10**4)]; 1 / 0"), Kind.GAME)
    assert ask(sandbox, flood, Reset(1)) == StepResult(observation="go")
    assert ask(sandbox, flood, Step("x")).kind is FailureKind.ERROR
    assert flood.output == ("y" * 99 + "\n") * 81 + "y" * 92
    sandbox.close_instances([one])


def test_calls_are_awaited(sandbox: Sandbox) -> None:
    async def play(name: str) -> str:
        one = sandbox.open(game(), Kind.GAME)
        await sandbox.ask(one, Reset(1))
        answers = [await sandbox.ask(one, Step(f"{name}{i}")) for i in range(3)]
        sandbox.close_instances([one])
        return " ".join(answer.observation for answer in answers)

    async def both() -> list[str]:
        return await asyncio.gather(*map(play, "abcdefgh"))

    assert asyncio.run(both()) == [f"got {n}0 got {n}1 got {n}2" for n in "abcdefgh"]


def test_awaited_calls_have_deadlines(hasty: Sandbox) -> None:
    async def hang() -> object:
        return await hasty.ask(hasty.open("while True: pass", Kind.GAME), Reset(1))

    failure = asyncio.run(hang())
    assert (failure.phase, failure.kind) == ("construct", FailureKind.TIMEOUT)


def test_what_an_instance_has_cost_is_known_when_it_has_ended(sandbox: Sandbox) -> None:
    one = sandbox.open(game(reset="kept = bytearray(b'x') * (48 << 20)"), Kind.GAME)
    ask(sandbox, one, Reset(1))
    assert one.cpu_seconds is None
    sandbox.close_instances([one])
    assert one.memory_mb > 48
    assert one.cpu_seconds > 0


def test_an_instance_takes_one_call_at_a_time(sandbox: Sandbox) -> None:
    one = sandbox.open(game(), Kind.GAME)
    with pytest.raises(ValueError, match="one call at a time"):
        sandbox.exchange([(one, Reset(1)), (one, Reset(2))])
    while one.busy:
        sandbox.poll()
    sandbox.close_instances([one])


def test_cpu_time_tells_spinning_from_waiting(hasty: Sandbox) -> None:
    spin = fail(hasty, game(step="exec('while 1: pass')"))
    wait = fail(hasty, game(step="import time; time.sleep(1e6)"))
    assert spin == wait  # but for the time, which says which is which
    assert wait.cpu_seconds < spin.cpu_seconds


def test_too_many_instances_are_refused() -> None:
    with Sandbox(max_instances=2) as box:
        instances = [box.open(game(), Kind.GAME) for _ in range(3)]
        with pytest.raises(ValueError, match="exceeds 2; close some"):
            box.exchange([(instance, Reset(1)) for instance in instances])
        box.exchange([(instance, Reset(1)) for instance in instances[:2]])
        box.close_instances(instances[:1])
        assert ask(box, instances[2], Reset(1)) == StepResult(observation="go")


def test_calls_of_a_closed_instance_are_answered_at_once() -> None:
    with Sandbox(step_seconds=PATIENCE) as box:
        spin = game(step="exec('while 1: pass')")
        spinning = [box.open(spin, Kind.GAME) for _ in range(2 * (os.cpu_count() or 1))]
        calm, fresh = box.open(game(), Kind.GAME), box.open(game(), Kind.GAME)
        box.exchange([(one, Reset(1)) for one in (*spinning, calm)])
        answers: dict[Instance, object] = {}
        for one in (*spinning, calm, fresh):
            box.submit(one, Step("x"), functools.partial(answers.__setitem__, one))
        box.poll(0)  # some are under way, the others wait for their turn
        closed = [spinning[0], spinning[-1], fresh]
        box.close_instances(closed)
        assert answers == {one: one.failure for one in closed}
        assert {answer.message for answer in answers.values()} == {"The instance was closed."}
        assert not any(one.busy for one in closed)
        box.close_instances(spinning)
        assert list(answers) == [*closed, *spinning[1:-1]]
        while calm.busy:
            box.poll()
        assert answers[calm] == StepResult(observation="got x")


def test_a_waiting_call_of_a_closed_instance_frees_its_room() -> None:
    with Sandbox(max_instances=1) as box:
        one, answers = box.open(game(), Kind.GAME), []
        box.submit(one, Reset(1), answers.append)
        box.close_instances([one])
        other, third = box.open(game(), Kind.GAME), box.open(game(), Kind.GAME)
        assert ask(box, other, Reset(1)) == StepResult(observation="go")
        assert answers == [one.failure]
        with pytest.raises(ValueError, match="exceeds 1"):
            box.submit(third, Reset(1), answers.append)


def test_an_answer_may_close_the_others() -> None:
    code = game(step="print('x')")
    with Sandbox() as box:
        instances = [box.open(code, Kind.GAME, trusted=True) for _ in range(8)]
        box.exchange([(instance, Reset(1)) for instance in instances])
        answers: list = []

        def done(answer: object) -> None:
            answers.append(answer)
            box.close_instances(instances)

        for instance in instances:
            box.submit(instance, Step("x"), done)
        time.sleep(0.2)
        while any(instance.busy for instance in instances):
            box.poll()
    assert len(answers) == 8
    assert answers[0] == StepResult(observation="got x")


def test_nothing_is_left_after_close(started: Callable[[], set[int]]) -> None:
    with Sandbox(step_seconds=0.2) as box:
        instances = [box.open(game(), Kind.GAME) for _ in range(6)]
        instances.append(box.open(game(reset="exec('while 1: pass')"), Kind.GAME))
        box.exchange([(instance, Reset(1)) for instance in instances])
        assert len(started()) == 8  # two of them are the fork server and its guard
    assert started() == set()


def test_a_dead_fork_server_is_replaced(started: Callable[[], set[int]]) -> None:
    with Sandbox() as box:
        old = box.open(game(), Kind.GAME)
        ask(box, old, Reset(1))
        [guard] = [pid for pid in started() if len(descendants(pid)) == 2]
        [server] = [pid for pid in descendants(guard) if descendants(pid)]
        [child] = descendants(server)
        os.kill(server, signal.SIGKILL)
        assert wait_for_end(child)
        new = box.open(game(), Kind.GAME)
        failure, answer = box.exchange([(old, Step("x")), (new, Reset(1))])
        assert (failure.phase, failure.kind) == ("step", FailureKind.CRASH)
        assert answer == StepResult(observation="go")
    assert started() == set()


def test_nothing_is_left_when_the_host_is_killed() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.envs.programs import game
from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.types import Kind
box = Sandbox(step_seconds=600.0)
calm = [box.open(game(), Kind.GAME) for _ in range(3)]
wild = [box.open(game(step="exec('while 1: pass')"), Kind.GAME) for _ in range(2)]
box.exchange([(instance, Reset(1)) for instance in (*calm, *wild)])
print("ready", flush=True)
box.exchange([(instance, Step("x")) for instance in wild])
"""
    host = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with host:
        assert host.stdout.readline() == "ready\n"
        below = descendants(host.pid)
        assert len(below) == 7  # two of them are the fork server and its guard
        host.kill()
    assert all(wait_for_end(pid) for pid in below)


def test_a_process_that_imports_the_sandbox_has_no_jax() -> None:
    script = "import sys, spade_jax.envs.validation; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
