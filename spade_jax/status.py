"""How a run goes, on one screen of the terminal.

python -m spade_jax.status runs/tiny
"""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spade_jax import config as configs
from spade_jax.folder import Lines
from spade_jax.health import ALARMS
from spade_jax.program import printable, run_program
from spade_jax.report import compare, curves, environments
from spade_jax.report.runs import Reading, flatten, read
from spade_jax.types import UsageError

BARS = "▁▂▃▄▅▆▇█"
SPARK = 24  # values of a curve in small
DESIGNS = 8  # most shown of the last ones
OTHER_LINES = 21  # of a screen
RECENT = 5  # iterations the pace is judged by
WATCHED = (
    ("success", "agent/success", "share"),
    ("hinted return", "agent/return_hinted_mean", "number"),
    ("regret", "designer/regret_mean", "number"),
    ("valid designs", "designer/valid_share", "share"),
    ("diversity", "designer/diversity", "share"),
    ("agent's entropy", "agent/entropy", "number"),
    ("designer's entropy", "designer/entropy", "number"),
    ("log-prob gap, largest", "learn/logprob_gap_max", "number"),
    ("tokens/s", "sample/tokens_per_s", "number"),
)


def screen(reading: Reading, height: int) -> RenderableType:
    """What is worth a look, on a screen of so many lines: at least 24."""
    parts: list[RenderableType] = [head(reading)]
    numbers = Panel(watched(reading.metrics), title="iterations", title_align="left")
    beside = Group(*(p for p in (held_out(reading), alarms(reading.alarms)) if p))
    parts.append(Columns([numbers, beside], padding=(0, 1)))
    if reading.index:
        shown = min(max(height - OTHER_LINES, 1), DESIGNS)
        title = f"last designs: {', '.join(verdicts(reading.index))}"
        parts.append(Panel(designs(reading, shown), title=title, title_align="left"))
    return Group(*parts)


def head(reading: Reading) -> RenderableType:
    """Name, state and how far it has come."""
    total = reading.config["iterations"]
    line = Text.assemble(
        (printable(reading.name), "bold"),
        ("  ", ""),
        (reading.state, "green" if reading.state == "finished" else "yellow"),
        f"  iteration {reading.done} of {total}{pace(reading, total)}",
    )
    return Group(line, ProgressBar(total=total, completed=reading.done, width=60), "")


def pace(reading: Reading, total: int) -> str:
    """Seconds of an iteration, and time left at that pace."""
    recent = [m["time/iteration_s"] for m in reading.metrics[-RECENT:] if m["time/iteration_s"]]
    if not recent:
        return ""
    each = sum(recent) / len(recent)
    left = datetime.timedelta(seconds=round(each * (total - reading.done)))
    return f", {each:.1f} s each" + (f", {left} left" if reading.done < total else "")


def watched(metrics: Lines) -> Table:
    """The last values, and how they came about."""
    table = Table.grid(padding=(0, 2))
    for title, name, unit in WATCHED:
        values = [line[name] for line in metrics if line.get(name) is not None]
        if values:
            last = f"{values[-1]:.1%}" if unit == "share" else f"{values[-1]:.3g}"
            table.add_row(title, Text(last, "bold"), Text(spark(values), "cyan"))
    return table


def spark(values: Sequence[float]) -> str:
    """The last values as bars, from the smallest to the largest."""
    some = [values[k - 1] for k in curves.thinned(range(1, len(values) + 1), SPARK)]
    low, high = min(some), max(some)
    top = len(BARS) - 1
    return "".join(BARS[round((v - low) / (high - low) * top) if high > low else 0] for v in some)


def held_out(reading: Reading) -> RenderableType | None:
    """The last evaluation, beside the first where there are two."""
    points = curves.held_out(reading)
    if not points:
        return None
    k = max(points)
    text = Text(f"after {k} iterations  {points[k][0]:.1%} ± {points[k][1]:.1%}")
    if outcome := compare.held_out(reading):
        text.append(f"\ngained              {outcome.gain}")
    return Panel(text, title="held-out success", title_align="left")


def alarms(lines: Lines) -> RenderableType:
    """The last alarms and what they mean."""
    if not lines:
        return Text("no alarm was raised", style="dim")
    table = Table.grid(padding=(0, 1))
    for line in lines[-4:]:
        meaning = getattr(ALARMS.get(line["alarm"]), "meaning", "").partition(":")[0]
        table.add_row(Text(f"{line['iteration']}", "dim"), Text(line["alarm"], "red"), meaning)
    return Panel(table, title="alarms", title_align="left", width=60)


def designs(reading: Reading, most: int) -> Table:
    """The last designs and how they fared."""
    table = Table.grid(padding=(0, 2))
    plays, rewards = (environments.by_environment(x) for x in (reading.plays, reading.rewards))
    for line in reading.index[-most:]:
        name = line["environment_id"]
        row = environments.row(reading, line, plays.get(name, []), rewards.get(name, []))
        good = row["verdict"] in ("accepted", "given")
        table.add_row(*map(Text, (name, row["name"], row["skill"])), *_outcome(row, good))
    return table


def _outcome(row: environments.Detail, good: bool) -> Iterator[Text]:
    yield Text(row["verdict"], "green" if good else "yellow")
    yield Text("" if row["win"] is None else f"won {row['win']:.0%}")
    yield Text("" if row["regret"] is None else f"regret {row['regret']:+.2f}")


def verdicts(index: Lines) -> list[str]:
    """How many of the last regeneration's designs had which verdict."""
    last = [line["reason"] for line in index if line["iteration"] == index[-1]["iteration"]]
    return [f"{n} {reason}" for reason, n in collections.Counter(last).most_common()]


def main(names: list[str]) -> None:
    if len(names) != 1:
        raise UsageError("name one run's folder: python -m spade_jax.status WORKDIR")
    defaults = flatten(configs.load("default").to_dict())
    console = Console(highlight=False)
    console.print(screen(read(Path(names[0]), defaults), console.height))


if __name__ == "__main__":
    run_program(main, files=True)
