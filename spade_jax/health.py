"""Whether a run is worth going on with: alarms that are raised once, and rules that stop it.

An alarm watches one metric. It is raised when the metric passes the alarm's bound, and again only
after it has been back within it. In iterations without the metric it stays as it is. Which alarms
are raised is part of `HostState`, so a resumed run repeats none. A field of 0 turns its alarm off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ml_collections import config_dict

from spade_jax.metrics import Value
from spade_jax.types import HostState


@dataclasses.dataclass(frozen=True)
class Alarm:
    """Watches `metric` against `config.health.<field>`: below it where `low`, else from it up."""

    metric: str
    field: str
    meaning: str  # of being beyond the bound, and what to try
    low: bool = False

    def passed(self, value: float, bound: float) -> bool:
        """Whether the value is beyond the bound; NaN always is."""
        return not (value >= bound if self.low else value < bound)


ALARMS: dict[str, Alarm] = {
    "few_valid": Alarm(
        "designer/valid_share",
        "valid_share",
        "the designer writes little that can be played: read the verdicts in environments/, lower "
        "optimizer.lr or design.temperature, or raise design.max_tokens",
        low=True,
    ),
    "duplicates": Alarm(
        "designer/duplicate_share",
        "duplicate_share",
        "the designer repeats itself: raise design.temperature, bring in more documents by "
        "corpus.path, or lower memory.positives",
    ),
    "alike_designs": Alarm(
        "designer/diversity",
        "diversity",
        "the designer's programs are nearly one: raise design.temperature, bring in more "
        "documents by corpus.path, or lower memory.positives",
        low=True,
    ),
    "no_contrast": Alarm(
        "agent/zero_variance_share",
        "zero_variance_share",
        "plays of an environment end alike and teach nothing: raise play.plays or "
        "play.temperature, and see agent/win_rate for whether all is too easy or too hard",
    ),
    "too_hard": Alarm(
        "agent/success",
        "success_low",
        "hardly a play is won: raise reward.w_plateau, play.max_turns or play.reply_tokens, or "
        "start from a stronger model",
        low=True,
    ),
    "too_easy": Alarm(
        "agent/success",
        "success_high",
        "hardly a play is lost: raise reward.w_plateau, or lower reward.plateau_high",
    ),
    "harmful_hints": Alarm(
        "designer/regret_ratio",
        "regret_ratio",
        "the agent does worse with the hint than without, by more than chance: read hinted plays "
        "in episodes/, and see whether replies are cut off",
        low=True,
    ),
    "leaking_hints": Alarm(
        "play/hint_leak_share",
        "hint_leak_share",
        "hints give answers away, and their plays count in no regret: say in the designer's "
        "prompt what a hint must not hold",
    ),
    "broken_plays": Alarm(
        "play/failed_share",
        "failed_share",
        "environments break in play: see play/failed for how, and raise validation.seeds or "
        "sandbox.step_seconds, or leave broken ones of a pool out by environments.probe",
    ),
    "missing_hints": Alarm(
        "play/hints_missing",
        "hints_missing",
        "environments got no hint, and have no regret: raise hint.max_tokens, and see whether the "
        "server at hint.endpoint_url answers",
    ),
    "silent_judge": Alarm(
        "designer/judge_unknown_share",
        "judge_unknown_share",
        "designs pass unjudged: raise judge.max_tokens, and see whether the server at "
        "judge.endpoint_url answers",
    ),
    "decided_agent": Alarm(
        "agent/entropy",
        "entropy",
        "the agent hardly explores any more: raise learn.entropy or play.temperature, or lower "
        "optimizer.lr",
        low=True,
    ),
    "decided_designer": Alarm(
        "designer/entropy",
        "entropy",
        "the designer hardly varies any more: raise learn.entropy or design.temperature, or "
        "lower reward.max_role_scale",
        low=True,
    ),
    "cut_off_plays": Alarm(
        "agent/truncated_share",
        "truncated_share",
        "plays end by a budget: raise play.max_turns, play.reply_tokens or play.context",
    ),
    "cut_off_designs": Alarm(
        "designer/truncated_share",
        "truncated_share",
        "designs end by their budget: raise design.max_tokens",
    ),
    "clipping": Alarm(
        "learn/clip_share",
        "clip_share",
        "updates leave the region in which their samples say anything: lower optimizer.lr, "
        "learn.passes or learn.minibatches",
    ),
    "sampler_gap": Alarm(
        "learn/logprob_gap_max",
        "logprob_gap",
        "sampler and learner disagree about a token: compare model.attention and "
        "model.compute_dtype on both sides, float32 settles it",
    ),
    "sampler_kl": Alarm(
        "learn/sampler_kl",
        "sampler_kl",
        "sampler and learner are different policies: keep learn.importance_cap on, and try "
        "model.compute_dtype float32",
    ),
    "few_effective": Alarm(
        "learn/effective_sample_size",
        "effective_sample_size",
        "a few tokens carry the whole update: lower learn.designer_delay or learn.importance_cap, "
        "or truncate sampling less (top_p, top_k)",
        low=True,
    ),
    "not_finite": Alarm(
        "learn/skipped_in_row",
        "skipped_in_row",
        "updates were left out for not being finite: lower optimizer.lr if it goes on",
    ),
}


@dataclasses.dataclass(frozen=True)
class Raised:
    """An alarm that has just been raised, as a line of `alarms.jsonl` and as a sentence."""

    iteration: int
    alarm: str
    metric: str
    value: float
    bound: float

    def __str__(self) -> str:
        alarm = ALARMS[self.alarm]
        side = "below" if alarm.low else "not below"
        return (
            f"alarm {self.alarm} in iteration {self.iteration}: {self.metric} is {self.value:.3g}, "
            f"{side} health.{alarm.field} = {self.bound:g}; {alarm.meaning}"
        )


def watch(
    c: config_dict.ConfigDict, iteration: int, measured: Mapping[str, Value], host: HostState
) -> tuple[HostState, tuple[Raised, ...]]:
    """The state with the alarms that are raised now, and those that were not before."""
    on, begun = [], []
    for name, alarm in ALARMS.items():
        value, bound = measured.get(alarm.metric), c.health[alarm.field]
        if not bound:
            continue
        if value is None:
            on += [name] if name in host.alarms else []
        elif alarm.passed(value, bound):
            on.append(name)
            if name not in host.alarms:
                begun.append(Raised(iteration, name, alarm.metric, value, bound))
    valid, few = measured.get("designer/valid_share"), host.few_valid_in_row
    if valid is not None:
        few = few + 1 if valid < c.health.stop_valid_share else 0
    host = dataclasses.replace(host, alarms=tuple(on), few_valid_in_row=few)
    return host, tuple(begun)


def reason_to_stop(
    c: config_dict.ConfigDict, measured: Mapping[str, Value], host: HostState
) -> str | None:
    """Why the run should end after this iteration, in one sentence; None to go on.

    Counters are saved as they are: a resumed run goes on, and stops again at the next iteration
    that counts if that is no better.
    """
    if measured.get("learn/skipped_in_row") and host.skipped_in_row >= c.learn.max_skipped:
        return (
            f"{host.skipped_in_row} updates in a row were not finite and were left out; give the "
            "same command to go on with new plays, or start from this folder (--config.model.path) "
            "in another --workdir with a lower --config.optimizer.lr"
        )
    valid = measured.get("designer/valid_share")
    if valid is not None and host.few_valid_in_row >= c.health.stop_after:
        return (
            f"under {c.health.stop_valid_share:.0%} of the designs were valid at "
            f"{host.few_valid_in_row} regenerations in a row; read the verdicts in environments/, "
            "and give the same command to go on, with another --config.health.stop_valid_share"
        )
    return None
