"""What a finished run shows: success before and after on the held-out set, regret, a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib.axes
import matplotlib.figure

from spade_jax.evals.intervals import Comparison, Mean, compare, mean
from spade_jax.folder import PLOT, Outcome, read_evaluations
from spade_jax.metrics import read_metrics
from spade_jax.outcomes import Lines, parts, regret_of


def write(workdir: Path) -> str:
    """The run's table as text; also WORKDIR/summary.txt and then WORKDIR/plot.png."""
    evaluations, metrics = read_evaluations(workdir), read_metrics(workdir)
    text = table(evaluations, metrics)
    (workdir / "summary.txt").write_text(text + "\n")
    figure = plot(evaluations, metrics)
    figure.savefig(workdir / PLOT, dpi=110)
    return f"{text}\nwrote {workdir / 'summary.txt'} and {workdir / PLOT}"


def table(evaluations: dict[int, list[Outcome]], metrics: Lines) -> str:
    """Before, after and gain with 95% intervals: over all, by family, by level; and regret."""
    first, last = min(evaluations), max(evaluations)
    before, after = evaluations[first], evaluations[last]
    overall = compare([o.won for o in before], [o.won for o in after])
    whole = overall.gain.value * overall.gain.n
    lines = [
        f"held-out success of {len(before)} instances, iteration {first} to {last} (95% intervals)",
        f"{'':<12}{'before':>17}{'after':>17}{'gain':>17}  share of the gain",
        _row("all", overall, 1.0 if whole else math.nan),
    ]
    for title, key in (("family", lambda o: o.family), ("level", lambda o: o.level)):
        lines.append(f"by {title}")
        for name, part in parts(before, after, key).items():
            share = part.gain.value * part.gain.n / whole if whole else math.nan
            lines.append(_row(str(name), part, share))
    regret = regret_of(metrics)
    if regret.mean is not None and regret.stderr is not None:
        low, high = (regret.mean + sign * 1.96 * regret.stderr for sign in (-1, 1))
        lines.append(
            f"paired regret over the run: {regret.mean:+.3f}, 95% interval {low:+.3f} to "
            f"{high:+.3f}, {regret.pairs} pairs"
        )
    designed = [line for line in metrics if line.get("designer/valid_share") is not None]
    if designed:
        for place, line in (("first", designed[0]), ("last", designed[-1])):
            new = line["designer/new_share"]
            lines.append(
                f"designs at the {place} regeneration: {line['designer/valid_share']:.0%} valid, "
                f"{new or 0.0:.0%} of these new, {line['designer/class_names']} class names"
            )
    levels = [v for line in metrics if (v := line.get("difficulty/level_mean")) is not None]
    if levels:
        lines.append(
            f"mean level of the environments played: {levels[0]:.2f} in the first iteration, "
            f"{levels[-1]:.2f} in the last"
        )
    return "\n".join(lines)


def plot(evaluations: dict[int, list[Outcome]], metrics: Lines) -> matplotlib.figure.Figure:
    """Held-out success, success in play, regret and valid share over the iterations."""
    figure = matplotlib.figure.Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    steps = sorted(evaluations)
    means = [mean([o.won for o in evaluations[s]]) for s in steps]
    _band(axes[0, 0], steps, means)
    _style(axes[0, 0], "held-out success (95% interval)")
    families = dict.fromkeys(o.family for o in evaluations[steps[0]])
    for family in families:
        rates = [mean([o.won for o in evaluations[s] if o.family == family]).value for s in steps]
        axes[0, 1].plot(steps, rates, marker=".", label=family)
    axes[0, 1].legend(fontsize=7, ncols=2)
    _style(axes[0, 1], "held-out success by family")
    for name, label in (
        ("agent/return_mean", "plain return"),
        ("agent/return_hinted_mean", "hinted return"),
        ("designer/valid_share", "valid designs"),
    ):
        points = [(m["step"], m[name]) for m in metrics if m.get(name) is not None]
        if points:
            axes[1, 0].plot(*zip(*points, strict=True), label=label)
    if axes[1, 0].lines:
        axes[1, 0].legend(fontsize=8)
    _style(axes[1, 0], "self-play")
    regrets = [
        (m["step"], Mean(m["designer/regret_mean"], 1.96 * m["designer/regret_stderr"], 0))
        for m in metrics
        if m.get("designer/regret_stderr") is not None
    ]
    if regrets:
        _band(axes[1, 1], [s for s, _ in regrets], [r for _, r in regrets])
    axes[1, 1].axhline(0.0, color="grey", linewidth=0.8)
    axes[1, 1].set_title("paired regret (95% interval)", fontsize=10)
    axes[1, 1].set_xlabel("iteration", fontsize=9)
    return figure


def _row(name: str, part: Comparison, share: float) -> str:
    cells = "".join(f"{m!s:>17}" for m in (part.before, part.after, part.gain))
    return f"{name:<12}{cells}{'-' if math.isnan(share) else f'{share:.0%}':>10}"


def _band(axis: matplotlib.axes.Axes, steps: Sequence[int], means: Sequence[Mean]) -> None:
    values = [m.value for m in means]
    axis.plot(steps, values, marker=".")
    low = [m.value - m.half_width for m in means]
    high = [m.value + m.half_width for m in means]
    axis.fill_between(steps, low, high, alpha=0.2)


def _style(axis: matplotlib.axes.Axes, title: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_ylim(0.0, 1.0)
    axis.set_xlabel("iteration", fontsize=9)
