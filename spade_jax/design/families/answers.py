"""Families that ask one question and take one answer: sum, sequence, letters, count, order."""

from __future__ import annotations

import functools
import random
import re
from string import ascii_lowercase

from spade_jax.design.families.family import Family, OneAnswer, Slip, Writer, fill, quoted
from spade_jax.types import Kind

_TEMPLATE = """
import random

class $name:
    def reset(self, seed=None):
        rng = random.Random(seed)
$draws
        self.answer = $answer
        return f"$theme: $ask", {}

    def step(self, action):
        won = action.strip() == self.answer
        return "Done.", float(won), True, False, {}

    def hint(self):
        return f"$hint"

    def solution(self):
        return [self.answer]
"""


def _program(theme: str, name: str, draws: list[str], answer: str, ask: str, hint: str) -> str:
    lines = "\n".join(" " * 8 + line for line in draws)
    return fill(_TEMPLATE, theme, name=name, draws=lines, answer=answer, ask=ask, hint=hint)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


# -- sum --------------------------------------------------------------------------------------


def _between(rng: random.Random, low: tuple[int, int], high: tuple[int, int]) -> str:
    return f"rng.randint({rng.randint(*low)}, {rng.randint(*high)})"


def _write_sum(rng: random.Random, level: int, theme: str) -> str:
    ones = "rng.randint(1, 9)"
    verb = rng.choice(["add {self.a} and {self.b}.", "what is {self.a} + {self.b}?"])
    third = ""
    if level == 1:
        a, b = _between(rng, (10, 15), (24, 35)), _between(rng, (1, 2), (5, 6))
        if rng.random() < 0.6:
            a, b = _between(rng, (1, 4), (6, 9)) + " * 10", _between(rng, (1, 3), (6, 9))
        answer, hint = "self.a + self.b", "It is 1 more than {self.a + self.b - 1}."
    elif level == 2:
        a, b = _between(rng, (11, 29), (50, 99)), _between(rng, (2, 4), (7, 9))
        answer = "self.a + self.b"
        hint = "Half way is {self.a + self.b // 2}, then add {self.b - self.b // 2}."
        if rng.random() < 0.5:
            a, verb = _between(rng, (21, 39), (60, 99)), "what is {self.a} - {self.b}?"
            answer = "self.a - self.b"
            hint = "Half way is {self.a - self.b // 2}, then take {self.b - self.b // 2}."
    elif level == 3:
        a, b = _between(rng, (40, 55), (70, 99)), f"{_between(rng, (1, 1), (2, 3))} * 10 + {ones}"
        answer = "self.a + self.b"
        hint = "First {self.a + self.b // 10 * 10}, then add {self.b % 10}."
        if rng.random() < 0.5:
            a, verb = _between(rng, (61, 70), (85, 99)), "what is {self.a} - {self.b}?"
            answer = "self.a - self.b"
            hint = "First {self.a - self.b // 10 * 10}, then take {self.b % 10}."
    elif level == 4:
        a, b = _between(rng, (61, 70), (80, 99)), _between(rng, (11, 39), (60, 99))
        third = _between(rng, (11, 19), (25, 35))
        sign, word = rng.choice([("+", "add"), ("-", "take")])
        verb = "what is {self.a} + {self.b} " + sign + " {self.c}?"
        answer = f"self.a + self.b {sign} self.c"
        hint = f"The first two make {{self.a + self.b}}, then {word} {{self.c}}."
    else:
        third, sign = _between(rng, (101, 199), (500, 999)), rng.choice("+*")
        a, b = _between(rng, (101, 499), (600, 999)), _between(rng, (101, 499), (600, 999))
        if sign == "*":
            a, b = _between(rng, (11, 39), (60, 99)), _between(rng, (11, 19), (30, 60))
        verb = f"what is {{self.a}} {sign} {{self.b}} + {{self.c}}?"
        answer = f"self.a {sign} self.b + self.c"
        hint = f"The first two make {{self.a {sign} self.b}}, then add {{self.c}}."
    draws = [f"self.a = {a}", f"self.b = {b}"] + ([f"self.c = {third}"] if third else [])
    return _program(theme, "SumEnv", draws, f"str({answer})", verb, hint)


