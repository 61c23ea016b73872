"""Sweeps: from points to commands, and the runner with a stand-in for the trainer."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import sweep
from spade_jax import config as configs
from spade_jax.types import UsageError

ROOT = Path(__file__).parents[1]
POINTS = """
def points(c):
    for rate in (1, 2):
        yield {"memory.size": c.memory.size + rate, "seed": 7}
    yield {"words": "no_corpus", "memory.size": 30, "seed": 7}
"""

# Notes its arguments and waits for a file `go`; exits with 1 where its workdir is called bad, and
# as the trainer does when it is interrupted.
TRAINER = """
import pathlib, signal, sys, time
def stop(number, frame):
    print("saved")
    sys.exit(128 + number)
signal.signal(signal.SIGINT, stop)
workdir = pathlib.Path(sys.argv[-1].partition("=")[2])
workdir.mkdir()
(workdir / "started").write_text(" ".join(sys.argv[1:-1]))
while not (workdir.parent / "go").exists():
    time.sleep(0.01)
if "bad" in workdir.name:
    sys.exit("error: broken")
"""


def commands(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the program in `folder`."""
    return subprocess.run(
        [sys.executable, str(ROOT / "launch" / "sweep.py"), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


# -- from points to commands ------------------------------------------------------------------


def test_dry_run_prints_each_command(tmp_path: Path) -> None:
    done = commands("memory_size", "--config.iterations=3", "--dry-run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{shlex.quote(sys.executable)} -m spade_jax.train --config=tiny --config.iterations=3 "
        f"--config.memory.size={size} --workdir=runs/tiny-memory_size/size={size}"
        for size in (25, 50, 100, 200, 400)
    ]
    assert not list(tmp_path.iterdir())


def test_a_sweep_of_your_own(tmp_path: Path) -> None:
    """Words join the config's, what is the same everywhere is in no name."""
    path = tmp_path / "mine.py"
    path.write_text(POINTS)
    base = "games:qwen3_8b"
    jobs = sweep.plan(str(path), base, configs.load(base), tmp_path)
    assert [(job.name, job.source) for job in jobs] == [
        ("size=201", base),
        ("size=202", base),
        ("no_corpus-size=30", "games:qwen3_8b,no_corpus"),
    ]
    assert jobs[2].arguments == [
        "--config=games:qwen3_8b,no_corpus",
        "--config.memory.size=30",
        "--config.seed=7",
        f"--workdir={tmp_path}/no_corpus-size=30",
    ]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("[{'seed': 1}, {'seed': 1}]", "two points called 'seed=1'"),
        ("[{'seed': -1}, {}]", "seed is -1 but must be at least 0"),
        ("[{'play.playz': 1}, {}]", r"no field 'play.playz' \(near: play.plays"),
        ("[{'play.plays': 'x'}, {}]", "sets a field to a value of another type"),
        ("[{'words': 'x'}, {}]", "unknown word 'x' after the colon"),
        ("[]", "has no points, or one that is no dict"),
        ("[['seed', 1]]", "one that is no dict from fields to numbers"),
        ("[{1: 'seed'}]", "one that is no dict from fields"),
        ("[{'learn.rows': [1, 2]}]", "to numbers, texts or tuples; mend its points"),
        ("1 / 0", r"sweep .*mine.py raised ZeroDivisionError \(division by zero\)"),
    ],
)
def test_points_that_could_not_run(tmp_path: Path, points: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"def points(c):\n    return {points}\n")
    with pytest.raises(UsageError, match=message) as raised:
        sweep.plan(str(path), "tiny", configs.load("tiny"), tmp_path)
    assert "\n" not in str(raised.value)


def test_a_point_may_be_the_config_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def points(c):\n    return [{}, {'seed': 1}]\n")
    jobs = sweep.plan(str(path), "tiny", configs.load("tiny"), tmp_path)
    assert [job.workdir for job in jobs] == [tmp_path / "base", tmp_path / "seed=1"]


