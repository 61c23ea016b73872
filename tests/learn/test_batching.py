"""Packing: weights by hand, every conversation in one place, and back again."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spade_jax.learn import batching
from spade_jax.learn.batching import Row
from spade_jax.types import Role, TokenRecord


def row(context: int, own: int, seed: int = 0, **fields: object) -> Row:
    """A conversation of some read and then some sampled tokens."""
    rng = np.random.default_rng(seed)
    ids = tuple(rng.integers(1, 60, context + own).tolist())
    logp = tuple((-rng.random(own)).tolist())
    record = TokenRecord().read(ids[:context]).wrote(ids[context:], logp)
    return Row(
        **{"record": record, "role": Role.AGENT, "advantage": 1.0, "temperature": 1.0} | fields
    )


def test_weights_by_hand() -> None:
    rows = [row(2, 3), row(4, 1), row(5, 0), row(0, 5)]
    assert [r.trained for r in rows] == [3, 1, 0, 4]  # nothing predicts a first token
    assert batching.token_weights(rows, "token_mean") == [1 / 8, 1 / 8, 0.0, 1 / 8]
    assert batching.token_weights(rows, "sequence_mean") == [1 / 9, 1 / 3, 0.0, 1 / 12]


def test_weights_of_a_conversation_in_several_rows() -> None:
    parts = [row(3, 2, conversation=0), row(2, 4, conversation=0), row(1, 0, conversation=0)]
    rows = [*parts, row(1, 3, conversation=1)]
    assert batching.token_weights(rows, "token_mean") == [1 / 9, 1 / 9, 0.0, 1 / 9]
    assert batching.token_weights(rows, "sequence_mean") == [1 / 12, 1 / 12, 0.0, 1 / 6]


@pytest.mark.parametrize("aggregation", batching.AGGREGATIONS)
def test_weights_of_nothing(aggregation: str) -> None:
    assert batching.token_weights([], aggregation) == []
    assert batching.token_weights([row(3, 0), row(1, 0)], aggregation) == [0.0, 0.0]


def test_an_unknown_aggregation() -> None:
    with pytest.raises(ValueError, match="aggregation must be one of .*'token_mean'.*, not 'sum'"):
        batching.token_weights([], "sum")


def test_lay_out_by_hand() -> None:
    # longest first: 9 and 7 need long rows, 4 a short one, 3 fills up the 7's, both 2 share one
    layout = batching.lay_out([4, 9, 2, 7, 3, 2], (5, 10))
    assert layout.buckets == (5, 10)
    assert layout.places == ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 7), (0, 1, 2))
    assert layout.rows == (2, 2)


@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    buckets=st.lists(st.integers(8, 40), min_size=1, max_size=3, unique=True),
)
def test_every_conversation_lies_in_one_place(lengths: list[int], buckets: list[int]) -> None:
    buckets = sorted([*buckets, 41])
    layout = batching.lay_out(lengths, buckets)
    taken = [np.zeros((n, size), int) for n, size in zip(layout.rows, buckets, strict=True)]
    for n, (b, r, start) in zip(lengths, layout.places, strict=True):
        assert n <= buckets[b]
        shortest = next(k for k, size in enumerate(buckets) if n <= size)
        assert b == shortest or start > 0, "a row is opened in the shortest length that can hold"
        assert start + n <= buckets[b]
        taken[b][r, start : start + n] += 1
    for used in taken:
        assert used.max(initial=0) <= 1, "no two in one place"
        tokens = used.sum(axis=1)
        # of two rows, the later one's first conversation did not fit the earlier one
        assert all(a + b > used.shape[1] for a, b in itertools.pairwise(tokens))
    assert batching.lay_out(lengths, buckets) == layout


def test_a_conversation_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="of 11 tokens does not fit rows of 10; raise learn.row_t"):
        batching.lay_out([3, 11], (5, 10))


def test_packing_by_hand() -> None:
    a = Row(
        record=TokenRecord().read((7,)).wrote((8, 9), (-0.5, -0.25), (-0.25, -0.125)),
        role=Role.DESIGNER,
        advantage=2.0,
        temperature=0.6,
        logp_old=(0.0, -0.75, -0.5),
    )
    b = Row(
        record=TokenRecord().read((4,)).wrote((5,), (-1.0,)),
        role=Role.AGENT,
        advantage=-1.0,
        temperature=1.0,
        logp_reference=(0.0, -2.0),
    )
    [p], counts, _ = batching.pack([b, a], [0.5, 0.25], buckets=(6,), micro_rows=(1,))
    assert counts.tolist() == [1]
    expected = {
        "tokens": [7, 8, 9, 4, 5, 0],
        "positions": [0, 1, 2, 0, 1, 0],
        "segments": [1, 1, 1, 2, 2, 0],  # numbered in the order in which they are written
        "target": [8, 9, 0, 5, 0, 0],
        "weight": [0.25, 0.25, 0.0, 0.5, 0.0, 0.0],
        "advantage": [2.0, 2.0, 0.0, -1.0, 0.0, 0.0],
        "designer": [True, True, False, False, False, False],
        "logp_behaviour": [-0.25, -0.125, 0.0, -1.0, 0.0, 0.0],
        "logp_old": [-0.75, -0.5, 0.0, -1.0, 0.0, 0.0],
        "logp_reference": [-0.5, -0.25, 0.0, -2.0, 0.0, 0.0],
    }
    assert p.segments[0, 0].tolist() == [2, 2, 2, 1, 1, 0]
    for name, values in expected.items():
        if name != "segments":
            assert getattr(p, name)[0, 0].tolist() == values, name
    np.testing.assert_allclose(p.temperature[0, 0], [0.6, 0.6, 1, 1, 1, 1], rtol=1e-6)


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12), micro=st.integers(1, 3))
def test_packing_and_unpacking(lengths: list[int], micro: int) -> None:
    rows = [row(n - n // 2, n // 2, seed=i) for i, n in enumerate(lengths)]
    packed, counts, layout = batching.pack(
        rows, [1.0] * len(rows), buckets=(8, 24), micro_rows=(micro, 1)
    )
    for b, (p, width) in enumerate(zip(packed, (micro, 1), strict=True)):
        assert p.tokens.shape == (counts[b], width, (8, 24)[b])
        assert all(a.shape == p.tokens.shape for a in p)
        assert counts[b] == -(-layout.rows[b] // width)
    targets = batching.unpack([p.target for p in packed], layout, lengths)
    logps = batching.unpack([p.logp_behaviour for p in packed], layout, lengths)
    trained = batching.unpack([p.weight for p in packed], layout, lengths)
    for r, target, logp, own in zip(rows, targets, logps, trained, strict=True):
        assert target[1:] == r.record.ids[1:]
        np.testing.assert_allclose(logp[1:], r.record.logp[1:], rtol=1e-6)
        assert own[1:] == r.record.action[1:]
        assert (target[0], logp[0]) == (0.0, 0.0)
    assert sum(p.weight.sum() for p in packed) == sum(r.trained for r in rows)
    assert sum((p.segments > 0).sum() for p in packed) == sum(lengths)


def test_capacity_pads_micro_batches() -> None:
    rows = [row(2, 2), row(3, 3)]
    packed, counts, _ = batching.pack(
        rows, [1.0, 1.0], buckets=(6, 9), micro_rows=(1, 2), capacity=(4, 1)
    )
    assert [p.tokens.shape for p in packed] == [(4, 1, 6), (1, 2, 9)]
    assert counts.tolist() == [2, 0]
    assert not packed[0].weight[2:].any()
    assert not packed[1].segments.any()
    more, counts, _ = batching.pack(
        rows, [1.0, 1.0], buckets=(6, 9), micro_rows=(1, 2), capacity=(1, 1)
    )
    assert more[0].tokens.shape == (2, 1, 6), "capacity is no limit"
