"""Regret against numbers worked out by hand, and its properties."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spade_jax.learn.regret import paired_regret, pool_regrets
from spade_jax.types import Arm, Episode, EpisodeEnd, Regret

UNKNOWN = Regret(mean=None, stderr=None, pairs=0)


def episode(arm: Arm, seed: int, value: float | None, leaks: bool = False) -> Episode:
    return Episode(
        environment_id="000001-002",
        arm=arm,
        play=seed,
        seed=seed,
        turns=(),
        end=EpisodeEnd.FAILED if value is None else EpisodeEnd.TERMINATED,
        records=(),
        episode_return=value,
        hint="Add." if arm is Arm.HINTED else None,
        hint_leaks=leaks,
    )


def plain(*values: float | None) -> list[Episode]:
    return [episode(Arm.PLAIN, seed, value) for seed, value in enumerate(values)]


def hinted(*values: float | None) -> list[Episode]:
    return [episode(Arm.HINTED, seed, value) for seed, value in enumerate(values)]


def test_regret_by_hand() -> None:
    # Differences 1, 0, 1, 0: mean 1/2, variance 4 * (1/4) / 3 = 1/3, stderr sqrt(1/12).
    regret = paired_regret(plain(0.0, 1.0, 0.0, 0.0), hinted(1.0, 1.0, 1.0, 0.0))
    assert regret.mean == 0.5
    assert regret.stderr == pytest.approx(math.sqrt(1 / 12), rel=1e-12)
    assert regret.pairs == 4


def test_regret_is_not_floored() -> None:
    assert paired_regret(plain(1.0, 1.0), hinted(0.0, 1.0)).mean == -0.5


def test_pairs_with_a_failed_arm_are_dropped() -> None:
    regret = paired_regret(plain(None, 0.0, 0.0), hinted(1.0, None, 0.25))
    assert regret == Regret(mean=0.25, stderr=None, pairs=1)


def test_pairs_whose_hint_leaks_are_dropped() -> None:
    leaking = [episode(Arm.HINTED, 0, 1.0, leaks=True), episode(Arm.HINTED, 1, 0.5)]
    assert paired_regret(plain(0.0, 0.0), leaking) == Regret(mean=0.5, stderr=None, pairs=1)


def test_only_plays_of_both_arms_count() -> None:
    late = [dataclasses.replace(e, play=e.play + 1, seed=e.seed + 1) for e in hinted(1.0, 1.0, 1.0)]
    regret = paired_regret(plain(1.0, 0.0), late)  # plays 0, 1 against 1, 2, 3
    assert regret == Regret(mean=1.0, stderr=None, pairs=1)


def test_a_play_on_another_seed_is_no_partner() -> None:
    other = [dataclasses.replace(e, seed=e.seed + 100) for e in hinted(1.0, 1.0)]
    assert paired_regret(plain(0.0, 0.0), [other[0], hinted(1.0, 0.5)[1]]) == Regret(
        mean=0.5, stderr=None, pairs=1
    )


def test_no_valid_pair_is_unknown() -> None:
    assert paired_regret([], []) == UNKNOWN
    assert paired_regret(plain(None), hinted(1.0)) == UNKNOWN
    assert paired_regret(plain(0.5), []) == UNKNOWN


def test_repeated_play_is_an_error() -> None:
    twice = [episode(Arm.PLAIN, 3, 0.0), episode(Arm.PLAIN, 3, 1.0)]
    with pytest.raises(ValueError, match="a play is there twice"):
        paired_regret(twice, hinted(1.0))


def test_seeds_of_two_plays_may_be_equal() -> None:
    arms = [[dataclasses.replace(e, seed=7) for e in arm] for arm in (plain(0, 0), hinted(1, 0))]
    assert paired_regret(*arms).pairs == 2 and paired_regret(*arms).mean == 0.5


returns = st.one_of(st.none(), st.floats(-1, 1))


@given(st.lists(st.tuples(returns, returns), max_size=12), st.randoms(use_true_random=False))
def test_order_of_episodes_does_not_matter(
    pairs: list[tuple[float | None, float | None]], rng: random.Random
) -> None:
    arms = (plain(*(a for a, _ in pairs)), hinted(*(b for _, b in pairs)))
    expected = paired_regret(*arms)
    rng.shuffle(arms[0])
    rng.shuffle(arms[1])
    assert paired_regret(*arms) == expected


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=12))
def test_swapping_the_arms_negates_regret(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    forward = paired_regret(plain(*first), hinted(*second))
    backward = paired_regret(plain(*second), hinted(*first))
    assert forward.mean == -backward.mean
    assert forward.stderr == backward.stderr


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8))
def test_failed_and_leaking_pairs_change_nothing(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    n = len(pairs)
    more = [
        *(episode(Arm.HINTED, n, None), episode(Arm.HINTED, n + 1, 1.0)),
        *(episode(Arm.HINTED, n + 2, 1.0, leaks=True), episode(Arm.HINTED, n + 3, 1.0)),
    ]
    plays = [*plain(*first, 0.0, None, 0.0)]  # and no partner for the last
    assert paired_regret(plays, [*hinted(*second), *more]) == paired_regret(
        plain(*first), hinted(*second)
    )


pairs = st.tuples(st.integers(-4, 4), st.integers(-4, 4)).map(lambda p: (p[0] / 4, p[1] / 4))


@given(st.lists(st.lists(pairs, max_size=4), max_size=4))
def test_pooled_regret_is_that_of_all_pairs(environments: list[list[tuple[float, float]]]) -> None:
    def regret(some: list[tuple[float, float]]) -> Regret:
        return paired_regret(plain(*(a for a, _ in some)), hinted(*(b for _, b in some)))

    whole = regret([pair for some in environments for pair in some])
    pooled = pool_regrets([regret(some) for some in environments])
    assert pooled.pairs == whole.pairs
    assert pooled.mean == pytest.approx(whole.mean, abs=1e-12)
    assert pooled.stderr == pytest.approx(whole.stderr, abs=1e-12)


def test_a_hinted_play_without_a_hint_makes_no_pair() -> None:
    """The program had none for that instance: its arms are alike, which says nothing of hints."""
    arms = plain(0.0, 0.0), hinted(1.0, 0.0)
    arms[1][1] = dataclasses.replace(arms[1][1], hint=None)
    assert paired_regret(*arms) == Regret(mean=1.0, stderr=None, pairs=1)
