"""Driving a course without a model: scripted replies, and what the course said."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from spade_jax.evals.calls import Call
from spade_jax.evals.suites import MODEL, USER, Course, Outcome, Say, Tools, Work
from spade_jax.policy import templates
from spade_jax.policy.conversation import stream
from spade_jax.types import Generation
from tests.evals.courses import generation


@dataclasses.dataclass
class Log:
    """What was said to each partner, in order."""

    says: list[Say] = dataclasses.field(default_factory=list)

    def texts(self, to: str = MODEL) -> list[str]:
        return [m.content for say in self.says if say.to == to for m in say.messages]


def drive(
    course: Course, replies: Iterable[str | None], user: Iterable[str] = ()
) -> tuple[Outcome, Log]:
    """Play a course to its end; a reply of None says that the context is full."""
    partners = {MODEL: iter(replies), USER: iter(user)}
    log, sent, error = Log(), None, None
    try:
        while True:
            wish = course.throw(error) if error else course.send(sent)
            error = None
            if isinstance(wish, Work):
                try:
                    sent = wish.do()
                except Exception as raised:
                    error = raised
                continue
            assert isinstance(wish, Say)
            log.says.append(wish)
            text = next(partners[wish.to])
            sent = None if text is None else generation(text)
    except StopIteration as end:
        return end.value, log


class Script:
    """A speaker of replies given by item, which it knows by the name in a reply's stream."""

    def __init__(self, suite: str, replies: Mapping[str, Sequence[str]]) -> None:
        self._replies = {stream(0, f"{suite}/{item}")[1]: texts for item, texts in replies.items()}
        self._given: dict[int, Generation] = {}
        self._count = 0

    def converse(self) -> Script:
        return self

    def open(self, tools: object = ()) -> int:
        self._count += 1
        return self._count

    def ask(self, dialogue: int, messages: object, named: tuple[int, ...], budget: object) -> None:
        _, item, _, number = named
        self._given[dialogue] = generation(self._replies[item][number])

    def answers(self) -> dict[int, Generation]:
        given, self._given = self._given, {}
        return given

    def failure(self, dialogue: int) -> None:
        """It never fails."""

    def records(self, dialogue: int) -> tuple[()]:
        return ()

    def retire(self, dialogues: object) -> None:
        """Nothing is kept."""


def written(*calls: Call, tools: Tools = ()) -> str:
    """Calls as a model writes them; `tools` name the parameters of values given by position."""
    order = {
        each["function"]["name"]: list(each["function"]["parameters"]["properties"])
        for each in tools
    }
    return "\n".join(
        call_text(
            call.name,
            {**dict(zip(order.get(call.name, ()), call.values, strict=False)), **call.named},
        )
        for call in calls
    )


def call_text(name: str, arguments: Mapping[str, object]) -> str:
    called = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{called}\n</tool_call>"


def prompt(say: Say) -> str:
    """A first message as a model reads it, in a template of the published form."""
    source = (Path(__file__).parents[1] / "policy" / "golden" / "instruct.jinja").read_text()
    template = templates.Template(source, "instruct.jinja", (), {})
    return template.render(say.messages, say.tools or ()).plain()


def is_golden(name: str, say: Say) -> bool:
    """Whether a first message reads as in `golden/`; SPADE_WRITE_GOLDENS=1 writes it there."""
    file = Path(__file__).parent / "golden" / f"{name}.txt"
    if os.environ.get("SPADE_WRITE_GOLDENS"):
        file.write_text(prompt(say), encoding="utf-8")
    return prompt(say) == file.read_text(encoding="utf-8")
