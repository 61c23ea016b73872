"""A speaker that says what a function answers to all that was said, and keeps what it was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from spade_jax.evals import runner
from spade_jax.evals.runner import Result
from spade_jax.evals.suites import MODEL, USER, Suite
from spade_jax.policy.conversation import Budget
from spade_jax.policy.endpoint import EndpointFailure, FailureKind
from spade_jax.types import Generation, Message, StopReason

Answer = Callable[[Sequence[Message]], str | None]
BROKEN = "broken: "  # begins what is no answer but a failure of the speaker


class Scripted:
    """Answers dialogues; None leaves no room."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.told: list[tuple[int, list[Message], tuple[int, ...]]] = []  # by request
        self.tools: list[Sequence[Mapping[str, Any]]] = []  # by dialogue
        self.retired: list[int] = []
        self.budgets: set[Budget] = set()

    def reply(self, said: Sequence[Message], stream: tuple[int, ...]) -> str | None:
        return self.answer(said)

    def converse(self) -> Talks:
        return Talks(self)


class Talks:
    def __init__(self, speaker: Scripted) -> None:
        self.speaker = speaker
        self.said: list[list[Message]] = []
        self.replies: dict[int, Generation | None] = {}
        self.failures: dict[int, EndpointFailure] = {}

    def open(self, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        self.said.append([])
        self.speaker.tools.append(tools)
        return len(self.said) - 1

    def ask(
        self, dialogue: int, messages: Sequence[Message], stream: tuple[int, ...], budget: Budget
    ) -> None:
        said = self.said[dialogue]
        said += messages
        self.speaker.told.append((dialogue, list(said), stream))
        self.speaker.budgets.add(budget)
        text = self.speaker.reply(said, stream)
        if text is not None and text.startswith(BROKEN):
            self.failures[dialogue] = EndpointFailure(FailureKind.SERVER, text)
            text = None
        self.replies[dialogue] = None
        if text is not None:
            said.append(Message(role="assistant", content=text))
            self.replies[dialogue] = Generation(
                ids=(1, 2, 3), logp=(-1.0,) * 3, text=text, stop=StopReason.STOP
            )

    def answers(self) -> dict[int, Generation | None]:
        replies, self.replies = self.replies, {}
        return replies

    def failure(self, dialogue: int) -> EndpointFailure | None:
        return self.failures.get(dialogue)

    def records(self, dialogue: int) -> tuple[()]:
        return ()

    def retire(self, dialogues: Sequence[int]) -> None:
        self.speaker.retired += dialogues


def play(
    suite: Suite,
    speaker: Scripted | Answer,
    *,
    user: Scripted | None = None,
    plays: int = 1,
    seats: int = 3,
    patient: bool = True,
    seed: int = 7,
) -> list[Result]:
    """Results of a suite in the order of its items."""
    speaker = speaker if isinstance(speaker, Scripted) else Scripted(speaker)
    found: list[Result] = []
    chosen = [(item, number) for item in suite.items() for number in range(plays)]
    runner.run(
        suite,
        chosen,
        {MODEL: speaker, USER: user or speaker},
        seed=seed,
        seats=seats,
        patient=patient,
        note=found.append,
    )
    order = {(item.id, number): n for n, (item, number) in enumerate(chosen)}
    return sorted(found, key=lambda result: order[result.item, result.play])


def play_opened(
    opened: AbstractContextManager[Suite], speaker: Scripted | Answer, **how: Any
) -> list[Result]:
    """The same of a suite that is to be opened."""
    with opened as suite:
        return play(suite, speaker, **how)
