"""Every attack of the tables comes to what it must, and nothing outside is touched by it."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spade_jax.envs.confine import NOBODY, Tier
from spade_jax.envs.sandbox import Call, Instance, Reset, Sandbox, Step
from spade_jax.types import Failure, Kind, StepResult, UsageError
from tests.envs.attacks import ATTACK, MODULES, OTHER_ATTACKS, Attack, Outcome, program
from tests.envs.programs import game
from tests.envs.refusals import REFUSALS
from tests.envs.system_calls import SYSTEM_CALLS
from tests.envs.witness import PATIENCE, SECRET, Witness, descendants, furnish, witness

ROOT = Path(__file__).parents[2]
ATTACKS = (*OTHER_ATTACKS, *REFUSALS, *SYSTEM_CALLS)
TIERS = [Tier.A, *(pytest.param(tier, marks=pytest.mark.slow) for tier in (Tier.B, Tier.C))]
HASTE = 0.3  # seconds that a program which hangs is given
PHASES = {"source": "construct", "top": "construct", "init": "construct"}


class Ground:
    """Sandboxes of one tier, each with a bystander, and nothing else running in them."""

    def __init__(self, tier: Tier, watch: Witness) -> None:
        self.tier = tier
        self.watch = watch
        limits = {"memory_mb": 64, "max_observation": 1000, "tier": tier}
        self.calm = Sandbox(step_seconds=PATIENCE, **limits)
        self.hasty = Sandbox(step_seconds=HASTE, **limits)
        self.bystanders = {box: self._open(box, game()) for box in (self.calm, self.hasty)}
        for box, bystander in self.bystanders.items():
            ask(box, bystander, Reset(1))
        self.processes = descendants(os.getpid())

    def strike(self, attack: Attack) -> None:
        """Run one attack, check what became of it, and look around."""
        box = self.hasty if attack.outcome is Outcome.TIMEOUT else self.calm
        instance = self._open(box, program(attack, self.watch.world))
        try:
            answer = ask(box, instance, Reset(1))
            if isinstance(answer, StepResult):
                assert len(descendants(os.getpid()) - self.processes) == 1
                answer = ask(box, instance, Step(ATTACK))
            self._judge(attack, answer)
            if isinstance(answer, StepResult):
                again = ask(box, instance, Step("x"))
                assert isinstance(again, StepResult), again
                assert attack.outcome is Outcome.OK or again.observation == "got x"
                box.close_instances([instance])
            assert not instance.running
        finally:
            box.close_instances([instance])
        assert ask(box, self.bystanders[box], Step("x")).observation == "got x"
        assert descendants(os.getpid()) == self.processes
        self.watch.check(answer, instance.output)

    def close(self) -> None:
        self.calm.close()
        self.hasty.close()

    def _open(self, box: Sandbox, code: str) -> Instance:
        return box.open(code, Kind.GAME, modules=MODULES)

    def _judge(self, attack: Attack, answer: StepResult | Failure) -> None:
        if isinstance(answer, Failure):
            phase = PHASES.get(attack.where, attack.where)
            assert (answer.kind, answer.phase) == (attack.outcome, phase), answer
            assert attack.told in answer.message
            assert len(answer.message) <= 2000
        elif attack.outcome is Outcome.DENIED:
            verdict, _, told = answer.observation.partition(": ")
            if self.tier in attack.free:
                assert verdict == "done", told
            else:
                kinds, _, message = told.partition(": ")
                assert verdict == "denied", told
                assert {"OSError", *attack.raises} & set(kinds.split()), told
                assert attack.told in message
        else:
            assert (attack.outcome, answer.observation) == (Outcome.OK, attack.told)


def ask(box: Sandbox, instance: Instance, call: Call) -> StepResult | Failure:
    [answer] = box.exchange([(instance, call)])
    return answer


@pytest.fixture(scope="module")
def watch() -> Iterator[Witness]:
    with witness() as watch:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SECRET, watch.secret)
            yield watch


@pytest.fixture(scope="module", params=TIERS)
def ground(request: pytest.FixtureRequest, watch: Witness) -> Iterator[Ground]:
    try:
        ground = Ground(request.param, watch)
    except UsageError as error:
        pytest.skip(str(error))
    yield ground
    ground.close()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(ground: Ground, attack: Attack) -> None:
    ground.strike(attack)


def test_names_of_attacks_differ() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


UNCONFINED = """
import importlib, json, os, signal, sys
sys.path.insert(0, os.getcwd())
modules, programs = json.load(sys.stdin)
for name in modules:
    importlib.import_module(name)
seen = {}
for name, code in programs.items():
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
        scope = {"__name__": "environment"}
        try:
            exec(code, scope)
            environment = scope["BadEnv"]()
            environment.reset(1)
            os.write(theirs, environment.step("attack")[0].encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        seen[name] = pipe.read().decode()
    os.waitpid(pid, 0)
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_unconfined_attacks_succeed(tmp_path: Path) -> None:
    """What is refused is refused by the sandbox, and not because the attack itself is wrong."""
    works = ("anyone", "root") if os.getuid() == 0 else ("anyone",)
    programs = {}
    with witness() as watch:
        for number, attack in enumerate(REFUSALS):
            if attack.works in works:
                folder = tmp_path / str(number)
                furnish(folder, watch.secret)
                world = dataclasses.replace(watch.world, folder=str(folder))
                programs[attack.name] = program(attack, world)
        done = subprocess.run(
            [sys.executable, "-c", UNCONFINED],
            input=json.dumps([MODULES, programs]),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    seen = json.loads(done.stdout)
    assert len(seen) > 100
    assert {name: told for name, told in seen.items() if not told.startswith("done: ")} == {}


def interpreter(candidates: Sequence[str], path: str) -> str | None:
    """The first Python of this version that nobody can run, with this project and its packages."""
    for candidate in candidates:
        script = f"import sys, numpy, pytest, spade_jax.envs.sandbox; print({sys.version_info[:2]})"
        try:
            done = subprocess.run(
                [candidate, "-c", f"{script}; print(sys.version_info[:2])"],
                **{"user": NOBODY, "group": NOBODY, "extra_groups": []},
                env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0 and len(set(done.stdout.splitlines())) == 1:
            return candidate
    return None


@pytest.mark.slow
def test_as_an_ordinary_user() -> None:
    """This whole file once more, when root runs it."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if p.endswith("-packages"))])
    version = "{}.{}".format(*sys.version_info[:2])
    python = interpreter([sys.executable, f"/usr/bin/python{version}"], path)
    if python is None:
        pytest.skip(f"no Python {version} that uid {NOBODY} can run, with this project, was found")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        done = subprocess.run(
            [
                *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
                *("-m", "slow or not slow", __file__),
            ],
            **{"user": NOBODY, "group": NOBODY, "extra_groups": []},
            env={
                **{"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
                "TMPDIR": folder,
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
