"""Calls as tool benchmarks write them, and their functions' schemas."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spade_jax.envs import parsers
from spade_jax.envs.parsers.syntax import parse_expression
from spade_jax.types import dataclass

# The type names of these benchmarks, of which JSON schema knows few.
_TYPES = {
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
    **dict.fromkeys(("integer", "int", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool", "Boolean"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "Array", "ArrayList", "Queue", "Stack"), "array"),
    **dict.fromkeys(("string", "String", "char", "enum", "any", "Any"), "string"),
    "null": "null",
}
_LISTS = re.compile(r"list\((\w+)\)")


@dataclass
class Call:
    """One call: a function's name, values by position and by name."""

    name: str
    values: tuple[Any, ...] = ()
    named: Mapping[str, Any]


def read_call(text: str) -> Call:
    """The call written in Python, all its values literals; ValueError for anything else."""
    return _call(_expression(text), text)


def read_calls(text: str) -> tuple[Call, ...]:
    """A list of calls written in Python, or a single one."""
    tree = _expression(text)
    parts = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    return tuple(_call(part, text) for part in parts)


def _expression(text: str) -> ast.expr:
    try:
        return parse_expression(text.strip())
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no call: {error}") from error


def _call(tree: ast.expr, text: str) -> Call:
    name = ast.unparse(tree.func) if isinstance(tree, ast.Call) else ""
    if not re.fullmatch(r"\w+(\.\w+)*", name) or any(k.arg is None for k in tree.keywords):
        raise ValueError(f"{text!r} is no call of a function by its name")
    return Call(
        name=name,
        values=tuple(_literal(value) for value in tree.args),
        named={each.arg: _literal(each.value) for each in tree.keywords},
    )


def _literal(tree: ast.expr) -> Any:
    try:
        value = ast.literal_eval(tree)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"{ast.unparse(tree)} is no value that JSON knows") from error
    return value


def made(reply: str, tools: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    """The calls of a model's reply; none where one of them cannot be read."""
    try:
        found = parsers.tool_calls(reply, tools)
    except parsers.ToolCallError:
        return ()
    return tuple(Call(name=call.name, named=call.arguments) for call in found)


# -- schemas ----------------------------------------------------------------------------------


def tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """A benchmark's function in the form that templates and servers take, its types repaired."""
    parameters = {"type": "object", "properties": {}, **function.get("parameters", {})}
    mended = {**function, "parameters": repaired(parameters)}
    if isinstance(function.get("response"), Mapping):
        mended["response"] = repaired(function["response"])
    return {"type": "function", "function": mended}


def repaired(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema with the names of types that JSON schema has, at all depths."""
    mended = dict(schema)
    kind = schema.get("type")
    if isinstance(kind, str):
        if kind == "objectArray":
            mended |= {"type": "array", "items": schema.get("items", {"type": "object"})}
        elif listed := _LISTS.fullmatch(kind):
            mended |= {"type": "array", "items": schema.get("items", {"type": listed[1]})}
        else:
            mended["type"] = _TYPES.get(kind, "string")
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        mended["properties"] = {
            name: repaired(each) if isinstance(each, Mapping) else each
            for name, each in properties.items()
        }
    if isinstance(mended.get("items"), Mapping):
        mended["items"] = repaired(mended["items"])
    return mended
