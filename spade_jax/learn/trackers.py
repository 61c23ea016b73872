"""Two exponential means of a skill's return, and the learning they show."""

from __future__ import annotations

from spade_jax.types import Tracker


def update_tracker(tracker: Tracker, x: float, gamma_fast: float, gamma_slow: float) -> Tracker:
    """mu <- (1 - gamma) * mu + gamma * x for both means; the first x is taken as it is.

    (arXiv 2608.19197) Gamma weighs the new value, so the fast mean has the larger one.
    """
    return Tracker(
        fast=_decay(tracker.fast, x, gamma_fast), slow=_decay(tracker.slow, x, gamma_slow)
    )


def _decay(mean: float | None, x: float, gamma: float) -> float:
    return x if mean is None else (1.0 - gamma) * mean + gamma * x


def learning_potential(tracker: Tracker, gamma_fast: float, gamma_slow: float) -> float | None:
    """abs(mu_fast - mu_slow) / (2 * (gamma_fast - gamma_slow)); None before the first value.

    (arXiv 2608.19197) Needs gamma_fast > gamma_slow.
    """
    if gamma_fast <= gamma_slow:
        raise ValueError(
            f"gamma_fast must exceed gamma_slow, got {gamma_fast} and {gamma_slow}: raise "
            "reward.gamma_fast"
        )
    if tracker.fast is None or tracker.slow is None:
        return None
    return abs(tracker.fast - tracker.slow) / (2.0 * (gamma_fast - gamma_slow))
