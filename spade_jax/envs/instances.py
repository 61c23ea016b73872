"""One instance as the host sees it: its channel, the calls under way, and what may come back.

The host takes nothing on trust: lengths, sequence numbers, types and bounds of every reply are
checked here, and whatever breaks them ends the instance.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable

import msgspec

from spade_jax.envs import contract, wire
from spade_jax.envs.forkserver import ForkServer
from spade_jax.envs.wire import Call, Hint, Reset, Rollouts, Solution, Step
from spade_jax.types import Failure, FailureKind, Kind, StepResult, dataclass

_RECEIVE = 1 << 16
_MAX_OUTPUT = 8192  # bytes of what an instance prints that are kept
_PHASES: dict[type, wire.Phase] = {
    **{wire.Load: "construct", Reset: "reset", Step: "step"},
    **{Hint: "hint", Solution: "solution", Rollouts: "rollout"},
}
_REPLIES: dict[type, type] = {
    **{wire.Load: wire.Loaded, Reset: wire.Observed, Step: wire.Observed},
    **{Hint: wire.Hinted, Solution: wire.Solved, Rollouts: wire.Rolled},
}
_ROLLOUTS_FACTOR = 5  # a whole `Rollouts` call may take this many times the limit of a step


@dataclass
class Played:
    """One play of `Rollouts`: reset and steps, up to the end or the failure that cut it short."""

    steps: tuple[StepResult, ...]
    hint: str | None = None
    solution: tuple[str, ...] | None = None
    failure: Failure | None = None


Answer = StepResult | str | None | tuple[str, ...] | tuple[Played, ...]
Done = Callable[[Answer | Failure], None]


class Broken(Exception):
    """An instance must die; carries the failure, or None where its exit status will tell."""

    def __init__(self, failure: Failure | None) -> None:
        self.failure = failure


class Instance:
    """One environment process, started at its first call. Dead after its first failure.

    `code`, `kind`, `trusted`, `running`, `failure` and `output` are for everyone, and once it has
    ended `cpu_seconds` and `memory_mb`, what it used of both (memory at its peak, the interpreter
    included); the rest is the sandbox's.
    """

    def __init__(
        self,
        number: int,
        code: str,
        kind: Kind,
        *,
        trusted: bool,
        hash_seed: int,
        modules: tuple[str, ...],
    ) -> None:
        self.number = number
        self.code = code
        self.kind = kind
        self.trusted = trusted
        self.failure: Failure | None = None
        self.cpu_seconds: float | None = None
        self.memory_mb: float | None = None
        self.served_by = (hash_seed, modules)
        self.server: ForkServer | None = None
        self.channel: socket.socket | None = None
        self.pipe = -1  # where its prints come out
        self.busy = False  # whether a call waits or is under way
        self.armed = False  # whether the sandbox watches for room to send
        self.sequence = 0  # number of the next reply
        self.phase: wire.Phase = "construct"
        self._printed = b""
        self._received = bytearray()
        self._outgoing = b""

    @property
    def running(self) -> bool:
        return self.channel is not None

    @property
    def output(self) -> str:
        """The first 8 KiB of what the program has printed up to now."""
        return self._printed.decode("utf-8", "replace")

    def attach(self, server: ForkServer, channel: socket.socket, pipe: int) -> None:
        """The process has been started."""
        channel.setblocking(False)
        self.server, self.channel, self.pipe = server, channel, pipe

    def detach(self) -> None:
        """The process is gone, or about to be; what it printed last is taken in."""
        self.drain()
        self.channel.close()
        os.close(self.pipe)
        self.channel = None

    def say(self, call: Call, max_observation: int, *, loading: bool, few: bool) -> None:
        """Make a call ready to be sent, after the program itself when `loading`.

        `few` says that few calls are under way.
        """
        load = b""
        if loading:
            program = wire.Load(self.code, self.kind, max_observation)
            load = wire.request(0, wire.encode(program), few)
        self._outgoing = load + wire.request(self.sequence + loading, wire.encode(call), few)

    def send(self) -> bool:
        """Send what the socket takes; whether something is left."""
        try:
            sent = self.channel.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise Broken(None) from error
        self._outgoing = self._outgoing[sent:]
        return bool(self._outgoing)

    def drain(self) -> bool:
        """Take in what has been printed, of which only the first is kept; false at its end."""
        try:
            chunk = os.read(self.pipe, _RECEIVE)
        except BlockingIOError:
            return True
        self._printed += chunk[: _MAX_OUTPUT - len(self._printed)]
        return bool(chunk)

    def receive(self, flight: Flight | None) -> None:
        """Take bytes in, and every complete frame out of them."""
        try:
            chunk = self.channel.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            raise Broken(None)
        if flight is None:
            raise Broken(protocol(self.phase, "spoke without being asked"))
        received = self._received
        received += chunk
        while len(received) >= wire.HEADER.size:
            length, sequence = wire.HEADER.unpack_from(received)
            if length > wire.MAX_FRAME or sequence != self.sequence or not flight.due:
                raise Broken(protocol(self.phase, "sent a frame that is not an answer"))
            end = wire.HEADER.size + length
            if len(received) < end:
                break
            payload = bytes(received[wire.HEADER.size : end])
            del received[:end]
            self.sequence += 1
            flight.take(payload)
        if received and not flight.due:
            raise Broken(protocol(self.phase, "sent more than its answer"))


class Flight:
    """A call under way: the replies still due and the deadline of the next one."""

    def __init__(
        self,
        instance: Instance,
        call: Call,
        done: Done,
        *,
        loading: bool,
        step_seconds: float,
        max_observation: int,
    ) -> None:
        self.instance = instance
        self.done = done
        self._single = not isinstance(call, Rollouts)
        replies = 1 if self._single else len(call.plays)
        self.due = deque([wire.Load] * loading + [type(call)] * replies)
        self._answers: list[Answer | Played] = []
        self._step_seconds = step_seconds
        self._max_observation = max_observation
        self._last = time.monotonic() + step_seconds * (2 if self._single else _ROLLOUTS_FACTOR)
        self._renew()

    @property
    def result(self) -> Answer:
        return self._answers[0] if self._single else tuple(self._answers)

    def take(self, payload: bytes) -> None:
        """Check one reply and add it to the call's answers."""
        asked = self.due[0]
        phase = _PHASES[asked]
        try:
            reply = wire.decode_reply(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Broken(protocol(phase, "sent an answer that cannot be read")) from error
        if isinstance(reply, wire.Failed):
            raise Broken(_failure(reply))
        if type(reply) is not _REPLIES[asked]:
            raise Broken(protocol(phase, "answered something else than was asked"))
        if asked is not wire.Load:
            self._answers.append(self._answer(reply))
        self.due.popleft()
        self._renew()

    def _renew(self) -> None:
        """The next reply is due within the limit of a step."""
        if self.due:
            self.deadline = min(self._last, time.monotonic() + self._step_seconds)
            self.instance.phase = _PHASES[self.due[0]]

    def _answer(self, reply: wire.Reply) -> Answer | Played:
        if isinstance(reply, wire.Hinted):
            return reply.hint
        if isinstance(reply, wire.Solved):
            return reply.actions
        if isinstance(reply, wire.Observed):
            return self._observed(reply)
        steps = tuple(self._observed(step) for step in reply.steps)
        failure = None if reply.failure is None else _failure(reply.failure)
        return Played(steps=steps, hint=reply.hint, solution=reply.solution, failure=failure)

    def _observed(self, reply: wire.Observed) -> StepResult:
        """The child has checked this too; this check is for a child that was taken over."""
        text, reward = reply.observation, reply.reward
        sound = math.isfinite(reward) and contract.check_reward(reward)
        if not sound or not 0 < len(text) <= self._max_observation:
            raise Broken(protocol("step", "sent an observation or a reward that is out of bounds"))
        return StepResult(
            observation=text,
            reward=reward,
            terminated=reply.terminated,
            truncated=reply.truncated,
        )


def protocol(phase: str, what: str) -> Failure:
    """The failure of an instance that broke the protocol."""
    return Failure(phase=phase, kind=FailureKind.PROTOCOL, message=f"The environment {what}.")


def _failure(reply: wire.Failed) -> Failure:
    return Failure(phase=reply.phase, kind=reply.kind, message=reply.message[: wire.MAX_MESSAGE])
