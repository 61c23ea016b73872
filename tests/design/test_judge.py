"""The judge: what it is shown, and what its answers do to verdicts."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import pytest

from spade_jax.design import judge
from spade_jax.envs.sandbox import Sandbox
from spade_jax.policy.conversation import Budget
from spade_jax.types import (
    Design,
    DesignTask,
    Generation,
    Kind,
    Message,
    Reason,
    StopReason,
    TokenRecord,
    Verdict,
)
from tests.envs.programs import CHAIN, SUM, game

HOW = {"seed": 1, "prompt_set": "games", "play_characters": 4000}
ACCEPTED, REFUSED = Verdict(reason=Reason.ACCEPTED), Verdict(reason=Reason.SOLVABLE)


@pytest.mark.parametrize(
    ("text", "answer", "why"),
    [
        ("It is sound.\nVerdict: yes", "yes", "It is sound."),
        ("Verdict: yes?\nNo: it lies.\n**Verdict:** no.", "no", "No: it lies."),
        ("Yes, it is fair.", "yes", "It gave no reason."),
        ("<think>Verdict: no</think>Verdict: YES", "yes", "It gave no reason."),
        ("I cannot say.", "unknown", ""),
        ("Verdict: nothing", "unknown", ""),
        ("<think>Verdict: no", "unknown", ""),
    ],
)
def test_what_is_read(text: str, answer: str, why: str) -> None:
    reply = Generation(ids=(), logp=(), text=text, stop=StopReason.STOP)
    assert judge.read(reply) == (answer, why)
    cut = dataclasses.replace(reply, stop=StopReason.LENGTH)
    assert judge.read(cut) == judge.read(None) == ("unknown", "")


class Judge:
    """Answers by a word of what it is shown; keeps that."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.opened = itertools.count()

    def converse(self) -> "Judge":
        return self

    def open(self) -> int:
        return next(self.opened)

    def ask(
        self, dialogue: int, messages: Sequence[Message], stream: tuple[int, ...], budget: Budget
    ) -> None:
        self.shown.append(messages[-1].content)

    def answers(self) -> dict[int, Generation | None]:
        return {i: self.reply(text) for i, text in enumerate(self.shown)}

    def reply(self, text: str) -> Generation | None:
        if "ChainEnv" in text:
            return None
        said = "It only adds.\nVerdict: no" if "SumEnv" in text else "Verdict: yes"
        return Generation(ids=(), logp=(), text=said, stop=StopReason.STOP)

    def retire(self, dialogues: Sequence[int]) -> None: ...


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(step_seconds=5.0) as box:
        yield box


def design(slot: int, code: str, kind: Kind = Kind.GAME) -> Design:
    task = DesignTask(iteration=0, slot=slot, skill="Optimization", kind=kind, document=None)
    return Design(task=task, reply="", stop=StopReason.STOP, record=TokenRecord(), code=code)


def test_only_a_clear_no_rejects(sandbox: Sandbox) -> None:
    breaks = game(reset="raise ValueError('no')")
    designs = [design(0, SUM), design(1, "x = 1"), design(2, CHAIN, Kind.TOOL_USE)]
    designs += [design(3, breaks), design(4, SUM.replace("SumEnv", "PlusEnv"))]
    verdicts = [ACCEPTED, REFUSED, ACCEPTED, ACCEPTED, ACCEPTED]
    speaker = Judge()
    reviewed = judge.review(speaker, sandbox, designs, verdicts, Budget(64, 1000), **HOW)
    assert [v.reason for v in reviewed] == [
        Reason.JUDGE,
        Reason.SOLVABLE,
        Reason.ACCEPTED,
        Reason.ACCEPTED,
        Reason.ACCEPTED,
    ]
    assert [v.judge for v in reviewed] == ["no", "", "unknown", "unknown", "yes"]
    assert reviewed[0].message == (
        "A judge who read the program and a play of it said no: It only adds. Mend that."
    )
    shown, tools, plus = speaker.shown  # neither a rejected design nor one that breaks
    assert "class SumEnv:" in shown and "Bees: add " in shown
    assert "\nDone.\n(reward 1)\n</transcript>" in shown and "PlusEnv" in plus
    assert '> <tool_call>{"name": "boss"' in tools

    # "Bees: add 11 and 22." has 20 characters; the next line no longer fits.
    cut, short = Judge(), {**HOW, "play_characters": 22}
    judge.review(cut, sandbox, designs[:1], [ACCEPTED], Budget(64, 1000), **short)
    assert re.search(r"<transcript>\nBees: add \d\d and \d\d.\n</transcript>", cut.shown[0])
