"""Two evaluations side by side: paired differences of success, with bootstrap intervals."""

from __future__ import annotations

import csv
import dataclasses
import io
import zlib
from collections.abc import Sequence

import numpy as np

from spade_jax.evals import results
from spade_jax.evals.runner import Result
from spade_jax.types import UsageError, dataclass

RESAMPLES = 10_000
LEVEL = 0.95


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
    """The differences by column, each before its parts, and over all columns where there are more.

    Items are resampled within their groups (percentile intervals of 10,000 resamples); a column of
    parts is their mean, the average that of columns. UsageError where the two share no item, or
    asked an item differently.
    """
    there, here = results.by_item(a), results.by_item(b)
    groups: dict[str, list[_Resampled]] = {}
    for name in [name for name in there if name in here]:
        common = [item for item in there[name] if item in here[name]]
        for item in common:
            _check(there[name][item][0], here[name][item][0])
        if not common:
            continue
        pairs = [[results.share(side[name][i]) for i in common] for side in (there, here)]
        a_mean, b_mean = (float(np.mean(shares)) for shares in pairs)
        gains = _resample(np.subtract(pairs[1], pairs[0]), results.column_of(name))
        found = _Resampled(_difference(name, len(common), a_mean, b_mean, gains), gains)
        groups.setdefault(results.column_of(name), []).append(found)
    if not groups:
        raise UsageError(
            "the two evaluations share no item; compare two of the same suites and data"
        )
    columns, lines = [], []
    for name, parts in groups.items():
        whole = parts if parts[0].difference.name == name else [_together(name, parts), *parts]
        columns.append(whole[0])
        lines += whole
    if len(columns) > 1:
        lines.append(_together(f"average of {len(columns)}", columns))
    return [line.difference for line in lines]


@dataclasses.dataclass(frozen=True)
class _Resampled:
    """A difference, and its gain in every resample."""

    difference: Difference
    gains: np.ndarray


def _together(name: str, parts: Sequence[_Resampled]) -> _Resampled:
    """The unweighted mean of parts."""
    differences = [part.difference for part in parts]
    a_mean, b_mean = (float(np.mean([getattr(d, side) for d in differences])) for side in "ab")
    gains = np.mean([part.gains for part in parts], axis=0)
    items = sum(d.items for d in differences)
    return _Resampled(_difference(name, items, a_mean, b_mean, gains), gains)


def _check(a: Result, b: Result) -> None:
    """The prompts must be the same; one that was never asked has none."""
    if a.prompt and b.prompt and a.prompt != b.prompt:
        raise UsageError(
            f"item {a.item} of {a.suite} has another prompt in each evaluation ({a.prompt}, "
            f"{b.prompt}); compare evaluations of the same data and version"
        )


def _difference(name: str, items: int, a: float, b: float, gains: np.ndarray) -> Difference:
    tail = (1 - LEVEL) / 2
    low, high = map(float, np.quantile(gains, (tail, 1 - tail)))
    return Difference(name=name, items=items, a=a, b=b, gain=b - a, low=low, high=high)


def _resample(gains_I: np.ndarray, column: str) -> np.ndarray:
    """Means of resampled items.

    Columns are drawn apart. Parts of one that have as many items are drawn alike: items of BFCL
    multi-turn come in a variant in each part.
    """
    rng = np.random.default_rng(zlib.crc32(column.encode()))
    means = [
        gains_I[rng.integers(0, len(gains_I), (100, len(gains_I)))].mean(axis=1)
        for _ in range(RESAMPLES // 100)
    ]
    return np.concatenate(means)


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
    """The comparison as one row of the paper's table, a column a benchmark, without parts."""
    whole = [d for d in found if results.PART not in d.name]
    cells = [f"{d.name} {100 * d.b:.1f} ({100 * d.gain:+.1f})" for d in whole]
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
