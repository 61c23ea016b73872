"""Runs suites: drives their courses with a speaker and says what came of each play."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals.suites import MODEL, Act, Item, Outcome, Say, Suite, Work
from spade_jax.play import table
from spade_jax.play.table import Ask, Course, Ended
from spade_jax.policy.conversation import Budget, Speaker, stream
from spade_jax.types import Failure, Generation, UsageError, dataclass

NO_ROOM = "the first message leaves no room for a reply"
LOST = 8  # replies in a row that the speaker fails to give before it is given up; at least `seats`
TURN_SECONDS = 0.02  # that a sandbox is waited for where threads work as well


@dataclass
class Result:
    """What came of one play of an item.

    `prompt` is a hash of the first message to the model with its tools; `tokens` counts what the
    model wrote in all of its `replies`; `stop` is why the last of them ended. A play with `failed`
    counts as a score of 0 and says why there is none.
    """

    suite: str
    item: str
    group: str
    play: int
    prompt: str = ""
    replies: tuple[str, ...] = ()
    answer: str | None = None
    score: float = 0.0
    won: bool = False
    tokens: int = 0
    stop: str = ""
    failed: str = ""
    speaker_failed: bool = False
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


def run(
    suite: Suite,
    plays: Iterable[tuple[Item, int]],
    speakers: Mapping[str, Speaker],
    *,
    seed: int,
    seats: int,
    patient: bool,
    note: Callable[[Result], None],
) -> None:
    """Play items of a suite, each given with the number of its play; `note` is told as they end.

    `speakers` are by the names a `Say` may be addressed to, the model first. Raises ConnectionError
    where one of them fails again and again.
    """
    lost = 0

    def ended(some: dict[int, Ended]) -> None:
        nonlocal lost
        for _, end in sorted(some.items()):
            result: Result = end.value
            note(result)
            lost = lost + 1 if result.speaker_failed else 0
            if lost >= max(LOST, seats):
                raise ConnectionError(
                    f"{lost} plays in a row failed ({result.failed}); what is done is kept: "
                    "give the same command again to go on"
                )

    settings = suite.settings
    with _Hands(suite.sandbox, seats) as hands:
        table.drive(
            speakers,
            hands,
            enumerate(_play(suite.name, item, number, seed) for item, number in plays),
            Budget(settings.reply, settings.context, settings.sampling),
            seats=seats,
            patient=patient,
            ended=ended,
        )


def _play(suite: str, item: Item, number: int, seed: int) -> Course:
    """One play at the table: the suite's own course, and a Result made of it."""
    replies: list[Generation] = []
    result = Result(suite=suite, item=item.id, group=item.group, play=number)
    course, said, answer = item.course(number), 0, _Done()
    while True:
        try:
            wish = course.throw(answer.error) if answer.error else course.send(answer.value)
        except StopIteration as end:
            return _result(result, end.value, replies)
        except UsageError:
            raise
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
            return _result(result, Outcome(score=0.0, won=False, failed=failed), replies)
        if not isinstance(wish, Say):
            answer = yield wish
            continue
        if wish.to == MODEL and not result.prompt:
            result = dataclasses.replace(result, prompt=prompt_hash(wish))
        named = wish.stream or stream(seed, f"{suite}/{item.id}", number, said)
        reply = yield Ask(wish.messages, named, wish.tools, wish.to)
        said += 1
        if isinstance(reply, Failure) or (reply is None and not replies):
            course.close()
            failed = NO_ROOM if reply is None else f"no reply came: {reply.message}"
            result = dataclasses.replace(result, speaker_failed=reply is not None)
            return _result(result, Outcome(score=0.0, won=False, failed=failed), replies)
        if reply is not None and wish.to == MODEL:
            replies.append(reply)
        answer = _Done(reply)


def _result(result: Result, outcome: Outcome, replies: Sequence[Generation]) -> Result:
    return dataclasses.replace(
        result,
        replies=tuple(reply.text for reply in replies),
        answer=outcome.answer,
        score=outcome.score,
        won=outcome.won,
        tokens=sum(len(r.ids) if r.tokens is None else r.tokens for r in replies),
        stop=str(replies[-1].stop) if replies else "",
        failed=outcome.failed,
        details=dict(outcome.details),
    )


def prompt_hash(wish: Say) -> str:
    """A hash of messages and tools: the same where models were told the same."""
    told = [[[m.role, m.content] for m in wish.messages], list(wish.tools or ())]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class _Done:
    """What came of a wish: a value, or what was raised."""

    value: Any = None
    error: BaseException | None = None


class _Hands:
    """Does what courses want beside replies: work in threads, calls of environments."""

    def __init__(self, sandbox: Sandbox | None, seats: int) -> None:
        self._sandbox, self._acting, self._working = sandbox, 0, 0
        workers = min(seats, 4 * len(os.sched_getaffinity(0)))
        self._pool = concurrent.futures.ThreadPoolExecutor(workers, "suite")
        self._done: queue.SimpleQueue[tuple[Callable[[_Done], None], _Done]] = queue.SimpleQueue()

    def __enter__(self) -> _Hands:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, number: int, wish: Work | Act, note: Callable[[_Done], None]) -> None:
        if isinstance(wish, Work):
            self._working += 1
            self._pool.submit(self._work, wish, note)
            return

        def answered(answer: Any) -> None:
            self._acting -= 1
            note(_Done(answer))

        self._acting += 1
        self._sandbox.submit(wish.instance, wish.call, answered)

    def _work(self, wish: Work, note: Callable[[_Done], None]) -> None:
        try:
            done = _Done(wish.do())
        except Exception as error:
            done = _Done(error=error)
        self._done.put((note, done))

    def poll(self, seconds: float | None) -> None:
        if self._acting:
            short = TURN_SECONDS if seconds is None else min(seconds, TURN_SECONDS)
            self._sandbox.poll(short if self._working else seconds)
            seconds = 0
        while self._working:
            try:
                note, done = self._done.get(seconds != 0, seconds)
            except queue.Empty:
                return
            self._working -= 1
            note(done)
            seconds = 0

    def clear(self, numbers: Sequence[int]) -> None:
        """Nothing is left of a course that is over."""
