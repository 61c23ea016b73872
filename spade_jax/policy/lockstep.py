"""One sampler on the devices of several hosts, each of which makes the same calls.

What a sampler computes follows from the calls of its methods in their order. The leader talks with
the policy and sends its calls on, in batches, each before it computes; those that follow make the
same calls on their own objects, and with them the same programs of the devices they share.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from spade_jax.policy.sampler import Ids, Sampler
from spade_jax.policy.sampling import Sampling

Made = TypeVar("Made")


class OutOfStep(RuntimeError):
    """Other hosts may wait in a program of the devices for this one, which has to end for them."""


class Open(msgspec.Struct, tag=True):
    def make(self, sampler: Sampler) -> None:
        sampler.open()


class Close(msgspec.Struct, tag=True):
    slot: int

    def make(self, sampler: Sampler) -> None:
        sampler.close(self.slot)


class Keep(msgspec.Struct, tag=True):
    slot: int
    count: int

    def make(self, sampler: Sampler) -> None:
        sampler.keep(self.slot, self.count)


class Submit(msgspec.Struct, tag=True):
    slot: int
    new_ids: bytes  # int32
    stream: tuple[int, ...]
    budget: int
    sampling: Sampling

    def make(self, sampler: Sampler) -> None:
        sampler.submit(
            self.slot,
            np.frombuffer(self.new_ids, np.int32).tolist(),
            stream=self.stream,
            budget=self.budget,
            sampling=self.sampling,
        )


class Batch(msgspec.Struct):
    """Calls to make before the sampler advances or, at the end of a share, before it is over."""

    calls: list[Open | Close | Keep | Submit]
    replies: int  # `checksum` of what came of the batch before
    over: bool


def checksum(replies: dict[int, Ids]) -> int:
    """A number that tells replies from others."""
    mark = 0
    for slot, reply in replies.items():
        mark = zlib.crc32(np.asarray((slot, *reply.ids), np.int64).tobytes(), mark)
    return mark


class Leader(Sampler):
    """The sampler that is talked to: what it is asked goes through `send` to those that follow."""

    def __init__(self, *args: Any, send: Callable[[bytes], None], **named: Any) -> None:
        super().__init__(*args, **named)
        self._send = send
        self._calls: list[Open | Close | Keep | Submit] = []
        self._replies = 0

    def open(self) -> int:
        slot = super().open()
        self._calls.append(Open())
        return slot

    def close(self, slot: int) -> None:
        super().close(slot)
        self._calls.append(Close(slot))

    def keep(self, slot: int, count: int) -> None:
        super().keep(slot, count)
        self._calls.append(Keep(slot, count))

    def submit(
        self,
        slot: int,
        new_ids: Sequence[int],
        *,
        stream: tuple[int, ...],
        budget: int,
        sampling: Sampling,
    ) -> None:
        super().submit(slot, new_ids, stream=stream, budget=budget, sampling=sampling)
        ids = np.asarray(new_ids, np.int32).tobytes()
        self._calls.append(Submit(slot, ids, stream, budget, sampling))

    def advance(self) -> dict[int, Ids]:
        if not self.busy:  # then nothing is computed
            return {}
        self._tell(over=False)
        try:
            replies = super().advance()
        except Exception as error:
            raise OutOfStep(f"the first host of a replica could not sample: {error}") from error
        self._replies = checksum(replies)
        return replies

    def end(self) -> None:
        """Let those that follow go."""
        self._tell(over=True)

    def _tell(self, over: bool) -> None:
        self._send(msgspec.msgpack.encode(Batch(self._calls, self._replies, over)))
        self._calls = []


class Follower(Sampler):
    """A sampler that does as a leader's, whose batches `receive` returns one by one."""

    def __init__(self, *args: Any, receive: Callable[[], bytes], **named: Any) -> None:
        super().__init__(*args, **named)
        self._receive = receive
        self._replies = 0

    def follow(self) -> None:
        """Make the leader's calls until it lets go; OutOfStep where other replies come here."""
        while True:
            batch = msgspec.msgpack.decode(self._receive(), type=Batch)
            if batch.replies != self._replies:
                raise OutOfStep(
                    "the hosts of a replica have sampled other tokens from the same calls, which "
                    "their devices should never do; go on from the newest checkpoint"
                )
            for call in batch.calls:
                call.make(self)
            if batch.over:
                return
            self._replies = checksum(self.advance())


def follow(sampler: Sampler) -> None:
    """On a follower, do as the leader until it lets go; else nothing."""
    if isinstance(sampler, Follower):
        sampler.follow()


def leading(sampler: Sampler, work: Callable[..., Made]) -> Callable[..., Made]:
    """`work` that talks with this sampler, after which a leader lets those go that follow it."""
    if not isinstance(sampler, Leader):
        return work

    def led(*args: Any) -> Made:
        try:
            return work(*args)
        finally:
            sampler.end()

    return led
