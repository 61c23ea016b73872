"""The designer's part of an iteration: what to ask for, and asking for it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from spade_jax.design import memory, prompts, skills
from spade_jax.design.corpus import Corpus
from spade_jax.envs import parsers
from spade_jax.policy.conversation import Budget, Speaker, reply_each, reply_once, stream
from spade_jax.types import (
    CUT_OFF,
    Design,
    DesignTask,
    Generation,
    HostState,
    Message,
    Reason,
    StopReason,
    UsageError,
    Verdict,
)


def draw_tasks(
    host: HostState,
    *,
    seed: int,
    num_envs: int,
    active: Sequence[str],
    positives: int,
    negatives: int,
    per_prompt: int = 1,
) -> list[DesignTask]:
    """One task a slot, still without its document: a skill, and examples from memory.

    Groups of `per_prompt` neighbouring slots share these, and with them their prompt. The groups
    take the active skills in turn, from a random one on, so that each is asked for equally often.
    `positives` and `negatives` are 0 in the ablation without memory.
    """
    first = random.Random(f"{seed}/skills/{host.iteration}").randrange(len(active))
    tasks = []
    for slot in range(num_envs):
        group = slot // per_prompt
        leader = group * per_prompt
        rng = random.Random(f"{seed}/draw/{host.iteration}/{leader}")
        skill = active[(first + group) % len(active)]
        tasks.append(
            DesignTask(
                iteration=host.iteration,
                slot=slot,
                skill=skill,
                kind=skills.KINDS[skill],
                document=None,
                positives=memory.positive_seeds(host.memory, skill, positives, rng),
                negatives=memory.negative_examples(host.memory, skill, negatives, rng),
                prompt=f"{host.iteration:06d}-{leader:03d}",
            )
        )
    return tasks


def read_documents(
    tasks: Sequence[DesignTask], corpus: Corpus | None, position: int, per_prompt: int = 1
) -> list[DesignTask]:
    """The tasks, each with the document of its prompt; those of slot 0 have the one at `position`.

    `corpus` is None in the ablation without it.
    """
    if corpus is None:
        return list(tasks)
    return [
        dataclasses.replace(task, document=corpus.document(position + task.slot // per_prompt))
        for task in tasks
    ]


def design(
    speaker: Speaker,
    tasks: Sequence[DesignTask],
    budget: Budget,
    *,
    seed: int,
    prompt_set: str,
    code_characters: int,
    hint_source: str = "method",
) -> list[Design]:
    """The designer's reply to every task, in order, with the program and the hint found in it."""
    dialogues = speaker.converse()
    asked = {dialogues.open(): task for task in tasks}
    said = {
        i: prompts.designer_messages(task, prompt_set, code_characters, hint_source)
        for i, task in asked.items()
    }
    streams = {i: stream(seed, "design", t.iteration, t.slot) for i, t in asked.items()}
    replies = reply_each(dialogues, said, streams, budget)
    designs = []
    for i, task in asked.items():
        reply = replies[i]
        if reply is None and (failure := dialogues.failure(i)):
            raise ConnectionError(
                f"the designer did not reply in slot {task.slot}: {failure.message}"
            )
        if reply is None:
            raise UsageError(
                f"the design prompt of slot {task.slot} leaves no room for a reply; lower "
                "corpus.max_words or memory.code_characters, or raise learn.row_tokens"
            )
        [record] = dialogues.records(i)
        code, hint = _read(reply, hint_source)
        designs.append(
            Design(
                task=task, reply=reply.text, stop=reply.stop, record=record, code=code, hint=hint
            )
        )
    dialogues.retire(list(asked))
    return designs


def repair(
    speaker: Speaker,
    designs: Sequence[Design],
    verdicts: Sequence[Verdict],
    budget: Budget,
    *,
    seed: int,
    prompt_set: str,
    code_characters: int,
    hint_source: str,
) -> list[Design | None]:
    """Rejected designs as they are after one more reply; None where no room was left for it.

    The designer reads its task, its last reply and the verdict on that, in a dialogue of its own
    whose tokens are not kept: only the first reply is trained on.
    """
    how = (prompt_set, code_characters, hint_source)
    said = [repair_messages(d, v, *how) for d, v in zip(designs, verdicts, strict=True)]
    streams = [stream(seed, "repair", d.task.iteration, d.task.slot, d.repairs) for d in designs]
    repaired: list[Design | None] = []
    replies = reply_once(speaker, said, streams, budget)
    for design, verdict, reply in zip(designs, verdicts, replies, strict=True):
        if reply is None:
            repaired.append(None)
            continue
        code, hint = _read(reply, hint_source)
        repaired.append(
            dataclasses.replace(
                design,
                code=code,
                hint=hint,
                repairs=design.repairs + 1,
                mended=reply.text,
                first=design.first or verdict.reason,
            )
        )
    return repaired


def repair_messages(
    design: Design, verdict: Verdict, prompt_set: str, code_characters: int, hint_source: str
) -> tuple[Message, ...]:
    """The task, the last reply to it, and why that was rejected."""
    reply = Message(role="assistant", content=design.mended or design.reply)
    return (
        *prompts.designer_messages(design.task, prompt_set, code_characters, hint_source),
        reply,
        prompts.repair_message(verdict, prompt_set, hint_source),
    )


def check_hint(design: Design, hint_source: str) -> Verdict | None:
    """The verdict on a program that came without the hint that was to stand beside it."""
    if hint_source != "reply" or not design.code or design.hint:
        return None
    return Verdict(
        reason=Reason.EXTRACT,
        message="The reply holds a program but no hint; write one paragraph outside of the block "
        "that starts with `Hint:` at the beginning of a line.",
        phase="source",
    )


def _read(reply: Generation, hint_source: str) -> tuple[str | None, str | None]:
    """Program and hint in a reply; one that was cut off has neither."""
    if reply.stop is not StopReason.STOP:
        return CUT_OFF, None
    hint = parsers.extract_hint(reply.text) if hint_source == "reply" else None
    return parsers.extract_code(reply.text), hint
