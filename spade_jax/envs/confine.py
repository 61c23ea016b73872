"""What the fork server gives up, for itself and for every process it forks.

In order: namespaces, a root with nothing but Python's folders (read-only), privileges, Landlock.
Each step is tried by itself, and what did not work is said with its reason: the tier follows from
what did. At last a process under all of it tries what must be denied, and what is not lowers the
tier: some containers accept a filter and do not apply it.

| tier | what holds an environment's process                  | what it can still see          |
|------|------------------------------------------------------|--------------------------------|
| A    | namespaces, an empty root and the system-call filter | Python's folders               |
| B    | Landlock and the filter                              | names and sizes of files, too  |
| C    | a filter without any look at files                   | what was imported beforehand   |
| none | nothing: run only with `unsafe`                      | everything                     |
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Sequence

from spade_jax.envs import seccomp

NOBODY = 65534

_PDEATHSIG, _DUMPABLE, _NO_NEW_PRIVS = 1, 4, 38  # options of prctl
_CAPBSET_DROP, _CAP_AMBIENT, _CLEAR_ALL = 24, 47, 4
_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 1 << 12, 1 << 14, 1 << 18, 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_READ_ONLY, _NO_SUID, _NO_DEV = 1, 2, 4  # MOUNT_ATTR_*, and MS_* of the same value
_CALLS = {  # capset, pivot_root
    "x86_64": (126, 155),
    "aarch64": (91, 41),
}
_MOUNT_SETATTR, _CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 442, 444, 445, 446  # on both
_NEW_ROOT = "/proc"  # any folder that holds none of Python's


class Tier(enum.StrEnum):
    """How well an environment's process is held, best first."""

    A = "A"
    B = "B"
    C = "C"
    NONE = "none"


@dataclasses.dataclass
class Report:
    """What was reached. `missing` says of each step that failed why it did."""

    tier: Tier = Tier.NONE
    missing: dict[str, str] = dataclasses.field(default_factory=dict)


