"""What an agent's reply says: tool calls, an answer, an action.

A reply is read once, tag by tag. What a complete call holds is never taken for a tag. At each
`</think>` everything before it turns out to have been thinking; an unclosed `<think>` hides the
rest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from spade_jax.envs.parsers import json_calls, xml_calls
from spade_jax.envs.parsers.boxes import boxed
from spade_jax.envs.parsers.calls import ToolCall, ToolCallError
from spade_jax.types import Kind

_TAG = re.compile(r"<tool_call>|</?think>|</?answer>")
_SPACE = re.compile(r"\s*")
_CALL_CLOSE = "</tool_call>"


@dataclasses.dataclass
class _Reply:
    """What was said outside thinking, in `text[start:end]`; `fault` is the first bad call."""

    start: int
    end: int
    calls: list[ToolCall] = dataclasses.field(default_factory=list)
    fault: ToolCallError | None = None
    answer: str | None = None


def parse_action(kind: Kind, reply: str) -> str | None:
    r"""The action in an agent's reply, as `step` takes it; None where there is none.

    Games: the content of the last `\boxed{}`. Tool use: the reply after its thinking, when that
    holds a tool call or an answer; the environment itself reads the calls and reports errors.
    """
    if kind is Kind.GAME:
        return boxed(reply)
    said = _read(reply)
    if said.calls or said.fault or said.answer:
        return reply[said.start : said.end].strip()
    return None


def spoken(reply: str) -> str:
    """What a reply says outside its thinking."""
    said = _read(reply)
    return reply[said.start : said.end].strip()


def answer(text: str) -> str | None:
    """Content of the last `<answer>...</answer>` outside thinking and calls; None if empty."""
    return _read(text).answer or None


def tool_calls(
    text: str, tools: Sequence[dict[str, Any]] = (), *, literals: bool = False
) -> list[ToolCall]:
    """Every call in the `<tool_call>` blocks outside thinking; ToolCallError at the first fault.

    A block holds one or more JSON objects or `<function=...>` elements. `tools` are function
    schemas by which the values of the latter are typed; without a schema they are strings.
    `literals` lets Python literals of JSON's types stand for JSON.
    """
    said = _read(text, tools, literals)
    if said.fault is not None:
        raise said.fault
    return said.calls


def _read(text: str, tools: Sequence[dict[str, Any]] = (), literals: bool = False) -> _Reply:
    properties = xml_calls.schemas(tools)
    said, position = _Reply(0, len(text)), 0
    opened: int | None = None  # where the content of an open <answer> starts
    while tag := _TAG.search(text, position):
        position = tag.end()
        match tag[0]:
            case "</think>":
                said, opened = _Reply(position, len(text)), None
            case "<think>":
                position = text.find("</think>", position)
                if position < 0:
                    said.end = tag.start()
                    break
            case "<answer>":
                opened = position
            case "</answer>":
                if opened is not None:
                    said.answer, opened = text[opened : tag.start()].strip(), None
            case "<tool_call>":
                try:
                    items, position = _block(text, position, literals)
                    for item in items:
                        said.calls.append(_call(item, properties))
                except ToolCallError as error:
                    said.fault = said.fault or error
    fault = said.fault
    if fault and text.find(_CALL_CLOSE, fault.position, said.end) < 0:
        said.fault = ToolCallError("The tool call is cut off", fault.position)
    return said


def _block(
    text: str, position: int, literals: bool
) -> tuple[list[json_calls.JsonItem | xml_calls.XmlItem], int]:
    """What a block holds whose content starts at `position`, and where the block ends."""
    items: list[json_calls.JsonItem | xml_calls.XmlItem] = []
    while True:
        position = _SPACE.match(text, position).end()
        if text.startswith(_CALL_CLOSE, position):
            if not items:
                raise ToolCallError("The tool call is empty", position)
            return items, position + len(_CALL_CLOSE)
        form = xml_calls if text.startswith(xml_calls.OPEN, position) else json_calls
        items.append(form.read(text, position, literals))
        position = items[-1].end


def _call(
    item: json_calls.JsonItem | xml_calls.XmlItem, properties: dict[str, xml_calls.Properties]
) -> ToolCall:
    if isinstance(item, xml_calls.XmlItem):
        return item.call(properties.get(item.name, {}))
    return item.call()
