"""Families that ask one question and take one answer: sum, sequence, letters, missing, order."""

from __future__ import annotations

import functools
import random
from string import ascii_lowercase

from spade_jax.design.families.family import (
    Family,
    OneAnswer,
    Slip,
    Writer,
    between,
    numbers,
    program,
)
from spade_jax.types import Kind

_STEP = """
    def step(self, action):
        won = action == self.plan[0]
        return "Done.", float(won), True, False, {}
"""

_program = functools.partial(program, methods=_STEP)


# -- sum --------------------------------------------------------------------------------------


def _write_sum(rng: random.Random, level: int, theme: str) -> str:
    total, near = "a + b", rng.choice([1, 1, 2])
    a, b = between(rng, (11, 29), (40, 99)), between(rng, (1, 2), (6, 9))
    draws = []
    if level == 1:
        a, b = between(rng, (10, 69), (80, 99)), between(rng, (1, 1), (2, 3))
    elif level == 2 and rng.random() < 0.5:
        total = "a - b"
    elif level == 3:
        b = between(rng, (11, 15), (21, 39))
        if rng.random() < 0.5:
            a, total = between(rng, (40, 59), (70, 99)), "a - b"
    elif level == 4:
        b = between(rng, (11, 29), (40, 99))
        draws, total = [f"c = {between(rng, (3, 9), (11, 30))}"], "a + b + c"
    elif level == 5:
        a, b = between(rng, (101, 499), (600, 999)), between(rng, (101, 499), (600, 999))
        draws, total = (
            [f"c = {between(rng, (11, 99), (200, 999))}"],
            rng.choice(["a + b + c", "a + b - c"]),
        )
    ask = total.replace("a", "{a}").replace("b", "{b}").replace("c", "{c}")
    return _program(
        theme,
        "SumEnv",
        [f"a = {a}", f"b = {b}", *draws, f"total = {total}", "self.plan = [str(total)]"],
        ask=rng.choice([f"what is {ask}?", f"work out {ask}."]),
        hint=f"It is {near} more than {{total - {near}}}.",
    )


def _slip_sum(rng: random.Random, question: str, answer: str) -> str:
    right, last = int(answer), numbers(question)[-1]
    return str(abs(right + rng.choice([-10, 10, 10, 1, -1, last, 100 if right > 99 else 2])))


# -- sequence ---------------------------------------------------------------------------------


def _write_sequence(rng: random.Random, level: int, theme: str) -> str:
    terms, extra = rng.randint(3, 5), []
    a, b, term = between(rng, (1, 19), (40, 80)), between(rng, (1, 1), (2, 3)), "a + b * i"
    hint = "Add {b} to {items[-1]}."
    if level == 2:
        b = between(rng, (2, 4), (6, 9))
    elif level == 3:
        a, b, term = between(rng, (60, 69), (80, 99)), between(rng, (2, 4), (6, 9)), "a - b * i"
        hint = "Take {b} from {items[-1]}."
    elif level == 4:
        b = between(rng, (11, 14), (17, 25))
    elif level == 5:
        b, extra = between(rng, (2, 4), (6, 9)), [f"c = {between(rng, (1, 3), (4, 9))}"]
        term, hint = "a + b * i + c * i * i", f"Add {{b + c * {2 * terms - 1}}} to {{items[-1]}}."
    return _program(
        theme,
        "SequenceEnv",
        [
            f"a = {a}",
            f"b = {b}",
            *extra,
            f"items = [{term} for i in range({terms + 1})]",
            "self.plan = [str(items.pop())]",
        ],
        ask=rng.choice(["what comes after", "continue"]) + " {' '.join(map(str, items))}.",
        hint=hint,
    )


def _slip_sequence(rng: random.Random, question: str, answer: str) -> str:
    terms, right = numbers(question), int(answer)
    slips = [terms[-1], right + 1, abs(right - 1), right + 10, abs(right - 10)]
    return str(rng.choice([slip for slip in slips if slip != right]))


# -- letters ----------------------------------------------------------------------------------


