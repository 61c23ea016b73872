"""Ctrl-C and SIGTERM as a wish that the run stop after the iteration at hand."""

from __future__ import annotations

import signal
from types import FrameType

from spade_jax import hosts


class Interruption:
    """Turns the first SIGINT or SIGTERM into a wish to stop after the iteration at hand.

    A second one ends the run at once: Ctrl-C by KeyboardInterrupt, SIGTERM by its own action.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> Interruption:
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self) -> int | None:
        """The signal that one of the hosts has got; all call this."""
        return max(hosts.gather(self.signal or 0, int)) or None

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        again = "press Ctrl-C again" if number == signal.SIGINT else "send SIGTERM again"
        print(f"stopping after this iteration; {again} to stop at once", flush=True)
