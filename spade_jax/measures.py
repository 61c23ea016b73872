"""The numbers an iteration is described by; `metrics.METRICS` says what each one means."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Container, Mapping, Sequence

from spade_jax.design.novelty import diversity
from spade_jax.evals.heldout import Item, by, won
from spade_jax.evals.intervals import mean
from spade_jax.learn.regret import pool_regrets
from spade_jax.metrics import Value
from spade_jax.trackers import Shown
from spade_jax.types import (
    Arm,
    Design,
    Episode,
    HostState,
    MemoryRecord,
    PoolEntry,
    Reason,
    Role,
    Sample,
    StopReason,
    Verdict,
    class_name,
)

Measured = dict[str, Value]


@dataclasses.dataclass(frozen=True)
class Made:
    """What an iteration made, to be measured and written down."""

    designs: Sequence[Design]
    verdicts: Sequence[Verdict]
    episodes: Sequence[Episode]
    samples: Sequence[Sample]
    rewards: Mapping[str, float]  # raw designer reward of the valid designs trained on, by id
    scored: Mapping[str, Value]  # of the designer's comparison and of the trackers
    learned: Mapping[str, Value]
    tokens_sampled: int
    hints_missing: int | None = None  # of the environments that were to get one; None: none were


def of_iteration(made: Made, host: HostState, training: Container[str]) -> Measured:
    """Everything but times; `host` is the state after the iteration.

    `training` holds fingerprints of the programs the model was warm-started on.
    """
    seconds = {
        "corpus/position": host.corpus_position,
        "sample/tokens": made.tokens_sampled,
    }
    rewards = list(made.rewards.values())
    return {
        **of_play(made.episodes, host.pool),
        **of_designs(made.designs, made.verdicts, training),
        **of_novelty(made.designs, made.verdicts, host.memory),
        **of_samples(made.samples),
        **made.learned,
        **({"designer/reward_mean": _mean(rewards)} if rewards else {}),
        **made.scored,
        **({} if made.hints_missing is None else {"play/hints_missing": made.hints_missing}),
        **of_trackers(host),
        **of_difficulty(host),
        **of_memory(host.memory),
        **seconds,
    }


def shown(made: Made, host: HostState) -> Shown:
    """Distributions of an iteration, and its last accepted design and that of highest regret."""
    regrets = {
        entry.environment.id: entry.regret.mean
        for entry in host.pool
        if entry.regret.mean is not None
    }
    windows = [entry.plain[-1] for entry in host.pool if entry.plain and entry.plain[-1]]
    histograms = {
        "agent/returns": _returns([e for e in made.episodes if e.arm is Arm.PLAIN]),
        "agent/returns_hinted": _returns([e for e in made.episodes if e.arm is Arm.HINTED]),
        "agent/win_rates": [_mean([r > 0.5 for r in window]) for window in windows],
        "designer/regrets": list(regrets.values()),
        "designer/rewards": list(made.rewards.values()),
    }
    accepted = {
        d.task.environment_id: d
        for d, verdict in zip(made.designs, made.verdicts, strict=True)
        if verdict.accepted
    }
    chosen = {"designer/last": next(reversed(accepted), None)}
    if known := accepted.keys() & regrets.keys():
        chosen["designer/best"] = max(sorted(known), key=regrets.__getitem__)
    texts = {
        name: _in_words(accepted[each], regrets.get(each)) for name, each in chosen.items() if each
    }
    return Shown({name: values for name, values in histograms.items() if values}, texts)


def _in_words(design: Design, regret: float | None) -> str:
    """A design as Markdown."""
    task = design.task
    known = "unknown" if regret is None else f"{regret:+.3f}"
    code = "".join(f"    {line}\n" for line in design.code.splitlines())
    return f"**{class_name(design.code)}**, {task.skill}, regret {known}\n\n{code}"


def of_play(episodes: Sequence[Episode], pool: Sequence[PoolEntry]) -> Measured:
    """Returns, lengths and failures of both arms, and regret where hinted plays were made."""
    plain = [e for e in episodes if e.arm is Arm.PLAIN]
    hinted = [e for e in episodes if e.arm is Arm.HINTED]
    replies = [turn for e in plain for turn in e.turns]
    measured: Measured = {
        "agent/return_mean": _mean(_returns(plain)),
        "agent/success": _mean([won(e) for e in plain]),
        "agent/turns_mean": _mean([len(e.turns) for e in plain]),
        "agent/reply_tokens_mean": _ratio(sum(e.tokens_sampled for e in plain), len(replies)),
        "agent/truncated_share": _mean([e.truncated for e in plain]),
        "agent/no_action_share": _mean([turn.action is None for turn in replies]),
        "play/environments": len(pool),
        "play/failed_share": _mean([e.failure is not None for e in episodes]),
        "play/hung_share": _mean([entry.hung for entry in pool]),
        "play/retired_share": _mean([entry.retired for entry in pool]),
    }
    for kind, n in collections.Counter(e.failure.kind for e in episodes if e.failure).items():
        measured[f"play/failed/{kind}"] = n
    playing = [entry for entry in pool if not entry.retired]
    windows = [entry.plain[-1] for entry in playing if entry.plain and entry.plain[-1]]
    measured["agent/zero_variance_share"] = _mean([max(w) - min(w) <= 1e-6 for w in windows])
    rates = [_mean([r > 0.5 for r in w]) for w in windows]
    tenths = collections.Counter(min(int(rate * 10), 9) for rate in rates)
    measured |= {f"agent/win_rate/{k}": _ratio(tenths[k], len(rates)) for k in range(10)}
    if hinted:
        new = {e.environment_id for e in hinted}
        pooled = pool_regrets([entry.regret for entry in pool if entry.environment.id in new])
        measured |= {
            "agent/return_hinted_mean": _mean(_returns(hinted)),
            "play/hint_leak_share": _mean([e.hint_leaks for e in hinted]),
            "designer/regret_mean": pooled.mean,
            "designer/regret_stderr": pooled.stderr,
            "designer/regret_ratio": _ratio(pooled.mean, pooled.stderr),
            "designer/regret_pairs": pooled.pairs,
        }
    return measured


def of_designs(
    designs: Sequence[Design], verdicts: Sequence[Verdict], training: Container[str]
) -> Measured:
    """How the designs of a regeneration fared; nothing in other iterations."""
    if not designs:
        return {}
    n = len(designs)
    repaired = [v.accepted for d, v in zip(designs, verdicts, strict=True) if d.repairs]
    judged = [v.judge == "unknown" for v in verdicts if v.judge]
    rejected = collections.Counter(v.reason for v in verdicts if not v.accepted)
    near = [v for v in verdicts if v.reason is Reason.NEW and v.resembles]
    accepted = [v.fingerprint for v in verdicts if v.accepted]
    programs = [d for d, v in zip(designs, verdicts, strict=True) if v.accepted]
    return {
        "designer/valid_share": len(accepted) / n,
        "designer/duplicate_share": (rejected[Reason.NEW] - len(near)) / n,
        "designer/new_share": _mean([mark not in training for mark in accepted]),
        "designer/class_names": len({class_name(d.code) for d in programs}),
        "designer/truncated_share": sum(d.stop is StopReason.LENGTH for d in designs) / n,
        "designer/reply_tokens_mean": sum(sum(d.record.action) for d in designs) / n,
        **{f"designer/reject/{reason}": count / n for reason, count in rejected.items()},
        **({"designer/repaired_share": sum(repaired) / n} if repaired else {}),
        **({"designer/judge_unknown_share": _mean(judged)} if judged else {}),
    }


def of_novelty(
    designs: Sequence[Design], verdicts: Sequence[Verdict], memory: Sequence[MemoryRecord]
) -> Measured:
    """How unlike one another the programs of a regeneration are, and those remembered after it."""
    if not designs:
        return {}
    marks = [v.fingerprint for v in verdicts if v.fingerprint]
    accepted = [d.code for d, v in zip(designs, verdicts, strict=True) if v.accepted]
    return {
        "designer/distinct_share": _ratio(len(set(marks)), len(marks)),
        "designer/diversity": diversity(accepted),
        "designer/resemblance_mean": _mean(
            [v.resemblance for v in verdicts if v.resemblance is not None]
        ),
        "designer/near_duplicate_share": _mean([bool(v.resembles) for v in verdicts]),
        "memory/diversity": diversity([record.code for record in memory]),
    }


def of_memory(memory: Sequence[MemoryRecord]) -> Measured:
    """How much is remembered, and how evenly of the skills."""
    counts = collections.Counter(record.skill for record in memory).values()
    shares = [count / len(memory) for count in counts]
    return {
        "memory/size": len(memory),
        "memory/skill_entropy": math.fsum(-s * math.log(s) for s in shares) if shares else None,
    }


def of_samples(samples: Sequence[Sample]) -> Measured:
    """How many conversations of each role were learned from, and how strongly."""
    roles = collections.Counter(sample.role for sample in samples)
    return {
        **{f"learn/samples/{role}": roles[role] for role in Role},
        "learn/advantage_abs_mean": _mean([abs(s.advantage) for s in samples]),
    }


def of_trackers(host: HostState) -> Measured:
    """Both means of every skill."""
    return {
        f"tracker/{skill}/{name}": value
        for skill, tracker in host.trackers.items()
        for name, value in (("fast", tracker.fast), ("slow", tracker.slow))
    }


def of_difficulty(host: HostState) -> Measured:
    """Levels of procedural tasks: those played, and the tops that a rising window has reached."""
    tasks = list(host.difficulty.values())
    if not tasks:
        return {}
    played = [entry.environment.level for entry in host.pool if not entry.retired]
    rising = not any(task.trackers for task in tasks)
    return {
        "difficulty/level_mean": _mean(played),
        **({"difficulty/top_mean": _mean([task.top for task in tasks])} if rising else {}),
    }


def of_evaluation(items: Sequence[Item], episodes: Sequence[Episode]) -> Measured:
    """Success on the held-out set, by family and level."""
    overall = mean([won(e) for e in episodes])
    families = by(lambda item: item.family, items, episodes)
    levels = by(lambda item: item.level, items, episodes)
    return {
        "evaluation/success": overall.value,
        "evaluation/stderr": overall.half_width / 1.96,
        **{f"evaluation/{k}/success": _mean([won(e) for e in v]) for k, v in families.items()},
        **{f"evaluation/level/{k}/success": _mean([won(e) for e in v]) for k, v in levels.items()},
    }


def _returns(episodes: Sequence[Episode]) -> list[float]:
    return [e.episode_return for e in episodes if e.episode_return is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
