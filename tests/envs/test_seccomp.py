"""The system-call filter: its numbers against libseccomp, its verdicts by running the program."""

import ctypes
import errno
import os
from collections.abc import Callable

import pytest

from spade_jax.envs import seccomp

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
KILL, ALLOW = 0x80000000, 0x7FFF0000
O_CREAT, O_PATH = os.O_CREAT, os.O_PATH


def error(number: int) -> int:
    return 0x00050000 | number


def run(code: list[seccomp.Instruction], arch: int, number: int, *arguments: int) -> int:
    """What the kernel would do: the meaning of the few instructions that a filter uses."""
    words = {0: number, 4: arch} | {16 + 8 * i: value for i, value in enumerate(arguments)}
    loaded, at = 0, 0
    while True:
        what, yes, no, operand = code[at]
        at += 1
        if what == 0x06:
            return operand
        if what == 0x20:
            loaded = words.get(operand, 0)
        else:
            true = {
                0x15: loaded == operand,
                0x35: loaded >= operand,
                0x45: bool(loaded & operand),
            }[what]
            at += yes if true else no


@pytest.mark.parametrize("arch", ARCHES)
def test_numbers_are_those_of_libseccomp(
    arch: str, find_library: Callable[[str], ctypes.CDLL]
) -> None:
    resolve = find_library("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    for call, number in seccomp.NUMBERS[arch].items():
        assert resolve(ctypes.c_uint32(ARCHES[arch]), call.encode()) == number, call


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("files", [True, False])
@pytest.mark.parametrize(
    ("call", "arguments", "verdict", "without_files"),
    [
        ("read", (0,), ALLOW, ALLOW),
        ("exit_group", (1,), ALLOW, ALLOW),
        ("write", (3,), ALLOW, ALLOW),
        ("write", (1,), ALLOW, ALLOW),
        ("write", (0,), error(errno.EPERM), error(errno.EPERM)),
        ("write", (4,), error(errno.EPERM), error(errno.EPERM)),
        ("fcntl", (3, 3), ALLOW, ALLOW),
        ("fcntl", (3, 4), error(errno.EPERM), error(errno.EPERM)),
        ("mmap", (0, 4096, 3), ALLOW, ALLOW),
        ("mmap", (0, 4096, 5), error(errno.EPERM), error(errno.EPERM)),
        ("mprotect", (0, 4096, 4), error(errno.EPERM), error(errno.EPERM)),
        ("openat", (0, 0, os.O_RDONLY | os.O_CLOEXEC), ALLOW, error(errno.EPERM)),
        ("openat", (0, 0, os.O_RDONLY | os.O_DIRECTORY), ALLOW, error(errno.EPERM)),
        ("openat", (0, 0, os.O_WRONLY), error(errno.EPERM), error(errno.EPERM)),
        ("openat", (0, 0, O_CREAT), error(errno.EPERM), error(errno.EPERM)),
        ("openat", (0, 0, os.O_TMPFILE), error(errno.EPERM), error(errno.EPERM)),
        ("openat", (0, 0, O_PATH), error(errno.EPERM), error(errno.EPERM)),
        ("newfstatat", (), ALLOW, error(errno.EPERM)),
        ("clone", (), error(errno.EAGAIN), error(errno.EAGAIN)),
        ("clone3", (), error(errno.ENOSYS), error(errno.ENOSYS)),
        ("ioctl", (), error(errno.ENOTTY), error(errno.ENOTTY)),
    ],
)
def test_verdicts(
    arch: str, files: bool, call: str, arguments: tuple, verdict: int, without_files: int
) -> None:
    code = seccomp.program(arch, files=files)
    number = seccomp.NUMBERS[arch][call]
    assert run(code, ARCHES[arch], number, *arguments) == (verdict if files else without_files)


@pytest.mark.parametrize("arch", ARCHES)
def test_everything_else_is_denied(arch: str) -> None:
    code = seccomp.program(arch, files=True)
    known = set(seccomp.NUMBERS[arch].values())
    others = [number for number in range(500) if number not in known]
    assert {run(code, ARCHES[arch], number) for number in others} == {error(errno.EPERM)}


def test_other_architectures_are_killed() -> None:
    read = seccomp.NUMBERS["x86_64"]["read"]
    code = seccomp.program("x86_64", files=True)
    assert run(code, 0x40000003, read) == KILL  # i386
    assert run(code, ARCHES["x86_64"], read | 0x40000000) == KILL  # x32
    assert run(seccomp.program("aarch64", files=True), ARCHES["x86_64"], read) == KILL
