"""Metrics: names, the record on disk, stage times and the progress display."""

import contextlib
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import rich.console

from spade_jax import metrics
from spade_jax.trackers import Shown
from spade_jax.types import (
    Design,
    DesignTask,
    Kind,
    Reason,
    StopReason,
    TokenRecord,
    Verdict,
)


def _clock(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def test_describe_knows_plain_and_patterned_names() -> None:
    assert metrics.describe("learn/loss").meaning
    assert metrics.describe("time/design_s").unit == "s"
    assert metrics.describe("designer/reject/step").unit == "share"
    assert metrics.describe("tracker/Causal Inference/fast").meaning
    for name in ("learn/los", "time/design", "designer/reject/a/b", "designer/reject/"):
        with pytest.raises(ValueError, match=f"metric '{name}' is not in METRICS"):
            metrics.describe(name)


def test_lines_hold_plain_numbers_and_null(tmp_path: Path) -> None:
    with metrics.MetricsWriter(tmp_path, step=0) as writer:
        writer.write(
            0,
            {
                "learn/loss": np.float32(0.5),
                "learn/tokens": np.int64(3),
                "learn/kl": math.nan,
                "learn/grad_norm": math.inf,
                "designer/regret_mean": None,
            },
        )
        on_disk = (tmp_path / "metrics.jsonl").read_text()
    assert on_disk.endswith("\n")
    assert json.loads(on_disk) == {
        "step": 0,
        "learn/loss": 0.5,
        "learn/tokens": 3,
        "learn/kl": None,
        "learn/grad_norm": None,
        "designer/regret_mean": None,
    }
    assert not (tmp_path / "tensorboard").exists()


def test_unknown_name_writes_nothing(tmp_path: Path) -> None:
    with (
        metrics.MetricsWriter(tmp_path, step=0) as writer,
        pytest.raises(ValueError, match="not in METRICS"),
    ):
        writer.write(0, {"learn/loss": 1.0, "nonsense": 1.0})
    assert metrics.read_metrics(tmp_path) == []


def test_resume_cuts_later_and_torn_lines(tmp_path: Path) -> None:
    with metrics.MetricsWriter(tmp_path, step=0) as writer:
        for step in range(5):
            writer.write(step, {"learn/loss": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "nested": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
        file.write('{"step": 5, "learn')
    with metrics.MetricsWriter(tmp_path, step=3) as writer:
        writer.write(3, {"learn/loss": 30.0})
    assert metrics.read_metrics(tmp_path) == [
        {"step": 0, "learn/loss": 0.0},
        {"step": 1, "learn/loss": 1.0},
        {"step": 2, "learn/loss": 2.0},
        {"step": 3, "learn/loss": 30.0},
    ]
    assert not (tmp_path / "metrics.jsonl.cut").exists()


class Follower:
    """A tracker that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float], Shown]] = []
        self.closed = False

    def write(self, step: int, scalars: dict[str, float], shown: Shown) -> None:
        self.told.append((step, scalars, shown))

    def close(self) -> None:
        self.closed = True


def test_trackers_get_what_is_a_number(tmp_path: Path) -> None:
    follower, shown = Follower(), Shown({"agent/returns": [1.0]}, {})
    with metrics.MetricsWriter(tmp_path, step=0, trackers=[follower]) as writer:
        writer.write(2, {"learn/loss": 0.5, "learn/kl": None, "learn/grad_norm": math.nan})
        writer.write(3, {"learn/loss": 0.25}, shown)
    assert follower.told == [(2, {"learn/loss": 0.5}, Shown()), (3, {"learn/loss": 0.25}, shown)]
    assert follower.closed


def test_timer_adds_up_and_starts_again() -> None:
    timer = metrics.Timer(_clock(0.0, 1.0, 1.0, 4.0, 4.0, 4.5, 10.0, 11.0))
    with timer.stage("play"):
        pass
    with timer.stage("learn"):
        pass
    with timer.stage("play"):
        pass
    assert timer.take() == {"time/play_s": 1.5, "time/learn_s": 3.0}
    with pytest.raises(KeyError), timer.stage("learn"):
        raise KeyError
    assert timer.take() == {"time/learn_s": 1.0}
    assert timer.take() == {}


VALUES = {
    "agent/success": 0.4567,
    "designer/regret_mean": 0.125,
    "designer/valid_share": None,
    "sample/tokens_per_s": 12345.6,
    "learn/loss": 0.1,
}


def test_plain_progress_is_one_line_an_iteration() -> None:
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=False, width=20)
    clock = _clock(50.0, 60.0)
    with metrics.Progress(12, console=console, clock=clock) as progress:
        progress.update(10, VALUES)
        progress.update(11, {**VALUES, "designer/valid_share": 0.75})
    assert out.getvalue().splitlines() == [
        "iteration 11/12  success 45.7%  regret +0.125  valid -  tokens/s 12,346  left -",
        "iteration 12/12  success 45.7%  regret +0.125  valid 75.0%  tokens/s 12,346  left 0:00:00",
    ]


def test_time_left_follows_the_last_iterations_and_never_the_first() -> None:
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=False)
    times = [1000.0, *(1003.0 + i for i in range(39))]  # one of 3 s, then one a second
    progress = metrics.Progress(140, console=console, clock=_clock(*times))
    for step in range(40):
        progress.update(step, VALUES)
    lines = out.getvalue().splitlines()
    assert lines[0].endswith("left -")
    assert lines[1].endswith("left 0:06:54")  # 138 of 3 s
    assert lines[-1].endswith("left 0:01:40")


def test_terminal_progress_is_a_live_table() -> None:
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=True, width=100)
    with metrics.Progress(3, console=console, clock=_clock(1.0, 2.0)) as progress:
        progress.update(0, VALUES)
        progress.update(1, VALUES)
    text = out.getvalue()
    assert "\x1b[" in text
    for word in ("iteration", "success", "tokens/s", "2/3", "45.7%", "0:00:01"):
        assert word in text


def test_terminal_progress_shows_stage_and_designs() -> None:
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=True, width=100)
    task = DesignTask(iteration=0, slot=0, skill="Optimization", kind=Kind.GAME, document=None)
    codes = ["class SortEnv:\n    pass", None]
    designs = [
        Design(task=task, reply="", stop=StopReason.STOP, record=TokenRecord(), code=code)
        for code in codes
    ]
    verdicts = [Verdict(reason=Reason.ACCEPTED), Verdict(reason=Reason.EXTRACT)]
    with metrics.Progress(3, console=console, clock=_clock(1.0)) as progress:
        progress.designs(designs, verdicts)
        with progress.stage("iteration"), progress.stage("play"):
            progress.update(0, VALUES)
    last = out.getvalue().rpartition("iteration")[2]
    for words in ("1 accepted, 1 extract", "SortEnv", "no program", "Optimization", "now: play"):
        assert words in last, words


def test_plain_progress_keeps_to_its_lines() -> None:
    out = io.StringIO()
    console = rich.console.Console(file=out, force_terminal=False)
    with metrics.Progress(3, console=console, clock=_clock()) as progress:
        with progress.stage("play"):
            progress.designs([], [])
    assert out.getvalue() == ""


def test_a_timer_puts_stages_into_others_contexts() -> None:
    timer, heard = metrics.Timer(_clock(0.0, 1.0, 2.0, 3.0)), []

    @contextlib.contextmanager
    def listen(name: str) -> Iterator[None]:
        heard.append(f"{name} begins")
        yield
        heard.append(f"{name} ends")

    timer.around.append(listen)
    with timer.stage("iteration"), timer.stage("play"):
        pass
    assert heard == ["iteration begins", "play begins", "play ends", "iteration ends"]
    assert timer.take() == {"time/play_s": 1.0, "time/iteration_s": 3.0}
