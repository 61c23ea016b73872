"""The system-call filter of an environment's process: a short allowed list, all else an error.

The filter is classic BPF, put together here and installed for good on the calling process. It
leaves memory, time, reading, and writing to the process's own three descriptors; a process under
it cannot start another, open anything for writing, name another process or reach a network.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence

CHANNEL = 3  # the descriptor an environment's process talks to the host on

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, little endian
_X32 = 0x40000000  # bit of the x32 calls on x86_64

_MEMORY = "brk madvise mremap munmap"
_TIME = (
    "alarm clock_getres clock_gettime clock_nanosleep getitimer getrusage gettimeofday nanosleep "
    "pause poll ppoll pselect6 sched_yield select setitimer time times"
)
_SIGNALS = "restart_syscall rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack"
_SELF = (
    "exit exit_group futex getegid geteuid getgid getpid getppid getrandom gettid getuid rseq "
    "sched_getaffinity set_robust_list uname"
)
_READING = "close fstat lseek pread64 read readv"
_ALLOWED = " ".join((_READING, _MEMORY, _TIME, _SIGNALS, _SELF)).split()
_LOOKING = (  # not in tier C
    "access faccessat faccessat2 getcwd getdents getdents64 lstat newfstatat readlink readlinkat "
    "stat statx"
).split()
_ERRORS = {
    **dict.fromkeys(("clone", "fork", "vfork"), errno.EAGAIN),
    **dict.fromkeys(("clone3", "openat2"), errno.ENOSYS),  # libraries then try the older call
    "ioctl": errno.ENOTTY,
}

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_WRITING |= (os.O_TMPFILE & ~os.O_DIRECTORY) | os.O_PATH if hasattr(os, "O_PATH") else 0
_PROT_EXEC = 4
_F_GETFD, _F_SETFD, _F_GETFL = 1, 2, 3
_ONE_OF = {  # call: (argument, the values allowed)
    "write": (0, (CHANNEL, 1, 2)),
    "fcntl": (1, (_F_GETFD, _F_SETFD, _F_GETFL)),
}
_WITHOUT = {"mmap": (2, _PROT_EXEC), "mprotect": (2, _PROT_EXEC)}  # call: (argument, bits denied)
_OPENING = {"open": (1, _WRITING), "openat": (2, _WRITING)}  # not in tier C

NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {
        **{"read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6},
        **{"poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12},
        **{"rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16},
        **{"pread64": 17, "readv": 19, "access": 21, "select": 23, "sched_yield": 24},
        **{"mremap": 25, "madvise": 28, "pause": 34, "nanosleep": 35, "getitimer": 36},
        **{"alarm": 37, "setitimer": 38, "getpid": 39, "clone": 56, "fork": 57, "vfork": 58},
        **{"exit": 60, "uname": 63, "fcntl": 72, "getdents": 78, "getcwd": 79, "readlink": 89},
        **{"gettimeofday": 96, "getrusage": 98, "times": 100, "getuid": 102},
        **{"getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131},
        **{"gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204},
        **{"getdents64": 217, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229},
        **{"clock_nanosleep": 230, "exit_group": 231, "openat": 257, "newfstatat": 262},
        **{"readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271},
        **{"set_robust_list": 273, "getrandom": 318, "statx": 332, "rseq": 334, "clone3": 435},
        **{"openat2": 437, "faccessat2": 439},
    },
    "aarch64": {
        **{"getcwd": 17, "fcntl": 25, "ioctl": 29, "faccessat": 48, "openat": 56, "close": 57},
        **{"getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65, "pread64": 67},
        **{"pselect6": 72, "ppoll": 73, "readlinkat": 78, "newfstatat": 79, "fstat": 80},
        **{"exit": 93, "exit_group": 94, "futex": 98, "set_robust_list": 99, "nanosleep": 101},
        **{"getitimer": 102, "setitimer": 103, "clock_gettime": 113, "clock_getres": 114},
        **{"clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124},
        **{"restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134},
        **{"rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153, "uname": 160},
        **{"getrusage": 165, "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174},
        **{
            "geteuid": 175,
            "getgid": 176,
            "getegid": 177,
            "gettid": 178,
        },
        **{"brk": 214, "munmap": 215, "mremap": 216, "clone": 220, "mmap": 222},
        **{"mprotect": 226, "madvise": 233, "getrandom": 278, "statx": 291, "rseq": 293},
        **{"clone3": 435, "openat2": 437, "faccessat2": 439},
    },
}

# Opcodes of classic BPF and return values of a filter (linux/bpf_common.h, linux/seccomp.h).
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _FAIL, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def machine() -> str | None:
    """This machine's architecture, where a filter can be made for it."""
    name = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return name if name in _ARCHES and platform.system() == "Linux" else None


