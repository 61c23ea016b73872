"""What a design has earned its designer: raw rewards from the plays of its environment.

`window_SG` are the returns of an environment's plain plays, step by step of the iterations it has
been played in; a step all of whose plays failed is empty.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence

from spade_jax.learn.returns import clip
from spade_jax.types import Reason, UsageError, dataclass

Window = Sequence[Sequence[float]]


# -- what a window of plays shows -------------------------------------------------------------


def win(window_SG: Window) -> float | None:
    """Mean return of all plays of the window; None where there is none."""
    pooled = [value for returns_G in window_SG for value in returns_G]
    return math.fsum(pooled) / len(pooled) if pooled else None


def variance(window_SG: Window) -> float | None:
    """Variance of the returns of all plays of the window, divided by their number.

    For returns of 0 and 1 it is win (1 - win), at most 0.25.
    """
    mean = win(window_SG)
    if mean is None:
        return None
    squares = [(value - mean) ** 2 for returns_G in window_SG for value in returns_G]
    return math.fsum(squares) / len(squares)


def late_minus_early(window_SG: Window) -> float | None:
    """Mean of the late half minus mean of the early half (arXiv 2608.19197).

    An odd window's middle step is late; plays are pooled within a half. None where a half is empty.
    """
    middle = len(window_SG) // 2
    early, late = win(window_SG[:middle]), win(window_SG[middle:])
    return None if early is None or late is None else late - early


def rise(window_SG: Window) -> float | None:
    """Weighted-least-squares slope of the steps' mean returns times (steps - 1).

    (arXiv 2608.19197) With weights w = plays of a step, x = its number, y = its mean return:
    slope = sum w (x - mean x) (y - mean y) / sum w (x - mean x)^2, the means weighted too. It is
    what the fitted line gains from the first step to the last. None with plays in one step only.
    """
    points = [(x, win([r]), len(r)) for x, r in enumerate(window_SG) if r]
    if len(points) < 2:
        return None
    total = sum(w for _, _, w in points)
    mean_x = math.fsum(w * x for x, _, w in points) / total
    mean_y = math.fsum(w * y for _, y, w in points) / total
    covariance = math.fsum(w * (x - mean_x) * (y - mean_y) for x, y, w in points)
    spread = math.fsum(w * (x - mean_x) ** 2 for x, _, w in points)
    return covariance / spread * (len(window_SG) - 1)


def plateau(win: float, low: float, high: float, ramp: float) -> float:
    """1 for win in [low, high], falling linearly to 0 over `ramp` on either side.

    max(0, 1 - max(low - win, win - high, 0) / ramp) (arXiv 2608.19197).
    """
    distance = max(low - win, win - high, 0.0)
    return max(0.0, 1.0 - distance / ramp)


# -- variants ---------------------------------------------------------------------------------


@dataclass
class DesignerTerms:
    """Constants of the designer's reward; fields are those of `config.reward`."""

    w_regret: float
    w_plateau: float
    regret_scale: float
    plateau_low: float
    plateau_high: float
    plateau_ramp: float
    w_micro: float
    micro_scale: float
    w_frontier: float
    frontier_scale: float
    w_variance: float


def terms(reward: Mapping[str, float]) -> DesignerTerms:
    """The constants in a config's group `reward`."""
    return DesignerTerms(**{f.name: reward[f.name] for f in dataclasses.fields(DesignerTerms)})


@dataclass
class Outcome:
    """What is known of one environment when its designer is scored; None is unknown.

    `window_SG` are the returns of its plain plays, `regret` is the unfloored paired mean,
    `mu_slow` the slow tracker of its skill.
    """

    window_SG: Window
    regret: float | None
    mu_slow: float | None


def _regret(outcome: Outcome, terms: DesignerTerms) -> float | None:
    return None if outcome.regret is None else max(0.0, outcome.regret)


def _solve_rate(outcome: Outcome, terms: DesignerTerms) -> float | None:
    mean = win(outcome.window_SG)
    if mean is None:
        return None
    return plateau(mean, terms.plateau_low, terms.plateau_high, terms.plateau_ramp)


