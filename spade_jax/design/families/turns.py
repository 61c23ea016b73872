"""Families of several turns: search (a number), grid (a walk), lock (a hidden order)."""

from __future__ import annotations

import random
import re

from spade_jax.design.families.family import Family, hint_of, program
from spade_jax.types import Kind

# -- search -----------------------------------------------------------------------------------

_SEARCH_STEP = """
    def step(self, action):
        self.left -= 1
        guess = int(action) if action.isdecimal() else 0
        won = guess == self.goal
        text = "Done." if won else "Higher." if guess < self.goal else "Lower."
        return text, float(won), won or self.left == 0, False, {}
"""

# For each level: lowest and highest first number, size of the range, guesses, width of the hint.
_SEARCHES = (
    ((1, 5), (36, 58), (7, 7), (2, 6)),
    ((1, 9), (40, 63), (6, 7), (3, 6)),
    ((1, 30), (40, 63), (6, 6), (3, 9)),
    ((1, 60), (64, 95), (7, 7), (5, 12)),
    ((1, 90), (100, 127), (7, 7), (8, 15)),
)


def _write_search(rng: random.Random, level: int, theme: str) -> str:
    lows, sizes, lefts, widths = _SEARCHES[level - 1]
    low, left, width = rng.randint(*lows), rng.randint(*lefts), rng.randint(*widths)
    high = low + rng.randint(*sizes) - 1
    return program(
        theme,
        "SearchEnv",
        [
            f"self.goal = rng.randint({low}, {high})",
            f"self.left = {left}",
            "self.plan = [str(self.goal)]",
            f"low = self.goal - self.goal % {width} - 1",
        ],
        ask=rng.choice(["find a number", "guess a number"])
        + f" from {low} to {high} in {left} guesses.",
        hint=f"It is above {{low}} and below {{low + {width + 1}}}.",
        methods=_SEARCH_STEP,
    )


class _Searcher:
    """Bisects what is still possible; careless: guesses anywhere in it and forgets answers."""

    def __init__(
        self, rng: random.Random, observation: str, solution: tuple[str, ...], careful: bool
    ) -> None:
        self.rng, self.careful, self.guess = rng, careful, None
        self.low, self.high = map(int, re.findall(r"from (\d+) to (\d+)", observation)[0])
        hinted = re.search(r"above (-?\d+) and below (\d+)", hint_of(observation))
        if hinted and (careful or rng.random() < 0.4):
            self.low = max(self.low, int(hinted[1]) + 1)
            self.high = min(self.high, int(hinted[2]) - 1)

    def act(self, observation: str) -> str:
        attentive = self.careful or self.rng.random() < 0.7
        if self.guess is not None and attentive and observation.startswith("Higher"):
            self.low = max(self.low, self.guess + 1)
        elif self.guess is not None and attentive and observation.startswith("Lower"):
            self.high = min(self.high, self.guess - 1)
        self.guess = (self.low + self.high) // 2
        if not self.careful:
            self.guess = self.rng.randint(min(self.low, self.high), max(self.low, self.high))
        return str(self.guess)


# -- grid -------------------------------------------------------------------------------------

_GRID_STEP = """
    def step(self, action):
        self.left -= 1
        self.x += (action == "right") - (action == "left")
        self.y += (action == "up") - (action == "down")
        at = f"{self.x},{self.y}"
        won = at == self.goal
        return f"At {at}.", float(won), won or self.left == 0, False, {}
"""

# For each level: lengths of the two legs, and moves to spare.
_GRIDS = (
    ((1, 2), (1,), (1, 1)),
    ((1, 2), (1, 2), (0, 1)),
    ((2, 3), (1, 2), (0, 1)),
    ((2, 3), (2, 3), (0, 0)),
    ((3, 4), (3,), (0, 0)),
)


def _either_way(lengths: tuple[int, ...]) -> str:
    return ", ".join(map(str, [-n for n in reversed(lengths)] + list(lengths)))


def _write_grid(rng: random.Random, level: int, theme: str) -> str:
    one, two, spares = _GRIDS[level - 1]
    spare = rng.randint(*spares)
    across, along = rng.sample([one, two], 2)
    starts = [f"rng.randint({rng.randint(2, 4)}, {rng.randint(5, 9)})" for _ in "xy"]
    return program(
        theme,
        "GridEnv",
        [
            f"self.x = {starts[0]}",
            f"self.y = {starts[1]}",
            f"a = rng.choice([{_either_way(across)}])",
            f"b = rng.choice([{_either_way(along)}])",
            'self.plan = ["left" if a < 0 else "right"] * abs(a)',
            'self.plan += ["down" if b < 0 else "up"] * abs(b)',
            "self.left = len(self.plan)" + (f" + {spare}" if spare else ""),
            'self.goal = f"{self.x + a},{self.y + b}"',
        ],
        ask=rng.choice(["walk", "go"])
        + " from {self.x},{self.y} to {self.goal} in {self.left} moves: left, right, up, down.",
        hint="Start with {self.plan[0]}"
        + rng.choice([".", ", end with {self.plan[-1]}."] if level > 2 else ["."]),
        methods=_GRID_STEP,
    )


