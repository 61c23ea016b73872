"""The curves of a report: values over iterations with their intervals, by group.

A group of several runs is drawn as the mean over its seeds, with the 95% interval that these give
by Student's t; of two seeds, for which that is wider than any screen, the band reaches from one to
the other. A single run has the interval of what was measured: over instances, environments or
pairs, in the normal approximation.
"""

from __future__ import annotations

import collections
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from spade_jax.evals.intervals import mean
from spade_jax.metrics import describe
from spade_jax.report.runs import Group, Reading

Point = tuple[float, float | None]  # a value, and the half width of its interval where one is known
Points = Mapping[int, Point]  # by iterations finished
Chart = dict[str, object]  # what charts.js draws

# Student's t for 95%, by degrees of freedom from 2 on.
T_95 = (4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
SUITE = re.compile("evaluation/suite/[^/]+/success")
POINTS = 400  # most points of a curve
# Around the others, or beside the iteration.
OUTER_STAGES = ("time/iteration_s", "time/checkpoint_s", "time/evaluate_s")


# -- what a run measured ----------------------------------------------------------------------


def metric(name: str, error: str = "") -> Callable[[Reading], Points]:
    """Values of a metric; `error` is the metric with its standard error."""

    def points(reading: Reading) -> Points:
        found = {}
        for line in reading.metrics:
            if line.get(name) is not None:
                spread = line.get(error)
                half = None if spread is None else 1.96 * spread
                found[line["step"] + 1] = (line[name], half)
        return found

    return points


def held_out(reading: Reading) -> Points:
    """Success on the held-out set, with the interval over instances."""
    found = {k: mean([o.won for o in outcomes]) for k, outcomes in reading.evaluations.items()}
    return {k: (m.value, m.half_width) for k, m in found.items()}


def success(arm: str) -> Callable[[Reading], Points]:
    """Share of an arm's plays that were won, with the interval over environments.

    Plays of one environment are alike, so their means are what counts as independent.
    """

    def points(reading: Reading) -> Points:
        rates = collections.defaultdict(list)
        for line in reading.plays:
            known = [r for r in line[arm] if r is not None]
            if known:
                rates[line["iteration"] + 1].append(sum(r > 0.5 for r in known) / len(known))
        found = {k: mean(values) for k, values in rates.items()}
        return {k: (m.value, m.half_width if m.n > 1 else None) for k, m in found.items()}

    return points


# -- over the runs of a group -----------------------------------------------------------------


def over_seeds(runs: Sequence[Points]) -> Points:
    """Mean over runs and its interval, at iterations that all of them have."""
    if len(runs) == 1:
        return runs[0]
    found = {}
    for k in sorted(set.intersection(*(set(run) for run in runs))):
        found[k] = centre_and_half([run[k][0] for run in runs])
    return found


def centre_and_half(values: Sequence[float]) -> Point:
    """Mean of at least two values and the half width t s / sqrt(n) of its 95% interval.

    Of two values it is half of their distance.
    """
    n, centre = len(values), math.fsum(values) / len(values)
    if n == 2:
        return centre, abs(values[0] - values[1]) / 2
    spread = math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (n - 1))
    t = T_95[n - 3] if n - 3 < len(T_95) else 1.96 + 2.5 / (n - 1)
    return centre, t * spread / math.sqrt(n)


def rounded(value: float | None) -> float | None:
    """Four digits are more than a screen shows."""
    return None if value is None else float(f"{value:.4g}")


