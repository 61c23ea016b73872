"""LiveCodeBench: contest problems, judged by what programs print or functions return.

The data are those of `livecodebench/code_generation_lite` (Jain et al. 2024, arXiv 2403.07974): a
JSONL file, or a folder of `test*.jsonl`, which may be called `livecodebench` and lie among those of
other suites; without a path they are looked for in the hub's cache (see `data`). Lines have
`question_id`, `question_content`, `difficulty`, `starter_code`, `metadata` (JSON with `func_name`)
and the tests `public_test_cases` and `private_test_cases` (JSON, the latter also as it is
published: pickled, zlib, base64). They are not shipped here. The release v6 is all files up to
`test6.jsonl`; that file alone holds its newest problems. One reply an item at temperature 0.2
within 16,384 tokens, 6 seconds a test, as in the published evaluations of the method's models.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import io
import json
import pickle
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from spade_jax.envs.parsers import ANY_PROGRAM, extract_code
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import candidates, data, prompts
from spade_jax.evals.suites import Course, Item, Outcome, Say, Settings
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError, dataclass

HUB = "livecodebench/code_generation_lite"
SOURCE = (
    "the problems belong to the contests' sites, so they are not shipped: fetch them with "
    f"`{data.fetch(HUB)}`, or give the file or folder by --data=PATH"
)
MOST_BYTES = 1 << 30  # that packed tests may unfold to


class _Head(msgspec.Struct):
    question_id: str
    difficulty: str


class Problem(msgspec.Struct):
    """What is read of a line."""

    question_content: str
    starter_code: str
    public_test_cases: str
    private_test_cases: str
    metadata: str = "{}"


class Case(msgspec.Struct):
    """One published test."""

    input: str
    output: str
    testtype: str


@dataclass
class Place:
    """Where a problem stands: files are large, so a line is read when its turn comes."""

    path: Path
    start: int


class LiveCodeBench:
    """See the module."""

    name = "livecodebench"
    settings = Settings(sampling=Sampling(temperature=0.2), reply=16_384, context=20_480)

    def __init__(self, path: Path | None, sandbox: Sandbox) -> None:
        self._path, self.sandbox = path, sandbox

    def items(self) -> Sequence[Item]:
        found = [each for file in files(self._path) for each in _heads(file)]
        if not found:
            where = self._path or data.cache()
            raise UsageError(f"{where} holds no problems of {self.name}; {SOURCE}")
        return [
            Item(
                id=head.question_id,
                group="LiveCodeBench v6",
                course=functools.partial(solve, self.sandbox, place, head.difficulty),
            )
            for head, place in found
        ]


@contextlib.contextmanager
def open_livecodebench(path: Path | None) -> Iterator[LiveCodeBench]:
    """The suite on the file or folder at `path`."""
    with candidates.open_sandbox(seconds=6.0) as sandbox:
        yield LiveCodeBench(path, sandbox)


def files(path: Path | None) -> list[Path]:
    """The files of problems at `path`, else in the hub's cache."""
    if path is None:
        folder = next(iter(data.snapshots(HUB)), None)
        if folder is None:
            raise UsageError(
                f"the problems of livecodebench are not in {data.cache()} nor named by --data; "
                f"{SOURCE}"
            )
    else:
        folder = path / LiveCodeBench.name if (path / LiveCodeBench.name).is_dir() else path
    return sorted(folder.glob("test*.jsonl")) if folder.is_dir() else [folder]


def solve(sandbox: Sandbox, place: Place, difficulty: str, play: int) -> Course:
    """Ask for a program and run all its tests."""
    problem = read_problem(place)
    reply = yield Say(messages=(Message(role="user", content=prompt_of(problem)),))
    code, told = extract_code(reply.text, ANY_PROGRAM), {"difficulty": difficulty}
    if not code:
        return Outcome(score=0.0, won=False, details={"verdict": "no program", **told})
    tests = read_tests(problem)
    judged = yield from candidates.judge(sandbox, code, tests)
    won = not judged.verdict
    details = {"verdict": judged.verdict, "passed": judged.passed, "tests": len(tests), **told}
    return Outcome(score=float(won), won=won, answer=code, details=details)


def prompt_of(problem: Problem) -> str:
    told, starter = problem.question_content.strip(), problem.starter_code.strip()
    if starter:
        return prompts.fill("livecodebench_starter", problem=told, starter=starter)
    return prompts.fill("livecodebench_stdin", problem=told)


def read_problem(place: Place) -> Problem:
    """The problem at a place; a UsageError where the file has changed."""
    try:
        with place.path.open("rb") as file:
            file.seek(place.start)
            return msgspec.json.decode(file.readline(), type=Problem)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"a problem of {place.path} at byte {place.start} cannot be read ({error}); {SOURCE}"
        ) from error


def read_tests(problem: Problem) -> list[candidates.Test]:
    """All tests of a problem, public ones first."""
    try:
        cases = [
            *msgspec.json.decode(problem.public_test_cases, type=list[Case]),
            *msgspec.json.decode(_unpacked(problem.private_test_cases), type=list[Case]),
        ]
        function = json.loads(problem.metadata or "{}").get("func_name")
        return [_test(case, function) for case in cases]
    except (ValueError, pickle.UnpicklingError, zlib.error, binascii.Error) as error:
        raise UsageError(f"the tests of a problem cannot be read ({error}); {SOURCE}") from error


def _test(case: Case, function: str | None) -> candidates.Test:
    if case.testtype == "stdin":
        return candidates.Run(stdin=case.input, expected=case.output)
    if not function:
        raise ValueError("a functional test has no func_name in its metadata")
    arguments = [json.loads(line) for line in case.input.split("\n")]
    return candidates.CallOf(
        function=function, arguments=arguments, expected=json.loads(case.output)
    )


def _unpacked(text: str) -> str:
    """The JSON of private tests; a pickle is read as text, and as nothing else."""
    if text.lstrip()[:1] == "[":
        return text
    unfold = zlib.decompressobj()
    raw = unfold.decompress(base64.b64decode(text), MOST_BYTES)
    if not unfold.eof:
        raise ValueError(f"they are cut off, or have more than {MOST_BYTES:,} bytes")
    found = _TextOnly(io.BytesIO(raw)).load()
    if not isinstance(found, str):
        raise ValueError(f"they are packed as {type(found).__name__}, not as text")
    return found


class _TextOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in tests")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("references have no place in tests")


def _heads(path: Path) -> Iterator[tuple[_Head, Place]]:
    start = 0
    try:
        data.check(path)
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    yield msgspec.json.decode(line, type=_Head), Place(path=path, start=start)
                start += len(line)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); {SOURCE}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} holds no problem at byte {start} ({error}); {SOURCE}") from error
