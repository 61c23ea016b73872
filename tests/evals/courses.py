"""Drives one course of a suite without a model: given replies, and what the course said."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals.suites import MODEL, USER, Act, Course, Outcome, Say, Work
from spade_jax.types import Generation, StopReason

Replies = Iterable[str | None] | Callable[[str], str | None]


@dataclasses.dataclass
class Log:
    """What was said to each partner, in order."""

    says: list[Say] = dataclasses.field(default_factory=list)

    def texts(self, to: str = MODEL) -> list[str]:
        return [m.content for say in self.says if say.to == to for m in say.messages]


def generation(text: str) -> Generation:
    return Generation(ids=(), logp=(), text=text, stop=StopReason.STOP)


def drive(
    course: Course, replies: Replies, user: Iterable[str] = (), sandbox: Sandbox | None = None
) -> tuple[Outcome, Log]:
    """Play a course to its end with these replies, or with those that a function gives to what was
    said last; a reply of None says that the context is full."""
    given, acted, log, sent, error = replies, iter(user), Log(), None, None
    if not callable(given):
        waiting = iter(given)
        given = lambda said: next(waiting)  # noqa: E731
    try:
        while True:
            wish = course.throw(error) if error else course.send(sent)
            error = None
            match wish:
                case Say(messages=messages, to=to):
                    log.says.append(wish)
                    text = next(acted) if to == USER else given(messages[-1].content)
                    sent = None if text is None else generation(text)
                case Work(do=do):
                    try:
                        sent = do()
                    except Exception as raised:
                        error = raised
                case Act(instance=instance, call=call):
                    [sent] = sandbox.exchange([(instance, call)])
    except StopIteration as end:
        return end.value, log
