"""Clocks, randomness and the process id, as a program sees them, follow from the seed.

This is for repeatable plays, not for safety: it replaces Python functions, not system calls. A
clock starts at a moment fixed by the seed and goes on by a millisecond each time it is read; only
`sleep` waits for real. The salt of `hash` is the fork server's, and not touched here.
"""

from __future__ import annotations

import datetime
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

_EPOCH = 1_577_836_800  # 2020-01-01
_YEARS = 157_766_400  # clocks start within five years from then
_TICK = 1_000_000  # ns between two readings

_seed_generator = random.Random.seed  # as it was before `install`


class _Source:
    """What all replaced functions draw from."""

    def __init__(self) -> None:
        self._generator = random.Random(0)
        self._now = 0

    def start(self, seed: int) -> None:
        _seed_generator(self._generator, f"entropy/{seed}")
        self._now = (_EPOCH + self._generator.randrange(_YEARS)) * 1_000_000_000

    def nanoseconds(self) -> int:
        self._now += _TICK
        return self._now

    def seconds(self) -> float:
        return self.nanoseconds() / 1e9

    def bytes(self, n: int) -> bytes:
        return self._generator.randbytes(n)


_SOURCE = _Source()


def start(seed: int) -> None:
    """Begin anew: the clocks, the entropy, and the global generators of random and numpy."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)
    _SOURCE.start(seed)  # last, since the above draw from it


def install() -> None:
    """Replace this process's clocks and entropy, for good; `start` must follow."""
    os.urandom = random._urandom = _SOURCE.bytes  # secrets, uuid and SystemRandom draw from these
    os.getpid = lambda: 1
    os.times = _times
    random.Random.seed = _seed  # type: ignore[method-assign]
    for clock in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, clock, _SOURCE.seconds)
        setattr(time, f"{clock}_ns", _SOURCE.nanoseconds)
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _of_moment(getattr(time, name)))
    time.asctime, time.strftime = _asctime(time.asctime), _strftime(time.strftime)
    datetime.date = _Date  # type: ignore[misc]
    datetime.datetime = _Datetime  # type: ignore[misc]


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    """`Random.seed` takes its entropy from the kernel where it is given none."""
    _seed_generator(self, int.from_bytes(_SOURCE.bytes(32), "big") if a is None else a, version)


def _times() -> os.times_result:
    now = _SOURCE.seconds()
    return os.times_result((now, 0.0, 0.0, 0.0, now))


def _of_moment(real: Callable[..., Any]) -> Callable[..., Any]:
    def read(seconds: float | None = None) -> Any:
        return real(_SOURCE.seconds() if seconds is None else seconds)

    return read


def _asctime(real: Callable[..., str]) -> Callable[..., str]:
    def asctime(moment: Any = None) -> str:
        return real(time.localtime() if moment is None else moment)

    return asctime


def _strftime(real: Callable[..., str]) -> Callable[..., str]:
    def strftime(form: str, moment: Any = None) -> str:
        return real(form, time.localtime() if moment is None else moment)

    return strftime


def _today(cls: type) -> Any:
    return cls.fromtimestamp(_SOURCE.seconds())


def _now(cls: type, tz: datetime.tzinfo | None = None) -> Any:
    return cls.fromtimestamp(_SOURCE.seconds(), tz)


def _utcnow(cls: type) -> Any:
    return cls.fromtimestamp(_SOURCE.seconds(), datetime.UTC).replace(tzinfo=None)


class _Kind(type):
    """Class of the replacements: whatever is an original counts as one of them."""

    def __instancecheck__(cls, value: Any) -> bool:
        own = cls not in (_Date, _Datetime)
        return super().__instancecheck__(value) if own else isinstance(value, cls.__base__)

    def __subclasscheck__(cls, kind: type) -> bool:
        own = cls not in (_Date, _Datetime)
        return super().__subclasscheck__(kind) if own else issubclass(kind, cls.__base__)


# The full names make `repr` print what it prints for the originals.
_Date = _Kind("datetime.date", (datetime.date,), {"today": classmethod(_today)})
_Datetime = _Kind(
    "datetime.datetime",
    (datetime.datetime,),
    {"today": classmethod(_today), "now": classmethod(_now), "utcnow": classmethod(_utcnow)},
)
