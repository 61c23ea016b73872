"""What a family of small environments is, and the pieces its programs and players share."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable
from typing import Protocol

from spade_jax.types import Kind, dataclass

LEVELS = (1, 2, 3, 4, 5)

Writer = Callable[[random.Random, int, str], str]  # of a program, from rng, level and theme
Slip = Callable[[random.Random, str, str], str]  # a wrong answer, from rng, question and answer

_THEME = re.compile(r"[A-Za-z][\w'-]*( [\w'-]+)*")

# One layout for every family: a small model learns to write what varies once the rest is sure.
_PROGRAM = """
import random

class $name:
    def reset(self, seed=None):
        rng = random.Random(seed)
$draws
        self.clue = f"$hint"
        return f"$theme: $ask", {}

$methods
    def hint(self):
        return self.clue

    def solution(self):
        return $solution
"""


class Player(Protocol):
    """Plays one episode from the text it is shown."""

    def act(self, observation: str) -> str:
        """The next action, exactly as `step` takes it."""
        ...


@dataclass
class Family:
    """One kind of task: `write` draws a program, `player` makes a scripted player for it.

    `write(rng, level, theme)` is the program's text. `player(rng, observation, solution, careful)`
    is a player of the instance whose first observation and `solution()` are given. `single_turn`:
    the first action ends an episode.
    """

    name: str
    skill: str
    kind: Kind
    write: Writer
    player: Callable[..., Player]
    single_turn: bool = False


@dataclass
class Program:
    """A program drawn from a family."""

    family: str
    skill: str
    kind: Kind
    level: int
    code: str


def program(
    theme: str,
    name: str,
    draws: list[str],
    *,
    ask: str,
    hint: str,
    methods: str,
    solution: str = "self.plan",
) -> str:
    """A program's text: `draws` are the lines of `reset` that draw an instance.

    `ask` and `hint` are the inside of f-strings, `solution` is an expression.
    """
    if not _THEME.fullmatch(theme):
        raise ValueError(
            f"the theme {theme!r} cannot stand in a program: "
            "use words of letters and digits with single spaces between them"
        )
    text = string.Template(_PROGRAM).substitute(
        theme=theme,
        name=name,
        draws="\n".join(" " * 8 + line for line in draws),
        ask=ask,
        hint=hint,
        methods=methods.strip("\n") + "\n",
        solution=solution,
    )
    return text.strip() + "\n"


def between(rng: random.Random, low: tuple[int, int], high: tuple[int, int]) -> str:
    """An expression that draws an integer; its two bounds are drawn from these ranges."""
    return f"rng.randint({rng.randint(*low)}, {rng.randint(*high)})"


def quoted(words: list[str]) -> str:
    """The words as the inside of a Python list."""
    return ", ".join(f'"{word}"' for word in words)


def numbers(text: str) -> list[int]:
    """The unsigned integers in a text."""
    return [int(number) for number in re.findall(r"\d+", text)]


def question_of(observation: str) -> str:
    """The observation without its hint line."""
    return observation.split("Hint:")[0]


def hint_of(observation: str) -> str:
    """The hint in an observation, empty where there is none."""
    return observation.partition("Hint:")[2]


class OneAnswer:
    """Gives one answer: the right one, or (careless) what `slip` makes of it."""

    def __init__(
        self,
        rng: random.Random,
        observation: str,
        solution: tuple[str, ...],
        careful: bool,
        slip: Slip,
    ) -> None:
        self.answer = solution[-1]
        if not careful and rng.random() > 0.1:
            self.answer = slip(rng, question_of(observation), solution[-1])

    def act(self, observation: str) -> str:
        return self.answer
