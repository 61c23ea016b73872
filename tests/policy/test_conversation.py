"""Conversations: append-only records in which what is trained is what was sampled."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy.conversation import Budget, Conversations, Policy, reply_each, stream
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.policy.sampler import Sampler
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import Generation, Message, StopReason, TokenRecord
from tests.policy.small import UNTIED, random_params
from tests.serve.scripted import tool_tokenizer

CONTEXT = 200
BUDGET = Budget(reply=16, context=CONTEXT, sampling=Sampling(temperature=0.6))
DIALOGUES = 6


def inclined(c: ModelConfig, token: int) -> Params:
    """Nearly even odds for all tokens, and about one in eight for `token`."""
    params = random_params(c)
    params["embed"] = params["embed"].at[:, 0].set(20.0)
    params["layers"]["o"] = 0.0 * params["layers"]["o"]
    params["layers"]["down"] = 0.0 * params["layers"]["down"]
    params["final_norm"] = params["final_norm"].at[0].set(1.0)
    params["head"] = (0.01 * params["head"]).at[0, token].set(0.4)
    return params


@pytest.fixture(scope="module")
def policy(tokenizer_folder: Path) -> Policy:
    tokenizer = ChatTokenizer(tokenizer_folder)
    c = ModelConfig(**{**vars(UNTIED), "vocab": tokenizer.vocab})
    return made(inclined(c, tokenizer.end_id), c, tokenizer)


def made(params: Params, c: ModelConfig, tokenizer: ChatTokenizer, slots: int = 8) -> Policy:
    sampler = Sampler(
        params, c, slots=slots, context=256, stop_ids=tokenizer.stop_ids, dtype=jnp.float32
    )
    return Policy(sampler, tokenizer, version=3)


def begin(policy: Policy, count: int) -> Conversations:
    """Dialogues numbered from 0, with none of an earlier test's left."""
    policy.sampler.load(policy.sampler.params)
    dialogues = policy.converse()
    assert [dialogues.open() for _ in range(count)] == list(range(count))
    return dialogues


def whole(dialogues: Conversations, dialogue: int) -> TokenRecord:
    """The one record of a dialogue; empty before its first reply."""
    records = dialogues.records(dialogue)
    assert len(records) <= 1
    return records[0] if records else TokenRecord()


def say(dialogue: int, turn: int) -> tuple[Message, ...]:
    system = (Message(role="system", content="Play."),) if turn == 0 else ()
    text = f"Turn {turn} of <|im_end|> {dialogue}" + "!" * dialogue
    return (*system, Message(role="user", content=text))


def talk(policy: Policy, turns: int) -> tuple[list[TokenRecord], list[list[Generation | None]]]:
    """Records after, and replies of, some turns in all dialogues that have room."""
    dialogues = begin(policy, DIALOGUES)
    replies: list[list[Generation | None]] = [[] for _ in range(DIALOGUES)]
    for turn in range(turns):
        before = [whole(dialogues, i) for i in range(DIALOGUES)]
        said = {i: say(i, turn) for i in range(DIALOGUES)}
        streams = {i: stream(1, "talk", i, turn) for i in range(DIALOGUES)}
        answers = reply_each(dialogues, said, streams, BUDGET)
        assert list(answers) == list(range(DIALOGUES))
        for i in range(DIALOGUES):
            replies[i].append(answers[i])
            after = whole(dialogues, i)
            n = len(before[i].ids)
            assert after.ids[:n] == before[i].ids, "a record only grows"
            assert after.logp[:n] == before[i].logp
            assert (answers[i] is None) == (len(after.ids) == n)
    return [whole(dialogues, i) for i in range(DIALOGUES)], replies


def test_what_is_trained_is_what_was_sampled(policy: Policy) -> None:
    records, replies = talk(policy, turns=3)
    t = policy.tokenizer
    stops = []
    for i in range(DIALOGUES):
        expected = TokenRecord()
        stop = None
        for turn in range(3):
            reply = replies[i][turn]
            ids = t.continuation(stop, say(i, turn)) if stop else t.prompt(say(i, turn))
            expected = expected.read(ids).wrote(reply.ids, reply.logp)
            stop = reply.stop
            assert reply.text == t.decode(reply.ids)
            stops.append(stop)
        assert records[i] == expected
    assert set(stops) == set(StopReason), "both ends of a reply should occur"


