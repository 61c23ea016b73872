"""Messages between host, fork server and instances: msgpack in frames, typed on both sides.

A frame on an instance's socket is a header (payload length, sequence number) and the payload. The
instance numbers its replies from 0; a request carries the number its first reply will have, and
whether few calls are under way, so that the instance may look out for the next one. On the control
socket of the fork server every message is one packet.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from spade_jax.envs.confine import Tier
from spade_jax.types import FailureKind, Kind

HEADER = struct.Struct(">II")
REQUEST = struct.Struct(">II?")
MAX_FRAME = 1 << 20  # bytes of one reply
MAX_PACKET = 1 << 16  # bytes of one message on the control socket
MAX_MESSAGE = 2000  # characters of a failure's message

Phase = Literal["construct", "reset", "step", "hint", "solution", "rollout"]


class _Message(msgspec.Struct, tag=True, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Encoded as an array that starts with the class name."""


# -- host to instance -------------------------------------------------------------------------


class Load(_Message):
    """Run the program's source and construct its environment."""

    code: str
    kind: Kind
    max_observation: int


class Reset(_Message):
    """Start the instance that `seed` fixes."""

    seed: int


class Step(_Message):
    """Take one action."""

    action: str


class Hint(_Message):
    """Ask for the hint of the instance in play."""


class Solution(_Message):
    """Ask for the actions that win the instance in play."""


class Rollout(_Message):
    """A play with given actions on a fresh object; `ask` asks for hint and solution after reset."""

    seed: int
    actions: tuple[str, ...] = ()
    ask: bool = False


class Rollouts(_Message):
    """Many plays, one reply each."""

    plays: tuple[Rollout, ...]


Call = Reset | Step | Hint | Solution | Rollouts


# -- instance to host -------------------------------------------------------------------------


class Loaded(_Message):
    """The environment is constructed."""


class Observed(_Message):
    """What reset or step answered."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool


class Hinted(_Message):
    """The hint, if there is one."""

    hint: str | None


class Solved(_Message):
    """The winning actions, if the environment knows them."""

    actions: tuple[str, ...] | None


class Failed(_Message):
    """The environment broke."""

    phase: Phase
    kind: FailureKind
    message: str


class Rolled(_Message):
    """One play: the reset and the steps up to its end, and the failure that cut it short."""

    steps: tuple[Observed, ...]
    hint: str | None
    solution: tuple[str, ...] | None
    failure: Failed | None


Reply = Loaded | Observed | Hinted | Solved | Rolled | Failed


# -- host and fork server ---------------------------------------------------------------------


class Limits(_Message):
    """What an instance may use."""

    cpu_seconds: float
    memory_mb: int


class Boot(_Message):
    """How a fork server starts: given to it as JSON on its command line.

    `modules` are imported before anything is given up, since native code cannot be loaded later;
    `folders` are the only ones that stay readable; `tier` is the best to try for.
    """

    limits: Limits
    modules: tuple[str, ...]
    folders: tuple[str, ...]
    tier: Tier


class Fork(_Message):
    """Fork an instance: the socket it talks on and the pipe it prints to are sent along."""

    instance: int


class Kill(_Message):
    """Kill and reap these instances; answered by `Killed`."""

    instances: tuple[int, ...]


class Exit(_Message):
    """How an instance ended: wait status (None: it was never forked), CPU seconds, peak memory."""

    status: int | None
    cpu_seconds: float
    memory_mb: float


class Started(_Message):
    """The fork server is ready; what its confinement lacks, with reasons."""

    tier: Tier
    missing: dict[str, str]


class Killed(_Message):
    """Answer to `Kill`, in its order."""

    exits: tuple[Exit, ...]


encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Load | Call).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_order = msgspec.msgpack.Decoder(Fork | Kill).decode
decode_report = msgspec.msgpack.Decoder(Started | Killed).decode


def request(sequence: int, payload: bytes, few: bool) -> bytes:
    """Bytes of one frame to an instance."""
    return REQUEST.pack(len(payload), sequence, few) + payload


def frame(sequence: int, payload: bytes) -> bytes:
    """Bytes of one frame from an instance."""
    return HEADER.pack(len(payload), sequence) + payload
