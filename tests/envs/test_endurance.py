"""Many at once, broken machines, and what must hold over a long time."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from spade_jax.envs.confine import Tier
from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.types import Failure, FailureKind, Kind, StepResult
from tests.envs.programs import game
from tests.envs.witness import descendants, wait_for_end

ROOT = Path(__file__).parents[2]
SPIN = game(step="exec('while 1: pass')")
BOMB = game(step="exec('kept = []\\nwhile 1: kept.append(bytes(1 << 20))')")


def in_another_process(script: str, *before: str) -> str:
    """What a script prints that has the sandbox at hand."""
    start = "from spade_jax.envs.sandbox import *\nfrom spade_jax.types import *\n"
    start += "from spade_jax.envs.confine import Tier\nfrom tests.envs.programs import game\n"
    done = subprocess.run(
        [*before, sys.executable, "-c", start + textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_good_instances_go_on_beside_spinning_ones() -> None:
    with Sandbox(step_seconds=30.0, cpu_seconds=600.0) as box:
        spinning = [box.open(SPIN, Kind.GAME, trusted=True) for _ in range(32)]
        good = [box.open(game(), Kind.GAME) for _ in range(16)]
        answers: list[object] = []
        box.exchange([(one, Reset(1)) for one in (*spinning, *good)])
        for one in spinning:
            box.submit(one, Step("x"), answers.append)
        for _ in range(3):
            seen = box.exchange([(one, Step("y")) for one in good])
            assert seen == [StepResult(observation="got y")] * 16
        assert answers == []
        box.close_instances(spinning)
        box.poll(0)
        assert [answer.kind for answer in answers] == [FailureKind.CRASH] * 32


def test_memory_bombs_at_once() -> None:
    with Sandbox(step_seconds=30.0, memory_mb=32) as box:
        bystander = box.open(game(), Kind.GAME)
        bombs = [box.open(BOMB, Kind.GAME, trusted=True) for _ in range(24)]
        box.exchange([(one, Reset(1)) for one in (bystander, *bombs)])
        seen = box.exchange([(one, Step("x")) for one in (*bombs, bystander)])
        assert [answer.kind for answer in seen[:-1]] == [FailureKind.MEMORY] * 24
        assert seen[-1] == StepResult(observation="got x")


def test_a_fork_server_killed_during_a_step() -> None:
    before = descendants(os.getpid())
    with Sandbox(step_seconds=30.0) as box:
        spinning, good = box.open(SPIN, Kind.GAME), box.open(game(), Kind.GAME)
        box.exchange([(spinning, Reset(1))])
        answers: list[object] = []
        box.submit(spinning, Step("x"), answers.append)
        box.poll(0)
        started = descendants(os.getpid()) - before
        [guard] = [pid for pid in started if len(descendants(pid)) == len(started) - 1]
        os.kill(guard, signal.SIGKILL)
        while not answers:
            box.poll()
        assert (answers[0].phase, answers[0].kind) == ("step", FailureKind.CRASH)
        assert all(wait_for_end(pid) for pid in started - {guard})
        assert box.exchange([(good, Reset(1))]) == [StepResult(observation="go")]
    assert descendants(os.getpid()) == before


def test_a_forged_answer_is_an_answer_and_the_last() -> None:
    """A program may answer what it likes; but each request has one answer."""
    forge = "os.write(3, wire.frame(2, wire.encode(wire.Observed('forged', 1.0, True, False))))"
    code = game(top="import os; from spade_jax.envs import wire", step=forge)
    with Sandbox() as box:
        one = box.open(code, Kind.GAME)
        box.exchange([(one, Reset(1))])
        [answer] = box.exchange([(one, Step("x"))])
        forged = StepResult(observation="forged", reward=1.0, terminated=True)
        assert answer == forged or answer.kind is FailureKind.PROTOCOL
        [answer] = box.exchange([(one, Step("x"))])
        assert answer.kind is FailureKind.PROTOCOL


TIER = """
box = Sandbox(step_seconds=30.0)
one = box.open(game(), Kind.GAME)
print(box.exchange([(one, Reset(1))])[0].observation, box.confinement.tier)
box.close()
"""


@pytest.mark.slow
def test_namespaces_forbidden(find_tool: Callable[[str], str]) -> None:
    """Then Landlock is what holds, and it is said why."""
    forbid = (
        "for kind in user mnt pid net ipc uts; do echo 0 >/proc/sys/user/max_${kind}_namespaces"
    )
    shell = ("unshare", "-Ur", "sh", "-c", f'{forbid}; done; exec "$@"', "sh")
    if subprocess.run([find_tool("unshare"), "-Ur", "true"], check=False).returncode != 0:
        pytest.skip("this machine already forbids user namespaces")
    script = f"{TIER}\nbox = Sandbox()\nprint(box.confinement.missing['namespaces'])\nbox.close()"
    told = in_another_process(script, *shell).splitlines()
    assert told[0] in ("go B", "go C")
    assert len(told[1]) > 5


# Starts the program of its arguments where some system calls return an error (0: do nothing).
ON_ANOTHER_KERNEL = """
import ctypes, json, os, struct, sys
from spade_jax.envs import seccomp
code = [(0x20, 0, 0, 0)]
for number, error in json.loads(sys.argv[1]):
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error)]
packed = seccomp.pack([*code, (0x06, 0, 0, 0x7FFF0000)])
buffer = ctypes.create_string_buffer(packed, len(packed))
header = struct.pack("@HxxxxxxQ", len(packed) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, header) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""
SECCOMP = {"x86_64": 317, "aarch64": 277}
LANDLOCK = {"create": 444, "rule": 445, "restrict": 446}


