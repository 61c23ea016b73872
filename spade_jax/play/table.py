"""A table: courses in progress with a speaker, each resumed as soon as it is answered.

A course is a coroutine that yields what it waits for, a reply (`Ask`) or something that hands do
(any other wish), and is resumed with the answer. Whoever has been answered goes on, and a new
course begins where one has ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from spade_jax.policy.conversation import Budget, Dialogues, Speaker
from spade_jax.types import Failure, FailureKind, Generation, Message, TokenRecord

SPEAKER = ""  # the name of the speaker where there is one only


@dataclasses.dataclass(frozen=True)
class Ask:
    """A wish for a speaker's reply to new messages, in a random stream of its own.

    Where `tools` are given, those offered change: the dialogue is said anew with them.
    """

    messages: tuple[Message, ...]
    stream: tuple[int, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None
    to: str = SPEAKER


Course = Generator[Any, Any, Any]


class Hands(Protocol):
    """Whoever does what courses want beside replies."""

    def submit(self, number: int, wish: Any, note: Callable[[Any], None]) -> None:
        """Begin what the course of that number wants; `note` is given its result."""
        ...

    def poll(self, seconds: float | None) -> None:
        """Take in results for so long, at most until one is there; None: as long as it takes."""
        ...

    def clear(self, numbers: Sequence[int]) -> None:
        """Say that these courses are over."""
        ...


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a course returned, and the tokens of its dialogue with the first speaker."""

    value: Any
    records: tuple[TokenRecord, ...]


def drive(
    speakers: Mapping[str, Speaker],
    hands: Hands,
    courses: Iterable[tuple[int, Course]],
    budget: Budget,
    *,
    seats: int,
    patient: bool,
    ended: Callable[[dict[int, Ended]], None],
) -> None:
    """Drive numbered courses to their ends, at most `seats` at a time; `ended` is told of those.

    `patient`: all that hands were given is done before a speaker goes on, so that order and shapes,
    and with them every bit, follow from the courses. Otherwise speakers go on meanwhile.
    """
    table = _Table(speakers, hands, budget, patient)
    waiting, more = iter(courses), True
    while more or table.seats:
        while more and len(table.seats) < seats:
            number, course = next(waiting, (0, None))
            if course is None:
                more = False
            else:
                table.seat(number, course)
        table.serve()
        table.listen()
        if table.ended:
            ended(table.clear())


@dataclasses.dataclass
class _Talk:
    """A seat's dialogue with one speaker, and all that was said in it."""

    dialogue: int
    said: list[Message] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Seat:
    """A course in progress with its dialogues by speaker."""

    course: Course
    talks: dict[str, _Talk] = dataclasses.field(default_factory=dict)


class _Table:
    """The courses in progress. One speaker may go by several names."""

    def __init__(
        self, speakers: Mapping[str, Speaker], hands: Hands, budget: Budget, patient: bool
    ) -> None:
        self._hands, self._budget, self._patient = hands, budget, patient
        self._first = next(iter(speakers))
        once: dict[int, Dialogues] = {}
        for speaker in speakers.values():
            if id(speaker) not in once:
                once[id(speaker)] = speaker.converse()
        self._dialogues = {name: once[id(speaker)] for name, speaker in speakers.items()}
        self._once = list(once.values())
        self.seats: dict[int, _Seat] = {}
        self.ended: dict[int, Ended] = {}
        # By dialogues, those that wait for a reply: dialogue -> seat and speaker.
        self._speaking: list[dict[int, tuple[int, str]]] = [{} for _ in self._once]
        self._calling: set[int] = set()  # seats that hands do something for ...
        self._called: dict[int, Any] = {}  # ... and have done it

    def seat(self, number: int, course: Course) -> None:
        """Begin a course."""
        self.seats[number] = _Seat(course)
        self._talk(number, self._first)
        self._resume(number, None)

    def serve(self) -> None:
        """Take in what hands have done; wait for all of it, or where no one speaks."""
        while self._calling:
            wait = self._patient or not (any(self._speaking) or self._called)
            self._hands.poll(None if wait else 0)
            if self._patient and len(self._called) < len(self._calling):
                continue
            answered = dict(self._called)
            self._called.clear()
            self._calling -= answered.keys()
            for number in sorted(answered):
                self._resume(number, answered[number])
            if not self._patient and (answered or any(self._speaking)):
                break

    def listen(self) -> None:
        """Let the speakers go on, and take in the replies that are complete."""
        for dialogues, speaking in zip(self._once, self._speaking, strict=True):
            if not speaking:
                continue
            for dialogue, reply in sorted(dialogues.answers().items()):
                number, name = speaking.pop(dialogue)
                if reply is None:
                    self._resume(number, _failure(dialogues, dialogue))
                else:
                    said = Message(role="assistant", content=reply.text)
                    self.seats[number].talks[name].said.append(said)
                    self._resume(number, reply)

    def clear(self) -> dict[int, Ended]:
        """Make room where courses have ended; what came of them."""
        over = [self.seats.pop(number) for number in self.ended]
        self._hands.clear(list(self.ended))
        for name, dialogues in self._dialogues.items():
            dialogues.retire([s.talks[name].dialogue for s in over if name in s.talks])
        ended, self.ended = self.ended, {}
        return ended

    def _resume(self, number: int, answer: Generation | Any) -> None:
        """Give a course what it waited for, and see to what it wants next."""
        seat = self.seats[number]
        try:
            wish = seat.course.send(answer)
        except StopIteration as end:
            dialogue = seat.talks[self._first].dialogue
            records = self._dialogues[self._first].records(dialogue)
            self.ended[number] = Ended(end.value, records)
            return
        if isinstance(wish, Ask):
            self._ask(number, wish)
        else:
            self._calling.add(number)
            self._hands.submit(number, wish, lambda done: self._called.__setitem__(number, done))

    def _ask(self, number: int, wish: Ask) -> None:
        dialogues = self._dialogues[wish.to]
        talk = self._talk(number, wish.to)
        messages: Sequence[Message] = wish.messages
        if wish.tools is not None:
            dialogues.retire([talk.dialogue])
            talk.dialogue = dialogues.open(wish.tools)
            messages = [*talk.said, *messages]
        talk.said += wish.messages
        self._speaking[self._once.index(dialogues)][talk.dialogue] = (number, wish.to)
        dialogues.ask(talk.dialogue, messages, wish.stream, self._budget)

    def _talk(self, number: int, name: str) -> _Talk:
        """A seat's dialogue with a speaker, begun where there is none."""
        talks = self.seats[number].talks
        if name not in talks:
            talks[name] = _Talk(self._dialogues[name].open())
        return talks[name]


def _failure(dialogues: Dialogues, dialogue: int) -> Failure | None:
    """What the speaker failed with where it did not reply; None where no room was left."""
    failure = dialogues.failure(dialogue)
    if failure is None:
        return None
    return Failure(phase="reply", kind=FailureKind.SPEAKER, message=failure.message)
