"""The text of a reply while its ids come in: whole characters, stop strings, calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"  # what the start of a character decodes to
CALL = "<tool_call>"


class ReplyText:
    """The text of ids read so far, cut before the first stop string; `fresh` is not yet shown.

    A text does not depend on how many ids are read at once: with stop strings ids are looked at
    one by one, `used` counts those up to the end of the string that stopped it, and `kept` those
    of which something is in the text. With `calls` nothing is shown from the first tool call on
    before the end. `opened` is what of the reply the prompt holds already, such as a `<think>`.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        *,
        opened: str = "",
        calls: bool = False,
    ) -> None:
        self._decode, self._stops, self._calls = decode, tuple(stops), calls
        self._longest = max(map(len, self._stops), default=0)
        self.text, self._opened = opened, len(opened)
        self.used = self.kept = 0
        self._ends = [(len(opened), 0)]  # how long the text was after so many ids
        self.shown = 0  # characters given out
        self.stopped = False  # by a stop string

    def read(self, ids: Sequence[int], *, last: bool) -> None:
        """Take in the ids from `used` on; `ids` are all of the reply, `last` if no more come."""
        ends = range(self.used + 1, len(ids)) if self._stops else ()
        for end in (*ends, len(ids)):
            if self.stopped:
                return
            piece = self._decode(ids[self.used : end])
            if not piece.endswith(UNFINISHED) or (last and end == len(ids)):
                self._append(piece, end)

    def _append(self, piece: str, used: int) -> None:
        searched = max(self._opened, len(self.text) - self._longest + 1)
        self.text, self.used, self.kept = self.text + piece, used, used
        self._ends.append((len(self.text), used))
        found = [at for stop in self._stops if (at := self.text.find(stop, searched)) >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True
            self.kept = next(used for length, used in self._ends if length >= min(found))

    def fresh(self) -> str:
        """What may be shown now: no part of a stop string or of a call that may be coming."""
        end = len(self.text) - (0 if self.stopped else _begun(self.text, self._stops))
        if self._calls:
            called = self.text.find(CALL)
            begins = called if called >= 0 else len(self.text) - _begun(self.text, (CALL,))
            end = len(self.text[: min(end, begins)].rstrip())
        shown, self.shown = self.shown, max(self.shown, end)
        return self.text[shown : self.shown]


def _begun(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of the text that is the beginning of a mark, not all of it."""
    return max(
        (n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0
    )
