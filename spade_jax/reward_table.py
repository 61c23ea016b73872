"""Every return, reward and advantage on one fixed set of inputs, beside its formula.

    python -m spade_jax.reward_table

What is printed comes from the functions that training uses, under the default config with the
fields named in each row, so that it can be held against the published formulas (arXiv 2608.19197).
A dash stands for what is unknown or leaves the update: failed plays, designs whose reward rests on
nothing, and designs whose raw reward is negative.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from ml_collections import config_dict

from spade_jax import config, scoring
from spade_jax.learn import advantages, rewards, trackers
from spade_jax.learn.advantages import ScoredDesign
from spade_jax.learn.regret import paired_regret
from spade_jax.learn.returns import RETURNS, episode_return
from spade_jax.program import run_program
from spade_jax.types import (
    Arm,
    Environment,
    Episode,
    EpisodeEnd,
    Kind,
    PendingDesign,
    PoolEntry,
    Reason,
    TokenRecord,
    Tracker,
)

NAME, CELL = 46, 12  # widths of columns

# -- inputs -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Input:
    """One design with the returns of its environment's plays; None is a failed play."""

    name: str
    skill: str
    prompt: str
    reason: Reason = Reason.ACCEPTED
    plain: tuple[tuple[float | None, ...], ...] = ()  # by iteration of the window
    hinted: tuple[float | None, ...] = ()  # on the seeds of the first iteration
    leaks: tuple[int, ...] = ()  # hinted plays whose hint holds the answer
    hung: bool = False


INPUTS = (
    Input(
        name="climbs",
        skill="logic",
        prompt="p",
        plain=((0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 1, 1, 0)),
        hinted=(1, 0, 1, 0),
    ),
    Input(
        name="level", skill="logic", prompt="p", plain=((1, 0, 1, 0),) * 4, hinted=(1, 0.3, 1, 0)
    ),
    Input(name="mute", skill="logic", prompt="q", plain=((1, 0, 0, 0),) * 4, hinted=(None,) * 4),
    Input(name="rejected", skill="logic", prompt="q", reason=Reason.LEAK),
    Input(
        name="leaky",
        skill="space",
        prompt="r",
        plain=((0, 0, 0, 0),) * 4,
        hinted=(1, 1, None, 1),
        leaks=(3,),
    ),
    Input(
        name="falls",
        skill="space",
        prompt="r",
        plain=((1, 1, 1, 1), (1, 1, None, None), (1, 1, 0, 0)),
        hinted=(1, 1, 1, 0),
    ),
    Input(name="hung", skill="space", prompt="r", plain=((None,) * 4,), hung=True),
)
TRACKERS = {"logic": Tracker(fast=0.5, slow=0.25), "space": Tracker(fast=0.4, slow=0.5)}
N_AGENT, EVERY = 14, 4  # samples of the agent beside these designs, iterations of an epoch
GROUP, BASELINE = (1.0, 0.0, None, 0.5), 0.25  # returns of one environment's plays
EPISODES = (  # rewards by step, and whether the environment ended it
    ((0.5, -0.25, 0.5), True),
    ((1.0, 2.0), True),
    ((1.0, 0.5), False),
    ((math.nan, 1.0), True),
)


@dataclasses.dataclass(frozen=True)
class Option:
    """A variant of the designer's reward, its formula, and the fields of `reward` that give it."""

    name: str
    formula: str
    fields: dict[str, object]


OPTIONS = (
    Option("regret", "max(0, regret)", {"designer": "regret"}),
    Option("blend", "0.4 clip(regret / 0.15, 0, 1) + 0.6 plateau(win)", {"designer": "blend"}),
    Option("solve_rate", "plateau(win)", {"designer": "solve_rate"}),
    Option("learning_potential", "|win - mu_slow|", {"designer": "learning_potential"}),
    Option("micro_lp", "max(0, late - early)", {"designer": "micro_lp"}),
    Option("blend, w_micro 0.1", "blend + 0.1 rise / 0.10", {"w_micro": 0.1}),
    Option("blend, w_frontier 0.1", "blend - 0.1 (win - 0.5)^2 / 0.08", {"w_frontier": 0.1}),
    Option(
        "blend, plateau 0.2 to 0.4, ramp 0.2",
        "the same formula",
        {"plateau_low": 0.2, "plateau_high": 0.4, "plateau_ramp": 0.2},
    ),
    Option(
        "regret, w_variance 1",
        "regret + exp(-(var - 0.25)^2 / 0.02)",
        {"designer": "regret", "w_variance": 1.0},
    ),
)
PRICES = {  # of rejections and leaks, which change no raw reward
    "blend, leak_penalty -0.5": {"leak_penalty": -0.5},
    "blend, penalty of reason leak -1": {"penalty_by_reason": '{"leak": -1.0}'},
    "blend, penalty 0": {"penalty": 0.0},
}