def _blend(outcome: Outcome, terms: DesignerTerms) -> float | None:
    mean, solve_rate = win(outcome.window_SG), _solve_rate(outcome, terms)
    if outcome.regret is None or mean is None:
        return None
    regret_term = clip(outcome.regret / terms.regret_scale, 0.0, 1.0)
    value = terms.w_regret * regret_term + terms.w_plateau * solve_rate
    if terms.w_micro:
        gain = rise(outcome.window_SG)
        if gain is None:
            return None
        value += terms.w_micro * (gain / terms.micro_scale)
    if terms.w_frontier:
        value -= terms.w_frontier * ((mean - 0.5) ** 2 / terms.frontier_scale)
    return value


def _learning_potential(outcome: Outcome, terms: DesignerTerms) -> float | None:
    mean = win(outcome.window_SG)
    if mean is None or outcome.mu_slow is None:
        return None
    return abs(mean - outcome.mu_slow)


def _micro_lp(outcome: Outcome, terms: DesignerTerms) -> float | None:
    gain = late_minus_early(outcome.window_SG)
    return None if gain is None else max(0.0, gain)


DESIGNER_REWARDS: dict[str, Callable[[Outcome, DesignerTerms], float | None]] = {
    "blend": _blend,
    "regret": _regret,
    "solve_rate": _solve_rate,
    "learning_potential": _learning_potential,
    "micro_lp": _micro_lp,
}


def designer_reward(variant: str, outcome: Outcome, terms: DesignerTerms) -> float | None:
    """Raw reward of a valid design, or None where what it rests on is unknown.

    (arXiv 2608.19197) regret: max(0, regret). solve_rate: plateau(win).
    blend: w_regret * clip(regret / regret_scale, 0, 1) + w_plateau * plateau(win)
    + w_micro * (rise / micro_scale) - w_frontier * ((win - 0.5)^2 / frontier_scale).
    learning_potential: abs(win - mu_slow). micro_lp: max(0, late half - early half).
    To each w_variance * exp(-(var - 0.25)^2 / 0.02) is added, var being that of the window.
    """
    if variant not in DESIGNER_REWARDS:
        known = ", ".join(DESIGNER_REWARDS)
        raise ValueError(f"unknown designer reward {variant!r}; choose one of {known}")
    raw = DESIGNER_REWARDS[variant](outcome, terms)
    if raw is None or not terms.w_variance:
        return raw
    spread = variance(outcome.window_SG)
    return None if spread is None else raw + terms.w_variance * variance_bonus(spread)


def variance_bonus(variance: float) -> float:
    """exp(-(variance - 0.25)^2 / 0.02): 1 where half of the plays are won (arXiv 2608.19197)."""
    return math.exp(-((variance - 0.25) ** 2) / 0.02)


# -- penalties --------------------------------------------------------------------------------

REJECTIONS = tuple(reason for reason in Reason if reason is not Reason.ACCEPTED)


def read_penalties(text: str) -> dict[Reason, float]:
    """Penalties by reason, from the JSON of the field reward.penalty_by_reason."""
    example = """write it like '{"leak": -1.0}'"""
    try:
        penalties = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"reward.penalty_by_reason is {text!r}, which is no JSON ({error}); {example}"
        ) from None
    if not isinstance(penalties, dict):
        raise UsageError(
            f"reward.penalty_by_reason is {text!r} but must be a JSON object; {example}"
        )
    for reason, value in penalties.items():
        if reason not in REJECTIONS:
            raise UsageError(
                f"reward.penalty_by_reason names {reason!r}, for which nothing is rejected; choose "
                f"from {', '.join(REJECTIONS)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not -10 <= value <= 0:
            raise UsageError(
                f"reward.penalty_by_reason gives {reason!r} {value!r} but a penalty is at least "
                "-10 and at most 0; correct it"
            )
    return {Reason(reason): float(value) for reason, value in penalties.items()}
