"""Hints written for finished environments: one text each, for all instances."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spade_jax.design import prompts
from spade_jax.envs import parsers
from spade_jax.policy.conversation import Budget, Speaker, reply_once, stream
from spade_jax.types import Environment, Generation, StopReason

SOURCES = ("method", "self", "reply", "endpoint")
READERS = ("self", "endpoint")  # sources that write a hint once the program is finished

_LABEL = re.compile(r"[\s>#*_-]*hint[ *_]*:[ *_]*", re.IGNORECASE)


def write(
    speaker: Speaker,
    environments: Sequence[Environment],
    budget: Budget,
    *,
    seed: int,
    iteration: int,
    prompt_set: str,
) -> list[str | None]:
    """A hint for every environment, by a speaker who reads its program.

    None, which is unknown, where none came, it was cut off, or there is nothing in it.
    """
    said = [prompts.hint_messages(e.kind, e.code, prompt_set) for e in environments]
    streams = [stream(seed, f"hint/{e.id}", iteration) for e in environments]
    return [read(reply) for reply in reply_once(speaker, said, streams, budget)]


def read(reply: Generation | None) -> str | None:
    """The hint in a reply: what is said outside thinking, without a label `Hint:` before it."""
    if reply is None or reply.stop is not StopReason.STOP:
        return None
    text = parsers.spoken(reply.text)
    label = _LABEL.match(text)
    return text[label.end() if label else 0 :].strip() or None
