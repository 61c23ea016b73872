"""An evaluation: items chosen from suites, their missing plays made, and how far that is."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import rich.console
import rich.progress

from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import runner
from spade_jax.evals.results import Key, Skipped
from spade_jax.evals.runner import Result
from spade_jax.evals.suites import Item, Settings, Suite
from spade_jax.policy.conversation import Speaker

QUIET_SECONDS = 30.0  # between two lines of progress where no terminal shows it


@dataclasses.dataclass(frozen=True)
class Configured:
    """A suite with other settings than its own."""

    suite: Suite
    settings: Settings

    @property
    def name(self) -> str:
        return self.suite.name

    @property
    def sandbox(self) -> Sandbox | None:
        return getattr(self.suite, "sandbox", None)

    @property
    def tools(self) -> bool:
        return getattr(self.suite, "tools", False)

    def items(self) -> Sequence[Item]:
        return self.suite.items()


def chosen(items: Sequence[Item], limit: int) -> list[Item]:
    """The first `limit` items of every group; all of them without a limit."""
    counts: dict[str, int] = {}
    taken = []
    for item in items:
        counts[item.group] = counts.get(item.group, 0) + 1
        if not limit or counts[item.group] <= limit:
            taken.append(item)
    return taken


def unfit(suite: Configured, context: int | None, shows_tools: bool, model: str) -> Skipped | None:
    """Why a suite cannot be played with a model, if it cannot.

    Its conversations hold `context` tokens (None: not known), its template `shows_tools` or not.
    """
    needed, reason = suite.settings.context, ""
    if context is not None and context < needed:
        reason = (
            f"its conversations take up to {needed} tokens, but {model} holds {context}; lower "
            "--reply_tokens or --context to run it nevertheless"
        )
    elif suite.tools and not shows_tools:
        reason = f"it offers tools, which the chat template of {model} does not show"
    return Skipped(suite=suite.name, reason=reason) if reason else None


def keys(suites: Sequence[Suite], items: Mapping[str, Sequence[Item]]) -> list[Key]:
    """All plays, in the order of suites, items and numbers."""
    return [
        (suite.name, item.id, number)
        for suite in suites
        for item in items[suite.name]
        for number in range(suite.settings.plays)
    ]


def run_suites(
    suites: Sequence[Suite],
    items: Mapping[str, Sequence[Item]],
    wanted: Collection[Key],
    speakers: Mapping[str, Speaker],
    note: Callable[[Result], None],
    *,
    show: bool = True,
    **how: Any,
) -> None:
    """Make the plays that are wanted, suite by suite, the first of every item before the second.

    `note` is told as they end; `how` is as in `runner.run`.
    """
    wanted = set(wanted)
    for suite in suites:
        chosen = [
            (item, number)
            for number in range(suite.settings.plays)
            for item in items[suite.name]
            if (suite.name, item.id, number) in wanted
        ]
        if not chosen:
            continue
        with Progress(suite.name, len(chosen), show) as progress:
            runner.run(suite, chosen, speakers, note=_both(note, progress.add), **how)


def _both(*notes: Callable[[Result], None]) -> Callable[[Result], None]:
    def note(result: Result) -> None:
        for each in notes:
            each(result)

    return note


class Progress:
    """Shows how many plays are over: a bar on a terminal, else a line now and then."""

    def __init__(self, name: str, total: int, show: bool = True) -> None:
        self._name, self._total, self._done, self._won, self._failed = name, total, 0, 0, 0
        console = rich.console.Console(stderr=True)
        bar = show and console.is_terminal
        self._bar = rich.progress.Progress(console=console, disable=not bar)
        self._task = self._bar.add_task(name, total=total)
        self._lines, self._shown = show and not bar, time.monotonic()

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def add(self, result: Result) -> None:
        self._done += 1
        self._won += result.won
        self._failed += bool(result.failed)
        told = f"{self._name}: {self._won} won, {self._failed} failed"
        self._bar.update(self._task, advance=1, description=told)
        now = time.monotonic()
        if self._lines and (now - self._shown > QUIET_SECONDS or self._done == self._total):
            self._shown = now
            print(f"{told}, {self._done} of {self._total}", file=sys.stderr, flush=True)
