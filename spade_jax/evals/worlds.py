"""Worlds of benchmarks' simulators, each conversation's in a process of its own.

The simulators are other people's code with its state in objects and modules, and a call may take
any time and memory; so they run aside (`simulator`), with the time zone UTC.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spade_jax.evals import simulator
from spade_jax.evals.calls import Call
from spade_jax.types import UsageError, dataclass

START_SECONDS = 60.0
ANSWER_SECONDS = 30.0


class WorldLost(Exception):
    """The worlds of a conversation are gone, or what was asked of them cannot be done."""


@dataclass
class Part:
    """A simulator of a world: its class, its module, and the scenarios it loads one by one."""

    name: str
    module: str
    scenarios: tuple[Mapping[str, Any], ...]
    long_context: bool = False


class Simulators:
    """A process that has imported simulators; a context manager.

    Raises UsageError where they cannot be imported; `mend` says what to do about it.
    """

    def __init__(self, modules: Sequence[str], folders: Sequence[Path], mend: str) -> None:
        boot = {"folders": list(map(str, folders)), "modules": list(modules)}
        self._sending = threading.Lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", simulator.__file__),
                    *(str(theirs.fileno()), json.dumps(boot)),
                ],
                pass_fds=[theirs.fileno()],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._control.settimeout(START_SECONDS)
        try:
            said = json.loads(_read_line(self._control))
        except (OSError, ValueError):
            said = {"problem": "their process does not start"}
        if "problem" in said:
            self._process.kill()
            self.close()
            raise UsageError(f"the simulators cannot be used ({said['problem']}); {mend}")

    def __enter__(self) -> Simulators:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open(self) -> Worlds:
        """A place for the worlds of one conversation; WorldLost where the process has ended."""
        ours, theirs = socket.socketpair()
        with self._sending, theirs:
            try:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorldLost("the process of the simulators has ended") from error
        return Worlds(ours)

    def close(self) -> None:
        """End the process; a conversation's own ends with its socket."""
        self._control.close()
        self._process.wait()


def open_simulators(
    built: Iterable[Sequence[Part]], folders: Sequence[Path], mend: str
) -> Simulators:
    """A process with the simulators of all these conversations."""
    modules = {part.module for parts in built for part in parts}
    return Simulators(sorted(modules), folders, mend)


class Worlds:
    """The worlds of one conversation, by name. Every method may raise WorldLost."""

    def __init__(self, channel: socket.socket) -> None:
        channel.settimeout(ANSWER_SECONDS)
        self._channel, self._answers = channel, channel.makefile("rb")

    def build(self, worlds: Sequence[str], parts: Sequence[Part]) -> None:
        """Make worlds of these names, each of all these simulators."""
        classes = [
            {
                **{"name": part.name, "module": part.module},
                **{"scenarios": part.scenarios, "long_context": part.long_context},
            }
            for part in parts
        ]
        self._ask(*({"do": "build", "world": world, "classes": classes} for world in worlds))

    def call(self, world: str, calls: Sequence[Call], *, everywhere: bool = False) -> list[str]:
        """What each call answered; of several simulators with its method the last, or all, do it.

        A method that fails, or that there is not, answers with the error.
        """
        return self._ask(_order(world, calls, everywhere))[0]

    def compare(self, world: str, other: str, calls: Sequence[Call]) -> tuple[list[str], list[str]]:
        """What the calls answer in `other`, and how `world` then differs from it.

        That is the public attributes of `other` that are not the same in `world`, each as
        Class.attribute.
        """
        wanted = {"do": "differences", "world": world, "other": other}
        answers, differences = self._ask(_order(other, calls), wanted)
        return answers, differences

    def state(self, world: str, attributes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Values of these attributes by class, as JSON has them."""
        return self._ask({"do": "state", "world": world, "attributes": attributes})[0]

    def close(self) -> None:
        """End the conversation's process."""
        self._answers.close()
        self._channel.close()

    def _ask(self, *orders: Mapping[str, Any]) -> list[Any]:
        """The answers to orders, sent together."""
        answers = []
        try:
            self._channel.sendall(b"".join(json.dumps(o).encode() + b"\n" for o in orders))
            for _ in orders:
                answers.append(json.loads(self._answers.readline()))
        except TimeoutError as error:
            self.close()
            raise WorldLost(f"the simulator gave no answer within {ANSWER_SECONDS:g} s") from error
        except (OSError, ValueError) as error:
            self.close()
            raise WorldLost("the process of the simulator has ended") from error
        for answer in answers:
            if "problem" in answer:
                raise WorldLost(answer["problem"])
        return [answer["answer"] for answer in answers]


def _order(world: str, calls: Sequence[Call], everywhere: bool = False) -> dict[str, Any]:
    asked = [[call.name, call.values, call.named] for call in calls]
    return {"do": "call", "world": world, "calls": asked, "everywhere": everywhere}


def _read_line(channel: socket.socket) -> bytes:
    parts = []
    while not parts or not parts[-1].endswith(b"\n"):
        parts.append(channel.recv(2**16))
        if not parts[-1]:
            raise ConnectionError
    return b"".join(parts)


def _environment() -> dict[str, str]:
    kept = {n: os.environ[n] for n in ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH") if n in os.environ}
    return {
        **kept,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
