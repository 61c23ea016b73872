"""Reading a model's reply: programs, boxed answers, tool calls, answers.

Standard library only: the sandbox's child uses this module as well as the trainer. Thinking
(everything up to the last `</think>`, and an unclosed `<think>`) is never read for actions.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from spade_jax.types import Kind

_FENCE = re.compile(r"[ \t]*(`{3,})[ \t]*([^`\r\n]*?)[ \t]*\r?$")
_ENV_CLASS = re.compile(r"^class[ \t]+\w*Env\b", re.MULTILINE)
_PYTHON_TAGS = {"", "python", "py", "python3"}
_MAX_CLOSERS = 16  # closing fences tried for one block

_BRACES = re.compile(r"\\{1,2}(?:boxed|fbox)[ \t]*\{|\\.|[{}]", re.DOTALL)

_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """One call a model asked for; `position` is where its object starts in the reply."""

    name: str
    arguments: dict[str, Any]
    position: int


class ToolCallError(ValueError):
    """A tool call that cannot be read; `position` counts characters from the reply's start."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem} (character {position})")
        self.problem = problem
        self.position = position


# -- programs ---------------------------------------------------------------------------------


def extract_code(reply: str) -> str | None:
    """The last complete code block that defines a class whose name ends in `Env`, else None.

    Triple backticks on a line of their own inside a docstring do not end a block that is valid
    Python only further down. An unterminated block does not count.
    """
    lines = reply.split("\n")
    fences = [match and (match[1], match[2].lower()) for match in map(_FENCE.match, lines)]
    code, line = None, 0
    while line < len(lines):
        if fences[line] is None:
            line += 1
            continue
        ticks, tag = fences[line]
        closers = [
            n
            for n in range(line + 1, len(lines))
            if fences[n] and not fences[n][1] and len(fences[n][0]) >= len(ticks)
        ]
        if not closers:
            break
        end = closers[0]
        if tag in _PYTHON_TAGS:
            end = _end_of_block(lines, line + 1, closers[:_MAX_CLOSERS])
            block = _join(lines[line + 1 : end])
            code = block if _ENV_CLASS.search(block) else code
        line = end + 1
    return code


def parse_program(code: str) -> ast.Module:
    """The syntax tree; SyntaxError for anything Python cannot read, however it says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "nested too deeply") from error


def _end_of_block(lines: list[str], start: int, closers: list[int]) -> int:
    """The first closing fence that leaves valid Python; the first of all where none does."""
    for end in closers:
        block = _join(lines[start:end])
        if not _ENV_CLASS.search(block):
            continue
        try:
            parse_program(block)
        except SyntaxError:
            continue
        return end
    return closers[0]


def _join(lines: list[str]) -> str:
    return "".join(line.removesuffix("\r") + "\n" for line in lines)


# -- what the agent says ----------------------------------------------------------------------


def parse_action(kind: Kind, reply: str) -> str | None:
    r"""The action in an agent's reply, as `step` takes it; None where there is none.

    Games: the content of the last `\boxed{}`. Tool use: the reply after its thinking, when that
    holds a tool call or an answer; the environment itself reads the calls and reports errors.
    """
    if kind is Kind.GAME:
        return boxed(reply)
    start, end = _visible(reply)
    text = reply[start:end].strip()
    return text if _CALL_OPEN in text or answer(text) is not None else None


def boxed(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{}` or `\fbox{}`; None if there is none or it is empty.

    Escaped braces do not count; of nested boxes the one that starts last is read. Linear time.
    """
    start, end = _visible(text)
    stack: list[int | None] = []  # where each open brace's content starts, None if not a box
    last: tuple[int, int] | None = None
    for match in _BRACES.finditer(text, start, end):
        token = match[0]
        if token == "}":
            opened = stack.pop() if stack else None
            if opened is not None and (last is None or opened > last[0]):
                last = (opened, match.start())
        elif token == "{":
            stack.append(None)
        elif token.endswith("{") and len(token) > 2:
            stack.append(match.end())
    return (text[last[0] : last[1]].strip() or None) if last else None


def answer(text: str) -> str | None:
    """Content of the last `<answer>...</answer>` outside thinking, or None."""
    start, end = _visible(text)
    found = [match[1].strip() for match in _ANSWER.finditer(text, start, end)]
    return (found[-1] or None) if found else None


def tool_calls(text: str) -> list[ToolCall]:
    """Every call in the `<tool_call>` blocks outside thinking; ToolCallError at the first fault.

    A block holds one or more JSON objects `{"name": ..., "arguments": {...}}`. `parameters` may
    stand for `arguments`, and arguments given as a JSON string are decoded once.
    """
    start, end = _visible(text)
    return list(_calls(text[:end], start))


def _visible(text: str) -> tuple[int, int]:
    """Where the part of a reply that is not thinking starts and ends."""
    closed = text.rfind("</think>")
    start = closed + len("</think>") if closed >= 0 else 0
    opened = text.find("<think>", start)
    return start, opened if opened >= 0 else len(text)


def _calls(text: str, position: int) -> Iterator[ToolCall]:
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
    while (opened := text.find(_CALL_OPEN, position)) >= 0:
        position = _skip_space(text, opened + len(_CALL_OPEN))
        empty = True
        while not text.startswith(_CALL_CLOSE, position):
            if position >= len(text):
                raise ToolCallError("The tool call is cut off: </tool_call> is missing", position)
            value, after = _decode(decoder, text, position)
            yield _call(value, position)
            position, empty = _skip_space(text, after), False
        if empty:
            raise ToolCallError("The tool call is empty", position)
        position += len(_CALL_CLOSE)


def _decode(decoder: json.JSONDecoder, text: str, position: int) -> tuple[Any, int]:
    try:
        return decoder.raw_decode(text, position)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        cut = cut and text.find(_CALL_CLOSE, position) < 0
        problem = "The tool call is cut off" if cut else f"The tool call is not JSON: {error.msg}"
        raise ToolCallError(problem, error.pos) from error
    except _Rejected as error:
        raise ToolCallError(str(error), position) from error
    except RecursionError as error:
        raise ToolCallError("The tool call is nested too deeply", position) from error


def _call(value: Any, position: int) -> ToolCall:
    if not isinstance(value, dict):
        raise ToolCallError("A tool call must be a JSON object", position)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise ToolCallError('A tool call needs a "name"', position)
    given = [key for key in ("arguments", "parameters") if key in value]
    if len(given) != 1:
        raise ToolCallError(f'The call of {name} needs one "arguments" object', position)
    arguments = value[given[0]]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(
                arguments, object_pairs_hook=_unique, parse_constant=_no_constant
            )
        except (ValueError, RecursionError) as error:
            problem = f"The arguments of {name} are text that is not JSON"
            raise ToolCallError(problem, position) from error
    if not isinstance(arguments, dict):
        raise ToolCallError(f"The arguments of {name} must be a JSON object", position)
    return ToolCall(name, arguments, position)


class _Rejected(ValueError):
    """JSON that Python's decoder would take and this one does not."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _Rejected(f"The key {twice!r} appears twice in the tool call")
    return result


def _no_constant(name: str) -> NoReturn:
    raise _Rejected(f"{name} is not a JSON value")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
