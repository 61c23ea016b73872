"""Families of several turns: search (a number), grid (a walk), lock (a hidden order)."""

from __future__ import annotations

import random
import re

from spade_jax.design.families.family import Family, fill, hint_of, question_of
from spade_jax.types import Kind

# -- search -----------------------------------------------------------------------------------

_SEARCH = """
import random

class SearchEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.low, self.high, self.left = $low, $high, $left
        self.a = rng.randint(self.low, self.high)
        return f"$theme: $ask from {self.low} to {self.high} in {self.left} guesses.", {}

    def step(self, action):
        self.left -= 1
        text = action.strip()[:4]
        guess = int(text) if text.isdecimal() else 0
        won = guess == self.a
        text = "Done." if won else "Higher." if guess < self.a else "Lower."
        return text, float(won), won or self.left == 0, False, {}

    def hint(self):
        low = self.a - self.a % $width - 1
        return f"It is above {low} and below {low + $above}."

    def solution(self):
        low, high, moves = self.low, self.high, []
        while str(self.a) not in moves:
            mid = (low + high) // 2
            moves.append(str(mid))
            low, high = (mid + 1, high) if mid < self.a else (low, mid - 1)
        return moves
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
    low, width = rng.randint(*lows), rng.randint(*widths)
    return fill(
        _SEARCH,
        theme,
        low=low,
        high=low + rng.randint(*sizes) - 1,
        left=rng.randint(*lefts),
        width=width,
        above=width + 1,
        ask=rng.choice(["find the number", "guess the number", "find it, a number"]),
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

_GRID = """
import random

class GridEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.x, self.y = rng.randint($x), rng.randint($y)
        a, b = rng.choice([$across]), rng.choice([$along])
        row = ["left" if a < 0 else "right"] * abs(a)
        col = ["down" if b < 0 else "up"] * abs(b)
        $legs
        self.left = len(self.items)$spare
        self.goal = f"{self.x + a},{self.y + b}"
        return f"$theme: $ask from {self.x},{self.y} to {self.goal} in {self.left} moves: $how", {}

    def step(self, action):
        self.left -= 1
        move = action.strip()
        self.x += (move == "right") - (move == "left")
        self.y += (move == "up") - (move == "down")
        at = f"{self.x},{self.y}"
        won = at == self.goal$pit_step
        return f"At {at}.", float(won), won or self.left == 0, False, {}

    def hint(self):
        return f"Start with {self.items[0]}$then."

    def solution(self):
        return self.items
"""

_WAYS = "left, right, up, down."
_PIT_WAYS = _WAYS + " Pit at {self.pit}."
_LEGS = "self.items = row + col"
_PIT_LEGS = """one = row + col, f"{self.x},{self.y + b}"
        two = col + row, f"{self.x + a},{self.y}"
        self.items, self.pit = rng.choice([one, two])"""
_PIT_STEP = """
        self.left *= at != self.pit"""

# For each level: lengths of the two legs, moves to spare, whether one of the corners is a pit.
_GRIDS = (
    ((1, 2), (1,), (1, 1), False),
    ((1, 2), (1, 2), (0, 1), False),
    ((2, 3), (1, 2), (0, 1), False),
    ((2, 3), (1,), (0, 1), True),
    ((3, 4), (3,), (0, 0), True),
)


def _either_way(lengths: tuple[int, ...]) -> str:
    return ", ".join(map(str, [-n for n in reversed(lengths)] + list(lengths)))


def _write_grid(rng: random.Random, level: int, theme: str) -> str:
    one, two, spares, pit = _GRIDS[level - 1]
    spare = rng.randint(*spares)
    across, along = rng.sample([one, two], 2)
    starts = [f"{rng.randint(2, 4)}, {rng.randint(5, 9)}" for _ in "xy"]
    return fill(
        _GRID,
        theme,
        x=starts[0],
        y=starts[1],
        across=_either_way(across),
        along=_either_way(along),
        legs=_PIT_LEGS if pit else _LEGS,
        spare=f" + {spare}" if spare else "",
        ask=rng.choice(["walk", "go", "move"]),
        then=", {self.items[1]}" if level == 3 else "",
        how=_PIT_WAYS if pit else _WAYS,
        pit_step=_PIT_STEP if pit else "",
    )


class _Walker:
    """Goes across, then along, or the other way round where a pit or the hint says so."""

    def __init__(
        self, rng: random.Random, observation: str, solution: tuple[str, ...], careful: bool
    ) -> None:
        self.rng, self.careful = rng, careful
        cells = re.findall(r"from (-?\d+),(-?\d+) to (-?\d+),(-?\d+)", observation)[0]
        self.x, self.y, self.a, self.b = map(int, cells)
        pit = re.search(r"Pit at (-?\d+),(-?\d+)", question_of(observation))
        self.across_first = not pit or (int(pit[1]), int(pit[2])) != (self.a, self.y)
        if not careful and rng.random() < 0.5:
            self.across_first = not self.across_first

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

_LOCK = """
import random

class LockEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.items = rng.sample([$listed], $n)
        self.done, self.left = 0, $left
        return f"$theme: $ask $listed in the hidden order, {self.left} presses.$clue", {}

    def step(self, action):
        self.left -= 1
        right = action.strip() == str(self.items[self.done])
        self.done = self.done + 1 if right else 0
        won = self.done == $n
        text = "Click." if right else "Reset."
        return text, float(won), won or self.left == 0, False, {}

    def hint(self):
        return f"$hint"

    def solution(self):
        return [str(item) for item in self.items]
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
    return "It starts with " + ", ".join(f"{{self.items[{i}]}}" for i in range(n)) + "."


def _write_lock(rng: random.Random, level: int, theme: str) -> str:
    n, left, clue, hinted = _LOCKS[level - 1]
    buttons = rng.sample(range(1, 10), n)
    return fill(
        _LOCK,
        theme,
        n=n,
        left=rng.randint(*left),
        ask=rng.choice(["press buttons", "push buttons", "tap buttons"]),
        listed=", ".join(map(str, buttons)),
        clue=" " + _told(clue) if clue else "",
        hint=_told(hinted),
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
