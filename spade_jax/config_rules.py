"""What values the fields of a training run may take, alone and together."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable

from ml_collections import config_dict

from spade_jax.design import hints, judge, prompts
from spade_jax.design.procedural import PROVIDERS
from spade_jax.learn.advantages import AGENT_ADVANTAGES, DESIGNER_GROUPS, PENALTIES
from spade_jax.learn.batching import AGGREGATIONS
from spade_jax.learn.difficulty import SCHEDULES
from spade_jax.learn.returns import RETURNS
from spade_jax.learn.rewards import DESIGNER_REWARDS
from spade_jax.policy.templates import THINK


@dataclasses.dataclass(frozen=True)
class Range:
    """Allowed numbers: from `low` (excluded where `above`) up to `high`, finite.

    In a tuple each number must be one of them.
    """

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return False
        after_low = value > self.low if self.above else value >= self.low
        return math.isfinite(value) and after_low and value <= self.high

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        return low if math.isinf(self.high) else f"{low} and at most {self.high:g}"


SOURCES = ("designer", "fixed", "procedural")  # of environments

COUNT = Range(1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above=True)
SHARE = Range(0, 1)
PART = Range(0, 1, above=True)

RANGES: dict[str, Range] = {
    "seed": NOT_NEGATIVE,
    "iterations": COUNT,
    "mesh": Range(-1),
    "hosts.connect_seconds": POSITIVE,
    "hosts.heartbeat_seconds": COUNT,
    "hosts.per_replica": COUNT,
    "model.max_loss": SHARE,
    "model.lora.rank": NOT_NEGATIVE,
    "model.lora.alpha": POSITIVE,
    "skills_per_epoch": COUNT,
    "corpus.seed": NOT_NEGATIVE,
    "corpus.max_words": COUNT,
    "memory.size": COUNT,
    "memory.positives": NOT_NEGATIVE,
    "memory.negatives": NOT_NEGATIVE,
    "memory.code_characters": COUNT,
    "design.num_envs": COUNT,
    "design.per_prompt": COUNT,
    "design.repair_turns": NOT_NEGATIVE,
    "design.regenerate_every": COUNT,
    "design.max_tokens": COUNT,
    "design.temperature": POSITIVE,
    "design.top_p": PART,
    "design.top_k": NOT_NEGATIVE,
    "design.min_p": SHARE,
    "environments.size": NOT_NEGATIVE,
    "environments.max_level": COUNT,
    "environments.window": COUNT,
    "environments.attempts": COUNT,
    "environments.success": PART,
    "environments.gamma_fast": PART,
    "environments.gamma_slow": PART,
    "environments.random_share": SHARE,
    "hint.max_tokens": COUNT,
    "hint.temperature": POSITIVE,
    "hint.top_p": PART,
    "hint.top_k": NOT_NEGATIVE,
    "hint.min_p": SHARE,
    "judge.play_characters": COUNT,
    "judge.max_tokens": COUNT,
    "judge.temperature": POSITIVE,
    "judge.top_p": PART,
    "judge.top_k": NOT_NEGATIVE,
    "judge.min_p": SHARE,
    "validation.seeds": COUNT,
    "validation.solve_seeds": COUNT,
    "validation.max_trivial": SHARE,
    "validation.max_random": SHARE,
    "novelty.threshold": PART,
    "novelty.quota": NOT_NEGATIVE,
    "pool.retire_easy": SHARE,
    "pool.retire_hard": SHARE,
    "pool.min_plays": COUNT,
    "pool.keep": NOT_NEGATIVE,
    "sandbox.step_seconds": POSITIVE,
    "sandbox.cpu_seconds": POSITIVE,
    "sandbox.memory_mb": COUNT,
    "sandbox.max_instances": COUNT,
    "sandbox.max_observation": COUNT,
    "play.plays": COUNT,
    "play.hint_plays": NOT_NEGATIVE,
    "play.max_turns": COUNT,
    "play.reply_tokens": COUNT,
    "play.context": COUNT,
    "play.temperature": POSITIVE,
    "play.top_p": PART,
    "play.top_k": NOT_NEGATIVE,
    "play.min_p": SHARE,
    "sampling.slots": COUNT,
    "sampling.block": COUNT,
    "sampling.tensor": NOT_NEGATIVE,
    "sampling.expert": NOT_NEGATIVE,
    "reward.discount": PART,
    "reward.w_regret": NOT_NEGATIVE,
    "reward.w_plateau": NOT_NEGATIVE,
    "reward.regret_scale": POSITIVE,
    "reward.plateau_low": Range(-1, 1),
    "reward.plateau_high": Range(-1, 1),
    "reward.plateau_ramp": POSITIVE,
    "reward.w_micro": NOT_NEGATIVE,
    "reward.micro_scale": POSITIVE,
    "reward.w_frontier": NOT_NEGATIVE,
    "reward.frontier_scale": POSITIVE,
    "reward.w_variance": NOT_NEGATIVE,
    "reward.penalty": Range(-10, 0),
    "reward.hang_penalty": Range(-10, 0),
    "reward.leak_penalty": Range(-10, 0),
    "reward.max_role_scale": POSITIVE,
    "reward.gamma_fast": PART,
    "reward.gamma_slow": PART,
    "advantage.ema_decay": SHARE,
    "learn.designer_delay": NOT_NEGATIVE,
    "learn.passes": COUNT,
    "learn.minibatches": COUNT,
    "learn.row_tokens": COUNT,
    "learn.rows": COUNT,
    "learn.clip_low": PART,
    "learn.clip_high": POSITIVE,
    "learn.importance_cap": NOT_NEGATIVE,
    "learn.kl": NOT_NEGATIVE,
    "learn.entropy": NOT_NEGATIVE,
    "learn.logprob_gap": NOT_NEGATIVE,
    "learn.max_skipped": COUNT,
    "learn.ema_decay": SHARE,
    "optimizer.lr": POSITIVE,
    "optimizer.final_norm_rate": POSITIVE,
    "optimizer.warmup": NOT_NEGATIVE,
    "optimizer.beta1": SHARE,
    "optimizer.beta2": SHARE,
    "optimizer.eps": POSITIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.clip_norm": POSITIVE,
    "health.valid_share": SHARE,
    "health.duplicate_share": SHARE,
    "health.diversity": SHARE,
    "health.zero_variance_share": SHARE,
    "health.success_low": SHARE,
    "health.success_high": SHARE,
    "health.regret_ratio": Range(-math.inf, 0),
    "health.hint_leak_share": SHARE,
    "health.hints_missing": NOT_NEGATIVE,
    "health.judge_unknown_share": SHARE,
    "health.failed_share": SHARE,
    "health.entropy": NOT_NEGATIVE,
    "health.truncated_share": SHARE,
    "health.clip_share": SHARE,
    "health.logprob_gap": NOT_NEGATIVE,
    "health.sampler_kl": NOT_NEGATIVE,
    "health.effective_sample_size": SHARE,
    "health.skipped_in_row": NOT_NEGATIVE,
    "health.stop_valid_share": SHARE,
    "health.stop_after": COUNT,
    "checkpoint.every": COUNT,
    "checkpoint.keep": COUNT,
    "checkpoint.keep_every": NOT_NEGATIVE,
    "watchdog.start": NOT_NEGATIVE,
    "watchdog.iteration": NOT_NEGATIVE,
    "watchdog.design": NOT_NEGATIVE,
    "watchdog.validate": NOT_NEGATIVE,
    "watchdog.hint": NOT_NEGATIVE,
    "watchdog.play": NOT_NEGATIVE,
    "watchdog.learn": NOT_NEGATIVE,
    "watchdog.evaluate": NOT_NEGATIVE,
    "watchdog.checkpoint": NOT_NEGATIVE,
    "evaluation.every": NOT_NEGATIVE,
    "evaluation.per_level": COUNT,
    "evaluation.seed": NOT_NEGATIVE,
    "evaluation.limit": NOT_NEGATIVE,
    "evaluation.k": NOT_NEGATIVE,
    "evaluation.reply_tokens": NOT_NEGATIVE,
    "log.episodes": Range(-1),
}

CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": ("deterministic", "overlap"),
    "model.compute_dtype": ("float32", "bfloat16"),
    "model.attention": ("auto", "einsum", "dot_product", "cudnn", "flash", "splash"),
    "model.remat": ("none", "products", "dots", "attention", "layer"),
    "model.think": THINK,
    "design.thinking": ("auto", "on", "off"),
    "play.thinking": ("auto", "on", "off"),
    "design.prompts": prompts.sets(),
    "environments.source": SOURCES,
    "environments.provider": PROVIDERS,
    "environments.difficulty": SCHEDULES,
    "hint.source": hints.SOURCES,
    "log.wandb": ("off", "online", "offline"),
    "judge.source": judge.SOURCES,
    "reward.episode_return": tuple(RETURNS),
    "reward.designer": tuple(DESIGNER_REWARDS),
    "reward.penalties": PENALTIES,
    "advantage.agent": tuple(AGENT_ADVANTAGES),
    "advantage.designer": tuple(DESIGNER_GROUPS),
    "learn.aggregation": AGGREGATIONS,
    "optimizer.first_moment_dtype": ("float32", "bfloat16"),
}


def actor_only(c: config_dict.ConfigDict) -> bool:
    """Whether environments are given: nothing is designed, and the designer's fields rest."""
    return c.environments.source != "designer"


