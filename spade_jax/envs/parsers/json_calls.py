"""Tool calls written as JSON objects, and strict decoding of JSON values.

`{"name": ..., "arguments": {...}}`; `parameters` may stand for `arguments`, and arguments given
as a JSON string are decoded once.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import re
from typing import Any, NoReturn

from spade_jax.envs.parsers.calls import ToolCall, ToolCallError
from spade_jax.envs.parsers.syntax import parse_expression

_MAX_DEPTH = 64  # brackets within brackets
_MAX_DIGITS = 300
_MAX_LITERAL = 20_000  # characters of an object read as a Python literal

_JSON = re.compile(r'"(?:[^"\\]++|\\.)*+"?+|[][{}<]', re.DOTALL)
_LITERAL = re.compile(rf"{_JSON.pattern}|'(?:[^'\\]++|\\.)*+'?+", re.DOTALL)


class Unreadable(ValueError):
    """Text that is no JSON value; `offset` is where in it the fault was seen."""

    def __init__(self, problem: str, offset: int = 0) -> None:
        super().__init__(problem)
        self.offset = offset


@dataclasses.dataclass(frozen=True)
class JsonItem:
    """A decoded object of a `<tool_call>` block, not yet known to be a call."""

    value: dict[str, Any]
    literals: bool
    position: int
    end: int

    def call(self) -> ToolCall:
        """The call the object stands for."""
        name = self.value.get("name")
        if not isinstance(name, str) or not name:
            raise ToolCallError('A tool call needs a "name"', self.position)
        given = [key for key in ("arguments", "parameters") if key in self.value]
        if len(given) != 1:
            raise ToolCallError(f'The call of {name} needs one "arguments" object', self.position)
        arguments = self.value[given[0]]
        if isinstance(arguments, str):
            try:
                arguments = loads(arguments, self.literals)
            except Unreadable as error:
                problem = f"The arguments of {name} are text that is not JSON"
                raise ToolCallError(problem, self.position) from error
        if not isinstance(arguments, dict):
            raise ToolCallError(f"The arguments of {name} must be a JSON object", self.position)
        return ToolCall(name, arguments, self.position, self.end)


def read(text: str, position: int, literals: bool) -> JsonItem:
    """The JSON object that starts at `position`."""
    if not text.startswith("{", position):
        raise ToolCallError("A tool call must be a JSON object", position)
    try:
        end = _extent(text, position, literals)
        return JsonItem(loads(text[position:end], literals), literals, position, end)
    except Unreadable as error:
        problem = f"The tool call is not JSON: {error}"
        raise ToolCallError(problem, position + error.offset) from error


def loads(source: str, literals: bool = False) -> Any:
    """The JSON value written in `source`; Unreadable for anything else.

    Keys must differ, numbers be finite and text valid unicode. With `literals` a Python literal
    of the same types will do.
    """
    _extent(source, 0, literals)  # not nested too deeply
    try:
        value = _DECODER.decode(source)
    except json.JSONDecodeError as error:
        if not literals:
            raise Unreadable(error.msg, error.pos) from error
        value = _literal(source, error)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Unreadable("a string holds half of a surrogate pair") from error
    return value


def _extent(text: str, start: int, literals: bool) -> int:
    """Where the object that opens at `start` ends; else how far a decoder could read.

    Outside strings no value holds a `<`. So of all calls in a reply at most three (one for each
    kind of quote, and one more) read the same character, and the time stays linear.
    """
    depth = 0
    for match in (_LITERAL if literals else _JSON).finditer(text, start):
        token = match[0]
        if token in "{[":
            depth += 1
            if depth > _MAX_DEPTH:
                raise Unreadable("it is nested too deeply")
        elif token in "}]":
            depth -= 1
            if depth <= 0:
                return match.end()
        elif token == "<":
            return match.start()
    return len(text)


def _literal(source: str, fault: json.JSONDecodeError) -> Any:
    """The value of a Python literal; where it is none, what was wrong with it as JSON is said."""
    if len(source) <= _MAX_LITERAL:
        try:
            return _value(parse_expression(source.strip()))
        except SyntaxError:
            pass
    raise Unreadable(fault.msg, fault.pos) from fault


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | str()):
            return node.value
        case ast.Constant(value=int() | float()):
            return _number(node.value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            if not isinstance(number, bool):
                return -_number(number)
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            named = [_value(key) if key else None for key in keys]
            if all(isinstance(name, str) for name in named):
                return _unique(list(zip(named, map(_value, values), strict=True)))
    raise SyntaxError("not a literal of a JSON type")


def _number(number: int | float) -> int | float:
    if isinstance(number, float) and not math.isfinite(number):
        raise Unreadable("a number is too large")
    if isinstance(number, int) and abs(number) >= 10**_MAX_DIGITS:
        raise Unreadable(f"a number has over {_MAX_DIGITS} digits")
    return number


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise Unreadable(f"a number has over {_MAX_DIGITS} digits")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise Unreadable(f"the key {key!r} appears twice")
        result[key] = value
    return result


def _no_constant(name: str) -> NoReturn:
    raise Unreadable(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_constant=_no_constant,
    parse_int=_integer,
    parse_float=lambda digits: _number(float(digits)),
)
