"""The process in which benchmarks' simulators run: `worlds` starts it by its path.

It imports the simulators once and forks for every conversation, which so has worlds of its own that
end with it. It loads nothing of this package, and nothing it is sent is evaluated as code: calls
come as a name and values. Orders and answers are lines of JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import resource
import signal
import socket
import sys
from typing import Any, NoReturn

ORDER_SECONDS = 60  # for one order, whatever it does
MEMORY_BYTES = 4 * 2**30


def main(control_fd: int, folders: list[str], modules: list[str]) -> None:
    """Import the modules, say so, and fork for every socket that comes, until none can come."""
    control = socket.socket(fileno=control_fd)
    sys.path[:0] = folders
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as error:
        control.sendall(_line({"problem": f"{type(error).__name__}: {error}"}))
        return
    control.sendall(_line({}))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    while True:
        data, channels, *_ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        for channel in channels:
            if os.fork() == 0:
                control.close()
                _serve(socket.socket(fileno=channel))
            os.close(channel)


def _serve(channel: socket.socket) -> NoReturn:
    """Obey the orders of one conversation, and end with it, or where one takes too long."""
    for kind, limit in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, 0)):
        with contextlib.suppress(OSError, ValueError):  # a system may lack one
            resource.setrlimit(kind, (limit, limit))
    worlds = Worlds()
    try:
        with channel, channel.makefile("rb") as orders:
            for order in orders:
                signal.alarm(ORDER_SECONDS)  # the signal ends the process
                channel.sendall(_line(worlds.obey(json.loads(order))))
                signal.alarm(0)
    finally:
        os._exit(0)


class Worlds:
    """Named worlds, each a simulator by the name of its class."""

    def __init__(self) -> None:
        self._worlds: dict[str, dict[str, Any]] = {}

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """What an order gave, or a problem."""
        try:
            return {"answer": getattr(self, order.pop("do"))(**order)}
        except Exception as error:
            return {"problem": f"{type(error).__name__}: {error}"}

    def build(self, world: str, classes: list[dict[str, Any]]) -> None:
        """A world of simulators; each has its class, module, and the scenarios it loads in turn."""
        self._worlds[world] = {}
        for each in classes:
            simulator = getattr(importlib.import_module(each["module"]), each["name"])()
            for scenario in each["scenarios"]:
                simulator._load_scenario(scenario, long_context=each["long_context"])
            self._worlds[world][each["name"]] = simulator

    def call(self, world: str, calls: list[list[Any]], everywhere: bool) -> list[str]:
        """What each call (name, positional, named values) answered, errors in words.

        Of the simulators that have the method the last is called; all are with `everywhere`.
        """
        return [self._call(world, *each, everywhere) for each in calls]

    def _call(
        self, world: str, name: str, values: list[Any], named: dict[str, Any], everywhere: bool
    ) -> str:
        try:
            found = [getattr(s, name, None) for s in self._worlds[world].values()]
            methods = [m for m in found if inspect.ismethod(m) and not name.startswith("_")]
            if not methods:
                raise NameError(f"name '{name}' is not defined")
            for method in methods if everywhere else methods[-1:]:
                # Each has values of its own: a simulator may keep and change what it was given.
                own, own_named = json.loads(json.dumps([values, named]))
                result = method(*own, **own_named)
            return _words(result)
        except Exception as error:
            return f"Error during execution: {error}"

    def differences(self, world: str, other: str) -> list[str]:
        """Public attributes of `other` that are not the same in `world`, as Class.attribute."""
        return [
            f"{name}.{attribute}"
            for name, simulator in self._worlds[other].items()
            for attribute, value in vars(simulator).items()
            if not attribute.startswith("_")
            if not _same(vars(self._worlds[world][name]), attribute, value)
        ]

    def state(self, world: str, attributes: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
        """Values of these attributes by class, as far as it has them."""
        return {
            name: {each: vars(s)[each] for each in attributes.get(name, ()) if each in vars(s)}
            for name, s in self._worlds[world].items()
        }


def _same(attributes: dict[str, Any], name: str, value: Any) -> bool:
    return name in attributes and attributes[name] == value


def _words(result: Any) -> str:
    """A result as BFCL shows it: text as it is, a dict as JSON where it can be, else Python's."""
    if isinstance(result, dict):
        with contextlib.suppress(TypeError, ValueError):
            return json.dumps(result)
    return str(result)


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, default=str).encode() + b"\n"


if __name__ == "__main__":
    main(int(sys.argv[1]), **json.loads(sys.argv[2]))
