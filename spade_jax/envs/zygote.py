"""The fork server: a small single-threaded process that forks one process per instance.

The host starts it once with a clean environment and talks to it over a control socket. It imports
what programs may need, gives up what they must not have (`confine`), and forks from there: an
instance adds its own limits and the system-call filter, under which it is always one process with
one thread, so that one SIGKILL ends it whole. When the control socket closes, all instances end.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import importlib.util
import os
import resource
import signal
import socket
import sys
import types
from collections.abc import Callable

import msgspec

from spade_jax.envs import confine, entropy, seccomp, wire

_MAX_FILES = 32
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LAZY = (  # what the standard library and numpy import at first use
    *("_strptime", "calendar", "encodings.idna", "encodings.latin_1", "encodings.utf_16"),
    *("encodings.utf_32", "hashlib", "secrets", "traceback", "uuid"),
)
_LAZY_NUMPY = ("numpy.fft", "numpy.linalg", "numpy.polynomial", "numpy.random")


def main(control_fd: int, boot: str) -> None:
    """Give up what can be given up, then obey the control socket until it closes."""
    order = msgspec.json.decode(boot, type=wire.Boot)
    control = socket.socket(fileno=control_fd)
    confinement = confine.Confinement(order.tier, order.folders)
    confinement.separate()
    serve = _preload(order.modules)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    with open("/proc/self/statm") as file:
        own_bytes = int(file.read().split()[0]) * _PAGE
    report = confinement.restrict()
    confinement.prove()
    zygote = Zygote(control, order.limits, own_bytes, confinement, serve)
    control.send(wire.encode(wire.Started(report.tier, report.missing)))
    zygote.obey()
    zygote.kill(tuple(zygote.pids))


class Zygote:
    """Parent of all instances."""

    def __init__(
        self,
        control: socket.socket,
        limits: wire.Limits,
        own_bytes: int,
        confinement: confine.Confinement,
        serve: Callable[[], None],
    ) -> None:
        self._control = control
        self._confinement = confinement
        self._filter = confinement.filter()
        self._serve = serve
        self.pids: dict[int, int] = {}  # by instance
        seconds = max(1, round(limits.cpu_seconds))
        memory = own_bytes + (limits.memory_mb << 20)
        self._limits = (
            (resource.RLIMIT_AS, (memory, memory)),
            (resource.RLIMIT_CPU, (seconds, seconds + 1)),
            (resource.RLIMIT_FSIZE, (0, 0)),
            (resource.RLIMIT_CORE, (0, 0)),
            (resource.RLIMIT_MEMLOCK, (0, 0)),
            (resource.RLIMIT_NOFILE, (_MAX_FILES, _MAX_FILES)),
        )
        gc.collect()
        gc.freeze()  # what exists now is never collected in a child

    def obey(self) -> None:
        """Fork and kill as told, until the host closes the control socket."""
        while True:
            packet, fds, _, _ = socket.recv_fds(self._control, wire.MAX_PACKET, 2)
            if not packet:
                return
            match wire.decode_order(packet):
                case wire.Fork(instance=instance):
                    self._fork(instance, fds)
                case wire.Kill(instances=instances):
                    self._control.send(wire.encode(wire.Killed(self.kill(instances))))

    def kill(self, instances: tuple[int, ...]) -> tuple[wire.Exit, ...]:
        """Kill and reap."""
        pids = [self.pids.pop(instance, None) for instance in instances]
        for pid in pids:
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        exits = []
        for pid in pids:
            if pid is None:
                exits.append(wire.Exit(None, 0.0, 0.0))
            else:
                _, status, usage = os.wait4(pid, 0)
                seconds, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
                exits.append(wire.Exit(status, seconds, memory))
        return tuple(exits)

    def _fork(self, instance: int, fds: list[int]) -> None:
        parent = os.getpid()
        with contextlib.suppress(OSError):  # the host sees the channel close
            pid = os.fork()
            if pid == 0:
                try:
                    self._become_instance(fds, parent)
                finally:
                    os._exit(1)
            self.pids[instance] = pid
        for fd in fds:
            os.close(fd)

    def _become_instance(self, fds: list[int], parent: int) -> None:
        self._control.detach()
        channel, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(channel, seccomp.CHANNEL)
        os.closerange(seccomp.CHANNEL + 1, 1 << 16)
        self._confinement.die_with_parent()
        if os.getppid() != parent:
            return
        entropy.install()
        for what, limit in self._limits:
            resource.setrlimit(what, limit)
        confine.limit_processes()
        if self._filter is not None:
            self._filter.install()
        self._serve()
        os._exit(0)


def _preload(modules: tuple[str, ...]) -> Callable[[], None]:
    """Import what programs may need; returns the loop of an instance."""
    serve = _import_apart("wire", "lookout", "contract", "parsers", "tool_use", "child").serve
    wanted = [*sys.modules["spade_jax.envs.contract"].STANDARD_MODULES, *_LAZY, *modules]
    if "numpy" in modules:
        wanted += _LAZY_NUMPY
    for name in wanted:
        with contextlib.suppress(ImportError):  # the program that needs it will say so
            importlib.import_module(name)
    if "math_verify" in sys.modules:
        _warm_up_math()
    sys.argv[:] = sys.orig_argv[:] = ["environment"]  # they name folders of the host
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace", line_buffering=True)
    return serve


def _warm_up_math() -> None:
    """sympy and the parser of math_verify import and build much at first use."""
    from math_verify import parse, verify

    for left, right in (("1/2", r"$\frac{2}{4}$"), ("$(x+1)^2$", "$x^2+2x+1$")):
        verify(parse(left), parse(right))


def _import_apart(*names: str) -> types.ModuleType:
    """Import modules of this package with builtins of their own; returns the last one.

    What a program does to `builtins` then changes its own functions and not the loop around them.
    """
    for name in names:
        full = f"spade_jax.envs.{name}"
        spec = importlib.util.find_spec(full)
        module = importlib.util.module_from_spec(spec)
        module.__dict__["__builtins__"] = dict(vars(builtins))
        sys.modules[full] = module
        setattr(sys.modules["spade_jax.envs"], name, module)
        spec.loader.exec_module(module)
    return module
