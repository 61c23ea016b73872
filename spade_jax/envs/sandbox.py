"""Runs environments a model wrote: one killable process per instance, failures as values.

    with Sandbox() as sandbox:
        instance = sandbox.open(code, Kind.GAME)
        [first] = sandbox.exchange([(instance, Reset(7))])
        [result] = sandbox.exchange([(instance, Step("4"))])

An instance is one process, which cannot start another: within the wall time of each construct,
reset and step, the CPU time and the memory given, it computes, and it reads nothing but Python's
own folders (`confine.Tier` says how that is enforced on this machine). Its channel is typed and
length-capped, nothing is ever pickled, and what it prints is kept up to a limit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
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
from typing import Self

from spade_jax.envs import contract, wire
from spade_jax.envs.confine import Report, Tier
from spade_jax.envs.forkserver import ForkServer, ForkServerDied
from spade_jax.envs.instances import Answer, Broken, Done, Flight, Instance, Played
from spade_jax.envs.lookout import Lookout
from spade_jax.envs.wire import Call, Hint, Reset, Rollout, Rollouts, Solution, Step
from spade_jax.types import Failure, FailureKind, Kind, UsageError

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


class Sandbox:
    """Owns the fork servers and every instance; `close` leaves no process behind.

    Calls are handed in by `exchange` (many, and wait for all), `ask` (one, awaited in an asyncio
    loop) or `submit`; all are driven by one thread. At most `max_instances` processes live at
    once: opening is free, but an instance that has started lives until it fails or is closed.
    Calls beyond what the cores can carry wait their turn, and their deadlines start with it: those
    of instances that are not `trusted` (their program was not validated) about one a core.

    `tier` asks for one tier instead of the best this machine has. `unsafe` runs programs even where
    there is no system-call filter. Both raise UsageError at the first start of a process where the
    machine does not fit them.
    """

    def __init__(
        self,
        *,
        step_seconds: float = 2.0,
        cpu_seconds: float = 20.0,
        memory_mb: int = 256,
        max_instances: int = 256,
        max_observation: int = 8192,
        tier: Tier | None = None,
        unsafe: bool = False,
    ) -> None:
        self._step_seconds = step_seconds
        self._limits = wire.Limits(cpu_seconds, memory_mb)
        self.max_instances = max_instances
        self._max_observation = max_observation
        self.peak_mb = 0.0  # most memory that an instance has had, the interpreter included
        self._wanted_tier = tier
        self._unsafe = unsafe
        self._cores = cores = len(os.sched_getaffinity(0))
        self._windows = {False: max(2, cores), True: max(16, 4 * cores)}  # by trusted
        self._servers: dict[tuple, ForkServer] = {}  # by hash seed and modules
        self._numbers = itertools.count()
        self._running: dict[int, Instance] = {}  # by descriptor of the channel
        self._pipes: dict[int, Instance] = {}  # by descriptor of the pipe
        self._waiting = {trusted: deque() for trusted in self._windows}
        self._starting = 0  # calls in `_waiting` that will start a process
        self._flights: dict[Instance, Flight] = {}
        self._answered: deque[tuple[Done, Answer | Failure]] = deque()  # not yet given out
        self._flying = dict.fromkeys(self._windows, 0)
        self._next_deadline = math.inf  # no flight's deadline is earlier
        self._epoll = select.epoll()
        self._lookout = Lookout(functools.partial(self._epoll.poll, 0))
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def confinement(self) -> Report:
        """The tier that holds on this machine, and what is not enforced, with reasons."""
        return self._server((0, ())).confinement

    def open(
        self,
        code: str,
        kind: Kind,
        hash_seed: int = 0,
        *,
        trusted: bool = False,
        modules: tuple[str, ...] | None = None,
    ) -> Instance:
        """An instance of a program; its process starts at its first call.

        `modules` are the installed packages it needs, imported before it is confined; by default
        numpy, sympy and math_verify where the program names them.
        """
        modules = contract.heavy_modules(code) if modules is None else tuple(modules)
        return Instance(
            next(self._numbers), code, kind, trusted=trusted, hash_seed=hash_seed, modules=modules
        )

    def exchange(self, calls: Sequence[tuple[Instance, Call]]) -> list[Answer | Failure]:
        """Make all calls, at most one per instance; results in order.

        StepResult for Reset and Step, text or None for Hint, actions or None for Solution, a tuple
        of `Played` for Rollouts, and a Failure where the environment broke, now or before.
        """
        self._check_room([instance for instance, _ in calls])
        results: dict[int, Answer | Failure] = {}
        for index, (instance, call) in enumerate(calls):
            self.submit(instance, call, functools.partial(results.__setitem__, index))
        while len(results) < len(calls):
            self.poll()
        return [results[index] for index in range(len(calls))]

    async def ask(self, instance: Instance, call: Call) -> Answer | Failure:
        """Make one call from a coroutine; see `exchange` for what it answers."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer | Failure] = loop.create_future()

        def done(answer: Answer | Failure) -> None:
            if not future.done():
                future.set_result(answer)

        self.submit(instance, call, done)
        loop.add_reader(self._epoll.fileno(), self._attend, loop)
        self._attend(loop)
        return await future

    def submit(self, instance: Instance, call: Call, done: Done) -> None:
        """Hand in one call; `done` is given its answer, at the latest in a later `poll`."""
        if instance.busy:
            raise ValueError("an instance takes one call at a time; wait for its answer.")
        if instance.failure is not None:
            done(instance.failure)
            return
        starts = not instance.running
        if starts:
            self._check_room([instance])
            self._starting += 1
        instance.busy = True
        self._waiting[instance.trusted].append((instance, call, done, starts))

    def poll(self, timeout: float | None = None) -> None:
        """Start what may start, and take in what has come, waiting up to `timeout` seconds.

        Without a `timeout`, until something has come or a deadline has passed.
        """
        ended: dict[Instance, Failure | None] = {}
        self._launch(ended)
        self._settle(ended)
        if self._flights and not self._answered:
            self._listen(timeout, ended)
            self._expire(ended)
            self._settle(ended)
        self._deliver()

    def close_instances(self, instances: Iterable[Instance]) -> None:
        """Kill and reap these instances; calls of theirs are answered with what ended them."""
        closed = Failure(phase="close", kind=FailureKind.CRASH, message="The instance was closed.")
        self._settle({instance: instance.failure or closed for instance in instances})
        for waiting in self._waiting.values():
            for _ in range(len(waiting)):
                instance, call, done, starts = waiting.popleft()
                if instance.failure is None:
                    waiting.append((instance, call, done, starts))
                else:
                    self._starting -= starts
                    self._answer(instance, done, instance.failure)
        self._deliver()

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
        if len(self._running) + self._starting + starting > self.max_instances:
            raise ValueError(
                f"{len(self._running) + self._starting} environment instances are running and "
                f"{starting} would start, which exceeds {self.max_instances}; close some, or raise "
                "sandbox.max_instances."
            )

    def _launch(self, ended: dict[Instance, Failure | None]) -> None:
        """Send waiting calls as far as the windows allow, starting processes as need be."""
        under_way = len(self._flights) + sum(map(len, self._waiting.values()))
        for trusted, waiting in self._waiting.items():
            while waiting and self._flying[trusted] < self._windows[trusted]:
                instance, call, done, loading = waiting.popleft()
                self._starting -= loading
                if instance.failure is not None:  # it ended meanwhile
                    self._answer(instance, done, instance.failure)
                    continue
                if loading:
                    self._start(instance)
                few = under_way < self._cores
                instance.say(call, self._max_observation, loading=loading, few=few)
                flight = Flight(
                    instance,
                    call,
                    done,
                    loading=loading,
                    step_seconds=self._step_seconds,
                    max_observation=self._max_observation,
                )
                self._flights[instance] = flight
                self._flying[trusted] += 1
                self._next_deadline = min(self._next_deadline, flight.deadline)
                try:
                    self._send(instance)
                except Broken as broken:
                    ended[instance] = broken.failure

    def _start(self, instance: Instance) -> None:
        for attempt in (1, 2):
            server = self._server(instance.served_by)
            ours, theirs = socket.socketpair()
            pipe, output = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            os.set_blocking(output, True)
            try:
                with theirs:
                    server.fork(instance.number, theirs, output)
                break
            except ForkServerDied as error:
                ours.close()
                os.close(pipe)
                self._bury(server)
                if attempt == 2:
                    raise _cannot_start() from error
            finally:
                os.close(output)
        instance.attach(server, ours, pipe)
        self._running[ours.fileno()] = instance
        self._pipes[pipe] = instance
        self._epoll.register(ours, select.EPOLLIN)
        self._epoll.register(pipe, select.EPOLLIN)

    def _server(self, key: tuple[int, tuple[str, ...]]) -> ForkServer:
        if key not in self._servers:
            try:
                server = ForkServer(self._limits, *key, self._wanted_tier or Tier.A)
            except ForkServerDied as error:
                raise _cannot_start() from error
            try:
                self._check_tier(server.confinement)
            except UsageError:
                server.close()
                raise
            self._servers[key] = server
        return self._servers[key]

    def _check_tier(self, report: Report) -> None:
        """Whether what the machine gave is what was asked for."""
        missing = "; ".join(f"{step}: {why}" for step, why in report.missing.items())
        if report.tier is Tier.NONE and not self._unsafe:
            raise UsageError(
                f"This machine cannot confine generated programs ({missing}); run on Linux 5.13 or "
                "newer outside of containers that forbid or ignore seccomp, or set sandbox.unsafe "
                "(--unsafe) to run them with nothing in their way."
            )
        if self._wanted_tier not in (None, report.tier):
            raise UsageError(
                f"This machine cannot give tier {self._wanted_tier} ({missing}); leave the tier "
                f"out, or ask for {report.tier}."
            )

    def _bury(self, server: ForkServer) -> None:
        """Forget a dead fork server; its instances have crashed with it."""
        for key in [key for key, known in self._servers.items() if known is server]:
            del self._servers[key]
        server.close()
        for instance in [i for i in self._running.values() if i.server is server]:
            self._disconnect(instance)
            instance.failure = self._post_mortem(instance, None)

    def _settle(self, ended: dict[Instance, Failure | None]) -> None:
        """Retire what has ended, and answer every call whose instance is dead."""
        if ended:
            self._retire(ended)
        dead = [flight for flight in self._flights.values() if flight.instance.failure is not None]
        for flight in dead:
            self._land(flight, flight.instance.failure)

    def _land(self, flight: Flight, answer: Answer | Failure) -> None:
        """A call is over."""
        instance = flight.instance
        del self._flights[instance]
        self._flying[instance.trusted] -= 1
        self._answer(instance, flight.done, answer)

    def _answer(self, instance: Instance, done: Done, answer: Answer | Failure) -> None:
        instance.busy = False
        self._answered.append((done, answer))

    def _deliver(self) -> None:
        """Give answers out, when nothing is being gone through: `done` may call this sandbox."""
        while self._answered:
            done, answer = self._answered.popleft()
            done(answer)

    def _retire(self, ended: dict[Instance, Failure | None]) -> None:
        """Kill and reap; what the exit status tells completes the failures left open."""
        running = [instance for instance in ended if instance.running]
        for instance, failure in ended.items():
            instance.failure = instance.failure or failure
        for server in list(self._servers.values()):
            mine = [instance for instance in running if instance.server is server]
            if not mine:
                continue
            try:
                exits = server.kill([instance.number for instance in mine])
            except ForkServerDied:
                exits = None
            for instance, exited in zip(mine, exits or [None] * len(mine), strict=True):
                self._disconnect(instance)
                failure = instance.failure or self._post_mortem(instance, exited)
                if exited is not None:
                    instance.cpu_seconds = exited.cpu_seconds
                    instance.memory_mb = exited.memory_mb
                    self.peak_mb = max(self.peak_mb, exited.memory_mb)
                instance.failure = dataclasses.replace(failure, cpu_seconds=instance.cpu_seconds)
            if exits is None:
                self._bury(server)

    def _disconnect(self, instance: Instance) -> None:
        del self._running[instance.channel.fileno()]
        self._epoll.unregister(instance.channel)
        if self._pipes.pop(instance.pipe, None):
            self._epoll.unregister(instance.pipe)
        instance.detach()

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
        return Failure(phase=instance.phase, kind=kind, message=message)

    # -- talking ------------------------------------------------------------------------------

    def _attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """`poll` whenever an asyncio loop sees the epoll ready, and at the next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.poll(0)
        if any(self._waiting.values()):
            loop.call_soon(self._attend, loop)
        elif self._flights:
            wait = max(0.0, self._next_deadline - time.monotonic())
            self._timer = loop.call_later(wait, self._attend, loop)
        else:
            loop.remove_reader(self._epoll.fileno())

    def _listen(self, timeout: float | None, ended: dict[Instance, Failure | None]) -> None:
        """Wait for events until the next deadline, and take in what has come."""
        wait = max(0.0, self._next_deadline - time.monotonic())
        wait = wait if timeout is None else min(wait, timeout)
        found = None
        if wait and len(self._flights) < self._cores:  # there is a core to look out on
            found = self._lookout.watch()
        for descriptor, events in found or self._epoll.poll(wait):
            instance = self._running.get(descriptor)
            if instance is None:
                if not self._pipes[descriptor].drain():
                    del self._pipes[descriptor]
                    self._epoll.unregister(descriptor)
                continue
            flight = self._flights.get(instance)
            try:
                if events & select.EPOLLOUT:
                    self._send(instance)
                if events & ~select.EPOLLOUT:
                    instance.receive(flight)
            except Broken as broken:
                ended[instance] = broken.failure
                continue
            if flight is not None and not flight.due:
                self._land(flight, flight.result)

    def _expire(self, ended: dict[Instance, Failure | None]) -> None:
        """End every instance whose deadline has passed."""
        now = time.monotonic()
        if now < self._next_deadline:
            return
        message = f"The environment did not answer within {self._step_seconds:g} s."
        self._next_deadline = math.inf
        for instance, flight in self._flights.items():
            if flight.deadline > now:
                self._next_deadline = min(self._next_deadline, flight.deadline)
            elif instance not in ended:
                ended[instance] = Failure(
                    phase=instance.phase, kind=FailureKind.TIMEOUT, message=message
                )

    def _send(self, instance: Instance) -> None:
        """Send what the socket takes; the rest when it takes more."""
        left = instance.send()
        if left != instance.armed:
            instance.armed = left
            events = select.EPOLLIN | (select.EPOLLOUT if left else 0)
            self._epoll.modify(instance.channel, events)


def _cannot_start() -> RuntimeError:
    return RuntimeError(
        "The environments' fork server could not be started; check that "
        f"`{os.path.basename(sys.executable)} -c 'import msgspec'` works."
    )
