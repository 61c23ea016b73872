"""Two evaluations side by side: paired differences of success, with bootstrap intervals."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from spade_jax.evals import results
from spade_jax.evals.runner import Result
from spade_jax.types import UsageError, dataclass

RESAMPLES = 10_000
LEVEL = 0.95
SEED = 0


@dataclass
class Difference:
    """A column's success in A and in B on the items both have, and B less A with its interval."""

    name: str
    items: int
    a: float
    b: float
    gain: float
    low: float
    high: float


def compare(a: Sequence[Result], b: Sequence[Result]) -> list[Difference]:
    """The differences by column, and over all of them where there are several.

    Items are resampled within their columns (percentile intervals of 10,000 resamples); the average
    is over columns. UsageError where the two share no item, or asked an item differently.
    """
    there, here = results.by_item(a), results.by_item(b)
    found, means = [], []
    for name in [name for name in there if name in here]:
        common = [item for item in there[name] if item in here[name]]
        for item in common:
            _check(there[name][item][0], here[name][item][0])
        if not common:
            continue
        pairs = [[results.share(side[name][i]) for i in common] for side in (there, here)]
        found.append(_difference(name, *pairs))
        means.append(_resample(np.subtract(pairs[1], pairs[0])))
    if not found:
        raise UsageError(
            "the two evaluations share no item; compare two of the same suites and data"
        )
    if len(found) > 1:
        low, high = _interval(np.mean(means, axis=0))
        a_mean, b_mean = (float(np.mean([getattr(d, s) for d in found])) for s in "ab")
        found.append(
            Difference(
                name=f"average of {len(found)}",
                items=sum(d.items for d in found),
                a=a_mean,
                b=b_mean,
                gain=b_mean - a_mean,
                low=low,
                high=high,
            )
        )
    return found


def _check(a: Result, b: Result) -> None:
    """The prompts must be the same; one that was never asked has none."""
    if a.prompt and b.prompt and a.prompt != b.prompt:
        raise UsageError(
            f"item {a.item} of {a.suite} has another prompt in each evaluation ({a.prompt}, "
            f"{b.prompt}); compare evaluations of the same data and version"
        )


def _difference(name: str, a: Sequence[float], b: Sequence[float]) -> Difference:
    low, high = _interval(_resample(np.subtract(b, a)))
    mean_a, mean_b = float(np.mean(a)), float(np.mean(b))
    return Difference(
        name=name, items=len(a), a=mean_a, b=mean_b, gain=mean_b - mean_a, low=low, high=high
    )


def _resample(gains_I: np.ndarray) -> np.ndarray:
    """Means of resampled items, always the same ones for as many items."""
    rng = np.random.default_rng(SEED)
    means = [
        gains_I[rng.integers(0, len(gains_I), (100, len(gains_I)))].mean(axis=1)
        for _ in range(RESAMPLES // 100)
    ]
    return np.concatenate(means)


def _interval(means: np.ndarray) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(low), float(high)


def table(found: Sequence[Difference]) -> str:
    """The comparison for people: a line a column, in percent and points."""
    width = max(len(d.name) for d in found)
    heads = f"{'items':>7}{'A':>9}{'B':>9}{'B - A':>9}  95% interval"
    lines = [" " * width + heads]
    for d in found:
        numbers = f"{d.items:>7}{d.a:>9.1%}{d.b:>9.1%}{100 * d.gain:>+9.1f}"
        lines.append(f"{d.name:<{width}}{numbers}  [{100 * d.low:+.1f}, {100 * d.high:+.1f}]")
    return "\n".join(lines)


def row(found: Sequence[Difference]) -> str:
    """The comparison as one row of the paper's table, a column a benchmark."""
    cells = [f"{d.name} {100 * d.b:.1f} ({100 * d.gain:+.1f})" for d in found]
    return " | ".join(cells)


def as_csv(found: Sequence[Difference]) -> str:
    """The comparison as CSV; numbers are shares."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["column", "items", "a", "b", "gain", "low", "high"])
    for d in found:
        numbers = (f"{value:.6f}" for value in (d.a, d.b, d.gain, d.low, d.high))
        writer.writerow([d.name, d.items, *numbers])
    return text.getvalue().rstrip("\n")
