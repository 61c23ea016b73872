"""A sweep's runs, some at a time, here or elsewhere: from `configs/sweeps`, over a base config.

    python launch/sweep.py ablations --config=tiny --jobs=2 --dry-run
    python launch/sweep.py learning_rate --config=games:qwen3_4b --config.iterations=100
    python launch/sweep.py ablations --config=games:qwen3_4b --on=slurm --jobs=4
    python launch/sweep.py ablations --on=tpu --jobs=4 --workdir=gs://BUCKET/ablations

Every run has a folder of its own in the sweep's, named after what differs, and beside it a log. The
same command goes on: finished runs are skipped, interrupted ones resumed. Exit code 1: some failed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from absl import flags
from ml_collections import config_dict

from spade_jax import config as configs
from spade_jax import storage
from spade_jax.program import config_name, printable, run_program
from spade_jax.types import UsageError

FLAGS = flags.FLAGS
PACKAGE = "spade_jax.configs.sweeps"
LAUNCH = Path(__file__).parent
TRAINER = (sys.executable, "-m", "spade_jax.train")
NAME_LENGTH = 61  # what a TPU's name may have
WAIT = 0.2  # seconds between looks at the running processes


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str  # what differs
    source: str  # the config and its words
    fields: dict[str, object]  # set by dotted name
    workdir: Path
    iterations: int
    url: str = ""  # of the workdir where it is no folder here; then `workdir` only places the log

    @property
    def arguments(self) -> list[str]:
        """Of the trainer."""
        fields = [f"--config.{field}={value}" for field, value in self.fields.items()]
        return [f"--config={self.source}", *fields, f"--workdir={self.url or self.workdir}"]

    @property
    def log(self) -> Path:
        return self.workdir.with_name(f"{self.name}.log")

    @property
    def finished(self) -> bool:
        """Whether the run's last checkpoint is that of its last iteration."""
        from spade_jax import checkpoint  # here, so that --help needs no JAX

        folder = self.workdir / "checkpoints"
        return folder.is_dir() and self.iterations in checkpoint.steps(folder)[0]


# -- from a sweep to its runs -----------------------------------------------------------------


def plan(
    sweep: str, base: str, given: config_dict.ConfigDict, folder: Path, url: str = ""
) -> list[Job]:
    """The runs of a sweep over the config named `base`, of which `given` overrides some fields.

    Every point's config is built, checked and compared with what its workdir holds, unless the
    workdirs lie under a `url`. Raises UsageError for what could not run.
    """
    module = configs.module(sweep, "sweep", PACKAGE, "points")
    points = configs.call(sweep, lambda c: list(module.points(c)), [given], "sweep")
    if not points or not all(map(_is_point, points)):
        raise UsageError(
            f"the sweep {sweep} has no points, or one that is no dict from fields to numbers, "
            "texts or tuples; mend its points()"
        )
    shared = set.intersection(*({*point.items()} for point in points))
    typed = changes(given, configs.load(base))
    jobs: dict[str, Job] = {}
    for point in points:
        name = label({f: v for f, v in point.items() if (f, v) not in shared} or point)
        source, fields = base, typed | point
        if words := fields.pop("words", ""):
            source += f"{',' if ':' in base else ':'}{words}"
        if name in jobs:
            raise UsageError(f"the sweep {sweep} has two points called {name!r}; remove one")
        c = configured(source, fields)
        configs.compare(c, folder / name)
        there = f"{url.rstrip('/')}/{name}" if url else ""
        jobs[name] = Job(name, source, fields, folder / name, c.iterations, there)
    return list(jobs.values())


def _is_point(point: object) -> bool:
    if not isinstance(point, Mapping):
        return False
    plain = (str, bool, int, float, tuple)
    return all(isinstance(f, str) and isinstance(value, plain) for f, value in point.items())


def configured(source: str, fields: Mapping[str, object]) -> config_dict.ConfigDict:
    """The config of that name with fields set, which has passed its checks."""
    c = configs.load(source)
    for field in fields:
        configs.check_field(c, field)
    try:
        c.update_from_flattened_dict(fields)
    except TypeError as error:
        raise UsageError(f"a point sets a field to a value of another type: {error}") from None
    configs.check(c)
    return c


def changes(given: config_dict.ConfigDict, base: config_dict.ConfigDict) -> dict[str, object]:
    """The fields in which `given` is another than `base`."""
    before = configs.flatten(base)
    return {f: value for f, value in configs.flatten(given).items() if value != before[f]}


def label(point: Mapping[str, object]) -> str:
    """What sets a point apart, as the name of a folder; that of the config itself is `base`."""
    named = {field.rpartition(".")[2]: value for field, value in point.items()}
    parts = (v if f == "words" else f"{f}={v}" for f, v in named.items())
    return re.sub(r"[^\w=.+-]+", "_", "-".join(map(str, parts))) or "base"


# -- where they run ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the runs take place."""

    command: Callable[[Job], list[str]]  # lasts as long as the run, and exits as it does
    interrupt: Callable[[Job, int], None]  # given the process group of the command
    interrupted: str = "stopping each run after its iteration; Ctrl-C again: at once"


def machine_name(job: Job) -> str:
    """What a run elsewhere is called: lower-case letters, digits and dashes."""
    name = f"spade-{job.workdir.parent.name}-{job.name}"
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def check_names(jobs: Sequence[Job]) -> None:
    """Raises UsageError where the names of two runs elsewhere are the same, or one is too long."""
    names = collections.Counter(map(machine_name, jobs))
    [(name, times)] = names.most_common(1)
    if times > 1:
        raise UsageError(f"two runs would both be called {name}; change a point of the sweep")
    longest = max(names, key=len)
    if len(longest) > NAME_LENGTH:
        raise UsageError(
            f"the name {longest} is longer than {NAME_LENGTH} characters; give a --workdir whose "
            "last part is shorter"
        )


