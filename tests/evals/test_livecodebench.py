"""LiveCodeBench: small files of the published form, their prompts, and how they are scored."""

import base64
import hashlib
import json
import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from spade_jax.evals import livecodebench
from spade_jax.evals.candidates import CallOf, Run
from spade_jax.evals.livecodebench import LiveCodeBench
from spade_jax.evals.suites import Outcome
from spade_jax.types import UsageError
from tests.evals.courses import Log, drive

STDIN = {
    "question_id": "abc_a",
    "question_content": "Print the sum of two numbers.",
    "difficulty": "easy",
    "starter_code": "",
    "metadata": "{}",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "platform": "atcoder",
}
PRIVATE = json.dumps([{"input": "-1 1\n", "output": "0\n", "testtype": "stdin"}])
FUNCTION = {
    "question_id": "1234",
    "question_content": "Return the two in order.",
    "difficulty": "hard",
    "starter_code": "class Solution:\n    def order(self, a: int, b: int) -> list[int]:\n        ",
    "metadata": json.dumps({"func_name": "order"}),
    "public_test_cases": json.dumps(
        [{"input": "2\n1", "output": "[1, 2]", "testtype": "functional"}]
    ),
    "private_test_cases": "[]",
}
ADD = "print(sum(map(int, input().split())))"
ORDER = "class Solution:\n    def order(self, a, b):\n        return sorted((a, b))"
NO_PROGRAM = {"verdict": "no program", "difficulty": "easy"}
PROMPTS = [
    "Solve this problem in Python.\n\nPrint the sum of two numbers.\n\nThe program reads the "
    "standard input and prints the answer. Reply with one ```python block that holds the whole "
    "program.",
    "Solve this problem in Python.\n\nReturn the two in order.\n\nComplete this code, and reply "
    "with one ```python block that holds all of it.\n\n```python\nclass Solution:\n"
    "    def order(self, a: int, b: int) -> list[int]:\n```",
]


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def write(path: Path, *problems: dict) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in problems))
    return path


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCodeBench]:
    folder = tmp_path_factory.mktemp("problems")
    write(folder / "test.jsonl", STDIN | {"private_test_cases": packed(PRIVATE)})
    write(folder / "test2.jsonl", FUNCTION)
    with livecodebench.open_livecodebench(folder) as opened:
        yield opened


def play(suite: LiveCodeBench, number: int, code: str) -> tuple[Outcome, Log]:
    reply = f"```python\n{code}\n```"
    return drive(suite.items()[number].course(0), [reply], sandbox=suite.sandbox)


def test_items_and_prompts(suite: LiveCodeBench) -> None:
    items = suite.items()
    assert [(i.id, i.group) for i in items] == [
        ("abc_a", "LiveCodeBench v6"),
        ("1234", "LiveCodeBench v6"),
    ]
    for number, prompt in enumerate(PROMPTS):
        _, log = play(suite, number, "pass")
        assert log.texts() == [prompt]


@pytest.mark.parametrize(
    ("number", "code", "passed", "verdict"),
    [
        (0, ADD, 2, ""),
        (0, "print(3)", 1, "test 2: wrong answer: '3\\n'"),
        (1, ORDER, 1, ""),
        (1, ORDER.replace("sorted((a, b))", "a, b"), 0, "test 1: wrong answer: '[2, 1]'"),
    ],
)
def test_scores(suite: LiveCodeBench, number: int, code: str, passed: int, verdict: str) -> None:
    outcome, _ = play(suite, number, code)
    assert outcome.won is (verdict == "") and outcome.score == outcome.won
    tests = 2 - number
    told = {"verdict": verdict, "passed": passed, "tests": tests}
    assert outcome.details == told | {"difficulty": ("easy", "hard")[number]}


def test_a_reply_without_a_program(suite: LiveCodeBench) -> None:
    outcome, _ = drive(suite.items()[0].course(0), ["I do not know."], sandbox=suite.sandbox)
    assert outcome == Outcome(score=0.0, won=False, details=NO_PROGRAM)


@pytest.mark.parametrize("private", [PRIVATE, packed(PRIVATE)])
def test_private_tests_in_both_forms(tmp_path: Path, private: str) -> None:
    path = write(tmp_path / "test.jsonl", STDIN | {"private_test_cases": private})
    problem = livecodebench.read_problem(livecodebench.Place(path=path, start=0))
    assert livecodebench.read_tests(problem) == [
        Run(stdin="1 2\n", expected="3\n"),
        Run(stdin="-1 1\n", expected="0\n"),
    ]


def test_arguments_are_one_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", FUNCTION)
    problem = livecodebench.read_problem(livecodebench.Place(path=path, start=0))
    assert livecodebench.read_tests(problem) == [
        CallOf(function="order", arguments=[2, 1], expected=[1, 2])
    ]


class Hostile:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("hostile",)


@pytest.mark.parametrize(
    ("private", "problem"),
    [
        (packed(Hostile()), "posix.mkdir has no place in tests"),
        (packed(["a"]), "packed as list, not as text"),
        (packed(PRIVATE)[:-8], "cut off"),
        ("%%%", "cannot be read"),
        (packed("[{]"), "cannot be read"),
    ],
)
def test_packed_tests_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "test.jsonl", STDIN | {"private_test_cases": private})
    read = livecodebench.read_problem(livecodebench.Place(path=path, start=0))
    with pytest.raises(UsageError, match=problem):
        livecodebench.read_tests(read)
    assert not (tmp_path / "hostile").exists()


def test_problems_of_the_hub_are_found_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its cache files are links to what is named by its checksum."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "datasets--livecodebench--code_generation_lite" / "snapshots" / "aaa"
    place.mkdir(parents=True)
    content = write(tmp_path / "written", STDIN).read_bytes()
    whole = tmp_path / hashlib.sha256(content).hexdigest()
    whole.write_bytes(content)
    (place / "test.jsonl").symlink_to(whole)
    with livecodebench.open_livecodebench(None) as suite:
        assert [item.id for item in suite.items()] == ["abc_a"]
        whole.write_bytes(content[:-1])
        with pytest.raises(UsageError, match="has the checksum .*fetch it again"):
            suite.items()
        (place / "test.jsonl").unlink()
        with pytest.raises(UsageError, match="holds no problems"):
            suite.items()


def test_data_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    (tmp_path / "torn.jsonl").write_text('{"question_id": "a", "diff')
    (tmp_path / "empty").mkdir()
    for path, problem in (
        (None, "not in .*none nor named by --data.*hf download .*code_generation_lite"),
        (tmp_path / "torn.jsonl", "holds no problem at byte 0"),
        (tmp_path / "empty", "holds no problems"),
        (tmp_path / "absent.jsonl", "cannot be read"),
    ):
        with (
            livecodebench.open_livecodebench(path) as suite,
            pytest.raises(UsageError, match=problem),
        ):
            suite.items()
