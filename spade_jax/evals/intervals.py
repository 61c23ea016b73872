"""Means with their 95% intervals, and comparisons item by item."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean and the half width of its 95% interval (normal approximation), from n values."""

    value: float
    half_width: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:6.1%} ± {self.half_width:.1%}"


def mean(values: Sequence[float]) -> Mean:
    """Mean of at least one value; 1.96 standard errors (divisor n - 1) either side."""
    n = len(values)
    centre = math.fsum(values) / n
    spread = math.fsum((v - centre) ** 2 for v in values) / max(n - 1, 1)
    return Mean(centre, 1.96 * math.sqrt(spread / n), n)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Success before and after on the same items, and the mean of the paired differences."""

    before: Mean
    after: Mean
    gain: Mean


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Compare the outcomes of two plays of the same items, given in the same order."""
    differences = [y - x for x, y in zip(before, after, strict=True)]
    return Comparison(mean(before), mean(after), mean(differences))