def available(libc: ctypes.CDLL) -> bool:
    """Whether the kernel takes filters with the actions used here."""
    call = {"x86_64": 317, "aarch64": 277}.get(machine() or "")
    return call is not None and all(
        libc.syscall(call, 2, 0, ctypes.byref(ctypes.c_uint32(action))) == 0
        for action in (_KILL, _FAIL, _ALLOW)
    )


def program(arch: str, *, files: bool) -> list[Instruction]:
    """The filter. With `files` names may be looked up and files opened for reading."""
    numbers = NUMBERS[arch]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _ARCHES[arch]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if arch == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for name, (argument, values) in _ONE_OF.items():
        code += _case(numbers[name], _one_of(argument, values))
    for name, (argument, bits) in (_WITHOUT | (_OPENING if files else {})).items():
        if name in numbers:
            code += _case(numbers[name], _without(argument, bits))
    for name in _ALLOWED + (_LOOKING if files else []):
        if name in numbers:
            code += _case(numbers[name], [(_RETURN, 0, 0, _ALLOW)])
    for name, error in _ERRORS.items():
        if name in numbers:
            code += _case(numbers[name], [(_RETURN, 0, 0, _FAIL | error)])
    return [*code, (_RETURN, 0, 0, _FAIL | errno.EPERM)]


def pack(code: Sequence[Instruction]) -> bytes:
    """The filter as the kernel reads it (struct sock_filter)."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class Filter:
    """A filter ready to be installed; made once, since it is needed at every fork."""

    def __init__(self, libc: ctypes.CDLL, *, files: bool) -> None:
        arch = machine()
        assert arch is not None
        packed = pack(program(arch, files=files))
        self._code = ctypes.create_string_buffer(packed, len(packed))
        length, address = len(packed) // 8, ctypes.addressof(self._code)
        self._header = ctypes.create_string_buffer(struct.pack("@HxxxxxxQ", length, address))
        self._libc = libc
        self._call = {"x86_64": 317, "aarch64": 277}[arch]

    def install(self) -> None:
        """Bind this process to the filter for the rest of its life; OSError where it cannot be."""
        mode_filter, no_slowdown = 1, 1 << 2  # SECCOMP_FILTER_FLAG_SPEC_ALLOW
        if self._libc.syscall(self._call, mode_filter, no_slowdown, self._header) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _case(number: int, body: list[Instruction]) -> list[Instruction]:
    """`body` for one call; it must end in a return."""
    return [(_EQUAL, 0, len(body), number), *body]


def _low(argument: int) -> int:
    """Offset of the low half of an argument; the kernel reads these arguments as 32 bits."""
    return 16 + 8 * argument


def _one_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    code: list[Instruction] = [(_LOAD, 0, 0, _low(argument))]
    for i, value in enumerate(values):
        code.append((_EQUAL, len(values) - i, 0, value))
    return [*code, (_RETURN, 0, 0, _FAIL | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]


def _without(argument: int, bits: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _low(argument)),
        (_ANY_BIT, 0, 1, bits),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
