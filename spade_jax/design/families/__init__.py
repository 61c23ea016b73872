"""Bundled families of small environments, with scripted players: the material of a warm start."""

from __future__ import annotations

import random
import re

from spade_jax.design.families.answers import ANSWER_FAMILIES
from spade_jax.design.families.family import LEVELS, Family, Player, Program
from spade_jax.design.families.lookups import LOOKUP_FAMILIES
from spade_jax.design.families.turns import TURN_FAMILIES

__all__ = ["FAMILIES", "LEVELS", "Family", "Player", "Program", "sample_program", "theme_of"]

_TITLE = re.compile(r"[A-Za-z]+( [A-Za-z]+){0,2}")
_WORD = re.compile(r"[A-Za-z]{3,12}")

FAMILIES: dict[str, Family] = {
    family.name: family for family in (*ANSWER_FAMILIES, *TURN_FAMILIES, *LOOKUP_FAMILIES)
}


def theme_of(text: str) -> str:
    """The title of a document, about which a program is written: its words up to a full stop.

    A text that does not begin with a title of a few plain words gives its first plain word.
    """
    title = text.partition(".")[0].strip()
    if _TITLE.fullmatch(title):
        return title
    word = _WORD.search(text)
    return word[0] if word else "World"


def sample_program(rng: random.Random, family: str, level: int, theme: str) -> Program:
    """A program of that family and level (1 easiest .. 5 hardest); the same for the same `rng`."""
    if family not in FAMILIES:
        raise ValueError(f"there is no family {family!r}: choose one of {', '.join(FAMILIES)}")
    if level not in LEVELS:
        raise ValueError(f"there is no level {level}: choose one from {LEVELS[0]} to {LEVELS[-1]}")
    chosen = FAMILIES[family]
    return Program(
        family=family,
        skill=chosen.skill,
        kind=chosen.kind,
        level=level,
        code=chosen.write(rng, level, theme),
    )
