"""Scores and samples of an iteration by hand."""

import dataclasses

import pytest

from spade_jax import config, scoring
from spade_jax.learn.advantages import ScoredDesign
from spade_jax.types import (
    Arm,
    Environment,
    Episode,
    EpisodeEnd,
    Failure,
    FailureKind,
    HostState,
    Kind,
    PendingDesign,
    PoolEntry,
    Reason,
    Regret,
    TokenRecord,
)

NEW = PoolEntry(environment=Environment(id="e", kind=Kind.GAME, skill="s", code="", iteration=0))


def failed(kind: FailureKind) -> Episode:
    return Episode(
        environment_id="e",
        arm=Arm.PLAIN,
        play=0,
        seed=0,
        turns=(),
        end=EpisodeEnd.FAILED,
        records=(),
        episode_return=None,
        failure=Failure(phase="step", kind=kind, message=""),
    )


def test_only_an_environment_that_hung_counts_as_hung() -> None:
    c, host = config.load("default"), HostState(pool=(NEW,))
    for kind in FailureKind:
        [entry] = scoring.score(c, host, [failed(kind)]).pool
        assert entry.hung == (kind is FailureKind.TIMEOUT)
        assert entry.plain == ((),)


def test_a_design_earns_its_reward_or_the_penalty_of_what_it_did() -> None:
    c = config.load("default")
    c.reward.penalty, c.reward.hang_penalty = -0.25, -2.0
    pending = PendingDesign(
        environment_id="e",
        skill="s",
        iteration=0,
        version=0,
        reason=Reason.ACCEPTED,
        record=TokenRecord(),
    )
    played = dataclasses.replace(
        NEW, plain=((1.0, 0.0), (0.0, 1.0)), regret=Regret(mean=0.06, stderr=None, pairs=1)
    )
    rejected, hung, scored = (
        scoring.score_design(c, HostState(), pending, entry)
        for entry in (None, dataclasses.replace(played, hung=True), played)
    )
    assert rejected == ScoredDesign(skill="s", penalty=-0.25)
    assert hung == ScoredDesign(skill="s", penalty=-2.0)
    # 0.4 * 0.06 / 0.15 for the regret, and 0.6 since half of the plays are won.
    assert scored.penalty is None and scored.raw == pytest.approx(0.16 + 0.6)
