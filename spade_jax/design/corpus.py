"""Grounding documents: a JSONL file read by position, in a seeded order without end."""

from __future__ import annotations

import array
import itertools
import os
import re
from pathlib import Path

import grain
import msgspec

from spade_jax import types

BUNDLED = Path(__file__).parent / "assets" / "corpus.jsonl"

_REMEDY = (
    "give config.corpus.path a JSONL file whose lines hold a `text` or `orig_doc` string, "
    'or "" for the bundled corpus'
)


class _Record(msgspec.Struct):
    """What is read of a line; other fields are ignored."""

    id: str | int | None = None
    text: str | None = None
    orig_doc: str | None = None

    @property
    def document(self) -> str:
        return (self.text or "").strip() or (self.orig_doc or "").strip()


_DECODER = msgspec.json.Decoder(_Record)


class Corpus:
    """Documents of a JSONL file, addressed by one position that counts on over the epochs.

    Only the place of each line is held in memory. Lines that are blank, broken or without text
    are skipped; `skipped` counts them and `skipped_lines` names the first five (from 1). Raises
    UsageError where the file is missing or holds no document.
    """

    def __init__(self, path: str, *, seed: int, max_words: int) -> None:
        self.path = Path(path) if path else BUNDLED
        self.skipped = 0
        self.skipped_lines: tuple[int, ...] = ()
        self._max_words = max_words
        self._starts, self._lengths = array.array("Q"), array.array("Q")
        self._lines = array.array("Q")
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise types.UsageError(
                f"cannot open the corpus {self.path} ({error.strerror}): {_REMEDY}"
            ) from None
        self._index()
        if not self._starts:
            self.close()
            raise types.UsageError(f"the corpus {self.path} holds no document: {_REMEDY}")
        source = grain.MapDataset.range(len(self._starts))
        self._order = source.shuffle(seed=seed % 2**32)

    def __len__(self) -> int:
        """Number of documents, which is the length of an epoch."""
        return len(self._starts)

    def document(self, position: int) -> types.Document:
        """The document at `position`, cut after `max_words` words.

        Each document comes once in positions [k * len, (k + 1) * len), in an order of that
        epoch's own. Depends on the file, the seed and the position only.
        """
        row = self._order[position]
        line = os.pread(self._file.fileno(), self._lengths[row], self._starts[row])
        record = _parse(line)
        if record is None:
            raise types.UsageError(
                f"line {self._lines[row]} of the corpus {self.path} has changed since the start: "
                "leave the file as it is during a run and start again"
            )
        name = f"{self._lines[row]}" if record.id is None else f"{self._lines[row]}:{record.id}"
        return types.Document(id=name, text=first_words(record.document, self._max_words))

    def warning(self) -> str | None:
        """One sentence about skipped lines, or None where there were none."""
        if not self.skipped:
            return None
        lines = ", ".join(map(str, self.skipped_lines))
        more = ", ..." if self.skipped > len(self.skipped_lines) else ""
        return (
            f"skipped {self.skipped} blank, broken or empty lines of the corpus {self.path} "
            f"(line {lines}{more}): each line should be an object with a `text` or `orig_doc` "
            "string"
        )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Corpus:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _index(self) -> None:
        start = 0
        for number, line in enumerate(self._file, start=1):
            if _parse(line) is None:
                self.skipped += 1
                self.skipped_lines = (*self.skipped_lines, number)[:5]
            else:
                self._starts.append(start)
                self._lengths.append(len(line))
                self._lines.append(number)
            start += len(line)


def first_words(text: str, count: int) -> str:
    """The text up to the end of its word number `count`, white space between words kept."""
    word = next(itertools.islice(re.finditer(r"\S+", text), count, None), None)
    return text if word is None else text[: word.start()].rstrip()


def _parse(line: bytes) -> _Record | None:
    """The record of a line, or None where it holds no document."""
    try:
        record = _DECODER.decode(line)
    except msgspec.DecodeError:
        return None
    return record if record.document else None