class Confinement:
    """The steps, to be taken in this order by the fork server's single thread."""

    def __init__(self, best: Tier, folders: Sequence[str]) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.report = Report()
        self._best = best
        self._folders = folders
        self._unshared = self._namespaces = self._root = False

    def separate(self) -> None:
        """Enter new namespaces, as the first process of the new process tree.

        Does not return in the process that called it: that one waits for the new one to end.
        """
        if self._best is not Tier.A:
            self.report.missing["namespaces"] = f"not asked for (tier {self._best})"
            return
        self._namespaces = self._try("namespaces", self._unshare)
        if not self._unshared:
            return
        child = os.fork()
        if child:
            os.closerange(3, 1 << 16)
            _, status = os.waitpid(child, 0)
            os._exit(0 if status == 0 else 1)
        self.die_with_parent()

    def die_with_parent(self) -> None:
        """Be killed when the parent ends; a change of user undoes this."""
        self.libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def restrict(self) -> Report:
        """All that remains; modules are to be imported before, and nothing is read after."""
        if self._namespaces:
            self._root = self._try("empty root", self._change_root)
        rules = None
        if self._best in (Tier.A, Tier.B):
            with contextlib.suppress(OSError):
                rules = self._landlock_rules()
        self._drop_privileges()
        landlock = rules is not None and self._try("Landlock", lambda: self._landlock(rules))
        if rules is None and self._best is not Tier.C:
            self.report.missing["Landlock"] = "the kernel does not have it"
        self.report.tier = self._tier(landlock)
        return self.report

    def prove(self) -> None:
        """Lower the tier to what a process is really denied; `restrict` must have been called."""
        report = self.report
        while report.tier is not Tier.NONE:
            flaw = _flaw(self.filter().install, _DENIED)
            if flaw is None:
                return
            filtered = report.tier is Tier.C or flaw != _HOST_FILES
            step = "system-call filter" if filtered else "empty root or Landlock"
            report.missing[step] = f"accepted, but {flaw}"
            report.tier = Tier.NONE if filtered else Tier.C
        flaw = _flaw(limit_processes, [_PROCESSES])
        if flaw is not None:
            report.missing["limit of processes"] = f"accepted, but {flaw}"

    def filter(self) -> seccomp.Filter | None:
        """The system-call filter of the tier that was reached, which each child installs."""
        if self.report.tier is Tier.NONE:
            return None
        return seccomp.Filter(self.libc, files=self.report.tier is not Tier.C)

    def _tier(self, landlock: bool) -> Tier:
        if not seccomp.available(self.libc):
            self.report.missing["system-call filter"] = "the kernel or this container forbids it"
            return Tier.NONE
        if self._namespaces and self._root:
            return Tier.A
        return Tier.B if landlock else Tier.C

    def _try(self, step: str, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            self.report.missing[step] = error.strerror or str(error)
            return False
        return True

    def _call(self, number: int, *arguments: object) -> int:
        """A raw system call; OSError where it fails."""
        return self._check(self.libc.syscall(number, *arguments))

    def _check(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    # -- steps --------------------------------------------------------------------------------

    def _unshare(self) -> None:
        inner = _NEWPID | _NEWNS | _NEWNET | _NEWIPC | _NEWUTS
        if os.getuid() == 0 and self.libc.unshare(inner) == 0:
            self._unshared = True
            return
        uid, gid = os.getuid(), os.getgid()
        self._check(self.libc.unshare(_NEWUSER | inner))
        self._unshared = True
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {uid} 1"),
            ("gid_map", f"{NOBODY} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    def _change_root(self) -> None:
        """A root on a tmpfs that holds Python's folders, all of it read-only."""
        _, pivot_root = _CALLS[seccomp.machine() or "x86_64"]
        here = _NEW_ROOT.encode()
        self._check(self.libc.sethostname(b"environment", 11))
        self._mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE)
        self._mount(b"tmpfs", here, b"tmpfs", _NO_SUID | _NO_DEV, b"mode=755,size=1m")
        for folder in self._folders:
            os.makedirs(_NEW_ROOT + folder, exist_ok=True)
            target = (_NEW_ROOT + folder).encode()
            self._mount(folder.encode(), target, None, _MS_BIND | _MS_REC)
        attributes = struct.pack("=QQQQ", _READ_ONLY | _NO_SUID | _NO_DEV, 0, 0, 0)
        self._call(_MOUNT_SETATTR, _AT_FDCWD, here, _AT_RECURSIVE, attributes, len(attributes))
        os.chdir(_NEW_ROOT)
        self._call(pivot_root, b".", b".")
        self._check(self.libc.umount2(b".", _MNT_DETACH))
        os.chdir("/")

    def _mount(
        self, source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes = b""
    ) -> None:
        self._check(self.libc.mount(source, target, kind, ctypes.c_ulong(flags), data))

    def _drop_privileges(self) -> None:
        """No capability is left and none can be had; root becomes nobody."""
        for capability in range(64):
            self.libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
        self.libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
        if os.getuid() == 0:
            self._try("unprivileged user", _become_nobody)
        capset, _ = _CALLS[seccomp.machine() or "x86_64"]
        header = struct.pack("=Ii", 0x20080522, 0)
        self._try("no capabilities", lambda: self._call(capset, header, bytes(24)) and None)
        self.libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
        self.libc.prctl(_DUMPABLE, 0, 0, 0, 0)
        self.die_with_parent()

    def _landlock_rules(self) -> int:
        """Descriptor of a rule set: Python's folders may be read, and nothing else done."""
        version = self._call(_CREATE_RULESET, None, 0, 1)
        rights = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)  # number of file rights known
        network = 3 if version >= 4 else 0  # bind and connect
        scope = 3 if version >= 6 else 0  # abstract sockets, signals
        size = 24 if version >= 6 else 16 if version >= 4 else 8
        rules = struct.pack("=QQQ", (1 << rights) - 1, network, scope)[:size]
        descriptor = self._call(_CREATE_RULESET, rules, size, 0)
        read_file, read_folder, beneath = 1 << 2, 1 << 3, 1
        for folder in self._folders:
            opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", read_file | read_folder, opened)
            self._call(_ADD_RULE, descriptor, beneath, rule, 0)
            os.close(opened)
        return descriptor

    def _landlock(self, rules: int) -> None:
        self._call(_RESTRICT_SELF, rules, 0)
        os.close(rules)


def limit_processes() -> None:
    """Let this process start no other one; root is not bound by it."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _flaw(bind: Callable[[], None], denied: Sequence[str]) -> str | None:
    """What a process can do after `bind` though it must not; None if there is nothing."""
    pid = os.fork()
    if pid == 0:
        flaw = len(denied)
        with contextlib.suppress(BaseException):
            bind()
            flaw = next((i for i, what in enumerate(denied) if _succeeds(_ACTS[what])), _SOUND)
        os._exit(flaw)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == _SOUND:
        return None
    return dict(enumerate(denied)).get(code, "a process under it does not run")


def _succeeds(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


_HOST_FILES, _PROCESSES = "files of the machine can be opened", "processes can be started"
_ACTS: dict[str, Callable[[], object]] = {
    "sockets can be made": socket.socket,
    "signals can be sent": lambda: os.kill(os.getpid(), 0),
    _PROCESSES: _fork,
    _HOST_FILES: lambda: os.open(os.devnull, os.O_RDONLY),
}
_DENIED = tuple(_ACTS)
_SOUND = 100  # exit status where all of them fail


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
