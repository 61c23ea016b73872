"""Families that ask tools: chain (one look-up leads to the next), stock (look-ups compared)."""

from __future__ import annotations

import json
import random
import re

from spade_jax.design.families.answers import THINGS
from spade_jax.design.families.family import Family, between, hint_of, program, question_of, quoted
from spade_jax.types import Kind

_TOOL = """
    def tool_$tool(self, name):
        return self.$tool.get(name)
"""


def _program(
    theme: str, name: str, draws: list[str], *, tools: list[str], answer: str, ask: str, hint: str
) -> str:
    """A tool-use program whose `tools` read the tables of the same names."""
    return program(
        theme,
        f"{name}(ToolUseBaseEnv)",
        [*draws, f"self._expected_answer = {answer}"],
        ask=f"{ask} Tools: {', '.join(tools)}.",
        hint=hint,
        methods="".join(_TOOL.replace("$tool", tool) for tool in tools),
        solution='[f"<answer>{self._expected_answer}</answer>"]',
    )


def _table(rng: random.Random) -> str:
    """A number for each of `names`: one of at least thirty."""
    return f"{{x: {between(rng, (10, 49), (80, 99))} for x in names}}"


# -- chain ------------------------------------------------------------------------------------

_NAMES = "ann bob cid dan eve fay gus hal ida jim kay leo mia ned".split()
_LINKS = "boss aunt cook twin maid heir".split()
_FACTS = "room desk age badge seat code".split()


def _write_chain(rng: random.Random, level: int, theme: str) -> str:
    hops = level - 1
    link, fact = rng.choice(_LINKS), rng.choice(_FACTS)
    told = (hops + 1) // 2
    whom = f"the {link} of " * hops + "{names[0]}"
    hint = f"Call {fact} for {{names[0]}}."
    if told:
        path = " of the ".join([link] * told)
        hint = f"The {path} of {{names[0]}} is {{names[{told}]}}."
    n = max(hops + 1, rng.randint(3, 5))
    return _program(
        theme,
        "ChainEnv",
        [
            f"names = rng.sample([{quoted(rng.sample(_NAMES, n))}], {n})",
            *([f"self.{link} = dict(zip(names, names[1:]))"] if hops else []),
            f"self.{fact} = {_table(rng)}",
        ],
        tools=[link, fact] if hops else [fact],
        answer=f"self.{fact}[names[{hops}]]",
        ask=f"what is the {fact} of {whom}?",
        hint=hint,
    )


# -- stock ------------------------------------------------------------------------------------

_VALUES = "price weight cost size".split()

# For each level: how many things are asked for, and whether their values are added.
_STOCKS = ((1, False), (2, False), (3, False), (2, True), (3, True))


def _write_stock(rng: random.Random, level: int, theme: str) -> str:
    n, added = _STOCKS[level - 1]
    value = rng.choice(_VALUES)
    listed = ", ".join(f"{{names[{i}]}}" for i in range(n))
    values = [f"self.{value}[names[{i}]]" for i in range(n)]
    if added:
        ask, answer = f"what {value} have {listed} together?", " + ".join(values)
        hint = f"{listed.rpartition(', ')[0]} have {{{' + '.join(values[:-1])}}}."
    elif n == 1:
        ask, answer = f"what is the {value} of {listed}?", values[0]
        hint = f"Call {value} for {listed}."
    else:
        word, pick = rng.choice([("lowest", "min"), ("highest", "max")])
        ask, answer = f"what is the {word} {value} of {listed}?", f"self.{value}[best]"
        hint = f"It is the {value} of {{best}}."
    draws = [
        f"names = rng.sample([{quoted(rng.sample(THINGS, max(n, rng.randint(3, 5))))}], {n})",
        f"self.{value} = {_table(rng)}",
    ]
    if n > 1 and not added:
        draws.append(f"best = {pick}(names, key=self.{value}.get)")
    return _program(theme, "StockEnv", draws, tools=[value], answer=answer, ask=ask, hint=hint)


# -- player -----------------------------------------------------------------------------------

_MERGE = {"lowest": min, "highest": max, "together": sum}


class _Asker:
    """Makes the look-ups that the hint has not made already, then answers.

    Careless: leaves a look-up out, or gets the answer wrong.
    """

    def __init__(
        self, rng: random.Random, observation: str, solution: tuple[str, ...], careful: bool
    ) -> None:
        question, hint = question_of(observation).partition(" Tools:")[0], hint_of(observation)
        self.rng, self.seen, self.found = rng, "", []
        self.merge = next((_MERGE[w] for w in _MERGE if w in question), max)
        # Calls to come: a tool and whom it is about, "" for what the call before it found.
        self.calls: list[tuple[str, str]] = []
        path = re.search(r"what is the ([\w ]+) of ([\w, ]+)\?", question)
        if path and " of the " not in path[1] and "," in path[2]:
            names = re.findall(r"is the \w+ of (\w+)", hint) or path[2].split(", ")
            self.calls = [(path[1].split()[-1], name) for name in names]
        elif path:
            tools = path[1].split(" of the ")[::-1]
            known = re.search(r"The ([\w ]+) of \w+ is (\w+)", hint)
            start = known[2] if known else path[2]
            tools = tools[len(known[1].split(" of the ")) :] if known else tools
            self.calls = [(tool, "" if i else start) for i, tool in enumerate(tools)]
            self.merge = lambda found: found[-1]
        else:
            value, listed = re.findall(r"what (\w+) have ([\w, ]+) together", question)[0]
            known = re.search(r"([\w, ]+) have (\d+)", hint)
            names = listed.split(", ")
            if known:
                names, self.found = names[-1:], [int(known[2])]
            self.calls = [(value, name) for name in names]
        self.wrong = 0
        if not careful and rng.random() > 0.1:
            self._slip()

    def _slip(self) -> None:
        if len(self.calls) > 1 and self.rng.random() < 0.7:
            i = self.rng.randrange(len(self.calls) - 1)
            whom = self.calls[0][1]
            del self.calls[i]
            if not self.calls[0][1]:
                self.calls[0] = (self.calls[0][0], whom)
        else:
            self.wrong = self.rng.choice([1, -1, 10, -10])

    def act(self, observation: str) -> str:
        if self.seen:
            words = re.findall(r"\w+", re.sub(r"<[^>]*>", " ", observation))
            self.seen = words[-1] if words else "none"
            self.found += [int(self.seen)] if self.seen.isdecimal() else []
        if self.calls:
            tool, whom = self.calls.pop(0)
            whom, self.seen = whom or self.seen, self.seen or "asked"
            call = json.dumps({"name": tool, "arguments": {"name": whom}})
            return f"<tool_call>{call}</tool_call>"
        value = self.merge(self.found) + self.wrong if self.found else self.rng.randint(10, 99)
        return f"<answer>{abs(value)}</answer>"


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
