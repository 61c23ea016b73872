"""Endpoints: dialogues with a server that works, and with servers that do not."""

import dataclasses
import http.server
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from spade_jax.policy.conversation import Budget
from spade_jax.policy.endpoint import (
    Endpoint,
    EndpointDialogues,
    EndpointFailure,
    FailureKind,
    Settings,
    seed_of,
)
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Generation, Message, StopReason, UsageError

KEY = "sk-of-nobody"
BUDGET = Budget(reply=10, context=100, sampling=Sampling(temperature=0.5))
Handler = http.server.BaseHTTPRequestHandler
Act = Callable[[Handler, dict[str, Any]], None]


class Misbehaving(http.server.ThreadingHTTPServer):
    """Does at each request what the next act says, the last one again and again.

    `bodies` and `headers` are what it was sent, `most` how many requests it had at once.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, acts: Sequence[Act]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.acts = list(acts)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: object, client: object) -> None:
        """Connections that are cut are meant to be."""


class _Handler(Handler):
    protocol_version = "HTTP/1.1"
    server: Misbehaving

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        with server.lock:
            act = server.acts.pop(0) if len(server.acts) > 1 else server.acts[0]
            server.bodies.append(body)
            server.headers.append({k.lower(): v for k, v in self.headers.items()})
            server.times.append(time.monotonic())
            server.now += 1
            server.most = max(server.most, server.now)
        try:
            act(self, body)
        finally:
            with server.lock:
                server.now -= 1

    def log_message(self, *args: object) -> None:
        pass

    def answer(self, status: int, body: object, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def says(text: str | None, *, finish: str = "stop", read: int = 7, sampled: int = 3) -> Act:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
    }
    usage = {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
    body = {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}
    return lambda handler, _: handler.answer(200, body)


def echo(handler: Handler, body: dict[str, Any]) -> None:
    says(body["messages"][-1]["content"].upper())(handler, body)


def refuses(status: int, message: str = "no", code: str | None = None, **headers: str) -> Act:
    body = {"error": {"message": message, "type": "some_error", "param": None, "code": code}}
    return lambda handler, _: handler.answer(status, body, **headers)


def answers_with(body: object) -> Act:
    return lambda handler, _: handler.answer(200, body)


def hangs(handler: Handler, body: dict[str, Any]) -> None:
    handler.server.over.wait(20)


def cuts(handler: Handler, body: dict[str, Any]) -> None:
    """Says that more comes than does."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


@pytest.fixture
def misbehaving() -> Iterator[Callable[..., Misbehaving]]:
    servers: list[Misbehaving] = []

    def start(*acts: Act) -> Misbehaving:
        server = Misbehaving(acts)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.over.set()
        server.shutdown()
        server.server_close()


def settings(server: Misbehaving, **changes: object) -> Settings:
    return dataclasses.replace(Settings(url=server.url, model="m", retries=0), **changes)


def wait_for(dialogues: EndpointDialogues, n: int) -> dict[int, Generation | None]:
    replies: dict[int, Generation | None] = {}
    end = time.monotonic() + 20
    while len(replies) < n and time.monotonic() < end:
        replies |= dialogues.answers()
    assert len(replies) == n
    return replies


def ask_one(endpoint: Endpoint) -> tuple[Generation | None, EndpointFailure | None]:
    dialogues = endpoint.converse()
    dialogue = dialogues.open()
    dialogues.ask(dialogue, [Message(role="user", content="hi")], (1, 2), BUDGET)
    return wait_for(dialogues, 1)[dialogue], dialogues.failure(dialogue)


# -- dialogues --------------------------------------------------------------------------------


def test_a_dialogue_is_told_whole_at_each_turn(misbehaving: Callable[..., Misbehaving]) -> None:
    server = misbehaving(says("one", read=20, sampled=30), says("two", finish="length", read=60))
    system, user = Message(role="system", content="S"), Message(role="user", content="U")
    tool = Message(role="tool", content="T")
    with Endpoint(settings(server)) as endpoint:
        dialogues = endpoint.converse()
        dialogue = dialogues.open()
        dialogues.ask(dialogue, [system, user], (1, 2), BUDGET)
        one = wait_for(dialogues, 1)[dialogue]
        sampling = Sampling(top_p=0.9, top_k=5, min_p=0.1)
        dialogues.ask(dialogue, [tool], (1, 3), Budget(reply=10, context=55, sampling=sampling))
        two = wait_for(dialogues, 1)[dialogue]
        dialogues.ask(dialogue, [user], (1, 4), dataclasses.replace(BUDGET, context=63))
        assert wait_for(dialogues, 1) == {dialogue: None}
        assert dialogues.failure(dialogue) is None and dialogues.records(dialogue) == ()
    assert one == Generation(ids=(), logp=(), text="one", stop=StopReason.STOP)
    assert two == Generation(ids=(), logp=(), text="two", stop=StopReason.LENGTH)
    first, second = server.bodies
    assert first == {
        "model": "m",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": seed_of((1, 2)),
        "max_tokens": 10,
    }
    assert second["messages"][2:] == [
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "<tool_response>\nT\n</tool_response>"},
    ]
    assert (second["top_p"], second["top_k"], second["min_p"]) == (0.9, 5, 0.1)
    assert second["max_tokens"] == 5  # 55 less the 50 that were used
    assert second["seed"] == seed_of((1, 3)) != first["seed"] and 0 <= second["seed"] < 2**31
    tally = endpoint.tally
    assert (tally.requests, tally.retries, tally.replies) == (2, 0, 2)
    assert (endpoint.tokens_read, endpoint.tokens_sampled) == (80, 33)


