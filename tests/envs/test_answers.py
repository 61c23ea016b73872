"""Answers are checked apart: equal ones are right, hostile ones are wrong and cost nothing."""

import asyncio
from collections.abc import Iterator

import pytest

from spade_jax.envs import answers
from spade_jax.envs.answers import AnswerChecker
from spade_jax.types import FailureKind, UsageError

RIGHT = [
    ("1/2", r"\frac{2}{4}"),
    ("0.5", "1/2"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("42", "42.0"),
    (r"x^2+2x+1", r"(x+1)^2"),
    (r"\{1,2\}", r"\{2,1\}"),
]
WRONG = [("1/2", "1/3"), ("42", "the answer"), ("42", ""), ("3", "__import__('os').abort()")]
HANGS = ("7", "10000000!")


@pytest.fixture(scope="module")
def checker() -> Iterator[AnswerChecker]:
    pytest.importorskip("math_verify")
    with AnswerChecker(seconds=3.0, workers=2) as checker:
        yield checker


def test_equal_answers_are_right(checker: AnswerChecker) -> None:
    scores = checker.check(RIGHT + WRONG)
    assert [score.right for score in scores] == [True] * len(RIGHT) + [False] * len(WRONG)
    assert all(score.failure is None for score in scores)


def test_an_answer_that_hangs_is_wrong_and_the_next_is_checked(checker: AnswerChecker) -> None:
    hung, right = checker.check([HANGS, RIGHT[0]])
    assert not hung.right
    assert hung.failure.kind in (FailureKind.TIMEOUT, FailureKind.MEMORY)
    assert right.right


def test_scores_are_the_same_one_at_a_time_and_eight_at_once(checker: AnswerChecker) -> None:
    pairs = 4 * (RIGHT + WRONG)

    async def at_once() -> list[bool]:
        room = asyncio.Semaphore(8)

        async def one(pair: tuple[str, str]) -> bool:
            async with room:
                return (await checker.score(*pair)).right

        return await asyncio.gather(*map(one, pairs))

    alone = [checker.check([pair])[0].right for pair in pairs]
    assert asyncio.run(at_once()) == alone


def test_without_math_verify_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs math-verify.*pip install"):
        AnswerChecker()
