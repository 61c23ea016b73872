"""How programs write down a solution, and the actions that replay it.

A solution is a list of actions, or one of them alone. An action is text; for programs with tools it
may also be a call, `{"name": ..., "arguments": {...}}` or `(name, arguments)`, and the last one the
bare answer. A single text may tell the whole way, calls first and the answer last, each call as a
`<tool_call>` block or written as `name(key="value")`, the answer as `<answer>` or `ANSWER: ...`.
Standard library only: it runs in the sandbox's child.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from spade_jax.envs import parsers
from spade_jax.types import Kind

_CALL, _TOLD = re.compile(r"\b[A-Za-z_]\w*\("), re.compile(r"\bANSWER:[ \t]*([^\r\n]+)")
_TAGS = ("<tool_call>", "<answer>")
_MAX_CLOSERS = 32  # closing parentheses tried for one written call


def actions(value: Any, kind: Kind) -> list[str]:
    """The actions a solution stands for; ValueError, with a sentence, for anything else."""
    if isinstance(value, str):
        return _told(value) if kind is Kind.TOOL_USE else [_game_action(value)]
    if isinstance(value, list | tuple) and not _is_call(value):
        last = len(value) - 1
        return [_action(item, kind, final=i == last) for i, item in enumerate(value)]
    return [_action(value, kind, final=True)]


def _action(item: Any, kind: Kind, *, final: bool) -> str:
    if isinstance(item, dict) or _is_call(item):
        return _call(item)
    if type(item) in (int, float):
        item = str(item)
    if not isinstance(item, str):
        raise ValueError(f"An action of solution must be text, not {type(item).__name__[:80]}.")
    if kind is Kind.GAME:
        return _game_action(item)
    if any(tag in item for tag in _TAGS):
        return item
    calls = _written(item)
    if len(calls) == 1 and calls[0][0] == item.strip():
        return calls[0][1]
    return _answer(item) if final else item


def _told(text: str) -> list[str]:
    """The calls and the answer of a text that tells the whole way."""
    answer = parsers.answer(text)
    if _TAGS[0] in text:
        try:
            calls = [_render(call.name, call.arguments) for call in parsers.tool_calls(text)]
        except parsers.ToolCallError as error:
            raise ValueError(f"A call of solution cannot be read: {error}.") from error
    else:
        calls = [rendered for _, rendered in _written(text)]
        told = _TOLD.findall(text)
        if answer is None and (told or not calls):
            answer = told[-1] if told else text
    return calls + ([] if answer is None else [_answer(answer)])


def _written(text: str) -> list[tuple[str, str]]:
    """Calls written as `name(key=literal, ...)`: the text of each and its `<tool_call>`."""
    found, position = [], 0
    while match := _CALL.search(text, position):
        position = match.end()
        close = position - 1
        for _ in range(_MAX_CLOSERS):
            close = text.find(")", close + 1)
            if close < 0:
                break
            written = text[match.start() : close + 1]
            arguments = _keywords(written)
            if arguments is not None:
                found.append((written, _render(match[0][:-1], arguments)))
                position = close + 1
                break
    return found


def _keywords(written: str) -> dict[str, Any] | None:
    """The arguments of a call of literals by name; None if it is anything else."""
    try:
        node = ast.parse(written, mode="eval").body
        if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
            return None
        return {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_call(value: Any) -> bool:
    """Whether a tuple or a list is a call `(name, arguments)`."""
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], dict)
    )


def _call(item: Any) -> str:
    if isinstance(item, dict):
        arguments = item.get("arguments", item.get("parameters", {}))
        item = (item.get("name"), arguments)
    name, arguments = item
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError('A call of solution must be {"name": text, "arguments": a dict}.')
    return _render(name, arguments)


def _render(name: str, arguments: dict[str, Any]) -> str:
    try:
        written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The arguments of {name[:80]} in solution are not JSON.") from error
    return f"<tool_call>{written}</tool_call>"


def _answer(text: str) -> str:
    return f"<answer>{text.strip()}</answer>"


def _game_action(text: str) -> str:
    r"""What `step` is given for this text: the content of its `\boxed{}` where it has one."""
    return (parsers.boxed(text) if "boxed{" in text else None) or text