def configured(fields: dict[str, object]) -> config_dict.ConfigDict:
    """The default config with fields of its group `reward`."""
    c = config.load("default")
    c.reward.update(fields)
    config.check(c)
    return c


def entry(given: Input) -> PoolEntry | None:
    """What the pool would hold of an environment after its window; None of a rejected design."""
    if given.reason is not Reason.ACCEPTED:
        return None
    hinted = _episodes(Arm.HINTED, given.hinted, given.leaks)
    return PoolEntry(
        environment=Environment(
            id=given.name, kind=Kind.GAME, skill=given.skill, code="", iteration=0
        ),
        plain=tuple(tuple(r for r in returns_G if r is not None) for returns_G in given.plain),
        regret=paired_regret(_episodes(Arm.PLAIN, given.plain[0]), hinted),
        hung=given.hung,
        leak_share=len(given.leaks) / len(hinted) if hinted else 0.0,
    )


def _episodes(
    arm: Arm, returns_G: Sequence[float | None], leaks: Sequence[int] = ()
) -> list[Episode]:
    return [
        Episode(
            environment_id="",
            arm=arm,
            play=play,
            seed=play,
            turns=(),
            end=EpisodeEnd.FAILED if value is None else EpisodeEnd.TERMINATED,
            records=(),
            episode_return=value,
            hint="Add." if arm is Arm.HINTED else None,
            hint_leaks=play in leaks,
        )
        for play, value in enumerate(returns_G)
    ]


def scored(c: config_dict.ConfigDict) -> list[ScoredDesign]:
    """Raw reward or penalty of each input under this config."""
    pending = [
        PendingDesign(
            environment_id=given.name,
            skill=given.skill,
            iteration=0,
            version=0,
            reason=given.reason,
            record=TokenRecord(),
            prompt=given.prompt,
        )
        for given in INPUTS
    ]
    return [
        scoring.score_design(c, TRACKERS, p, entry(given))
        for p, given in zip(pending, INPUTS, strict=True)
    ]


# -- tables -----------------------------------------------------------------------------------


def row(name: str, values: Iterable[object], formula: str = "") -> str:
    """One line: a name, right-aligned cells, and a formula or a remark."""
    cells = "".join(f"{_cell(value):>{CELL}}" for value in values)
    return f"{name:<{NAME}}{cells}   {formula}".rstrip()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:z.4f}" if isinstance(value, float) else str(value)


def episode_returns() -> list[str]:
    c = config.load("default")
    names = [f"{list(rewards_T)}{'' if ended else ', cut off'}" for rewards_T, ended in EPISODES]
    lines = ["Episode returns of rewards by step (T steps; a budget cuts off)", row("", RETURNS)]
    for name, (rewards_T, ended) in zip(names, EPISODES, strict=True):
        values = [episode_return(rewards_T, ended, mode, c.reward.discount) for mode in RETURNS]
        lines.append(row(name, values))
    return [
        *lines,
        "final: clip(r_T, -1, 1); sum: clip(sum r_t, -1, 1); discounted: sum 0.99^t r_t;",
        "cut off: 0; a reward that is no number: the episode failed",
    ]


def agent_advantages() -> list[str]:
    formulas = {
        "grpo": "(r - mean) / std over the valid plays",
        "centred": "r - mean",
        "ema_baseline": f"r - baseline, which is {BASELINE}",
    }
    lines = ["Agent's advantages within one environment", row("return", GROUP)]
    for mode in advantages.AGENT_ADVANTAGES:
        values = advantages.agent_advantages(mode, GROUP, BASELINE)
        lines.append(row(mode, values, formulas[mode]))
    updated = advantages.update_baselines({"": BASELINE}, {"": GROUP}, 0.5)
    return [*lines, row("next baseline", updated.values(), "0.5 baseline + 0.5 mean")]


