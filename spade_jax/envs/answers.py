"""Whether a mathematical answer equals the reference, decided by math_verify in killable workers.

    with AnswerChecker() as checker:
        [score] = checker.check([("1/2", r"\\frac{2}{4}")])

Nothing a model wrote is parsed in the caller's process. An answer on which math_verify hangs or
breaks counts as wrong, and says why; it costs its worker, which is replaced.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from collections.abc import Sequence
from typing import Self

from spade_jax.envs import contract
from spade_jax.envs.sandbox import Answer, Instance, Reset, Sandbox, Step
from spade_jax.types import Failure, Kind, UsageError, dataclass

_PROGRAM = r"""
import json
import math_verify


def read(text):
    marked = text if "$" in text else "$" + text + "$"
    return math_verify.parse(marked, parsing_timeout=None)


class AnswerEnv:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        reference, answer = map(read, json.loads(action))
        right = bool(answer) and math_verify.verify(reference, answer, timeout_seconds=None)
        return "checked", float(right), False, False, {}
"""
_MEMORY_MB = 1024
_CPU_SECONDS = 1_000_000.0  # a worker serves many answers; each has its own limit


@dataclass
class Score:
    """Whether an answer is right; `failure` where checking it broke, which counts as wrong."""

    right: bool
    failure: Failure | None = None


class AnswerChecker:
    """Workers that check answers, each within `seconds`; UsageError without math_verify."""

    def __init__(self, *, seconds: float = 5.0, workers: int | None = None) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UsageError(
                "checking answers needs math-verify, which is not installed; "
                "run pip install -e '.[math]' in the repository."
            )
        self._workers = workers or os.cpu_count() or 1
        self._sandbox = Sandbox(
            step_seconds=seconds, cpu_seconds=_CPU_SECONDS, memory_mb=_MEMORY_MB
        )
        self._idle: list[Instance] = []
        self._room: asyncio.Semaphore | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._sandbox.close()

    def check(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """Scores of (reference, answer) pairs, in order."""
        scores: list[Score] = []
        for start in range(0, len(pairs), self._workers):
            some = pairs[start : start + self._workers]
            workers = [self._take() for _ in some]
            resets = self._sandbox.exchange([(worker, Reset(0)) for worker in workers])
            answers = self._sandbox.exchange(
                [
                    (worker, Step(json.dumps(pair)))
                    for worker, pair in zip(workers, some, strict=True)
                ]
            )
            for worker, reset, answer in zip(workers, resets, answers, strict=True):
                scores.append(self._give_back(worker, reset, answer))
        return scores

    async def score(self, reference: str, answer: str) -> Score:
        """The score of one answer; any number of coroutines of one loop may ask at once."""
        self._room = self._room or asyncio.Semaphore(self._workers)
        async with self._room:
            worker = self._take()
            reset = await self._sandbox.ask(worker, Reset(0))
            step = await self._sandbox.ask(worker, Step(json.dumps((reference, answer))))
            return self._give_back(worker, reset, step)

    def _take(self) -> Instance:
        if self._idle:
            return self._idle.pop()
        modules = ("numpy", *contract.MATH_MODULES)
        return self._sandbox.open(_PROGRAM, Kind.GAME, trusted=True, modules=modules)

    def _give_back(
        self, worker: Instance, reset: Answer | Failure, answer: Answer | Failure
    ) -> Score:
        broken = next((a for a in (reset, answer) if isinstance(a, Failure)), None)
        if broken is not None:
            return Score(right=False, failure=broken)
        self._idle.append(worker)
        return Score(right=answer.reward == 1.0)
