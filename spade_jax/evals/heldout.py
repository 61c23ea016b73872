"""The held-out set: instances of all bundled families and levels that no designer wrote.

Programs and instance seeds come from streams of their own, so none is shared with the warm start
or with self-play. The set is a pure function of its seed.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS, sample_program, theme_of
from spade_jax.envs.sandbox import Sandbox
from spade_jax.play.episodes import Job, Rules, play, play_seed
from spade_jax.policy.conversation import Speaker
from spade_jax.types import Arm, Environment, Episode


@dataclasses.dataclass(frozen=True)
class Item:
    """One held-out instance."""

    environment: Environment
    family: str
    level: int
    seed: int


def held_out_set(seed: int, per_level: int, corpus: Corpus) -> tuple[Item, ...]:
    """`per_level` instances, each of a program of its own, of every family and level."""
    items = []
    for family in FAMILIES.values():
        for level in LEVELS:
            for n in range(per_level):
                name = f"held-out-{family.name}-{level}-{n}"
                rng = random.Random(f"{seed}/{name}")
                theme = theme_of(corpus.document(rng.randrange(len(corpus))).text)
                environment = Environment(
                    id=name,
                    kind=family.kind,
                    skill=family.skill,
                    code=sample_program(rng, family.name, level, theme).code,
                    iteration=-1,
                )
                items.append(Item(environment, family.name, level, play_seed(seed, name, -1, n)))
    return tuple(items)


def play_held_out(
    speaker: Speaker,
    sandbox: Sandbox,
    items: Sequence[Item],
    rules: Rules,
    *,
    arm: Arm,
    seed: int,
    seats: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Episode]:
    """One episode of every item, in order."""
    jobs = [Job(item.environment, arm, 0, item.seed) for item in items]
    return play(
        speaker, sandbox, jobs, rules, seed=seed, iteration=-1, seats=seats, progress=progress
    )


def won(episode: Episode) -> float:
    """1 for a success, else 0; a failed episode is no success."""
    return float(episode.episode_return is not None and episode.episode_return > 0.5)


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean and the half width of its 95% interval (normal approximation), from n values."""

    value: float
    half_width: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:6.1%} ± {self.half_width:.1%}"


def mean(values: Sequence[float]) -> Mean:
    """Mean of at least one value; 1.96 standard errors (divisor n - 1) either side."""
    n = len(values)
    centre = math.fsum(values) / n
    spread = math.fsum((v - centre) ** 2 for v in values) / max(n - 1, 1)
    return Mean(centre, 1.96 * math.sqrt(spread / n), n)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Success before and after on the same items, and the mean of the paired differences."""

    before: Mean
    after: Mean
    gain: Mean


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Compare the outcomes of two plays of the same items, given in the same order."""
    differences = [y - x for x, y in zip(before, after, strict=True)]
    return Comparison(mean(before), mean(after), mean(differences))


def by(
    key: Callable[[Item], object], items: Sequence[Item], episodes: Sequence[Episode]
) -> dict[object, list[Episode]]:
    """Episodes grouped by a property of their items, in order of first appearance."""
    groups: dict[object, list[Episode]] = {}
    for item, episode in zip(items, episodes, strict=True):
        groups.setdefault(key(item), []).append(episode)
    return groups
