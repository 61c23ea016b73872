"""Episodes: a speaker plays sandboxed environments, turn by turn, in both arms.

An episode is a coroutine that yields what it waits for, a call of its environment or a reply of the
speaker, and is resumed with the answer. `play` keeps many of them going: whoever has been answered
takes the next turn, and a new episode begins where one has ended.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

from spade_jax.design import prompts
from spade_jax.envs import leaks, parsers
from spade_jax.envs.sandbox import Call, Hint, Instance, Reset, Sandbox, Solution, Step
from spade_jax.learn.returns import episode_return
from spade_jax.policy.conversation import Budget, Speaker, stream
from spade_jax.types import (
    Arm,
    Environment,
    Episode,
    EpisodeEnd,
    Failure,
    FailureKind,
    Message,
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


@dataclasses.dataclass(frozen=True)
class Ask:
    """An episode's wish for the speaker's reply to new messages, in its turn's random stream."""

    messages: tuple[Message, ...]
    stream: tuple[int, ...]


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
    table = _Table(speaker, sandbox, rules)
    waiting = collections.deque(enumerate(jobs))
    while waiting or table.seats:
        while waiting and len(table.seats) < seats:
            number, job = waiting.popleft()
            table.seat(number, job, script(job, rules, seed, iteration))
        table.serve()
        table.listen()
        if table.clear():
            progress(len(table.episodes))
    return [table.episodes[i] for i in range(len(jobs))]


@dataclasses.dataclass
class _Seat:
    """An episode in progress, its environment and its dialogue."""

    script: Script
    instance: Instance
    dialogue: int


class _Table:
    """The episodes in progress, each resumed with what it waits for."""

    def __init__(self, speaker: Speaker, sandbox: Sandbox, rules: Rules) -> None:
        self._sandbox, self._budget, self._patient = sandbox, rules.budget, not rules.overlap
        self._dialogues = speaker.converse()
        self.seats: dict[int, _Seat] = {}
        self.episodes: dict[int, Episode] = {}
        self._speaking: dict[int, int] = {}  # dialogue -> seat, of those that wait for a reply
        self._calling: set[int] = set()  # seats whose environment has been called ...
        self._called: dict[int, Any] = {}  # ... and has answered
        self._over: list[int] = []

    def seat(self, number: int, job: Job, course: Script) -> None:
        """Begin an episode."""
        environment = job.environment
        instance = self._sandbox.open(
            environment.code, environment.kind, trusted=True, modules=environment.modules
        )
        self.seats[number] = _Seat(course, instance, self._dialogues.open())
        self._resume(number, None)

    def serve(self) -> None:
        """Take in what environments have answered; wait for all of them, or where none speaks."""
        while self._calling:
            wait = self._patient or not (self._speaking or self._called)
            self._sandbox.poll(None if wait else 0)
            if self._patient and len(self._called) < len(self._calling):
                continue
            answered = dict(self._called)
            self._called.clear()
            self._calling -= answered.keys()
            for number in sorted(answered):
                self._resume(number, answered[number])
            if not self._patient and (answered or self._speaking):
                break

    def listen(self) -> None:
        """Let the speaker go on, and take in the replies that are complete."""
        if self._speaking:
            for dialogue, reply in sorted(self._dialogues.answers().items()):
                number = self._speaking.pop(dialogue)
                self._resume(number, self._failure(dialogue) if reply is None else reply)

    def _failure(self, dialogue: int) -> Failure | None:
        """What the speaker failed with where it did not reply; None where no room was left."""
        failure = self._dialogues.failure(dialogue)
        if failure is None:
            return None
        return Failure(phase="reply", kind=FailureKind.SPEAKER, message=failure.message)

    def clear(self) -> int:
        """Make room where episodes have ended; how many they were."""
        over = [self.seats.pop(number) for number in self._over]
        self._sandbox.close_instances([seat.instance for seat in over])
        self._dialogues.retire([seat.dialogue for seat in over])
        self._over.clear()
        return len(over)

    def _resume(self, number: int, answer: Any) -> None:
        """Give an episode what it waited for, and see to what it wants next."""
        seat = self.seats[number]
        try:
            wish = seat.script.send(answer)
        except StopIteration as end:
            records = self._dialogues.records(seat.dialogue)
            self.episodes[number] = dataclasses.replace(end.value, records=records)
            self._over.append(number)
            return
        if isinstance(wish, Ask):
            self._speaking[seat.dialogue] = number
            self._dialogues.ask(seat.dialogue, wish.messages, wish.stream, self._budget)
        else:
            self._calling.add(number)
            note = functools.partial(self._called.__setitem__, number)
            self._sandbox.submit(seat.instance, wish, note)
