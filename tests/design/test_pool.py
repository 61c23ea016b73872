"""What leaves the pool, and what goes on into the next epoch."""

import dataclasses

import pytest

from spade_jax.design import pool
from spade_jax.types import Environment, Kind, PoolEntry, Regret

BOUNDS = pool.Bounds(easy=0.75, hard=0.25, min_plays=4)


def entry(
    name: str, *plain: tuple[float, ...], regret: float | None = 0.0, hung: bool = False
) -> PoolEntry:
    return PoolEntry(
        environment=Environment(id=name, kind=Kind.GAME, skill="s", code="", iteration=0),
        plain=plain,
        regret=Regret(mean=regret, stderr=None, pairs=0 if regret is None else 1),
        hung=hung,
    )


def names(entries: pool.Pool) -> list[str]:
    return [each.environment.id for each in entries]


@pytest.mark.parametrize(
    ("plain", "retired"),
    [
        (((1, 1, 1, 1),), True),  # always won
        (((0, 0, 0, 0),), True),  # never won
        (((1, 1, 1, 0),), False),  # 0.75 is within, as is 0.25
        (((1, 0, 0, 0),), False),
        (((0.6, 0.6, 0.6, 0.5),), False),  # one half is not won
        (((1, 1, 1),), False),  # three plays are too few to judge by
        (((0, 1), (1, 1)), True),  # four are enough, and the last two are all won
        (((1, 1, 1, 1), (1, 0, 1, 0)), False),  # what it was before does not count
        (((1, 1, 1, 1), ()), False),  # nothing known of the last iteration
        ((), False),
    ],
)
def test_the_last_win_rate_retires(plain: tuple[tuple[float, ...], ...], retired: bool) -> None:
    [after] = pool.retire([entry("a", *plain)], BOUNDS)
    assert after == dataclasses.replace(entry("a", *plain), retired=retired)


def test_the_retired_stay_so() -> None:
    [once] = pool.retire([entry("a", (1, 1, 1, 1))], BOUNDS)
    assert pool.retire([once], pool.Bounds(easy=1.0, hard=0.0, min_plays=1)) == (once,)


def test_bounds_of_one_and_zero_retire_nothing() -> None:
    entries = (entry("a", (1, 1, 1, 1)), entry("b", (0, 0, 0, 0)), entry("c", (-1, -1, -1, -1)))
    assert pool.retire(entries, pool.Bounds(easy=1.0, hard=0.0, min_plays=1)) == entries


def test_those_of_highest_regret_are_kept() -> None:
    even = (1, 0, 1, 0)
    entries = [
        entry("low", even, regret=-0.2),
        entry("high", (0, 0, 0, 0), even, regret=0.5),
        entry("unknown", even, regret=None),
        entry("easy", even, (1, 1, 1, 1), regret=0.9),
        entry("few", (1, 1), regret=0.9),
        entry("hung", even, regret=0.9, hung=True),
        entry("failed", even, (), regret=0.9),
        dataclasses.replace(entry("retired", even, regret=0.9), retired=True),
        entry("middle", even, regret=0.1),
    ]
    kept = pool.keep(entries, BOUNDS, 2)
    assert names(kept) == ["high", "middle"]
    assert kept[0] == dataclasses.replace(entries[1], plain=(even,))
    assert names(pool.keep(entries, BOUNDS, 9)) == ["low", "high", "unknown", "middle"]
    assert pool.keep(entries, BOUNDS, 0) == ()
