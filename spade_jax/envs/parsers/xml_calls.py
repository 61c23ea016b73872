"""Tool calls as Qwen3-Coder writes them.

`<function=NAME><parameter=KEY>value</parameter>...</function>`, a value with or without a line
break on either side. Nothing in a value is escaped, so it ends at the first `</parameter>` that
another parameter or `</function>` follows; any other tag in it is text, but a value never holds
the start of another parameter or the end of the whole call: those mean it was not closed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from spade_jax.envs.parsers.calls import ToolCall, ToolCallError
from spade_jax.envs.parsers.json_calls import Unreadable, loads

OPEN = "<function="
_CLOSE = "</function>"
_FUNCTION = re.compile(r"<function=([^<>\s]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>")
_MARK = re.compile(
    r"(?P<end></parameter>\s*)(?=<parameter=|</function>)|<parameter=|</function>\s*</tool_call>"
)
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_TYPES: dict[str, tuple[type, ...]] = {
    **{"integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),)},
    **{"array": (list,), "object": (dict,)},
}

Properties = Mapping[str, Any]  # a tool's parameters by name, each a JSON schema


@dataclasses.dataclass(frozen=True)
class XmlItem:
    """A `<function=...>` element of a `<tool_call>` block; `values` are texts and their starts."""

    name: str
    values: dict[str, tuple[str, int]]
    literals: bool
    position: int
    end: int

    def call(self, properties: Properties) -> ToolCall:
        """The call, its values typed by the schemas of the tool's parameters."""
        arguments = {
            key: self._typed(key, text, start, _types(properties.get(key)))
            for key, (text, start) in self.values.items()
        }
        return ToolCall(self.name, arguments, self.position, self.end)

    def _typed(self, key: str, text: str, start: int, types: set[str]) -> Any:
        word = text.strip()
        word = _PYTHON_WORDS.get(word, word)
        if not types or ("string" in types and not (word == "null" and "null" in types)):
            return text
        try:
            value = loads(word, self.literals)
        except Unreadable:
            pass
        else:
            if any(_is(value, each) for each in types - {"string"}):
                return value
        wanted = " or ".join(sorted(types))
        raise ToolCallError(f"The parameter {key!r} of {self.name} must be of type {wanted}", start)


def read(text: str, position: int, literals: bool) -> XmlItem:
    """The `<function=...>` element that starts at `position`."""
    function = _FUNCTION.match(text, position)
    if function is None:
        raise ToolCallError("A function needs a name: <function=NAME>", position)
    name, at = function[1], function.end()
    values: dict[str, tuple[str, int]] = {}
    while not text.startswith(_CLOSE, at):
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            problem = f"The call of {name} goes on neither with <parameter=KEY> nor with {_CLOSE}"
            raise ToolCallError(problem, at)
        key, start = parameter[1], parameter.end()
        if key in values:
            raise ToolCallError(f"The parameter {key!r} of {name} appears twice", at)
        mark = _MARK.search(text, start)
        if mark is None or mark["end"] is None:
            problem = f"The parameter {key!r} of {name} is not closed with </parameter>"
            raise ToolCallError(problem, at)
        values[key] = _value(text, start, mark.start())
        at = mark.end()
    return XmlItem(name, values, literals, position, at + len(_CLOSE))


def schemas(tools: Any) -> dict[str, Properties]:
    """Properties by the name of the tool, from a list of OpenAI's function schemas,
    with or without the `function` level.

    Schemas come from environments; whatever is not one is passed over.
    """
    found: dict[str, Properties] = {}
    for tool in tools if isinstance(tools, list | tuple) else ():
        function = _member(tool, "function") or tool
        properties = _member(_member(function, "parameters"), "properties")
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and isinstance(properties, Mapping):
            found[name] = properties
    return found


def _value(text: str, start: int, end: int) -> tuple[str, int]:
    """What a parameter holds without the line break after its tag and before its end."""
    line_break = "\r\n" if text.startswith("\r\n", start) else "\n"
    if text.startswith(line_break, start, end):
        start += len(line_break)
    return text[start:end].removesuffix(line_break), start


def _types(schema: Any) -> set[str]:
    """The types a schema allows; none where it does not say, or names one that JSON lacks."""
    options = [schema, *_listed(_member(schema, "anyOf")), *_listed(_member(schema, "oneOf"))]
    declared = [each for option in options for each in _listed(_member(option, "type"))]
    known = all(isinstance(each, str) and (each in _TYPES or each == "string") for each in declared)
    return set(declared) if known else set()


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])
