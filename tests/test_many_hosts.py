"""Runs on several hosts, which are processes of this machine, each with devices of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ml_collections import config_dict

from spade_jax import metrics
from spade_jax.program import RESTART
from tests import small_run
from tests.test_mesh import updated
from tests.test_resume import SELF_PLAY, outcome, written

ROOT = Path(__file__).parents[1]
LIMIT = 900  # seconds for processes of a test, on a machine that is busy with much else
HEARTBEAT = 10

pytestmark = pytest.mark.slow


class Fleet:
    """A program on several hosts: one process each, with so many devices; ended with the body."""

    def __init__(self, hosts: int, devices: int, *command: object, own: Sequence[str] = ()) -> None:
        environment = {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0",
            "PYTHONPATH": str(ROOT),
        }
        if hosts > 1:
            environment["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{small_run.free_port()}"
            environment["JAX_NUM_PROCESSES"] = str(hosts)
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", *map(str, command), *own[k : k + 1]],
                cwd=ROOT,
                env=os.environ | environment | ({"JAX_PROCESS_ID": str(k)} if hosts > 1 else {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for k in range(hosts)
        ]

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def end(self) -> tuple[list[int], list[str]]:
        """Exit codes and what was printed, of all hosts."""
        printed = [process.communicate(timeout=LIMIT)[0] for process in self.processes]
        return [process.returncode for process in self.processes], printed

    def wait_for(self, path: Path, lines: int) -> None:
        """Until a file has so many lines, or a process has ended."""
        end = time.monotonic() + LIMIT
        while not path.exists() or len(path.read_text().splitlines()) < lines:
            assert time.monotonic() < end and all(p.poll() is None for p in self.processes)
            time.sleep(0.1)


def train_command(c: config_dict.ConfigDict, workdir: Path) -> list[str]:
    return ["spade_jax.train", "--config=tiny", *small_run.arguments(c, workdir)]


def updates(hosts: int, devices: int, *arguments: object) -> list[dict]:
    """What each host of `mesh_run` says."""
    with Fleet(hosts, devices, "tests.mesh_run", *arguments) as fleet:
        codes, printed = fleet.end()
    assert codes == [0] * hosts, "\n".join(printed)
    return [json.loads(text[text.index('{"params"') :].splitlines()[0]) for text in printed]


def test_updates_of_two_hosts_are_those_of_one(model_folder: Path, tmp_path: Path) -> None:
    """Three: on two hosts of two devices, on four in two replicas, and on one; each goes on from
    the last.

    After each the second host, or replica, asks the policy three times as often as the first.
    """
    alone = updated(1, model_folder, tmp_path / "alone", "1x1x1x1", 3)
    both = updates(2, 2, model_folder, tmp_path / "moved", "1x-1x1x1", 1)
    four = updates(4, 2, model_folder, tmp_path / "moved", "1x2x2x2", 1, 2)
    one = updated(2, model_folder, tmp_path / "moved", "1x2x1x1", 1)
    for each in (both, four):
        assert all(host["params"] == each[0]["params"] for host in each)
        assert all(host["said"] == each[0]["said"] for host in each)
    once = both[0]["asked"]
    assert [host["asked"] for host in both] == [once, 3 * once] and once > 0
    assert [host["asked"] for host in four] == [once, 0, 3 * once, 0]
    assert both[0]["largest_share"] == 1 / 4 and four[1]["largest_share"] == 1 / 8
    for got, expected in zip(one["params"], alone["params"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert both[0]["said"] + four[0]["said"] + one["said"] == alone["said"]


def test_a_run_of_two_hosts_is_that_of_one(model_folder: Path, tmp_path: Path) -> None:
    """Self-play; the second host is told to stop after an iteration, and then both go on, as one
    replica.

    What both designed and played is the same to the letter, the weights are to rounding.
    """
    c = small_run.run_config(model_folder, **{**SELF_PLAY, "iterations": 3})
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    with Fleet(1, 1, *train_command(c, alone), "--export_hf") as fleet:
        assert fleet.end()[0] == [0]
    with Fleet(2, 2, *train_command(c, shared)) as fleet:
        fleet.wait_for(shared / "metrics.jsonl", 1)
        fleet.processes[1].send_signal(signal.SIGTERM)
        codes, printed = fleet.end()
    assert codes == [RESTART] * 2, "\n".join(printed)
    assert "saved iteration" in printed[0] and "saved iteration" not in printed[1]
    together = small_run.with_field(c, "hosts.per_replica", 2)
    with Fleet(2, 2, *train_command(together, shared), "--export_hf") as fleet:
        codes, printed = fleet.end()
    assert codes == [0, 0], "\n".join(printed)
    assert "sampling: on each of 1 replicas of 2 hosts, data 1, fsdp" in printed[0]
    assert "going on" in printed[0] and "iteration 3/3" not in printed[1]
    (ours, our_host), (theirs, their_host) = outcome(c, shared), outcome(c, alone)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4)
    assert [e.environment for e in our_host.pool] == [e.environment for e in their_host.pool]
    assert [e.plain for e in our_host.pool] == [e.plain for e in their_host.pool]
    assert our_host.memory == their_host.memory
    assert our_host.corpus_position == their_host.corpus_position > 0
    ours, theirs = written(shared), written(alone)
    assert ours.keys() == theirs.keys()
    for each, per_replica in ((ours, 2), (theirs, 1)):
        assert json.loads(each.pop("config.json"))["hosts"]["per_replica"] == per_replica
    rounded = ("metrics", "alarms.jsonl", ".safetensors")
    for name in ours:
        assert ours[name] == theirs[name] or name.endswith(rounded), name
    assert any(name.endswith(".safetensors") for name in ours)
    for a, b in zip(ours["metrics"], theirs["metrics"], strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            close = value is b[name] or value == pytest.approx(b[name], rel=1e-3, abs=1e-4)
            assert close, (name, value, b[name])


def test_a_host_that_is_killed_ends_the_others(model_folder: Path, tmp_path: Path) -> None:
    """Within the limit of heartbeats, whether they sample apart or as one replica; the same command
    then goes on."""
    fields = {"environments__source": "fixed", "environments__size": 6, "learn__rows": (4,)}
    fields |= {"checkpoint__every": 1, "hosts__heartbeat_seconds": HEARTBEAT}
    c, done = small_run.run_config(model_folder, iterations=200, **fields), 0
    for per_replica in (1, 2):
        command = train_command(small_run.with_field(c, "hosts.per_replica", per_replica), tmp_path)
        with Fleet(2, 2, *command) as fleet:
            fleet.wait_for(tmp_path / "metrics.jsonl", done + 2)
            fleet.processes[1].kill()
            killed = time.monotonic()
            codes, printed = fleet.end()
            assert time.monotonic() - killed < 6 * HEARTBEAT
        assert codes[1] == -signal.SIGKILL and codes[0] not in (0, 2), printed[0]
        done = len(metrics.read_metrics(tmp_path))
    shorter = small_run.with_field(c, "iterations", done + 1)
    with Fleet(2, 2, *train_command(shorter, tmp_path)) as fleet:
        codes, printed = fleet.end()
    assert codes == [0, 0], "\n".join(printed)
    assert re.search(r"going on in \S+ at iteration [1-9]", printed[0])
    assert [line["step"] for line in metrics.read_metrics(tmp_path)] == list(range(done + 1))


def test_hosts_of_different_configs_are_refused(model_folder: Path, tmp_path: Path) -> None:
    command = train_command(small_run.run_config(model_folder), tmp_path / "run")
    rates = [f"--config.optimizer.lr={rate}" for rate in (1e-5, 2e-5)]
    with Fleet(2, 1, *command, own=rates) as fleet:
        codes, printed = fleet.end()
    assert codes == [2, 2], "\n".join(printed)
    for text in printed:
        assert "error: host 1 differs from host 0 (optimizer.lr is 2e-05 there and 1e-05" in text
    assert not (tmp_path / "run").exists()
