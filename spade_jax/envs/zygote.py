"""The fork server: a small single-threaded process that forks one process per instance.

The host starts it once with a clean environment and talks to it over a control socket. Forking
from here and not from the trainer keeps the trainer's threads, memory and files out of instances.
When the control socket closes, every instance is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import socket

import msgspec

from spade_jax.envs import child, contract, wire

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # options of prctl
_NOBODY = 65534
_CHANNEL = 3  # the instance's only file descriptor beside 0, 1 and 2
_MAX_FILES = 32
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main(control_fd: int, limits: str) -> None:
    """Serve fork and kill orders from the control socket until it closes."""
    control = socket.socket(fileno=control_fd)
    zygote = Zygote(control, msgspec.json.decode(limits, type=wire.Limits))
    control.send(wire.encode(wire.Started()))
    try:
        zygote.serve()
    finally:
        zygote.kill_all()


class Zygote:
    """Parent of all instances."""

    def __init__(self, control: socket.socket, limits: wire.Limits) -> None:
        self._control = control
        self._limits = limits
        self._pids: dict[int, int] = {}  # by instance
        self._numpy = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        for name in contract.ALLOWED_MODULES:
            if name != "numpy":
                importlib.import_module(name)
        self._freeze()

    def serve(self) -> None:
        """Obey until the host closes the control socket."""
        while True:
            packet, fds, _, _ = socket.recv_fds(self._control, wire.MAX_PACKET, 1)
            if not packet:
                return
            match wire.decode_order(packet):
                case wire.Fork(instance=instance, numpy=numpy):
                    self._fork(instance, fds[0], numpy)
                case wire.Kill(instances=instances):
                    exits = self._kill(instances)
                    self._control.send(wire.encode(wire.Killed(exits)))

    def kill_all(self) -> None:
        """Kill and reap every descendant."""
        self._kill(tuple(self._pids))

    def _freeze(self) -> None:
        """What exists now is never collected in a child, and gives the size of an empty one."""
        gc.collect()
        gc.freeze()
        with open("/proc/self/statm") as file:
            self._own_bytes = int(file.read().split()[0]) * _PAGE

    def _fork(self, instance: int, fd: int, numpy: bool) -> None:
        if numpy and not self._numpy:
            self._numpy = True
            with contextlib.suppress(ImportError):
                importlib.import_module("numpy.random")
            self._freeze()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # the host sees the channel close
            os.close(fd)
            return
        if pid == 0:
            try:
                self._become_instance(fd, parent)
            finally:
                os._exit(1)
        self._pids[instance] = pid
        os.close(fd)

    def _become_instance(self, fd: int, parent: int) -> None:
        os.setsid()
        self._control.detach()
        os.dup2(fd, _CHANNEL)
        os.closerange(_CHANNEL + 1, 1 << 16)
        channel = socket.socket(fileno=_CHANNEL)
        if os.getuid() == 0:
            with contextlib.suppress(OSError):  # this id is not mapped in every container
                os.setgroups([])
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
        self._confine()
        self._libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            with contextlib.suppress(ConnectionError):
                child.serve(channel)
        os._exit(0)

    def _confine(self) -> None:
        """Resource limits. Without root's powers NPROC 0 denies every process and thread."""
        seconds = max(1, round(self._limits.cpu_seconds))
        memory = self._own_bytes + (self._limits.memory_mb << 20)
        for what, soft, hard in (
            (resource.RLIMIT_AS, memory, memory),
            (resource.RLIMIT_CPU, seconds, seconds + 1),
            (resource.RLIMIT_FSIZE, 0, 0),
            (resource.RLIMIT_CORE, 0, 0),
            (resource.RLIMIT_NPROC, 0, 0),
            (resource.RLIMIT_NOFILE, _MAX_FILES, _MAX_FILES),
        ):
            resource.setrlimit(what, (soft, hard))

    def _kill(self, instances: tuple[int, ...]) -> tuple[wire.Exit, ...]:
        """Kill process groups, reap them, and kill what they may have left behind."""
        pids = [self._pids.pop(instance, None) for instance in instances]
        for pid in pids:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        exits = []
        for pid in pids:
            if pid is None:
                exits.append(wire.Exit(None, 0.0))
            else:
                _, status, usage = os.wait4(pid, 0)
                exits.append(wire.Exit(status, usage.ru_utime + usage.ru_stime))
        self._sweep()
        return tuple(exits)

    def _sweep(self) -> None:
        """Orphans of dead instances come to this process, which is their subreaper."""
        known = set(self._pids.values())
        while strays := _children() - known:
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> set[int]:
    with (
        contextlib.suppress(OSError),
        open(f"/proc/self/task/{os.getpid()}/children") as file,
    ):
        return {int(pid) for pid in file.read().split()}
    return set()
