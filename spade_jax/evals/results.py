"""What an evaluation leaves: plays as they end, and `results.json` with their summary.

`plays.jsonl` only grows, so that an evaluation which was stopped goes on where it was; a line that
was not written to its end is dropped. `evaluation.json` says what is evaluated; it must be the same
when the evaluation goes on.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spade_jax import jsonl
from spade_jax.evals.intervals import mean
from spade_jax.evals.runner import Result
from spade_jax.evals.suites import Settings
from spade_jax.types import UsageError, dataclass

FILE, PLAYS, ABOUT = "results.json", "plays.jsonl", "evaluation.json"
Key = tuple[str, str, int]  # suite, item, number of the play
LAST = 2**62  # above every number of a play
# The columns of the paper's tables, in their order; others follow in the order of the suites.
COLUMNS = (
    *("AIME-25", "AIME-26", "GPQA-Diamond", "LiveCodeBench v6"),
    *("RG Math", "RG Algorithmic", "RG Cognition", "RG Logic"),
    *("BFCL v4 multi-turn", "ACEBench agent"),
)
PART = ": "  # in a group's name: what follows is a part of the column before it


@dataclass
class Column:
    """The summary of one group of a suite, or of a column of parts: their unweighted mean.

    `success` is the mean over items of the share of won plays, a failed play being none, and
    `stderr` its standard error over items; `unfailed` is the mean without failed plays, None where
    nothing else is left. `score` is the mean of the scores.
    """

    suite: str
    name: str
    items: int
    plays: int
    success: float
    stderr: float
    score: float
    failed: int
    unfailed: float | None
    tokens: float


@dataclass
class Skipped:
    """A suite that was not run, and why."""

    suite: str
    reason: str


class Plays:
    """The plays of an evaluation in `folder`, old and new; a context manager."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        _agree(folder, about)
        self._file = jsonl.JsonLines(folder / PLAYS, "play", LAST)
        self.done: dict[Key, Result] = {}
        for line in jsonl.read(folder / PLAYS):
            result = msgspec.convert(line, Result)
            self.done[result.suite, result.item, result.play] = result

    def __enter__(self) -> Plays:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, result: Result) -> None:
        """Write one down; it is on disk when this returns."""
        self._file.append([msgspec.to_builtins(result)])
        self.done[result.suite, result.item, result.play] = result

    def missing(self, suite: str, item: str, play: int) -> bool:
        """Whether a play is still to be made; one that failed is made again."""
        known = self.done.get((suite, item, play))
        return known is None or bool(known.failed)


def _agree(folder: Path, about: Mapping[str, Any]) -> None:
    """Write down what is evaluated, or see that it agrees with what was evaluated there before.

    Suites may be added.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ABOUT
    about = json.loads(json.dumps(about))
    there = _known(path)
    here, known = _flat(about), _flat(there)
    different = [
        f"{name} is {known[name]} there and {here[name]} here"
        for name in here
        if name in known and here[name] != known[name]
    ]
    if different:
        raise UsageError(
            f"{folder} holds another evaluation ({'; '.join(different)}): choose another --output, "
            "or the same settings to go on"
        )
    suites = there.get("suites", {}) | about.get("suites", {})
    _write(path, about | {"suites": suites})


def _known(path: Path) -> dict[str, Any]:
    """What was evaluated before; {} where nothing was."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UsageError(
            f"{path} is damaged ({error}); choose another --output, or remove that folder"
        ) from None


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {name: tree}
    return {
        key: value
        for part, branch in tree.items()
        for key, value in _flat(branch, f"{name}.{part}" if name else part).items()
    }


def _write(path: Path, content: Any) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)


def about_suite(settings: Settings) -> dict[str, Any]:
    """What must stay the same of a suite's settings; plays may be added."""
    kept = dataclasses.asdict(settings)
    del kept["plays"]
    return kept


