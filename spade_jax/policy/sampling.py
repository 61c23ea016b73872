"""How a reply is sampled: temperature, top-k, top-p and min-p. Loads no jax."""

from __future__ import annotations

import dataclasses
import math

GREEDY_BELOW = 0.01  # temperatures under this are greedy: dividing by them overflows


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a reply is sampled. Truncation comes after the temperature: top-k, then top-p, min-p.

    At a temperature of 0 a reply is made of the most probable tokens; of equal ones the first.
    Raises ValueError where a value is out of its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0  # the most probable tokens that reach this share; 1: all
    top_k: int = 0  # so many of the most probable tokens; 0: all
    min_p: float = 0.0  # tokens at least so probable, relative to the most probable one

    def __post_init__(self) -> None:
        for name, good, range_ in (
            ("temperature", 0 <= self.temperature < math.inf, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
        ):
            if not good:
                raise ValueError(f"{name} must be {range_}, not {getattr(self, name)}")

    @property
    def greedy(self) -> bool:
        """Whether there is nothing to draw."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def truncates(self) -> bool:
        """Whether some tokens may be ruled out."""
        return self.greedy or self.top_p < 1 or self.top_k > 0 or self.min_p > 0