def here(job: Job) -> list[str]:
    return [*TRAINER, *job.arguments]


def on_slurm(job: Job) -> list[str]:
    options = f"{os.environ.get('SPADE_SBATCH', '')} --wait".strip()
    variables = [f"SPADE_JOB={machine_name(job)}", f"SPADE_SBATCH={options}"]
    return ["env", *variables, "bash", str(LAUNCH / "slurm.sh"), *job.arguments]


def on_tpu(job: Job) -> list[str]:
    """On a TPU of the run's own, deleted when it ends."""
    name = f"SPADE_POD={machine_name(job)}"
    return ["env", name, "bash", str(LAUNCH / "tpu_vm.sh"), *job.arguments]


def interrupt_group(job: Job, group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)


def interrupt_slurm(job: Job, group: int) -> None:
    """Let the job save if it runs, take it from the queue if it waits; sbatch ends with it."""
    for state in ("--state=PENDING", "--signal=INT"):
        subprocess.run(["scancel", "--me", f"--name={machine_name(job)}", state], check=False)


PLACES = {
    "here": Place(here, interrupt_group),
    "slurm": Place(on_slurm, interrupt_slurm),
    "tpu": Place(on_tpu, interrupt_group, "leaving each run to go on, on its TPU"),
}


# -- running them -----------------------------------------------------------------------------


class Interruption:
    """Counts SIGINT and SIGTERM, which the loop passes on."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def __enter__(self) -> Interruption:
        self._before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)


def run(jobs: Sequence[Job], at_once: int, place: Place) -> int:
    """Run those that are not finished, `at_once` at a time; returns the exit code.

    A signal starts nothing more and is passed on: the trainer's first is to save and stop.
    """
    waiting = collections.deque(job for job in jobs if not job.finished)
    if skipped := len(jobs) - len(waiting):
        print(f"{skipped} of {len(jobs)} runs are finished and skipped", flush=True)
    running: list[tuple[Job, subprocess.Popen]] = []
    failed, passed_on = [], 0
    with Interruption() as interruption:
        while running or (waiting and not interruption.signals):
            while waiting and len(running) < at_once and not interruption.signals:
                job = waiting.popleft()
                try:
                    running.append((job, start(job, place.command(job))))
                    print(f"started {job.name}", flush=True)
                except OSError as error:  # the others go on
                    print(f"failed {job.name} ({error})", flush=True)
                    failed.append(job)
            if passed_on < len(interruption.signals):
                passed_on += 1
                print(place.interrupted, flush=True)
                for job, process in running:
                    place.interrupt(job, process.pid)
            time.sleep(WAIT)
            over = [(job, p.returncode) for job, p in running if p.poll() is not None]
            running = [(job, p) for job, p in running if p.returncode is None]
            for job, code in over:
                print(f"{'failed' if code else 'done'} {job.name} ({code})", flush=True)
                failed += [job] if code else []
    if interruption.signals:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 128 + interruption.signals[0]
    for job in failed:
        print(f"failed: {job.name}: {last_line(job.log)} ({job.log})", file=sys.stderr)
    return 1 if failed else 0


def last_line(log: Path) -> str:
    """The last line that says something."""
    try:
        lines = log.read_text("utf-8", errors="replace").split("\n")
    except OSError as error:
        return f"its log cannot be written: {error.strerror}"
    return printable(next((line.strip() for line in reversed(lines) if line.strip()), "no output"))


def start(job: Job, command: Sequence[str]) -> subprocess.Popen:
    """Start a run that writes into its log, in a group of its own: Ctrl-C is ours to pass on."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def main(sweeps: list[str]) -> int:
    if len(sweeps) != 1:
        names = ", ".join(configs.bundled(PACKAGE, "points"))
        raise UsageError(f"name one sweep: {names}, or the path of one")
    [sweep] = sweeps
    base = config_name()
    named = [re.sub("[:,]", "-", Path(each).name.replace(".py", "")) for each in (base, sweep)]
    folder, url = Path("runs", "-".join(named)), ""
    if FLAGS.workdir and storage.is_remote(where := storage.local(FLAGS.workdir)):
        folder, url = Path("runs", Path(where).name), where
    elif FLAGS.workdir:
        folder = Path(where)
    jobs, place = plan(sweep, base, FLAGS.config, folder, url), PLACES[FLAGS.on]
    if FLAGS.on != "here":
        check_names(jobs)
    if FLAGS.on == "tpu" and not url:
        raise UsageError("a TPU is deleted after its run; give --workdir=gs://BUCKET/FOLDER")
    if not FLAGS["dry-run"].value:
        return run(jobs, FLAGS.jobs, place)
    for job in jobs:
        print(shlex.join(place.command(job)) + "  # finished" * job.finished)
    return 0


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder or URL of the sweep (default: runs/CONFIG-SWEEP).")
    flags.DEFINE_enum("on", "here", list(PLACES), "This machine, or where to start the runs.")
    flags.DEFINE_integer("jobs", 1, "Runs at a time.", lower_bound=1)
    flags.DEFINE_bool("dry-run", False, "Print the command of each run, and run none.")
    run_program(main, config="tiny", files=True)
