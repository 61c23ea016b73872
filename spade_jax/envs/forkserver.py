"""Host side of the fork server: starts it, sends it orders, notices its death."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from spade_jax.envs import wire
from spade_jax.envs.confine import Report, Tier

_Report = TypeVar("_Report", wire.Started, wire.Killed)

_START_SECONDS = 60.0
_REPLY_SECONDS = 10.0
_ASK, _ADDR_NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000  # of personality(2)
_BOOT = """
import sys
project = sys.argv[3]
sys.path = [project, *sys.argv[4:]]
from spade_jax.envs import zygote
if project not in sys.argv[4:]:
    sys.path.remove(project)
zygote.main(int(sys.argv[1]), sys.argv[2])
"""


class ForkServerDied(Exception):
    """The fork server is gone, and its instances with it."""


class ForkServer:
    """A running zygote. Not a context manager: the sandbox owns it.

    With `hash_seed` 0 objects lie at the same addresses in every process with the same past; with
    any other one the kernel places them at random.
    """

    def __init__(
        self, limits: wire.Limits, hash_seed: int, modules: tuple[str, ...], tier: Tier
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_START_SECONDS)
        folders = _python_folders()
        boot = wire.Boot(limits, modules, tuple(folders), tier)
        with theirs, _fixed_addresses() if hash_seed == 0 else contextlib.nullcontext():
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-s", "-P", "-S", "-c", _BOOT, str(theirs.fileno())),
                    *(msgspec.json.encode(boot).decode(), _project(), *folders),
                ],
                pass_fds=[theirs.fileno()],
                env=_environment(hash_seed),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        started = self._receive(wire.Started)
        self.confinement = Report(started.tier, started.missing)
        self._control.settimeout(_REPLY_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, instance: int, channel: socket.socket, output: int) -> None:
        """Fork an instance that talks on `channel` and prints to the descriptor `output`.

        The caller closes both.
        """
        try:
            packet = wire.encode(wire.Fork(instance))
            socket.send_fds(self._control, [packet], [channel.fileno(), output])
        except OSError as error:
            raise ForkServerDied from error

    def kill(self, instances: Sequence[int]) -> tuple[wire.Exit, ...]:
        """Kill and reap; returns how each one ended, in order."""
        try:
            self._control.send(wire.encode(wire.Kill(tuple(instances))))
        except OSError as error:
            raise ForkServerDied from error
        report = self._receive(wire.Killed)
        if len(report.exits) != len(instances):
            raise ForkServerDied
        return report.exits

    def close(self) -> None:
        """End the fork server, which first kills all its instances."""
        self._control.close()
        try:
            self._process.wait(_REPLY_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _receive(self, expected: type[_Report]) -> _Report:
        try:
            report = wire.decode_report(self._control.recv(wire.MAX_PACKET))
        except (OSError, msgspec.DecodeError) as error:
            raise ForkServerDied from error
        if not isinstance(report, expected):
            raise ForkServerDied
        return report


def _project() -> str:
    """The folder this package is imported from; instances cannot read it."""
    return str(Path(__file__).resolve().parents[2])


def _python_folders() -> list[str]:
    """The standard library and the folders of installed packages, where instances may look."""
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], *(path for path in sys.path if path.endswith("lib-dynload"))]
    for name in ("msgspec", "numpy", "sympy"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parents[1]))
    folders.append(paths["purelib"])
    real = (os.path.realpath(folder) for folder in folders)
    return list(dict.fromkeys(folder for folder in real if os.path.isdir(folder)))


@contextlib.contextmanager
def _fixed_addresses() -> Iterator[None]:
    """What this thread starts meanwhile has no random addresses, where that may be asked for."""
    personality = ctypes.CDLL(None).personality
    personality.argtypes = [ctypes.c_ulong]
    before = personality(_ASK)
    if before >= 0:
        personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        if before >= 0:
            personality(before)


def _environment(hash_seed: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    return {
        **kept,
        **threads,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