def on_another_kernel(*calls: tuple[int, int]) -> list[str]:
    """Start of a command line; `calls` are numbers of system calls and the errors they return."""
    return [sys.executable, "-c", ON_ANOTHER_KERNEL, json.dumps(calls)]


@pytest.mark.slow
def test_landlock_absent() -> None:
    """Namespaces hold without it; without both, nothing but the filter does."""
    script = """
    for tier in (None, Tier.B):
        box = Sandbox(step_seconds=30.0, tier=tier)
        try:
            one = box.open(game(step="observation = open('/etc/passwd').read(9)"), Kind.GAME)
            box.exchange([(one, Reset(1))])
            [failure] = box.exchange([(one, Step("x"))])
            print(box.confinement.tier, box.confinement.missing["Landlock"], failure.kind)
        except UsageError as error:
            print(error)
        box.close()
    """
    without = on_another_kernel(*((number, errno.ENOSYS) for number in LANDLOCK.values()))
    first, second = in_another_process(script, *without).splitlines()
    assert first in (f"{tier} the kernel does not have it error" for tier in (Tier.A, Tier.C))
    assert "cannot give tier B" in second


REFUSED = """
box = Sandbox({})
try:
    print(box.confinement.tier, box.confinement.missing)
except UsageError as error:
    print(error)
box.close()
"""


@pytest.mark.parametrize("options", ["", "unsafe=True"])
def test_a_filter_that_does_nothing_counts_as_none(options: str) -> None:
    ignored = on_another_kernel((SECCOMP[platform.machine()], 0))
    [told] = in_another_process(REFUSED.format(options), *ignored).splitlines()
    assert told.startswith("none {" if options else "This machine cannot confine generated prog")
    assert "system-call filter" in told and "accepted, but sockets can be made" in told


TRIES = """
import os, threading

def say(act):
    try:
        return act() or "done"
    except (OSError, RuntimeError) as error:
        return type(error).__name__

def tries():
    forked = say(lambda: os.fork() == 0 and os._exit(0))
    return forked + " " + say(lambda: threading.Thread(target=print).start())
"""
UNSAFE = f"""
box = Sandbox(unsafe=True)
code = game(top={TRIES!r}, step="observation = tries()")
one = box.open(code, Kind.GAME, modules=("threading",))
box.exchange([(one, Reset(1))])
print(box.exchange([(one, Step("x"))])[0].observation)
print(*box.confinement.missing)
box.close()
"""
NO_FILTER, NO_NAMESPACES, NO_OTHER_USER = [(317, 1)], [(272, 1)], [(116, 1), (117, 1), (119, 1)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_without_a_filter_processes_are_limited_or_it_is_said() -> None:
    for denied in (NO_FILTER, NO_FILTER + NO_NAMESPACES):
        told, lacks = in_another_process(UNSAFE, *on_another_kernel(*denied)).splitlines()
        assert told == "BlockingIOError RuntimeError"
        assert "system-call filter" in lacks and "limit of processes" not in lacks
    if os.getuid() == 0:  # it stays root, which the limit does not bind
        kernel = on_another_kernel(*NO_FILTER, *NO_OTHER_USER)
        told, lacks = in_another_process(UNSAFE, *kernel).splitlines()
        assert told == "done done"
        assert "limit of processes" in lacks


def test_landlock_that_does_nothing_counts_as_none() -> None:
    ignored = on_another_kernel((LANDLOCK["restrict"], 0))
    [told] = in_another_process(REFUSED.format("tier=Tier.B"), *ignored).splitlines()
    assert "cannot give tier B" in told and told.endswith("ask for C.")
    assert "accepted, but files of the machine can be opened" in told


@pytest.mark.parametrize("tier", [Tier.B, Tier.C])
def test_a_lesser_tier_says_what_it_lacks(tier: Tier) -> None:
    with Sandbox(tier=tier) as box:
        lacks = {Tier.B: {"namespaces"}, Tier.C: {"namespaces", "Landlock"}}[tier]
        assert box.confinement.tier is tier
        assert lacks - {"Landlock"} <= set(box.confinement.missing) <= lacks


@pytest.mark.slow
def test_started_from_a_process_that_computes_with_jax() -> None:
    assert in_another_process(TIER).startswith("go ")
    begin = "import jax, jax.numpy as jnp\njax.jit(lambda x: x @ x)(jnp.ones((64, 64)))\n"
    assert in_another_process(begin + TIER) == in_another_process(TIER)


def test_math_verify_uses_its_alarm() -> None:
    """Its limit of time is a signal's, which only works in the main thread of a process."""
    pytest.importorskip("math_verify")
    code = game(
        top="from math_verify import parse, verify",
        step="observation = str(verify(parse('$1/2$'), parse('$0.5$')))",
    )
    with Sandbox(step_seconds=30.0, memory_mb=512) as box:
        one = box.open(code, Kind.GAME, modules=("math_verify",))
        box.exchange([(one, Reset(1))])
        [answer] = box.exchange([(one, Step("x"))])
    assert not isinstance(answer, Failure), answer
    assert answer.observation == "True"
