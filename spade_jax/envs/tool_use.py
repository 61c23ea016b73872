"""`ToolUseBaseEnv`: the base class of environments in which the agent calls tools.

A program subclasses it, sets `self._expected_answer` in `reset`, and defines its tools as methods
`tool_<name>`. The agent's raw reply goes to `step`, which runs its calls and judges its answer.

A program may also have a user who asks for one thing after another: `reset` fills `_user_messages`
and returns the first; `_message_criteria[n]` tells from `_state` whether message n is done (None:
any call does), and then the next message follows the result of the call. Such an episode is won
when all messages are done, and the answer is right where `_expected_answer` is set.
"""

from __future__ import annotations

import functools
import inspect
import json
import types
from collections.abc import Callable
from typing import Any

from spade_jax.envs import parsers

_JSON_TYPES = {
    **{"int": "integer", "float": "number", "str": "string", "bool": "boolean"},
    **{"list": "array", "tuple": "array", "dict": "object"},
}
_MAX_RESULT, _MAX_RESULTS = 2000, 6000  # characters of one tool's result, of all in a reply
_TOLERANCE = 0.01  # of a number given as the answer


class ToolUseBaseEnv:
    """Reads tool calls and answers from replies; subclasses hold the tools and the truth."""

    max_turns: int = 25  # replies after which the episode is truncated
    # JSON schemas, in a list or by name as {"description": ..., "parameters": ...}; a program that
    # sets them has them listed in its first observation. Derived from `tool_*` when None.
    _tools: list[dict[str, Any]] | dict[str, dict[str, Any]] | None = None
    _expected_answer: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> ToolUseBaseEnv:
        self = super().__new__(cls)
        self._clear()
        return self

    def __init__(self, max_turns: int | None = None) -> None:
        if max_turns is not None:
            self.max_turns = max_turns

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        reset = vars(cls).get("reset")
        if isinstance(reset, types.FunctionType):
            cls.reset = _listing_tools(reset)

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
        shown = _cut("\n".join(results), _MAX_RESULTS)
        if answer is not None:
            reward = float(self._check_answer(answer))
            return f"{shown}\nDone.".lstrip(), reward, True, False, {}
        if self._user_messages and self._all_done() and self._expected_answer is None:
            return shown, 1.0, True, False, {}
        if not results:
            shown = "Error: the reply holds no <tool_call> and no <answer>."
        return shown, 0.0, False, truncated, {}

    def solution(self) -> Any:
        """The replies that win the instance; None where a subclass does not tell."""
        return None

    def get_tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools: `_tools`, or derived from the `tool_*` methods."""
        if isinstance(self._tools, dict):
            return [self._declared(str(name), tool) for name, tool in self._tools.items()]
        if self._tools is not None:
            return [tool for tool in self._tools if isinstance(tool, dict)]
        return [_schema(name, getattr(self, f"tool_{name}")) for name in self._tool_names()]

    def execute_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Run one tool and record it; whatever goes wrong becomes text that says so.

        Where the call has done what the user asked, the next message follows; a tool that has
        called `_advance_if_done` itself has that in its result.
        """
        current = self._current_msg
        tool = getattr(self, f"tool_{name}", None)
        if not callable(tool):
            known = ", ".join(self._tool_names()) or "none"
            result = f"Error: there is no tool {name}. Tools: {known}."
        else:
            result = _run(name, tool, arguments)
            if self._user_messages and self._current_msg == current:
                result += self._next_message()
        self._call_history.append({"name": name, "arguments": arguments, "result": result})
        return result

    def _check_answer(self, answer: str) -> bool | float:
        """Whether the answer is the expected one, and comes after all messages are done.

        An override may return a reward.
        """
        expected = self._expected_answer
        if expected is None:
            return bool(self._user_messages) and self._all_done()
        return self._all_done() and same_answer(answer, str(expected))

    def _advance_if_done(self) -> str:
        """Go on to the user's next message if the current one is done; the text that says so."""
        if self._all_done():
            return ""
        n = self._current_msg
        criterion = self._message_criteria[n] if n < len(self._message_criteria) else None
        if criterion is not None and not criterion(self._state):
            return ""
        self._current_msg += 1
        if not self._all_done():
            return f"\n\nUser: {self._user_messages[self._current_msg]}"
        told = "" if self._expected_answer is None else " Give your <answer> now."
        return f"\n\nAll requests are done.{told}"

    def _next_message(self) -> str:
        """What `_advance_if_done` says; a criterion that breaks is never met, and is shown."""
        try:
            return str(self._advance_if_done() or "")
        except Exception as error:
            what = f"{type(error).__name__}: {error}"[:_MAX_RESULT]
            return f"\nError: the criterion of message {self._current_msg + 1} raised {what}"

    def _all_done(self) -> bool:
        return self._current_msg >= len(self._user_messages)

    def _declared(self, name: str, tool: Any) -> dict[str, Any]:
        """Schema of a tool in `_tools`; what it leaves out comes from the method's signature."""
        method = getattr(self, f"tool_{name}", None)
        function = _schema(name, method if callable(method) else lambda: None)["function"]
        told = tool if isinstance(tool, dict) else {"description": str(tool)}
        parameters = told.get("parameters")
        if not isinstance(parameters, dict) or not isinstance(parameters.get("properties"), dict):
            told = {key: value for key, value in told.items() if key != "parameters"}
        return {"type": "function", "function": {**function, **told, "name": name}}

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
        self._user_messages: list[str] = []
        self._message_criteria: list[Callable[[dict[str, Any]], bool] | None] = []
        self._current_msg = 0


