"""Programs against tests: what passes, what fails and why, and what a program cannot do."""

from collections.abc import Iterator

import pytest

from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import candidates
from spade_jax.evals.candidates import CallOf, Check, Judged, Run, Test
from tests.evals.courses import drive

ADD = "print(sum(map(int, input().split())))"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with candidates.open_sandbox(seconds=2.0, memory_mb=256) as opened:
        yield opened


def judge(sandbox: Sandbox, program: str, *tests: Test) -> Judged:
    judged, _ = drive(candidates.judge(sandbox, program, tests), [], sandbox=sandbox)
    return judged


@pytest.mark.parametrize(
    "program",
    [
        ADD,
        "import sys\nprint(sum(int(n) for n in sys.stdin.read().split()))",
        "import sys\nsys.stdout.write(str(sum(map(int, sys.stdin.buffer.read().split()))))",
        "print(sum(map(int, open(0).read().split())), end=' \\n\\n')",
        "def main():\n    print(float(sum(map(int, input().split()))))\n"
        "if __name__ == '__main__':\n    main()\n    exit()",
        "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))\nsys.exit(0)",
    ],
)
def test_programs_that_read_and_print(sandbox: Sandbox, program: str) -> None:
    assert judge(sandbox, program, Run(stdin="1 2\n", expected="3\n")) == Judged(passed=1)


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("print(4)", r"test 2: wrong answer: '4\n'"),
        (f"{ADD}\nprint()\nprint(1)", r"test 1: wrong answer: '4\n\n1\n'"),
        ("x = 1\nprint(x / 0)", "test 1: ZeroDivisionError: division by zero (line 2)"),
        ("while True: pass", "test 1: time limit"),
        ("x = bytearray(10**9)", "test 1: memory limit"),
        ("raise SystemExit(3)", "test 1: RuntimeError: the program exits with 3"),
        ("print('a' * 20_000)", "test 1: the output is too long"),
        ("def f(:", "test 1: SyntaxError: invalid syntax (<environment>, line 1)"),
        ("open('/etc/passwd')", "test 1: FileNotFoundError"),
    ],
)
def test_programs_that_fail(sandbox: Sandbox, program: str, verdict: str) -> None:
    tests = [Run(stdin="2 2\n", expected="4"), Run(stdin="2 3\n", expected="5")]
    judged = judge(sandbox, program, *tests)
    assert judged.verdict.startswith(verdict)
    assert judged.passed == verdict.startswith("test 2")


def test_outputs_longer_than_one_answer(sandbox: Sandbox) -> None:
    expected = "\n".join(map(str, range(70_000)))
    assert len(expected) > candidates.PIECE
    program = "print(*range(int(input())), sep='\\n')"
    assert judge(sandbox, program, Run(stdin="70000", expected=expected)) == Judged(passed=1)


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ("1 2\n3 \n", "1 2\n3", True),
        ("0.50 1", "0.5 1.0", True),
        ("0.5001", "0.5", False),
        ("1\n2", "1 2", False),
        ("yes", "YES", False),
        ("", "", True),
        ("nan", "1", False),
    ],
)
def test_outputs_are_compared_by_line_and_number(given: str, expected: str, same: bool) -> None:
    assert candidates._same_output(given, expected) is same


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ("def pair(a, b):\n    return a, b", True),
        ("class Solution:\n    def pair(self, a, b):\n        return [a, b]", True),
        ("def pair(a, b):\n    return [b, a]", False),
        ("def pair(a, b):\n    return {a}", False),
        ("def other(a, b): pass", False),
    ],
)
def test_functions(sandbox: Sandbox, program: str, passes: bool) -> None:
    judged = judge(sandbox, program, CallOf(function="pair", arguments=[1, "x"], expected=[1, "x"]))
    assert judged.passed == passes and bool(judged.verdict) != passes


def test_checks_written_in_python(sandbox: Sandbox) -> None:
    check = Check(tests="assert double(2) == 4\nassert double('a') == 'aa'")
    assert judge(sandbox, "def double(x):\n    print(x)\n    return x + x", check).passed == 1
    judged = judge(sandbox, "def double(x):\n    return 4", check)
    assert judged == Judged(passed=0, verdict="test 1: AssertionError:  (line 2)")


def test_a_test_sees_nothing_of_the_one_before(sandbox: Sandbox) -> None:
    program = "import json\nprint(getattr(json, 'seen', 0))\njson.seen = 1"
    twice = [Run(stdin="", expected="0")] * 2
    assert judge(sandbox, program, *twice) == Judged(passed=2)
