"""The rotation of skills."""

import collections

from spade_jax.design.skills import active_skills


def test_three_of_five_in_turn() -> None:
    """Epoch e starts at 3 e mod 5: 0, 3, 1, 4, 2, and then again 0."""
    epochs = ["".join(active_skills("abcde", 3, epoch)) for epoch in range(6)]
    assert epochs == ["abc", "dea", "bcd", "eab", "cde", "abc"]
    assert set(collections.Counter("".join(epochs[:5])).values()) == {3}


def test_as_many_as_there_are_or_more() -> None:
    assert [active_skills("abc", n, 1) for n in (3, 4)] == [tuple("abc")] * 2
