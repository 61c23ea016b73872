"""Single questions: their files, prompts, answers and scores, on files made for these tests."""

import csv
import hashlib
import importlib.util
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spade_jax.evals import data, questions
from spade_jax.evals.data import Source
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError
from tests.evals.scripted import play, play_opened

AIME = Source(suite="aime25", hub="o/aime", files=("test.jsonl",), count=3, terms="not ours")
PROBLEMS = [
    {"id": "I-1", "problem": "Find $7 \\cdot 10$; {question} is no part.", "answer": "070"},
    {"id": "I-2", "problem": "Find 2 + 3.", "answer": "5"},
    {"id": "I-3", "problem": "Find nothing.", "answer": "0"},
]
GPQA = Source(suite="gpqa_diamond", hub="o/g", files=("gpqa_diamond.csv",), count=6, terms="theirs")
WRONG = [f"Incorrect Answer {n}" for n in (1, 2, 3)]


def lines(path: Path, items: Sequence[dict]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.fixture
def aime(tmp_path: Path) -> Path:
    return lines(tmp_path / "aime25.jsonl", PROBLEMS)


@pytest.fixture
def gpqa(tmp_path: Path) -> Path:
    path = tmp_path / "gpqa_diamond.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Record ID", "Question", "Correct Answer", *WRONG, "Explanation"])
        for n in range(6):
            said = f'Question {n}, of "two"\nlines?'
            writer.writerow([f"rec{n}", said, f"right {n}", "w1", "w2", "w3", "because"])
    return path


def last(said: Sequence[Message]) -> str:
    return said[-1].content


# -- AIME -------------------------------------------------------------------------------------


def test_the_prompt_of_aime(aime: Path) -> None:
    asked: list[str] = []
    play_opened(questions.open_aime(25, aime, AIME), lambda said: asked.append(last(said)) or "")
    assert asked[0] == (
        "Find $7 \\cdot 10$; {question} is no part.\n\n"
        "Reason step by step. The answer is a whole number from 0 to 999; write it inside "
        "\\boxed{}."
    )


def test_settings_of_aime_and_gpqa(aime: Path, gpqa: Path) -> None:
    with questions.open_aime(25, aime, AIME) as suite:
        s = suite.settings
        assert (s.plays, s.sampling, s.reply) == (64, Sampling(1.0, 0.95, 20), 32_768)
        assert {item.group for item in suite.items()} == {"AIME-25"}
        assert [item.id for item in suite.items()] == ["I-1", "I-2", "I-3"]
    with questions.open_gpqa(gpqa, GPQA) as suite:
        assert (suite.settings.plays, suite.settings.sampling) == (8, Sampling(0.7))
        assert {item.group for item in suite.items()} == {"GPQA-Diamond"}
    assert [source.count for source in (*questions.AIME.values(), questions.GPQA)] == [30, 30, 198]


def test_oracle_and_dunce_of_aime(aime: Path) -> None:
    right = {item["problem"]: item["answer"] for item in PROBLEMS}

    def oracle(said: Sequence[Message]) -> str:
        return (
            f"<think>\\boxed{{1}}</think> It is \\boxed{{{right[last(said).split(chr(10))[0]]}}}."
        )

    results = play_opened(questions.open_aime(25, aime, AIME), oracle, plays=2)
    assert [result.won for result in results] == [True] * 6
    assert results[0].answer == "070" and results[0].details == {"reference": "70"}
    for dunce in ("\\boxed{6}", "It is 70, 5 or 0.", "<think>\\boxed{5}", "\\boxed{}", ""):
        results = play_opened(questions.open_aime(25, aime, AIME), lambda said, d=dunce: d)
        assert [result.score for result in results] == [0.0] * 3


def test_whole_numbers_however_they_are_written(aime: Path) -> None:
    """As math_verify reads them, where they are not literal."""
    said = iter(("\\boxed{\\frac{140}{2}}", "<answer> $5$. </answer>", "\\boxed{0.0}"))
    results = play_opened(questions.open_aime(25, aime, AIME), lambda _: next(said), seats=1)
    assert [result.won for result in results] == [True] * 3
    wrong = iter(("\\boxed{70+1}", "<answer>x</answer>", "\\boxed{import os}"))
    results = play_opened(questions.open_aime(25, aime, AIME), lambda _: next(wrong), seats=1)
    assert [result.won for result in results] == [False] * 3


def test_without_math_verify(aime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="math-verify.*pip install"):
        play_opened(questions.open_aime(25, aime, AIME), last)


# -- GPQA -------------------------------------------------------------------------------------


def options(prompt: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-D])\) (.*)$", prompt, re.MULTILINE))


def test_the_prompt_of_gpqa(gpqa: Path) -> None:
    asked: list[str] = []
    play_opened(questions.open_gpqa(gpqa, GPQA), lambda said: asked.append(last(said)) or "")
    order = list(range(4))
    random.Random(42).shuffle(order)  # the first question's
    texts = ["right 0", "w1", "w2", "w3"]
    shown = "\n".join(f"{'ABCD'[i]}) {texts[k]}" for i, k in enumerate(order))
    assert asked[0] == (
        f'Question 0, of "two"\nlines?\n\n{shown}\n\n'
        "Reason step by step. Exactly one option is right; write its letter inside \\boxed{}."
    )
    right = [next(k for k, v in options(text).items() if v.startswith("right")) for text in asked]
    assert len(set(right)) > 1, "the right option is not always in one place"
    again: list[str] = []
    play_opened(questions.open_gpqa(gpqa, GPQA), lambda said: again.append(last(said)) or "")
    assert again == asked


