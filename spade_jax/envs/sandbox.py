"""Runs environments a model wrote: one killable process per instance, failures as values.

    with Sandbox() as sandbox:
        instance = sandbox.open(code, Kind.GAME)
        [first] = sandbox.exchange([(instance, Reset(7))])
        [result] = sandbox.exchange([(instance, Step("4"))])

What it holds an instance to: wall time per construct, reset and step; CPU time, memory, no files
written, no core, no further processes or threads (for an ordinary user, and for root, which drops
to nobody); a clean environment; a typed, length-capped channel on which nothing is ever pickled.
What it does not yet stop: reading files, opening sockets, and signalling processes of the same
user. Instances must not be given secrets until it does.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from spade_jax.envs import contract, wire
from spade_jax.envs.forkserver import ForkServer, ForkServerDied
from spade_jax.envs.wire import Call, Hint, Reset, Rollout, Rollouts, Solution, Step
from spade_jax.types import Failure, FailureKind, Kind, StepResult, dataclass

__all__ = [
    "Answer",
    "Call",
    "Hint",
    "Instance",
    "Played",
    "Reset",
    "Rollout",
    "Rollouts",
    "Sandbox",
    "Solution",
    "Step",
]

_RECEIVE = 1 << 16
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


class Instance:
    """One environment process, started at its first exchange. Dead after its first failure."""

    def __init__(self, number: int, code: str, kind: Kind, hash_seed: int) -> None:
        self.number = number
        self.code = code
        self.kind = kind
        self.hash_seed = hash_seed
        self.failure: Failure | None = None
        self._server: ForkServer | None = None
        self._channel: socket.socket | None = None
        self._received = bytearray()
        self._outgoing = b""
        self._armed = False  # whether the epoll watches for room to send
        self._sequence = 0  # number of the next reply
        self._phase: wire.Phase = "construct"

    @property
    def running(self) -> bool:
        return self._channel is not None


class _Flight:
    """A call under way: the replies still due and the deadline of the next one."""

    def __init__(
        self, index: int, instance: Instance, call: Call, loading: bool, step_seconds: float
    ) -> None:
        self.index = index
        self.instance = instance
        self.single = not isinstance(call, Rollouts)
        replies = 1 if self.single else len(call.plays)
        self.due = deque([wire.Load] * loading + [type(call)] * replies)
        self.answers: list[Answer | Played] = []
        self._step_seconds = step_seconds
        self._last = time.monotonic() + step_seconds * (2 if self.single else _ROLLOUTS_FACTOR)
        self.renew()

    def renew(self) -> None:
        """The next reply is due within the limit of a step."""
        self.deadline = min(self._last, time.monotonic() + self._step_seconds)
        if self.due:
            self.instance._phase = _PHASES[self.due[0]]

    @property
    def result(self) -> Answer:
        return self.answers[0] if self.single else tuple(self.answers)


class _Broken(Exception):
    """An instance must die; carries the failure, or None where its exit status will tell."""

    def __init__(self, failure: Failure | None) -> None:
        self.failure = failure


class Sandbox:
    """Owns the fork servers and every instance; `close` leaves no process behind.

    At most `max_instances` processes live at once: opening is free, but an instance that has
    started lives until it fails or is closed, and starting one more than that is a ValueError.
    One `exchange` works on a few instances at a time (their deadlines start when they do), so any
    number of calls may be handed in together.
    """

    def __init__(
        self,
        *,
        step_seconds: float = 2.0,
        cpu_seconds: float = 20.0,
        memory_mb: int = 256,
        max_instances: int = 256,
        max_observation: int = 8192,
    ) -> None:
        self._step_seconds = step_seconds
        self._limits = wire.Limits(cpu_seconds, memory_mb)
        self.max_instances = max_instances
        self._max_observation = max_observation
        self._window = max(8, 4 * (os.cpu_count() or 1))
        self._servers: dict[int, ForkServer] = {}  # by hash seed
        self._numbers = itertools.count()
        self._running: dict[int, Instance] = {}  # by descriptor of the channel
        self._epoll = select.epoll()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self, code: str, kind: Kind, hash_seed: int = 0) -> Instance:
        """An instance of a program; its process starts at its first exchange."""
        return Instance(next(self._numbers), code, kind, hash_seed)

    def exchange(self, calls: Sequence[tuple[Instance, Call]]) -> list[Answer | Failure]:
        """Make all calls, at most one per instance; results in order.

        StepResult for Reset and Step, text or None for Hint, actions or None for Solution, a tuple
        of `Played` for Rollouts, and a Failure where the environment broke, now or before.
        """
        self._check_room([instance for instance, _ in calls])
        results: list[Answer | Failure] = [None] * len(calls)
        waiting = deque(enumerate(calls))
        flights: dict[Instance, _Flight] = {}
        while waiting or flights:
            ended: dict[Instance, Failure | None] = {}
            while waiting and len(flights) < self._window:
                index, (instance, call) = waiting.popleft()
                if instance.failure is not None:
                    results[index] = instance.failure
                    continue
                try:
                    flights[instance] = self._launch(index, instance, call)
                    self._send(instance)
                except _Broken as broken:
                    ended[instance] = broken.failure
            if not self._settle(ended, flights, results) and flights:
                self._listen(flights, results, ended)
                self._expire(flights, ended)
                self._settle(ended, flights, results)
        return results

    def close_instances(self, instances: Iterable[Instance]) -> None:
        """Kill and reap these instances."""
        closed = Failure(phase="close", kind=FailureKind.CRASH, message="The instance was closed.")
        self._retire({instance: instance.failure or closed for instance in instances})

    def close(self) -> None:
        """Kill everything this sandbox started."""
        for instance in list(self._running.values()):
            self._disconnect(instance)
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        self._epoll.close()

    # -- starting and ending processes --------------------------------------------------------

    def _check_room(self, instances: Sequence[Instance]) -> None:
        starting = sum(not i.running and i.failure is None for i in instances)
        if len(self._running) + starting > self.max_instances:
            raise ValueError(
                f"{len(self._running)} environment instances are running and {starting} would "
                f"start, which exceeds {self.max_instances}; close some, or raise "
                "sandbox.max_instances."
            )

    def _launch(self, index: int, instance: Instance, call: Call) -> _Flight:
        """Make a call ready to send, starting the instance's process if need be."""
        load = b""
        if not instance.running:
            self._start(instance)
            message = wire.Load(instance.code, instance.kind, self._max_observation)
            load = wire.frame(0, wire.encode(message))
        sequence = instance._sequence + (1 if load else 0)
        instance._outgoing = load + wire.frame(sequence, wire.encode(call))
        return _Flight(index, instance, call, bool(load), self._step_seconds)

    def _start(self, instance: Instance) -> None:
        for attempt in (1, 2):
            ours, theirs = socket.socketpair()
            try:
                server = self._server(instance.hash_seed)
                with theirs:
                    server.fork(instance.number, theirs, "numpy" in instance.code)
                break
            except ForkServerDied as error:
                ours.close()
                self._bury(instance.hash_seed)
                if attempt == 2:
                    raise RuntimeError(
                        "The environments' fork server could not be started; check that "
                        f"`{os.path.basename(sys.executable)} -c 'import msgspec'` works."
                    ) from error
        ours.setblocking(False)
        instance._server, instance._channel = server, ours
        self._running[ours.fileno()] = instance
        self._epoll.register(ours, select.EPOLLIN)

    def _server(self, hash_seed: int) -> ForkServer:
        if hash_seed not in self._servers:
            self._servers[hash_seed] = ForkServer(self._limits, hash_seed)
        return self._servers[hash_seed]

    def _bury(self, hash_seed: int) -> None:
        """Forget a dead fork server; its instances have crashed with it."""
        server = self._servers.pop(hash_seed, None)
        if server is None:
            return
        server.close()
        for instance in [i for i in self._running.values() if i._server is server]:
            self._disconnect(instance)
            instance.failure = self._post_mortem(instance, None)

    def _settle(
        self,
        ended: dict[Instance, Failure | None],
        flights: dict[Instance, _Flight],
        results: list[Answer | Failure],
    ) -> bool:
        """Retire what has ended and report every flight whose instance is dead; whether any."""
        if ended:
            self._retire(ended)
        dead = [instance for instance in flights if instance.failure is not None]
        for instance in dead:
            results[flights.pop(instance).index] = instance.failure
        return bool(dead)

    def _retire(self, ended: dict[Instance, Failure | None]) -> None:
        """Kill and reap; what the exit status tells completes the failures left open."""
        running = [instance for instance in ended if instance.running]
        for instance, failure in ended.items():
            instance.failure = instance.failure or failure
        for hash_seed, server in list(self._servers.items()):
            mine = [instance for instance in running if instance._server is server]
            if not mine:
                continue
            for instance in mine:
                self._disconnect(instance)
            try:
                exits = server.kill([instance.number for instance in mine])
            except ForkServerDied:
                self._bury(hash_seed)
                exits = ()
            for instance, exited in itertools.zip_longest(mine, exits):
                instance.failure = instance.failure or self._post_mortem(instance, exited)

    def _disconnect(self, instance: Instance) -> None:
        self._running.pop(instance._channel.fileno())
        self._epoll.unregister(instance._channel)
        instance._channel.close()
        instance._channel = None

    def _post_mortem(self, instance: Instance, exited: wire.Exit | None) -> Failure:
        """Why an instance closed its channel by itself."""
        kind = FailureKind.CRASH
        limit = self._limits.cpu_seconds
        code = None
        if exited is not None and exited.status is not None:
            code = os.waitstatus_to_exitcode(exited.status)
        if exited is None:
            message = "The environments' fork server died."
        elif code is None:
            message = "No process could be started for the environment."
        elif code == -signal.SIGXCPU or (code == -signal.SIGKILL and exited.cpu_seconds >= limit):
            kind = FailureKind.TIMEOUT
            message = f"The environment used more than {limit:g} s of CPU time."
        elif code == -signal.SIGKILL:  # perhaps by this sandbox, after the channel was closed
            message = "The environment's process closed its channel or was killed."
        elif code < 0:
            message = f"The environment's process was ended by signal {-code}."
        else:
            message = f"The environment's process exited with status {code}."
        return Failure(phase=instance._phase, kind=kind, message=message)

    # -- talking ------------------------------------------------------------------------------

    def _listen(
        self,
        flights: dict[Instance, _Flight],
        results: list[Answer | Failure],
        ended: dict[Instance, Failure | None],
    ) -> None:
        """Wait for events until the next deadline, and take in what has come."""
        wait = min(flight.deadline for flight in flights.values()) - time.monotonic()
        for descriptor, events in self._epoll.poll(max(0.0, wait)):
            instance = self._running[descriptor]
            flight = flights.get(instance)
            try:
                if events & select.EPOLLOUT:
                    self._send(instance)
                if events & ~select.EPOLLOUT:
                    self._receive(instance, flight)
            except _Broken as broken:
                ended[instance] = broken.failure
                continue
            if flight is not None and not flight.due:
                results[flight.index] = flight.result
                del flights[instance]

    def _expire(
        self, flights: dict[Instance, _Flight], ended: dict[Instance, Failure | None]
    ) -> None:
        """End every instance whose deadline has passed."""
        now = time.monotonic()
        message = f"The environment did not answer within {self._step_seconds:g} s."
        for instance, flight in flights.items():
            if flight.deadline <= now and instance not in ended:
                ended[instance] = Failure(
                    phase=instance._phase, kind=FailureKind.TIMEOUT, message=message
                )

    def _send(self, instance: Instance) -> None:
        """Send what the socket takes; the rest when it takes more."""
        try:
            sent = instance._channel.send(instance._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise _Broken(None) from error
        instance._outgoing = instance._outgoing[sent:]
        if bool(instance._outgoing) != instance._armed:
            instance._armed = bool(instance._outgoing)
            events = select.EPOLLIN | (select.EPOLLOUT if instance._armed else 0)
            self._epoll.modify(instance._channel, events)

    def _receive(self, instance: Instance, flight: _Flight | None) -> None:
        """Take bytes in, and every complete frame out of them."""
        try:
            chunk = instance._channel.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            raise _Broken(None)
        phase = instance._phase
        if flight is None:
            raise _Broken(_protocol(phase, "spoke without being asked"))
        received = instance._received
        received += chunk
        while len(received) >= wire.HEADER.size:
            length, sequence = wire.HEADER.unpack_from(received)
            if length > wire.MAX_FRAME or sequence != instance._sequence or not flight.due:
                raise _Broken(_protocol(phase, "sent a frame that is not an answer"))
            end = wire.HEADER.size + length
            if len(received) < end:
                break
            payload = bytes(received[wire.HEADER.size : end])
            del received[:end]
            instance._sequence += 1
            self._take(flight, payload)
        if received and not flight.due:
            raise _Broken(_protocol(phase, "sent more than its answer"))

    def _take(self, flight: _Flight, payload: bytes) -> None:
        """Check one reply and add it to the call's answers."""
        asked = flight.due[0]
        phase = _PHASES[asked]
        try:
            reply = wire.decode_reply(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _Broken(_protocol(phase, "sent an answer that cannot be read")) from error
        if isinstance(reply, wire.Failed):
            raise _Broken(_failure(reply))
        if type(reply) is not _REPLIES[asked]:
            raise _Broken(_protocol(phase, "answered something else than was asked"))
        if asked is not wire.Load:
            answer = self._answer(reply)
            if isinstance(answer, Failure):
                raise _Broken(answer)
            flight.answers.append(answer)
        flight.due.popleft()
        flight.renew()

    def _answer(self, reply: wire.Reply) -> Answer | Played | Failure:
        if isinstance(reply, wire.Hinted):
            return reply.hint
        if isinstance(reply, wire.Solved):
            return reply.actions
        if isinstance(reply, wire.Observed):
            return self._observed(reply)
        steps = tuple(self._observed(step) for step in reply.steps)
        for step in steps:
            if isinstance(step, Failure):
                return step
        failure = None if reply.failure is None else _failure(reply.failure)
        return Played(steps=steps, hint=reply.hint, solution=reply.solution, failure=failure)

    def _observed(self, reply: wire.Observed) -> StepResult | Failure:
        """The child has checked this too; this check is for a child that was taken over."""
        text, reward = reply.observation, reply.reward
        sound = math.isfinite(reward) and contract.check_reward(reward)
        if not sound or not 0 < len(text) <= self._max_observation:
            return _protocol("step", "sent an observation or a reward that is out of bounds")
        return StepResult(
            observation=text,
            reward=reward,
            terminated=reply.terminated,
            truncated=reply.truncated,
        )


def _failure(reply: wire.Failed) -> Failure:
    return Failure(phase=reply.phase, kind=reply.kind, message=reply.message[: wire.MAX_MESSAGE])


def _protocol(phase: str, what: str) -> Failure:
    return Failure(phase=phase, kind=FailureKind.PROTOCOL, message=f"The environment {what}.")
