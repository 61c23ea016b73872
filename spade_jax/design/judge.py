"""The optional last check of validation: a reader says whether an environment is worth playing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from spade_jax.design import memory, prompts
from spade_jax.envs import parsers
from spade_jax.envs.sandbox import Instance, Played, Rollout, Rollouts, Sandbox
from spade_jax.policy.conversation import Budget, Speaker, reply_once, stream
from spade_jax.types import Design, Failure, Generation, Reason, StopReason, Verdict

SOURCES = ("none", "self", "endpoint")
SEED = 1_000  # of the play shown; validation has played it
WHY = 300  # characters of the judge's reason in a verdict

_VERDICT = re.compile(r"\bverdict[\s*_`]*:[\s*_`]*(yes|no)\b|\A(yes|no)\b", re.IGNORECASE)


def review(
    speaker: Speaker,
    sandbox: Sandbox,
    designs: Sequence[Design],
    verdicts: Sequence[Verdict],
    budget: Budget,
    *,
    seed: int,
    prompt_set: str,
    play_characters: int,
) -> list[Verdict]:
    """The verdicts after the judge has read all accepted designs, each with a play that is won.

    The play is cut to `play_characters` at a line end.
    One that gets no readable answer (an endpoint that failed, a reply that was cut off, a play
    that broke) stays accepted: no check has found a fault in it.
    """
    chosen = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
    solved = solved_plays(sandbox, [designs[i] for i in chosen])
    plays = dict(zip(chosen, solved, strict=True))
    asked = [i for i in chosen if plays[i] is not None]
    said = [
        prompts.judge_messages(
            designs[i].task, designs[i].code, memory.cut(plays[i], play_characters), prompt_set
        )
        for i in asked
    ]
    streams = [
        stream(seed, "judge", design.task.iteration, design.task.slot, design.repairs)
        for design in (designs[i] for i in asked)
    ]
    replies = dict(zip(asked, reply_once(speaker, said, streams, budget), strict=True))
    reviewed = list(verdicts)
    for i in chosen:
        answer, why = read(replies.get(i))
        reviewed[i] = dataclasses.replace(verdicts[i], judge=answer)
        if answer == "no":
            message = f"A judge who read the program and a play of it said no: {why} Mend that."
            reviewed[i] = dataclasses.replace(
                reviewed[i], reason=Reason.JUDGE, message=message, phase="plays"
            )
    return reviewed


def read(reply: Generation | None) -> tuple[str, str]:
    """The judge's answer, yes, no or unknown, and the line it gives as the reason.

    The last `Verdict:` counts; where there is none, a reply that begins with yes or no.
    """
    if reply is None or reply.stop is not StopReason.STOP:
        return "unknown", ""
    text = parsers.spoken(reply.text)
    found = list(_VERDICT.finditer(text))
    if not found:
        return "unknown", ""
    lines = [line.strip() for line in text[: found[-1].start()].splitlines()]
    why = next((line for line in reversed(lines) if line.strip("*_`#- ")), "It gave no reason.")
    return (found[-1][1] or found[-1][2]).lower(), why[:WHY]


def solved_plays(sandbox: Sandbox, designs: Sequence[Design]) -> list[str | None]:
    """One instance of each program as its own solution wins it, in text; None where that breaks."""
    plays: list[str | None] = []
    for start in range(0, len(designs), sandbox.max_instances):
        wave = designs[start : start + sandbox.max_instances]
        instances = [sandbox.open(design.code, design.task.kind) for design in wave]
        try:
            survey = _roll(sandbox, instances, [Rollout(seed=SEED, ask=True)] * len(wave))
            solutions = [play.solution or () if play else () for play in survey]
            again = [Rollout(seed=SEED, actions=actions) for actions in solutions]
            solved = _roll(sandbox, instances, again)
        finally:
            sandbox.close_instances(instances)
        plays += [
            transcript(actions, play) if play else None
            for actions, play in zip(solutions, solved, strict=True)
        ]
    return plays


def _roll(
    sandbox: Sandbox, instances: Sequence[Instance], rollouts: Sequence[Rollout]
) -> list[Played | None]:
    """One play in each instance; None where it broke."""
    calls = [(i, Rollouts(plays=(r,))) for i, r in zip(instances, rollouts, strict=True)]
    answers = sandbox.exchange(calls)
    plays = [None if isinstance(answer, Failure) else answer[0] for answer in answers]
    return [None if play is None or play.failure else play for play in plays]


def transcript(actions: Sequence[str], play: Played) -> str:
    """A play as text."""
    told = [play.steps[0].observation]
    for action, step in zip(actions, play.steps[1:], strict=False):
        told += [f"> {action}", step.observation, f"(reward {step.reward:g})"]
    return "\n".join(told)
