"""`ToolUseBaseEnv`: the base class of environments in which the agent calls tools.

A program subclasses it, sets `self._expected_answer` in `reset`, and defines its tools as methods
`tool_<name>`. The agent's raw reply goes to `step`, which runs its calls and judges its answer.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from spade_jax.envs import parsers

_JSON_TYPES = {
    **{"int": "integer", "float": "number", "str": "string", "bool": "boolean"},
    **{"list": "array", "tuple": "array", "dict": "object"},
}
_MAX_RESULT = 2000  # characters of one tool's result


class ToolUseBaseEnv:
    """Reads tool calls and answers from replies; subclasses hold the tools and the truth."""

    max_turns: int = 25  # replies after which the episode is truncated
    _tools: list[dict[str, Any]] | None = None  # JSON schemas; derived from `tool_*` when None
    _expected_answer: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> ToolUseBaseEnv:
        self = super().__new__(cls)
        self._clear()
        return self

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Clear what the episode has recorded; a subclass returns its own first observation."""
        self._clear()
        return "Tools: " + ", ".join(self._tool_names()) + ".", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run the reply's calls in order, then judge its answer if it gives one."""
        self.turn_count += 1
        truncated = self.turn_count >= self.max_turns
        answer = parsers.answer(action)
        try:
            calls = parsers.tool_calls(action, self.get_tools())
        except parsers.ToolCallError as error:
            return f"Error: {error}.", 0.0, False, truncated, {}
        results = [self.execute_tool(call.name, call.arguments) for call in calls]
        if answer is not None:
            reward = float(self._check_answer(answer))
            return "\n".join([*results, "Done."]), reward, True, False, {}
        if not results:
            results = ["Error: the reply holds no <tool_call> and no <answer>."]
        return "\n".join(results), 0.0, False, truncated, {}

    def get_tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools: `_tools`, or derived from the `tool_*` methods."""
        if self._tools is not None:
            return self._tools
        return [_schema(name, getattr(self, f"tool_{name}")) for name in self._tool_names()]

    def execute_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Run one tool and record it; whatever goes wrong becomes text that says so."""
        tool = getattr(self, f"tool_{name}", None)
        if not callable(tool):
            known = ", ".join(self._tool_names()) or "none"
            result = f"Error: there is no tool {name}. Tools: {known}."
        else:
            result = _run(name, tool, arguments)
        self._call_history.append({"name": name, "arguments": arguments, "result": result})
        return result

    def _check_answer(self, answer: str) -> bool | float:
        """Whether the answer is the expected one; an override may return a reward."""
        expected = self._expected_answer
        return expected is not None and normal_answer(answer) == normal_answer(str(expected))

    def _tool_names(self) -> list[str]:
        found = [
            name.removeprefix("tool_")
            for owner in reversed(type(self).__mro__)
            for name, value in vars(owner).items()
            if name.startswith("tool_") and callable(value)
        ]
        return list(dict.fromkeys(found))

    def _clear(self) -> None:
        self.turn_count = 0
        self._state: dict[str, Any] = {}
        self._call_history: list[dict[str, Any]] = []


def normal_answer(text: str) -> str:
    """Case, outer punctuation and spacing folded; a number in its shortest form."""
    text = " ".join(text.casefold().split()).strip(" .!?\"'`")
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return text
    return f"{number:.12g}"


def _run(name: str, tool: Any, arguments: dict[str, Any]) -> str:
    signature = inspect.signature(tool)
    try:
        bound = signature.bind(**arguments)
    except TypeError as error:
        wanted = ", ".join(signature.parameters)
        return f"Error: {name} takes ({wanted}): {error}."
    try:
        result = tool(*bound.args, **bound.kwargs)
    except Exception as error:
        return f"Error: {name} failed with {type(error).__name__}: {error}"[:_MAX_RESULT]
    if not isinstance(result, str):
        result = json.dumps(result, default=str)
    return result[:_MAX_RESULT]


def _schema(name: str, tool: Any) -> dict[str, Any]:
    properties, required = {}, []
    for parameter in inspect.signature(tool).parameters.values():
        annotation = parameter.annotation
        written = getattr(annotation, "__name__", str(annotation))
        properties[parameter.name] = {"type": _JSON_TYPES.get(written.split("[")[0], "string")}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": (inspect.getdoc(tool) or "").partition("\n")[0],
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }
