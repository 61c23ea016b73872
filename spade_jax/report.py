"""Runs side by side: held-out success in one plot, a row of outcomes for each run and group.

python -m spade_jax.report --runs=runs/full1,runs/full2,runs/frozen1,runs/frozen2

Runs whose names differ in the number at the end are one group: the same with other seeds.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.figure
from absl import flags

from spade_jax import summary
from spade_jax.evals.intervals import compare, mean
from spade_jax.folder import Outcome, read_evaluations
from spade_jax.metrics import read_metrics
from spade_jax.program import run_program
from spade_jax.types import UsageError

FLAGS = flags.FLAGS


def minutes(metrics: summary.Lines) -> list[float]:
    """Minutes of self-play after each iteration, evaluations left out; the first entry is 0."""
    seconds = (float(line["time/iteration_s"] or 0.0) for line in metrics)
    return [total / 60.0 for total in itertools.accumulate(seconds, initial=0.0)]


def row(workdir: Path) -> str:
    """Outcome of one run as a line of a Markdown table."""
    evaluations, metrics = read_evaluations(workdir), read_metrics(workdir)
    before, after = evaluations[min(evaluations)], evaluations[max(evaluations)]
    overall = compare([o.won for o in before], [o.won for o in after])
    parts = summary.parts(before, after, lambda o: o.family)
    whole = overall.gain.value * overall.gain.n
    share = max(part.gain.value * part.gain.n for part in parts.values()) / whole if whole else 0.0
    regret = summary.regret_of(metrics)
    low = "-" if regret.stderr is None else f"{regret.mean - 1.96 * regret.stderr:+.3f}"
    designed = [m for m in metrics if m.get("designer/valid_share") is not None]
    valid = new = names = "-"
    if designed:
        valid = f"{designed[-1]['designer/valid_share']:.0%}"
        new = f"{designed[-1]['designer/new_share'] or 0.0:.0%}"
        names = str(designed[-1]["designer/class_names"])
    cells = [
        workdir.name,
        f"{max(evaluations)}, {minutes(metrics)[-1]:.0f} min",
        *(str(m).strip() for m in (overall.before, overall.after, overall.gain)),
        f"{share:.0%}",
        low,
        valid,
        new,
        names,
    ]
    return "| " + " | ".join(cells) + " |"


def groups(workdirs: Sequence[Path]) -> dict[str, list[Path]]:
    """Runs by their names without the number at the end, which tells seeds apart.

    Those of no other name (`seed42`, `seed=42`) are the whole method.
    """
    found: dict[str, list[Path]] = {}
    for workdir in workdirs:
        name = re.sub(r"[-_]?(seed=?)?\d+$", "", workdir.name) or "whole"
        found.setdefault(name, []).append(workdir)
    return found


def shares_won(workdirs: Sequence[Path]) -> dict[int, list[float]]:
    """Of each held-out instance, in how many of the runs it was won, by iteration.

    Iterations that not every run has evaluated are left out.
    """
    runs = [read_evaluations(workdir) for workdir in workdirs]
    return {
        k: [math.fsum(o.won for o in same) / len(runs) for same in zip(*played, strict=True)]
        for k in sorted(set.intersection(*(set(run) for run in runs)))
        for played in ([run[k] for run in runs],)
    }


def group_rows(found: Mapping[str, Sequence[Path]]) -> list[str]:
    """A line for each group: means over its runs, and its end against that of the first group.

    Intervals are those of the mean over instances, each taken over the group's runs; beside them
    the smallest and the largest gain of a run say how much seeds differ.
    """
    rows, first = [], None
    for name, workdirs in found.items():
        shares = shares_won(workdirs)
        before, after = shares[min(shares)], shares[max(shares)]
        each = [mean(_gains(read_evaluations(workdir))).value for workdir in workdirs]
        overall = compare(before, after)
        against = "" if first is None else str(compare(first, after).gain).strip()
        first = first or after
        cells = (
            name,
            str(len(workdirs)),
            *(str(m).strip() for m in (overall.before, overall.after, overall.gain)),
            f"{min(each):.1%} to {max(each):.1%}",
            against,
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _gains(evaluations: Mapping[int, Sequence[Outcome]]) -> list[float]:
    before, after = evaluations[min(evaluations)], evaluations[max(evaluations)]
    return [b.won - a.won for a, b in zip(before, after, strict=True)]


def overlay(found: Mapping[str, Sequence[Path]]) -> matplotlib.figure.Figure:
    """Held-out success over iterations, a curve for each group."""
    figure = matplotlib.figure.Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for name, workdirs in found.items():
        points = [(k, mean(shares)) for k, shares in shares_won(workdirs).items()]
        x, y = [k for k, _ in points], [m.value for _, m in points]
        count = f" ({len(workdirs)} runs)" if len(workdirs) > 1 else ""
        axis.plot(x, y, marker=".", label=name + count)
        low, high = ([m.value + s * m.half_width for _, m in points] for s in (-1, 1))
        axis.fill_between(x, low, high, alpha=0.12)
    axis.set_xlabel("iterations")
    axis.set_ylabel("held-out success (95% interval)")
    axis.legend(fontsize=8)
    return figure


def main() -> None:
    workdirs = [Path(name) for name in FLAGS.runs]
    for workdir in workdirs:
        if len(read_evaluations(workdir)) < 2:
            raise UsageError(f"{workdir} holds no two evaluations yet; let the run finish first")
    print(
        "| run | iterations | before | after | gain | largest family's share | regret, low end "
        "| valid | new | names |\n|" + "---|" * 10
    )
    for workdir in workdirs:
        print(row(workdir))
    found = groups(workdirs)
    if len(found) < len(workdirs):
        print(
            f"\n| runs | seeds | before | after | gain | of single runs | end against "
            f"{next(iter(found))} |\n|" + "---|" * 7
        )
        print("\n".join(group_rows(found)))
    overlay(found).savefig(FLAGS.output, dpi=110)
    print(f"wrote {FLAGS.output}")


if __name__ == "__main__":
    flags.DEFINE_list("runs", None, "Workdirs, separated by commas.", required=True)
    flags.DEFINE_string("output", "report.png", "Picture to write.")
    run_program(main)
