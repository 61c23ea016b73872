"""Benchmarks during training: suites that the config names, played with the weights at hand."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path

from ml_collections import config_dict

from spade_jax.evals import catalog, evaluation, results
from spade_jax.evals.catalog import Options
from spade_jax.evals.evaluation import Configured
from spade_jax.evals.results import Plays
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


def evaluate(c: config_dict.ConfigDict, policy: Policy, folder: Path) -> dict[str, Value]:
    """Play the suites of the config, write `results.json` into `folder`, and say how they went."""
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
        about = {"suites": {suite.name: results.about_suite(suite.settings) for suite in suites}}
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was resumed before it
        with Plays(folder, about) as plays:
            evaluation.run_suites(
                suites,
                items,
                {MODEL: policy, USER: policy},
                plays,
                show=False,
                seed=e.seed,
                seats=c.sampling.slots,
                patient=c.schedule != "overlap",
            )
            ended = evaluation.in_order(suites, items, plays)
    measured: dict[str, Value] = {}
    for column in results.write(folder, about, ended, []):
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
