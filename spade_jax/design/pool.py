"""The pool from iteration to iteration: what has become too easy or too hard leaves it.

A win rate is the share of the last iteration's plain plays with a return above one half; it is
unknown where all of them failed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spade_jax.types import PoolEntry


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Win rates above `easy` or below `hard` retire an environment, after `min_plays` plays."""

    easy: float
    hard: float
    min_plays: int


Pool = tuple[PoolEntry, ...]


def retire(entries: Sequence[PoolEntry], bounds: Bounds) -> Pool:
    """The entries, those beyond the bounds marked as retired: they stay, and are not played."""
    return tuple(
        dataclasses.replace(entry, retired=True) if _beyond(entry, bounds) else entry
        for entry in entries
    )


def keep(entries: Sequence[PoolEntry], bounds: Bounds, most: int) -> Pool:
    """The entries that go on into the next epoch, in their order: at most `most`.

    They are those within the bounds, of highest regret; none that hung, has been retired or whose
    win rate is unknown. Of their plays only those of the last iteration count from here on.
    """
    within = [entry for entry in entries if not (entry.hung or entry.retired)]
    within = [entry for entry in within if _inside(_win_rate(entry), bounds)]
    within.sort(key=_regret, reverse=True)
    chosen = {entry.environment.id for entry in within[:most]}
    return tuple(
        dataclasses.replace(entry, plain=entry.plain[-1:])
        for entry in entries
        if entry.environment.id in chosen
    )


def _beyond(entry: PoolEntry, bounds: Bounds) -> bool:
    """Whether it has been retired or is to be now."""
    if entry.retired:
        return True
    rate = _win_rate(entry)
    if rate is None or sum(map(len, entry.plain)) < bounds.min_plays:
        return False
    return not _inside(rate, bounds)


def _inside(rate: float | None, bounds: Bounds) -> bool:
    return rate is not None and bounds.hard <= rate <= bounds.easy


def _win_rate(entry: PoolEntry) -> float | None:
    last = entry.plain[-1] if entry.plain else ()
    return sum(value > 0.5 for value in last) / len(last) if last else None


def _regret(entry: PoolEntry) -> float:
    return float("-inf") if entry.regret.mean is None else entry.regret.mean
