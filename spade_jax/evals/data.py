"""Files of benchmark items that users bring: found, checked and read.

We may not ship these data. A file is looked for where `--data` says, else in the cache of the
Hugging Face hub (`HF_HUB_CACHE`, `HF_HOME`/hub, ~/.cache/huggingface/hub), which is only read.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spade_jax.types import UsageError, dataclass

FORMS = (".jsonl", ".json", ".csv", ".parquet")
_SHA1, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")


@dataclass
class Source:
    """Where the items of a suite come from, and how many there are.

    `hub` is a data set's name on the Hugging Face hub, `files` what may hold the items in it.
    """

    suite: str
    hub: str
    files: tuple[str, ...]
    count: int
    terms: str  # why we do not ship it, as a clause


def locate(source: Source, data: Path | None) -> Path:
    """The file of a suite's items: `data` itself, or one in that folder, else in the cache.

    A folder holds it as SUITE.jsonl (.json, .csv, .parquet) or by its name on the hub.
    """
    if data is not None and data.is_file():
        return data
    places = [data] if data is not None else snapshots(source.hub)
    names = [*(source.suite + form for form in FORMS), *source.files]
    for place in places:
        for name in names:
            if (place / name).is_file():
                return place / name
    where = data if data is not None else f"{cache()} nor named by --data"
    raise UsageError(
        f"the items of {source.suite} are not in {where}; {source.terms}: fetch them with "
        f"`{fetch(source.hub)}`, or give the file by --data=PATH"
    )


def fetch(hub: str) -> str:
    """The command that puts a data set into the cache."""
    return f"hf download --repo-type dataset {hub}"


def cache() -> Path:
    """Where the hub's clients keep what they fetch."""
    home = os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", Path(home) / "hub"))


def snapshots(hub: str) -> list[Path]:
    """Folders of a data set in the cache, the one that `main` names first."""
    folder = cache() / f"datasets--{hub.replace('/', '--')}"
    main = folder / "refs" / "main"
    first = main.read_text().strip() if main.is_file() else ""
    found = sorted((folder / "snapshots").glob("*"))
    return sorted(found, key=lambda place: place.name != first)


def read(path: Path) -> list[dict[str, Any]]:
    """The items of a file, which is checked first; UsageError where it is damaged."""
    check(path)
    form = path.suffix
    try:
        if form == ".parquet":
            return _parquet(path)
        if form == ".csv":
            text = path.read_text(encoding="utf-8-sig")
            return list(csv.DictReader(text.splitlines(keepends=True), strict=True))
        if form == ".json":
            found = json.loads(path.read_bytes())
        else:
            found = read_lines(path, "fetch it again", ())
    except (ValueError, csv.Error) as error:
        raise UsageError(
            f"{path} is cut off or damaged ({' '.join(str(error).split())}); fetch it again"
        ) from None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise UsageError(f"{path} holds no list of objects; give the file of the suite's items")
    return found


def read_all(source: Source, data: Path | None) -> list[dict[str, Any]]:
    """All items of a suite; UsageError unless there are as many as there should be."""
    path = locate(source, data)
    found = read(path)
    if len(found) != source.count:
        raise UsageError(
            f"{path} holds {len(found)} items, but {source.suite} has {source.count}; fetch it "
            "again (--limit evaluates some of them)"
        )
    return found


def field(item: Mapping[str, Any], names: tuple[str, ...], path: str) -> str:
    """The first of these fields that an item has, as text."""
    for name in names:
        if item.get(name) not in (None, ""):
            return str(item[name]).strip()
    raise UsageError(
        f"an item of {path} has none of the fields {', '.join(names)}; give the file of this suite"
    )


def check(path: Path) -> None:
    """Compare a file with its checksum, where one is known.

    Files of the hub's cache are named by theirs; beside another file it may stand in
    FILE.sha256, as `sha256sum` writes it.
    """
    known = path.resolve().name
    beside = path.with_name(path.name + ".sha256")
    if beside.is_file():
        known = beside.read_text().split()[0].lower()
    if _SHA256.fullmatch(known):
        hashed = hashlib.sha256()
    elif _SHA1.fullmatch(known):  # as git hashes it
        hashed = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    else:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashed).hexdigest()
    if found != known:
        raise UsageError(f"{path} has the checksum {found}, not {known}; fetch it again")


def _parquet(path: Path) -> list[dict[str, Any]]:
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            f"{path} needs pyarrow; run pip install -e '.[corpus]' in the repository, or give the "
            "items as .jsonl"
        )
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error


# -- a JSON object a line --------------------------------------------------------------------


def read_lines(file: Path, mend: str, fields: Sequence[str] = ("id",)) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line, each with these fields.

    A UsageError names the file, and the line that is torn or lacks a field; `mend` says what to do.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}); {mend}") from None
    entries = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError(f"line {number} of {file} is damaged or cut off; {mend}") from None
        missing = [f for f in fields if not isinstance(entry, dict) or f not in entry]
        if missing:
            raise UsageError(f"line {number} of {file} has no {' and no '.join(missing)}; {mend}")
        entries.append(entry)
    if not entries:
        raise UsageError(f"{file} is empty; {mend}")
    return entries


def with_answers(
    entries: Sequence[dict[str, Any]], answers: Sequence[dict[str, Any]], file: Path, mend: str
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each entry with the answer of its id, from `file`; a UsageError where there is none."""
    known = {answer["id"]: answer for answer in answers}
    for entry in entries:
        if entry["id"] not in known:
            raise UsageError(f"{file} has no answer to {entry['id']}; {mend}")
    return [(entry, known[entry["id"]]) for entry in entries]
