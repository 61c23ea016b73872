"""How procedural tasks get harder: the window that rises, and the potential of what is learnt."""

import collections
import dataclasses
import random

import pytest

from spade_jax.learn.difficulty import Schedule, choose, potential, update, window
from spade_jax.types import Difficulty, Tracker

WINDOW = Schedule(
    by="window",
    width=4,
    attempts=128,
    success=0.9,
    gamma_fast=0.35,
    gamma_slow=0.15,
    random_share=0.5,
    won=0.5,
)
POTENTIAL = dataclasses.replace(WINDOW, by="potential")


def plays(won: int, lost: int) -> list[float]:
    return [1.0] * won + [0.0] * lost


# -- the window -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempts", "wins", "won", "lost", "expected"),
    [
        (0, 0, 16, 0, (3, 16, 16)),  # too few to look at
        (112, 100, 15, 0, (3, 127, 115)),  # one too few
        (112, 100, 16, 0, (4, 0, 0)),  # 116 of 128 are 0.906
        (112, 100, 15, 1, (3, 0, 0)),  # 115 of 128 are 0.898; counted anew all the same
        (112, 112, 0, 16, (3, 0, 0)),  # 112 of 128 are 0.875
        (120, 109, 8, 2, (4, 0, 0)),  # 117 of 130 are 0.9
        (127, 127, 0, 0, (3, 127, 127)),
    ],
)
def test_the_top_rises_when_enough_plays_there_were_won(
    attempts: int, wins: int, won: int, lost: int, expected: tuple[int, int, int]
) -> None:
    state = Difficulty(levels=5, top=3, attempts=attempts, wins=wins)
    after = update(state, {3: plays(won, lost), 2: plays(50, 0)}, WINDOW)
    assert (after.top, after.attempts, after.wins) == expected
    assert (after.levels, after.trackers) == (5, ())


def test_the_hardest_level_is_the_last() -> None:
    state = Difficulty(levels=3, top=3, attempts=100, wins=100)
    assert update(state, {3: plays(28, 0)}, WINDOW) == Difficulty(levels=3, top=3)


def test_a_part_of_the_answer_is_no_win_where_all_is_asked() -> None:
    strict = dataclasses.replace(WINDOW, won=1 - 1e-6)
    after = update(Difficulty(levels=3), {1: [1.0, 0.95, 0.6, -1.0]}, strict)
    assert (after.attempts, after.wins) == (4, 1)
    assert update(Difficulty(levels=3), {1: [1.0, 0.95, 0.6, -1.0]}, WINDOW).wins == 3


def test_levels_of_the_window() -> None:
    tops = [list(window(Difficulty(levels=9, top=top), 4)) for top in (1, 3, 4, 7)]
    assert tops == [[1], [1, 2, 3], [1, 2, 3, 4], [4, 5, 6, 7]]


def test_every_task_and_every_level_of_its_window_is_chosen() -> None:
    state = {"b": Difficulty(levels=9, top=7), "a": Difficulty(levels=5)}
    chosen = choose(random.Random(1), state, 1000, WINDOW)
    counts = collections.Counter(chosen)
    assert set(counts) == {("a", 1), ("b", 4), ("b", 5), ("b", 6), ("b", 7)}
    assert 430 < counts["a", 1] < 570  # half of 1000, give or take 4.4 standard errors of 16
    assert all(70 < counts["b", level] < 180 for level in (4, 5, 6, 7))
    other = dict(reversed(state.items()))
    assert choose(random.Random(1), other, 1000, WINDOW) == chosen, "in whichever order"


# -- learning potential -----------------------------------------------------------------------


def test_trackers_follow_the_returns_of_their_level() -> None:
    state = update(Difficulty(levels=4), {2: [1.0, 0.0]}, POTENTIAL)
    assert state == Difficulty(levels=4, trackers=(Tracker(), Tracker(fast=0.5, slow=0.5)))
    state = update(state, {2: [1.0], 1: []}, POTENTIAL)
    # 0.65 * 0.5 + 0.35 = 0.675; 0.85 * 0.5 + 0.15 = 0.575; 0.1 / (2 * 0.2) = 0.25.
    assert state.trackers[1].fast == pytest.approx(0.675)
    assert state.trackers[1].slow == pytest.approx(0.575)
    assert [potential(state, n, POTENTIAL) for n in (1, 2, 3)] == pytest.approx([0, 0.25, 0])
    assert state.top == 1


def test_half_by_potential_and_half_at_random() -> None:
    learnt = (Tracker(fast=0.5, slow=0.5), Tracker(fast=0.7, slow=0.6))
    state = {"a": Difficulty(levels=2, trackers=learnt), "b": Difficulty(levels=2)}
    chosen = choose(random.Random(2), state, 2001, POTENTIAL)
    assert set(chosen[:1000]) == {("a", 2)}, "2001 - 1001 by potential, which one cell has"
    counts = collections.Counter(chosen[1000:])
    assert len(counts) == 4 and sum(counts.values()) == 1001
    assert all(180 < count < 320 for count in counts.values())  # 250 each, error 14


def test_without_any_potential_all_is_random() -> None:
    state = {"a": Difficulty(levels=2), "b": Difficulty(levels=2)}
    assert len(set(choose(random.Random(3), state, 100, POTENTIAL))) == 4


def test_potential_shares_by_its_size() -> None:
    learnt = (Tracker(fast=0.7, slow=0.6), Tracker(fast=0.3, slow=0.6))
    greedy = dataclasses.replace(POTENTIAL, random_share=0.0)
    state = {"a": Difficulty(levels=2, trackers=learnt)}
    counts = collections.Counter(choose(random.Random(4), state, 4000, greedy))
    assert 870 < counts["a", 1] < 1130  # potentials 0.25 and 0.75; error 27
