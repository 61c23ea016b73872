"""What an environment is, and the checks that hold it to that.

An environment is a Python class whose name ends in `Env`:

    reset(seed=None) -> (observation, info)          a bare observation is read as (observation, {})
    step(action) -> (observation, reward, terminated, truncated, info)
    solution() -> the actions that win the instance after reset: a list of them, exactly as `step`
        takes them, one alone, or tool calls and an answer (`solutions` says in which forms)
    hint() -> text that helps on this instance and does not contain the answer
    close()

`reset` and `step` are required, the others optional. Observations are non-empty text. The reward
is a finite number in [-10, 10]; numpy scalars and numpy bools are read as plain ones. `info` is
ignored. An episode is won when it terminated with a last reward above 0.5. Programs of kind
`tool_use` subclass `ToolUseBaseEnv`, which stands in their globals without an import.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spade_jax.envs import solutions
from spade_jax.types import Kind, StepResult

WIN = 0.5  # a final reward above this is a win
REWARD_LIMIT = 10.0
MAX_SOLUTION = 1000  # actions
TOOL_BASE = "ToolUseBaseEnv"  # name under which programs find the base class of tool use
MODULE = "environment"  # module name that a program sees itself under
OVERSIZED = "The observation is too long"  # start of the message on an observation over the cap

STANDARD_MODULES = (
    *("__future__", "abc", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime"),
    *("decimal", "enum", "fractions", "functools", "heapq", "itertools", "json", "math"),
    *("numbers", "operator", "random", "re", "statistics", "string", "textwrap", "time"),
    *("typing", "unicodedata"),
)
MATH_MODULES = ("math_verify", "sympy")
ALLOWED_MODULES = (*STANDARD_MODULES, "numpy", *MATH_MODULES)
_SEARCHES = frozenset(  # functions of `re` and methods of strings
    "compile find findall finditer fullmatch index match partition removeprefix rfind rindex "
    "rpartition rsplit search split startswith sub".split()
)


class ContractError(ValueError):
    """The environment answered something the contract does not allow."""


def won(result: StepResult) -> bool:
    """Whether an episode that ends with `result` is won."""
    return result.terminated and result.reward > WIN


def heavy_modules(code: str) -> tuple[str, ...]:
    """The packages a program seems to need, which must be imported before it is confined."""
    if any(name in code for name in MATH_MODULES):
        return ("numpy", *MATH_MODULES)
    return ("numpy",) if "numpy" in code else ()


def reads_boxes(code: str) -> bool:
    r"""Whether a game looks for a `\boxed{}` in an action itself, as some from elsewhere do.

    Such a game calls something named so, searches for a text with the word, or asks whether it is
    `in` the action. One that only tells the agent of the box wants its content alone.
    """
    if "boxed" not in code:
        return False
    searched: list[ast.expr] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if "boxed" in name:
                return True
            searched += node.args if name in _SEARCHES else []
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            searched.append(node.left)
    return any(isinstance(each, ast.Constant) and "boxed" in str(each.value) for each in searched)


def environment_class(namespace: Mapping[str, Any], kind: Kind, tool_base: type) -> type:
    """The class of a program that is its environment.

    Of the classes defined in it whose names end in `Env` and that have reset and step, the one that
    no other of them subclasses or uses. A program's own `ToolUseBaseEnv` is a base, never the
    environment.
    """
    own = {
        value: name
        for name, value in namespace.items()
        if isinstance(value, type)
        and name.endswith("Env")
        and getattr(value, "__module__", None) == MODULE
    }
    bases = (tool_base, *(value for value, name in own.items() if name == TOOL_BASE))
    candidates = [value for value, name in own.items() if name != TOOL_BASE]
    if not candidates:
        raise ContractError("The program defines no class whose name ends in Env; write one.")
    whole = [value for value in candidates if not _missing(value)]
    chosen = _outermost(whole or candidates, own)
    if kind is Kind.TOOL_USE and not issubclass(chosen, bases):
        raise ContractError(f"{chosen.__name__} must subclass {TOOL_BASE} to offer tools.")
    for method in _missing(chosen):
        raise ContractError(f"{chosen.__name__} has no method {method}; write one.")
    needed = _needed_arguments(chosen)
    if needed:
        raise ContractError(
            f"The constructor of {chosen.__name__} needs arguments ({', '.join(needed)}), but it "
            "is called with none; give each a default."
        )
    return chosen


def _outermost(candidates: Sequence[type], names: Mapping[type, str]) -> type:
    """The candidate that no other one subclasses or uses."""
    used = {value: set(_names_used(value)) for value in candidates}
    left = [
        value
        for value in candidates
        if not any(
            other is not value and (issubclass(other, value) or names[value] in used[other])
            for other in candidates
        )
    ]
    if len(left) != 1:
        listed = " and ".join(names[value] for value in left or candidates)
        raise ContractError(
            f"The program defines several environments, {listed}; let the name of only one class "
            "end in Env."
        )
    return left[0]


def _names_used(owner: type) -> Iterator[str]:
    """Names that the methods of a class mention."""
    codes = [
        getattr(getattr(value, "__func__", value), "__code__", None)
        for value in vars(owner).values()
    ]
    while codes:
        code = codes.pop()
        if isinstance(code, types.CodeType):
            yield from code.co_names
            codes.extend(code.co_consts)


def _missing(candidate: type) -> list[str]:
    return [name for name in ("reset", "step") if not callable(getattr(candidate, name, None))]


def _needed_arguments(chosen: type) -> list[str]:
    """Constructor arguments without a default."""
    needed: list[str] = []
    for method in (chosen.__new__, chosen.__init__):
        if isinstance(method, types.FunctionType):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            needed += [
                parameter.name
                for parameter in parameters
                if parameter.default is parameter.empty
                and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            ]
    return list(dict.fromkeys(needed))


def reset_result(value: Any, max_observation: int) -> StepResult:
    """Check what `reset` returned."""
    if _is_a(value, str):
        return StepResult(observation=_observation(value, max_observation))
    if not _is_a(value, tuple) or len(value) != 2:
        raise ContractError(
            f"reset must return (observation, info), a tuple of 2, but returned {_describe(value)}."
        )
    return StepResult(observation=_observation(value[0], max_observation))


def step_result(value: Any, max_observation: int) -> StepResult:
    """Check what `step` returned."""
    if not _is_a(value, tuple) or len(value) != 5:
        raise ContractError(
            "step must return (observation, reward, terminated, truncated, info), a tuple of 5, "
            f"but returned {_describe(value)}."
        )
    observation, reward, terminated, truncated, _ = value
    return StepResult(
        observation=_observation(observation, max_observation),
        reward=_reward(reward),
        terminated=_flag(terminated, "terminated"),
        truncated=_flag(truncated, "truncated"),
    )


def hint_text(value: Any, max_observation: int) -> str | None:
    """Check what `hint` returned; None or blank text is no hint."""
    if value is None:
        return None
    if not _is_a(value, str):
        raise ContractError(f"hint must return text, but returned {_describe(value)}.")
    if len(value) > max_observation:
        raise ContractError(f"The hint is longer than {max_observation} characters.")
    return _plain(value).strip() or None


def solution_actions(value: Any, max_observation: int, kind: Kind) -> tuple[str, ...] | None:
    """The actions that `solution` returned, in whichever form; None is no solution."""
    value = _unwrap(value)
    if value is None:
        return None
    if not isinstance(value, str | int | float | dict | list | tuple):
        raise ContractError(f"solution must return a list of text, not {_describe(value)}.")
    if isinstance(value, list | tuple):
        value = [_unwrap(item) for item in value[: MAX_SOLUTION + 1]]
    try:
        actions = solutions.actions(value, kind)
    except ValueError as error:
        raise ContractError(str(error)) from error
    if not 0 < len(actions) <= MAX_SOLUTION:
        raise ContractError(
            f"solution must return 1 to {MAX_SOLUTION} actions, not {len(actions) or 'none'}."
        )
    if any(len(action) > max_observation for action in actions):
        raise ContractError(f"An action of solution exceeds {max_observation} characters.")
    return tuple(_plain(action) for action in actions)


def check_reward(reward: float) -> bool:
    """Whether a plain number is finite and in range; NaN fails both comparisons."""
    return -REWARD_LIMIT <= reward <= REWARD_LIMIT


def _observation(value: Any, limit: int) -> str:
    if not _is_a(value, str):
        raise ContractError(f"The observation must be text, not {_describe(value)}.")
    if len(value) > limit:
        raise ContractError(f"{OVERSIZED}: {len(value)} characters, the limit is {limit}.")
    if not value.strip():
        raise ContractError("The observation is empty.")
    return _plain(value)


def _reward(value: Any) -> float:
    value = _unwrap(value)
    if type(value) not in (bool, int, float):
        raise ContractError(f"The reward must be a number, not {_describe(value)}.")
    if not check_reward(value):
        what = f"{value:.6g}" if type(value) is float else "a larger integer"
        raise ContractError(f"The reward must be finite and between -10 and 10, not {what}.")
    return float(value)


def _flag(value: Any, name: str) -> bool:
    value = _unwrap(value)
    if type(value) is not bool:
        raise ContractError(f"{name} must be True or False, not {_describe(value)}.")
    return value


def _unwrap(value: Any) -> Any:
    """The plain Python value of a numpy scalar or of an array with one element."""
    if type(value).__module__.partition(".")[0] == "numpy" and getattr(value, "size", 0) == 1:
        return value.item()
    return value


def _plain(text: str) -> str:
    """An exact `str` that UTF-8 can carry; lone surrogates become question marks."""
    return str.__str__(text).encode("utf-8", "replace").decode()


def _is_a(value: Any, kind: type) -> bool:
    """isinstance by the real type: an object may lie about its `__class__`."""
    return issubclass(type(value), kind)


def _describe(value: Any) -> str:
    name = type(value).__name__[:80]
    if _is_a(value, tuple):
        return f"a tuple of {tuple.__len__(value)}"
    return name if value is None else f"a value of type {name}"
