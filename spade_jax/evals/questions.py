"""Suites of single questions: AIME and GPQA; what all of them share."""

from __future__ import annotations

import contextlib
import functools
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spade_jax.envs import parsers
from spade_jax.envs.answers import AnswerChecker
from spade_jax.evals import data, prompts
from spade_jax.evals.data import Source
from spade_jax.evals.suites import Course, Item, Listed, Outcome, Say, Settings, Work
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError

LETTERS = "ABCD"
PROMPT_TOKENS = 4096  # of room beside the reply; no question of these suites is half as long
_LETTER = re.compile(r"(?:\\text(?:bf)?\s*\{)?[\s$({\[]*([A-D])(?![A-Za-z])")
_STATED = re.compile(r"\banswer\b[\s*]*(?:is\b)?[\s*:]*[$({\[]*([A-D])\b", re.IGNORECASE)
_WHOLE = re.compile(r"\s*\$?\s*(\d{1,9})(?:\.0*)?\s*\.?\s*\$?\s*")


def final_answer(reply: str) -> str | None:
    """The last `<answer>` outside thinking, else the last box; None without."""
    return parsers.answer(reply) or parsers.boxed(reply)


def question(
    text: str, read: Callable[[str], str | None], judge: Callable[[str], bool], **details: Any
) -> Course:
    """The course of one question: its answer is right or not."""
    reply = yield Say(messages=(Message(role="user", content=text),))
    answer = read(reply.text)
    right = answer is not None and (yield Work(do=lambda: judge(answer)))
    return Outcome(score=float(right), won=right, answer=answer, details=details)


# -- AIME -------------------------------------------------------------------------------------

_AIME_TERMS = "the problems belong to the Mathematical Association of America"
AIME = {
    year: Source(
        suite=f"aime{year}",
        hub=f"math-ai/aime{year}",
        files=("test.jsonl", f"aime{year}.jsonl"),
        count=30,
        terms=_AIME_TERMS,
    )
    for year in (25, 26)
}
AIME_SETTINGS = Settings(
    plays=64,
    sampling=Sampling(temperature=1.0, top_p=0.95, top_k=20),
    reply=32_768,
    context=32_768 + PROMPT_TOKENS,
)


class IntegerJudge:
    """Whether an answer is a whole number: literally, else as math_verify reads it."""

    def __init__(self, checker: AnswerChecker) -> None:
        self._checker, self._lock = checker, threading.Lock()

    def __call__(self, reference: str, answer: str) -> bool:
        if literal := _WHOLE.fullmatch(answer):
            return int(literal[1]) == int(reference)
        with self._lock:
            [score] = self._checker.check([(reference, answer)])
        return score.right


@contextlib.contextmanager
def open_aime(year: int, file: Path | None, source: Source | None = None) -> Iterator[Listed]:
    r"""AIME 2025 or 2026: 30 problems whose answers are whole numbers.

    Settings: avg@64, temperature 1.0, top-p 0.95, top-k 20, 32,768 tokens of a reply, as published
    for the method. The prompt is our own. The answer is that in the last `<answer>` or `\boxed{}`;
    what is not literally a whole number is compared by math_verify.

    Data: one object a problem with `problem` (or `question`), `answer`, and `id` (else its number),
    as JSON lines, a JSON list, CSV or parquet.
    """
    source = source or AIME[year]
    found = data.read_all(source, file)
    with AnswerChecker() as checker:
        judge = IntegerJudge(checker)
        items = []
        for n, item in enumerate(found):
            problem = data.field(item, ("problem", "question", "Problem"), source.suite)
            answer = data.field(item, ("answer", "Answer"), source.suite)
            if not (whole := _WHOLE.fullmatch(answer)):
                raise UsageError(
                    f"the answer {answer!r} in the data of {source.suite} is no whole number; "
                    "give the file of this suite"
                )
            items.append(
                Item(
                    id=str(item.get("id", item.get("problem_idx", n))),
                    group=f"AIME-{year}",
                    course=_asking(
                        prompts.fill("aime", question=problem),
                        final_answer,
                        functools.partial(judge, whole[1]),
                        reference=str(int(whole[1])),
                    ),
                )
            )
        yield Listed(name=source.suite, settings=AIME_SETTINGS, all=tuple(items))


def _asking(text: str, read: Any, judge: Any, **details: Any) -> Callable[[int], Course]:
    return lambda play: question(text, read, judge, **details)


# -- GPQA -------------------------------------------------------------------------------------

GPQA = Source(
    suite="gpqa_diamond",
    hub="Idavidrein/gpqa",
    files=("gpqa_diamond.csv",),
    count=198,
    terms="its authors ask that the questions not be put on the web, and give them out one by one",
)
GPQA_SETTINGS = Settings(
    plays=8, sampling=Sampling(temperature=0.7), reply=32_768, context=32_768 + PROMPT_TOKENS
)
WRONG = tuple(f"Incorrect Answer {n}" for n in (1, 2, 3))


def letter(reply: str) -> str | None:
    """The option a reply chooses: in the last `<answer>` or box, else after the last "answer"."""
    chosen = final_answer(reply)
    if chosen is not None:
        found = _LETTER.match(chosen)
        return found[1] if found else None
    stated = _STATED.findall(parsers.spoken(reply))
    return stated[-1].upper() if stated else None


@contextlib.contextmanager
def open_gpqa(file: Path | None, source: Source = GPQA) -> Iterator[Listed]:
    r"""GPQA-Diamond (arXiv 2311.12022): 198 questions of four options.

    Settings: avg@8, temperature 0.7, options shuffled by one generator of seed 42 that goes through
    the questions in their order, as published for the method, which does not say how long a reply
    may be: 32,768 tokens here, as in AIME. The prompt is our own. The answer is the letter in
    the last `<answer>` or `\boxed{}`, else the one after the last "answer".

    Data: gpqa_diamond.csv as its authors give it out, of which `Question`, `Correct Answer`,
    `Incorrect Answer 1` to `3` and `Record ID` are read; JSON lines of these fields will do.
    """
    rng = random.Random(42)
    items = []
    for n, item in enumerate(data.read_all(source, file)):
        said = data.field(item, ("Question",), source.suite)
        right = data.field(item, ("Correct Answer",), source.suite)
        options = [right, *(data.field(item, (name,), source.suite) for name in WRONG)]
        order = list(range(4))
        rng.shuffle(order)
        shown = "\n".join(f"{LETTERS[i]}) {options[k]}" for i, k in enumerate(order))
        reference = LETTERS[order.index(0)]
        items.append(
            Item(
                id=str(item.get("Record ID") or n),
                group="GPQA-Diamond",
                course=_asking(
                    prompts.fill("gpqa", question=said, options=shown),
                    letter,
                    functools.partial(str.__eq__, reference),
                    reference=reference,
                ),
            )
        )
    yield Listed(name=source.suite, settings=GPQA_SETTINGS, all=tuple(items))
