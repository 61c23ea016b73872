"""A model behind an OpenAI-compatible server, in the place of the policy.

It can play either role, write hints or judge: whatever talks to a `Speaker` can talk to it.
Requests go out in the background, so many at once as the settings allow. What is said through it
has no ids or log-probabilities, so that there are no records of it to learn from.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import enum
import hashlib
import os
import queue
import re
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from spade_jax.policy.conversation import Budget
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tool_calls import Sent, as_text
from spade_jax.types import Generation, Message, StopReason, TokenRecord, UsageError

WAIT_SECONDS = 0.05  # that `answers` waits for the first
LOOK_SECONDS = 10.0  # for a server's list of models
SHOWN = 300  # characters of a server's own words in a failure
TOO_LONG = re.compile(r"context[ _](length|size|window)", re.IGNORECASE)
LENGTHS = {"max_tokens", "max_completion_tokens"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Where a model is served, and how patient to be with it."""

    url: str  # up to and with /v1
    model: str
    key_variable: str = ""  # environment variable that holds the API key; "" sends none
    concurrency: int = 32  # requests at once
    silence: float = 120.0  # seconds without a byte after which an attempt is given up
    deadline: float = 900.0  # seconds for one reply, all attempts and the waits between them
    retries: int = 6  # attempts after the first: at 429, 5xx and broken connections
    length_field: str = "max_tokens"  # some servers want max_completion_tokens


class FailureKind(enum.StrEnum):
    """Why no reply came, after the last attempt."""

    TIMEOUT = "timeout"  # too much silence, or the deadline
    CONNECTION = "connection"  # refused, reset, cut off
    BUSY = "busy"  # 429
    SERVER = "server"  # 5xx
    REFUSED = "refused"  # any other status
    REPLY = "reply"  # an answer that is none


@dataclasses.dataclass(frozen=True)
class EndpointFailure:
    """A reply that did not come; `status` is HTTP's, where the server answered."""

    kind: FailureKind
    message: str
    status: int | None = None


@dataclasses.dataclass
class Tally:
    """What an endpoint was asked and what came of it. `requests` counts every attempt.

    `full` are conversations the server said were too long for it.
    """

    requests: int = 0
    retries: int = 0
    replies: int = 0
    full: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: collections.Counter[FailureKind] = dataclasses.field(
        default_factory=collections.Counter
    )


# -- what is read of an answer ----------------------------------------------------------------


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Function


