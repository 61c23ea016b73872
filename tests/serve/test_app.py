"""The server over a scripted sampler: forms of requests and replies, limits, clients that leave."""

import concurrent.futures
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from spade_jax.policy import hub
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import Message
from tests.serve.scripted import NAME, ScriptedSampler, serving, tool_tokenizer

SAID = [{"role": "user", "content": "Say it."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
        },
    }
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
XML = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"

NO_OBJECT = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(hub.BUNDLED)


@contextlib.contextmanager
def talking(
    reply: str | Callable[[str], str], tokenizer: ChatTokenizer, **options: Any
) -> Iterator[tuple[openai.OpenAI, ScriptedSampler]]:
    """A client of a server that always says the same, or what a function of the prompt says."""
    script = (lambda _: reply) if isinstance(reply, str) else reply
    sampler = ScriptedSampler(script, tokenizer, **options)
    with serving(sampler, tokenizer) as base:
        with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
            yield client, sampler


def post(
    base: str, body: object, path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, dict[str, str], Any]:
    """Status, headers and decoded body of the answer to a request."""
    headers = {"content-type": "application/json"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=20)
    with contextlib.closing(connection):
        data = body if isinstance(body, bytes) else json.dumps(body)
        connection.request("POST", path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        told = json.loads(text) if answer.headers["content-type"] == "application/json" else text
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, told


def health(base: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return json.loads(answer.read()) | {"code": answer.status}


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)


def chat(**more: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": SAID, **more}


# -- replies ----------------------------------------------------------------------------------


def test_a_reply_comes_whole_and_in_pieces(tokenizer: ChatTokenizer) -> None:
    text = "A snowman ☃ and 12 more words of text."
    read = len(tokenizer.prompt([Message(role="user", content="Say it.")]))
    sampled = len(tokenizer.encode(text)) + 1
    with talking(text, tokenizer) as (client, _):
        whole = client.chat.completions.create(**chat())
        pieces = list(
            client.chat.completions.create(
                **chat(stream=True, stream_options={"include_usage": True})
            )
        )
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "stop"
    usage = whole.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (read, sampled)
    assert usage.total_tokens == read + sampled
    texts = [piece.choices[0].delta.content or "" for piece in pieces[:-1]]
    assert "".join(texts) == text and sum(map(bool, texts)) > 2
    assert [p.choices[0].finish_reason for p in pieces[-3:-1]] == [None, "stop"]
    assert pieces[-1].usage == usage and pieces[-1].choices == []


def test_each_choice_has_a_stream_that_the_seed_names(tokenizer: ChatTokenizer) -> None:
    with talking("Yes.", tokenizer) as (client, sampler):
        for _ in range(2):
            answer = client.chat.completions.create(**chat(n=3, seed=-5))
            assert [choice.index for choice in answer.choices] == [0, 1, 2]
            assert answer.usage.completion_tokens == 3 * (len(tokenizer.encode("Yes.")) + 1)
        client.chat.completions.create(**chat())
    streams = [stream for stream, _ in sampler.asked]
    assert streams[:3] == [(2**32 - 1, 2**32 - 5, i) for i in range(3)] == streams[3:6]
    assert streams[6] not in streams[:6]
    assert sampler.most == 2  # slots


def test_sampling_is_what_was_asked_for(tokenizer: ChatTokenizer) -> None:
    with talking("Yes.", tokenizer) as (client, sampler):
        create = client.chat.completions.create
        create(**chat())
        create(**chat(temperature=0.5, top_p=0.25, extra_body={"top_k": 7, "min_p": 0.125}))
        create(**chat(temperature=0, extra_body={"top_k": -1}))
    assert [sampling for _, sampling in sampler.asked] == [
        Sampling(),
        Sampling(temperature=0.5, top_p=0.25, top_k=7, min_p=0.125),
        Sampling(temperature=0),
    ]


def test_lengths(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode("one two three four five six")
    with talking("one two three four five six", tokenizer) as (client, _):
        for field in ("max_tokens", "max_completion_tokens"):
            [choice] = client.chat.completions.create(**chat(**{field: 4})).choices
            assert choice.message.content == tokenizer.decode(ids[:4])
            assert choice.finish_reason == "length"
        answer = client.completions.create(model=NAME, prompt="x" * 200, max_tokens=9999)
        assert answer.choices[0].finish_reason == "stop"
        with pytest.raises(openai.BadRequestError, match="leaves no room in 256") as refused:
            client.completions.create(model=NAME, prompt=[5] * 256)
    assert refused.value.code == "context_length_exceeded"


def test_stop_strings_and_logprobs(tokenizer: ChatTokenizer) -> None:
    text = "1 2 3\n4 5 6"
    with talking(text, tokenizer) as (client, _):
        create = client.chat.completions.create
        for stop, left in (("\n", "1 2 3"), (["4", "3\n"], "1 2 "), ("absent", text)):
            [choice] = create(**chat(stop=stop, logprobs=True)).choices
            assert (choice.message.content, choice.finish_reason) == (left, "stop")
            tokens = choice.logprobs.content
            assert "".join(token.token for token in tokens) == left
            assert {round(token.logprob, 4) for token in tokens} == {-0.6931}
            assert bytes(b for token in tokens for b in token.bytes).decode() == left
            pieces = list(create(**chat(stop=stop, logprobs=True, stream=True)))
            assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == left
            assert pieces[-1].choices[0].logprobs.content == tokens
        used = create(**chat(stop="3\n")).usage.completion_tokens
        old = client.completions.create(model=NAME, prompt="x", logprobs=0, stop="\n")
    assert used == len(tokenizer.encode("1 2 3\n"))
    logprobs = old.choices[0].logprobs
    assert "".join(logprobs.tokens) == old.choices[0].text == "1 2 3"
    assert len(logprobs.token_logprobs) == len(logprobs.tokens)
    lengths = map(len, logprobs.tokens)
    assert logprobs.text_offset[:3] == [0, (first := next(lengths)), first + next(lengths)]


def test_completions_of_texts_and_of_ids(tokenizer: ChatTokenizer) -> None:
    with talking(lambda prompt: prompt[::-1], tokenizer) as (client, _):
        answer = client.completions.create(model=NAME, prompt=["abc", "12"], n=2)
        assert [(c.index, c.text) for c in answer.choices] == [
            (0, "cba"),
            (1, "cba"),
            (2, "21"),
            (3, "21"),
        ]
        prompts = [list(tokenizer.encode("abc")), list(tokenizer.encode("12"))]
        again = client.completions.create(model=NAME, prompt=prompts)
        assert [choice.text for choice in again.choices] == ["cba", "21"]
        pieces = client.completions.create(model=NAME, prompt=prompts[0], stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == "cba"


# -- tools ------------------------------------------------------------------------------------


def read_call(choice: Any) -> tuple[str | None, list[tuple[str, Any]]]:
    calls = choice.message.tool_calls or []
    named = [(c.function.name, json.loads(c.function.arguments)) for c in calls]
    return choice.message.content, named


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (CALL, None, [("add", {"a": 1, "b": 2})]),
        (f"I will.\n\n{CALL}\n{XML}", "I will.", [("add", {"a": 1, "b": 2}), ("add", {"a": 1})]),
        (f"<think>{XML}</think>Nothing.", f"<think>{XML}</think>Nothing.", []),
        ("<tool_call>\n{broken}\n</tool_call>", "<tool_call>\n{broken}\n</tool_call>", []),
    ],
)
def test_calls_are_read(
    reply: str, content: str | None, calls: list[tuple[str, Any]], tmp_path: Path
) -> None:
    with talking(reply, tool_tokenizer(tmp_path)) as (client, _):
        create = client.chat.completions.create
        [choice] = create(**chat(tools=TOOLS)).choices
        assert read_call(choice) == (content, calls)
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        pieces = list(create(**chat(tools=TOOLS, stream=True)))
        one = create(**chat(tools=TOOLS, parallel_tool_calls=False)).choices[0]
        none = create(**chat(tools=TOOLS, tool_choice="none")).choices[0]
    streamed = [c for p in pieces for c in p.choices[0].delta.tool_calls or []]
    assert [(c.function.name, json.loads(c.function.arguments)) for c in streamed] == calls
    assert [c.index for c in streamed] == list(range(len(calls)))
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == (content or "")
    assert pieces[-1].choices[0].finish_reason == choice.finish_reason
    assert read_call(one) == (content, calls[:1])
    assert read_call(none) == (reply, [])


def test_a_call_that_is_cut_off_is_text(tmp_path: Path) -> None:
    with talking(CALL, tool_tokenizer(tmp_path)) as (client, _):
        [choice] = client.chat.completions.create(**chat(tools=TOOLS, max_tokens=9)).choices
    assert choice.message.tool_calls is None and choice.finish_reason == "length"
    assert CALL.startswith(choice.message.content)


def test_the_model_reads_tools_calls_and_results(tmp_path: Path) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return CALL if len(prompts) == 1 else "3"

    with talking(script, tool_tokenizer(tmp_path)) as (client, _):
        create = client.chat.completions.create
        first = create(**chat(tools=TOOLS)).choices[0].message
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "3"}
        parts = [{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]
        said = [{"role": "developer", "content": parts}, *SAID, first, result]
        assert create(model=NAME, messages=said).choices[0].message.content == "3"
    assert json.dumps(TOOLS[0]) in prompts[0]
    assert prompts[1] == f"system\nST\nuser\nSay it.\nassistant\n{CALL}\ntool\n3\nassistant\n"


# -- refusals and limits ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tokenizer: ChatTokenizer) -> Iterator[str]:
    with serving(ScriptedSampler(lambda _: "Yes.", tokenizer), tokenizer) as address:
        yield address


@pytest.mark.parametrize(
    ("body", "status", "message", "param"),
    [
        (b"{", 400, "the body is no valid JSON", None),
        (b"[]", 400, "the body: expected `object`, got `array`", None),
        (b'{"messages":' + b"[" * 5000, 400, "messages[0]: expected `object`", "messages[0]"),
        (b'{"tools":[' + b'{"a":' * 5000, 400, "the body is no valid JSON", None),
        ('{"model":"scripted","messages":[{"role":"user","content":"\\ud800"}]}', 400, "", None),
        ({"model": NAME}, 400, "object missing required field `messages`", None),
        (chat(messages=[]), 400, "messages: expected `array` of length >= 1", "messages"),
        (chat(wish=1), 400, "object contains unknown field `wish`", None),
        (chat(temperature=2.5), 400, "temperature: expected `float` <= 2.0", "temperature"),
        (chat(temperature="hot"), 400, "temperature: expected `float | null`", "temperature"),
        (chat(top_p=0), 400, "top_p: expected `float` > 0.0", "top_p"),
        (chat(n=0), 400, "n: expected `int` >= 1", "n"),
        (chat(n=11), 400, "11 replies are asked for, over 10", None),
        (chat(max_tokens=0), 400, "max_tokens: expected `int` >= 1", "max_tokens"),
        (chat(seed=2**70), 400, "seed", "seed"),
        (chat(stop=["a", ""]), 400, "stop holds an empty string", "stop"),
        (chat(stop=["a"] * 17), 400, "stop has more than 16 strings", "stop"),
        (chat(logit_bias={"5": 1}), 400, "logit_bias is not supported", "logit_bias"),
        (chat(presence_penalty=0.5), 400, "presence_penalty is not supported", "presence_penalty"),
        (chat(top_logprobs=2, logprobs=True), 400, "top_logprobs must be 0", "top_logprobs"),
        (chat(tool_choice="required"), 400, "tool_choice must be 'auto' or 'none'", "tool_choice"),
        (chat(response_format={"type": "json_object"}), 400, "must be text", "response_format"),
        (chat(tools=[{"type": "web"}]), 400, "tools must list objects", "tools"),
        (chat(tools=TOOLS), 400, "shows no tools; describe them in a message", None),
        (chat(messages=[{"role": "king"}]), 400, "invalid enum value 'king'", "messages[0].role"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
            400,
            "messages holds 'image_url'; this model reads text only",
            "messages",
        ),
        (
            chat(messages=[NO_OBJECT]),
            400,
            "messages holds a call of f whose arguments are no JSON object",
            "messages",
        ),
        ({"model": "other", "messages": SAID}, 404, "there is no model 'other' here", "model"),
        (chat(user="x" * 70_000), 413, "the body is larger than the 65,536 bytes allowed", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    base: str, body: Any, status: int, message: str, param: str | None
) -> None:
    answer = post(base, body.encode() if isinstance(body, str) else body)
    error = answer[2]["error"]
    assert (answer[0], error["param"]) == (status, param)
    assert message in error["message"] and "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"
    assert post(base, chat())[0] == 200  # and the server goes on


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": []}, "prompt must be a text"),
        ({"prompt": [1, "a"]}, "prompt must be a text"),
        ({"prompt": [True]}, "expected `int | str | array`"),
        ({"prompt": [1024]}, "prompt holds 1024, which is no id below 1024"),
        ({"prompt": "a", "echo": True}, "echo is not supported"),
        ({"prompt": "a", "logprobs": 3}, "logprobs must be 0"),
        ({"prompt": "a", "best_of": 2}, "best_of must equal n"),
    ],
)
def test_prompts_that_cannot_be_completed(base: str, fields: Any, message: str) -> None:
    status, _, told = post(base, {"model": NAME, **fields}, "/v1/completions")
    assert status == 400 and message in told["error"]["message"]


def test_other_requests_are_answered_in_the_same_form(base: str) -> None:
    assert post(base, chat(), content_type="text/plain")[0] == 415
    status, _, told = post(base, chat(), "/v1/embeddings")
    assert (status, told["error"]["message"]) == (404, "POST /v1/embeddings: not found")
    assert post(base, chat(), "/v1/models")[0] == 405
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        [model] = client.models.list().data
        assert (model.id, client.models.retrieve(NAME)) == (NAME, model)
        with pytest.raises(openai.NotFoundError, match="there is no model 'other' here"):
            client.models.retrieve("other")


def test_bodies_without_a_length_are_limited_too(base: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=20)
    with contextlib.closing(connection):
        headers = {"content-type": "application/json"}
        pieces = (b"x" * 4096 for _ in range(20))
        connection.request("POST", "/v1/completions", pieces, headers, encode_chunked=True)
        assert connection.getresponse().status == 413


def test_the_key(tokenizer: ChatTokenizer) -> None:
    sampler = ScriptedSampler(lambda _: "Yes.", tokenizer)
    with serving(sampler, tokenizer, key="sesame") as base:
        for given in ({}, {"authorization": "Bearer sesam"}, {"authorization": "sesame"}):
            status, headers, told = post(base, chat(), **given)
            assert (status, told["error"]["code"]) == (401, "invalid_api_key")
            assert headers["www-authenticate"] == "Bearer" and "sesame" not in str(told)
        assert post(base, chat(), "/v1/models")[0] == 401
        assert post(base, chat(), authorization="Bearer sesame")[0] == 200
        assert health(base)["code"] == 200


def test_what_does_not_fit_the_queue_is_turned_away(tokenizer: ChatTokenizer) -> None:
    sampler = ScriptedSampler(lambda _: "Yes.", tokenizer)
    sampler.gate.clear()
    with serving(sampler, tokenizer, waiting=2) as base:
        ask = threading.Thread(target=post, args=(base, chat(n=3)))
        ask.start()
        until(lambda: (health(base)["running"], health(base)["waiting"]) == (2, 1))
        status, headers, told = post(base, chat(n=2))
        assert (status, headers["retry-after"]) == (429, "1")
        assert told["error"]["type"] == "rate_limit_error"
        sampler.gate.set()
        ask.join()
        assert post(base, chat(n=2))[0] == 200


# -- ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slots(tokenizer: ChatTokenizer, stream: bool) -> None:
    """Those decoding, and those in the queue."""
    sampler = ScriptedSampler(lambda _: "word " * 60, tokenizer, block=1, seconds=0.02)
    with serving(sampler, tokenizer) as base:
        connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=20)
        body, headers = json.dumps(chat(n=5, stream=stream)), {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        until(lambda: (health(base)["running"], health(base)["waiting"]) == (2, 3))
        if stream:
            connection.getresponse().read(200)
        connection.close()
        until(lambda: (health(base)["running"], health(base)["waiting"]) == (0, 0), 2.0)
        assert len(sampler.asked) == 2 and sampler.free == 2


class Failing(ScriptedSampler):
    """Decodes two blocks, and no more."""

    def advance(self) -> dict[int, Any]:
        if next(iter(self._open.values()))[1] >= 8:
            raise RuntimeError("the device is gone")
        return super().advance()


def test_a_sampler_that_fails_is_reported(
    tokenizer: ChatTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Failing(lambda _: "word " * 60, tokenizer), tokenizer) as base:
        status, headers, told = post(base, chat(n=3))
        assert (status, told["error"]["type"]) == (503, "server_error")
        assert "stopped" in told["error"]["message"] and "retry-after" in headers
        assert health(base)["code"] == 503 and health(base)["status"] == "failed"
        assert post(base, chat())[0] == 503
    assert "the device is gone" in caplog.text


def test_a_stream_says_that_it_is_cut(tokenizer: ChatTokenizer) -> None:
    with talking("word " * 60, tokenizer) as (client, sampler):
        sampler.advance = Failing.advance.__get__(sampler)
        with pytest.raises(openai.APIError, match="stopped while it worked"):
            list(client.chat.completions.create(**chat(stream=True)))


def test_after_the_grace_what_runs_is_cut(tokenizer: ChatTokenizer) -> None:
    """A reply of several seconds, and a second of grace: streamed, and whole."""
    sampler = ScriptedSampler(lambda _: "word " * 60, tokenizer, block=1, seconds=0.05)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with serving(sampler, tokenizer) as base:
            asked = [pool.submit(post, base, chat(stream=stream)) for stream in (False, True)]
            until(lambda: health(base)["running"] == 2)
        (status, _, whole), (_, _, streamed) = (each.result() for each in asked)
    assert status == 503 and "stopped while it worked" in whole["error"]["message"]
    events = streamed.split("\n\n")
    assert len(events) > 10 and "[DONE]" not in streamed
    assert json.loads(events[-2].removeprefix("data: ")) == whole