def _slip_sum(rng: random.Random, question: str, answer: str) -> str:
    right, last = int(answer), _numbers(question)[-1]
    return str(
        abs(right + rng.choice([-10, 10, -10, 1, -1, last, -last, 100 if right > 99 else 2]))
    )


# -- sequence ---------------------------------------------------------------------------------


def _write_sequence(rng: random.Random, level: int, theme: str) -> str:
    start, step = _between(rng, (1, 9), (25, 50)), _between(rng, (1, 1), (2, 3))
    terms, extra, change = rng.randint(4, 5), "", "self.items[-1] + self.b"
    hint = "The step is {self.b}."
    if level == 2:
        step = _between(rng, (2, 5), (7, 9))
        if rng.random() < 0.5:
            start, change = _between(rng, (61, 70), (90, 99)), "self.items[-1] - self.b"
            hint = "It goes down by {self.b} each time."
    elif level == 3:
        start, step = _between(rng, (1, 30), (50, 70)), _between(rng, (11, 15), (19, 39))
    elif level == 4:
        step, extra = _between(rng, (2, 5), (9, 19)), _between(rng, (1, 2), (4, 9))
        change = "self.items[-1] + self.b + self.c * i"
        hint = f"The next step is {{self.b + self.c * {terms - 1}}}."
    elif level == 5:
        start, step = _between(rng, (2, 4), (9, 15)), _between(rng, (2, 2), (3, 4))
        extra, terms = _between(rng, (1, 5), (9, 29)), 4
        change = "self.items[-1] * self.b + self.c"
        hint = "Times {self.b} makes {self.items[-1] * self.b}, then add {self.c}."
    draws = [f"self.a = {start}", f"self.b = {step}"]
    draws += [f"self.c = {extra}"] if extra else []
    draws += ["self.items = [self.a]", f"for i in range({terms}):"]
    draws += [f"    self.items.append({change})"]
    ask = rng.choice(["what comes after", "continue"]) + " {' '.join(map(str, self.items))}."
    return _program(theme, "SequenceEnv", draws, "str(self.items.pop())", ask, hint)


def _slip_sequence(rng: random.Random, question: str, answer: str) -> str:
    terms, right = _numbers(question), int(answer)
    first_step = terms[-1] + terms[1] - terms[0]
    slips = [terms[-1], first_step, right + 1, right - 1, right + 10, abs(right - 10)]
    return str(rng.choice(slips))


# -- letters ----------------------------------------------------------------------------------

_LETTER_COUNTS = ((3, 3), (3, 4), (5, 5), (6, 6), (7, 8))


def _letters(rng: random.Random, fewest: int) -> str:
    start = rng.randint(0, 25 - fewest)
    return f'"{ascii_lowercase}"[{start}:{rng.randint(start + fewest, 26)}]'


def _write_letters(rng: random.Random, level: int, theme: str) -> str:
    n = rng.randint(*_LETTER_COUNTS[level - 1])
    draws = [f"self.items = rng.sample({_letters(rng, 9)}, {n})"]
    draws += [f'self.a = "{" " if level == 1 else ""}".join(self.items)']
    verb = rng.choice(["spell {self.a} backwards.", "spell {self.a} from its end."])
    order, first = "self.items[::-1]", -1
    if rng.random() < 0.6:
        first = rng.randint(1, n - 1)
        verb = f"spell {{self.a}} from letter {first + 1} on, then the start."
        order = f"self.items[{first}:] + self.items[:{first}]"
    hint = rng.choice(["The letters are", "It is made of"]) + " {' '.join(self.items)}."
    if level == 1:
        hint = f"Start with {{self.items[{first}]}}."
    return _program(theme, "LettersEnv", draws, f'" ".join({order})', verb, hint)


def _slip_letters(rng: random.Random, question: str, answer: str) -> str:
    letters = answer.split()
    i = rng.randrange(len(letters) - 1)
    swapped = [*letters[:i], letters[i + 1], letters[i], *letters[i + 2 :]]
    dropped = letters[:i] + letters[i + 1 :]
    return " ".join(rng.choice([swapped, swapped, dropped, letters[1:] + letters[:1]]))


