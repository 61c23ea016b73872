"""What a benchmark suite is: items, each a course of messages that ends with a score.

A course is a coroutine, as an episode of self-play is: it yields what it wants said, or work to be
done aside, is resumed with the reply or the result, and returns how it went. Suites know no model;
whoever drives the courses does (`evals.runner`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message

Tools = tuple[Mapping[str, Any], ...]  # JSON schemas of functions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a suite is run as published: plays an item, sampling, tokens of a reply and in all."""

    plays: int = 1
    sampling: Sampling
    reply: int
    context: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Say:
    """A wish for the reply to new messages; `tools` where those that are offered change."""

    messages: tuple[Message, ...]
    tools: Tools | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Something to be done while other courses go on, in a thread; its result is sent back."""

    do: Callable[[], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an item went: its score from 0 to 1, whether that is a win, and the answer that was read.

    `failed` says why there is no score where something other than the model broke; such an item
    stays in the denominator with a score of 0. `details` is plain data for `results.json`.
    """

    score: float
    won: bool
    answer: str | None = None
    failed: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Course = Generator[Say | Work, Any, Outcome]  # sent: a Generation, None without room; or a result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One item. `course(play)` begins its play of that number, from 0; `group` is its column."""

    id: str
    group: str
    course: Callable[[int], Course]


class Suite(Protocol):
    """A benchmark. Its docstring names the source of its settings."""

    name: str
    settings: Settings

    def items(self) -> Sequence[Item]:
        """All items in their order; a UsageError names the package or file that is missing."""
        ...
