"""Is a design an environment worth playing? Runs it in the sandbox and returns a verdict.

All designs of a batch go through the sandbox together, in two exchanges: a survey of instances
(first observation, hint, solution of each), then the plays that the survey suggests, repeated in
part in a second process with another hash salt.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import random
from collections.abc import Callable, Container, Sequence

from spade_jax.envs import checks, contract
from spade_jax.envs.checks import Settings, Transcripts
from spade_jax.envs.fingerprint import fingerprint
from spade_jax.envs.sandbox import Instance, Played, Rollout, Rollouts, Sandbox
from spade_jax.types import Failure, Kind, Measures, Reason, Verdict

__all__ = ["Settings", "check", "refuse_known", "validate"]

_SURVEY_SEED, _TRIAL_SEED = 1_000, 2_000  # first of the seeds tried
_OTHER_SALT = 1
_REPEATED_RANDOM = 4  # random plays repeated in the second process
_NEW_MESSAGE = "The environment exists already; change its task, its rules or its numbers."

Design = tuple[str | None, Kind]


def validate(
    sandbox: Sandbox,
    designs: Sequence[Design],
    *,
    seen: Container[str],
    settings: Settings | None = None,
) -> list[Verdict]:
    """Verdicts on programs, in order; the first check that fails decides.

    `seen` holds fingerprints and behaviour digests of environments that count as known; of equal
    designs within the batch the first one counts as new.
    """
    return refuse_known(check(sandbox, designs, settings=settings), seen)


def check(
    sandbox: Sandbox, designs: Sequence[Design], *, settings: Settings | None = None
) -> list[Verdict]:
    """Verdicts of every check but that of being new."""
    settings = settings or Settings()
    verdicts: list[Verdict] = []
    at_once = max(1, sandbox.max_instances // 2)
    for start in range(0, len(designs), at_once):
        verdicts += _run(sandbox, designs[start : start + at_once], settings)
    return verdicts


def refuse_known(verdicts: Sequence[Verdict], seen: Container[str]) -> list[Verdict]:
    """The verdicts, with what is `seen` or repeats an earlier one of them rejected."""
    verdicts = list(verdicts)
    batch: set[str] = set()
    for i, verdict in enumerate(verdicts):
        if not verdict.accepted:
            continue
        marks = {verdict.fingerprint, verdict.behaviour}
        if marks & batch or any(mark in seen for mark in marks):
            verdicts[i] = dataclasses.replace(
                verdict, reason=Reason.NEW, message=_NEW_MESSAGE, phase="pool"
            )
        batch |= marks
    return verdicts


def _run(sandbox: Sandbox, designs: Sequence[Design], settings: Settings) -> list[Verdict]:
    """Verdicts of every check but `new`."""
    verdicts: dict[int, Verdict] = {}
    trials: dict[int, _Trial] = {}
    for i, (code, kind) in enumerate(designs):
        verdict = checks.check_source(code, settings.modules)
        if verdict is None:
            try:
                trials[i] = _Trial(sandbox, code, kind, settings)
                continue
            except SyntaxError as error:
                verdict = checks.unreadable(error)
        verdicts[i] = verdict
    try:
        answers = sandbox.exchange([trial.survey_call() for trial in trials.values()])
        for (i, trial), answer in zip(list(trials.items()), answers, strict=True):
            verdict = trial.take_survey(answer)
            if verdict is not None:
                verdicts[i] = verdict
        going = [trial for i, trial in trials.items() if i not in verdicts]
        calls = [call for trial in going for call in trial.play_calls()]
        answers = sandbox.exchange(calls)
        for i, trial in trials.items():
            if i not in verdicts:
                verdicts[i], answers = trial.judge(*answers[:2]), answers[2:]
    finally:
        sandbox.close_instances(
            instance for trial in trials.values() for instance in trial.instances
        )
    return [
        trials[i].complete(verdicts[i]) if i in trials else verdicts[i] for i in range(len(designs))
    ]


class _Trial:
    """One design under validation."""

    def __init__(self, sandbox: Sandbox, code: str, kind: Kind, settings: Settings) -> None:
        self.fingerprint = fingerprint(code)
        self._behaviour = ""
        modules = (*contract.heavy_modules(code), *settings.modules)
        self.instances = tuple(
            sandbox.open(code, kind, salt, modules=modules) for salt in (0, _OTHER_SALT)
        )
        self._settings = settings
        self._survey: tuple[Played, ...] = ()
        self._measures: Measures | None = None

    def survey_call(self) -> tuple:
        seeds = range(_SURVEY_SEED, _SURVEY_SEED + self._settings.seeds)
        plays = tuple(Rollout(seed=seed, ask=True) for seed in seeds)
        return self.instances[0], Rollouts(plays=plays)

    def take_survey(self, answer: tuple[Played, ...] | Failure) -> Verdict | None:
        """Keep the survey; a verdict where nothing needs to be played any more."""
        if isinstance(answer, Failure):
            return checks.check_failure(answer)
        self._survey = answer
        return checks.check_plays(answer) or checks.check_solvable(answer, ())

    def play_calls(self) -> list[tuple]:
        """The plays in the first process, and some of them backwards in the second."""
        settings = self._settings
        solutions = [play.solution for play in self._survey]
        turns = min(settings.max_turns, 2 * max(map(len, solutions)))
        seeds = range(_TRIAL_SEED, _TRIAL_SEED + settings.seeds)
        solve = [
            Rollout(seed=_SURVEY_SEED + i, actions=solution)
            for i, solution in enumerate(solutions[: settings.solve_seeds])
        ]
        rng = random.Random(self.fingerprint)
        pool = [action for solution in solutions for action in solution]
        guesses = [
            Rollout(seed=seed, actions=tuple(rng.choices(pool, k=turns)))
            for seed in seeds
            for _ in range(2)
        ]
        self._constants = _constants(solutions)
        constant = [
            Rollout(seed=seed, actions=(action,) * turns)
            for action in self._constants
            for seed in seeds
        ]
        again = [
            Rollout(seed=play.seed, actions=play.actions, ask=True)
            for play in (solve + guesses[:_REPEATED_RANDOM])[::-1]
        ]
        return [
            (self.instances[0], Rollouts(plays=tuple(solve + guesses + constant))),
            (self.instances[1], Rollouts(plays=tuple(again))),
        ]

    def judge(
        self, played: tuple[Played, ...] | Failure, again: tuple[Played, ...] | Failure
    ) -> Verdict:
        """The verdict of all checks that need plays."""
        if isinstance(played, Failure):
            return checks.check_failure(played)
        broken = checks.check_plays(played)
        if broken is not None:
            return broken
        if isinstance(again, Failure):
            return checks.check_failure(again)
        settings, n = self._settings, self._settings.seeds
        solves = min(settings.solve_seeds, n)
        guesses = played[solves : solves + 2 * n]
        rest = played[solves + 2 * n :]
        blocks = [rest[k * n : (k + 1) * n] for k in range(len(self._constants))]
        seen = Transcripts(
            survey=self._survey,
            solved=played[:solves],
            constant=dict(zip(self._constants, blocks, strict=True)),
            random=guesses,
            tried=tuple((*guesses[2 * i : 2 * i + 2], *(b[i] for b in blocks)) for i in range(n)),
            first=played[: len(again)],
            repeated=again[::-1],
        )
        self._behaviour = _digest(self._survey, seen.solved)
        self._measures = checks.measure(seen)
        return (
            checks.check_seeds(seen)
            or checks.check_interactive(seen)
            or checks.check_solvable(seen.survey, seen.solved)
            or checks.check_trivial(seen, settings)
            or checks.check_leak(seen, settings)
            or Verdict(reason=Reason.ACCEPTED)
        )

    def complete(self, verdict: Verdict) -> Verdict:
        """The verdict with what is known of the design, once its processes have ended."""
        measures = self._measures
        if measures is not None:
            measures = dataclasses.replace(
                measures,
                cpu_seconds=_cost(self.instances, "cpu_seconds", sum),
                memory_mb=_cost(self.instances, "memory_mb", max),
            )
        return dataclasses.replace(
            verdict,
            fingerprint=self.fingerprint,
            behaviour=self._behaviour,
            measures=measures,
        )


def _cost(
    instances: Sequence[Instance], name: str, over: Callable[[list[float]], float]
) -> float | None:
    """What the instances cost together, where the sandbox has measured it."""
    costs = [getattr(instance, name) for instance in instances]
    return None if None in costs else over(costs)


def _constants(solutions: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Actions for constant policies: nothing, a number, and what solutions say most often.

    They are chosen on other instances than those they are tried on.
    """
    last = collections.Counter(solution[-1] for solution in solutions)
    every = collections.Counter(action for solution in solutions for action in solution)
    common = (last.most_common(1)[0][0], every.most_common(1)[0][0])
    return tuple(dict.fromkeys(("", "1", *common)))


def _digest(survey: Sequence[Played], solved: Sequence[Played]) -> str:
    """16 hexadecimal digits of what the environment showed on fixed seeds."""
    shown = [
        [(step.observation, step.reward, step.terminated) for step in play.steps]
        for play in (*survey, *solved)
    ]
    return hashlib.blake2b(repr(shown).encode(), digest_size=8).hexdigest()