def same_answer(one: str, other: str) -> bool:
    """Whether two answers agree in normal form, numbers to within 0.01."""
    one, other = normal_answer(one), normal_answer(other)
    try:
        return abs(float(one) - float(other)) <= _TOLERANCE
    except ValueError:
        return one == other


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
    return _cut(result, _MAX_RESULT)


def _cut(text: str, limit: int) -> str:
    """The text without its middle where it is too long: what comes last is often news."""
    if len(text) <= limit:
        return text
    half = limit // 2 - 10
    return f"{text[:half]} [... cut ...] {text[-half:]}"


def _listing_tools(reset: Callable[..., Any]) -> Callable[..., Any]:
    """`reset`, with the tools a program has declared told where the observation leaves them out."""

    @functools.wraps(reset)
    def listed(self: ToolUseBaseEnv, *args: Any, **kwargs: Any) -> Any:
        result = reset(self, *args, **kwargs)
        observation = result[0] if isinstance(result, tuple) and result else result
        if not self._tools or not isinstance(observation, str):
            return result
        tools = [tool.get("function") or tool for tool in self.get_tools()]
        if all(str(tool.get("name")) in observation for tool in tools):
            return result
        observation = "\n".join([observation, "", "Tools:", *map(_line, tools)])
        return (observation, *result[1:]) if isinstance(result, tuple) else observation

    return listed


def _dict(value: Any) -> dict[str, Any]:
    """The value where it is a dict; programs write schemas with all kinds of slips."""
    return value if isinstance(value, dict) else {}


def _line(tool: dict[str, Any]) -> str:
    """A tool in one line: its call with the types of its arguments, and what it does."""
    parameters = _dict(tool.get("parameters"))
    required = parameters.get("required") or ()
    arguments = []
    for name, written in _dict(parameters.get("properties")).items():
        written = written if isinstance(written, dict) else {"type": written}
        optional = "" if name in required else "?"
        choice = f" of {written['enum']}" if "enum" in written else ""
        arguments.append(f"{name}{optional}: {written.get('type', 'any')}{choice}")
    return f"- {tool.get('name')}({', '.join(arguments)}): {tool.get('description', '')}"


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
