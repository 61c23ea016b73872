"""A sampler that leads and one that follows it: without hosts, the messages go through a list."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import lockstep
from spade_jax.policy.lockstep import Follower, Leader, OutOfStep
from spade_jax.policy.model import Params
from spade_jax.policy.sampler import Ids, Sampler
from spade_jax.policy.sampling import Sampling
from tests.policy.small import SMALL, random_params

Pair = Callable[[], tuple[Leader, Follower, list[bytes]]]


@pytest.fixture(scope="module")
def params() -> Params:
    return random_params(SMALL)


@pytest.fixture
def pair(params: Params) -> Pair:
    def make() -> tuple[Leader, Follower, list[bytes]]:
        sent: list[bytes] = []
        named = {"slots": 3, "context": 200, "stop_ids": (1, 2), "dtype": jnp.float32, "block": 4}
        leader = Leader(params, SMALL, send=sent.append, **named)
        return leader, Follower(params, SMALL, receive=lambda: sent.pop(0), **named), sent

    return make


def talk(s: Sampler, seed: int) -> list[dict[int, Ids]]:
    """Two conversations of two turns and one that is dropped; one of the two is rewound between."""
    said, heard = np.random.default_rng(seed), []

    def ask(slot: int, turn: int, *, keep: int | None = None) -> None:
        ids = said.integers(3, SMALL.vocab, 30).tolist()
        if keep is not None:
            ids = [*s._open[slot].cached[:keep], *ids]
            assert s.rewind(slot, ids) == keep
            ids = ids[keep:]
        how = Sampling(temperature=0.7, top_p=0.9) if turn else Sampling()
        s.submit(slot, ids, stream=(seed, slot, turn), budget=10, sampling=how)

    slots = [s.open() for _ in range(3)]
    for slot in slots:
        ask(slot, 0)
    heard.append(s.advance())
    s.close(slots.pop())
    while s.busy:
        heard.append(s.advance())
    ask(slots[0], 1)
    ask(slots[1], 1, keep=12)
    while s.busy:
        heard.append(s.advance())
    s.close(slots[0])
    return heard


def test_both_end_in_the_same_state(pair: Pair, params: Params) -> None:
    """Over two shares, with a slot that stays open over their end, and new weights in between."""
    leader, follower, sent = pair()
    for seed in (1, 2):
        lockstep.leading(leader, talk)(leader, seed)
        assert len(sent) > 3
        lockstep.follow(leader)  # nothing: it is none that follows
        assert sent
        lockstep.follow(follower)
        assert not sent
        assert follower._open == leader._open != {}
        assert follower.free == leader.free == 2
        for ours, theirs in zip(
            *map(jax.tree.leaves, (follower._cache, leader._cache)), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
        assert follower.work.tokens_read == leader.work.tokens_read > 0
        assert follower.work.tokens_decoded == leader.work.tokens_decoded > 0
        for sampler in (leader, follower):
            sampler.rest()
            sampler.load(jax.tree.map(lambda a: 1.01 * a, params))


def test_a_leader_samples_as_one_alone(pair: Pair, params: Params) -> None:
    leader, follower, _ = pair()
    named = {"slots": 3, "context": 200, "stop_ids": (1, 2), "dtype": jnp.float32, "block": 4}
    alone = Sampler(params, SMALL, **named)
    assert talk(leader, 3) == talk(alone, 3)
    assert lockstep.leading(alone, talk) is talk
    lockstep.follow(alone)
    leader.end()
    follower.follow()


def test_nothing_is_sent_where_nothing_is_computed(pair: Pair) -> None:
    leader, follower, sent = pair()
    leader.open()
    assert leader.advance() == {} and not sent
    leader.end()
    assert len(sent) == 1
    follower.follow()
    assert follower.free == 2


def test_those_that_follow_are_let_go_where_work_fails(pair: Pair) -> None:
    """What the sampler refuses is not sent on."""
    leader, follower, _ = pair()

    def work() -> None:
        slot = leader.open()
        leader.submit(slot, [], stream=(1,), budget=1, sampling=Sampling())

    with pytest.raises(ValueError, match="after 0 new ones"):
        lockstep.leading(leader, work)()
    follower.follow()
    assert follower._open == leader._open


def test_other_replies_are_noticed(pair: Pair) -> None:
    leader, follower, sent = pair()
    talk(leader, 4)
    leader.end()
    drawn = next(i for i, text in enumerate(sent) if b"Submit" in text)
    sent[drawn] = sent[drawn].replace(b"temperature\xcb?\xf0", b"temperature\xcb?\xb0")
    with pytest.raises(OutOfStep, match="have sampled other tokens from the same calls"):
        follower.follow()


def test_a_leader_that_cannot_go_on_has_to_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Sampler) -> dict[int, Ids]:
        raise MemoryError("no room")

    monkeypatch.setattr(Sampler, "advance", fails)
    with pytest.raises(OutOfStep, match="the first host of a replica could not sample: no room"):
        talk(pair()[0], 5)
