"""What an environment was worth to the one who designed it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from spade_jax.learn.returns import clip
from spade_jax.types import Episode, Regret, dataclass


def paired_regret(plain: Sequence[Episode], hinted: Sequence[Episode]) -> Regret:
    """Mean over paired seeds of hinted minus plain return, unfloored (arXiv 2608.19197).

    mean = sum(d) / n and stderr = sqrt(sum((d - mean)^2) / (n - 1) / n) over the n valid pairs'
    differences d. A seed that only one arm played makes no pair; a pair with a failed arm, or
    whose hint holds the answer, is dropped. No valid pair: the mean is None, which is not 0.
    """
    plain_by_seed, hinted_by_seed = _by_seed(plain), _by_seed(hinted)
    differences = [
        episode.episode_return - plain_by_seed[seed].episode_return
        for seed, episode in hinted_by_seed.items()
        if seed in plain_by_seed
        and episode.episode_return is not None
        and plain_by_seed[seed].episode_return is not None
        and not episode.hint_leaks
    ]
    n = len(differences)
    if n == 0:
        return Regret(mean=None, stderr=None, pairs=0)
    mean = math.fsum(differences) / n
    if n == 1:
        return Regret(mean=mean, stderr=None, pairs=1)
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    return Regret(mean=mean, stderr=math.sqrt(variance / n), pairs=n)


def pool_regrets(regrets: Sequence[Regret]) -> Regret:
    """The regret of all environments' pairs taken as one sample.

    mean = sum(n_i m_i) / n, and the standard error that of all n differences, recovered from
    each environment's mean m_i, standard error and number of pairs n_i.
    """
    known = [r for r in regrets if r.mean is not None]
    pairs = sum(r.pairs for r in known)
    if not pairs:
        return Regret(mean=None, stderr=None, pairs=0)
    mean = math.fsum(r.pairs * r.mean for r in known) / pairs
    squares = math.fsum(
        r.pairs * (r.mean - mean) ** 2 + (r.stderr or 0.0) ** 2 * r.pairs * (r.pairs - 1)
        for r in known
    )
    stderr = math.sqrt(squares / (pairs - 1) / pairs) if pairs > 1 else None
    return Regret(mean=mean, stderr=stderr, pairs=pairs)


def _by_seed(episodes: Sequence[Episode]) -> dict[int, Episode]:
    """Episodes of one environment and arm by their instance seed, which must not repeat."""
    by_seed = {episode.seed: episode for episode in episodes}
    if len(by_seed) != len(episodes):
        raise ValueError("a seed is played twice in one arm; pairs need each seed once")
    return by_seed


def plateau(win: float, low: float, high: float, ramp: float) -> float:
    """1 for win in [low, high], falling linearly to 0 over `ramp` on either side.

    max(0, 1 - max(low - win, win - high, 0) / ramp) (arXiv 2608.19197).
    """
    distance = max(low - win, win - high, 0.0)
    return max(0.0, 1.0 - distance / ramp)


@dataclass
class DesignerTerms:
    """Constants of the designer's reward; fields are those of `config.reward`."""

    w_regret: float
    w_plateau: float
    regret_scale: float
    plateau_low: float
    plateau_high: float
    plateau_ramp: float


@dataclass
class Outcome:
    """What is known of one environment when its designer is scored; None is unknown.

    `win` is the mean plain return over the window, `regret` the unfloored paired mean, `mu_slow`
    the slow tracker of the environment's skill.
    """

    win: float | None
    regret: float | None
    mu_slow: float | None


def _regret(outcome: Outcome, terms: DesignerTerms) -> float | None:
    return None if outcome.regret is None else max(0.0, outcome.regret)


def _solve_rate(outcome: Outcome, terms: DesignerTerms) -> float | None:
    if outcome.win is None:
        return None
    return plateau(outcome.win, terms.plateau_low, terms.plateau_high, terms.plateau_ramp)


def _blend(outcome: Outcome, terms: DesignerTerms) -> float | None:
    solve_rate = _solve_rate(outcome, terms)
    if outcome.regret is None or solve_rate is None:
        return None
    regret_term = clip(outcome.regret / terms.regret_scale, 0.0, 1.0)
    return terms.w_regret * regret_term + terms.w_plateau * solve_rate


def _learning_potential(outcome: Outcome, terms: DesignerTerms) -> float | None:
    if outcome.win is None or outcome.mu_slow is None:
        return None
    return abs(outcome.win - outcome.mu_slow)


DESIGNER_REWARDS: dict[str, Callable[[Outcome, DesignerTerms], float | None]] = {
    "blend": _blend,
    "regret": _regret,
    "solve_rate": _solve_rate,
    "learning_potential": _learning_potential,
}


def designer_reward(variant: str, outcome: Outcome, terms: DesignerTerms) -> float | None:
    """Raw reward of a valid design, or None where what it rests on is unknown.

    (arXiv 2608.19197) regret: max(0, regret). solve_rate: plateau(win).
    blend: w_regret * clip(regret / regret_scale, 0, 1) + w_plateau * plateau(win).
    learning_potential: abs(win - mu_slow).
    """
    if variant not in DESIGNER_REWARDS:
        known = ", ".join(DESIGNER_REWARDS)
        raise ValueError(f"unknown designer reward {variant!r}; choose one of {known}")
    return DESIGNER_REWARDS[variant](outcome, terms)
