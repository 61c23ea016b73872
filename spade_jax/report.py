"""Runs side by side: held-out success over time in one plot, and a row of outcomes for each.

python -m spade_jax.report --runs=runs/seed1,runs/seed2,runs/frozen --output=report.png
"""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib.figure
from absl import flags

from spade_jax import summary
from spade_jax.evals.heldout import compare, mean
from spade_jax.metrics import read_metrics
from spade_jax.program import run_program
from spade_jax.record import read_evaluations
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


def overlay(workdirs: list[Path]) -> matplotlib.figure.Figure:
    """Held-out success of every run over the minutes it has trained."""
    figure = matplotlib.figure.Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for workdir in workdirs:
        time = minutes(read_metrics(workdir))
        points = [(time[k], mean([o.won for o in v])) for k, v in read_evaluations(workdir).items()]
        x, y = [t for t, _ in points], [m.value for _, m in points]
        axis.plot(x, y, marker=".", label=workdir.name)
        low, high = ([m.value + s * m.half_width for _, m in points] for s in (-1, 1))
        axis.fill_between(x, low, high, alpha=0.12)
    axis.set_xlabel("minutes of training")
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
    overlay(workdirs).savefig(FLAGS.output, dpi=110)
    print(f"wrote {FLAGS.output}")


if __name__ == "__main__":
    flags.DEFINE_list("runs", None, "Workdirs, separated by commas.", required=True)
    flags.DEFINE_string("output", "report.png", "Picture to write.")
    run_program(main)
