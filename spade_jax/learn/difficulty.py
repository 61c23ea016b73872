"""How hard procedural tasks are played: a window of levels that rises, or what is being learnt."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence

from spade_jax.learn.trackers import learning_potential, update_tracker
from spade_jax.types import Difficulty, Tracker

SCHEDULES = ("window", "potential")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How levels are chosen and raised (arXiv 2608.19197, the baselines).

    window: a level drawn from the `width` highest ones up to the top, which rises by one when
    `attempts` plays there have been won at `success`. potential: cells of task and level by the
    potential of their trackers, a share of `random_share` at random. A play is won with a return
    above `won`.
    """

    by: str
    width: int
    attempts: int
    success: float
    gamma_fast: float
    gamma_slow: float
    random_share: float
    won: float


def choose(
    rng: random.Random, state: Mapping[str, Difficulty], count: int, schedule: Schedule
) -> list[tuple[str, int]]:
    """Task and level of `count` environments."""
    tasks = sorted(state)
    if schedule.by == "window":
        names = rng.choices(tasks, k=count)
        return [(name, rng.choice(window(state[name], schedule.width))) for name in names]
    cells = [(name, level) for name in tasks for level in range(1, state[name].levels + 1)]
    scores = [potential(state[name], level, schedule) for name, level in cells]
    by_score = count - math.floor(count * schedule.random_share + 0.5) if any(scores) else 0
    chosen = rng.choices(cells, scores, k=by_score) if by_score else []
    return chosen + rng.choices(cells, k=count - by_score)


def window(state: Difficulty, width: int) -> range:
    """The `width` highest levels up to the top one."""
    return range(max(1, state.top - width + 1), state.top + 1)


def potential(state: Difficulty, level: int, schedule: Schedule) -> float:
    """The learning potential of a level; 0 where it was never played."""
    if level > len(state.trackers):
        return 0.0
    tracker = state.trackers[level - 1]
    return learning_potential(tracker, schedule.gamma_fast, schedule.gamma_slow) or 0.0


def update(
    state: Difficulty, returns: Mapping[int, Sequence[float]], schedule: Schedule
) -> Difficulty:
    """The difficulty after an iteration's `returns`, by level."""
    if schedule.by == "window":
        return _raise_top(state, returns.get(state.top, ()), schedule)
    trackers = list(state.trackers)
    for level, values in returns.items():
        if values:
            trackers += [Tracker()] * (level - len(trackers))
            mean = math.fsum(values) / len(values)
            trackers[level - 1] = update_tracker(
                trackers[level - 1], mean, schedule.gamma_fast, schedule.gamma_slow
            )
    return dataclasses.replace(state, trackers=tuple(trackers))


def _raise_top(state: Difficulty, returns: Sequence[float], schedule: Schedule) -> Difficulty:
    """Count plays at the top level; when there are enough, look at them and count anew."""
    attempts = state.attempts + len(returns)
    wins = state.wins + sum(value > schedule.won for value in returns)
    if attempts < schedule.attempts:
        return dataclasses.replace(state, attempts=attempts, wins=wins)
    risen = wins >= schedule.success * attempts
    top = min(state.top + risen, state.levels)
    return dataclasses.replace(state, top=top, attempts=0, wins=0)
