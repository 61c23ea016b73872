"""The clauses of validation, each a function from what was seen to a rejection or None."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Sequence

from spade_jax.envs import contract, leaks, parsers
from spade_jax.envs.sandbox import Played
from spade_jax.types import CUT_OFF, Failure, FailureKind, Measures, Reason, Verdict, dataclass

_OF_PHASE = {
    **{"construct": Reason.CONSTRUCT, "reset": Reason.RESET, "step": Reason.STEP},
    **{"hint": Reason.STEP, "solution": Reason.SOLVABLE, "rollout": Reason.STEP},
}
_COPIED, _COPIED_RANDOM = 0.5, 0.2  # a copying policy wins this much where random wins less


@dataclass
class Settings:
    """How much of a design is tried, and what it may let a player get away with."""

    seeds: int = 32  # instances tried for triviality
    solve_seeds: int = 4  # instances on which solution() must win
    max_trivial: float = 0.1  # share of instances a constant or null action may win
    max_random: float = 0.25  # share random actions may win (or chance + 0.1)
    max_turns: int = 25
    modules: tuple[str, ...] = ()  # installed packages that may be imported as well


@dataclass
class Transcripts:
    """Every play of one design. `survey[i]` asked for hint and solution; `solved[i]` plays
    `survey[i]`'s solution; `repeated[i]` is play `first[i]` in another process with another hash
    salt; `constant` is keyed by action, `tried[i]` holds all plays of one instance."""

    survey: tuple[Played, ...]
    solved: tuple[Played, ...]
    constant: dict[str, tuple[Played, ...]]
    random: tuple[Played, ...]
    tried: tuple[tuple[Played, ...], ...]
    first: tuple[Played, ...]
    repeated: tuple[Played, ...]

    @property
    def observations(self) -> list[str]:
        return [play.steps[0].observation for play in self.survey]

    @property
    def solutions(self) -> list[tuple[str, ...]]:
        return [play.solution or () for play in self.survey]


def unreadable(error: SyntaxError) -> Verdict:
    """The verdict on a program that is not Python, or too deep to be looked at."""
    where = f" in line {error.lineno}" if error.lineno else ""
    message = f"The program is not valid Python: {error.msg}{where}; correct or simplify it."
    return _unread(Reason.PARSE, message)


def check_source(code: str | None, modules: Sequence[str] = ()) -> Verdict | None:
    """Extract, parse and imports: what can be said without running anything.

    `modules` are packages that may be imported besides those of the contract.
    """
    if code == CUT_OFF:
        return _unread(
            Reason.EXTRACT,
            "The reply was cut off before its program ended; write a shorter one and close its "
            "```python block.",
        )
    if code is None:
        return _unread(
            Reason.EXTRACT,
            "The reply holds no complete ```python block with a class whose name ends in "
            "Env; write one such block and close it.",
        )
    try:
        tree = parsers.parse_program(code)
    except SyntaxError as error:
        return unreadable(error)
    roots = (module.partition(".")[0] for module in modules)
    allowed = tuple(dict.fromkeys((*contract.ALLOWED_MODULES, *roots)))
    guarded = set(_guarded_bases(tree))
    for node in ast.walk(tree):
        for name in _imported(node) if node not in guarded else ():
            if name.partition(".")[0] not in allowed:
                message = f"The program imports {name or 'a relative module'}; use only "
                message += ", ".join(allowed[1:]) + "."
                return _unread(Reason.IMPORTS, message)
    return None


def check_failure(failure: Failure) -> Verdict:
    """The verdict on a design whose program broke."""
    limits = failure.kind in (FailureKind.TIMEOUT, FailureKind.MEMORY)
    if limits or failure.message.startswith(contract.OVERSIZED):
        message = f"{failure.phase} went over a limit: {failure.message} Do less work."
        return Verdict(reason=Reason.LIMITS, message=message, phase=failure.phase)
    message = f"{failure.phase} broke: {failure.message}"
    if failure.kind is not FailureKind.CONTRACT:  # that says itself what was expected
        message += " It must work for every seed and action."
    return Verdict(reason=_OF_PHASE[failure.phase], message=message, phase=failure.phase)


def check_plays(plays: Sequence[Played]) -> Verdict | None:
    """No play may have broken."""
    for play in plays:
        if play.failure is not None:
            return check_failure(play.failure)
    return None


def check_seeds(seen: Transcripts) -> Verdict | None:
    """The same seed and actions repeat exactly, and two seeds can differ."""
    for once, again in zip(seen.first, seen.repeated, strict=True):
        if (once.steps, once.failure) != (again.steps, again.failure):
            return _judged(
                Reason.SEEDS,
                "The same seed and actions gave two different plays in two processes; "
                "draw everything from random.Random(seed) in reset, keep no state outside self, "
                "and never depend on the order of a set, on hash() or on hint() being called.",
            )
    if len(set(zip(seen.observations, seen.solutions, strict=True))) < 2:
        return _judged(
            Reason.SEEDS,
            "Every seed gives the same instance; draw the instance from the seed in reset.",
        )
    return None


def check_interactive(seen: Transcripts) -> Verdict | None:
    """Where more than one action is needed, what is observed on the way depends on the actions."""
    if max(map(len, seen.solutions)) < 2:
        return None
    for plays in seen.tried:
        observed = [
            [step.observation for step in play.steps if not step.terminated] for play in plays
        ]
        if any(len(set(turn) - {None}) > 1 for turn in itertools.zip_longest(*observed)):
            return None
    return _judged(
        Reason.INTERACTIVE,
        "Different actions were answered by the same observations; let step answer what "
        "the action changed.",
    )


def check_solvable(survey: Sequence[Played], solved: Sequence[Played]) -> Verdict | None:
    """The environment's own solution exists and wins."""
    if any(not play.solution for play in survey):
        return _judged(
            Reason.SOLVABLE,
            "There is no solution(); define one that returns the list of actions that win "
            "the instance after reset.",
        )
    lost = [play for play in solved if not contract.won(play.steps[-1])]
    if lost:
        return _judged(
            Reason.SOLVABLE,
            f"The actions of solution() lost {len(lost)} of {len(solved)} instances; they must "
            "end each with terminated True and a reward of 1. The first one lost was told "
            f"{_told(lost[0])!r}.",
        )
    return None


