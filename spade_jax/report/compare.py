"""Runs and groups side by side: a row of outcomes for each, the best cells marked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from spade_jax import outcomes
from spade_jax.evals.intervals import Comparison, Mean, compare, mean
from spade_jax.folder import Outcome
from spade_jax.report.runs import Group, Reading

RUN_COLUMNS = (
    "run",
    "iterations",
    "before",
    "after",
    "gain",
    "largest family's share",
    "regret, low end",
    "valid",
    "new",
    "names",
)
GROUP_COLUMNS = ("runs", "seeds", "before", "after", "gain", "of single runs", "end against first")


@dataclasses.dataclass(frozen=True)
class Cell:
    """What a table shows. `value` is what its column is compared by, the largest is the best."""

    text: str
    value: float | None = None
    best: bool = False


Row = tuple[Cell, ...]


def run_row(reading: Reading) -> Row:
    """Outcome of one run: held-out success, regret, what was designed."""
    outcome, share = held_out(reading), "-"
    if outcome:
        first, last = (reading.evaluations[pick(reading.evaluations)] for pick in (min, max))
        families = outcomes.parts(first, last, lambda o: o.family).values()
        whole = outcome.gain.value * outcome.gain.n
        largest = max(part.gain.value * part.gain.n for part in families)
        share = f"{largest / whole if whole else 0.0:.0%}"
    valid, new, names = designed(reading)
    return (
        Cell(reading.name),
        Cell(f"{reading.done}, {reading.seconds / 60:.0f} min"),
        *comparison_cells(outcome),
        Cell(share),
        low_regret([reading]),
        valid,
        new,
        names,
    )


def held_out(reading: Reading) -> Comparison | None:
    """Success at the first and the last evaluation; None before the second one."""
    if len(reading.evaluations) < 2:
        return None
    first, last = (reading.evaluations[pick(reading.evaluations)] for pick in (min, max))
    return compare([o.won for o in first], [o.won for o in last])


def comparison_cells(outcome: Comparison | None) -> Row:
    """Before, after and gain."""
    if outcome is None:
        return (Cell("-"),) * 3
    return (
        Cell(str(outcome.before).strip()),
        *(Cell(str(m).strip(), m.value) for m in (outcome.after, outcome.gain)),
    )


def low_regret(readings: Sequence[Reading]) -> Cell:
    """Lower end of the 95% interval of the regret over all pairs of the runs."""
    regret = outcomes.regret_of([line for reading in readings for line in reading.metrics])
    if regret.mean is None or regret.stderr is None:
        return Cell("-")
    low = regret.mean - 1.96 * regret.stderr
    return Cell(f"{low:+.3f}", low)


def designed(reading: Reading) -> tuple[Cell, Cell, Cell]:
    """Valid and new shares, and class names, at the last regeneration."""
    lines = [m for m in reading.metrics if m.get("designer/valid_share") is not None]
    if not lines:
        return (Cell("-"),) * 3
    valid, new = (lines[-1][f"designer/{name}"] or 0.0 for name in ("valid_share", "new_share"))
    names = lines[-1]["designer/class_names"]
    return Cell(f"{valid:.0%}", valid), Cell(f"{new:.0%}", new), Cell(str(names), names)


def shares_won(readings: Sequence[Reading]) -> dict[int, list[float]]:
    """Of each held-out instance, in how many of the runs it was won, by iteration.

    Iterations that not every run has evaluated are left out.
    """
    runs = [reading.evaluations for reading in readings]
    return {
        k: [math.fsum(o.won for o in same) / len(runs) for same in zip(*played, strict=True)]
        for k in sorted(set.intersection(*(set(run) for run in runs)))
        for played in ([run[k] for run in runs],)
    }


def group_rows(groups: Sequence[Group]) -> list[Row]:
    """A row for each group: means over its runs, and its end against that of the first group.

    Intervals are those of the mean over instances, each taken over the group's runs; beside them
    the smallest and the largest gain of a run say how much seeds differ.
    """
    rows, first = [], None
    for group in groups:
        shares = shares_won(group.runs)
        each = [outcome.gain.value for run in group.runs if (outcome := held_out(run))]
        outcome, after = None, shares[max(shares)] if shares else []
        if len(shares) > 1:
            outcome = compare(shares[min(shares)], after)
        against = ""
        if first is not None:
            same = _instances(group) == _instances(groups[0]) and first and after
            against = str(compare(first, after).gain).strip() if same else "-"
        first = after if first is None else first
        rows.append(
            (
                Cell(group.label),
                Cell(str(len(group.runs))),
                *comparison_cells(outcome),
                Cell(f"{min(each):.1%} to {max(each):.1%}" if each else "-"),
                Cell(against),
            )
        )
    return rows


def _instances(group: Group) -> list[tuple[str, int]]:
    """Family and level of the held-out instances."""
    evaluations: Mapping[int, Sequence[Outcome]] = group.runs[0].evaluations
    last = evaluations[max(evaluations)] if evaluations else ()
    return [(outcome.family, outcome.level) for outcome in last]


def mark_best(rows: Sequence[Row]) -> list[Row]:
    """The rows with the largest value of each column marked, where values differ."""
    marked = [list(row) for row in rows]
    for k in range(len(rows[0]) if rows else 0):
        values = [row[k].value for row in rows if row[k].value is not None]
        if len(set(values)) > 1:
            for row in marked:
                row[k] = dataclasses.replace(row[k], best=row[k].value == max(values))
    return [tuple(row) for row in marked]


def markdown(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """A table; the best cells are bold."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = (f"**{cell.text}**" if cell.best else cell.text for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tables(groups: Sequence[Group]) -> str:
    """Rows of runs and, where there is more than one, of groups, as Markdown."""
    rows = [run_row(reading) for each in groups for reading in each.runs]
    text = markdown(RUN_COLUMNS, mark_best(rows))
    if len(rows) > 1:
        text += "\n\n" + markdown(GROUP_COLUMNS, mark_best(group_rows(groups)))
    return text


def success(group: Group) -> list[tuple[int, Mean]]:
    """Held-out success by iteration, each instance taken over the group's runs."""
    return [(k, mean(shares)) for k, shares in shares_won(group.runs).items()]