class _Walker:
    """Goes across, then along; careless: in either order, and now and then anywhere."""

    def __init__(
        self, rng: random.Random, observation: str, solution: tuple[str, ...], careful: bool
    ) -> None:
        self.rng, self.careful = rng, careful
        cells = re.findall(r"from (-?\d+),(-?\d+) to (-?\d+),(-?\d+)", observation)[0]
        self.x, self.y, self.a, self.b = map(int, cells)
        self.across_first = careful or rng.random() < 0.5

    def act(self, observation: str) -> str:
        at = re.match(r"At (-?\d+),(-?\d+)", observation)
        if at:
            self.x, self.y = int(at[1]), int(at[2])
        if not self.careful and self.rng.random() < 0.4:
            return self.rng.choice(["left", "right", "up", "down"])
        across = "right" if self.a > self.x else "left" if self.a < self.x else ""
        along = "up" if self.b > self.y else "down" if self.b < self.y else ""
        return (across or along if self.across_first else along or across) or "up"


# -- lock -------------------------------------------------------------------------------------

_LOCK_STEP = """
    def step(self, action):
        self.left -= 1
        right = action == self.plan[self.done]
        self.done = self.done + 1 if right else 0
        won = self.done == len(self.plan)
        text = "Click." if right else "Reset."
        return text, float(won), won or self.left == 0, False, {}
"""

# For each level: buttons, presses, how many of the order are told, and by the hint as well.
_LOCKS = (
    (3, (6, 7), 1, 2),
    (3, (7, 7), 0, 1),
    (3, (5, 6), 0, 1),
    (4, (7, 7), 1, 2),
    (4, (6, 7), 0, 2),
)


def _told(n: int) -> str:
    return "It starts with " + ", ".join(f"{{self.plan[{i}]}}" for i in range(n)) + "."


def _write_lock(rng: random.Random, level: int, theme: str) -> str:
    n, lefts, clue, hinted = _LOCKS[level - 1]
    left, buttons = rng.randint(*lefts), ", ".join(map(str, rng.sample(range(1, 10), n)))
    return program(
        theme,
        "LockEnv",
        [
            f"self.plan = [str(x) for x in rng.sample([{buttons}], {n})]",
            "self.done = 0",
            f"self.left = {left}",
        ],
        ask=rng.choice(["press", "push", "tap"])
        + f" buttons {buttons} in the hidden order, {left} presses."
        + (f" {_told(clue)}" if clue else ""),
        hint=_told(hinted),
        methods=_LOCK_STEP,
    )


class _Opener:
    """Keeps what clicked and tries the next button in turn; careless: forgets what failed."""

    def __init__(
        self, rng: random.Random, observation: str, solution: tuple[str, ...], careful: bool
    ) -> None:
        self.rng, self.careful, self.done, self.pressed = rng, careful, 0, ""
        listed = re.search(r"buttons ([\d, ]+) in the hidden", observation)
        self.buttons = listed[1].split(", ") if listed else []
        told = re.findall(r"starts with ([\d, ]+)\.", observation)
        self.known = told[-1].split(", ") if told else []
        self.failed: set[str] = set()

    def act(self, observation: str) -> str:
        if self.pressed and observation.startswith("Click"):
            if self.done == len(self.known):
                self.known, self.failed = [*self.known, self.pressed], set()
            self.done += 1
        elif self.pressed:
            if self.done == len(self.known):
                self.failed.add(self.pressed)
            self.done = 0
        self.pressed = self._choose()
        return self.pressed

    def _choose(self) -> str:
        if not self.careful and self.rng.random() < 0.6:
            return self.pressed if self.pressed in self.failed else self.rng.choice(self.buttons)
        if self.done < len(self.known):
            return self.known[self.done]
        new = [b for b in self.buttons if b not in self.known and b not in self.failed]
        return new[0] if new else self.rng.choice(self.buttons)


TURN_FAMILIES = (
    Family(
        name="search",
        skill="Optimization",
        kind=Kind.GAME,
        write=_write_search,
        player=_Searcher,
    ),
    Family(
        name="grid",
        skill="Spatial Reasoning",
        kind=Kind.GAME,
        write=_write_grid,
        player=_Walker,
    ),
    Family(
        name="lock",
        skill="Causal Inference",
        kind=Kind.GAME,
        write=_write_lock,
        player=_Opener,
    ),
)
