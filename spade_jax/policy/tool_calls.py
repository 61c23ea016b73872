"""Tool calls between the text a model writes and the objects servers exchange.

Whoever talks to an endpoint sees calls in a reply's text, as the policy writes them itself; the
server is told of them in its own form, where they can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spade_jax.envs import parsers
from spade_jax.types import Message

OPEN = "<tool_call>"


def as_text(content: str, calls: Sequence[tuple[str, str | Mapping[str, Any] | None]]) -> str:
    """A reply of content and calls, each a name and its arguments, as one text.

    Arguments that are no JSON stay as they are, so that reading the call says what is wrong.
    """
    written = [content] if content else []
    for name, arguments in calls:
        given = arguments or "{}"
        given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        name = json.dumps(name, ensure_ascii=False)
        written.append(f'{OPEN}\n{{"name": {name}, "arguments": {given}}}\n</tool_call>')
    return "\n".join(written)


def as_sent(message: Message) -> dict[str, Any]:
    """A message where servers know of no calls: what tools say is the user's."""
    if message.role == "tool":
        content = f"<tool_response>\n{message.content}\n</tool_response>"
        return {"role": "user", "content": content}
    return {"role": message.role, "content": message.content}


class Sent:
    """A dialogue as a server is told it, with the calls of its tools in the server's form."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.tools = list(tools)
        self.messages: list[dict[str, Any]] = []
        self._calls = 0
        self._unanswered: list[str] = []  # ids of the last reply's calls

    def append(self, message: Message) -> None:
        """A message more; a tool's answers the first call that has no answer yet."""
        if not self.tools:
            self.messages.append(as_sent(message))
        elif message.role == "assistant":
            self.messages.append(self._reply(message.content))
        elif message.role == "tool" and self._unanswered:
            told = {"tool_call_id": self._unanswered.pop(0), "content": message.content}
            self.messages.append({"role": "tool", **told})
        else:
            self.messages.append(as_sent(message))

    def _reply(self, text: str) -> dict[str, Any]:
        try:
            calls = parsers.tool_calls(text, self.tools)
        except parsers.ToolCallError:
            calls = []
        self._unanswered = [f"call_{self._calls + i}" for i in range(len(calls))]
        self._calls += len(calls)
        if not calls:
            return {"role": "assistant", "content": text}
        content = text[: text.rfind(OPEN, 0, calls[0].position)].rstrip()
        told = [
            {
                "id": name,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for name, call in zip(self._unanswered, calls, strict=True)
        ]
        return {"role": "assistant", "content": content or None, "tool_calls": told}
