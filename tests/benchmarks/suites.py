"""What suites take without a model: a scripted policy answers at once, here and now.

    python -m tests.benchmarks.suites

Of reasoning-gym every item is made; of BFCL multi-turn and HumanEval every true answer is played,
and must win. What is not installed is named: launch/install_eval.sh brings all of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from spade_jax.benchmark import machine
from spade_jax.evals import bfcl, catalog, humaneval
from spade_jax.evals.runner import Result
from spade_jax.types import UsageError
from tests.evals import oracles
from tests.evals.scripted import Scripted, play_opened

SEATS = 16


def reasoning_gym() -> Scripted:
    return Scripted(lambda said: "I do not know.")


def bfcl_multi_turn() -> Scripted:
    source = bfcl.installed()
    entries = [e for category in bfcl.CATEGORIES for e in bfcl.entries(source, category)]
    return oracles.of_multi_turn(entries)


def humaneval_() -> Scripted:
    humaneval.published()
    return Scripted(oracles.of_humaneval())


# What each figure is of, and the share of plays that the policy must win.
SUITES: dict[str, tuple[str, Callable[[], Scripted], float]] = {
    "reasoning_gym": ("items made", reasoning_gym, 0.0),
    "bfcl_multi_turn": ("ground truths that win", bfcl_multi_turn, 1.0),
    "humaneval": ("solutions that pass", humaneval_, 1.0),
}


def measure(name: str) -> str:
    """A suite's line; a suite that is not installed says what to do."""
    what, policy, share = SUITES[name]
    try:
        speaker = policy()
        began = time.perf_counter()
        opened = catalog.SUITES[name](catalog.Options())
        results = play_opened(opened, speaker, seats=SEATS, seed=0, patient=False)
    except UsageError as error:
        return f"{name:<16} {error}"
    seconds = time.perf_counter() - began
    _check(results, share)
    return f"{name:<16} {len(results)} {what}: {seconds:.1f} s"


def _check(results: Sequence[Result], share: float) -> None:
    failed = [result for result in results if result.failed or result.won != share]
    if failed:
        raise SystemExit(f"{len(failed)} plays did not end as they must, the first: {failed[0]}")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(machine())
    for name in SUITES:
        print(measure(name), flush=True)


if __name__ == "__main__":
    main()
