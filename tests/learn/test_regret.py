"""Regret and the designer's raw rewards against numbers worked out by hand."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spade_jax.learn.regret import (
    DESIGNER_REWARDS,
    DesignerTerms,
    Outcome,
    designer_reward,
    paired_regret,
    plateau,
)
from spade_jax.types import Arm, Episode, EpisodeEnd, Regret

TERMS = DesignerTerms(
    w_regret=0.4,
    w_plateau=0.6,
    regret_scale=0.15,
    plateau_low=0.4,
    plateau_high=0.6,
    plateau_ramp=0.25,
)
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


def test_only_seeds_played_in_both_arms_count() -> None:
    late = [dataclasses.replace(e, seed=e.seed + 1) for e in hinted(1.0, 1.0, 1.0)]
    regret = paired_regret(plain(1.0, 0.0), late)  # seeds 0, 1 against 1, 2, 3
    assert regret == Regret(mean=1.0, stderr=None, pairs=1)


def test_no_valid_pair_is_unknown() -> None:
    assert paired_regret([], []) == UNKNOWN
    assert paired_regret(plain(None), hinted(1.0)) == UNKNOWN
    assert paired_regret(plain(0.5), []) == UNKNOWN


def test_repeated_seed_is_an_error() -> None:
    twice = [episode(Arm.PLAIN, 3, 0.0), episode(Arm.PLAIN, 3, 1.0)]
    with pytest.raises(ValueError, match="seed is played twice"):
        paired_regret(twice, hinted(1.0))


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


@pytest.mark.parametrize(
    ("win", "expected"),
    [
        (0.4, 1.0),
        (0.5, 1.0),
        (0.6, 1.0),
        (0.275, 0.5),  # 0.125 below, half of the ramp
        (0.725, 0.5),
        (0.15, 0.0),
        (0.85, 0.0),
        (0.0, 0.0),
        (1.0, 0.0),
        (-1.0, 0.0),
    ],
)
def test_plateau_by_hand(win: float, expected: float) -> None:
    assert plateau(win, 0.4, 0.6, 0.25) == pytest.approx(expected, abs=1e-12)


@given(st.floats(-1, 1))
def test_plateau_is_symmetric_and_bounded(win: float) -> None:
    value = plateau(win, 0.4, 0.6, 0.25)
    assert 0.0 <= value <= 1.0
    assert plateau(1.0 - win, 0.4, 0.6, 0.25) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("variant", "win", "regret", "mu_slow", "expected"),
    [
        ("regret", 0.5, 0.3, None, 0.3),
        ("regret", 0.5, -0.3, None, 0.0),
        ("regret", 0.5, None, None, None),
        ("solve_rate", 0.725, None, None, 0.5),
        ("solve_rate", None, 0.3, None, None),
        ("blend", 0.5, 0.15, None, 1.0),
        ("blend", 0.5, 0.9, None, 1.0),
        ("blend", 0.5, 0.075, None, 0.8),  # 0.4 * 1/2 + 0.6
        ("blend", 0.275, 0.0, None, 0.3),  # 0.6 * 1/2
        ("blend", 0.275, -0.5, None, 0.3),
        ("blend", 0.0, 0.075, None, 0.2),
        ("blend", None, 0.1, None, None),
        ("blend", 0.5, None, None, None),
        ("learning_potential", 0.25, None, 0.75, 0.5),
        ("learning_potential", 0.75, None, 0.25, 0.5),
        ("learning_potential", 0.75, None, None, None),
        ("learning_potential", None, None, 0.25, None),
    ],
)
def test_designer_rewards_by_hand(
    variant: str,
    win: float | None,
    regret: float | None,
    mu_slow: float | None,
    expected: float | None,
) -> None:
    value = designer_reward(variant, Outcome(win=win, regret=regret, mu_slow=mu_slow), TERMS)
    if expected is None:
        assert value is None
    else:
        assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("variant", DESIGNER_REWARDS)
@given(win=st.floats(-1, 1), regret=st.floats(-2, 2), mu_slow=st.floats(-1, 1))
def test_default_rewards_are_never_negative(
    variant: str, win: float, regret: float, mu_slow: float
) -> None:
    outcome = Outcome(win=win, regret=regret, mu_slow=mu_slow)
    value = designer_reward(variant, outcome, TERMS)
    assert value is not None and value >= 0.0


def test_unknown_variant_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'surprise'; choose one of blend, regret"):
        designer_reward("surprise", Outcome(win=None, regret=None, mu_slow=None), TERMS)
