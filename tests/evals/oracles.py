"""Scripted policies that know the right answers of whole packages."""

from __future__ import annotations

from collections.abc import Sequence

from spade_jax.evals import humaneval, prompts
from spade_jax.evals.bfcl import Entry
from spade_jax.types import Message
from tests.evals.scripted import Answer
from tests.evals.tool_play import Script, written


def true_calls(entry: Entry, *, drop: bool = False) -> list[str]:
    """The true calls of a turn as one reply, then a reply without any; `drop` the very last."""
    last = max(n for n, turn in enumerate(entry.truth) if turn)
    replies = []
    for number, (truth, tools) in enumerate(zip(entry.truth, entry.tools, strict=True)):
        calls = truth[:-1] if drop and number == last else truth
        replies += [written(*calls, tools=tools)] if calls else []
        replies.append("That is all.")
    return replies


def of_multi_turn(entries: Sequence[Entry], *, drop: bool = False) -> Script:
    """Of BFCL multi-turn."""
    return Script("bfcl_multi_turn", {e.id: true_calls(e, drop=drop) for e in entries})


def of_humaneval() -> Answer:
    """The published solution of each task."""
    known = {
        prompts.fill("humaneval", prompt=task.prompt.strip("\n")): task
        for task in humaneval.read_tasks(humaneval.published())
    }

    def answer(said: Sequence[Message]) -> str:
        task = known[said[-1].content]
        return f"```python\n{task.prompt}{task.canonical_solution}\n```"

    return answer
