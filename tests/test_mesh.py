"""A run on several devices: what it computes, where it keeps it, and going on on others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spade_jax import metrics
from tests import small_run

ROOT = Path(__file__).parents[1]


def on_devices(devices: int, *command: object) -> str:
    """The output of a program in a process with so many devices."""
    environment = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0",  # one program at a time: few cores, many devices
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def updated(devices: int, *arguments: object) -> dict[str, list]:
    return json.loads(on_devices(devices, "tests.mesh_run", *arguments).splitlines()[-1])


@pytest.mark.slow
def test_a_run_goes_on_on_half_and_on_twice_the_devices(model_folder: Path, tmp_path: Path) -> None:
    """Three updates, each on another mesh, are those of one device."""
    alone = updated(1, model_folder, tmp_path / "alone", "1x1x1x1", 3)
    updated(4, model_folder, tmp_path / "moved", "1x2x2x1", 1)
    eight = updated(8, model_folder, tmp_path / "moved", "2x2x2x1", 1)
    half = updated(4, model_folder, tmp_path / "moved", "1x-1x1x2", 1)
    for got, expected in zip(half["params"], alone["params"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert half["said"] == alone["said"][-1:]
    assert alone["largest_share"] == 1 and half["largest_share"] == 1 / 4
    assert eight["largest_share"] == 1 / 4  # data keeps copies


@pytest.mark.slow
def test_an_iteration_on_four_devices(model_folder: Path, tmp_path: Path) -> None:
    fields = {"environments__source": "fixed", "environments__size": 6, "mesh": (1, 2, 2, 1)}
    fields |= {"learn__rows": (4,), "learn__entropy": 1e-3}  # which all plays are learned from for
    c = small_run.run_config(model_folder, iterations=1, **fields)
    on_devices(4, "spade_jax.train", "--config=tiny", *small_run.arguments(c, tmp_path))
    [line] = metrics.read_metrics(tmp_path)
    assert line["agent/return_mean"] is not None and line["learn/logprob_gap_max"] < 1e-4