def write(
    folder: Path,
    about: Mapping[str, Any],
    results: Sequence[Result],
    skipped: Sequence[Skipped],
) -> list[Column]:
    """Write `results.json`; its columns."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = summary(results)
    content = {
        "evaluation": about,
        "columns": [msgspec.to_builtins(column) for column in columns],
        "skipped": [msgspec.to_builtins(each) for each in skipped],
        "plays": [msgspec.to_builtins(result) for result in results],
    }
    _write(folder / FILE, content)
    return columns


def read(path: Path) -> list[Result]:
    """The plays in a `results.json`; UsageError where it is none."""
    path = path / FILE if path.is_dir() else path
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(content["plays"], list[Result])
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); give the results.json of an evaluation"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no results.json of an evaluation ({error}); give one, or evaluate again"
        ) from None


def column_of(group: str) -> str:
    """The column of the table in which a group is counted, itself or as a part."""
    return group.partition(PART)[0]


def order(groups: Iterable[str]) -> list[str]:
    """Groups by their columns, those of the paper first and in its order."""
    groups = list(dict.fromkeys(groups))
    columns = [*COLUMNS, *map(column_of, groups)]
    return sorted(groups, key=lambda group: columns.index(column_of(group)))


def by_item(results: Iterable[Result]) -> dict[str, dict[str, list[Result]]]:
    """Plays by group and item."""
    cells: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        cells.setdefault(result.group, {}).setdefault(result.item, []).append(result)
    return {name: cells[name] for name in order(cells)}


def share(plays: Sequence[Result]) -> float:
    """Share of an item's plays that were won."""
    return math.fsum(play.won and not play.failed for play in plays) / len(plays)


def summary(results: Sequence[Result]) -> list[Column]:
    """The columns of these plays, each before its parts."""
    columns: dict[str, list[Column]] = {}
    for group in _groups(results):
        columns.setdefault(column_of(group.name), []).append(group)
    return [
        each
        for name, parts in columns.items()
        for each in (parts if parts[0].name == name else [together(name, parts), *parts])
    ]


def together(name: str, parts: Sequence[Column]) -> Column:
    """The unweighted mean of parts, its error as if they were independent."""
    unfailed = [part.unfailed for part in parts if part.unfailed is not None]
    plays = sum(part.plays for part in parts)
    return Column(
        suite=parts[0].suite,
        name=name,
        items=sum(part.items for part in parts),
        plays=plays,
        success=mean([part.success for part in parts]).value,
        stderr=math.sqrt(math.fsum(part.stderr**2 for part in parts)) / len(parts),
        score=mean([part.score for part in parts]).value,
        failed=sum(part.failed for part in parts),
        unfailed=mean(unfailed).value if unfailed else None,
        tokens=math.fsum(part.tokens * part.plays for part in parts) / plays,
    )


def _groups(results: Sequence[Result]) -> list[Column]:
    groups = []
    for name, items in by_item(results).items():
        plays = [play for each in items.values() for play in each]
        success = mean([share(each) for each in items.values()])
        sound = [[p for p in each if not p.failed] for each in items.values()]
        shares = [share(each) for each in sound if each]
        groups.append(
            Column(
                suite=plays[0].suite,
                name=name,
                items=len(items),
                plays=len(plays),
                success=success.value,
                stderr=success.half_width / 1.96,
                score=mean(
                    [mean([0.0 if p.failed else p.score for p in e]).value for e in items.values()]
                ).value,
                failed=sum(bool(play.failed) for play in plays),
                unfailed=mean(shares).value if shares else None,
                tokens=mean([play.tokens for play in plays]).value,
            )
        )
    return groups


def table(columns: Sequence[Column], skipped: Sequence[Skipped]) -> list[str]:
    """The lines of the printed table; success in percent, failed plays counted as lost."""
    names = [f"  {c.name.partition(PART)[2]}" if PART in c.name else c.name for c in columns]
    width = max([*map(len, names), len("average of 00")])
    heads = ("items", "plays", "success", "stderr", "score", "failed", "without", "tokens")
    lines = [" " * width + "".join(f"{head:>9}" for head in heads)] if columns else []
    for name, c in zip(names, columns, strict=True):
        unfailed = "-" if c.unfailed is None else f"{c.unfailed:.1%}"
        cells = (c.items, c.plays, f"{c.success:.1%}", f"{c.stderr:.1%}", f"{c.score:.3f}")
        cells = (*cells, c.failed, unfailed, f"{c.tokens:.0f}")
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>9}" for cell in cells))
    if len(whole := [c for c in columns if PART not in c.name]) > 1:
        average = together(f"average of {len(whole)}", whole)
        cells = ("", "", f"{average.success:.1%}", f"{average.stderr:.1%}")
        lines.append(f"{average.name:<{width}}" + "".join(f"{cell:>9}" for cell in cells))
    if any(c.failed for c in columns):
        lines.append("failed plays count as lost; `without` leaves them out")
    lines += [f"skipped {each.suite}: {each.reason}" for each in skipped]
    if skipped:
        lines.append(f"{len(skipped)} suite{'s' if len(skipped) > 1 else ''} skipped")
    return lines