def test_a_folder_of_another_sweep(tmp_path: Path) -> None:
    configs.save(configs.load("tiny:no_memory"), tmp_path / "size=25")
    with pytest.raises(UsageError, match="size=25 belongs to another config"):
        sweep.plan("memory_size", "tiny", configs.load("tiny"), tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "no bundled sweep is called 'nothing'; give a bundled name .ablations, "),
        ("absent.py", "the sweep file absent.py does not exist"),
    ],
)
def test_sweeps_that_are_not_there(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sweep.plan(name, "tiny", configs.load("tiny"), tmp_path)


def test_wrong_usage_is_one_sentence(tmp_path: Path) -> None:
    done = commands("--dry-run", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: name one sweep: ablations, ")
    assert done.stderr.count("\n") == 1


def test_commands_on_slurm(tmp_path: Path) -> None:
    done = commands("memory_size", "--on=slurm", "--dry-run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        f"env SPADE_JOB=spade-tiny-memory-size-size-25 SPADE_SBATCH=--wait bash {ROOT}/launch/"
        "slurm.sh --config=tiny --config.memory.size=25 --workdir=runs/tiny-memory_size/size=25"
    )


def test_commands_on_tpus(tmp_path: Path) -> None:
    url = "--workdir=gs://bucket/some/sizes/"
    done = commands("memory_size", "--on=tpu", url, "--dry-run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        f"env SPADE_POD=spade-sizes-size-400 bash {ROOT}/launch/tpu_vm.sh --config=tiny "
        "--config.memory.size=400 --workdir=gs://bucket/some/sizes/size=400"
    )


def test_a_tpu_has_no_disk_of_ours(tmp_path: Path) -> None:
    done = commands("memory_size", "--on=tpu", "--dry-run", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a TPU is deleted after its run; give --workdir=gs://" in done.stderr


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["size=1", "size_1"], "both be called spade-sweep-size-1; change a point"),
        (["x" * 60], "is longer than 61 characters; give a --workdir whose last part is shorter"),
    ],
)
def test_names_of_runs_elsewhere(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sweep.check_names(jobs_in(tmp_path / "sweep", *names))


# -- the runner -------------------------------------------------------------------------------


@pytest.fixture
def trainer(tmp_path: Path) -> list[str]:
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER)
    return [sys.executable, str(path)]


@pytest.fixture
def place(trainer: list[str]) -> sweep.Place:
    """This machine with the stand-in for the trainer."""
    return sweep.Place(lambda job: [*trainer, *job.arguments], sweep.interrupt_group)


def jobs_in(folder: Path, *names: str) -> list[sweep.Job]:
    return [sweep.Job(name, "tiny", {"seed": 1}, folder / name, 8) for name in names]


def finish(workdir: Path, iteration: int) -> None:
    """Leave what a committed checkpoint leaves."""
    for part in ("_CHECKPOINT_METADATA", "learner/_METADATA", "host/metadata"):
        path = workdir / "checkpoints" / str(iteration) / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def test_runs_what_is_not_finished(
    tmp_path: Path, place: sweep.Place, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sweep"
    finish(folder / "done", 8)
    (folder / "go").touch()
    assert sweep.run(jobs_in(folder, "done", "one", "two"), 1, place) == 0
    assert not (folder / "done" / "started").exists()
    assert (folder / "one" / "started").read_text() == "--config=tiny --config.seed=1"
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "1 of 3 runs are finished and skipped",
        *("started one", "done one (0)", "started two", "done two (0)"),
    ]


def test_an_unfinished_run_goes_on(tmp_path: Path) -> None:
    [job] = jobs_in(tmp_path, "some")
    finish(job.workdir, 7)
    assert not job.finished
    finish(job.workdir, 8)
    assert job.finished


def test_failures_are_reported_and_stop_nothing(
    tmp_path: Path, place: sweep.Place, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "go").touch()
    assert sweep.run(jobs_in(tmp_path, "bad", "good"), 2, place) == 1
    said = capsys.readouterr()
    assert "done good (0)" in said.out
    assert said.err == f"failed: bad: error: broken ({tmp_path}/bad.log)\n"


def test_a_run_that_cannot_begin_stops_no_other(
    tmp_path: Path, place: sweep.Place, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "b.log").mkdir()
    assert sweep.run(jobs_in(tmp_path, "a", "b", "c"), 2, place) == 1
    said = capsys.readouterr()
    assert "done a (0)" in said.out and "done c (0)" in said.out and "failed b (" in said.out
    log = f"({tmp_path}/b.log)"
    assert said.err == f"failed: b: its log cannot be written: Is a directory {log}\n"


RUNNER = """
import json, pathlib, sys
from launch import sweep
folder, trainer = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
jobs = [sweep.Job(name, "tiny", {}, folder / name, 8) for name in "abc"]
place = sweep.Place(lambda job: [*trainer, *job.arguments], sweep.interrupt_group)
sys.exit(sweep.run(jobs, 2, place))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_each_run_save(tmp_path: Path, trainer: list[str], number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path), json.dumps(trainer)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not all((tmp_path / name / "started").exists() for name in "ab"):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == "interrupted; the same command goes on\n"
    assert "started c" not in out
    for name in "ab":
        assert (tmp_path / f"{name}.log").read_text() == "saved\n"
