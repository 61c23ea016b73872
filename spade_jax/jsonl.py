"""Files of one JSON object a line, which only grow and can be cut back to an iteration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec


class JsonLines:
    """Appends JSON objects to a file; each call of `append` is on disk when it returns.

    On opening, every line whose `field` is not an integer below `end` is cut, torn and broken lines
    with it: a run resumed at iteration `end` writes those lines again. Floats that are not
    finite are written as null, because JSON knows no others.
    """

    def __init__(self, path: str | os.PathLike[str], field: str, end: int) -> None:
        self.path = Path(path)
        self.field = field
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            _cut_back(self.path, field, end)
        self._file = self.path.open("ab")

    def append(self, objects: Iterable[Mapping[str, object]]) -> None:
        encoder = msgspec.json.Encoder()
        self._file.write(b"".join(encoder.encode(each) + b"\n" for each in objects))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read(path: str | os.PathLike[str]) -> Iterator[dict[str, object]]:
    """The objects of the file in order; torn and broken lines are passed over."""
    with open(path, "rb") as file:
        for line in file:
            record = _parse(line)
            if record is not None:
                yield record


def _parse(line: bytes) -> dict[str, object] | None:
    """The object a line holds, or None where it was not written to its end."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _cut_back(path: Path, field: str, end: int) -> None:
    """Rewrite the file without the lines of iteration `end` and later, in one rename."""
    kept = path.with_name(path.name + ".cut")
    with path.open("rb") as source, kept.open("wb") as target:
        for line in source:
            record = _parse(line)
            value = None if record is None else record.get(field)
            if isinstance(value, int) and value < end:
                target.write(line)
    os.replace(kept, path)