def test_oracle_and_dunce_of_gpqa(gpqa: Path) -> None:
    def chooses(right: bool) -> Callable[[Sequence[Message]], str]:
        def answer(said: Sequence[Message]) -> str:
            fits = [k for k, v in options(last(said)).items() if v.startswith("right") is right]
            return f"\\boxed{{{fits[0]}}}"

        return answer

    for right in (True, False):
        results = play_opened(questions.open_gpqa(gpqa, GPQA), chooses(right))
        assert [result.score for result in results] == [float(right)] * 6
        assert all((r.answer == r.details["reference"]) is right for r in results)


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ("\\boxed{B}", "B"),
        ("\\boxed{(C)}", "C"),
        ("\\boxed{\\text{D}}", "D"),
        ("\\boxed{A) 5 J}", "A"),
        ("\\boxed{$C$}", "C"),
        ("<answer>D.</answer>", "D"),
        ("A \\boxed{Argon}", None),
        ("\\boxed{5}", None),
        ("First I thought the answer is A. The **answer is: (B)**.", "B"),
        ("Answer: C", "C"),
        ("<think>Answer: C</think> I do not know.", None),
        ("The answer is Argon.", None),
        ("A or B", None),
    ],
)
def test_letters(reply: str, chosen: str | None) -> None:
    assert questions.letter(reply) == chosen


# -- files ------------------------------------------------------------------------------------


def test_where_items_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hub" / "datasets--o--aime"
    for name in ("aaa", "bbb"):
        (cache / "snapshots" / name).mkdir(parents=True)
        lines(cache / "snapshots" / name / "test.jsonl", [{"snapshot": name}])
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert data.read(data.locate(AIME, None)) == [{"snapshot": "aaa"}]
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("bbb")
    assert data.read(data.locate(AIME, None)) == [{"snapshot": "bbb"}]
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert data.locate(AIME, None) == cache / "snapshots" / "bbb" / "test.jsonl"
    own = lines(tmp_path / "aime25.jsonl", [])
    assert data.locate(AIME, tmp_path) == data.locate(AIME, own) == own
    with pytest.raises(
        UsageError, match="items of x are not in .*not ours: fetch.*hf download.*o/y.*--data=PATH"
    ):
        data.locate(Source(suite="x", hub="o/y", files=("z",), count=1, terms="not ours"), None)


@pytest.mark.parametrize("form", [".jsonl", ".json", ".csv", ".parquet"])
def test_forms_of_files(tmp_path: Path, form: str) -> None:
    items, path = [{"problem": "a\nb", "answer": "1"}, {"problem": "c", "answer": "2"}], None
    path = tmp_path / f"items{form}"
    if form == ".jsonl":
        lines(path, items)
    elif form == ".json":
        path.write_text(json.dumps(items))
    elif form == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["problem", "answer"])
            writer.writeheader()
            writer.writerows(items)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.Table.from_pylist(items), str(path)
        )
    assert data.read(path) == items
    if form != ".csv":  # which tells by its count only
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - 8])
        where = f"line 2 of {path} is damaged or cut off" if form == ".jsonl" else "cut off or"
        with pytest.raises(UsageError, match=f"{where}.*fetch it again"):
            data.read(path)


def test_too_few_items_and_wrong_ones(tmp_path: Path, aime: Path) -> None:
    lines(aime, PROBLEMS[:2])
    with pytest.raises(UsageError, match="holds 2 items, but aime25 has 3"):
        data.read_all(AIME, aime)
    lines(aime, [{"text": "?"}] * 3)
    with pytest.raises(UsageError, match="none of the fields problem, question"):
        play_opened(questions.open_aime(25, aime, AIME), last)
    lines(aime, [{"problem": "?", "answer": "x"}] * 3)
    with pytest.raises(UsageError, match="answer 'x'.* no whole number"):
        play_opened(questions.open_aime(25, aime, AIME), last)
    aime.write_text('"text"\n')
    with pytest.raises(UsageError, match="no list of objects"):
        data.read(aime)


def test_checksums(tmp_path: Path) -> None:
    path = lines(tmp_path / "items.jsonl", [{"a": 1}])
    content = path.read_bytes()
    beside = tmp_path / "items.jsonl.sha256"
    beside.write_text(f"{hashlib.sha256(content).hexdigest()}  items.jsonl\n")
    assert data.read(path) == [{"a": 1}]
    beside.write_text(f"{'0' * 64}  items.jsonl\n")
    with pytest.raises(UsageError, match="has the checksum .*, not 0000.*fetch it again"):
        data.read(path)
    beside.unlink()
    # The hub's cache names large files by SHA-256, small ones as git does.
    git = hashlib.sha1(b"blob 9\0" + content).hexdigest()
    assert len(content) == 9
    for name in (git, hashlib.sha256(content).hexdigest()):
        (tmp_path / name).write_bytes(content)
        link = tmp_path / "link.jsonl"
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        assert data.read(link) == [{"a": 1}]
        (tmp_path / name).write_bytes(content[:-1])
        with pytest.raises(UsageError, match=f"not {name}"):
            data.read(link)


def test_a_reply_without_room_is_counted(aime: Path) -> None:
    with questions.open_aime(25, aime, AIME) as suite:
        results = play(suite, lambda said: None)
    assert all("no room" in result.failed for result in results) and len(results) == 3
