"""The suites by name, and how each is opened."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from spade_jax.evals import (
    acebench,
    acebench_agent,
    bfcl,
    bfcl_single,
    games,
    humaneval,
    livecodebench,
    questions,
    reasoning_gym,
    tau2,
)
from spade_jax.evals.suites import Suite
from spade_jax.types import UsageError, dataclass


@dataclass
class Options:
    """What a user says about suites: where their data are; None looks where each suite says."""

    data: Path | None = None


Opener = Callable[[Options], AbstractContextManager[Suite]]
SUITES: Mapping[str, Opener] = {
    "reasoning_gym": lambda options: reasoning_gym.open_reasoning_gym(),
    "aime25": lambda options: questions.open_aime(25, options.data),
    "aime26": lambda options: questions.open_aime(26, options.data),
    "gpqa_diamond": lambda options: questions.open_gpqa(options.data),
    "livecodebench": lambda options: livecodebench.open_livecodebench(options.data),
    "humaneval": lambda options: humaneval.open_humaneval(),
    "bfcl_multi_turn": lambda options: bfcl.open_multi_turn(),
    "bfcl_non_live": lambda options: bfcl_single.open_non_live(),
    "bfcl_live": lambda options: bfcl_single.open_live(),
    "acebench_normal": lambda options: acebench.open_normal(options.data),
    "acebench_special": lambda options: acebench.open_special(options.data),
    "acebench_agent": lambda options: acebench_agent.open_agent(options.data),
    "tau2_retail": lambda options: tau2.open_retail(options.data),
    "gem_games": lambda options: games.open_games("gem"),
    "textarena_games": lambda options: games.open_games("textarena"),
}


def find(names: Sequence[str], known: Mapping[str, Opener] = SUITES) -> dict[str, Opener]:
    """The openers of these suites; a UsageError names one that there is not."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (near: {near[0]})" if near else ""
            raise UsageError(f"no suite is called {name!r}{hint}; choose from {', '.join(known)}")
    return {name: known[name] for name in names}
