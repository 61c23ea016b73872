"""What the designer remembers of its past environments, and what of it a prompt shows."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence

import msgspec

from spade_jax import jsonl, types

Memory = tuple[types.MemoryRecord, ...]

GOOD_WIN_RATES = (0.15, 0.85)  # both ends are good
TOO_EASY = 0.9  # a win rate above it
TOO_HARD = 0.1  # a win rate below it


def remember(memory: Memory, records: Iterable[types.MemoryRecord], size: int) -> Memory:
    """The memory with `records` added and the oldest beyond `size` forgotten, `records` last.

    A record of an environment that is remembered already replaces it in its place.
    """
    new = {each.environment_id: each for each in records}
    kept = {each.environment_id: each for each in memory} | new
    spare = max(0, len(kept) - size)
    for old in [name for name in kept if name not in new][:spare]:
        del kept[old]
    return tuple(kept.values())[-size:] if size > 0 else ()


def positive_seeds(memory: Memory, skill: str | None, n: int, rng: random.Random) -> Memory:
    """Up to `n` good examples: win rate within [0.15, 0.85], among those of highest regret.

    They are drawn at random from the top max(3n, 10) by regret (arXiv 2608.19197). Records of
    `skill` come first; others fill what these leave open.
    """
    low, high = GOOD_WIN_RATES
    good = [each for each in memory if each.win_rate is not None and low <= each.win_rate <= high]
    good.sort(key=lambda each: (_regret(each), each.iteration), reverse=True)
    top = max(3 * n, 10)
    same, other = _by_skill(good, skill)
    return _draw(same[:top], other[:top], n, rng)


def negative_examples(memory: Memory, skill: str | None, n: int, rng: random.Random) -> Memory:
    """Up to `n` examples to avoid: win rate above 0.9 or below 0.1, those of `skill` first."""
    bad = [each for each in memory if complaint(each) is not None]
    return _draw(*_by_skill(bad, skill), n, rng)


def complaint(record: types.MemoryRecord) -> str | None:
    """Why a record is a negative example: "too easy", "too hard", or None where it is not."""
    if record.win_rate is None:
        return None
    if record.win_rate > TOO_EASY:
        return "too easy"
    return "too hard" if record.win_rate < TOO_HARD else None


def cut(code: str, characters: int) -> str:
    """The code's first whole lines that fit into `characters`, white space at the end dropped.

    Where not even the first line fits, as much of it as does.
    """
    code = code.rstrip()
    if len(code) <= characters:
        return code
    end = code.rfind("\n", 0, characters + 1)
    return code[: end if end > 0 else max(characters, 0)].rstrip()


class Archive:
    """Everything ever remembered, in a JSONL file outside the checkpoints; only grows.

    A run that resumes at iteration `iteration` opens it with that number, and what later
    iterations had written is cut, so that they write it once.
    """

    def __init__(self, path: str | os.PathLike[str], iteration: int) -> None:
        self._lines = jsonl.JsonLines(path, "written", iteration)

    def append(self, iteration: int, records: Iterable[types.MemoryRecord]) -> None:
        """Add records as iteration `iteration` knew them."""
        self._lines.append({"written": iteration, **msgspec.to_builtins(each)} for each in records)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _regret(record: types.MemoryRecord) -> float:
    return float("-inf") if record.regret is None else record.regret


def _by_skill(
    records: Sequence[types.MemoryRecord], skill: str | None
) -> tuple[list[types.MemoryRecord], list[types.MemoryRecord]]:
    """Records of the skill and the others; without a skill all are of it."""
    same = [each for each in records if skill is None or each.skill == skill]
    other = [each for each in records if skill is not None and each.skill != skill]
    return same, other


def _draw(
    first: Sequence[types.MemoryRecord],
    then: Sequence[types.MemoryRecord],
    n: int,
    rng: random.Random,
) -> Memory:
    """`n` records without repetition, from `then` only what `first` cannot supply."""
    drawn = rng.sample(first, min(n, len(first)))
    return tuple(drawn + rng.sample(then, min(n - len(drawn), len(then))))
