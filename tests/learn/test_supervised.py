"""Batches for supervised training: everyone once an epoch, never more than fits."""

import collections
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spade_jax.learn import supervised


def rows_needed(lengths: list[int], size: int) -> int:
    """Rows filled in order, a new one where a conversation does not fit."""
    rows, space = 0, 0
    for n in lengths:
        if n > space:
            rows, space = rows + 1, size
        space -= n
    return rows


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=25),
    counts=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 5),
)
def test_rows_are_never_overfull(lengths: list[int], counts: tuple[int, int], seed: int) -> None:
    buckets = (10, 30)
    for group in itertools.islice(supervised.groups(lengths, buckets, counts, seed), 5):
        short = [lengths[i] for i in group if lengths[i] <= 10]
        long = [lengths[i] for i in group if lengths[i] > 10]
        assert group == [i for i in group if lengths[i] <= 10] + [
            i for i in group if lengths[i] > 10
        ]
        for part, size, count in ((short, 10, counts[0]), (long, 30, counts[1])):
            if part:
                assert rows_needed(part, size) == count


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=25), seed=st.integers(0, 5))
def test_everyone_once_an_epoch(lengths: list[int], seed: int) -> None:
    """The n-th pass of each row length holds each of its conversations exactly once."""
    seen: dict[bool, list[int]] = {True: [], False: []}
    for group in itertools.islice(supervised.groups(lengths, (10, 30), (1, 1), seed), 40):
        for i in group:
            seen[lengths[i] <= 10].append(i)
    for short, order in seen.items():
        members = [i for i, n in enumerate(lengths) if (n <= 10) == short]
        assert not members or len(order) > len(members)
        for start in range(0, len(order) - len(members), max(1, len(members))):
            epoch = order[start : start + len(members)]
            assert collections.Counter(epoch) == collections.Counter(members)


def test_orders_are_seeded_and_change_with_the_epoch() -> None:
    def order(seed: int) -> list[int]:
        stream = supervised.groups([4] * 20, (4,), (1,), seed)
        return [i for group in itertools.islice(stream, 40) for i in group]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1)[:20] != order(1)[20:]


def test_longer_ones_are_left_out() -> None:
    stream = supervised.groups([5, 31, 12], (10, 30), (1, 1), 0)
    assert {i for group in itertools.islice(stream, 6) for i in group} == {0, 2}


def test_nothing_fits() -> None:
    with pytest.raises(ValueError, match="no conversation fits rows of 30 tokens; raise train.row"):
        next(supervised.groups([31, 40], (10, 30), (1, 1), 0))
