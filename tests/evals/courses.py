"""Drives one course of a suite with given replies."""

from collections.abc import Sequence

from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals.suites import Act, Course, Outcome, Say, Work
from spade_jax.types import Generation, StopReason


def generation(text: str) -> Generation:
    return Generation(ids=(), logp=(), text=text, stop=StopReason.STOP)


def finish(
    course: Course, replies: Sequence[str | None], sandbox: Sandbox | None = None
) -> tuple[Outcome, list[Say]]:
    """How the course ends when it is given these replies, and what it had said."""
    waiting, said = iter(replies), []
    answer = None
    while True:
        try:
            wish = course.send(answer)
        except StopIteration as end:
            return end.value, said
        match wish:
            case Say():
                said.append(wish)
                text = next(waiting)
                answer = None if text is None else generation(text)
            case Work(do=do):
                answer = do()
            case Act(instance=instance, call=call):
                [answer] = sandbox.exchange([(instance, call)])
