"""What a warm-started policy can do: designs that run, and play by family and level."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Collection, Sequence

from spade_jax.design import designer
from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS
from spade_jax.envs import fingerprint
from spade_jax.envs.sandbox import Sandbox
from spade_jax.envs.validation import Settings, validate
from spade_jax.evals.heldout import Item, by, held_out_set, play_held_out, won
from spade_jax.evals.intervals import mean
from spade_jax.play.episodes import Rules
from spade_jax.policy.conversation import Budget, Speaker
from spade_jax.types import Arm, Design, Episode, HostState, Verdict

_CLASS = re.compile(r"class (\w+)Env\b")


def family_of(code: str) -> str:
    """The bundled family a program names itself after, or `other`."""
    found = _CLASS.search(code)
    name = found[1].lower() if found else ""
    return name if name in FAMILIES else "other"


@dataclasses.dataclass(frozen=True)
class DesignTable:
    """Designs sampled without memory: how many were accepted, new, and of which family.

    `new` counts accepted programs whose fingerprint no training program has. `reasons` counts
    verdicts, `families` the accepted programs.
    """

    sampled: int
    accepted: int
    new: int
    reasons: dict[str, int]
    families: dict[str, int]


def measure_designs(
    speaker: Speaker,
    sandbox: Sandbox,
    corpus: Corpus,
    budget: Budget,
    settings: Settings,
    *,
    count: int,
    seed: int,
    prompt_set: str,
    code_characters: int,
    training: Collection[str],
) -> tuple[DesignTable, list[Design], list[Verdict]]:
    """Sample `count` designs of all bundled skills and validate them."""
    wanted = sorted({family.skill for family in FAMILIES.values()})
    tasks = designer.draw_tasks(
        HostState(), seed=seed, num_envs=count, active=wanted, positives=0, negatives=0
    )
    tasks = designer.read_documents(tasks, corpus, 0)
    designs = designer.design(
        speaker, tasks, budget, seed=seed, prompt_set=prompt_set, code_characters=code_characters
    )
    verdicts = validate(
        sandbox, [(d.code, d.task.kind) for d in designs], seen=(), settings=settings
    )
    accepted = [d for d, v in zip(designs, verdicts, strict=True) if v.accepted]
    new = sum(fingerprint.fingerprint(d.code) not in training for d in accepted)
    table = DesignTable(
        sampled=count,
        accepted=len(accepted),
        new=new,
        reasons=dict(collections.Counter(str(v.reason) for v in verdicts)),
        families=dict(collections.Counter(family_of(d.code) for d in accepted)),
    )
    return table, designs, verdicts


def measure_play(
    speaker: Speaker,
    sandbox: Sandbox,
    corpus: Corpus,
    rules: Rules,
    *,
    seed: int,
    per_level: int,
    seats: int,
) -> tuple[tuple[Item, ...], dict[Arm, list[Episode]]]:
    """Play the held-out set of this seed in both arms, on the same instances."""
    items = held_out_set(seed, per_level, corpus)
    return items, {
        arm: play_held_out(speaker, sandbox, items, rules, arm=arm, seed=seed, seats=seats)
        for arm in Arm
    }


def render(table: DesignTable, items: Sequence[Item], episodes: dict[Arm, list[Episode]]) -> str:
    """Both tables as text."""
    lines = [
        f"designs: {table.accepted} of {table.sampled} accepted "
        f"({table.accepted / table.sampled:.0%}), {table.new} of the accepted not copies "
        f"({table.new / max(table.accepted, 1):.0%})",
        "verdicts: " + ", ".join(f"{k} {v}" for k, v in sorted(table.reasons.items())),
        "families: " + ", ".join(f"{k} {v}" for k, v in sorted(table.families.items())),
        "",
        "success, plain / hinted" + "".join(f"{f'level {v}':>14}" for v in LEVELS) + f"{'all':>14}",
    ]

    def cell(chosen: dict[Arm, list[Episode]]) -> str:
        rates = [mean([won(e) for e in chosen[arm]]).value for arm in (Arm.PLAIN, Arm.HINTED)]
        return f"{rates[0]:.0%} / {rates[1]:.0%}".rjust(14)

    def row(name: str, key: Callable[[Item], str]) -> str:
        chosen = {
            arm: by(lambda item: (key(item), item.level), items, played)
            for arm, played in episodes.items()
        }
        cells = [cell({arm: chosen[arm][name, v] for arm in Arm}) for v in LEVELS]
        every = {arm: [e for v in LEVELS for e in chosen[arm][name, v]] for arm in Arm}
        return f"{name:<23}" + "".join(cells) + cell(every)

    lines += [row(name, lambda i: i.family) for name in FAMILIES]
    lines.append(row("all", lambda i: "all"))
    return "\n".join(lines)
