"""The designer's part of an iteration: what to ask for, and asking for it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from spade_jax.design import memory, prompts, skills
from spade_jax.design.corpus import Corpus
from spade_jax.envs import parsers
from spade_jax.policy.conversation import Budget, Speaker, reply_each, stream
from spade_jax.types import CUT_OFF, Design, DesignTask, HostState, StopReason, UsageError


def draw_tasks(
    host: HostState,
    corpus: Corpus | None,
    *,
    seed: int,
    num_envs: int,
    active: Sequence[str],
    positives: int,
    negatives: int,
) -> list[DesignTask]:
    """One task a slot: a skill, the corpus's next document, examples from memory.

    Slots take the active skills in turn, from a random one on, so that each is asked for equally
    often. `corpus` is None, and `positives` and `negatives` are 0, in the ablations without them.
    """
    first = random.Random(f"{seed}/skills/{host.iteration}").randrange(len(active))
    tasks = []
    for slot in range(num_envs):
        rng = random.Random(f"{seed}/draw/{host.iteration}/{slot}")
        skill = active[(first + slot) % len(active)]
        tasks.append(
            DesignTask(
                iteration=host.iteration,
                slot=slot,
                skill=skill,
                kind=skills.KINDS[skill],
                document=corpus.document(host.corpus_position + slot) if corpus else None,
                positives=memory.positive_seeds(host.memory, skill, positives, rng),
                negatives=memory.negative_examples(host.memory, skill, negatives, rng),
            )
        )
    return tasks


def design(
    speaker: Speaker,
    tasks: Sequence[DesignTask],
    budget: Budget,
    *,
    seed: int,
    prompt_set: str,
    code_characters: int,
) -> list[Design]:
    """The designer's reply to every task, in order, with the program found in it."""
    dialogues = speaker.converse()
    asked = {dialogues.open(): task for task in tasks}
    said = {
        i: prompts.designer_messages(task, prompt_set, code_characters) for i, task in asked.items()
    }
    streams = {i: stream(seed, "design", t.iteration, t.slot) for i, t in asked.items()}
    replies = reply_each(dialogues, said, streams, budget)
    designs = []
    for i, task in asked.items():
        reply = replies[i]
        if reply is None:
            raise UsageError(
                f"the design prompt of slot {task.slot} leaves no room for a reply; lower "
                "corpus.max_words or memory.code_characters, or raise learn.row_tokens"
            )
        [record] = dialogues.records(i)
        designs.append(
            Design(
                task=task,
                reply=reply.text,
                stop=reply.stop,
                record=record,
                code=parsers.extract_code(reply.text) if reply.stop is StopReason.STOP else CUT_OFF,
            )
        )
    return designs