def thinned(steps: Iterable[int], most: int = POINTS) -> list[int]:
    """At most so many of the steps, evenly, the last among them."""
    steps = sorted(steps)
    every = -(-len(steps) // most) if steps else 1
    return steps[::-1][::every][::-1]


# -- charts -----------------------------------------------------------------------------------


def lines(
    name: str,
    title: str,
    note: str,
    groups: Sequence[Group],
    sources: Mapping[str, Callable[[Reading], Points]],
    **style: object,
) -> Chart | None:
    """A chart of curves: one for each group and source; None where there is nothing to draw.

    Groups are told apart by colour and sources by dash; a single group has colours for these.
    """
    series = []
    for i, group in enumerate(groups):
        for j, (label, source) in enumerate(sources.items()):
            points = over_seeds([source(reading) for reading in group.runs])
            steps = thinned(points)
            if not steps:
                continue
            several = len(groups) > 1
            halves = [points[k][1] for k in steps]
            series.append(
                {
                    "label": " · ".join(
                        ([group.label] if several else [])
                        + ([label] if len(sources) > 1 or not several else [])
                    ),
                    "colour": i if several else j,
                    "dash": j if several else 0,
                    "x": steps,
                    "y": [rounded(points[k][0]) for k in steps],
                    "half": [rounded(half) for half in halves] if any(halves) else None,
                }
            )
    if not series:
        return None
    return {"id": name, "title": title, "note": note, "kind": "lines", "series": series, **style}


def overlays(groups: Sequence[Group]) -> list[Chart]:
    """The charts that show all groups at once."""
    charts = (*_success(groups), *_policy(groups))
    return [chart for chart in charts if chart]


def _success(groups: Sequence[Group]) -> Iterator[Chart | None]:
    """How agent and designer do."""
    share = {"range": [0, 1], "unit": "share"}
    yield lines(
        "held-out",
        "Held-out success",
        "instances that no designer wrote",
        groups,
        {"success": held_out},
        **share,
    )
    yield lines(
        "benchmarks",
        "Benchmarks",
        "success in suites that are played during training",
        groups,
        {name.split("/")[2]: metric(name) for name in suites(groups)},
        **share,
    )
    yield lines(
        "success",
        "Success in self-play",
        "plays with a return above 0.5, without and with the hint",
        groups,
        {"plain": success("plain"), "hinted": success("hinted")},
        **share,
    )
    yield lines(
        "regret",
        "Regret",
        "hinted minus plain return over paired seeds",
        groups,
        {"regret": metric("designer/regret_mean", "designer/regret_stderr")},
        zero=True,
    )
    yield lines(
        "diversity",
        "Diversity",
        "share of code that two programs have not in common",
        groups,
        {"accepted designs": metric("designer/diversity"), "memory": metric("memory/diversity")},
        **share,
    )


def suites(groups: Sequence[Group]) -> list[str]:
    """Metrics of success in benchmarks that any of the runs has played."""
    seen = {name for g in groups for r in g.runs for line in r.metrics for name in line}
    return sorted(name for name in seen if SUITE.fullmatch(name))


def _policy(groups: Sequence[Group]) -> Iterator[Chart | None]:
    """What becomes of the policy itself."""
    length = {"agent": "agent/reply_tokens_mean", "designer": "designer/reply_tokens_mean"}
    gap = {"mean": "learn/logprob_gap_mean", "largest": "learn/logprob_gap_max"}
    yield lines(
        "entropy",
        "Entropy",
        "of the sampled tokens, by role, in nats",
        groups,
        {"agent": metric("agent/entropy"), "designer": metric("designer/entropy")},
        zero=True,
    )
    yield lines(
        "length",
        "Length of replies",
        "tokens, by role, on a logarithmic scale",
        groups,
        {role: metric(name) for role, name in length.items()},
        log=True,
    )
    yield lines(
        "gap",
        "Log-probability gap",
        "between sampler and learner, in nats, on a logarithmic scale",
        groups,
        {which: metric(name) for which, name in gap.items()},
        log=True,
    )


def shares(group: Group, names: Sequence[str]) -> tuple[list[int], list[list[float]]]:
    """Steps, and the metrics' means over the group's runs at each; what is absent is 0."""
    runs = [
        {line["step"] + 1: line for line in reading.metrics if _any(line, names)}
        for reading in group.runs
    ]
    steps = thinned(set.intersection(*(set(run) for run in runs)))
    rows = [
        [rounded(sum(run[k].get(name) or 0.0 for run in runs) / len(runs)) for k in steps]
        for name in names
    ]
    return steps, rows


def _any(line: Mapping[str, object], names: Sequence[str]) -> bool:
    return any(line.get(name) is not None for name in names)


def stacks(group: Group) -> list[Chart]:
    """The charts that show one group: win rates, verdicts, and time, each as parts of a whole."""
    seen = dict.fromkeys(itertools.chain(*(line for r in group.runs for line in r.metrics)))
    rates = [f"agent/win_rate/{k}" for k in range(10)]
    prefix = "designer/reject/"
    reasons = sorted(name for name in seen if name.startswith(prefix))
    stages = [n for n in seen if n.startswith("time/") and n not in OUTER_STAGES]
    charts = []
    for name, title, note, kind, metrics, labels, style in (
        (
            "win-rates",
            "Win rates",
            "share of the environments by the share of plays won; the darker, the more",
            "heat",
            rates,
            [f"{10 * k}-{10 * k + 10}%" for k in range(10)],
            {"unit": "share"},
        ),
        (
            "verdicts",
            "Designs by verdict",
            "share of a regeneration's designs",
            "stack",
            ["designer/valid_share", *reasons],
            ["accepted", *(each.removeprefix(prefix) for each in reasons)],
            {"unit": "share", "range": [0, 1]},
        ),
        (
            "time",
            "Time by stage",
            "seconds of an iteration, evaluations and checkpoints apart",
            "stack",
            stages,
            [each.removeprefix("time/").removesuffix("_s") for each in stages],
            {"unit": "s"},
        ),
    ):
        steps, rows = shares(group, metrics) if metrics else ([], [])
        if steps:
            parts = [{"label": each, "y": row} for each, row in zip(labels, rows, strict=True)]
            chart = {"id": name, "title": title, "note": note, "kind": kind, "x": steps}
            charts.append({**chart, "parts": parts, **style})
    return charts


def every_metric(groups: Sequence[Group], most: int) -> tuple[Chart, int]:
    """All metrics by name for the reader to choose from, with at most `most` numbers in all.

    Returned with them: every how many iterations a value is there.
    """
    runs = [(i, reading) for i, group in enumerate(groups) for reading in group.runs]
    total = sum(len(line) for _, reading in runs for line in reading.metrics)
    every = max(1, -(-total // most))
    series: dict[str, list[object]] = {}
    for i, reading in runs:
        kept: dict[str, tuple[list[int], list[float]]] = {}
        for line in reading.metrics:
            for name, value in line.items():
                if name != "step" and value is not None:
                    x, y = kept.setdefault(name, ([], []))
                    x.append(line["step"] + 1)
                    y.append(rounded(value))
        for name, (x, y) in kept.items():
            one = {"label": reading.name, "colour": i, "x": x[::every], "y": y[::every]}
            series.setdefault(name, []).append(one)
    return dict(sorted(series.items())), every


def meanings(names: Iterable[str]) -> dict[str, str]:
    """What metrics say, with their units; those of another version are unknown."""
    found = {}
    for name in names:
        try:
            known = describe(name)
        except ValueError:
            continue
        found[name] = known.meaning + (f" [{known.unit}]" if known.unit else "")
    return found
