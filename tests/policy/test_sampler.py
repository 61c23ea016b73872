"""Sampling: the cache agrees with the full forward, slots are their own, budgets hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import buckets, model, room, sampler
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.policy.sampler import Ids, Sampler
from spade_jax.policy.sampling import Sampling
from spade_jax.types import StopReason, TokenRecord, UsageError
from tests.policy.small import SMALL, random_params

STOPS = (1, 2)
BUDGET = 24
ROOM = 640
SLOTS = 20


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


def start(params: Params, c: ModelConfig = SMALL, **options: object) -> Sampler:
    options = {"slots": SLOTS, "context": 500, "block": 8} | options
    return Sampler(params, c, stop_ids=STOPS, dtype=jnp.float32, **options)


def read(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, SMALL.vocab, length).tolist()


def ask(
    s: Sampler,
    slot: int,
    ids: list[int],
    *,
    turn: int = 0,
    budget: int = BUDGET,
    how: Sampling = Sampling(),  # noqa: B008 - frozen
    name: int | None = None,
) -> None:
    stream = (7, slot if name is None else name, turn)
    s.submit(slot, ids, stream=stream, budget=budget, sampling=how)


def finish(s: Sampler) -> dict[int, Ids]:
    done: dict[int, Ids] = {}
    while s.busy:
        done |= s.advance()
    return done


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("how", [Sampling(), Sampling(temperature=0.6, top_p=0.8)])
def test_cached_decoding_equals_the_full_forward(
    params: Params, how: Sampling, compact: bool
) -> None:
    """Conversations of several turns that begin, pause and end at different times.

    There are more than a group of them, some texts are longer than the widest program, and some
    begin like others and so are read in part only.
    """
    s = start(params, compact=compact, slots=18)
    begun, records, answered = 0, {}, 0
    talk: dict[int, int] = {}  # slot -> conversation
    turns: dict[int, int] = {}
    prefix = read(0, 90)
    while begun < 24 or talk:
        while s.free and begun < 24:
            slot = s.open()
            talk[slot], records[begun], turns[begun] = begun, TokenRecord(), 0
            first = read(begun, 5 + 11 * begun % 40)
            text = [*prefix, *first] if begun % 3 == 0 else first + read(99, 300 * (begun == 4))
            records[begun] = records[begun].read(tuple(text))
            ask(s, slot, text, how=how, name=begun)
            begun += 1
        for slot, reply in s.advance().items():
            n = talk[slot]
            answered += 1
            records[n] = records[n].wrote(reply.ids, reply.logp, reply.behaviour)
            turns[n] += 1
            if turns[n] == 3:
                s.close(slot)
                del talk[slot]
            else:
                text = tuple(read(100 * n + turns[n], 1 + (5 * n + turns[n]) % 13))
                records[n] = records[n].read(text)
                ask(s, slot, list(text), turn=turns[n], how=how, name=n)
    assert answered == 72
    tokens = np.zeros((24, ROOM), np.int32)
    for n, record in records.items():
        tokens[n, : len(record.ids)] = record.ids
    logp = np.asarray(full_forward(params, tokens, how.temperature))
    for n, record in records.items():
        own = np.flatnonzero(record.action)
        np.testing.assert_allclose(logp[n, own - 1], np.asarray(record.logp)[own], atol=1e-4)
        gap = np.asarray(record.behaviour)[own] - np.asarray(record.logp)[own]
        # What is left out is at most a fifth, and the rest is shared among those that are kept.
        assert gap.min() >= -1e-6 and gap.max() <= (1e-6 - np.log(0.8) if how.truncates else 0)
        assert (gap.max() > 0.05) == how.truncates


def test_a_reply_depends_on_its_own_conversation_only(params: Params) -> None:
    def replies(others: int, budget: int, count: int = 18) -> list[Ids]:
        s = start(params)
        slots = [s.open() for _ in range(count)]
        out = []
        for turn in range(2):
            ask(s, slots[0], read(turn, 5), turn=turn)
            for slot in slots[1:]:
                ask(s, slot, read(others + slot, 9), turn=turn, budget=budget)
            out.append(finish(s)[slots[0]])
        return out

    first = replies(others=50, budget=BUDGET)
    assert replies(others=50, budget=BUDGET) == first, "the same calls give the same bits"
    for other in (replies(60, BUDGET), replies(60, 2), replies(60, 3, count=1)):
        assert [r.ids for r in other] == [r.ids for r in first]


def test_groups_hold_as_much_where_each_core_has_one(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 18 conversations, 9 long, a group for each core has 5 and 4 of these, or else 9 and 0."""
    decode, groups = sampler.decoding.decode, []

    def noted(params: Params, cache: object, slots_R: np.ndarray, *rest: object, **how: object):
        groups.append([n for n in slots_R.tolist() if n < SLOTS])
        return decode(params, cache, slots_R, *rest, **how)

    monkeypatch.setattr(sampler.decoding, "decode", noted)
    for cores, long in ((1, [0, 9]), (2, [4, 5])):
        monkeypatch.setattr(sampler.os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        s = start(params, compact=True)
        for n in range(18):
            ask(s, s.open(), read(n, 300 if n < 9 else 20))
        groups.clear()
        s.advance()
        assert [len(group) for group in groups] == [9, 9]
        assert sorted(sum(n < 9 for n in group) for group in groups) == long


def test_streams_decide(params: Params) -> None:
    def replies(turn: int) -> list[Ids]:
        s = start(params)
        for _ in range(3):
            ask(s, s.open(), read(1, 5), turn=turn)
        return list(finish(s).values())

    first = replies(0)
    assert replies(0) == first
    assert len({reply.ids for reply in first}) == 3
    assert replies(1)[0].ids != first[0].ids


def test_budgets_and_stops(params: Params) -> None:
    s = start(params)
    reasons = []
    slots = [s.open() for _ in range(SLOTS)]
    for turn in range(2):
        budgets = {slot: 1 + slot % BUDGET for slot in slots}
        for slot in slots:
            ask(s, slot, read(slot, 4), turn=turn, budget=budgets[slot])
        for slot, reply in finish(s).items():
            assert 1 <= len(reply.ids) == len(reply.logp) == len(reply.behaviour) <= budgets[slot]
            assert not set(reply.ids[:-1]) & set(STOPS)
            stopped = reply.ids[-1] in STOPS
            assert reply.stop is (StopReason.STOP if stopped else StopReason.LENGTH)
            assert stopped or len(reply.ids) == budgets[slot]
            assert max(reply.logp) <= 0
            reasons.append(reply.stop)
    assert set(reasons) == set(StopReason) and len(reasons) == 2 * SLOTS


def test_a_turn_reads_its_own_tokens_only(params: Params) -> None:
    """A reply's last token is read with what follows it."""
    s = start(params)
    slot = s.open()
    ask(s, slot, read(0, 100), budget=3)
    finish(s)
    assert s.work.tokens_read == 100
    for turn in range(1, 4):
        ask(s, slot, read(turn, 7), turn=turn, budget=3)
        finish(s)
        assert s.work.tokens_read == 100 + 8 * turn


def test_prompts_that_begin_alike_are_read_once(params: Params) -> None:
    prefix = read(0, 80)
    texts = [prefix + read(n, 3 + n) for n in range(1, 6)] + [prefix, read(9, 80)]
    alone = []
    for n, text in enumerate(texts):
        s = start(params)
        ask(s, s.open(), text, name=n)
        alone += [reply.ids for reply in finish(s).values()]
    s = start(params)
    for n, text in enumerate(texts):
        ask(s, s.open(), text, name=n)
    together = finish(s)
    assert [together[n].ids for n in range(len(texts))] == alone
    # The prefix alone comes first and is read whole; of the others 4 to 8 tokens are left, and the
    # last one is another text.
    assert s.work.tokens_read == 80 + (4 + 5 + 6 + 7 + 8) + 80


def test_equal_prompts_leave_a_token_each(params: Params) -> None:
    s = start(params)
    for n in range(3):
        ask(s, s.open(), read(0, 70), name=n)
    replies = finish(s)
    assert s.work.tokens_read == 70 + 1 + 1
    assert len({reply.ids for reply in replies.values()}) == 3


def test_a_reply_can_be_followed_and_dropped(params: Params) -> None:
    s = start(params, block=4)
    kept, dropped = s.open(), s.open()
    ask(s, kept, read(1, 5), budget=20)
    ask(s, dropped, read(2, 5), budget=20)
    s.advance()
    so_far = s.sampled(kept)
    assert 1 <= len(so_far) <= 5
    s.close(dropped)
    assert s.free == SLOTS - 1
    assert s.open() == dropped, "the lowest free slot"
    reply = finish(s)[kept]
    assert reply.ids[: len(so_far)] == so_far
    assert s.sampled(kept) == () and not s.busy
    other = start(params)
    other.open()
    ask(other, kept, read(1, 5), budget=20)
    assert finish(other)[kept].ids == reply.ids


def test_new_weights_end_all_conversations(params: Params) -> None:
    s = start(params)
    ask(s, s.open(), read(1, 5))
    finish(s)
    changed = jax.tree.map(lambda a: 1.01 * a, params)
    s.load(changed)
    assert s.free == SLOTS
    ask(s, s.open(), read(1, 5))
    fresh = start(changed)
    ask(fresh, fresh.open(), read(1, 5))
    assert finish(s) == finish(fresh)


def test_at_rest_it_holds_nothing_and_then_says_the_same(params: Params) -> None:
    s = start(params)
    ask(s, s.open(), read(1, 5))
    first = finish(s)
    held = sum(a.nbytes for a in jax.live_arrays())
    s.rest()
    cache = 2 * 2 * SLOTS * 2 * 8 * (500 + 256) * 4  # keys and values, layers, heads, columns
    # By layer six matrices of 32 rows, one of 48 and norms; the head. Each fits into one panel.
    panels = 4 * (2 * ((6 * 32 + 48) * 64 + 32 + 32 + 8 + 8) + 32 * 64)
    assert held - sum(a.nbytes for a in jax.live_arrays()) == cache + panels
    assert s.free == SLOTS
    s.load(params)
    ask(s, s.open(), read(1, 5))
    assert finish(s) == first


def test_what_a_slot_does_not_take(params: Params) -> None:
    s = start(params, slots=1, context=30)
    slot = s.open()
    with pytest.raises(ValueError, match="all 1 slots are open; close one first"):
        s.open()
    with pytest.raises(ValueError, match="no reply of 11 tokens after 20 new ones: it holds 0 of"):
        ask(s, slot, read(0, 20), budget=11)
    with pytest.raises(ValueError, match="after 0 new ones"):
        ask(s, slot, [], budget=5)
    ask(s, slot, read(0, 20), budget=10)
    with pytest.raises(ValueError, match="waiting: True"):
        ask(s, slot, read(0, 1), budget=1)
    assert len(finish(s)[slot].ids) <= 10
    assert start(params, context=1000).context == SMALL.max_positions


def test_a_cache_that_does_not_fit(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda: 2.0**20)
    # 2 x 2 layers x 20 slots x 2 heads x 8 numbers x (500 + 256) columns x 4 bytes are 3.7 MiB
    with pytest.raises(
        UsageError, match=r"20 slots of 756 tokens takes 0.0036 GiB of a device, but 0.00098"
    ):
        start(params)
    monkeypatch.setattr(room, "free_bytes", lambda: 4.0 * 2**20)
    start(params)


def test_free_memory_is_known() -> None:
    assert 2**20 < room.free_bytes() < 2**50


def test_buckets() -> None:
    assert [buckets.width(n) for n in (1, 16, 17, 96, 97, 256, 9999)] == [
        16, 16, 32, 96, 128, 256, 256,
    ]  # fmt: skip
    columns = [buckets.columns(n) for n in (0, 1, 128, 129, 256, 257, 385, 513, 1000)]
    assert columns == [0, 128, 128, 192, 256, 384, 512, 768, 1024]
    # Sums of blocks of 64: 1, 2 + 14, 3 + 14, 65 and 97, to multiples of 16, 32 and 64.
    lengths = [[1], [65, *[9] * 14], [129, *[9] * 14], [65 * 64], [97 * 64], [129 * 64]]
    assert [buckets.blocks(each) for each in lengths] == [16, 16, 32, 96, 128, 192]


def test_long_conversations_are_read_few_at_a_time(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven with one prefix of 150 tokens, six of which copy it and are read in two pieces."""
    assert [buckets.rows(n) for n in (0, 8192, 12288, 32768, 2**20)] == [16, 16, 10, 4, 1]
    texts = [read(0, 150) + read(n, 280) for n in range(1, 8)]

    def replies() -> list[tuple[int, ...]]:
        s = start(params)
        for n, text in enumerate(texts):
            ask(s, s.open(), text, name=n, budget=8)
        together = finish(s)
        return [together[n].ids for n in range(len(texts))]

    whole, rows, ask_for = replies(), [], sampler.decoding.prefill

    def noted(params: Params, cache: object, slots_R: np.ndarray, *rest: object, **how: int):
        rows.append((len(slots_R), how["columns"]))
        return ask_for(params, cache, slots_R, *rest, **how)

    monkeypatch.setattr(sampler.decoding, "prefill", noted)
    monkeypatch.setattr(buckets, "LONG", 96)
    assert replies() == whole
    assert all(n == buckets.rows(columns, buckets.COMPACT_READING) for n, columns in rows)
    assert {4, 2, 1} == {n for n, _ in rows}  # of 0, 192 and 512 columns


def test_rewinding_keeps_what_is_shared(params: Params) -> None:
    s = start(params)
    slot = s.open()
    ask(s, slot, read(0, 50), budget=3)
    reply = finish(s)[slot].ids
    held = [*read(0, 50), *reply[:-1]]  # the last one was never read
    other = [*held[:40], *read(1, 20)]
    assert s.rewind(slot, other) == 40
    ask(s, slot, other[40:], turn=1)
    fresh = start(params)
    ask(fresh, fresh.open(), other, turn=1)
    assert finish(s)[slot].ids == finish(fresh)[0].ids
    assert s.work.tokens_read == 50 + 20
    assert s.rewind(slot, other) == len(other) - 1, "something is left to read"
    assert s.rewind(slot, [5]) == 0
