"""The loop of one environment instance: runs the program's code and answers the host.

It runs in a process of its own, forked by `zygote`. Everything the program does wrong becomes a
`Failed` reply; what it does to this process is the host's matter.
"""

from __future__ import annotations

import functools
import os
import select
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from spade_jax.envs import contract, entropy, wire
from spade_jax.envs.lookout import Lookout
from spade_jax.envs.seccomp import CHANNEL
from spade_jax.envs.tool_use import ToolUseBaseEnv
from spade_jax.types import FailureKind, Kind, StepResult

_FILE = "<environment>"
_RECEIVE = 1 << 16
_read, _write = os.read, os.write  # as they are before the program runs


def serve() -> None:
    """Answer requests until the host closes the channel."""
    session: Session | None = None
    for sequence, payload in _frames():
        request = wire.decode_request(payload)
        replies: Iterator[wire.Reply]
        if isinstance(request, wire.Load):
            session = Session(request)
            replies = iter([session.load()])
        else:
            assert session is not None
            replies = session.answer(request)
        for n, reply in enumerate(replies):
            _send(wire.frame(sequence + n, _encode(reply)))


class Session:
    """A loaded program and the environment object in play."""

    def __init__(self, load: wire.Load) -> None:
        self._load = load
        self._limit = load.max_observation
        self._class: type | None = None
        self._boxes = False
        self._fresh: Any = None  # constructed and not yet reset
        self._environment: Any = None

    def load(self) -> wire.Reply:
        """Run the source and construct one environment."""
        return _guarded("construct", self._run)

    def answer(self, call: wire.Call) -> Iterator[wire.Reply]:
        """The replies to one call: one, or one for each play of `Rollouts`."""
        match call:
            case wire.Reset(seed=seed):
                yield self._reset(seed)
            case wire.Step(action=action):
                yield self._step(action)
            case wire.Hint():
                yield self._hint()
            case wire.Solution():
                yield self._solution()
            case wire.Rollouts(plays=plays):
                for play in plays:
                    yield self._rollout(play)

    def _run(self) -> wire.Loaded:
        module = types.ModuleType(contract.MODULE)
        module.__dict__["ToolUseBaseEnv"] = ToolUseBaseEnv
        sys.modules[contract.MODULE] = module
        entropy.start(0)
        exec(compile(self._load.code, _FILE, "exec", dont_inherit=True), module.__dict__)
        self._boxes = self._load.kind is Kind.GAME and contract.reads_boxes(self._load.code)
        self._class = contract.environment_class(module.__dict__, self._load.kind, ToolUseBaseEnv)
        self._fresh = self._construct()
        return wire.Loaded()

    def _construct(self) -> Any:
        """A new environment; its constructor sees the same world each time."""
        entropy.start(0)
        return self._class()

    def _reset(self, seed: int) -> wire.Reply:
        if self._fresh is None:
            made = _guarded("construct", self._construct)
            if isinstance(made, wire.Failed):
                return made
            self._fresh = made
        self._environment, self._fresh = self._fresh, None
        limit = self._limit

        def reset() -> wire.Observed:
            entropy.start(seed)
            return _observed(contract.reset_result(self._environment.reset(seed=seed), limit))

        return _guarded("reset", reset)

    def _step(self, action: str) -> wire.Reply:
        limit = self._limit
        if self._boxes and "boxed{" not in action:
            action = f"\\boxed{{{action}}}"
        return _guarded(
            "step", lambda: _observed(contract.step_result(self._environment.step(action), limit))
        )

    def _hint(self) -> wire.Reply:
        method = getattr(self._environment, "hint", None)
        if method is None:
            return wire.Hinted(None)
        return _guarded("hint", lambda: wire.Hinted(contract.hint_text(method(), self._limit)))

    def _solution(self) -> wire.Reply:
        method = getattr(self._environment, "solution", None)
        if method is None:
            return wire.Solved(None)
        return _guarded(
            "solution",
            lambda: wire.Solved(contract.solution_actions(method(), self._limit, self._load.kind)),
        )

    def _rollout(self, play: wire.Rollout) -> wire.Reply:
        steps: list[wire.Observed] = []
        reply: wire.Reply = self._reset(play.seed)
        hint = solution = None
        actions = iter(play.actions)
        while isinstance(reply, wire.Observed):
            steps.append(reply)
            if play.ask and len(steps) == 1:
                hinted, solved = self._hint(), self._solution()
                broken = [told for told in (hinted, solved) if isinstance(told, wire.Failed)]
                if broken:
                    reply = broken[0]
                    break
                hint, solution = hinted.hint, solved.actions
            action = next(actions, None)
            if action is None or reply.terminated or reply.truncated:
                break
            reply = self._step(action)
        failure = reply if isinstance(reply, wire.Failed) else None
        return wire.Rolled(tuple(steps), hint, solution, failure)


def _guarded(phase: wire.Phase, work: Callable[[], Any]) -> Any:
    """The result of `work`, or the failure it ended in."""
    try:
        return work()
    except contract.ContractError as error:
        return wire.Failed(phase, FailureKind.CONTRACT, str(error)[: wire.MAX_MESSAGE])
    except MemoryError:
        return wire.Failed(phase, FailureKind.MEMORY, "The environment ran out of memory.")
    except BaseException as error:
        return wire.Failed(phase, FailureKind.ERROR, _explain(error))


def _explain(error: BaseException) -> str:
    """Type, text and line of an exception whose methods may themselves misbehave."""
    try:
        text = str.__str__(str(error))[: wire.MAX_MESSAGE]
    except BaseException:
        text = "(its text cannot be printed)"
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line})" if line else ""
    name = type(error).__name__[:80]
    kept = text[: wire.MAX_MESSAGE - len(name) - len(where) - 2]
    return f"{name}: {kept}{where}".encode("utf-8", "replace").decode()


def _observed(result: StepResult) -> wire.Observed:
    return wire.Observed(result.observation, result.reward, result.terminated, result.truncated)


def _encode(reply: wire.Reply) -> bytes:
    payload = wire.encode(reply)
    if len(payload) <= wire.MAX_FRAME:
        return payload
    message = f"{contract.OVERSIZED}: an answer of {len(payload)} bytes."
    return wire.encode(wire.Failed("rollout", FailureKind.CONTRACT, message))


def _frames() -> Iterator[tuple[int, bytes]]:
    buffer = bytearray()
    channel = select.poll()
    channel.register(CHANNEL, select.POLLIN)
    lookout = Lookout(functools.partial(channel.poll, 0))
    few = False
    while chunk := _receive(lookout if few else None):
        buffer += chunk
        while len(buffer) >= wire.REQUEST.size:
            length, sequence, few = wire.REQUEST.unpack_from(buffer)
            end = wire.REQUEST.size + length
            if len(buffer) < end:
                break
            payload = bytes(buffer[wire.REQUEST.size : end])
            del buffer[:end]
            yield sequence, payload


def _receive(lookout: Lookout | None) -> bytes:
    """The next bytes from the host; empty when there is no host any more."""
    while True:
        try:
            if lookout is not None:
                lookout.watch()
            return _read(CHANNEL, _RECEIVE)
        except OSError:
            return b""
        except BaseException:  # raised by a signal handler of the program, between two calls
            continue


def _send(frame: bytes) -> None:
    while frame:
        frame = frame[_write(CHANNEL, frame) :]
