"""Whether calls are the right ones: a typed matcher of calls to sets of allowed values.

What counts as a match follows the checker of BFCL's single-turn categories (`ast_checker` of
bfcl-eval 2026.3.23), in code of our own. A truth names the function and, for each parameter, the
values that will do; "" among them means that it may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spade_jax.evals.calls import Call
from spade_jax.types import dataclass

_IGNORED = re.compile(r"[ ,./\-_*^]")

Function = Mapping[str, Any]  # as the benchmark documents it, types unrepaired
Truth = Mapping[str, Mapping[str, Sequence[Any]]]  # {name: {parameter: values that will do}}


def _number(value: Any, kind: str, inner: str | None) -> Any:
    return float(value) if kind == "float" and type(value) is int else value


@dataclass
class Language:
    """How a language's values are read: Python's types by the names in schemas, which are `lists`.

    `read` takes a value, its type's name, and that of its items where it is a list.
    """

    types: Mapping[str, type]
    lists: tuple[str, ...]
    read: Callable[[Any, str, str | None], Any]


PYTHON = Language(
    types={
        **{"string": str, "any": str, "integer": int, "float": float, "boolean": bool},
        **{"array": list, "tuple": list, "dict": dict},
    },
    lists=("array", "tuple"),
    read=_number,
)


def mismatch(
    functions: Sequence[Function],
    made: Sequence[Call],
    truths: Sequence[Truth],
    language: Language = PYTHON,
) -> str:
    """Why the calls are not the true ones, "" if they are; their order does not count.

    Each truth takes the first call left that matches it.
    """
    if len(made) != len(truths):
        return f"{len(made)} calls, not {len(truths)}"
    left = list(made)
    for truth in truths:
        [(name, allowed)] = truth.items()
        function = next((f for f in functions if f["name"] == name), None)
        if function is None:
            return f"no function is called {name}"
        faults = [_call(function, call, allowed, language) for call in left]
        if "" not in faults:
            return faults[0]
        del left[faults.index("")]
    return ""


def _call(
    function: Function, call: Call, allowed: Mapping[str, Sequence[Any]], language: Language
) -> str:
    if call.name != function["name"]:
        return f"{call.name} was called, not {function['name']}"
    parameters = function["parameters"]
    needed = {*parameters.get("required", ()), *(p for p in allowed if "" not in allowed[p])}
    if missing := sorted(needed - call.named.keys()):
        return f"{missing[0]} is missing"
    for name, given in call.named.items():
        schema = parameters["properties"].get(name)
        if schema is None or name not in allowed:
            return f"{name} is not asked for"
        kind, inner = schema["type"], schema.get("items", {}).get("type")
        inner = inner if kind in language.lists else None
        value = language.read(given, kind, inner)
        wanted = language.types.get(kind, str)
        if not right(value, allowed[name], wanted, inner and language.types.get(inner, str)):
            return f"{name} is {given!r:.200}"
    return ""


def right(value: Any, allowed: Sequence[Any], wanted: type, inner: type | None) -> bool:
    """Whether a value is of its type, `inner` that of a list's items, and one of those allowed.

    A value of the type of the first one allowed, where that is not the parameter's, stands for a
    variable, and must be allowed as it is.
    """
    given = next((type(each) for each in allowed if each != ""), None)
    if type(value) is not wanted:
        return type(value) is given and value in allowed
    if inner is not None and not _items(value, allowed, inner):
        return False
    if given is not None and given is not wanted:
        return value in allowed
    if wanted is dict:
        return any(_fields(value, each) for each in allowed)
    if wanted is list and inner is dict:
        return any(_each_fields(value, each) for each in allowed)
    if wanted is str:
        return plain(value) in [plain(each) for each in allowed if type(each) is str]
    if wanted is list:
        return [plain(v) for v in value] in [[plain(v) for v in each] for each in allowed]
    return value in allowed


def plain(value: Any) -> Any:
    """Text without case, spaces and `,./-_*^`, its quotes double; anything else as it is."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if type(value) is str else value


def _items(values: list[Any], allowed: Sequence[Any], inner: type) -> bool:
    """Whether all items are of the type `inner`, or of that of an allowed list's first one."""
    for each in allowed:
        if type(each) is not list:
            return True
        given = next((type(v) for v in each if v != ""), None)
        if all(type(v) is inner or type(v) is given for v in values):
            return True
    return False


def _fields(value: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> bool:
    if not isinstance(value, Mapping) or not isinstance(allowed, Mapping):
        return False
    return all(
        name in allowed and plain(field) in [plain(each) for each in allowed[name]]
        for name, field in value.items()
    ) and all(name in value or "" in options for name, options in allowed.items())


def _each_fields(values: Sequence[Any], allowed: Any) -> bool:
    return len(values) == len(allowed) and all(map(_fields, values, allowed))
