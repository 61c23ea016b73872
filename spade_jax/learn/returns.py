"""What an episode was worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def clip(x: float, low: float, high: float) -> float:
    """x limited to [low, high]; x must be finite (a NaN would come out as a bound)."""
    return min(max(x, low), high)


def _final(rewards_T: Sequence[float], discount: float) -> float:
    return clip(rewards_T[-1], -1.0, 1.0)


def _sum(rewards_T: Sequence[float], discount: float) -> float:
    total = sum(rewards_T)
    return clip(total, -1.0, 1.0) if math.isfinite(total) else total


def _discounted(rewards_T: Sequence[float], discount: float) -> float:
    return sum(discount**t * reward for t, reward in enumerate(rewards_T))


RETURNS: dict[str, Callable[[Sequence[float], float], float]] = {
    "final": _final,
    "sum": _sum,
    "discounted": _discounted,
}


def episode_return(
    rewards_T: Sequence[float], terminated: bool, mode: str, discount: float
) -> float | None:
    """Return of one episode, or None where it failed (arXiv 2608.19197).

    final: the last reward clipped to [-1, 1]; sum: the sum of all, clipped to [-1, 1];
    discounted: sum over t of discount^t * reward_t. An episode that did not terminate (a budget
    ended it) or holds no step returns 0 in each mode. A reward, or a total, that is not finite
    makes the episode failed: it is looked for before clipping, which would turn NaN into a bound.
    """
    if mode not in RETURNS:
        raise ValueError(f"unknown episode return {mode!r}; choose one of {', '.join(RETURNS)}")
    if not all(math.isfinite(reward) for reward in rewards_T):
        return None
    if not terminated or not rewards_T:
        return 0.0
    value = RETURNS[mode](rewards_T, discount)
    return float(value) if math.isfinite(value) else None
