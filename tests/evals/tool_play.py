"""Replies with calls of tools, and prompts with tools as models read them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from spade_jax.evals.calls import Call
from spade_jax.evals.suites import Say, Tools
from spade_jax.policy import templates
from spade_jax.policy.conversation import stream
from spade_jax.types import Message
from tests.evals.scripted import Scripted


class Script(Scripted):
    """A speaker of replies given by item, which it knows by the name in a reply's stream."""

    def __init__(self, suite: str, replies: Mapping[str, Sequence[str]]) -> None:
        super().__init__(answer=None)
        self._replies = {stream(0, f"{suite}/{item}")[1]: texts for item, texts in replies.items()}

    def reply(self, said: Sequence[Message], named: tuple[int, ...]) -> str:
        _, item, _, number = named
        return self._replies[item][number]


def written(*calls: Call, tools: Tools = ()) -> str:
    """Calls as a model writes them; `tools` name the parameters of values given by position."""
    order = {
        each["function"]["name"]: list(each["function"]["parameters"]["properties"])
        for each in tools
    }
    return "\n".join(
        call_text(
            call.name,
            {**dict(zip(order.get(call.name, ()), call.values, strict=False)), **call.named},
        )
        for call in calls
    )


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    called = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{called}\n</tool_call>"


def prompt(say: Say) -> str:
    """A first message as a model reads it, in a template of the published form."""
    source = (Path(__file__).parents[1] / "policy" / "golden" / "instruct.jinja").read_text()
    template = templates.Template(source, "instruct.jinja", (), {})
    return template.render(say.messages, say.tools or ()).plain()


def is_golden(name: str, say: Say) -> bool:
    """Whether a first message reads as in `golden/`; SPADE_WRITE_GOLDENS=1 writes it there."""
    file = Path(__file__).parent / "golden" / f"{name}.txt"
    if os.environ.get("SPADE_WRITE_GOLDENS"):
        file.write_text(prompt(say), encoding="utf-8")
    return prompt(say) == file.read_text(encoding="utf-8")
