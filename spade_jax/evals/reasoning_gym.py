"""Reasoning Gym in its hard settings: 100 generated tasks in four groups."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spade_jax.envs import adapters
from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.evals import prompts, questions
from spade_jax.evals.suites import Act, Course, Item, Outcome, Say, Settings
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Failure, Kind, Message

HARD = Path(__file__).parent / "assets" / "reasoning_gym_hard.json"
GROUPS = {
    "math": "RG Math",
    "algorithmic": "RG Algorithmic",
    "cognition": "RG Cognition",
    "logic": "RG Logic",
}
SEED, SIZE, EPISODES = 42, 500, 8
WON = 1 - 1e-9
SETTINGS = Settings(
    plays=1,
    sampling=Sampling(temperature=0.6, top_p=0.8, top_k=20),
    reply=8192,
    context=8192 + 24_576,  # some questions are long tables of digits
)
# Generating takes longer and more than a step of self-play: knight_swap about 4 s on a free core.
LIMITS = {"step_seconds": 120.0, "cpu_seconds": 240.0, "memory_mb": 1024, "max_observation": 2**18}

_PROGRAM = (
    """
import json
import reasoning_gym


class HardEnv:
    def reset(self, seed=None):
        self.data = reasoning_gym.create_dataset($name, seed=$data_seed, size=$size, **$options)
        self.entry = self.data[seed]
        return self.entry["question"], {}
"""
    + adapters.REASONING_GYM_STEP
    + """
    def best(self):
        told = self.entry["metadata"]
        if "possible_answer" in told:
            return json.dumps(told["possible_answer"])
        return told.get("example_answer") or self.entry["answer"]

    def solution(self):
        answer = self.best()
        return None if answer is None else [str(answer)]
"""
)


def hard_tasks() -> dict[str, dict[str, Any]]:
    """Each task's `group` and `params`."""
    return json.loads(HARD.read_text(encoding="utf-8"))


def program(task: str, params: Mapping[str, Any]) -> str:
    """A task as an environment of one turn; the seed of `reset` is the item's number."""
    template = string.Template(_PROGRAM.lstrip())
    return template.substitute(
        name=repr(task), options=repr(dict(params)), data_seed=SEED, size=SIZE
    )


@dataclasses.dataclass(frozen=True)
class ReasoningGym:
    r"""The hard split of reasoning-gym (arXiv 2505.24760, appendix A.3; groups of 2601.22975).

    Settings, as published for the method: data sets of seed 42 and size 500, avg over 8 episodes,
    temperature 0.6, top-p 0.8, top-k 20, 8,192 tokens of a reply. The episodes of a task are the
    first 8 items of its data set, as gem's environments go through them, each played once. A play
    is won with a score of at least 1 - 1e-9: parts of it are easy to get. The answer is the last
    `<answer>` outside thinking, else the last `\boxed{}`. The prompt is our own.

    Items are made, and answers scored, in sandboxed processes, as they are needed.
    """

    sandbox: Sandbox
    modules: tuple[str, ...]
    name: str = "reasoning_gym"
    settings: Settings = SETTINGS

    def items(self) -> Sequence[Item]:
        """The first item of every task, then the second, and so on."""
        return [
            Item(
                id=f"{task}/{number}",
                group=GROUPS[about["group"]],
                course=functools.partial(self._course, program(task, about["params"]), number),
            )
            for number in range(EPISODES)
            for task, about in hard_tasks().items()
        ]

    def _course(self, code: str, number: int, play: int) -> Course:
        instance = self.sandbox.open(code, Kind.GAME, modules=self.modules)
        try:
            asked = yield Act(instance=instance, call=Reset(number))
            if isinstance(asked, Failure):
                return Outcome(score=0.0, won=False, failed=f"no question: {asked.message}")
            text = prompts.fill("reasoning_gym", question=asked.observation)
            reply = yield Say(messages=(Message(role="user", content=text),))
            answer = questions.final_answer(reply.text)
            if answer is None:
                return Outcome(score=0.0, won=False)
            scored = yield Act(instance=instance, call=Step(answer))
            if isinstance(scored, Failure):  # by the answer: the question was made in time
                details = {"scoring": scored.message}
                return Outcome(score=0.0, won=False, answer=answer, details=details)
            score = min(max(scored.reward, 0.0), 1.0)
            return Outcome(score=score, won=score >= WON, answer=answer)
        finally:
            self.sandbox.close_instances([instance])


@contextlib.contextmanager
def open_reasoning_gym() -> Iterator[ReasoningGym]:
    """The suite, with a sandbox of its own; UsageError where the package is not installed."""
    modules = adapters.to_import(["reasoning_gym"])
    with Sandbox(**LIMITS) as sandbox:
        yield ReasoningGym(sandbox, modules)
