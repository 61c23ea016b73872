"""Episodes: a speaker plays sandboxed environments, turn by turn, in both arms.

An episode is a coroutine that yields what it waits for, a call of its environment or a reply of the
speaker, and is resumed with the answer. `play` keeps many of them going at a `table`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

from spade_jax.design import prompts
from spade_jax.envs import leaks, parsers
from spade_jax.envs.sandbox import Call, Hint, Instance, Reset, Sandbox, Solution, Step
from spade_jax.learn.returns import episode_return
from spade_jax.play import table
from spade_jax.play.table import SPEAKER, Ask, Ended
from spade_jax.policy.conversation import Budget, Speaker, stream
from spade_jax.types import (
    Arm,
    Environment,
    Episode,
    EpisodeEnd,
    Failure,
    StopReason,
    Turn,
)

ARMS = tuple(Arm)


@dataclasses.dataclass(frozen=True)
class Job:
    """One episode to play."""

    environment: Environment
    arm: Arm
    play: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Rules:
    """Limits and conventions of play, from the config.

    Without `overlap` all environments that were called answer before the speaker goes on, so that
    order and shapes, and with them every bit, follow from the jobs. With it the speaker goes on
    while environments work.
    """

    prompts: str
    max_turns: int
    budget: Budget
    return_mode: str
    discount: float
    overlap: bool = False


def play_seed(seed: int, environment_id: str, iteration: int, play: int) -> int:
    """The seed of an instance, below 2**31: a stable hash, the same for both arms."""
    text = f"{seed}/{environment_id}/{iteration}/{play}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


# -- one episode ------------------------------------------------------------------------------


Script = Generator[Call | Ask, Any, Episode]  # its episode is still without the tokens


def script(job: Job, rules: Rules, seed: int, iteration: int) -> Script:
    """The course of one episode."""
    kind = job.environment.kind
    begun = yield from _begin(job)
    if isinstance(begun, Failure):
        return _episode(job, rules, [], EpisodeEnd.FAILED, failure=begun)
    observation, hint, hint_leaks = begun
    told = {"hint": hint, "hint_leaks": hint_leaks}
    said = prompts.agent_messages(kind, observation, hint, rules.prompts)
    turns: list[Turn] = []
    end = EpisodeEnd.TURNS
    for number in range(rules.max_turns):
        name = job.environment.id
        reply = yield Ask(
            said, stream(seed, name, iteration, ARMS.index(job.arm), job.play, number)
        )
        if reply is None:
            end = EpisodeEnd.TOKENS
            break
        if isinstance(reply, Failure):
            return _episode(job, rules, turns, EpisodeEnd.FAILED, failure=reply, **told)
        action = parsers.parse_action(kind, reply.text)
        turns.append(Turn(observation=observation, reply=reply.text, action=action, reward=0.0))
        if action is None:
            if reply.stop is StopReason.LENGTH:
                end = EpisodeEnd.TOKENS
                break
            observation = prompts.no_action(kind, rules.prompts)
        else:
            result = yield Step(action)
            if isinstance(result, Failure):
                return _episode(job, rules, turns, EpisodeEnd.FAILED, failure=result, **told)
            turns[-1] = dataclasses.replace(turns[-1], reward=result.reward)
            if result.terminated or result.truncated:
                end = EpisodeEnd.TERMINATED if result.terminated else EpisodeEnd.TURNS
                break
            observation = result.observation
        said = prompts.next_messages(kind, observation, rules.prompts)
    return _episode(job, rules, turns, end, **told)


def _begin(job: Job) -> Generator[Call, Any, Failure | tuple[str, str | None, bool]]:
    """First observation, hint in the hinted arm, and whether the hint gives the answer away.

    The hint written for the environment, or else the one that its program has for the instance.
    """
    result = yield Reset(job.seed)
    if isinstance(result, Failure):
        return result
    if job.arm is Arm.PLAIN:
        return result.observation, None, False
    hint = job.environment.hint or (yield Hint())
    if hint is None or isinstance(hint, Failure):
        return hint or (result.observation, None, False)
    solution = yield Solution()
    if isinstance(solution, Failure):
        return solution
    leak = solution is not None and leaks.hint_leaks(hint, solution, result.observation)
    return result.observation, hint, leak


def _episode(
    job: Job,
    rules: Rules,
    turns: Sequence[Turn],
    end: EpisodeEnd,
    *,
    failure: Failure | None = None,
    hint: str | None = None,
    hint_leaks: bool = False,
) -> Episode:
    value = None
    if end is not EpisodeEnd.FAILED:
        value = episode_return(
            [turn.reward for turn in turns],
            terminated=end is EpisodeEnd.TERMINATED,
            mode=rules.return_mode,
            discount=rules.discount,
        )
    return Episode(
        environment_id=job.environment.id,
        arm=job.arm,
        play=job.play,
        seed=job.seed,
        turns=tuple(turns),
        end=end,
        records=(),
        episode_return=value,
        hint=hint,
        hint_leaks=hint_leaks,
        failure=failure,
    )


# -- many episodes ----------------------------------------------------------------------------


def play(
    speaker: Speaker,
    sandbox: Sandbox,
    jobs: Sequence[Job],
    rules: Rules,
    *,
    seed: int,
    iteration: int,
    seats: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Episode]:
    """Play every job, at most `seats` at a time, and return the episodes in the jobs' order.

    `progress` is told how many episodes are over whenever some have ended.
    """
    episodes: dict[int, Episode] = {}

    def ended(some: dict[int, Ended]) -> None:
        for number, end in some.items():
            episodes[number] = dataclasses.replace(end.value, records=end.records)
        progress(len(episodes))

    table.drive(
        {SPEAKER: speaker},
        _Environments(sandbox, jobs),
        ((number, script(job, rules, seed, iteration)) for number, job in enumerate(jobs)),
        rules.budget,
        seats=seats,
        patient=not rules.overlap,
        ended=ended,
    )
    return [episodes[i] for i in range(len(jobs))]


class _Environments:
    """The environments of jobs by number, each in an instance of its own."""

    def __init__(self, sandbox: Sandbox, jobs: Sequence[Job]) -> None:
        self._sandbox, self._jobs = sandbox, jobs
        self._instances: dict[int, Instance] = {}

    def submit(self, number: int, wish: Call, note: Callable[[Any], None]) -> None:
        if number not in self._instances:
            self._instances[number] = open_instance(self._sandbox, self._jobs[number].environment)
        self._sandbox.submit(self._instances[number], wish, note)

    def poll(self, seconds: float | None) -> None:
        self._sandbox.poll(seconds)

    def clear(self, numbers: Sequence[int]) -> None:
        self._sandbox.close_instances([self._instances.pop(number) for number in numbers])


def open_instance(sandbox: Sandbox, environment: Environment) -> Instance:
    """An instance of an accepted environment."""
    return sandbox.open(
        environment.code, environment.kind, trusted=True, modules=environment.modules
    )
