"""Trackers of learning potential against numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spade_jax.learn.trackers import learning_potential, update_tracker
from spade_jax.types import Tracker


def test_first_value_is_taken_as_it_is() -> None:
    assert update_tracker(Tracker(), 0.3, 0.98, 0.85) == Tracker(fast=0.3, slow=0.3)


def test_update_by_hand() -> None:
    # fast: 0.25 * 0.5 + 0.75 * 1; slow: 0.75 * 0.5 + 0.25 * 1
    updated = update_tracker(Tracker(fast=0.5, slow=0.5), 1.0, 0.75, 0.25)
    assert updated == Tracker(fast=0.875, slow=0.625)


def test_potential_by_hand() -> None:
    # 0.25 / (2 * (0.75 - 0.25))
    assert learning_potential(Tracker(fast=0.875, slow=0.625), 0.75, 0.25) == 0.25
    assert learning_potential(Tracker(fast=0.625, slow=0.875), 0.75, 0.25) == 0.25


def test_potential_is_unknown_before_the_first_value() -> None:
    assert learning_potential(Tracker(), 0.98, 0.85) is None


def test_potential_needs_a_faster_fast_tracker() -> None:
    with pytest.raises(ValueError, match="gamma_fast must exceed gamma_slow"):
        learning_potential(Tracker(fast=0.5, slow=0.5), 0.5, 0.5)


@given(st.floats(-1, 1), st.integers(1, 20))
def test_a_constant_return_shows_no_potential(x: float, times: int) -> None:
    tracker = Tracker()
    for _ in range(times):
        tracker = update_tracker(tracker, x, 0.98, 0.85)
    assert learning_potential(tracker, 0.98, 0.85) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_means_stay_within_what_they_saw(values: list[float]) -> None:
    tracker = Tracker()
    for x in values:
        tracker = update_tracker(tracker, x, 0.98, 0.85)
    for mean in (tracker.fast, tracker.slow):
        assert mean is not None and min(values) - 1e-12 <= mean <= max(values) + 1e-12
