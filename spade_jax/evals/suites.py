"""What a benchmark suite is: items, each a course of messages that ends with a score.

A course is a coroutine, as an episode of self-play is: it yields what it wants said or done, is
resumed with the reply or the result, and returns how it went. Suites know no model; whoever drives
the courses does (`evals.runner`). `evals.catalog` names the suites and opens them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

from spade_jax.envs import parsers
from spade_jax.envs.sandbox import Call, Instance, Sandbox
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Generation, Message

Tools = tuple[Mapping[str, Any], ...]  # {"type": "function", "function": {...}} each
MODEL, USER = "model", "user"  # to whom a message is said


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a suite is run as published: plays an item, sampling, tokens of a reply and in all."""

    plays: int = 1
    sampling: Sampling
    reply: int
    context: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Say:
    """A wish for the reply to new messages; `tools` where those that are offered change.

    Each play has one dialogue with the model, and one with whoever acts the `USER`, if it speaks
    to it. Calls of tools are in the reply's text (`parsers.tool_calls`), whoever replies; results
    are messages of the role `tool`, one for each call in their order. `stream` names the reply's
    randomness where that is not to follow from suite, item, play and the number of the message.
    """

    messages: tuple[Message, ...]
    tools: Tools | None = None
    to: str = MODEL
    stream: tuple[int, ...] | None = None


def ask_user(*messages: Message) -> Generator[Say, Generation | None, str]:
    """What whoever acts the user says to that; a part of a course."""
    reply = yield Say(messages=messages, to=USER)
    if reply is None:
        raise RuntimeError("the context of the user's model is full")
    return parsers.spoken(reply.text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Something to be done while other courses go on, in a thread; its result is sent back.

    What it raises is raised where the course waits.
    """

    do: Callable[[], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Act:
    """A call of a sandboxed environment, of a sandbox the suite has; the answer is sent back.

    The course closes its instances when it ends (`finally`).
    """

    instance: Instance
    call: Call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an item went: its score from 0 to 1, whether that is a win, and the answer that was read.

    `failed` says why there is no score where something other than the model broke; such an item
    stays in the denominator with a score of 0. A course whose speaker fails, whose first message
    leaves no room for a reply, or which raises is ended as failed by whoever drives it. `details`
    is plain data for `results.json`.
    """

    score: float
    won: bool
    answer: str | None = None
    failed: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Sent: the Generation, None where the context is full; the result; the Answer or Failure.
Course = Generator[Say | Work | Act, Any, Outcome]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One item. `course(play)` begins its play of that number, from 0.

    `group` is the column of the table it is counted in, alone or, as "COLUMN: PART", with other
    parts of equal weight; no two suites share one. `id` is unique in the suite.
    """

    id: str
    group: str
    course: Callable[[int], Course]


class Suite(Protocol):
    """A benchmark. Its docstring names the source of its settings.

    `sandbox` is what the instances of its `Act`s are of, None without any. A suite with something
    to end (processes, a sandbox of its own) is opened by a context manager.
    """

    name: str
    settings: Settings
    sandbox: Sandbox | None

    def items(self) -> Sequence[Item]:
        """All items in their order; a UsageError names the package or file that is missing."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed:
    """A suite of items that are there before any is played; `tools` where it offers some."""

    name: str
    settings: Settings
    all: tuple[Item, ...]
    tools: bool = False
    sandbox: Sandbox | None = None

    def items(self) -> Sequence[Item]:
        return self.all
