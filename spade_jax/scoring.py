"""From episodes to samples: returns and regret, advantages of both roles, what is remembered.

Pure functions of the host's state, in the order in which `train.iterate` calls them.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

from ml_collections import config_dict

from spade_jax.design import memory
from spade_jax.learn import advantages, regret, trackers
from spade_jax.learn.advantages import ScoredDesign
from spade_jax.types import (
    Arm,
    Episode,
    FailureKind,
    HostState,
    MemoryRecord,
    PendingDesign,
    PoolEntry,
    Role,
    Sample,
    Tracker,
)


def score(c: config_dict.ConfigDict, host: HostState, episodes: Sequence[Episode]) -> HostState:
    """Enter returns and regret into the pool, and the skills' mean returns into the trackers."""
    arms = by_environment(episodes)
    pool, returns = [], collections.defaultdict(list)
    for entry in host.pool:
        plain, hinted = (arms.get((entry.environment.id, arm), []) for arm in Arm)
        known = tuple(e.episode_return for e in plain if e.episode_return is not None)
        returns[entry.environment.skill] += known
        hung = any(e.failure and e.failure.kind is FailureKind.TIMEOUT for e in (*plain, *hinted))
        pool.append(
            dataclasses.replace(
                entry,
                plain=(*entry.plain, known),
                regret=regret.paired_regret(plain, hinted) if hinted else entry.regret,
                hung=entry.hung or hung,
            )
        )
    updated = dict(host.trackers)
    for skill, values in returns.items():
        if values:
            updated[skill] = trackers.update_tracker(
                updated.get(skill, Tracker()),
                math.fsum(values) / len(values),
                c.reward.gamma_fast,
                c.reward.gamma_slow,
            )
    return dataclasses.replace(host, pool=tuple(pool), trackers=updated)


def by_environment(episodes: Sequence[Episode]) -> dict[tuple[str, Arm], list[Episode]]:
    """Episodes by environment and arm, in their order."""
    groups: dict[tuple[str, Arm], list[Episode]] = collections.defaultdict(list)
    for episode in episodes:
        groups[episode.environment_id, episode.arm].append(episode)
    return groups


def compare_agent(
    c: config_dict.ConfigDict, host: HostState, episodes: Sequence[Episode], version: int
) -> tuple[list[Sample], HostState]:
    """The agent's samples: plain plays, each against the others of its environment."""
    samples, returns = [], {}
    for (environment_id, arm), group in by_environment(episodes).items():
        if arm is not Arm.PLAIN:
            continue
        returns[environment_id] = [e.episode_return for e in group]
        values = advantages.agent_advantages(
            c.advantage.agent, returns[environment_id], host.baselines.get(environment_id)
        )
        samples += [
            Sample(role=Role.AGENT, record=record, advantage=value, version=version)
            for e, value in zip(group, values, strict=True)
            if value is not None and not (c.play.mask_truncated and e.truncated)
            for record in e.records
        ]
    baselines = advantages.update_baselines(host.baselines, returns, c.advantage.ema_decay)
    return samples, dataclasses.replace(host, baselines=baselines)


def compare_designer(
    c: config_dict.ConfigDict, host: HostState, earlier: Sequence[PoolEntry], n_agent: int
) -> tuple[list[Sample], HostState, dict[str, float]]:
    """The designer's samples whose delay is over, each against the others of its skill.

    `earlier` is the pool as the iteration found it: when a new one has been opened, the window of
    the old one's designs is complete. At the last iteration all that wait are due.
    """
    last = host.iteration + 1 >= c.iterations
    wait = host.iteration - c.learn.designer_delay
    due = tuple(p for p in host.pending if last or p.iteration <= wait)
    host = dataclasses.replace(host, pending=host.pending[len(due) :])
    if not c.learn.train_designer:
        return [], host, {}
    entries = {e.environment.id: e for e in (*earlier, *host.pool)}
    scored = [score_design(c, host, p, entries.get(p.environment_id)) for p in due]
    scale = advantages.role_scale(
        n_agent, len(due), c.design.regenerate_every, c.reward.max_role_scale
    )
    values = advantages.designer_advantages(scored, scale, c.reward.penalties)
    samples = [
        Sample(role=Role.DESIGNER, record=p.record, advantage=value, version=p.version)
        for p, value in zip(due, values, strict=True)
        if value is not None
    ]
    rewards = {
        p.environment_id: s.raw for p, s in zip(due, scored, strict=True) if s.raw is not None
    }
    return samples, host, rewards


def score_design(
    c: config_dict.ConfigDict, host: HostState, pending: PendingDesign, entry: PoolEntry | None
) -> ScoredDesign:
    """The raw reward of a design, or the penalty of one that was rejected or hung."""
    if entry is None:
        return ScoredDesign(skill=pending.skill, penalty=c.reward.penalty)
    if entry.hung:
        return ScoredDesign(skill=pending.skill, penalty=c.reward.hang_penalty)
    window = [value for plays in entry.plain for value in plays]
    outcome = regret.Outcome(
        win=math.fsum(window) / len(window) if window else None,
        regret=entry.regret.mean,
        mu_slow=host.trackers.get(pending.skill, Tracker()).slow,
    )
    terms = regret.DesignerTerms(
        w_regret=c.reward.w_regret,
        w_plateau=c.reward.w_plateau,
        regret_scale=c.reward.regret_scale,
        plateau_low=c.reward.plateau_low,
        plateau_high=c.reward.plateau_high,
        plateau_ramp=c.reward.plateau_ramp,
    )
    raw = regret.designer_reward(c.reward.designer, outcome, terms)
    return ScoredDesign(skill=pending.skill, raw=raw)


def remember(c: config_dict.ConfigDict, host: HostState, skipped_in_row: int) -> HostState:
    """Bring the memory up to date with what the pool's environments have shown."""
    records = []
    for entry in host.pool:
        window = [value for plays in entry.plain for value in plays]
        records.append(
            MemoryRecord(
                environment_id=entry.environment.id,
                skill=entry.environment.skill,
                code=entry.environment.code,
                fingerprint=entry.environment.fingerprint,
                iteration=entry.environment.iteration,
                win_rate=sum(v > 0.5 for v in window) / len(window) if window else None,
                regret=entry.regret.mean,
            )
        )
    updated = memory.remember(host.memory, records, c.memory.size)
    return dataclasses.replace(host, memory=updated, skipped_in_row=skipped_in_row)
