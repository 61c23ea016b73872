"""OpenAI's response bodies, whole and in pieces."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from spade_jax.envs import parsers
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.serve.engine import Reply
from spade_jax.serve.text import CALL, UNFINISHED
from spade_jax.types import StopReason

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Form:
    """How the replies to one request are written."""

    model: str
    chat: bool
    tokenizer: ChatTokenizer
    logprobs: bool = False
    tools: Sequence[Object] = ()
    several_calls: bool = True
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def whole(self, replies: Sequence[Reply], prompt_tokens: int) -> Object:
        """The body of an answer that is not streamed."""
        choices = [self._choice(i, reply) for i, reply in enumerate(replies)]
        return self._body("", choices) | {"usage": usage(replies, prompt_tokens)}

    def opening(self, index: int) -> Object | None:
        """The first piece of a choice, where its form has one."""
        return self._chunk(index, {"role": "assistant", "content": ""}) if self.chat else None

    def piece(self, index: int, text: str) -> Object:
        """Some of a choice's text."""
        return self._chunk(index, {"content": text} if self.chat else text)

    def ending(self, index: int, reply: Reply) -> list[Object]:
        """What follows the text shown: the rest of it, calls, log-probabilities, why it ended."""
        content, calls = self._read(reply)
        pieces = []
        if content[reply.shown :]:
            pieces.append(self.piece(index, content[reply.shown :]))
        if calls:
            numbered = [{"index": i, **call} for i, call in enumerate(calls)]
            pieces.append(self._chunk(index, {"tool_calls": numbered}))
        last = self._chunk(index, {} if self.chat else "")
        last["choices"][0]["finish_reason"] = _why(reply, calls)
        last["choices"][0]["logprobs"] = self._logprobs(reply)
        return [*pieces, last]

    def tally(self, replies: Sequence[Reply], prompt_tokens: int) -> Object:
        """The piece that ends a stream whose client wants to know its usage."""
        return self._body(".chunk", []) | {"usage": usage(replies, prompt_tokens)}

    def _body(self, suffix: str, choices: list[Object]) -> Object:
        prefix, kind = ("chatcmpl", "chat.completion") if self.chat else ("cmpl", "text_completion")
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind + (suffix if self.chat else ""),
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _chunk(self, index: int, new: Object | str) -> Object:
        choice = {"index": index, "finish_reason": None, "logprobs": None}
        return self._body(".chunk", [choice | {"delta" if self.chat else "text": new}])

    def _choice(self, index: int, reply: Reply) -> Object:
        content, calls = self._read(reply)
        choice = {"index": index, "finish_reason": _why(reply, calls)}
        choice["logprobs"] = self._logprobs(reply)
        if not self.chat:
            return choice | {"text": content}
        message: Object = {"role": "assistant", "content": content or None if calls else content}
        if calls:
            message["tool_calls"] = calls
        return choice | {"message": message}

    def _read(self, reply: Reply) -> tuple[str, list[Object]]:
        """Content and tool calls of a reply; one that was cut off or cannot be read has no calls.

        With calls, the content is what comes before the first.
        """
        if not self.tools or reply.stop is StopReason.LENGTH:
            return reply.text, []
        try:
            calls = parsers.tool_calls(reply.text, self.tools)
        except parsers.ToolCallError:
            return reply.text, []
        if not calls:
            return reply.text, []
        content = reply.text[: reply.text.rfind(CALL, 0, calls[0].position)].rstrip()
        return content, [_call(call) for call in calls[: None if self.several_calls else 1]]

    def _logprobs(self, reply: Reply) -> Object | None:
        if not self.logprobs:
            return None
        tokens = [self.tokenizer.decode([i]) for i in reply.ids]
        if self.chat:
            listed = zip(tokens, reply.logp, strict=True)
            return {"content": [_token(text, logp) for text, logp in listed], "refusal": None}
        offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
        return {
            "tokens": tokens,
            "token_logprobs": list(reply.logp),
            "top_logprobs": None,
            "text_offset": offsets,
        }


def usage(replies: Sequence[Reply], prompt_tokens: int) -> Object:
    sampled = sum(reply.sampled for reply in replies)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
    }


def _why(reply: Reply, calls: Sequence[Object]) -> str:
    return "tool_calls" if calls else str(reply.stop)


def _token(text: str, logp: float) -> Object:
    data = None if UNFINISHED in text else list(text.encode())
    return {"token": text, "logprob": logp, "bytes": data, "top_logprobs": []}


def _call(call: parsers.ToolCall) -> Object:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
