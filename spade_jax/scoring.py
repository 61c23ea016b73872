"""From episodes to samples: returns and regret, advantages of both roles, what is remembered.

Pure functions of the host's state, in the order in which `train.iterate` calls them.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

from ml_collections import config_dict

from spade_jax.design import memory
from spade_jax.learn import advantages, difficulty, regret, rewards, trackers
from spade_jax.learn.advantages import ScoredDesign
from spade_jax.learn.difficulty import Schedule
from spade_jax.types import (
    Arm,
    Episode,
    FailureKind,
    HostState,
    MemoryRecord,
    PendingDesign,
    PoolEntry,
    Reason,
    Role,
    Sample,
    Tracker,
)


def score(c: config_dict.ConfigDict, host: HostState, episodes: Sequence[Episode]) -> HostState:
    """Enter returns and regret into the pool, and the skills' mean returns into the trackers."""
    arms = by_environment(episodes)
    pool, returns = [], collections.defaultdict(list)
    for entry in host.pool:
        if entry.retired:
            pool.append(entry)
            continue
        plain, hinted = (arms.get((entry.environment.id, arm), []) for arm in Arm)
        known = tuple(e.episode_return for e in trained(c, plain) if e.episode_return is not None)
        returns[entry.environment.skill] += known
        hung = any(e.failure and e.failure.kind is FailureKind.TIMEOUT for e in (*plain, *hinted))
        pool.append(
            dataclasses.replace(
                entry,
                plain=(*entry.plain, known),
                regret=regret.paired_regret(plain, hinted) if hinted else entry.regret,
                hung=entry.hung or hung,
                leak_share=_leak_share(hinted) if hinted else entry.leak_share,
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


def rate_difficulty(schedule: Schedule, host: HostState) -> HostState:
    """Enter this iteration's plays of procedural tasks into their difficulty."""
    returns = collections.defaultdict(lambda: collections.defaultdict(list))
    for entry in host.pool:
        if entry.environment.task and not entry.retired:
            returns[entry.environment.task][entry.environment.level] += entry.plain[-1]
    rated = {
        task: difficulty.update(host.difficulty[task], by_level, schedule)
        for task, by_level in returns.items()
    }
    return dataclasses.replace(host, difficulty=host.difficulty | rated)


def by_environment(episodes: Sequence[Episode]) -> dict[tuple[str, Arm], list[Episode]]:
    """Episodes by environment and arm, in their order."""
    groups: dict[tuple[str, Arm], list[Episode]] = collections.defaultdict(list)
    for episode in episodes:
        groups[episode.environment_id, episode.arm].append(episode)
    return groups


def trained(c: config_dict.ConfigDict, plain: Sequence[Episode]) -> list[Episode]:
    """An environment's plain plays without those made only to pair with hinted ones.

    The latter count for regret alone, so that `play.paired_plays` changes nothing else: windows,
    trackers and baselines keep the same number of plays from each iteration.
    """
    return [episode for episode in plain if episode.play < c.play.plays]


def _leak_share(hinted: Sequence[Episode]) -> float:
    return sum(episode.hint_leaks for episode in hinted) / len(hinted)


def compare_agent(
    c: config_dict.ConfigDict, host: HostState, episodes: Sequence[Episode], version: int
) -> tuple[list[Sample], HostState]:
    """The agent's samples: plain plays, each against the others of its environment.

    ValueError where a group does not hold each of the environment's `play.plays` once.
    """
    samples, returns = [], {}
    for (environment_id, arm), played in by_environment(episodes).items():
        if arm is not Arm.PLAIN:
            continue
        group = trained(c, played)
        if sorted(e.play for e in group) != list(range(c.play.plays)):
            raise ValueError(
                f"{environment_id} has plain plays {[e.play for e in group]}; a group to compare "
                f"holds each of {c.play.plays} once"
            )
        returns[environment_id] = [e.episode_return for e in group]
        values = advantages.agent_advantages(
            c.advantage.agent, returns[environment_id], host.baselines.get(environment_id)
        )
        samples += [
            Sample(role=Role.AGENT, records=e.records, advantage=value, version=version)
            for e, value in zip(group, values, strict=True)
            if e.records and value is not None and not (c.play.mask_truncated and e.truncated)
        ]
    baselines = advantages.update_baselines(host.baselines, returns, c.advantage.ema_decay)
    return samples, dataclasses.replace(host, baselines=baselines)


def compare_designer(
    c: config_dict.ConfigDict, host: HostState, earlier: HostState, n_agent: int
) -> tuple[list[Sample], HostState, dict[str, float], dict[str, float]]:
    """The designer's samples whose delay is over, each against the others of its skill or prompt.

    `earlier` is the state as the iteration found it: when a new pool has been opened, the window of
    the old one's designs is complete, that of those played on among them. At the last iteration all
    that wait are due. Returned with the samples and the state: raw rewards by id, and metrics.
    """
    last = host.iteration + 1 >= c.iterations
    wait = host.iteration - c.learn.designer_delay
    due = tuple(p for p in host.pending if last or p.iteration <= wait)
    host = dataclasses.replace(host, pending=host.pending[len(due) :])
    if not c.learn.train_designer:
        return [], host, {}, {}
    opened = host.iteration % c.design.regenerate_every == 0
    pools = [*host.pool, *earlier.pool] if opened else [*earlier.pool, *host.pool]
    entries = {e.environment.id: e for e in pools}
    known = host.trackers if c.learn.designer_delay else earlier.trackers
    scored = [score_design(c, known, p, entries.get(p.environment_id)) for p in due]
    scale = advantages.role_scale(
        n_agent, len(due), c.design.regenerate_every, c.reward.max_role_scale
    )
    compared = mask_negative(scored)
    values = advantages.designer_advantages(
        compared, scale, c.reward.penalties, c.advantage.designer
    )
    samples = [
        Sample(role=Role.DESIGNER, records=(p.record,), advantage=value, version=p.version)
        for p, value in zip(due, values, strict=True)
        if value is not None
    ]
    raw = {p.environment_id: s.raw for p, s in zip(due, compared, strict=True) if s.raw is not None}
    measured = {
        "designer/masked": sum(a != b for a, b in zip(scored, compared, strict=True)),
        "designer/unknown": sum(s.raw is None and s.penalty is None for s in scored),
        "designer/role_scale": scale,
    }
    return samples, host, raw, measured if due else {}


def mask_negative(scored: Sequence[ScoredDesign]) -> list[ScoredDesign]:
    """Negative raw rewards, which only the blend's optional terms make, as unknown ones.

    They leave the update and enter no mean (arXiv 2608.19197).
    """
    return [
        dataclasses.replace(s, raw=None) if s.raw is not None and s.raw < 0 else s for s in scored
    ]


def score_design(
    c: config_dict.ConfigDict,
    known: Mapping[str, Tracker],
    pending: PendingDesign,
    entry: PoolEntry | None,
) -> ScoredDesign:
    """The raw reward of a design, or the penalty of one that was rejected or hung.

    `known` are the skills' trackers, with this iteration's returns where training is delayed. What
    leaking hints cost stands alone where they left no valid pair to reward.
    """
    design = ScoredDesign(skill=pending.skill, prompt=pending.prompt)
    if pending.reason is not Reason.ACCEPTED:
        by_reason = rewards.read_penalties(c.reward.penalty_by_reason)
        penalty = by_reason.get(pending.reason, c.reward.penalty)
        return dataclasses.replace(design, penalty=penalty)
    if entry is None:  # accepted, but never played
        return design
    if entry.hung:
        return dataclasses.replace(design, penalty=c.reward.hang_penalty)
    outcome = rewards.Outcome(
        window_SG=entry.plain,
        regret=entry.regret.mean,
        mu_slow=known.get(pending.skill, Tracker()).slow,
    )
    raw = rewards.designer_reward(c.reward.designer, outcome, rewards.terms(c.reward))
    leak = c.reward.leak_penalty * entry.leak_share
    if raw is None and leak:
        return dataclasses.replace(design, penalty=leak)
    return dataclasses.replace(design, raw=raw, leak=leak)


def potentials(c: config_dict.ConfigDict, host: HostState) -> dict[str, float | None]:
    """Metrics of what the trackers say is being learned in each skill."""
    return {
        f"tracker/{skill}/potential": trackers.learning_potential(
            tracker, c.reward.gamma_fast, c.reward.gamma_slow
        )
        for skill, tracker in host.trackers.items()
    }


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
                seeds=entry.environment.seeds,
                document=entry.environment.document,
            )
        )
    updated = memory.remember(host.memory, records, c.memory.size)
    return dataclasses.replace(host, memory=updated, skipped_in_row=skipped_in_row)