@pytest.mark.parametrize("dialogue", range(DIALOGUES))
def test_one_stop_token_a_turn_is_trained(policy: Policy, dialogue: int) -> None:
    """Where a reply ran out of budget, the end token that closes it is context."""
    records, replies = talk(policy, turns=3)
    record, t = records[dialogue], policy.tokenizer
    line, position = t.encode("\n"), 0
    for reply in replies[dialogue][:-1]:
        position = record.action.index(True, position) + len(reply.ids)
        closing = () if reply.stop is StopReason.STOP else (t.end_id,)
        trained = [i for i in reply.ids if i in t.stop_ids]
        assert trained == ([] if closing else [reply.ids[-1]])
        context = (*closing, *line, t.start_id)
        here = slice(position, position + len(context))
        assert record.ids[here] == context
        assert not any(record.action[here])
    # the system message, and two turns a reply: the marker in the text is no control token
    context = [i for i, own in zip(record.ids, record.action, strict=True) if not own]
    assert context.count(t.start_id) == 1 + 2 * len(replies[dialogue])


def test_a_conversation_ends_where_its_context_does(policy: Policy) -> None:
    records, replies = talk(policy, turns=12)
    for i in range(DIALOGUES):
        assert len(records[i].ids) <= CONTEXT
        kinds = [reply is None for reply in replies[i]]
        assert kinds[-1] and not kinds[0]
        assert kinds == sorted(kinds), "without room there is none later"


def test_a_reply_is_cut_to_the_room_left(policy: Policy) -> None:
    room, lengths = 2, []
    for i in range(DIALOGUES):
        prompt = policy.tokenizer.prompt(say(i, 0))
        budget = Budget(reply=16, context=len(prompt) + room)
        replies = reply_each(begin(policy, 1), {0: say(i, 0)}, {0: stream(1, "", i)}, budget)
        lengths.append(len(replies[0].ids))
    assert max(lengths) == room  # each reaches it but for one chance in eight


def test_a_message_without_room_is_not_read(policy: Policy) -> None:
    dialogues = begin(policy, 2)
    said = {0: say(0, 0), 1: (Message(role="user", content="x" * CONTEXT),)}
    replies = reply_each(dialogues, said, {i: stream(1, "", i) for i in range(2)}, BUDGET)
    assert replies[0] is not None
    assert replies[1] is None
    assert dialogues.records(1) == ()
    only = {1: said[1]}
    assert reply_each(dialogues, only, {1: stream(1, "", 1)}, BUDGET) == {1: None}


def test_the_models_own_length_is_a_bound(policy: Policy) -> None:
    c = dataclasses.replace(policy.sampler.c, max_positions=30)
    dialogues = begin(made(policy.sampler.params, c, policy.tokenizer), 1)
    hello = {0: (Message(role="user", content="hi"),)}
    reply_each(dialogues, hello, {0: stream(1, "", 0)}, BUDGET)
    assert len(whole(dialogues, 0).ids) <= 30
    assert reply_each(dialogues, hello, {0: stream(1, "", 1)}, BUDGET) == {0: None}


def test_tokens_are_counted(policy: Policy) -> None:
    read, sampled = policy.tokens_read, policy.tokens_sampled
    records, _ = talk(policy, turns=2)
    own = sum(sum(record.action) for record in records)
    assert policy.tokens_sampled - sampled == own
    assert policy.tokens_read - read == sum(len(record.ids) for record in records) - own


def test_retired_dialogues_keep_their_record(policy: Policy) -> None:
    dialogues = begin(policy, 2)
    streams = {i: stream(1, "", i) for i in range(2)}
    reply_each(dialogues, {i: say(i, 0) for i in range(2)}, streams, BUDGET)
    record = whole(dialogues, 0)
    dialogues.retire([0])
    assert policy.sampler.free == policy.sampler.slots - 1
    reply_each(dialogues, {1: say(1, 1)}, {1: stream(1, "", 2)}, BUDGET)
    assert whole(dialogues, 0) == record
    assert len(whole(dialogues, 1).ids) > len(record.ids)


@pytest.mark.parametrize("slots", [1, 2])
def test_more_dialogues_than_slots(policy: Policy, slots: int) -> None:
    """They take turns with the slots, and what had to leave its own is read anew."""

    def talk(dialogues: Conversations) -> list[TokenRecord]:
        for turn in range(3):
            streams = {i: stream(1, "", i, turn) for i in range(4)}
            reply_each(dialogues, {i: say(i, turn) for i in range(4)}, streams, BUDGET)
        return [whole(dialogues, i) for i in range(4)]

    few, many = (
        made(policy.sampler.params, policy.sampler.c, policy.tokenizer, slots=n) for n in (slots, 4)
    )
    records, usual = talk(begin(few, 4)), talk(begin(many, 4))
    assert [record.ids for record in records] == [record.ids for record in usual]
    for record, same in zip(records, usual, strict=True):
        np.testing.assert_allclose(record.logp, same.logp, atol=1e-5)
    assert few.sampler.work.tokens_read > many.sampler.work.tokens_read


