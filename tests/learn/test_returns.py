"""Episode returns against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spade_jax.learn.returns import RETURNS, episode_return

finite = st.floats(-10, 10)
broken = st.sampled_from([math.nan, math.inf, -math.inf])


@pytest.mark.parametrize(
    ("rewards", "terminated", "mode", "expected"),
    [
        ([0.0, 0.25, 0.5], True, "final", 0.5),
        ([0.0, 7.0], True, "final", 1.0),
        ([0.0, -7.0], True, "final", -1.0),
        ([1.0, 1.0], False, "final", 0.0),
        ([], True, "final", 0.0),
        ([0.25, -0.5, 0.5], True, "sum", 0.25),
        ([0.75, 0.75], True, "sum", 1.0),
        ([-3.0, 1.0], True, "sum", -1.0),
        ([0.75], False, "sum", 0.0),
        ([1.0, 2.0, 4.0], True, "discounted", 3.0),  # 1 + 2 / 2 + 4 / 4
        ([4.0, 2.0], True, "discounted", 5.0),
        ([4.0], False, "discounted", 0.0),
    ],
)
def test_returns_by_hand(
    rewards: list[float], terminated: bool, mode: str, expected: float
) -> None:
    assert episode_return(rewards, terminated, mode, discount=0.5) == expected


@pytest.mark.parametrize("mode", RETURNS)
@given(before=st.lists(finite), bad=broken, after=st.lists(finite), terminated=st.booleans())
def test_non_finite_reward_anywhere_fails_the_episode(
    mode: str, before: list[float], bad: float, after: list[float], terminated: bool
) -> None:
    assert episode_return([*before, bad, *after], terminated, mode, 0.99) is None


@pytest.mark.parametrize("mode", ["sum", "discounted"])
def test_total_that_overflows_is_no_win(mode: str) -> None:
    assert episode_return([1e308, 1e308], True, mode, 1.0) is None


@pytest.mark.parametrize("mode", ["final", "sum"])
@given(rewards=st.lists(finite, min_size=1))
def test_clipped_modes_stay_within_one(mode: str, rewards: list[float]) -> None:
    value = episode_return(rewards, True, mode, 0.99)
    assert value is not None and -1.0 <= value <= 1.0


def test_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'best'; choose one of final, sum, discounted"):
        episode_return([1.0], True, "best", 0.99)
