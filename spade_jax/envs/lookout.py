"""Looking out for the other side of a channel, which may answer sooner than a sleeper wakes up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SHORT = 50e-6  # s that are spent on looking; to wake a core that sleeps takes about as long
MAX_LEFT_OUT = 1024  # waits

_clock = time.perf_counter  # as it is before a program runs


class Lookout:
    """Calls `look` for a short time before its user goes to sleep, while that pays.

    After each time in vain it leaves out twice as many waits as before, so that who is asked
    rarely hardly ever spins.
    """

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look
        self._left_out = 1  # after the last time in vain
        self._leave_out = 0  # still to be left out

    def watch(self) -> Any:
        """What `look` found in the short time; something false if that was nothing."""
        if self._leave_out:
            self._leave_out -= 1
            return None
        end = _clock() + SHORT
        found = self._look()
        while not found and _clock() < end:
            found = self._look()
        if _clock() < end:
            self._left_out = 1
        else:
            self._leave_out = self._left_out = min(2 * self._left_out, MAX_LEFT_OUT)
        return found
