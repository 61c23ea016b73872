"""Going on: a run that is killed or interrupted anywhere ends as one that was not."""

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import config_dict

from spade_jax import metrics
from spade_jax import run as run_setup
from spade_jax.checkpoint import Checkpoints, abstract
from spade_jax.types import HostState
from tests import small_run

ROOT = Path(__file__).parents[1]
ITERATIONS = 6
KILLS = 20

# The policy of the package writes programs and plays them; small portions of everything.
SELF_PLAY = {
    "model__path": "",
    "iterations": ITERATIONS,
    "design__num_envs": 4,
    "design__max_tokens": 320,
    "play__reply_tokens": 24,
    "play__context": 320,
    "learn__row_tokens": (640,),
    "learn__rows": (4,),
    "checkpoint__every": 1,
    "checkpoint__keep": ITERATIONS,
    "evaluation__every": 3,
}
# Bundled environments, and what keeps state besides: running baselines, a reference, minibatches.
FIXED_POOL = {
    **SELF_PLAY,
    "environments__source": "fixed",
    "environments__size": 10,
    "advantage__agent": "ema_baseline",
    "learn__kl": 0.01,
    "learn__minibatches": 2,
    "learn__designer_delay": 1,
}


def outcome(c: config_dict.ConfigDict, workdir: Path) -> tuple[list[np.ndarray], HostState]:
    """Both states at a run's end."""
    with run_setup.set_up(c) as (_, state), Checkpoints(workdir / "checkpoints", 2) as checkpoints:
        _, learner, host = checkpoints.restore(abstract(state))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(learner)], host


def written(workdir: Path) -> dict[str, object]:
    """What a run leaves in its folder, times and checkpoints aside."""
    left = {
        str(path.relative_to(workdir)): path.read_bytes()
        for path in workdir.rglob("*")
        if path.is_file() and path.name not in ("metrics.jsonl", "plot.png")
    }
    files = {k: v for k, v in left.items() if not k.startswith(("checkpoints/", "tensorboard/"))}
    lines = [
        {
            k: v
            for k, v in line.items()
            if not re.match(r"time/|host/|sample/tokens_per|compiles", k)
        }
        for line in metrics.read_metrics(workdir)
    ]
    return {**files, "metrics": lines}


def assert_alike(c: config_dict.ConfigDict, got: Path, expected: Path) -> None:
    (ours, our_host), (theirs, their_host) = outcome(c, got), outcome(c, expected)
    assert our_host == their_host
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    ours, theirs = written(got), written(expected)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name] == theirs[name], name


@pytest.mark.slow
@pytest.mark.parametrize("fields", [SELF_PLAY, FIXED_POOL], ids=["self-play", "fixed pool"])
def test_it_goes_on_from_each_iteration_as_if_it_had_not_stopped(
    fields: dict[str, object], model_folder: Path, tmp_path: Path
) -> None:
    """Whatever was written after the checkpoint it goes on from is written again."""
    c = small_run.run_config(model_folder, **fields)
    through = tmp_path / "through"
    assert run_until(c, through, None) == 0
    for k in range(1, ITERATIONS):
        again = tmp_path / f"from{k}"
        shutil.copytree(through, again)
        for later in range(k + 1, ITERATIONS + 1):
            shutil.rmtree(again / "checkpoints" / str(later))
        assert run_until(c, again, None) == 0
        assert_alike(c, again, through)


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(
    model_folder: Path, tmp_path: Path
) -> None:
    c = small_run.run_config(model_folder, **SELF_PLAY)
    through, killed = tmp_path / "through", tmp_path / "killed"
    assert run_until(c, through, None) == 0
    began = time.monotonic()
    assert run_until(c, killed, None) == 0
    whole = time.monotonic() - began  # with all programs compiled
    rng, kills, code = random.Random(0), 0, 0
    while kills < KILLS or code:
        if code == 0:  # it is finished: begin anew
            assert_alike(c, killed, through)
            shutil.rmtree(killed)
        code = run_until(c, killed, rng.uniform(0, whole) if kills < KILLS else None)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
    assert_alike(c, killed, through)


def run_until(c: config_dict.ConfigDict, workdir: Path, seconds: float | None) -> int:
    """Run in a process of its own, killed after so many seconds; its exit code."""
    command = [sys.executable, "-m", "spade_jax.train", *small_run.arguments(c, workdir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