# (holds, sentence with the values and the remedy), checked in order once each field is in range.
RULES: tuple[tuple[Callable[[config_dict.ConfigDict], bool], str], ...] = (
    (
        lambda c: c.log.wandb == "off" or importlib.util.find_spec("wandb") is not None,
        "log.wandb is {c.log.wandb}, but the package wandb is missing; run pip install -e "
        "'.[wandb]' in the repository, or set --config.log.wandb=off",
    ),
    (
        lambda c: len(c.mesh) == 4 and 0 not in c.mesh and c.mesh.count(-1) <= 1,
        "mesh is {c.mesh} but must name four numbers of devices, for data, fsdp, tensor and "
        "expert, at most one of them -1; correct --config.mesh",
    ),
    (
        lambda c: actor_only(c) or c.skills_per_epoch <= len(c.skills),
        "skills_per_epoch is {c.skills_per_epoch} but only {n_skills} skills are listed; lower it "
        "or extend skills",
    ),
    (
        lambda c: not 0 < c.environments.size < c.design.num_envs,
        "environments.size is {c.environments.size} but must hold design.num_envs = "
        "{c.design.num_envs} environments; raise it, or set 0 to take all of the pool",
    ),
    (
        lambda c: c.environments.source == "fixed" or not c.environments.path,
        "environments.path is {c.environments.path!r} but environments.source is "
        "{c.environments.source!r}, which reads no pool; set environments.source=fixed",
    ),
    (
        lambda c: c.environments.gamma_fast > c.environments.gamma_slow,
        "environments.gamma_fast is {c.environments.gamma_fast} but must exceed "
        "environments.gamma_slow ({c.environments.gamma_slow}); raise it",
    ),
    (
        lambda c: c.memory.size >= c.design.num_envs + c.pool.keep,
        "memory.size is {c.memory.size} but must hold the design.num_envs + pool.keep = "
        "{c.design.num_envs} + {c.pool.keep} environments of a pool; raise memory.size",
    ),
    (
        lambda c: c.pool.retire_hard < c.pool.retire_easy,
        "pool.retire_hard is {c.pool.retire_hard} but must be below pool.retire_easy "
        "({c.pool.retire_easy}); swap them, or set 0 and 1 to retire none",
    ),
    (
        lambda c: not (c.pool.keep and actor_only(c)),
        "pool.keep is {c.pool.keep} but with environments.source = {c.environments.source!r} every "
        "epoch draws its own; set pool.keep to 0",
    ),
    (
        lambda c: c.design.num_envs % c.design.per_prompt == 0,
        "design.num_envs is {c.design.num_envs} but must be a multiple of design.per_prompt "
        "({c.design.per_prompt}); change one of them",
    ),
    (
        lambda c: actor_only(c) or c.advantage.designer != "prompt" or c.design.per_prompt > 1,
        "advantage.designer is 'prompt' but design.per_prompt is {c.design.per_prompt}, so that "
        "each valid design is compared with itself; raise design.per_prompt or choose skill",
    ),
    (
        lambda c: c.hint.source != "reply" or not actor_only(c),
        "hint.source is 'reply' but environments.source is {c.environments.source!r}, so that no "
        "designer replies; choose method, self or endpoint",
    ),
    (
        lambda c: c.hint.source != "endpoint" or (c.hint.endpoint_url and c.hint.endpoint_model),
        "hint.source is 'endpoint' but hint.endpoint_url is {c.hint.endpoint_url!r} and "
        "hint.endpoint_model {c.hint.endpoint_model!r}; set both, or choose another source",
    ),
    (
        lambda c: c.judge.source != "endpoint" or (c.judge.endpoint_url and c.judge.endpoint_model),
        "judge.source is 'endpoint' but judge.endpoint_url is {c.judge.endpoint_url!r} and "
        "judge.endpoint_model {c.judge.endpoint_model!r}; set both, or choose another source",
    ),
    (
        lambda c: c.play.context > c.play.reply_tokens,
        "play.context is {c.play.context} but must exceed play.reply_tokens "
        "({c.play.reply_tokens}) to hold a prompt too; raise play.context",
    ),
    (
        lambda c: len(c.learn.row_tokens) == len(c.learn.rows),
        "learn.row_tokens is {c.learn.row_tokens} and learn.rows is {c.learn.rows}, which must "
        "name as many lengths as counts; correct one of them",
    ),
    (
        lambda c: list(c.learn.row_tokens) == sorted(set(c.learn.row_tokens)),
        "learn.row_tokens is {c.learn.row_tokens} but lengths must ascend; sort them, and "
        "learn.rows with them",
    ),
    (
        lambda c: max(c.learn.row_tokens) >= c.play.context,
        "learn.row_tokens is {c.learn.row_tokens} but the longest must hold an episode of "
        "play.context ({c.play.context}) tokens; raise it or lower play.context",
    ),
    (
        lambda c: actor_only(c) or max(c.learn.row_tokens) > c.design.max_tokens,
        "learn.row_tokens is {c.learn.row_tokens} but the longest must exceed design.max_tokens "
        "({c.design.max_tokens}) to hold the prompt too; raise it",
    ),
    (
        lambda c: c.learn.minibatches <= c.design.num_envs * c.play.plays,
        "learn.minibatches is {c.learn.minibatches} but an iteration has only "
        "design.num_envs * play.plays = {n_plays} episodes; lower learn.minibatches",
    ),
    (
        lambda c: actor_only(c) or c.learn.designer_delay <= c.design.regenerate_every,
        "learn.designer_delay is {c.learn.designer_delay} but an environment is played for "
        "design.regenerate_every = {c.design.regenerate_every} iterations only; lower the delay",
    ),
    (
        lambda c: c.sampling.slots <= c.sandbox.max_instances,
        "sampling.slots is {c.sampling.slots} but each plays in a process of its own, of which "
        "sandbox.max_instances allows {c.sandbox.max_instances}; lower sampling.slots",
    ),
    (
        lambda c: c.reward.plateau_low <= c.reward.plateau_high,
        "reward.plateau_low is {c.reward.plateau_low} but must not exceed reward.plateau_high "
        "({c.reward.plateau_high}); swap them",
    ),
    (
        lambda c: c.reward.gamma_fast > c.reward.gamma_slow,
        "reward.gamma_fast is {c.reward.gamma_fast} but must exceed reward.gamma_slow "
        "({c.reward.gamma_slow}); raise it",
    ),
    (
        lambda c: (
            actor_only(c) or c.play.hint_plays > 0 or c.reward.designer not in ("blend", "regret")
        ),
        "play.hint_plays is 0 but reward.designer is {c.reward.designer!r}, which needs hinted "
        "plays; raise play.hint_plays or choose solve_rate, learning_potential or micro_lp",
    ),
    (
        lambda c: not c.reward.leak_penalty or c.play.hint_plays > 0,
        "reward.leak_penalty is {c.reward.leak_penalty} but play.hint_plays is 0, so that no hint "
        "is ever shown; raise play.hint_plays or set reward.leak_penalty to 0",
    ),
    (
        lambda c: not c.play.paired_plays or c.play.hint_plays > c.play.plays,
        "play.paired_plays is True but the {c.play.hint_plays} hinted plays (play.hint_plays) all "
        "have partners among play.plays = {c.play.plays}; set it to False",
    ),
    (
        lambda c: c.reward.designer == "blend" or not (c.reward.w_micro or c.reward.w_frontier),
        "reward.w_micro and reward.w_frontier are {c.reward.w_micro} and {c.reward.w_frontier} but "
        "only the blend has these terms, and reward.designer is {c.reward.designer!r}; set both "
        "to 0 or choose blend",
    ),
    (
        lambda c: (
            (c.reward.designer != "micro_lp" and not c.reward.w_micro)
            or min(c.learn.designer_delay + 1, c.design.regenerate_every) > 1
        ),
        "reward.designer = micro_lp and reward.w_micro compare the iterations of a window, which "
        "is one with learn.designer_delay = {c.learn.designer_delay} and design.regenerate_every = "
        "{c.design.regenerate_every}; raise these",
    ),
    (
        lambda c: c.sandbox.cpu_seconds >= c.sandbox.step_seconds,
        "sandbox.cpu_seconds is {c.sandbox.cpu_seconds} but must allow one step of "
        "sandbox.step_seconds ({c.sandbox.step_seconds}); raise sandbox.cpu_seconds",
    ),
    (
        lambda c: c.learn.ema_decay < 1,
        "learn.ema_decay is {c.learn.ema_decay}, with which the mean never moves; lower it, "
        "0.99 spans the last hundred updates",
    ),
    (
        lambda c: c.optimizer.beta1 < 1 and c.optimizer.beta2 < 1,
        "optimizer.beta1 and optimizer.beta2 are {c.optimizer.beta1} and {c.optimizer.beta2} but "
        "must be below 1; the published values are 0.9 and 0.98",
    ),
)
