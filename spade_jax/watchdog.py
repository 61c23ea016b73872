"""A limit on the time of each stage: a run that hangs ends, and says where it hung.

What hangs is as a rule a collective operation whose other hosts are gone, which no exception ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Iterator, Mapping

from spade_jax.program import HUNG

STDERR = 2  # the descriptor: sys.stderr may be another's by now


class Watchdog:
    """Ends the process where a stage takes longer than its limit in seconds; 0 is no limit.

    A thread prints the stage's name and the stacks of all Python threads, and exits with HUNG. It
    needs the interpreter's lock. `grace` seconds later, where native code holds that for ever, the
    interpreter's own watchdog, which needs no lock, prints the stacks and exits with 1.
    """

    def __init__(self, limits: Mapping[str, float], grace: float = 30.0) -> None:
        self._limits, self._grace = limits, grace
        self._ends: list[float] = []  # of the stages at hand, the outermost first

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Watch the body as this stage; stages may lie in one another."""
        seconds = self._limits.get(name, 0)
        if not seconds:
            yield
            return
        timer = threading.Timer(seconds, _end, (name, seconds))
        timer.daemon = True
        timer.start()
        self._ends.append(time.monotonic() + seconds)
        self._arm()
        try:
            yield
        finally:
            timer.cancel()
            self._ends.pop()
            self._arm()

    def _arm(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._ends:
            wait = max(0.0, min(self._ends) - time.monotonic()) + self._grace
            faulthandler.dump_traceback_later(wait, exit=True, file=STDERR)


def _end(name: str, seconds: float) -> None:
    sentence = (
        f"error: stage {name} has taken longer than watchdog.{name} = {seconds:g} seconds; the "
        "stacks say where it is; give the same command to go on from the last checkpoint, with a "
        f"higher --config.watchdog.{name} if it was at work\n"
    )
    os.write(STDERR, sentence.encode())
    faulthandler.dump_traceback(STDERR, all_threads=True)
    os._exit(HUNG)
