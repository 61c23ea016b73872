"""Conversations with the policy: messages in, replies out, token records kept.

`Policy` is the weights with what is needed to talk to them. `Conversations` is a batch of dialogues
in progress. Anything with the same two methods can stand in its place (`Speaker`), such as the
scripted players of the warm start.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import jax.numpy as jnp

from spade_jax.policy.model import ModelConfig, Params
from spade_jax.policy.sampler import Session
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import Generation, Message, StopReason, TokenRecord

STREAM_LIMIT = 2**32


@dataclasses.dataclass(frozen=True)
class Budget:
    """Most tokens of one reply and of a whole conversation, and the sampling temperature."""

    reply: int
    context: int
    temperature: float


class Dialogues(Protocol):
    """A batch of dialogues in progress, numbered from 0."""

    def reply(
        self,
        messages: Mapping[int, Sequence[Message]],
        streams: Mapping[int, tuple[int, ...]],
        budget: Budget,
    ) -> dict[int, Generation | None]:
        """Read new messages in some dialogues and answer each; None where no room is left."""
        ...

    def record(self, dialogue: int) -> TokenRecord:
        """The tokens of a dialogue so far."""
        ...

    def retire(self, dialogues: Sequence[int]) -> None:
        """Say that these will not be read again."""
        ...


class Speaker(Protocol):
    """Whoever plays a role: the policy, or a script."""

    def converse(self, dialogues: int) -> Dialogues:
        """Start that many dialogues."""
        ...


def stream(seed: int, name: str, *numbers: int) -> tuple[int, ...]:
    """Integers that name a random stream: the same for the same arguments on every machine."""
    return (seed % STREAM_LIMIT, zlib.crc32(name.encode()), *(n % STREAM_LIMIT for n in numbers))


class Policy:
    """One set of weights and its tokenizer. `version` is the learner's step they come from.

    `tokens_read` and `tokens_sampled` count over all conversations with it.
    """

    def __init__(
        self,
        params: Params,
        config: ModelConfig,
        tokenizer: ChatTokenizer,
        *,
        compute_dtype: str,
        version: int = 0,
    ) -> None:
        self.params, self.config, self.tokenizer = params, config, tokenizer
        self.dtype = jnp.dtype(compute_dtype)
        self.version = version
        self.tokens_read = 0
        self.tokens_sampled = 0

    def converse(self, dialogues: int) -> Conversations:
        return Conversations(self, dialogues)


class Conversations:
    """Dialogues with a `Policy`; each keeps its key/value cache between replies."""

    def __init__(self, policy: Policy, dialogues: int) -> None:
        self._policy = policy
        self._session = Session(
            policy.params,
            policy.config,
            dialogues,
            stop_ids=policy.tokenizer.stop_ids,
            dtype=policy.dtype,
        )
        self._records = [TokenRecord()] * dialogues
        self._stops: dict[int, StopReason] = {}

    def reply(
        self,
        messages: Mapping[int, Sequence[Message]],
        streams: Mapping[int, tuple[int, ...]],
        budget: Budget,
    ) -> dict[int, Generation | None]:
        tokenizer = self._policy.tokenizer
        new: dict[int, tuple[int, ...]] = {}
        budgets: dict[int, int] = {}
        context = min(budget.context, self._policy.config.max_positions)
        for i, said in messages.items():
            stop = self._stops.get(i)
            ids = tokenizer.continuation(stop, said) if stop else tokenizer.prompt(said)
            room = context - len(self._records[i].ids) - len(ids)
            if room > 0:
                new[i] = ids
                budgets[i] = min(budget.reply, room)
        replies: dict[int, Generation | None] = dict.fromkeys(messages)
        if not new:
            return replies
        sampled = self._session.turn(
            new, streams, budgets=budgets, steps=budget.reply, temperature=budget.temperature
        )
        for i, s in sampled.items():
            self._records[i] = self._records[i].read(new[i]).wrote(s.ids, s.logp)
            self._stops[i] = s.stop
            replies[i] = tokenizer.generation(s.ids, s.logp, s.stop)
            self._policy.tokens_read += len(new[i])
            self._policy.tokens_sampled += len(s.ids)
        return replies

    def record(self, dialogue: int) -> TokenRecord:
        return self._records[dialogue]

    def retire(self, dialogues: Sequence[int]) -> None:
        self._session.retire(dialogues)
