"""Messages of both roles, of hint writer and judge, from the text files of a set in `prompts/`.

A set is a folder. It holds `<role>_user.txt` and, where a role has a system message,
`<role>_system.txt`; other files are parts these include.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from spade_jax import types
from spade_jax.design import memory

_FOLDER = Path(__file__).parent / "prompts"
MESSAGE_CHARACTERS = 400  # of a verdict, where it is put to the designer


def sets() -> tuple[str, ...]:
    """Names of the sets there are."""
    return tuple(sorted(each.name for each in _FOLDER.iterdir() if each.is_dir()))


def designer_messages(
    task: types.DesignTask, set_name: str, code_characters: int, hint_source: str = "method"
) -> tuple[types.Message, ...]:
    """What the designer reads: the task, its document and examples from memory.

    Each example's code is cut to `code_characters` at a line end. The reply is a fenced Python
    block in every set. By `hint_source` a method `hint` is asked for in it (method), a section
    `Hint:` beside it (reply), or neither.
    """
    return _messages(
        set_name,
        types.Role.DESIGNER,
        hint=hint_source,
        kind=task.kind,
        skill=task.skill,
        document="" if task.document is None else task.document.text,
        positives=[_example(each, code_characters) for each in task.positives],
        negatives=[_example(each, code_characters) for each in task.negatives],
    )


def repair_message(verdict: types.Verdict, set_name: str, hint_source: str) -> types.Message:
    """What the designer reads after a reply that was rejected."""
    message = verdict.message[:MESSAGE_CHARACTERS]
    [said] = _messages(set_name, "repair", reason=verdict.reason, message=message, hint=hint_source)
    return said


def hint_messages(kind: types.Kind, code: str, set_name: str) -> tuple[types.Message, ...]:
    """What the writer of an environment's one hint reads."""
    return _messages(set_name, "hint", kind=kind, code=code.strip())


def judge_messages(
    task: types.DesignTask, code: str, transcript: str, set_name: str
) -> tuple[types.Message, ...]:
    """What the judge of an environment reads: its program and one play of it that was won."""
    return _messages(
        set_name,
        "judge",
        kind=task.kind,
        skill=task.skill,
        code=code.strip(),
        transcript=transcript,
    )


def agent_messages(
    kind: types.Kind,
    observation: str,
    hint: str | None,
    set_name: str,
    tools: Sequence[Mapping[str, object]] = (),
) -> tuple[types.Message, ...]:
    """What the agent reads before its first reply.

    `hint` is None in the plain arm; in the hinted one it is the last line of the observation.
    `tools` are JSON schemas of the functions a tool-use environment offers.
    """
    return _messages(
        set_name,
        types.Role.AGENT,
        kind=kind,
        observation=observation if hint is None else f"{observation}\nHint: {hint.strip()}",
        tools=[json.dumps(each, ensure_ascii=False) for each in tools],
    )


def next_messages(kind: types.Kind, observation: str, set_name: str) -> tuple[types.Message, ...]:
    """What the agent reads after an action: the environment's answer."""
    rendered = _templates(set_name).get_template("next_user.txt")
    content = rendered.render(kind=kind, observation=observation)
    return (types.Message(role="user", content=content),)


def no_action(kind: types.Kind, set_name: str) -> str:
    """What stands in for an observation after a reply that held no action."""
    return _templates(set_name).get_template("no_action.txt").render(kind=kind)


def _example(record: types.MemoryRecord, code_characters: int) -> dict[str, object]:
    return {
        "code": memory.cut(record.code, code_characters),
        "win_rate": record.win_rate,
        "regret": record.regret,
        "complaint": memory.complaint(record),
    }


def _messages(set_name: str, role: str, **values: object) -> tuple[types.Message, ...]:
    templates = _templates(set_name)
    return tuple(
        types.Message(role=speaker, content=templates.get_template(name).render(values))
        for speaker in ("system", "user")
        if (name := f"{role}_{speaker}.txt") in templates.list_templates()
    )


@functools.cache
def _templates(set_name: str) -> jinja2.Environment:
    """The set's templates; a name a template does not know is an error."""
    if set_name not in sets():
        raise ValueError(
            f"no set of prompts is named {set_name!r}: "
            f"set config.design.prompts to one of {', '.join(sets())}"
        )
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / set_name),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