class _Said(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Said
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Served(msgspec.Struct):
    id: str
    max_model_len: int | None = None  # as vLLM and our server say it


class _Models(msgspec.Struct):
    data: list[_Served]


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class Endpoint:
    """A served model as a `Speaker`; a context manager that ends its connections.

    `tally` counts over all conversations with it. A mistake in the settings is a UsageError: here,
    or, where only the server knows it (key, model, address), at the first answer. The API key is
    in none of its messages.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.tally = settings, Tally()
        self._openai = _library()
        self._key = _check(settings)
        self._client = self._openai.AsyncOpenAI(
            base_url=settings.url,
            api_key=self._key or "none",
            timeout=settings.silence,
            max_retries=settings.retries,
        )
        self._places = asyncio.Semaphore(settings.concurrency)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="endpoint", daemon=True)
        self._thread.start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def tokens_read(self) -> int:
        return self.tally.prompt_tokens

    @property
    def tokens_sampled(self) -> int:
        return self.tally.completion_tokens

    def converse(self) -> EndpointDialogues:
        return EndpointDialogues(self)

    def longest(self) -> int | None:
        """Most tokens of a conversation; None where the server does not tell."""
        served = asyncio.run_coroutine_threadsafe(self._models(), self._loop).result()
        named = [each for each in served if each.id == self.settings.model]
        return named[0].max_model_len if named else None

    async def _models(self) -> list[_Served]:
        client = self._client.with_options(max_retries=1, timeout=LOOK_SECONDS)
        try:
            raw = await client.models.with_raw_response.list()
            return msgspec.json.decode(raw.content, type=_Models).data
        except (self._openai.OpenAIError, msgspec.DecodeError):
            return []

    def request(
        self,
        sent: Sent,
        stream: tuple[int, ...],
        tokens: int,
        sampling: Sampling,
    ) -> concurrent.futures.Future[_Reply]:
        """Ask in the background for a reply of so many tokens at most."""
        asked = {
            "model": self.settings.model,
            "messages": list(sent.messages),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed_of(stream),
            self.settings.length_field: tokens,
        }
        if sent.tools:
            asked["tools"] = sent.tools
        # Fields that OpenAI's own interface lacks are sent only where they say something.
        more = {"top_k": sampling.top_k, "min_p": sampling.min_p}
        if sampling.greedy:
            asked |= {"temperature": 0.0, "top_p": 1.0}
            more = {}
        asked["extra_body"] = {name: value for name, value in more.items() if value}
        return asyncio.run_coroutine_threadsafe(self._reply(asked), self._loop)

    def close(self) -> None:
        """Cancel what is asked and close the connections."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    async def _reply(self, asked: dict[str, Any]) -> _Reply:
        openai = self._openai
        try:
            async with self._places, asyncio.timeout(self.settings.deadline):
                raw = await self._client.chat.completions.with_raw_response.create(**asked)
            self._count(raw.retries_taken)
            return self._read(raw.content)
        except openai.APIStatusError as error:
            self._count(_retries(error))
            return self._refused(error)
        except (openai.APITimeoutError, TimeoutError) as error:
            self._count(_retries(error))
            seconds = f"{self.settings.silence:g} s of silence, or {self.settings.deadline:g} s"
            return self._failed(FailureKind.TIMEOUT, f"no reply came within {seconds} in all")
        except openai.APIConnectionError as error:
            self._count(_retries(error))
            return self._failed(FailureKind.CONNECTION, str(error.__cause__ or error))

    def _count(self, retries: int) -> None:
        self.tally.requests += 1 + retries
        self.tally.retries += retries

    def _read(self, body: bytes) -> _Reply:
        try:
            answer = msgspec.json.decode(body, type=_Answer)
            choice = answer.choices[0]
        except (msgspec.DecodeError, RecursionError, IndexError) as error:
            return self._failed(FailureKind.REPLY, f"the answer is no chat completion ({error})")
        used = answer.usage or _Usage()
        self.tally.replies += 1
        self.tally.prompt_tokens += used.prompt_tokens
        self.tally.completion_tokens += used.completion_tokens
        stop = StopReason.LENGTH if choice.finish_reason == "length" else StopReason.STOP
        calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
        text = as_text(choice.message.content or "", calls)
        said = Generation(ids=(), logp=(), text=text, stop=stop, tokens=used.completion_tokens)
        return _Reply(said, used=used.prompt_tokens + used.completion_tokens)

    def _refused(self, error: Any) -> _Reply:
        """What an answer of status 400 or more means."""
        told = error.body.get("message") if isinstance(error.body, dict) else None
        status, message = error.status_code, str(told or error.message)
        if status == 400 and TOO_LONG.search(f"{error.code} {error.type} {message}"):
            self.tally.full += 1
            return _Reply(None)
        if status in (401, 403, 404) and not self.tally.replies:
            field = "url and model" if status == 404 else "key_variable"
            raise UsageError(
                f"{self.settings.url} answers {status} ({self._safe(message)}); check the "
                f"endpoint's {field}"
            )
        kind = FailureKind.SERVER if status >= 500 else FailureKind.REFUSED
        return self._failed(FailureKind.BUSY if status == 429 else kind, message, status)

    def _failed(self, kind: FailureKind, message: str, status: int | None = None) -> _Reply:
        self.tally.failures[kind] += 1
        return _Reply(None, failure=EndpointFailure(kind, self._safe(message), status))

    def _safe(self, message: str) -> str:
        """A server's words in one line, cut, and without the key it may have repeated."""
        hidden = message.replace(self._key, "***") if self._key else message
        return " ".join(hidden.split())[:SHOWN]


@dataclasses.dataclass(frozen=True)
class _Reply:
    """What came of a request; `used` are the conversation's tokens as the server counts them."""

    said: Generation | None
    failure: EndpointFailure | None = None
    used: int = 0


class EndpointDialogues:
    """Dialogues with an endpoint, which is told all of a dialogue at each turn."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._sent: list[Sent] = []
        self._used: list[int] = []  # tokens of each dialogue, as far as the server told
        self._failure: dict[int, EndpointFailure] = {}
        self._asked: dict[int, concurrent.futures.Future[_Reply]] = {}
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()

    def open(self, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        self._sent.append(Sent(tools))
        self._used.append(0)
        return len(self._sent) - 1

    def ask(
        self,
        dialogue: int,
        messages: Sequence[Message],
        stream: tuple[int, ...],
        budget: Budget,
    ) -> None:
        """Say something in a dialogue and ask for a reply, which `answers` gives."""
        for message in messages:
            self._sent[dialogue].append(message)
        room = budget.context - self._used[dialogue]
        if room > 0:
            tokens = min(budget.reply, room)
            asked = self._endpoint.request(self._sent[dialogue], stream, tokens, budget.sampling)
        else:
            asked = concurrent.futures.Future()
            asked.set_result(_Reply(None))
        self._asked[dialogue] = asked
        asked.add_done_callback(lambda _: self._came.put(dialogue))

    def answers(self) -> dict[int, Generation | None]:
        """The replies that have come, after a short wait; None where no room was left for one, or
        where the endpoint failed (`failure` tells)."""
        replies: dict[int, Generation | None] = {}
        try:
            dialogue = self._came.get(timeout=WAIT_SECONDS)
            while True:
                asked = self._asked.get(dialogue)
                if asked is not None and asked.done():
                    del self._asked[dialogue]
                    replies[dialogue] = self._take(dialogue, asked.result())
                dialogue = self._came.get_nowait()
        except queue.Empty:
            return replies

    def _take(self, dialogue: int, reply: _Reply) -> Generation | None:
        if reply.said is not None:
            self._sent[dialogue].append(Message(role="assistant", content=reply.said.text))
            self._used[dialogue] = reply.used
        if reply.failure is not None:
            self._failure[dialogue] = reply.failure
        return reply.said

    def failure(self, dialogue: int) -> EndpointFailure | None:
        """Why a dialogue's last answer was None, if the endpoint failed."""
        return self._failure.get(dialogue)

    def records(self, dialogue: int) -> tuple[TokenRecord, ...]:
        """None: the endpoint's ids are not known."""
        return ()

    def retire(self, dialogues: Sequence[int]) -> None:
        """Forget dialogues; what is asked in them is cancelled."""
        for dialogue in dialogues:
            if asked := self._asked.pop(dialogue, None):
                asked.cancel()
            self._sent[dialogue] = Sent()


def seed_of(stream: tuple[int, ...]) -> int:
    """A seed below 2**31 for a random stream: a stable hash of its integers."""
    digest = hashlib.blake2b(repr(tuple(stream)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


def _retries(error: BaseException) -> int:
    """Attempts before the one that failed."""
    request = getattr(error, "request", None)
    return int(request.headers.get("x-stainless-retry-count", 0)) if request is not None else 0


def _library() -> Any:
    try:
        import openai
    except ImportError:
        raise UsageError(
            "endpoints need the package openai; run pip install -e '.[endpoint]' in the repository"
        ) from None
    return openai


def _fault(url: str) -> str | None:
    """Why no server can be asked at the address."""
    if not url.isprintable() or " " in url:
        return "a space or a control character is in it"
    try:
        parts = urllib.parse.urlsplit(url)
        return None if parts.hostname and parts.port != 0 else "no host or port to ask"
    except ValueError as error:
        return str(error)


def _check(settings: Settings) -> str:
    """The API key, "" for none. Raises UsageError where a setting cannot be right."""
    if not settings.url.startswith(("http://", "https://")):
        raise UsageError(f"the endpoint's url {settings.url!r} must start with http:// or https://")
    if fault := _fault(settings.url):
        raise UsageError(
            f"the endpoint's url {settings.url!r} is no address ({fault}); write it like "
            "http://localhost:8000/v1"
        )
    if settings.length_field not in LENGTHS:
        known = ", ".join(sorted(LENGTHS))
        raise UsageError(f"the endpoint's length_field must be one of {known}")
    key = os.environ.get(settings.key_variable, "") if settings.key_variable else ""
    if settings.key_variable and not (key.isascii() and key.isprintable() and key.strip()):
        raise UsageError(
            f"the environment variable {settings.key_variable} must hold the endpoint's API key; "
            "export it"
        )
    return key
