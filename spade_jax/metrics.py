"""Names of the metrics, their record on disk, stage times, and the progress display."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import rich.console
import rich.live
import rich.table
import rich.text

from spade_jax import folder, jsonl
from spade_jax.trackers import Shown, Tracker
from spade_jax.types import Design, Reason, Verdict, class_name

Value = float | int | None


@dataclasses.dataclass(frozen=True)
class Metric:
    """What a metric says, and its unit ("" for a plain number)."""

    meaning: str
    unit: str = ""


# A part in <> stands for any one word: a stage, a reason, a family.
METRICS: dict[str, Metric] = {
    "step": Metric("iterations finished before this one; the line's place", "iterations"),
    "agent/return_mean": Metric("mean return of the plain plays"),
    "agent/return_hinted_mean": Metric("mean return of the hinted plays"),
    "agent/success": Metric("share of plain plays with a return above 0.5", "share"),
    "agent/turns_mean": Metric("mean length of the plain plays", "turns"),
    "agent/reply_tokens_mean": Metric("mean length of the agent's replies", "tokens"),
    "agent/entropy": Metric("mean entropy of the agent's sampled tokens", "nats"),
    "agent/truncated_share": Metric("plain plays ended by a budget", "share"),
    "agent/no_action_share": Metric("replies of plain plays that held no action", "share"),
    "agent/zero_variance_share": Metric("environments whose plays all returned the same", "share"),
    "agent/win_rate/<bin>": Metric("environments whose win rate falls into this tenth", "share"),
    "play/environments": Metric("environments of the pool", "environments"),
    "play/failed_share": Metric("episodes of both arms whose environment broke", "share"),
    "play/hints_missing": Metric("environments whose hint could not be written", "environments"),
    "play/failed/<kind>": Metric("episodes broken in this way", "episodes"),
    "play/hung_share": Metric("environments of the pool that hung in play", "share"),
    "play/retired_share": Metric("environments of the pool retired for their win rate", "share"),
    "play/hint_leak_share": Metric("hinted plays whose hint held the answer", "share"),
    "designer/regret_mean": Metric("mean hinted minus plain return over valid pairs, unfloored"),
    "designer/regret_stderr": Metric("standard error of the mean regret over the pairs"),
    "designer/regret_ratio": Metric("mean regret over its standard error"),
    "designer/regret_pairs": Metric("valid pairs of plays behind the regret", "pairs"),
    "designer/valid_share": Metric("designs that validation accepted", "share"),
    "designer/repaired_share": Metric("designs accepted only after a repair turn", "share"),
    "designer/judge_unknown_share": Metric("judged designs without a readable answer", "share"),
    "designer/reject/<reason>": Metric("designs rejected for this reason", "share"),
    "designer/truncated_share": Metric("designs cut off by the token budget", "share"),
    "designer/duplicate_share": Metric("designs whose fingerprint was known", "share"),
    "designer/near_duplicate_share": Metric("designs that nearly repeat an earlier one", "share"),
    "designer/resemblance_mean": Metric("mean share of code in common with the most alike one"),
    "designer/distinct_share": Metric("different fingerprints among readable designs", "share"),
    "designer/diversity": Metric("mean share of code two accepted designs have not in common"),
    "designer/new_share": Metric("accepted designs that are no program of the warm start", "share"),
    "designer/class_names": Metric("different class names among the accepted designs", "names"),
    "designer/reply_tokens_mean": Metric("mean length of a design", "tokens"),
    "designer/entropy": Metric("mean entropy of the designer's sampled tokens", "nats"),
    "designer/reward_mean": Metric("mean raw reward of the valid designs trained on"),
    "designer/masked": Metric("designs left out because their reward was negative", "designs"),
    "designer/unknown": Metric("designs left out because no reward is known", "designs"),
    "designer/role_scale": Metric("weight of one designer sample"),
    "learn/loss": Metric("mean policy-gradient loss over the iteration's updates"),
    "learn/grad_norm": Metric("mean global norm of the gradient before clipping"),
    "learn/grad_norm/<role>": Metric("the same of this role's share, with learn.role_norms"),
    "learn/kl": Metric("mean k3 estimate to the starting weights", "nats"),
    "learn/clip_share": Metric("trained tokens whose ratio was clipped", "share"),
    "learn/logprob_gap_mean": Metric("mean gap of sampler's and learner's log-prob", "nats"),
    "learn/logprob_gap_max": Metric("largest gap of sampler's and learner's log-prob", "nats"),
    "learn/sampler_kl": Metric("k3 estimate of KL(sampler || learner), fresh samples", "nats"),
    "learn/effective_sample_size": Metric("of the importance weights, over the tokens", "share"),
    "learn/lag_max": Metric("age of the oldest sample learnt from", "updates"),
    "learn/advantage_abs_mean": Metric("mean size of the samples' advantages"),
    "learn/samples/<role>": Metric("sequences learnt from", "sequences"),
    "learn/tokens": Metric("tokens trained on", "tokens"),
    "learn/tokens/<role>": Metric("of these, the ones this role wrote", "tokens"),
    "learn/fill_share": Metric("places of the packed rows that hold a token", "share"),
    "learn/updates": Metric("optimizer steps applied in this iteration", "steps"),
    "learn/empty_updates": Metric("updates left out because nothing was trained", "updates"),
    "learn/skipped_in_row": Metric("last updates in a row skipped for not being finite", "steps"),
    "learn/approx_kl": Metric("mean k3 estimate from the old to the new policy", "nats"),
    "tracker/<skill>/fast": Metric("fast exponential mean of the skill's return"),
    "tracker/<skill>/slow": Metric("slow exponential mean of the skill's return"),
    "tracker/<skill>/potential": Metric("abs(fast - slow) / (2 (gamma_fast - gamma_slow))"),
    "difficulty/level_mean": Metric("mean level of the procedural environments played"),
    "difficulty/top_mean": Metric("mean over the tasks of the top level they are played at"),
    "sample/tokens": Metric("tokens sampled by both roles", "tokens"),
    "sample/tokens_per_s": Metric("tokens sampled a second of the whole iteration", "tokens/s"),
    "evaluation/success": Metric("share of held-out instances won", "share"),
    "evaluation/stderr": Metric("standard error of the held-out success", "share"),
    "evaluation/<family>/success": Metric("the same, of this family", "share"),
    "evaluation/level/<level>/success": Metric("the same, of this difficulty", "share"),
    "evaluation/suite/<column>/success": Metric("share of a benchmark's plays won", "share"),
    "evaluation/suite/<column>/failed": Metric("of these, plays without a score", "plays"),
    "health/alarms": Metric("alarms that are raised", "alarms"),
    "memory/size": Metric("records remembered", "records"),
    "memory/skill_entropy": Metric("how evenly the records are spread over skills", "nats"),
    "memory/diversity": Metric("mean share of code two remembered programs have not in common"),
    "corpus/position": Metric("documents drawn so far", "documents"),
    "host/memory_mb": Metric("host memory of the trainer after the iteration", "MiB"),
    "host/memory_peak_mb": Metric("the most it has had so far", "MiB"),
    "host/environment_peak_mb": Metric("the most that one environment's process has had", "MiB"),
    "compiles": Metric("compilations so far", "compilations"),
    "time/<stage>_s": Metric("time spent in this stage", "s"),
}


def describe(name: str) -> Metric:
    """The entry of a metric; ValueError where the table has none."""
    if name in METRICS:
        return METRICS[name]
    for pattern, metric in _PATTERNS:
        if pattern.fullmatch(name):
            return metric
    raise ValueError(f"metric {name!r} is not in METRICS: add it there with meaning and unit")


_PATTERNS = [
    (re.compile(re.sub(r"<\w+>", r"[^/]+", name)), metric)
    for name, metric in METRICS.items()
    if "<" in name
]


class MetricsWriter:
    """Writes `WORKDIR/metrics.jsonl`, one object an iteration, and tells the trackers.

    The JSONL file is the truth. A run resumed at `step` cuts what was written of that iteration
    and later ones. None and floats that are not finite are null in the file, and trackers get
    none of them.
    """

    def __init__(
        self, workdir: str | os.PathLike[str], *, step: int, trackers: Sequence[Tracker] = ()
    ) -> None:
        self._lines = jsonl.JsonLines(Path(workdir) / folder.METRICS, "step", step)
        self._trackers = trackers

    def write(self, step: int, values: Mapping[str, Value], shown: Shown | None = None) -> None:
        """Record one iteration; scalars of numpy and jax are taken too."""
        for name in values:
            describe(name)
        plain = {name: _plain(value) for name, value in values.items()}
        self._lines.append([{"step": step, **plain}])
        known = {name: value for name, value in plain.items() if value is not None}
        for tracker in self._trackers:
            tracker.write(step, known, shown or Shown())

    def close(self) -> None:
        self._lines.close()
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read_metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Value]]:
    """The lines of `WORKDIR/metrics.jsonl`, by step."""
    return list(jsonl.read(Path(workdir) / folder.METRICS))


class Timer:
    """Adds up the time spent in each stage of an iteration.

    Each stage is run in the contexts that `around` makes of its name.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.around: list[Callable[[str], contextlib.AbstractContextManager]] = []
        self._seconds: dict[str, float] = collections.defaultdict(float)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the body as time of this stage; a stage entered again goes on adding."""
        start = self._clock()
        try:
            with contextlib.ExitStack() as stack:
                for context in self.around:
                    stack.enter_context(context(name))
                yield
        finally:
            self._seconds[name] += self._clock() - start

    def take(self) -> dict[str, float]:
        """`time/<stage>_s` of all stages since the last call."""
        taken = {f"time/{name}_s": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return taken


class Progress:
    """Shows how the run goes: a live table on a terminal, else one plain line an iteration.

    The terminal also shows the stage at hand, and the last designs with their verdicts.
    """

    def __init__(
        self,
        iterations: int,
        *,
        console: rich.console.Console | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._iterations = iterations
        self._console = console or rich.console.Console(highlight=False)
        self._clock = clock
        self._marks: collections.deque[tuple[int, float]] = collections.deque(
            maxlen=_TIME_WINDOW + 1
        )
        self._rows: collections.deque[list[str]] = collections.deque(maxlen=_ROWS_SHOWN)
        self._stage = ""
        self._designs: collections.deque[rich.text.Text] = collections.deque(maxlen=_DESIGNS_SHOWN)
        self._verdicts: dict[Reason, int] = {}
        self._live: rich.live.Live | None = None
        if self._console.is_terminal:
            self._live = rich.live.Live(console=self._console, auto_refresh=False)

    def update(self, step: int, values: Mapping[str, Value]) -> None:
        """Show the iteration `step` (from 0) that has just finished."""
        done = step + 1
        self._marks.append((done, self._clock()))
        row = [f"{done}/{self._iterations}"]
        row += [shape(_plain(values.get(name))) for _, name, shape in _COLUMNS]
        row.append(self._time_left(done))
        if self._live is None:
            names = ["iteration", *(title for title, *_ in _COLUMNS), "left"]
            line = "  ".join(f"{name} {cell}" for name, cell in zip(names, row, strict=True))
            self._console.print(line, soft_wrap=True)
        else:
            self._rows.append(row)
            self._show()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show that this is what the run is at."""
        outer, self._stage = self._stage, name
        self._show()
        yield
        self._stage = outer

    def designs(self, designs: Sequence[Design], verdicts: Sequence[Verdict]) -> None:
        """Show what has just been designed, and what validation said of it."""
        if designs and self._live is not None:
            self._verdicts = collections.Counter(verdict.reason for verdict in verdicts)
            self._designs.extend(map(_design_line, designs, verdicts))
            self._show()

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(rich.console.Group(*self._parts()), refresh=True)

    def _parts(self) -> Iterator[rich.console.RenderableType]:
        yield self._table()
        if self._designs:
            counts = ", ".join(f"{n} {reason}" for reason, n in self._verdicts.items())
            yield rich.text.Text(f"\nlast designs: {counts}", style="dim")
            yield from self._designs
        if self._stage:
            yield rich.text.Text(f"now: {self._stage}", style="dim")

    def _time_left(self, done: int) -> str:
        """From the mean duration of the last iterations, without the first, which compiles."""
        (first, began), (last, now) = self._marks[0], self._marks[-1]
        if last == first:
            return "-"
        seconds = (now - began) / (last - first) * (self._iterations - done)
        return str(datetime.timedelta(seconds=round(seconds)))

    def _table(self) -> rich.table.Table:
        table = rich.table.Table(box=None)
        for title in ("iteration", *(title for title, *_ in _COLUMNS), "left"):
            table.add_column(title, justify="right")
        for row in self._rows:
            table.add_row(*row)
        return table

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()


_TIME_WINDOW = 20  # iterations the time left is judged by
_ROWS_SHOWN = 10
_DESIGNS_SHOWN = 6


def _design_line(design: Design, verdict: Verdict) -> rich.text.Text:
    """Name, skill and verdict; names are the model's words, so only printable ones are shown."""
    name = class_name(design.code or "") or "no program"
    style = "green" if verdict.accepted else "yellow"
    return rich.text.Text.assemble(
        f"  {name[:28]:<28}  {design.task.skill[:24]:<24}  ",
        (str(verdict.reason), style),
        no_wrap=True,
        overflow="ellipsis",
    )


def _share(value: Value) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _signed(value: Value) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _count(value: Value) -> str:
    return "-" if value is None else f"{value:,.0f}"


_COLUMNS: tuple[tuple[str, str, Callable[[Value], str]], ...] = (
    ("success", "agent/success", _share),
    ("regret", "designer/regret_mean", _signed),
    ("valid", "designer/valid_share", _share),
    ("tokens/s", "sample/tokens_per_s", _count),
)


def _plain(value: object) -> Value:
    """An int, a finite float, or None."""
    if value is None:
        return None
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else None
