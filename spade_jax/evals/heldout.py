"""The held-out set: instances of all bundled families and levels that no designer wrote.

Programs and instance seeds come from streams of their own, so none is shared with the warm start
or with self-play. The set is a pure function of its seed.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence

from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS, sample_program, theme_of
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import suites
from spade_jax.evals.episodes import normalised, play_one
from spade_jax.evals.suites import Course, Outcome, Settings
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


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The held-out set as a suite: its plays are those of `play_held_out` with the same rules.

    Settings are those of the agent's play in the config.
    """

    sandbox: Sandbox
    instances: Sequence[Item]
    rules: Rules
    arm: Arm
    seed: int
    name: str = "heldout"

    @property
    def settings(self) -> Settings:
        budget = self.rules.budget
        return Settings(sampling=budget.sampling, reply=budget.reply, context=budget.context)

    def items(self) -> Sequence[suites.Item]:
        return [
            suites.Item(
                id=item.environment.id,
                group="held-out",
                course=functools.partial(self._course, item),
            )
            for item in self.instances
        ]

    def _course(self, item: Item, number: int) -> Course:
        job = Job(item.environment, self.arm, number, item.seed)
        episode = yield from play_one(self.sandbox, job, self.rules, self.seed)
        return Outcome(
            score=normalised(episode),
            won=bool(won(episode)),
            answer=episode.turns[-1].action if episode.turns else None,
            failed=episode.failure.message if episode.failure else "",
            details={
                "family": item.family,
                "level": item.level,
                "turns": len(episode.turns),
                "end": str(episode.end),
            },
        )


def won(episode: Episode) -> float:
    """1 for a success, else 0; a failed episode is no success."""
    return float(episode.episode_return is not None and episode.episode_return > 0.5)


def by(
    key: Callable[[Item], object], items: Sequence[Item], episodes: Sequence[Episode]
) -> dict[object, list[Episode]]:
    """Episodes grouped by a property of their items, in order of first appearance."""
    groups: dict[object, list[Episode]] = {}
    for item, episode in zip(items, episodes, strict=True):
        groups.setdefault(key(item), []).append(episode)
    return groups
