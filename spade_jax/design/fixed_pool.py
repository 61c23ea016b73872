"""A fixed pool of environments in place of the designer: the baseline of fixed training data."""

from __future__ import annotations

import random
from collections.abc import Sequence

from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS, sample_program, theme_of
from spade_jax.types import Environment, UsageError


def bundled_pool(seed: int, size: int, skills: Sequence[str], corpus: Corpus) -> list[Environment]:
    """`size` programs of the bundled families that belong to `skills`, all levels alike."""
    families = [family for family in FAMILIES.values() if family.skill in skills]
    if not families:
        known = ", ".join(sorted({family.skill for family in FAMILIES.values()}))
        raise UsageError(
            f"no bundled environment is of the skills {', '.join(skills)}, so there is no fixed "
            f"pool; choose skills among {known}"
        )
    pool = []
    for n in range(size):
        rng = random.Random(f"{seed}/fixed-pool/{n}")
        family = families[n % len(families)]
        theme = theme_of(corpus.document(rng.randrange(len(corpus))).text)
        program = sample_program(rng, family.name, rng.choice(LEVELS), theme)
        pool.append(
            Environment(
                id=f"fixed-{n:05d}",
                kind=program.kind,
                skill=program.skill,
                code=program.code,
                iteration=0,
            )
        )
    return pool


def draw(pool: Sequence[Environment], count: int, epoch: int, seed: int) -> list[Environment]:
    """The environments of an epoch, all different.

    The pool is gone through in whole epochs; when too few are left for one, it is shuffled anew.
    """
    epochs = len(pool) // count
    order = list(pool)
    random.Random(f"{seed}/fixed-order/{epoch // epochs}").shuffle(order)
    start = epoch % epochs * count
    return order[start : start + count]
