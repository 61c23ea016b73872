"""Conversations with the policy: messages in, replies out, token records kept.

`Policy` is the weights with what is needed to talk to them. `Conversations` are dialogues in
progress, each at its own pace. Anything with the same methods can stand in their place (`Speaker`,
`Dialogues`), such as the scripted players of the warm start.
"""

from __future__ import annotations

import collections
import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from spade_jax.policy.sampling import Sampling
from spade_jax.types import Generation, Message, StopReason, TokenRecord

if TYPE_CHECKING:  # who talks by a protocol alone, as configs and reports do, needs no JAX
    from spade_jax.policy.sampler import Ids, Sampler
    from spade_jax.policy.tokenizer import ChatTokenizer

STREAM_LIMIT = 2**32


@dataclasses.dataclass(frozen=True)
class Budget:
    """Most tokens of one reply and of a whole conversation, and how replies are sampled."""

    reply: int
    context: int
    sampling: Sampling = dataclasses.field(default_factory=Sampling)


class Unanswered(Protocol):
    """Why no reply came, in words."""

    message: str


class Dialogues(Protocol):
    """Dialogues in progress, each known by a number."""

    def open(self, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Begin a dialogue in which these tools are offered, given as JSON schemas."""
        ...

    def ask(
        self, dialogue: int, messages: Sequence[Message], stream: tuple[int, ...], budget: Budget
    ) -> None:
        """Say something and want a reply; `stream` names its randomness.

        At first earlier replies may be among the messages.
        """
        ...

    def answers(self) -> dict[int, Generation | None]:
        """Go on for a moment; replies that are complete now, None where none came."""
        ...

    def failure(self, dialogue: int) -> Unanswered | None:
        """Why a dialogue's last answer was None; None if no room was left for it."""
        ...

    def records(self, dialogue: int) -> tuple[TokenRecord, ...]:
        """The tokens of a dialogue so far, in as many rows as they are trained in."""
        ...

    def retire(self, dialogues: Sequence[int]) -> None:
        """Say that these are over."""
        ...


class Speaker(Protocol):
    """Whoever plays a role: the policy, or a script."""

    def converse(self) -> Dialogues:
        """Dialogues with it, none of them begun."""
        ...


def stream(seed: int, name: str, *numbers: int) -> tuple[int, ...]:
    """Integers that name a random stream: the same for the same arguments on every machine."""
    return (seed % STREAM_LIMIT, zlib.crc32(name.encode()), *(n % STREAM_LIMIT for n in numbers))


def reply_each(
    dialogues: Dialogues,
    said: Mapping[int, Sequence[Message]],
    streams: Mapping[int, tuple[int, ...]],
    budget: Budget,
) -> dict[int, Generation | None]:
    """Say something in several dialogues and wait for all replies, in the order of `said`."""
    for i, messages in said.items():
        dialogues.ask(i, messages, streams[i], budget)
    replies: dict[int, Generation | None] = {}
    while len(replies) < len(said):
        replies |= dialogues.answers()
    return {i: replies[i] for i in said}


def reply_once(
    speaker: Speaker,
    said: Sequence[Sequence[Message]],
    streams: Sequence[tuple[int, ...]],
    budget: Budget,
) -> list[Generation | None]:
    """The reply to each of several new dialogues, which are over with it; None where none came."""
    dialogues = speaker.converse()
    opened = [dialogues.open() for _ in said]
    replies = reply_each(
        dialogues,
        dict(zip(opened, said, strict=True)),
        dict(zip(opened, streams, strict=True)),
        budget,
    )
    dialogues.retire(opened)
    return list(replies.values())


@dataclasses.dataclass
class Tally:
    """Tokens of conversations: what was read to the policy, and what it said."""

    read: int = 0
    sampled: int = 0


class Policy:
    """One set of weights and its tokenizer. `version` is the learner's step they come from.

    `tally` counts the tokens of all conversations with it.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: ChatTokenizer,
        *,
        version: int = 0,
        tally: Tally | None = None,
    ) -> None:
        self.sampler, self.tokenizer, self.version = sampler, tokenizer, version
        self.tally = tally or Tally()

    @property
    def tokens_read(self) -> int:
        return self.tally.read

    @property
    def tokens_sampled(self) -> int:
        return self.tally.sampled

    def speaking(self, tokenizer: ChatTokenizer) -> Policy:
        """The same weights in the chat form of another tokenizer; not for the same moment."""
        return Policy(self.sampler, tokenizer, version=self.version, tally=self.tally)

    def converse(self) -> Conversations:
        return Conversations(self)


class Conversations:
    """Dialogues with a `Policy`; each keeps its key/value cache between replies.

    Where the chat template drops earlier thinking, every turn has a prompt and a record of its own,
    and the cache of what it shares with the turn before is kept. Where the sampler has no slot for
    a dialogue, it takes that of one that is not waiting for a reply, which is read anew when it
    goes on; where there is none, it waits.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._sampler = policy, policy.sampler
        self._strips = policy.tokenizer.think == "strip"
        self._records: list[list[TokenRecord]] = []
        self._tools: dict[int, Sequence[Mapping[str, Any]]] = {}
        self._history: dict[int, list[Message]] = collections.defaultdict(list)
        self._stops: dict[int, StopReason] = {}
        self._slots: dict[int, int] = {}  # dialogue -> slot
        self._speaking: dict[int, _Question] = {}  # slot -> what is being answered there
        self._waiting: collections.deque[_Question] = collections.deque()
        self._refused: list[int] = []

    def open(self, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        self._records.append([])
        if tools:
            self._tools[len(self._records) - 1] = tools
        return len(self._records) - 1

    def ask(
        self, dialogue: int, messages: Sequence[Message], stream: tuple[int, ...], budget: Budget
    ) -> None:
        tokenizer, record = self._policy.tokenizer, TokenRecord()
        tools = self._tools.get(dialogue, ())
        if self._strips:
            self._history[dialogue] += messages
            ids = tokenizer.prompt(self._history[dialogue], tools)
        elif self._records[dialogue]:
            [record] = self._records[dialogue]
            ids = tokenizer.continuation(self._stops[dialogue], messages)
        else:
            ids = tokenizer.prompt(messages, tools)
        room = min(budget.context, self._sampler.context) - len(record.ids) - len(ids)
        if room <= 0:
            self._refused.append(dialogue)
            return
        budget_left = min(budget.reply, room)
        question = _Question(dialogue, record, ids, stream, budget_left, budget.sampling)
        self._waiting.append(question)

    def answers(self) -> dict[int, Generation | None]:
        while self._waiting and self._find_slot(self._waiting[0].dialogue):
            self._submit(self._waiting.popleft())
        replies: dict[int, Generation | None] = dict.fromkeys(self._refused)
        self._refused.clear()
        for slot, sampled in self._sampler.advance().items():
            question = self._speaking.pop(slot)
            replies[question.dialogue] = self._note(question, sampled)
        return replies

    def _note(self, question: _Question, sampled: Ids) -> Generation:
        """Enter a reply into the record of its dialogue."""
        dialogue = question.dialogue
        record = question.record.read(question.ids)
        record = record.wrote(sampled.ids, sampled.logp, sampled.behaviour)
        reply = self._policy.tokenizer.generation(sampled.ids, sampled.logp, sampled.stop)
        self._stops[dialogue] = sampled.stop
        if self._strips:
            self._records[dialogue].append(record)
            self._history[dialogue].append(Message(role="assistant", content=reply.text))
        else:
            self._records[dialogue] = [record]
        self._policy.tally.read += len(question.ids)
        self._policy.tally.sampled += len(sampled.ids)
        return reply

    def failure(self, dialogue: int) -> None:
        """It never fails: without an answer there was no room."""

    def records(self, dialogue: int) -> tuple[TokenRecord, ...]:
        return tuple(self._records[dialogue])

    def retire(self, dialogues: Sequence[int]) -> None:
        left = set(dialogues)
        self._waiting = collections.deque(q for q in self._waiting if q.dialogue not in left)
        for dialogue in dialogues:
            if dialogue in self._slots:
                slot = self._slots.pop(dialogue)
                self._speaking.pop(slot, None)
                self._sampler.close(slot)

    def _find_slot(self, dialogue: int) -> bool:
        """Give a dialogue a slot if it has none; whether it has one now."""
        if dialogue in self._slots:
            return True
        if not self._sampler.free:
            wanted = {question.dialogue for question in self._waiting}
            idle = [d for d, slot in self._slots.items() if slot not in self._speaking]
            if not idle:
                return False
            chosen = next((d for d in idle if d not in wanted), idle[-1])
            self._sampler.close(self._slots.pop(chosen))
        self._slots[dialogue] = self._sampler.open()
        return True

    def _submit(self, question: _Question) -> None:
        slot = self._slots[question.dialogue]
        self._speaking[slot] = question
        ids = [*question.record.ids, *question.ids]
        known = self._sampler.rewind(slot, ids)
        self._sampler.submit(
            slot,
            ids[known:],
            stream=question.stream,
            budget=question.budget,
            sampling=question.sampling,
        )


@dataclasses.dataclass(frozen=True)
class _Question:
    """What a dialogue wants to be answered: new ids after its record so far."""

    dialogue: int
    record: TokenRecord
    ids: tuple[int, ...]
    stream: tuple[int, ...]
    budget: int
    sampling: Sampling
