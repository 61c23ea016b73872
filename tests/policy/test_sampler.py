"""Sampling: the cache agrees with the full forward, rows are their own, budgets hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import model, sampler
from spade_jax.policy.model import Params
from spade_jax.policy.sampler import Ids, Session
from spade_jax.types import StopReason, TokenRecord
from tests.policy.small import SMALL, random_params

STOPS = (1, 2)
STEPS = 24
ROOM = 256


@pytest.fixture(scope="module")
def params() -> Params:
    return random_params(SMALL)


@jax.jit
def full_forward(params: Params, tokens_BT, temperature: float) -> jax.Array:
    """Log-probability of every token after the first, by the model without a cache."""
    shape = tokens_BT.shape
    positions = jnp.broadcast_to(jnp.arange(shape[1])[None], shape)
    x = model.hidden(params, tokens_BT, positions, jnp.ones(shape, jnp.int32), SMALL)
    targets = jnp.roll(tokens_BT, -1, axis=1)
    return model.token_logps(params, x, targets, jnp.full(shape, temperature), SMALL)[0][:, :-1]


def start(params: Params, rows: int) -> Session:
    return Session(params, SMALL, rows, stop_ids=STOPS, dtype=jnp.float32)


def stream(*numbers: int) -> tuple[int, ...]:
    return (7, *numbers)


def read(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(3, SMALL.vocab, length).tolist())


def sample(
    session: Session,
    new: dict[int, tuple[int, ...]],
    *,
    turn: int = 0,
    budgets: dict[int, int] | None = None,
    temperature: float = 1.0,
) -> dict[int, Ids]:
    return session.turn(
        new,
        {i: stream(i, turn) for i in new},
        budgets=budgets or dict.fromkeys(new, STEPS),
        steps=STEPS,
        temperature=temperature,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_cached_decoding_equals_the_full_forward(params: Params, temperature: float) -> None:
    """Rows of different lengths; four leave after two turns, others sit turns out."""
    rows = 10
    session = start(params, rows)
    records = [TokenRecord()] * rows
    alive, slots, batch = list(range(rows)), set(), set()
    for turn in range(7):
        present = [i for i in alive if (i + turn) % 3]
        new = {i: read(100 * turn + i, 1 + (5 * i + turn) % 13) for i in present}
        for i, reply in sample(session, new, turn=turn, temperature=temperature).items():
            records[i] = records[i].read(new[i]).wrote(reply.ids, reply.logp)
        slots.add(session.cache.filled_BS.shape[1])
        batch.add(len(session.used))
        if turn == 1:
            session.retire([0, 3, 4, 8])
            alive = [1, 2, 5, 6, 7, 9]
    assert len(slots) > 1, "the cache should have grown"
    assert len(batch) == 2, "the session should have shrunk"
    tokens = np.zeros((rows, ROOM), np.int32)
    for i, record in enumerate(records):
        tokens[i, : len(record.ids)] = record.ids
    logp = np.asarray(full_forward(params, tokens, temperature))
    lengths = {len(record.ids) for record in records}
    assert len(lengths) > 5
    for row, record in enumerate(records):
        own = np.flatnonzero(record.action)
        np.testing.assert_allclose(logp[row, own - 1], np.asarray(record.logp)[own], atol=1e-4)


def test_a_reply_depends_on_its_own_row_only(params: Params) -> None:
    def replies(others: int, budget: int) -> Ids:
        session = start(params, 3)
        budgets = {0: STEPS, 1: budget, 2: STEPS}
        for turn in range(2):
            new = {0: read(turn, 5), 1: read(others + turn, 9), 2: read(others + turn, 3)}
            reply = sample(session, new, turn=turn, budgets=budgets)[0]
        return reply

    first = replies(others=50, budget=STEPS)
    assert replies(others=60, budget=STEPS).ids == first.ids
    assert replies(others=60, budget=2).ids == first.ids


def test_streams_decide(params: Params) -> None:
    new = dict.fromkeys(range(3), read(1, 5))
    session = start(params, 3)
    replies = sample(session, new)
    assert sample(start(params, 3), new) == replies
    assert len({reply.ids for reply in replies.values()}) == 3
    assert sample(start(params, 3), new, turn=1)[0].ids != replies[0].ids


def test_budgets_and_stops(params: Params) -> None:
    budgets = {i: 1 + i % STEPS for i in range(32)}
    session = start(params, 32)
    reasons = []
    for turn in range(2):
        new = {i: read(i, 4) for i in range(32)}
        for i, reply in sample(session, new, turn=turn, budgets=budgets).items():
            assert 1 <= len(reply.ids) == len(reply.logp) <= budgets[i]
            assert not set(reply.ids[:-1]) & set(STOPS)
            stopped = reply.ids[-1] in STOPS
            assert reply.stop is (StopReason.STOP if stopped else StopReason.LENGTH)
            assert stopped or len(reply.ids) == budgets[i]
            assert max(reply.logp) <= 0
            reasons.append(reply.stop)
    assert set(reasons) == set(StopReason)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    # by hand: weights 8, 4, 2, 2 of 16; at temperature 1/2 squared, 64, 16, 4, 4 of 88
    [(1.0, (0.5, 0.25, 0.125, 0.125)), (0.5, (64 / 88, 16 / 88, 4 / 88, 4 / 88))],
)
def test_samples_follow_the_softmax(
    params: Params, temperature: float, expected: tuple[float, ...]
) -> None:
    rows = 4000
    logits = np.full((rows, SMALL.vocab), -1e9, np.float32)
    logits[:, [5, 9, 20, 63]] = np.log([8.0, 4.0, 2.0, 2.0])
    streams = np.stack([np.arange(rows), np.zeros(rows)], axis=1).astype(np.uint32)
    _, out = sampler.decode(
        params,
        sampler.empty_cache(SMALL, rows, 1, jnp.float32),
        logits,
        streams,
        np.ones(rows, np.int32),
        np.float32(temperature),
        c=SMALL,
        stop_ids=STOPS,
        steps=1,
    )
    ids, logp = np.asarray(out.ids_BN)[:, 0], np.asarray(out.logp_BN)[:, 0]
    assert set(ids.tolist()) == {5, 9, 20, 63}
    for token, p in zip((5, 9, 20, 63), expected, strict=True):
        np.testing.assert_allclose(logp[ids == token], np.log(p), atol=1e-5)
        error = np.sqrt(p * (1 - p) / rows)
        assert abs(np.mean(ids == token) - p) < 4 * error


def test_buckets() -> None:
    sizes = [sampler.bucket(n, (8, 32)) for n in (1, 8, 9, 32, 33, 64, 65)]
    assert sizes == [8, 8, 32, 32, 64, 64, 96]
