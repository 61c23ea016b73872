"""What a long run is operated by: other places, traces, host memory, export, signals, caches."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import fsspec
import jax
import numpy as np
import psutil
import pytest
from ml_collections import config_dict

from spade_jax import metrics, run, storage, tracing, train, weights
from spade_jax.types import UsageError
from tests import small_run

ROOT = Path(__file__).parents[1]
FIXED = {"environments__source": "fixed", "environments__size": 6, "log__tensorboard": False}
FIXED |= {"learn__entropy": 0.1}  # which moves the weights whatever is won


def written(files: dict[str, bytes]) -> dict[str, object]:
    """What a run leaves, by name; of the metrics all but times and memory."""
    measured = re.compile(r"time/|host/|sample/tokens_per|compiles")
    lines = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    kept = [{k: v for k, v in line.items() if not measured.match(k)} for line in lines]
    other = ("checkpoints/", "profile/", "exported/")
    same = {name: data for name, data in files.items() if not name.startswith(other)}
    return same | {"metrics.jsonl": kept, "plot.png": None}


def of_folder(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def config(model_folder: Path) -> config_dict.ConfigDict:
    return small_run.run_config(model_folder, **FIXED)


@pytest.fixture(scope="module")
def plain(config: config_dict.ConfigDict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run in a folder, exported, with its second iteration traced."""
    workdir = tmp_path_factory.mktemp("plain")
    assert train.train(config, workdir, profiled=range(1, 2), export_hf=True) == 0
    return workdir


def test_a_file_path_is_a_folder(
    config: config_dict.ConfigDict, plain: Path, tmp_path: Path
) -> None:
    assert train.train(config, f"file://{tmp_path}/run") == 0
    assert written(of_folder(tmp_path / "run")) == written(of_folder(plain))