def _sample_letters(rng: random.Random, n: int) -> str:
    """An expression that draws `n` letters out of a part of the alphabet."""
    start = rng.randint(0, 23 - n)
    end = rng.randint(start + n + 3, 26)
    return f'rng.sample("{ascii_lowercase}"[{start}:{end}], {n})'


def _write_letters(rng: random.Random, level: int, theme: str) -> str:
    n = level + 2
    ask, order = "backwards", "items[::-1]"
    if rng.random() < 0.6:
        k = rng.randint(1, n - 1)
        ask, order = f"from letter {k + 1} on, then the start", f"items[{k}:] + items[:{k}]"
    return _program(
        theme,
        "LettersEnv",
        [f"items = {_sample_letters(rng, n)}", f'self.plan = [" ".join({order})]'],
        ask=rng.choice(["say", "spell"]) + f" {{' '.join(items)}} {ask}.",
        hint=f"It starts with {{self.plan[0][:{n // 2 * 2 - 1}]}}.",
    )


def _slip_letters(rng: random.Random, question: str, answer: str) -> str:
    letters = answer.split()
    i = rng.randrange(len(letters) - 1)
    swapped = [*letters[:i], letters[i + 1], letters[i], *letters[i + 2 :]]
    return " ".join(rng.choice([swapped, swapped, letters[:-1], letters[1:] + letters[:1]]))


# -- missing ----------------------------------------------------------------------------------

# For each level: range of how many letters there are, and how many of them are left out.
_MISSING = (((3, 6), 1), ((4, 7), 1), ((5, 8), 2), ((7, 10), 3), ((8, 11), 4))


def _write_missing(rng: random.Random, level: int, theme: str) -> str:
    sizes, gone = _MISSING[level - 1]
    n, start, end = rng.randint(*sizes), rng.randint(0, 7), rng.randint(18, 26)
    hint = "It starts with {self.plan[0][0]}." if gone > 1 else "It is not {some[0]} or {some[1]}."
    return _program(
        theme,
        "MissingEnv",
        [
            f'items = rng.sample("{ascii_lowercase}"[{start}:{end}], {n})',
            f"some = rng.sample(items, {n - gone})",
            'self.plan = [" ".join(x for x in items if x not in some)]',
        ],
        ask=rng.choice(["which of", "what of"])
        + " {' '.join(items)} is missing in {' '.join(some)}?",
        hint=hint,
    )


def _slip_missing(rng: random.Random, question: str, answer: str) -> str:
    there, gone = question.partition(" missing in ")[2].rstrip("?").split(), answer.split()
    i = rng.randrange(len(gone))
    wrong = [*gone[:i], rng.choice(there), *gone[i + 1 :]]
    return " ".join(rng.choice([wrong, gone[:i] + gone[i + 1 :] or wrong]))


# -- order ------------------------------------------------------------------------------------


def _write_order(rng: random.Random, level: int, theme: str) -> str:
    n = level + 2
    ask, order = rng.choice([("sort", "sorted(items)"), ("sort down", "sorted(items)[::-1]")])
    return _program(
        theme,
        "OrderEnv",
        [f"items = {_sample_letters(rng, n)}", f'self.plan = [" ".join({order})]'],
        ask=f"{ask} {{' '.join(items)}}.",
        hint=f"It starts with {{self.plan[0][:{n // 2 * 2 - 1}]}}.",
    )


def _family(name: str, skill: str, write: Writer, slip: Slip) -> Family:
    player = functools.partial(OneAnswer, slip=slip)
    return Family(
        name=name, skill=skill, kind=Kind.GAME, write=write, player=player, single_turn=True
    )


ANSWER_FAMILIES = (
    _family("sum", "Mathematical Reasoning", _write_sum, _slip_sum),
    _family("sequence", "Pattern Recognition", _write_sequence, _slip_sequence),
    _family("letters", "Pattern Recognition", _write_letters, _slip_letters),
    _family("missing", "Logical Deduction", _write_missing, _slip_missing),
    _family("order", "Logical Deduction", _write_order, _slip_letters),
)