# -- count ------------------------------------------------------------------------------------

THINGS = "fig nut pea oat egg bun ham jam pie tea kiwi plum corn leek rice lime".split()
_SPANS = ((2, 3), (2, 3), (3, 4), (4, 5), (5, 6))  # of each count, by level


def _write_count(rng: random.Random, level: int, theme: str) -> str:
    *names, other = rng.sample(THINGS, 4)
    some = []
    for name, lows in zip(names, ((1, 2), (0, 2), (0, 2)), strict=True):
        low = rng.randint(*lows)
        some.append(f'["{name}"] * rng.randint({low}, {low + rng.randint(*_SPANS[level - 1])})')
    some.append(f'["{other}"] * rng.randint({rng.randint(0, 1)}, {rng.randint(1, 2 + level // 2)})')
    draws = [f"self.names = [{quoted(names)}]"]
    draws += [f"self.items = {some[0]} + {some[1]}", f"self.items += {some[2]} + {some[3]}"]
    draws += ["rng.shuffle(self.items)"] if level > 1 else []
    answer = '" ".join(str(self.items.count(name)) for name in self.names)'
    ask = f"count {names[0]}, {names[1]}, {names[2]} in: {{' '.join(self.items)}}."
    known = rng.sample(names, 2 if level > 2 else 1)
    parts = [f"{name} comes {{self.items.count('{name}')}} times" for name in known]
    return _program(theme, "CountEnv", draws, answer, ask, " and ".join(parts) + ".")


def _slip_count(rng: random.Random, question: str, answer: str) -> str:
    counts = _numbers(answer)
    i = rng.randrange(len(counts))
    counts[i] = max(0, counts[i] + rng.choice([-1, -1, 1])) or 2
    if rng.random() < 0.4:
        seen = question.split("in:")[1].strip(". ").split()[:-2]
        names = re.findall(r"\w+", question.split("count ")[1])[:3]
        counts = [seen.count(name) for name in names]
    return " ".join(map(str, counts))


# -- order ------------------------------------------------------------------------------------

_MOSTS = ("oldest", "tallest", "fastest", "richest", "strongest")
# For each level: how many names, and the ranks asked for, counted from either end.
_SIZES = ((5, 7, (1,)), (6, 8, (1,)), (6, 8, (2,)), (7, 9, (3,)), (8, 9, (4, 5)))


def _write_order(rng: random.Random, level: int, theme: str) -> str:
    low, high, ranks = _SIZES[level - 1]
    n, rank = rng.randint(low, high), rng.choice(ranks)
    rank = rng.choice([rank, n + 1 - rank])
    draws = [f"self.items = rng.sample({_letters(rng, 17)}, {n})"]
    draws += ['facts = [f"{a} > {b}" for a, b in zip(self.items, self.items[1:])]']
    draws += ["rng.shuffle(facts)"]
    most = rng.choice(_MOSTS)
    ask = f"who is number {rank}, {most} first? {{', '.join(facts)}}."
    near = rng.choice([other for other in (rank - 1, rank + 1) if 1 <= other <= n])
    hint = f"Number {near} is {{self.items[{near - 1}]}}."
    return _program(theme, "OrderEnv", draws, f"self.items[{rank - 1}]", ask, hint)


def _slip_order(rng: random.Random, question: str, answer: str) -> str:
    pairs = re.findall(r"(\w+) > (\w+)", question)
    near = [a if b == answer else b for a, b in pairs if answer in (a, b)]
    return rng.choice(near + [rng.choice(pairs)[0]])


def _family(name: str, skill: str, write: Writer, slip: Slip) -> Family:
    player = functools.partial(OneAnswer, slip=slip)
    return Family(name=name, skill=skill, kind=Kind.GAME, write=write, player=player)


ANSWER_FAMILIES = (
    _family("sum", "Mathematical Reasoning", _write_sum, _slip_sum),
    _family("sequence", "Pattern Recognition", _write_sequence, _slip_sequence),
    _family("letters", "Pattern Recognition", _write_letters, _slip_letters),
    _family("count", "Logical Deduction", _write_count, _slip_count),
    _family("order", "Logical Deduction", _write_order, _slip_order),
)