def test_requests_go_out_together_up_to_the_cap(misbehaving: Callable[..., Misbehaving]) -> None:
    def slow(handler: Handler, body: dict[str, Any]) -> None:
        time.sleep(0.05)
        echo(handler, body)

    server = misbehaving(slow)
    with Endpoint(settings(server, concurrency=3)) as endpoint:
        dialogues = endpoint.converse()
        numbers = [dialogues.open() for _ in range(12)]
        for i in numbers:
            dialogues.ask(i, [Message(role="user", content=f"say {i}")], (i,), BUDGET)
        replies = wait_for(dialogues, 12)
    assert {i: replies[i].text for i in numbers} == {i: f"SAY {i}" for i in numbers}
    assert server.most == 3


def test_retired_dialogues_are_cancelled(misbehaving: Callable[..., Misbehaving]) -> None:
    server = misbehaving(hangs, says("later"))
    with Endpoint(settings(server, concurrency=1)) as endpoint:
        dialogues = endpoint.converse()
        hanging, other = dialogues.open(), dialogues.open()
        for i in (hanging, other):
            dialogues.ask(i, [Message(role="user", content="hi")], (i,), BUDGET)
        while not server.bodies:
            assert dialogues.answers() == {}
        dialogues.retire([hanging])
        replies = wait_for(dialogues, 1)  # the other one has its place now
    assert replies[other].text == "later"


def test_closing_cancels_what_is_asked(misbehaving: Callable[..., Misbehaving]) -> None:
    server = misbehaving(hangs)
    endpoint = Endpoint(settings(server))
    dialogues = endpoint.converse()
    dialogues.ask(dialogues.open(), [Message(role="user", content="hi")], (1,), BUDGET)
    while not server.bodies:
        time.sleep(0.01)
    endpoint.close()
    endpoint.close()
    assert not endpoint._thread.is_alive()


# -- trouble ----------------------------------------------------------------------------------


def test_passing_trouble_is_tried_again(misbehaving: Callable[..., Misbehaving]) -> None:
    server = misbehaving(cuts, refuses(429, retry_after="1.2"), says("yes"))
    with Endpoint(settings(server, retries=3)) as endpoint:
        reply, failure = ask_one(endpoint)
    assert reply.text == "yes" and failure is None
    assert (endpoint.tally.requests, endpoint.tally.retries) == (3, 2)
    assert not endpoint.tally.failures
    waits = [b - a for a, b in zip(server.times, server.times[1:], strict=False)]
    assert waits[0] > 0.37  # half a second, less a quarter at most
    assert waits[1] >= 1.2  # what the server wants; it would be a second at most
    assert len({json.dumps(body) for body in server.bodies}) == 1  # seed and all


@pytest.mark.parametrize(
    ("act", "kind", "status", "message"),
    [
        (refuses(429, "slow down"), FailureKind.BUSY, 429, "slow down"),
        (refuses(500, "bad\nluck"), FailureKind.SERVER, 500, "bad luck"),
        (refuses(400, "no such field"), FailureKind.REFUSED, 400, "no such field"),
        (cuts, FailureKind.CONNECTION, None, "without sending complete message body"),
        (hangs, FailureKind.TIMEOUT, None, "within 0.3 s of silence"),
        (answers_with(b"<html>"), FailureKind.REPLY, None, "no chat completion"),
        (answers_with([]), FailureKind.REPLY, None, "no chat completion"),
        (answers_with({"choices": []}), FailureKind.REPLY, None, "no chat completion"),
        (answers_with(b'{"x":' + b"[" * 100_000), FailureKind.REPLY, None, "no chat completion"),
        (answers_with({"choices": [{"message": {"content": 5}}]}), FailureKind.REPLY, None, "5"),
    ],
)
def test_trouble_that_stays_is_a_failure_and_no_more(
    misbehaving: Callable[..., Misbehaving],
    act: Act,
    kind: FailureKind,
    status: int | None,
    message: str,
) -> None:
    server = misbehaving(act, says("yes"))
    with Endpoint(settings(server, silence=0.3)) as endpoint:
        reply, failure = ask_one(endpoint)
        assert reply is None and (failure.kind, failure.status) == (kind, status)
        assert message in failure.message or kind is FailureKind.REPLY
        assert endpoint.tally.failures == {kind: 1}
        assert ask_one(endpoint)[0].text == "yes"
        assert endpoint.tally.requests == 2


