"""What clients ask for: OpenAI's request bodies, checked, as jobs for the engine.

A field is honoured, or it is refused with a sentence: none is silently ignored but those that only
label a request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message

MAX_STOPS = 16
MAX_CHOICES = 128


class Refusal(Exception):
    """A request that is not served: an HTTP status and OpenAI's error object."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def error(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 429 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that both kinds of requests have."""

    model: str
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: Any = None  # labels, from here on
    metadata: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    def check(self) -> None:
        """Refuse what the sampler cannot do."""
        neutral = {"presence_penalty": self.presence_penalty, "logit_bias": self.logit_bias}
        neutral["frequency_penalty"] = self.frequency_penalty
        for name, value in neutral.items():
            _refuse_if(value, name, "is not supported by this server; leave it out")
        stops = self.stops
        _refuse_if(len(stops) > MAX_STOPS, "stop", f"has more than {MAX_STOPS} strings")
        _refuse_if("" in stops, "stop", "holds an empty string, which would end every reply")

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def budget(self) -> int | None:
        """The most tokens of a reply that the client wants; None where it does not say."""
        return self.max_tokens

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
        )

    def stream_of(self) -> tuple[int, int]:
        """Two integers below 2**32 that name the request's random stream."""
        seed = int.from_bytes(os.urandom(8)) if self.seed is None else self.seed % 2**64
        return seed >> 32, seed % 2**32


R = TypeVar("R", bound=_Request)


class Part(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str = ""


class AskedFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any]


class AskedCall(msgspec.Struct):
    """A tool call of an earlier reply, sent back."""

    function: AskedFunction

    def text(self) -> str:
        """The call as Qwen's templates write it."""
        arguments = self.function.arguments
        if isinstance(arguments, str):
            try:
                decoded = json.loads(arguments)
            except ValueError:
                decoded = None
            _refuse_if(
                not isinstance(decoded, dict),
                "messages",
                f"holds a call of {self.function.name} whose arguments are no JSON object",
            )
        else:
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(self.function.name, ensure_ascii=False)
        return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


class ChatMessage(msgspec.Struct):
    """One message; fields that other servers put into their replies are passed over."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[AskedCall] | None = None

    def message(self) -> Message:
        parts = self.content if isinstance(self.content, list) else []
        for part in parts:
            _refuse_if(
                part.type != "text", "messages", f"holds {part.type!r}; this model reads text only"
            )
        text = self.content if isinstance(self.content, str) else "".join(p.text for p in parts)
        calls = [call.text() for call in self.tool_calls or ()]
        role = "system" if self.role == "developer" else self.role
        return Message(role=role, content="\n".join(([text] if text else []) + calls))


class Format(msgspec.Struct):
    type: str


class ChatRequest(_Request, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None

    @property
    def budget(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    def check(self) -> None:
        super().check()
        _refuse_if(self.top_logprobs, "top_logprobs", "must be 0: only chosen tokens have one here")
        _refuse_if(
            self.tool_choice not in (None, "auto", "none"),
            "tool_choice",
            "must be 'auto' or 'none': this server cannot force a call",
        )
        _refuse_if(
            self.response_format is not None and self.response_format.type != "text",
            "response_format",
            "must be text: this server cannot force a form",
        )
        for tool in self.tools or ():
            function = tool.get("function")
            named = isinstance(function, dict) and isinstance(function.get("name"), str)
            _refuse_if(
                tool.get("type") != "function" or not named,
                "tools",
                "must list objects of type 'function' whose function has a name",
            )

    def said(self) -> tuple[Message, ...]:
        return tuple(message.message() for message in self.messages)

    def offered(self) -> list[dict[str, Any]]:
        """The tools the model is told of."""
        return [] if self.tool_choice == "none" else self.tools or []


class CompletionRequest(_Request, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/completions: text, ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def budget(self) -> int | None:
        return self.max_tokens or 16  # what OpenAI's interface says

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    def check(self) -> None:
        super().check()
        _refuse_if(self.logprobs, "logprobs", "must be 0: only chosen tokens have one here")
        _refuse_if(self.echo, "echo", "is not supported by this server; leave it out")
        _refuse_if(self.suffix, "suffix", "is not supported by this server; leave it out")
        _refuse_if(
            self.best_of not in (None, self.choices), "best_of", "must equal n on this server"
        )

    def prompts(self) -> Sequence[str | list[int]]:
        """Each prompt as text or as ids."""
        given = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if given and all(isinstance(each, int) for each in given):
            return [list(given)]
        kinds = {type(each) for each in given}
        _refuse_if(
            len(kinds) != 1 or int in kinds,
            "prompt",
            "must be a text, a list of texts, a list of ids, or a list of lists of ids",
        )
        return given


def parse(body: bytes, form: type[R]) -> R:
    """The checked request in a body; Refusal with one sentence for anything else."""
    try:
        asked = msgspec.json.decode(body, type=form)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        place = place.rstrip("`").lstrip(".")
        message = f"{place or 'the body'}: {problem[:1].lower()}{problem[1:]}"
        raise Refusal(400, message, param=place or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the body is no valid JSON: {error}") from None
    asked.check()
    return asked


def _refuse_if(wrong: object, field: str, problem: str) -> None:
    if wrong:
        raise Refusal(400, f"{field} {problem}", param=field)