def plays() -> list[str]:
    """The inputs themselves, and what a window shows."""
    lines = ["Designs and the plays of their environments (- failed, ! the hint leaks)"]
    for given in INPUTS:
        plain = " | ".join(" ".join(map(_play, returns_G)) for returns_G in given.plain)
        hinted = " ".join(_play(r) + "!" * (n in given.leaks) for n, r in enumerate(given.hinted))
        what = f"plain {plain}" if plain else f"rejected: {given.reason}"
        what += f"   hinted {hinted}" if hinted else ""
        what += "   hung" if given.hung else ""
        lines.append(f"{given.name:<12}{given.skill:<8}prompt {given.prompt}   {what}")
    return lines


def _play(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def windows() -> list[str]:
    entries = {given.name: found for given in INPUTS if (found := entry(given))}
    quantities = {
        "win": (rewards.win, "mean of all plays"),
        "var": (rewards.variance, "mean square about it"),
        "late - early": (rewards.late_minus_early, "halves, plays pooled, the middle is late"),
        "rise": (rewards.rise, "slope, weighted by plays, times (steps - 1)"),
    }
    lines = ["What the plays show", row("", entries)]
    for name, (quantity, formula) in quantities.items():
        lines.append(row(name, (quantity(e.plain) for e in entries.values()), formula))
    regrets = [e.regret for e in entries.values()]
    return [
        *lines,
        row("regret", (r.mean for r in regrets), "mean of hinted - plain over valid pairs"),
        row(
            "its standard error", (r.stderr for r in regrets), "sqrt(sum (d - mean)^2 / (n-1) / n)"
        ),
        row("pairs n", (r.pairs for r in regrets), "no failed arm, no hint that leaks"),
        row("leaking hints", (e.leak_share for e in entries.values()), "share of hinted plays"),
    ]


def skills() -> list[str]:
    c = config.load("default")
    fast, slow = c.reward.gamma_fast, c.reward.gamma_slow
    lines = ["Trackers of skills, before and after a mean return of 1"]
    lines.append(row("", ("mu_fast", "mu_slow", "potential")))
    for name, tracker in TRACKERS.items():
        after = trackers.update_tracker(tracker, 1.0, fast, slow)
        for when, t in (("", tracker), (", after", after)):
            potential = trackers.learning_potential(t, fast, slow)
            lines.append(row(name + when, (t.fast, t.slow, potential)))
    return [
        *lines,
        f"mu <- (1 - g) mu + g x, g_fast = {fast}, g_slow = {slow};",
        "potential: |mu_fast - mu_slow| / (2 (g_fast - g_slow))",
    ]


def raw_rewards() -> list[str]:
    known = [given.name for given in INPUTS if given.reason is Reason.ACCEPTED and not given.hung]
    lines = [
        "Raw rewards of the valid designs",
        row("", known),
    ]
    for option in OPTIONS:
        designs = zip(INPUTS, scored(configured(option.fields)), strict=True)
        values = [design.raw for given, design in designs if given.name in known]
        lines.append(row(option.name, values, option.formula))
    return [
        *lines,
        "plateau(w) = max(0, 1 - max(low - w, w - high, 0) / ramp), low 0.4, high 0.6, ramp 0.25",
    ]


def designer_advantages() -> list[str]:
    scale = advantages.role_scale(N_AGENT, len(INPUTS), EVERY, 50.0)
    lines = [
        f"Designer's advantages, to be multiplied by the role's scale min(50, {N_AGENT} / "
        f"{len(INPUTS)} * {EVERY}) = {scale:g}",
        row("", (given.name for given in INPUTS)),
    ]
    for option in OPTIONS:
        lines += _advantages(option.name, option.fields)
    lines += _advantages("blend, by prompt", {}, "prompt")
    for name, fields in PRICES.items():
        lines += _advantages(name, fields)
    return [
        *lines,
        "outside: raw - mean of the skill's valid ones + what leaks cost, or the penalty itself;",
        "centred: penalties and what leaks cost are raw rewards, which enter the mean; with",
        "penalty 0 of rejections it is what the release computes",
    ]


def _advantages(name: str, fields: dict[str, object], groups: str = "skill") -> list[str]:
    designs = scoring.mask_negative(scored(configured(fields)))
    return [
        row(
            f"{name}; {penalties}",
            advantages.designer_advantages(designs, 1.0, penalties, groups),
        )
        for penalties in advantages.PENALTIES
    ]


def main() -> None:
    parts = (
        *(episode_returns, agent_advantages, plays, windows),
        *(skills, raw_rewards, designer_advantages),
    )
    print("\n\n".join("\n".join(part()) for part in parts))


if __name__ == "__main__":
    run_program(main)
