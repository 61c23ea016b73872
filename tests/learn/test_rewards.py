"""What a window of plays shows, and raw rewards from it, against numbers worked out by hand."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spade_jax.learn import rewards
from spade_jax.learn.rewards import (
    DESIGNER_REWARDS,
    REJECTIONS,
    DesignerTerms,
    Outcome,
    designer_reward,
    plateau,
    read_penalties,
)
from spade_jax.types import Reason, UsageError

TERMS = DesignerTerms(
    w_regret=0.4,
    w_plateau=0.6,
    regret_scale=0.15,
    plateau_low=0.4,
    plateau_high=0.6,
    plateau_ramp=0.25,
    w_micro=0.0,
    micro_scale=0.1,
    w_frontier=0.0,
    frontier_scale=0.08,
    w_variance=0.0,
)
FALLING = ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0), (1.0, 1.0, 0.0, 0.0))
CLIMBING = ((0.0, 0.0), (0.0, 0.5), (0.5, 0.5), (1.0, 0.5))
EMPTY = ((), ())


def reward(
    variant: str,
    window: tuple[tuple[float, ...], ...] = (),
    regret: float | None = None,
    mu_slow: float | None = None,
    **terms: float,
) -> float | None:
    outcome = Outcome(window_SG=window, regret=regret, mu_slow=mu_slow)
    return designer_reward(variant, outcome, dataclasses.replace(TERMS, **terms))


# -- what a window of plays shows -------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "win", "variance", "late_minus_early", "rise"),
    [
        # Steps 1 | 1, 1/2 pooled 4/6 against 4/4. Line: mean x (0 * 4 + 1 * 2 + 2 * 4) / 10 = 1,
        # mean y 0.8; (4 * -1 * 0.2 + 0 + 4 * 1 * -0.3) / (4 + 4) = -0.25, times 2.
        (FALLING, 0.8, 0.16, -1 / 3, -0.5),
        # Steps 0, 1/4 | 1/2, 3/4 : halves 1/8 and 5/8; slope 1/4 times 3. Squares of the eight
        # returns 0, 0, 0, 1/2, 1/2, 1/2, 1, 1/2 sum to 2; 2 / 8 - (3/8)^2.
        (CLIMBING, 0.375, 0.109375, 0.5, 0.75),
        (((1.0, 0.0), (0.5,)), 0.5, 1 / 6, 0.0, 0.0),
        (((0.0,), (1.0,), ()), 0.5, 0.25, 1.0, 2.0),  # a step without plays counts as a step
        (((0.0,), (), (0.5,)), 0.25, 0.0625, 0.5, 0.5),
        (((1.0, 0.0),), 0.5, 0.25, None, None),
        (((1.0,), ()), 1.0, 0.0, None, None),
        (((), (1.0,)), 1.0, 0.0, None, None),
        (EMPTY, None, None, None, None),
        ((), None, None, None, None),
    ],
)
def test_windows_by_hand(
    window: tuple[tuple[float, ...], ...],
    win: float | None,
    variance: float | None,
    late_minus_early: float | None,
    rise: float | None,
) -> None:
    assert rewards.win(window) == pytest.approx(win)
    assert rewards.variance(window) == pytest.approx(variance, abs=1e-15)
    assert rewards.late_minus_early(window) == pytest.approx(late_minus_early)
    assert rewards.rise(window) == pytest.approx(rise)


@pytest.mark.parametrize(
    ("window", "late", "early"),
    [
        (((0.0,), (0.25,), (1.0,)), (0.25 + 1.0) / 2, 0.0),  # the middle is late
        (((0.0,), (0.5,), (0.25,), (1.0,), (1.0,)), 0.75, 0.25),
        (((0.0,), (1.0, 1.0, 1.0), (0.0,), (0.0, 1.0)), 1 / 3, 0.75),  # plays, not steps, weigh
    ],
)
def test_halves_by_hand(window: tuple, late: float, early: float) -> None:
    assert rewards.late_minus_early(window) == pytest.approx(late - early)


returns = st.integers(-4, 4).map(lambda n: n / 4)
windows = st.lists(st.lists(returns, max_size=4).map(tuple), max_size=6).map(tuple)


@settings(max_examples=50)
@given(windows)
def test_rise_is_that_of_repeated_points(window: tuple) -> None:
    """Each play as a point of its own gives the line of weighted means."""
    points = [(x, y) for x, returns_G in enumerate(window) for y in returns_G]
    if len({x for x, _ in points}) < 2:
        assert rewards.rise(window) is None
        return
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum(
        (x - mean_x) ** 2 for x, _ in points
    )
    assert rewards.rise(window) == pytest.approx(slope * (len(window) - 1), abs=1e-12)


@settings(max_examples=50)
@given(windows, st.randoms(use_true_random=False))
def test_order_of_plays_within_a_step_does_not_matter(window: tuple, rng: object) -> None:
    shuffled = tuple(tuple(rng.sample(step, len(step))) for step in window)
    for quantity in (rewards.win, rewards.variance, rewards.late_minus_early, rewards.rise):
        assert quantity(shuffled) == pytest.approx(quantity(window), abs=1e-12)


@settings(max_examples=50)
@given(windows)
def test_time_reversed_a_rise_is_a_fall(window: tuple) -> None:
    forward, backward = rewards.rise(window), rewards.rise(window[::-1])
    assert (forward is None) == (backward is None)
    if forward is not None:
        assert backward == pytest.approx(-forward, abs=1e-12)
    if len(window) % 2 == 0:
        forward, backward = (rewards.late_minus_early(w) for w in (window, window[::-1]))
        assert forward == (None if backward is None else pytest.approx(-backward, abs=1e-12))


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


# -- variants ---------------------------------------------------------------------------------


def only(win: float | None) -> tuple[tuple[float, ...], ...]:
    """A window of one play."""
    return ((),) if win is None else ((win,),)


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
def test_rewards_by_hand(
    variant: str,
    win: float | None,
    regret: float | None,
    mu_slow: float | None,
    expected: float | None,
) -> None:
    value = reward(variant, only(win), regret, mu_slow)
    assert value == pytest.approx(expected, abs=1e-12)


def test_rewards_of_a_window_by_hand() -> None:
    assert reward("micro_lp", CLIMBING) == pytest.approx(0.5)
    assert reward("micro_lp", FALLING) == 0.0  # never negative
    assert reward("micro_lp", only(1.0)) is None
    # plateau(0.375) = 1 - 0.025 / 0.25 = 0.9, and 0.6 of it 0.54; regret earns 0.4.
    assert reward("blend", CLIMBING, 0.5) == pytest.approx(0.94)
    # + 0.1 * 0.75 / 0.1
    assert reward("blend", CLIMBING, 0.5, w_micro=0.1) == pytest.approx(1.69)
    # - 0.2 * (0.375 - 0.5)^2 / 0.08 = 0.2 * 0.1953125
    assert reward("blend", CLIMBING, 0.5, w_frontier=0.2) == pytest.approx(0.9009375)
    # 0.6 * plateau(0.8) = 0.6 * 0.2; 0.1 * -0.5 / 0.1; 0.2 * 0.09 / 0.08
    both = reward("blend", FALLING, -0.25, w_micro=0.1, w_frontier=0.2)
    assert both == pytest.approx(0.12 - 0.5 - 0.225)
    assert reward("blend", FALLING, -0.25, w_micro=0.2, micro_scale=0.5) == pytest.approx(-0.08)
    assert reward("blend", FALLING, 0, w_frontier=0.2, frontier_scale=0.9) == pytest.approx(0.1)
    assert reward("blend", only(0.5), 0.5, w_micro=0.1) is None  # one step rises nowhere


def test_bonus_for_variance_by_hand() -> None:
    assert rewards.variance_bonus(0.25) == 1.0
    assert rewards.variance_bonus(0.0) == pytest.approx(math.exp(-3.125))
    assert rewards.variance_bonus(0.15) == pytest.approx(math.exp(-0.5))
    # 0.16 of FALLING: exp(-0.09^2 / 0.02) = exp(-0.405)
    bonus = reward("regret", FALLING, 0.25, w_variance=0.5)
    assert bonus == pytest.approx(0.25 + 0.5 * 0.6669768, abs=1e-7)
    for variant in DESIGNER_REWARDS:
        plain = reward(variant, CLIMBING, 0.3, 0.2)
        assert reward(variant, CLIMBING, 0.3, 0.2, w_variance=2.0) == pytest.approx(
            plain + 2.0 * math.exp(-((0.109375 - 0.25) ** 2) / 0.02)
        )
    assert reward("regret", EMPTY, None, w_variance=1.0) is None
    assert reward("regret", EMPTY, 0.5, w_variance=1.0) is None  # its variance is unknown


@pytest.mark.parametrize("variant", DESIGNER_REWARDS)
@given(window=windows, regret=st.floats(-2, 2), mu_slow=st.floats(-1, 1))
@settings(max_examples=50)
def test_default_rewards_are_never_negative(
    variant: str, window: tuple, regret: float, mu_slow: float
) -> None:
    value = reward(variant, window, regret, mu_slow)
    assert value is None or value >= 0.0
    assert value is not None or variant != "regret"


@settings(max_examples=50)
@given(windows, st.floats(-1, 1), st.floats(0, 1))
def test_more_regret_never_earns_less(window: tuple, regret: float, more: float) -> None:
    for variant in ("regret", "blend"):
        low, high = (reward(variant, window, value) for value in (regret, regret + more))
        assert low is None or low <= high


def test_unknown_variant_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'surprise'; choose one of blend, regret"):
        reward("surprise")


# -- penalties --------------------------------------------------------------------------------


def test_penalties_by_reason() -> None:
    assert read_penalties("{}") == {}
    assert read_penalties('{"leak": -1, "new": 0.0}') == {Reason.LEAK: -1.0, Reason.NEW: 0.0}
    every = json.dumps(dict.fromkeys(REJECTIONS, -0.25))
    assert read_penalties(every) == dict.fromkeys(set(Reason) - {Reason.ACCEPTED}, -0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is '{', which is no JSON .*write it like"),
        ("[-1]", "must be a JSON object; write it like"),
        ('{"leek": -1}', "names 'leek', for which nothing is rejected; choose from extract, parse"),
        ('{"accepted": -1}', "names 'accepted', for which nothing is rejected"),
        ('{"leak": 0.5}', "gives 'leak' 0.5 but a penalty is at least -10 and at most 0"),
        ('{"leak": -11}', "gives 'leak' -11 but"),
        ('{"leak": NaN}', "gives 'leak' nan but"),
        ('{"leak": "-1"}', "gives 'leak' '-1' but"),
        ('{"leak": false}', "gives 'leak' False but"),
    ],
)
def test_penalties_that_are_none(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        read_penalties(text)
    assert "\n" not in str(raised.value)