def test_nobody_listens(misbehaving: Callable[..., Misbehaving]) -> None:
    server = misbehaving(says("yes"))
    server.server_close()
    with Endpoint(settings(server, retries=1)) as endpoint:
        assert ask_one(endpoint)[1].kind is FailureKind.CONNECTION
        assert endpoint.tally.retries == 1


def test_the_deadline_ends_all_attempts(misbehaving: Callable[..., Misbehaving]) -> None:
    server = misbehaving(refuses(503, retry_after="60"))
    with Endpoint(settings(server, retries=9, deadline=0.4)) as endpoint:
        assert ask_one(endpoint)[1].kind is FailureKind.TIMEOUT


def test_a_conversation_too_long_for_the_server_has_no_room(
    misbehaving: Callable[..., Misbehaving],
) -> None:
    server = misbehaving(
        refuses(400, "too long", "context_length_exceeded"),
        refuses(400, "the maximum context length is 4096 tokens"),
    )
    with Endpoint(settings(server)) as endpoint:
        assert ask_one(endpoint) == ask_one(endpoint) == (None, None)
        assert endpoint.tally.full == 2 and not endpoint.tally.failures


def test_empty_replies_are_replies(misbehaving: Callable[..., Misbehaving]) -> None:
    server = misbehaving(says(None, finish="content_filter"))
    with Endpoint(settings(server)) as endpoint:
        assert ask_one(endpoint)[0].text == ""


# -- settings and the key ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "field"), [(401, "key_variable"), (403, "key_variable"), (404, "url and model")]
)
def test_settings_the_server_turns_down_stop_the_run(
    misbehaving: Callable[..., Misbehaving], status: int, field: str
) -> None:
    server = misbehaving(refuses(status, "who are you"), says("yes"), refuses(status))
    with Endpoint(settings(server)) as endpoint:
        with pytest.raises(UsageError, match=f"answers {status} .who are you.; check .* {field}"):
            ask_one(endpoint)
        assert ask_one(endpoint)[0].text == "yes"
        assert ask_one(endpoint)[1].kind is FailureKind.REFUSED  # not when it has worked before


def test_the_key_is_sent_and_never_told(
    misbehaving: Callable[..., Misbehaving],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def tells(handler: Handler, body: dict[str, Any]) -> None:
        refuses(500, f"wrong: {handler.headers['authorization']}")(handler, body)

    monkeypatch.setenv("KEY_OF_TEST", KEY)
    server = misbehaving(tells)
    with caplog.at_level(logging.DEBUG):
        with Endpoint(settings(server, key_variable="KEY_OF_TEST", retries=1)) as endpoint:
            failure = ask_one(endpoint)[1]
            assert endpoint.tally.retries == 1
            described = f"{endpoint!r} {endpoint.settings!r} {endpoint.tally!r} {failure!r}"
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert failure.message == "wrong: Bearer ***"
    out, err = capfd.readouterr()
    assert caplog.records and KEY not in described + caplog.text + out + err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"url": "localhost:8000"}, "must start with http:// or https://"),
        ({"url": "http://"}, "is no address .no host or port to ask.; write it like http://local"),
        ({"url": "http://localhost:0/v1"}, "is no address .no host"),
        ({"url": "http://localhost:99999/v1"}, "is no address .Port out of range"),
        ({"url": "http://[::1/v1"}, "is no address .Invalid IPv6 URL"),
        ({"url": "http://a b/v1"}, "is no address .a space or a control character"),
        ({"url": "http://a/\nv1"}, "is no address .a space or a control character"),
        ({"key_variable": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE must hold the endpoint's API key"),
        ({"length_field": "tokens"}, "must be one of max_completion_tokens, max_tokens"),
    ],
)
def test_settings_that_cannot_be_right(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Endpoint(dataclasses.replace(Settings(url="http://127.0.0.1:1/v1", model="m"), **changes))
