"""Text environments of installed packages as programs for our sandbox.

    adapted = adapt("reasoning_gym/chain_sum", num_terms=3)
    instance = sandbox.open(adapted.code, adapted.kind, modules=adapted.modules)

Names are `reasoning_gym/DATASET`, `textarena/ID` (games of one player), `gem/ID`, and
`MODULE:ATTRIBUTE` for anything that makes an environment of gymnasium's form with text in and out.
The package itself is imported in the sandbox only.
"""

from __future__ import annotations

import ast
import importlib.util
import string
from collections.abc import Sequence
from typing import Any

from spade_jax.types import Kind, UsageError, dataclass

# How a task of reasoning-gym goes on after `reset` has set `data` and `entry`.
REASONING_GYM_STEP = """
    def step(self, action):
        try:
            score = float(self.data.score_answer(answer=action, entry=self.entry))
        except Exception:  # scorers differ in what they make of an unreadable answer
            score = 0.0
        return f"Score {score:g}.", score, True, False, {}

    def solution(self):
        answer = self.entry["answer"]
        return None if answer is None else [str(answer)]
"""

_REASONING_GYM = (
    """
import reasoning_gym


class ReasoningGymEnv:
    def reset(self, seed=None):
        self.data = reasoning_gym.create_dataset($name, size=1, seed=int(seed or 0), **$options)
        self.entry = self.data[0]
        return self.entry["question"], {}
"""
    + REASONING_GYM_STEP
)

# An observation of textarena holds all earlier ones; the agent has read those.
_TEXTARENA = """
import textarena


class TextArenaEnv:
    def reset(self, seed=None):
        self.game = textarena.make($name, **$options)
        self.game.reset(num_players=1, seed=seed)
        self.shown = ""
        return self.observe(), {}

    def step(self, action):
        if "[" not in action:
            action = f"[{action.strip()}]"
        done, _ = self.game.step(action=action)
        if not done:
            return self.observe(), 0.0, False, False, {}
        rewards, told = self.game.close()
        reason = told.get(0, {}).get("reason") if isinstance(told, dict) else None
        return str(reason or "Done."), float(rewards[0]), True, False, {}

    def observe(self):
        _, shown = self.game.get_observation()
        new = shown[len(self.shown) :] if shown.startswith(self.shown) else shown
        self.shown = shown
        return new.strip() or "Nothing new."
"""

# What gem's games read is the last box of a reply; the agent's was opened on the way here.
_GEM = """
import gem


class GemEnv:
    def reset(self, seed=None):
        self.game = gem.make($name, **$options)
        return self.game.reset(seed=seed)

    def step(self, action):
        return self.game.step(action if "boxed{" in action else f"\\\\boxed{{{action}}}")
"""

_GYMNASIUM = """
import $module


class PackagedEnv:
    def __init__(self):
        self.made = $module.$attribute(**$options)

    def reset(self, seed=None):
        return self.made.reset(seed=seed)

    def step(self, action):
        return self.made.step(action)

    def hint(self):
        return self.made.hint() if hasattr(self.made, "hint") else None

    def solution(self):
        return self.made.solution() if hasattr(self.made, "solution") else None

    def close(self):
        self.made.close()
"""

PACKAGES = {"reasoning_gym": _REASONING_GYM, "textarena": _TEXTARENA, "gem": _GEM}
INSTALLED_BY = {  # by the name it is imported by
    "reasoning_gym": "pip install reasoning-gym",
    "gem": "bash launch/install_eval.sh",  # gem-llm asks for an older msgspec than we do
    "Gym": "pip install rlve-gym torch networkx sympy",  # it does not say what it needs
}


@dataclass
class Adapted:
    """A program, and the modules to import in the fork server before it is confined."""

    code: str
    modules: tuple[str, ...]
    kind: Kind = Kind.GAME


def adapt(name: str, **options: Any) -> Adapted:
    """The program that plays the environment `name`, made with `options` (plain literals)."""
    package, slash, rest = name.partition("/")
    module, colon, attribute = name.partition(":")
    if slash and rest and package in PACKAGES:
        template, values, module = PACKAGES[package], {"name": repr(rest)}, package
    elif colon and attribute.isidentifier() and all(map(str.isidentifier, module.split("."))):
        template, values = _GYMNASIUM, {"module": module, "attribute": attribute}
    else:
        known = ", ".join(f"{known}/NAME" for known in PACKAGES)
        raise UsageError(f"{name!r} names no environment; use {known} or MODULE:ATTRIBUTE")
    _check_literals(name, options)
    code = string.Template(template.lstrip()).substitute(values, options=repr(options))
    return Adapted(code=code, modules=to_import([module]))


def to_import(modules: Sequence[str]) -> tuple[str, ...]:
    """What the fork server must import for programs that need these installed modules.

    UsageError where one is not there.
    """
    for module in modules:
        root = module.partition(".")[0]
        if not all(map(str.isidentifier, module.split("."))):
            raise UsageError(f"{module!r} is no name of a module; give the name it is imported by")
        if importlib.util.find_spec(root) is None:
            command = INSTALLED_BY.get(root, f"pip install {root}")
            raise UsageError(f"{root} is not installed; run `{command}`")
    return ("numpy", *modules) if modules else ()  # numpy loads parts of itself late


def _check_literals(name: str, options: dict[str, Any]) -> None:
    try:
        plain = ast.literal_eval(repr(options)) == options
    except (ValueError, SyntaxError):
        plain = False
    if not plain:
        raise UsageError(f"the options of {name} are not plain; use numbers, text, lists and dicts")
