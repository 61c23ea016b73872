"""Families that ask tools: chain (one look-up leads to the next), stock (look-ups, then a sum)."""

from __future__ import annotations

import random
import re

from spade_jax.design.families.answers import THINGS
from spade_jax.design.families.family import Family, fill, hint_of, quoted
from spade_jax.types import Kind

_TOOL = """
    def tool_$tool(self, name):
        return self.$tool.get(name)
"""

_TEMPLATE = """
import random

class $name(ToolUseBaseEnv):
    max_turns = $turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.items = rng.sample([$things], $n)
        $start
$draws
        self._expected_answer = $answer
        return f"$theme: $ask Tools: $tools.", {}
$methods
    def hint(self):
        return f"$hint"

    def solution(self):
        call = '<tool_call>{"name": "%s", "arguments": {"name": "%s"}}</tool_call>'
        moves = [call % (tool, self.items[i]) for tool, i in [$calls]]
        return [*moves, f"<answer>{self._expected_answer}</answer>"]
"""


def _program(
    theme: str,
    name: str,
    *,
    things: list[str],
    n: int,
    start: str,
    draws: dict[str, str],
    spare: int,
    answer: str,
    ask: str,
    hint: str,
    calls: list[tuple[str, int]],
) -> str:
    """A tool-use program; `draws` gives each tool its table, `calls` are (tool, item) pairs."""
    return fill(
        _TEMPLATE,
        theme,
        name=name,
        turns=len(calls) + 1 + spare,
        things=quoted(things),
        n=n,
        start=start,
        draws="\n".join(f"        self.{tool} = {table}" for tool, table in draws.items()),
        answer=answer,
        ask=ask,
        tools=", ".join(f"{tool}(name)" for tool in draws),
        methods="".join(_TOOL.replace("$tool", tool) for tool in draws),
        hint=hint,
        calls=", ".join(f'("{tool}", {i})' for tool, i in calls),
    )


# -- chain ------------------------------------------------------------------------------------

_NAMES = "ann bob cid dan eve fay gus hal ida jim kay leo mia ned".split()
_LINKS = "boss aunt cook twin maid heir".split()
_FACTS = "room desk age badge seat code".split()

# For each level: links to follow and kinds of link, and turns to spare.
_CHAINS = (
    (((0, 0),), 2),
    (((1, 1),), 2),
    (((2, 1),), 1),
    (((3, 1),), 1),
    (((3, 2), (4, 1)), 0),
)


