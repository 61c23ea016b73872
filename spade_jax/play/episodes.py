"""Episodes: the turn loop between a speaker and sandboxed environments, both arms.

All episodes of a wave take their turns in rounds: one batched reply of the speaker, one exchange
with all environments. Order and shapes follow from the jobs alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from spade_jax.design import prompts
from spade_jax.envs import leaks, parsers
from spade_jax.envs.sandbox import Hint, Instance, Reset, Sandbox, Solution, Step
from spade_jax.learn.returns import episode_return
from spade_jax.policy.conversation import Budget, Dialogues, Speaker, stream
from spade_jax.types import (
    Arm,
    Environment,
    Episode,
    EpisodeEnd,
    Failure,
    Kind,
    Message,
    StepResult,
    StopReason,
    TokenRecord,
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
    """Limits and conventions of play, from the config."""

    prompts: str
    max_turns: int
    budget: Budget
    return_mode: str
    discount: float


def play_seed(seed: int, environment_id: str, iteration: int, play: int) -> int:
    """The seed of an instance, below 2**31: a stable hash, the same for both arms."""
    text = f"{seed}/{environment_id}/{iteration}/{play}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


@dataclasses.dataclass
class _Seat:
    """An episode in progress."""

    job: Job
    instance: Instance
    said: tuple[Message, ...] = ()  # what the speaker reads next
    observation: str = ""
    turns: list[Turn] = dataclasses.field(default_factory=list)
    end: EpisodeEnd | None = None
    failure: Failure | None = None
    hint: str | None = None
    hint_leaks: bool = False

    def fail(self, failure: Failure) -> None:
        self.failure, self.end = failure, EpisodeEnd.FAILED


def play(
    speaker: Speaker,
    sandbox: Sandbox,
    jobs: Sequence[Job],
    rules: Rules,
    *,
    seed: int,
    iteration: int,
    wave: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Episode]:
    """Play every job, at most `wave` at a time, and return the episodes in the jobs' order.

    `progress` is told how many episodes are over after each wave.
    """
    episodes: dict[int, Episode] = {}
    for chosen in waves(jobs, wave):
        played = _play_wave(speaker, sandbox, [jobs[i] for i in chosen], rules, seed, iteration)
        episodes.update(zip(chosen, played, strict=True))
        progress(len(episodes))
    return [episodes[i] for i in range(len(jobs))]


def waves(jobs: Sequence[Job], size: int) -> list[list[int]]:
    """Indices of the jobs to play together, at most `size` at a time.

    A round takes as long as its longest reply and a wave as many rounds as its longest episode,
    so like goes with like: kinds apart, and within a kind skill by skill.
    """
    groups: dict[Kind, list[int]] = {}
    for i in sorted(range(len(jobs)), key=lambda i: jobs[i].environment.skill):
        groups.setdefault(jobs[i].environment.kind, []).append(i)
    return [
        group[start : start + size]
        for group in groups.values()
        for start in range(0, len(group), size)
    ]


def _play_wave(
    speaker: Speaker,
    sandbox: Sandbox,
    jobs: Sequence[Job],
    rules: Rules,
    seed: int,
    iteration: int,
) -> list[Episode]:
    seats = [
        _Seat(job, sandbox.open(job.environment.code, job.environment.kind, trusted=True))
        for job in jobs
    ]
    dialogues = speaker.converse(len(seats))
    _begin(sandbox, seats, rules)
    _leave(sandbox, dialogues, seats, range(len(seats)))
    for turn in range(rules.max_turns):
        present = [i for i, seat in enumerate(seats) if seat.end is None]
        if not present:
            break
        streams = {
            i: stream(
                seed,
                seats[i].job.environment.id,
                iteration,
                ARMS.index(seats[i].job.arm),
                seats[i].job.play,
                turn,
            )
            for i in present
        }
        replies = dialogues.reply({i: seats[i].said for i in present}, streams, rules.budget)
        actions: dict[int, str] = {}
        for i in present:
            seat, reply = seats[i], replies[i]
            if reply is None:
                seat.end = EpisodeEnd.TOKENS
                continue
            action = parsers.parse_action(seat.job.environment.kind, reply.text)
            if action is None:
                seat.turns.append(_turn(seat, reply.text, None))
                seat.observation = prompts.no_action(seat.job.environment.kind, rules.prompts)
                seat.said = prompts.next_messages(
                    seat.job.environment.kind, seat.observation, rules.prompts
                )
                if reply.stop is StopReason.LENGTH:
                    seat.end = EpisodeEnd.TOKENS
            else:
                actions[i] = action
                seat.turns.append(_turn(seat, reply.text, action))
        _step(sandbox, seats, actions, rules)
        if turn + 1 == rules.max_turns:
            for i in present:
                seats[i].end = seats[i].end or EpisodeEnd.TURNS
        _leave(sandbox, dialogues, seats, present)
    return [_episode(seat, dialogues.record(i), rules) for i, seat in enumerate(seats)]


def _turn(seat: _Seat, reply: str, action: str | None) -> Turn:
    return Turn(observation=seat.observation, reply=reply, action=action, reward=0.0)


def _begin(sandbox: Sandbox, seats: Sequence[_Seat], rules: Rules) -> None:
    """Reset every instance; in the hinted arm ask for the hint and check it against the answer."""
    resets = sandbox.exchange([(seat.instance, Reset(seat.job.seed)) for seat in seats])
    for seat, answer in zip(seats, resets, strict=True):
        if isinstance(answer, Failure):
            seat.fail(answer)
        else:
            seat.observation = answer.observation
    hinted = [seat for seat in seats if seat.job.arm is Arm.HINTED and seat.end is None]
    hints = sandbox.exchange([(seat.instance, Hint()) for seat in hinted])
    for seat, hint in zip(hinted, hints, strict=True):
        if isinstance(hint, Failure):
            seat.fail(hint)
        else:
            seat.hint = hint
    hinted = [seat for seat in hinted if seat.hint is not None]
    solutions = sandbox.exchange([(seat.instance, Solution()) for seat in hinted])
    for seat, solution in zip(hinted, solutions, strict=True):
        if isinstance(solution, Failure):
            seat.fail(solution)
        elif solution is not None:
            seat.hint_leaks = leaks.hint_leaks(seat.hint, solution, seat.observation)
    for seat in seats:
        seat.said = prompts.agent_messages(
            seat.job.environment.kind, seat.observation, seat.hint, rules.prompts
        )


def _step(sandbox: Sandbox, seats: Sequence[_Seat], actions: dict[int, str], rules: Rules) -> None:
    """Act in every environment that got an action, and note what it answered."""
    answers = sandbox.exchange([(seats[i].instance, Step(a)) for i, a in actions.items()])
    for i, answer in zip(actions, answers, strict=True):
        seat = seats[i]
        if isinstance(answer, Failure):
            seat.fail(answer)
            continue
        assert isinstance(answer, StepResult)
        seat.turns[-1] = dataclasses.replace(seat.turns[-1], reward=answer.reward)
        if answer.terminated:
            seat.end = EpisodeEnd.TERMINATED
        elif answer.truncated:
            seat.end = EpisodeEnd.TURNS
        seat.observation = answer.observation
        seat.said = prompts.next_messages(
            seat.job.environment.kind, seat.observation, rules.prompts
        )


def _leave(
    sandbox: Sandbox, dialogues: Dialogues, seats: Sequence[_Seat], present: Sequence[int]
) -> None:
    """Close the instances and the dialogues of the episodes that are over."""
    over = [i for i in present if seats[i].end is not None]
    sandbox.close_instances([seats[i].instance for i in over])
    dialogues.retire(over)


def _episode(seat: _Seat, record: TokenRecord, rules: Rules) -> Episode:
    assert seat.end is not None
    value = None
    if seat.end is not EpisodeEnd.FAILED:
        value = episode_return(
            [turn.reward for turn in seat.turns],
            terminated=seat.end is EpisodeEnd.TERMINATED,
            mode=rules.return_mode,
            discount=rules.discount,
        )
    return Episode(
        environment_id=seat.job.environment.id,
        arm=seat.job.arm,
        play=seat.job.play,
        seed=seat.job.seed,
        turns=tuple(seat.turns),
        end=seat.end,
        record=record,
        episode_return=value,
        hint=seat.hint,
        hint_leaks=seat.hint_leaks,
        failure=seat.failure,
    )
