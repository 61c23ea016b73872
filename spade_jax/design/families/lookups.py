"""Families that ask tools: chain (one look-up leads to the next), stock (look-ups compared)."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
from collections.abc import Callable

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
_THINGS = "fig nut pea oat egg bun ham jam pie tea kiwi plum corn leek rice lime".split()

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
        f"names = rng.sample([{quoted(rng.sample(_THINGS, max(n, rng.randint(3, 5))))}], {n})",
        f"self.{value} = {_table(rng)}",
    ]
    if n > 1 and not added:
        draws.append(f"best = {pick}(names, key=self.{value}.get)")
    return _program(theme, "StockEnv", draws, tools=[value], answer=answer, ask=ask, hint=hint)


# -- players ----------------------------------------------------------------------------------


@dataclasses.dataclass
class _Plan:
    """Calls to come, values known already, and what answers the question once all are found.

    A call is a tool and whom it is about; "" stands for what the call before it found.
    """

    calls: list[tuple[str, str]]
    found: list[int]
    answer: Callable[[list[int]], int]


def _plan_chain(question: str, hint: str) -> _Plan:
    """One call a hop, from where the hint leads to."""
    path, start = re.findall(r"what is the ([\w ]+) of (\w+)\?", question)[0]
    tools = path.split(" of the ")[::-1]
    known = re.search(r"The ([\w ]+) of \w+ is (\w+)", hint)
    if known:
        start, tools = known[2], tools[len(known[1].split(" of the ")) :]
    calls = [(tool, "" if i else start) for i, tool in enumerate(tools)]
    return _Plan(calls, [], lambda found: found[-1])


def _plan_stock(question: str, hint: str) -> _Plan:
    """One call a thing, but for those whose sum the hint tells or which it rules out."""
    added = re.search(r"what (\w+) have ([\w, ]+) together", question)
    if added:
        names, known = added[2].split(", "), re.search(r"have (\d+)", hint)
        calls = [(added[1], name) for name in (names[-1:] if known else names)]
        return _Plan(calls, [int(known[1])] if known else [], sum)
    value, listed = re.findall(r"what is the ([\w ]+) of ([\w, ]+)\?", question)[0]
    named = re.findall(r"is the \w+ of (\w+)", hint)
    calls = [(value.split()[-1], name) for name in named or listed.split(", ")]
    return _Plan(calls, [], min if "lowest" in value else max)


class _Asker:
    """Makes the look-ups that the hint has not made already, then answers.

    Careless: leaves a look-up out, or gets the answer wrong.
    """

    def __init__(
        self,
        rng: random.Random,
        observation: str,
        solution: tuple[str, ...],
        careful: bool,
        *,
        plan: Callable[[str, str], _Plan],
    ) -> None:
        question = question_of(observation).partition(" Tools:")[0]
        planned = plan(question, hint_of(observation))
        self.calls, self.found, self.answer = planned.calls, planned.found, planned.answer
        self.rng, self.seen, self.wrong = rng, "", 0
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
        value = self.answer(self.found) + self.wrong if self.found else self.rng.randint(10, 99)
        return f"<answer>{abs(value)}</answer>"


LOOKUP_FAMILIES = (
    Family(
        name="chain",
        skill="Data Retrieval",
        kind=Kind.TOOL_USE,
        write=_write_chain,
        player=functools.partial(_Asker, plan=_plan_chain),
    ),
    Family(
        name="stock",
        skill="Multi-Step Workflows",
        kind=Kind.TOOL_USE,
        write=_write_stock,
        player=functools.partial(_Asker, plan=_plan_stock),
    ),
)
