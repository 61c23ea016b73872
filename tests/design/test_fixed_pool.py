"""The fixed pool: what is in it, and in which order epochs draw from it."""

import collections

import pytest

from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES
from spade_jax.design.fixed_pool import bundled_pool, draw
from spade_jax.types import Environment, UsageError


def pool(size: int, *skills: str) -> list[Environment]:
    with Corpus("", seed=1, max_words=24) as corpus:
        return bundled_pool(3, size, skills, corpus)


def test_families_of_the_skills_take_turns() -> None:
    environments = pool(8, "Pattern Recognition", "Optimization")
    wanted = [
        f.skill for f in FAMILIES.values() if f.skill in ("Pattern Recognition", "Optimization")
    ]
    assert [e.skill for e in environments] == (wanted * 8)[:8]
    assert len({e.id for e in environments}) == 8
    assert environments == pool(8, "Pattern Recognition", "Optimization")


def test_skills_without_a_family_are_refused() -> None:
    with pytest.raises(UsageError, match="of the skills Memory Recall, .* choose skills among"):
        pool(4, "Memory Recall")


def test_an_epoch_never_holds_an_environment_twice() -> None:
    """Ten for epochs of four: two epochs without repetition, then another order."""
    environments = pool(10, "Optimization")
    epochs = [[e.id for e in draw(environments, 4, epoch, seed=5)] for epoch in range(40)]
    assert all(len(set(drawn)) == 4 for drawn in epochs)
    rounds = [epochs[n] + epochs[n + 1] for n in range(0, 40, 2)]
    assert all(len(set(drawn)) == 8 for drawn in rounds)
    assert len({tuple(drawn) for drawn in rounds}) == 20
    counts = collections.Counter(name for drawn in rounds for name in drawn)
    assert len(counts) == 10 and min(counts.values()) >= 10  # 16 each on average


def test_a_pool_of_one_epoch_is_drawn_whole_every_time() -> None:
    environments = pool(4, "Optimization")
    drawn = [draw(environments, 4, epoch, seed=5) for epoch in range(6)]
    for each in drawn:
        assert {e.id for e in each} == {e.id for e in environments}