def check_trivial(seen: Transcripts, settings: Settings) -> Verdict | None:
    """Constant and random actions must not win.

    A share counts as above its limit when it is so by more than one standard error, so that a
    fair environment close to the limit is not rejected by the luck of the seeds.
    """
    for action, plays in seen.constant.items():
        if _above(plays, settings.max_trivial):
            what = f"always answering {action[:60]!r}" if action else "an empty action"
            return _judged(
                Reason.TRIVIAL,
                f"{_share(plays):.0%} of the instances are won by {what}; make the answer "
                "depend on the instance and spread it over more values.",
            )
    chance = 1 / len(set(seen.solutions))
    if _above(seen.random, max(settings.max_random, chance + 0.1)):
        return _judged(
            Reason.TRIVIAL,
            f"{_share(seen.random):.0%} of the instances are won by random actions; "
            "allow more answers or fewer tries.",
        )
    return None


def check_leak(seen: Transcripts, settings: Settings) -> Verdict | None:
    """Neither the first observation nor the hint may give the answer away."""
    pairs = list(zip(seen.observations, seen.solutions, strict=True))
    labelled = sum(leaks.labelled_answer(*pair) for pair in pairs) / len(pairs)
    copied = leaks.copied_share(seen.observations, seen.solutions)
    if labelled > _COPIED or (copied > _COPIED and _share(seen.random) < _COPIED_RANDOM):
        return _judged(
            Reason.LEAK,
            "The first observation states the answer; show only what it follows from.",
        )
    told = sum(
        play.hint is not None and leaks.hint_leaks(play.hint, solution, observation)
        for play, (observation, solution) in zip(seen.survey, pairs, strict=True)
    )
    if told > settings.max_trivial * len(pairs):
        return _judged(
            Reason.LEAK,
            f"The hint contains the answer in {told} of {len(pairs)} instances; give a "
            "partial result or the next step instead.",
        )
    return None


def _told(play: Played) -> str:
    """The first error that a play was shown, else its last observation."""
    lines = [line.strip() for step in play.steps for line in step.observation.splitlines()]
    errors = [line for line in lines if line.startswith("Error")]
    return (errors or [" ".join(play.steps[-1].observation.split())])[0][:200]


def measure(seen: Transcripts) -> Measures:
    """What the plays say in numbers."""
    constants = [_share(plays) for action, plays in seen.constant.items() if action]
    return Measures(
        null=_share(seen.constant[""]),
        constant=max(constants),
        random=_share(seen.random),
        solution=_share(seen.solved),
        changes=sum(map(_answers_differ, seen.tried)) / len(seen.tried),
    )


def _answers_differ(plays: Sequence[Played]) -> bool:
    """Whether different actions on one instance were answered differently at some step."""
    observed = [[step.observation for step in play.steps] for play in plays]
    return any(len(set(turn) - {None}) > 1 for turn in itertools.zip_longest(*observed))


def _unread(reason: Reason, message: str) -> Verdict:
    return Verdict(reason=reason, message=message, phase="source")


def _judged(reason: Reason, message: str) -> Verdict:
    return Verdict(reason=reason, message=message, phase="plays")


def _share(plays: Sequence[Played]) -> float:
    return sum(contract.won(play.steps[-1]) for play in plays) / len(plays)


def _above(plays: Sequence[Played], limit: float) -> bool:
    return _share(plays) > limit + math.sqrt(limit * max(0.0, 1 - limit) / len(plays))


def _guarded_bases(tree: ast.Module) -> Iterator[ast.AST]:
    """Imports of the base class of tool use from elsewhere, by programs that do without as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.handlers:
            for statement in node.body:
                named = [alias.name for alias in getattr(statement, "names", ())]
                if isinstance(statement, ast.ImportFrom) and named == [contract.TOOL_BASE]:
                    yield statement


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "" if node.level == 0 else ""]
    if isinstance(node, ast.Name) and node.id == "__import__":
        return ["by __import__"]
    return []