def test_a_dialogue_can_be_left_while_it_waits(policy: Policy) -> None:
    few = made(policy.sampler.params, policy.sampler.c, policy.tokenizer, slots=1)
    dialogues = begin(few, 3)
    for i in range(3):
        dialogues.ask(i, say(i, 0), stream(1, "", i), BUDGET)
    dialogues.answers()
    dialogues.retire([0, 1])
    replies: dict[int, Generation | None] = {}
    while not replies:
        replies = dialogues.answers()
    assert list(replies) == [2]
    assert dialogues.records(1) == ()


def test_truncated_sampling_keeps_both_log_probabilities(policy: Policy) -> None:
    budget = dataclasses.replace(BUDGET, sampling=Sampling(top_k=2))
    dialogues = begin(policy, 1)
    reply_each(dialogues, {0: say(0, 0)}, {0: stream(1, "", 0)}, budget)
    record = whole(dialogues, 0)
    own = np.flatnonzero(record.action)
    assert all(record.behaviour[t] > record.logp[t] for t in own)
    assert all(record.behaviour[t] == record.logp[t] == 0 for t in range(own[0]))


def test_streams_have_names() -> None:
    # 0xcbf43926 is the CRC-32 of these nine digits
    assert stream(5, "123456789", 2, 3) == (5, 0xCBF43926, 2, 3)
    assert stream(-1, "123456789", 2**32 + 1) == (2**32 - 1, 0xCBF43926, 1)
    assert len({stream(1, "a", 1), stream(1, "b", 1), stream(2, "a", 1), stream(1, "a", 2)}) == 4
    assert np.asarray(stream(2**40, "x"), np.uint32).shape == (2,)


def test_where_thinking_is_stripped_each_turn_is_a_row(tokenizer_folder: Path) -> None:
    """Every prompt is that of the whole conversation; the cache of what it shares is kept."""
    chat = ChatTokenizer(tokenizer_folder, think="strip")
    c = ModelConfig(**{**vars(UNTIED), "vocab": chat.vocab})
    policy = made(inclined(c, chat.end_id), c, chat)
    dialogues = begin(policy, 1)
    history: list[Message] = []
    expected: list[TokenRecord] = []
    read = 0
    for turn in range(3):
        history += say(0, turn)
        before = policy.sampler.work.tokens_read
        answers = reply_each(dialogues, {0: say(0, turn)}, {0: stream(1, "", turn)}, BUDGET)
        ids = chat.prompt(history)
        *_, record = dialogues.records(0)
        reply = record.ids[len(ids) :]
        assert record == TokenRecord().read(ids).wrote(reply, record.logp[len(ids) :])
        expected.append(record)
        history.append(Message(role="assistant", content=answers[0].text))
        read = policy.sampler.work.tokens_read - before
    assert dialogues.records(0) == tuple(expected)
    assert read < len(ids) / 2, "what the last prompt shares with the one before is not read again"


def test_tools_are_in_the_prompt_and_earlier_replies_may_be_said_again(tmp_path: Path) -> None:
    """As the template renders them; a dialogue without tools has none of them."""
    tokenizer = tool_tokenizer(tmp_path)
    c = ModelConfig(**{**vars(UNTIED), "vocab": tokenizer.vocab})
    policy = made(inclined(c, tokenizer.end_id), c, tokenizer, slots=2)
    tool = {"type": "function", "function": {"name": "add"}}
    said = [
        Message(role="user", content="Add."),
        Message(role="assistant", content="I do."),
        Message(role="user", content="And?"),
    ]
    dialogues = policy.converse()
    numbers = [dialogues.open([tool]), dialogues.open()]
    streams = {n: stream(1, "tools", n) for n in numbers}
    reply_each(dialogues, dict.fromkeys(numbers, said), streams, BUDGET)
    for number, tools in zip(numbers, ([tool], []), strict=True):
        expected = tokenizer.prompt(said, tools)
        assert whole(dialogues, number).ids[: len(expected)] == expected
        assert ("add" in tokenizer.decode(expected)) is bool(tools)


def test_temperature_zero_takes_the_most_probable_tokens(policy: Policy) -> None:
    """Whatever the random stream, and as top-k 1 at any temperature."""
    said = {i: say(0, 0) for i in range(4)}
    texts = set()
    for sampling in (Sampling(temperature=0), Sampling(temperature=0.7, top_k=1)):
        dialogues = begin(policy, 4)
        streams = {i: stream(1, "greedy", i) for i in said}
        replies = reply_each(dialogues, said, streams, Budget(16, CONTEXT, sampling))
        texts |= {reply.ids for reply in replies.values()}
    assert len(texts) == 1