def _write_chain(rng: random.Random, level: int, theme: str) -> str:
    paths, spare = _CHAINS[level - 1]
    hops, kinds = rng.choice(paths)
    told = max(hops // 2, min(hops, 1))
    links, fact = rng.sample(_LINKS, max(kinds, 1)), rng.choice(_FACTS)
    steps = [links[i % kinds] for i in range(hops)]
    low = rng.randint(10, 40)
    draws, at = {}, [0]
    for i, link in enumerate(links, 1):
        draws[link] = f"dict(zip(self.items, self.items[{i}:]))"
    for step in steps:
        at.append(at[-1] + 1 + links.index(step))
    n = max(at[-1] + 1, 5)
    draws[fact] = f"{{x: rng.randint({low}, {rng.randint(70, 99)}) for x in self.items}}"
    whom = "".join(f"the {step} of " for step in reversed(steps)) + "{self.a}"
    hint = f"Call {fact} for {{self.a}}."
    if told:
        path = " of the ".join(reversed(steps[:told]))
        hint = f"The {path} of {{self.a}} is {{self.items[{at[told]}]}}."
    return _program(
        theme,
        "ChainEnv",
        things=rng.sample(_NAMES, n),
        n=n,
        start="self.a = self.items[0]",
        draws=draws if hops else {fact: draws[fact]},
        spare=spare,
        answer=f"self.{fact}[self.items[{at[-1]}]]",
        ask=rng.choice(["what is", "look up"]) + f" the {fact} of {whom}.",
        hint=hint,
        calls=[*zip(steps, at, strict=False), (fact, at[-1])],
    )


# -- stock ------------------------------------------------------------------------------------


def _write_stock(rng: random.Random, level: int, theme: str) -> str:
    low, high, fee = rng.randint(2, 4), rng.randint(7, 9), rng.choice(["fee", "tax", "tip"])
    price, extra = f"rng.randint({low}, {high})", f"rng.randint(1, {rng.randint(6, 9)})"
    calls = [("price", 0), ("price", 1)]
    ask, answer = "what do {self.a} and {self.b} cost?", "self.price[self.a] + self.price[self.b]"
    if level == 1:
        price = f"rng.randint({rng.randint(1, 3)}, {high}) * 10"
        calls = [("price", 0), (fee, 0)]
        ask, answer = (
            f"what do {{self.a}} and its {fee} cost?",
            f"self.price[self.a] + self.{fee}[self.a]",
        )
    elif level == 2:
        price, calls = (
            f"rng.randint({rng.randint(11, 29)}, {rng.randint(50, 90)})",
            [("price", 0), (fee, 0)],
        )
        ask, answer = (
            f"what do {{self.a}} and its {fee} cost?",
            f"self.price[self.a] + self.{fee}[self.a]",
        )
    elif level == 3:
        price = f"rng.randint({rng.randint(11, 19)}, {rng.randint(30, 49)})"
    elif level == 4:
        fee, extra = "stock", f"rng.randint({rng.randint(11, 14)}, {rng.randint(19, 29)})"
        calls = [("price", 0), (fee, 0)]
        ask, answer = "what is all {self.a} worth?", "self.price[self.a] * self.stock[self.a]"
    else:
        fee, extra = "stock", f"rng.randint({rng.randint(11, 19)}, {rng.randint(29, 49)})"
        calls = [("price", 0), ("stock", 0), ("price", 1), ("stock", 1)]
        ask = "what are all {self.a} and {self.b} worth?"
        answer = "self.price[self.a] * self.stock[self.a] + self.price[self.b] * self.stock[self.b]"
    draws = {"price": f"{{x: {price} for x in self.items}}"}
    if any(tool != "price" for tool, _ in calls):
        draws[fee] = f"{{x: {extra} for x in self.items}}"
    told = [
        f"The {tool} of {{self.a}} is {{self.{tool}[self.a]}}."
        for tool, _ in calls[: len(calls) // 2]
    ]
    n, pair = rng.randint(3, 4), any(item for _, item in calls)
    return _program(
        theme,
        "StockEnv",
        things=rng.sample(THINGS, rng.randint(n, 5)),
        n=n,
        start="self.a, self.b = self.items[:2]" if pair else "self.a = self.items[0]",
        draws=draws,
        spare=rng.randint(2, 3) if level < 3 else 1,
        answer=answer,
        ask=ask,
        hint=" ".join(told),
        calls=calls,
    )


# -- player -----------------------------------------------------------------------------------

_CALL = re.compile(r'\{"name": "(\w+)", "arguments": \{"name": "(\w+)"\}\}')


class _Asker:
    """Makes the look-ups that the hint has not made already, then answers.

    Careless: answers too early with what it saw last, asks the last tool first, repeats a call, or
    gets the last step wrong.
    """

    def __init__(
        self, rng: random.Random, observation: str, solution: tuple[str, ...], careful: bool
    ) -> None:
        told = re.findall(r"The ([\w ]+) of \w+ is", hint_of(observation))
        known = sum(len(path.split(" of ")) for path in told)
        calls = list(solution[known:-1])
        answer = solution[-1]
        self.rng, self.seen = rng, ""
        if not careful and rng.random() > 0.1:
            calls, answer = self._slip(calls, answer)
        self.plan = [*calls, answer]

    def _slip(self, calls: list[str], answer: str) -> tuple[list[str], str]:
        slip = self.rng.choice(["early", "early", "first", "repeat", "wrong"])
        if slip == "repeat" and calls:
            i = self.rng.randrange(len(calls))
            return calls[: i + 1] + calls[i:], answer
        if slip == "first" and len(calls) > 1:
            start, last = _CALL.findall(calls[0])[0][1], _CALL.findall(calls[-1])[0][0]
            call = '<tool_call>{"name": "%s", "arguments": {"name": "%s"}}</tool_call>'
            return [call % (last, start)], ""
        if slip == "wrong":
            right = int(re.findall(r"\d+", answer)[0])
            wrong = right + self.rng.choice([1, -1, 10, -10])
            return calls, f"<answer>{abs(wrong)}</answer>"
        if len(calls) < 2:
            return [], f"<answer>{self.rng.randint(10, 99)}</answer>"
        return calls[: self.rng.randrange(1, len(calls))], ""

    def act(self, observation: str) -> str:
        words = re.findall(r"\w+", re.sub(r"<[^>]*>", " ", observation))
        self.seen = words[-1] if words else "none"
        action = self.plan.pop(0) if self.plan else ""
        return action or f"<answer>{self.seen}</answer>"


LOOKUP_FAMILIES = (
    Family(
        name="chain",
        skill="Data Retrieval",
        kind=Kind.TOOL_USE,
        write=_write_chain,
        player=_Asker,
    ),
    Family(
        name="stock",
        skill="Multi-Step Workflows",
        kind=Kind.TOOL_USE,
        write=_write_stock,
        player=_Asker,
    ),
)