def test_a_run_in_a_store_goes_on_from_what_lies_there(
    config: config_dict.ConfigDict,
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Its folder on this machine is gone after each part; checkpoints, which Orbax cannot write
    to memory, stay in one."""
    monkeypatch.setattr(storage, "checkpoint_folder", lambda _: tmp_path / "checkpoints")
    c = config.copy_and_resolve_references()
    for iterations in (1, 2):
        c.iterations = iterations
        assert train.train(c, "memory://bucket/run", export_hf=True) == 0
    out = capsys.readouterr().out
    assert "going on in memory://bucket/run at iteration 1" in out
    assert "wrote memory://bucket/run/summary.txt" in out and "spade-jax-" not in out
    memory = fsspec.filesystem("memory")
    found = {path.removeprefix("/bucket/run/"): memory.cat_file(path) for path in memory.find("/")}
    memory.store.clear()
    # The part of one iteration has ended as a run does: with an evaluation.
    extra = {"evaluation/000001.json"}
    assert extra <= found.keys()
    theirs = written(of_folder(plain))
    ours = {name: data for name, data in written(found).items() if name not in extra}
    assert ours.keys() == theirs.keys()
    last = [{k: v for k, v in lines["metrics.jsonl"][1].items()} for lines in (ours, theirs)]
    assert last[0] == last[1]
    for name in ours.keys() - {"metrics.jsonl", "config.json", "summary.txt"}:
        assert ours[name] == theirs[name], name
    assert json.loads(found["exported/config.json"])["model_type"] == "qwen3"


# -- what is written --------------------------------------------------------------------------


def test_the_export_is_the_final_weights_and_opens(
    config: config_dict.ConfigDict, plain: Path
) -> None:
    exported, saved = weights.find(plain / "exported"), weights.find(plain)
    assert (exported.kind, saved.kind, saved.step) == ("hugging face", "run", 2)
    ours, started = exported.load(), weights.find(config.model.path).load()
    jax.tree.map(np.testing.assert_array_equal, ours, saved.load())
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), ours, started)
    assert any(jax.tree.leaves(moved)), "training has moved something"
    assert not (plain / "exported.draft").exists()


def test_a_checkpoint_is_exported_once(
    config: config_dict.ConfigDict, plain: Path, capsys: pytest.CaptureFixture
) -> None:
    file, mark = (plain / "exported" / name for name in ("config.json", "iteration.txt"))
    written_at = file.stat().st_mtime_ns
    assert mark.read_text() == "2\n"
    assert train.train(config, plain, export_hf=True) == 0
    assert "is finished" in capsys.readouterr().out
    assert file.stat().st_mtime_ns == written_at
    mark.write_text("1\n")  # as if it had gone on since
    assert train.train(config, plain, export_hf=True) == 0
    assert file.stat().st_mtime_ns > written_at and mark.read_text() == "2\n"


def test_a_trace_holds_the_stages(plain: Path) -> None:
    [file] = (plain / "profile").rglob("*.xplane.pb")
    data = file.read_bytes()
    assert all(stage in data for stage in (b"iteration", b"play", b"learn"))


@pytest.mark.parametrize(
    ("text", "steps"), [("", []), ("2", [2]), ("2-4", [2, 3, 4]), ("0-0", [0])]
)
def test_steps_to_trace(text: str, steps: list[int]) -> None:
    assert list(tracing.read_steps(text)) == steps


@pytest.mark.parametrize("text", ["x", "3-2", "-1", "1-", "1,2"])
def test_steps_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=rf"--profile={re.escape(text)} names no iterations"):
        tracing.read_steps(text)


def test_memory_is_measured(plain: Path) -> None:
    most = psutil.virtual_memory().total / 2**20
    for line in metrics.read_metrics(plain):
        now, peak = line["host/memory_mb"], line["host/memory_peak_mb"]
        assert 100 < now <= 1.01 * peak < most
        assert 5 < line["host/environment_peak_mb"] < 300


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (9 * 10**9, ""),
        (
            366 * 10**9,
            "each checkpoint is of 366 GB, one is written every 100 iterations, and up to 3 lie in "
            "the workdir at once, 1098 GB, besides those of every 40; a larger",
        ),
    ],
)
def test_large_checkpoints_are_announced(
    config: config_dict.ConfigDict, capsys: pytest.CaptureFixture, size: int, said: str
) -> None:
    c = config.copy_and_resolve_references()
    c.checkpoint.keep_every = 40
    run.describe_checkpoints(c, size)
    assert capsys.readouterr().out.startswith(said)


# -- processes --------------------------------------------------------------------------------

WAITING = """
import time
from spade_jax import train
with train.Interruption() as interruption:
    print("ready", flush=True)
    while interruption.signal is None:
        time.sleep(0.01)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, -signal.SIGTERM, "send SIGTERM again"),
        (signal.SIGINT, -signal.SIGINT, "press Ctrl-C again"),
    ],
)
def test_the_second_signal_ends_at_once(number: int, code: int, said: str) -> None:
    """An uncaught KeyboardInterrupt, which programs turn into 130, ends Python by SIGINT."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITING],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert said in process.stdout.readline()
        process.send_signal(number)
        assert process.wait() == code


COUNTING = """
import sys
import jax.monitoring
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
from spade_jax import config, train
code = train.train(config.load(sys.argv[1]), sys.argv[2])
hits, misses = (events.count(f"/jax/compilation_cache/cache_{what}") for what in ("hits", "misses"))
print("counted", code, hits, misses)
"""


@pytest.mark.slow
def test_a_second_start_reads_what_the_first_compiled(
    config: config_dict.ConfigDict, tmp_path: Path
) -> None:
    c = config.copy_and_resolve_references()
    c.iterations = 1
    (tmp_path / "config.json").write_text(c.to_json())
    cache = tmp_path / "cache"
    variables = {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    counts = []
    for workdir in ("first", "second"):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                COUNTING,
                str(tmp_path / "config.json"),
                str(tmp_path / workdir),
            ],
            cwd=ROOT,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        counts.append(
            [int(n) for n in re.search(r"counted (\d+) (\d+) (\d+)", done.stdout).groups()]
        )
    (_, _, compiled), (_, read, again) = counts
    assert compiled > 10 and read >= compiled and again == 0
