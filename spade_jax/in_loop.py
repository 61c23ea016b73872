"""Benchmarks during training: suites that the config names, played with the weights at hand."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from ml_collections import config_dict

from spade_jax import hosts
from spade_jax.evals import catalog, evaluation, results
from spade_jax.evals.catalog import Options
from spade_jax.evals.evaluation import Configured
from spade_jax.evals.results import Key
from spade_jax.evals.runner import Result
from spade_jax.evals.suites import MODEL, USER, Settings
from spade_jax.metrics import Value
from spade_jax.policy.conversation import Policy
from spade_jax.types import UsageError


def check(c: config_dict.ConfigDict) -> None:
    """UsageError where evaluation.suites names a suite that there is not."""
    try:
        catalog.find(c.evaluation.suites)
    except UsageError as error:
        raise UsageError(f"evaluation.suites: {error}") from None


def evaluate(
    c: config_dict.ConfigDict,
    policy: Policy,
    folder: Path,
    divide: Callable[..., list[Result]] = hosts.divide,
) -> dict[str, Value]:
    """Play the suites of the config, write `results.json` into `folder`, and say how they went.

    `divide` gives each host its share of the plays, as `hosts.divide` does.
    """
    e = c.evaluation
    if not e.suites:
        return {}
    options = Options(data=Path(e.data) if e.data else None)
    with contextlib.ExitStack() as stack:
        suites = []
        for opener in catalog.find(e.suites).values():
            suite = stack.enter_context(opener(options))
            how = _settings(c, suite.name, suite.settings, policy.sampler.context)
            suites.append(Configured(suite, how))
        items = {suite.name: evaluation.chosen(suite.items(), e.limit) for suite in suites}

        def play(own: list[Key]) -> list[Result]:
            done: dict[Key, Result] = {}
            evaluation.run_suites(
                suites,
                items,
                own,
                {MODEL: policy, USER: policy},
                lambda result: done.update({(result.suite, result.item, result.play): result}),
                show=False,
                seed=e.seed,
                seats=c.sampling.slots,
                patient=c.schedule != "overlap",
            )
            return [done[key] for key in own]

        ended = divide(evaluation.keys(suites, items), play, Result)
        about = {"suites": {suite.name: results.about_suite(suite.settings) for suite in suites}}
    hosts.lead(lambda: results.write(folder, about, ended, []) and None)
    measured: dict[str, Value] = {}
    for column in results.summary(ended):
        measured[f"evaluation/suite/{column.name}/success"] = column.success
        measured[f"evaluation/suite/{column.name}/failed"] = column.failed
    return measured


def _settings(c: config_dict.ConfigDict, name: str, settings: Settings, context: int) -> Settings:
    """A suite's settings with those of the config in their place; all of the cache is its room."""
    reply = c.evaluation.reply_tokens or settings.reply
    if reply >= context:
        raise UsageError(
            f"replies of {name}, which evaluation.suites names, take up to {reply} tokens, but a "
            f"conversation holds {context}; lower --config.evaluation.reply_tokens or raise "
            "--config.play.context"
        )
    plays = c.evaluation.k or settings.plays
    return dataclasses.replace(settings, plays=plays, reply=reply, context=context)
