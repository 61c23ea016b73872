"""Programs a model wrote, run against tests: each test in a sandboxed process of its own.

What a program prints or returns comes back here and is compared here, so that it never meets the
answer; only `Check`, whose tests are Python themselves, runs beside it. A program sees the clock
and randomness of `envs.entropy`, can start no thread and no process, and can import what Python
has and numpy, as far as that loads no native code which was not loaded before.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Generator, Sequence
from typing import Any

from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.evals.suites import Act
from spade_jax.types import Failure, FailureKind, Kind, StepResult, dataclass

PIECE = 200_000  # characters of what a program gave that come back in one answer
MODULES = ("array", "csv", "hashlib", "numpy", "queue", "threading", "zlib")  # loaded before

# Runs in the sandbox. `test` is what to do, as JSON; what came of it is read in pieces.
_HARNESS = '''
import io
import json
import sys

FILE = "<environment>"  # lines of errors are those of what is run under this name


class Input(io.TextIOWrapper):
    def __init__(self, text):
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8")


def open_any(file, *args, **kwargs):
    return sys.stdin if file in (0, "/dev/stdin") else open(file, *args, **kwargs)


def globals_of(name):
    return {"__name__": name, "exit": sys.exit, "quit": sys.exit, "open": open_any}


class HarnessEnv:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        request = json.loads(action)
        if "piece" in request:
            start = request["piece"]
        else:
            self.given, start = getattr(self, request["do"])(**request["test"]), 0
        piece = self.given[start : start + request["size"]]
        return f"{len(self.given)} {piece}", 0.0, False, False, {}

    def run(self, program, stdin):
        """What the program prints when it is given `stdin`."""
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace")
        before = sys.stdin, sys.stdout
        sys.stdin, sys.stdout = Input(stdin), printed
        try:
            exec(compile(program, FILE, "exec"), globals_of("__main__"))
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"the program exits with {end.code}") from None
        finally:
            sys.stdin, sys.stdout = before
        printed.flush()
        return printed.buffer.getvalue().decode("utf-8", "replace")

    def call(self, program, function, arguments):
        """What the function, or the method of its class Solution, returns, as JSON."""
        space = globals_of("program")
        exec(compile(program, FILE, "exec"), space)
        owner = space["Solution"]() if "Solution" in space else None
        found = space[function] if owner is None else getattr(owner, function)
        return json.dumps(found(*arguments))

    def check(self, program, tests):
        """Nothing, where `tests` run without an error after the program."""
        space = globals_of("program")
        exec(compile(program, FILE, "exec"), space)
        exec(compile(tests, FILE, "exec"), space)
        return ""
'''


@dataclass
class Run:
    """A program is given `stdin` and must print `expected`."""

    stdin: str
    expected: str


@dataclass
class CallOf:
    """A function, bare or of a class `Solution`, must return `expected`."""

    function: str
    arguments: Sequence[Any]
    expected: Any


@dataclass
class Check:
    """Python that runs after the program and raises nothing."""

    tests: str


Test = Run | CallOf | Check


@dataclass
class Judged:
    """How many tests a program passed, from the first on, and how it failed the next one."""

    passed: int
    verdict: str = ""  # "" where it passed all


def open_sandbox(*, seconds: float, memory_mb: int = 1024) -> Sandbox:
    """A sandbox in which a test may take so many seconds."""
    return Sandbox(
        step_seconds=seconds,
        cpu_seconds=seconds + 1,
        memory_mb=memory_mb,
        max_instances=100_000,  # as many run at once as the cores carry, whatever waits
        max_observation=PIECE + 20,
    )


def judge(
    sandbox: Sandbox, program: str, tests: Sequence[Test]
) -> Generator[Act, StepResult | Failure, Judged]:
    """Run the tests in order up to the first that fails; a part of a course."""
    for number, test in enumerate(tests):
        verdict = yield from _try(sandbox, program, test)
        if verdict:
            return Judged(passed=number, verdict=f"test {number + 1}: {verdict}")
    return Judged(passed=len(tests))


def _try(sandbox: Sandbox, program: str, test: Test) -> Generator[Act, StepResult | Failure, str]:
    """Why the program fails one test; "" where it passes."""
    instance = sandbox.open(_HARNESS, Kind.GAME, modules=MODULES)
    try:
        answer = yield Act(instance=instance, call=Reset(0))
        if not isinstance(answer, Failure):
            answer = yield Act(instance=instance, call=_request(program, test))
        if isinstance(answer, Failure):
            return _why(answer)
        length, _, given = answer.observation.partition(" ")
        if isinstance(test, Check):
            return ""
        if int(length) > _most(test):
            return "the output is too long"
        while len(given) < int(length):
            request = json.dumps({"piece": len(given), "size": PIECE})
            answer = yield Act(instance=instance, call=Step(request))
            if isinstance(answer, Failure):
                return _why(answer)
            given += answer.observation.partition(" ")[2]
    finally:
        sandbox.close_instances([instance])
    same = _same_output if isinstance(test, Run) else _same_value
    return "" if same(given, test.expected) else f"wrong answer: {given[:200]!r}"


def _request(program: str, test: Test) -> Step:
    match test:
        case Run(stdin=stdin):
            do, told = "run", {"stdin": stdin}
        case CallOf(function=function, arguments=arguments):
            do, told = "call", {"function": function, "arguments": list(arguments)}
        case Check(tests=tests):
            do, told = "check", {"tests": tests}
    return Step(json.dumps({"do": do, "test": {"program": program, **told}, "size": PIECE}))


def _most(test: Run | CallOf) -> int:
    """Characters beyond which an output cannot be right."""
    return 4 * len(json.dumps(test.expected)) + 10_000


def _why(failure: Failure) -> str:
    words = {FailureKind.TIMEOUT: "time limit", FailureKind.MEMORY: "memory limit"}
    return words.get(failure.kind, failure.message)


def _same_output(given: str, expected: str) -> bool:
    """Line by line, without blanks around; lines of numbers also where the numbers are equal."""
    ours, theirs = given.strip().split("\n"), expected.strip().split("\n")
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _same_line(given: str, expected: str) -> bool:
    if given.strip() == expected.strip():
        return True
    try:
        return [*map(decimal.Decimal, given.split())] == [*map(decimal.Decimal, expected.split())]
    except decimal.InvalidOperation:
        return False


def _same_value(given: str, expected: Any) -> bool:
    try:
        return json.loads(given) == expected
    except (ValueError, RecursionError):
        return False
