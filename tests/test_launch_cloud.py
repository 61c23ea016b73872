"""The launchers of other machines, against stand-ins for gcloud, kubectl, xpk, sbatch and srun."""

import dataclasses
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spade_jax import metrics, program
from tests import small_run

ROOT = Path(__file__).parents[1]
PROGRAMS = ("gcloud", "kubectl", "xpk", "sbatch", "srun", "scontrol", "squeue", "scancel")

# Notes its arguments, and answers the n-th time as the n-th of the answers says whose key is in
# the command: [what it prints, its exit code]. The last answer holds for all later times.
STAND_IN = f"""#!{sys.executable} -IS
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
words = [pathlib.Path(__file__).name, *sys.argv[1:]]
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
earlier = [" ".join(json.loads(line)) for line in open(here / "calls")][:-1]
for key, answers in json.loads((here / "answers").read_text()).items():
    if key in " ".join(words):
        out, code = answers[min(sum(key in each for each in earlier), len(answers) - 1)]
        print(out, end="")
        sys.exit(code)
"""
POD = {"SPADE_POD": "pod", "SPADE_ZONE": "us-east5-a", "SPADE_TPU": "v5p-128"}
ALL = ["--worker=all"]
ZONE = ["--zone=us-east5-a"]
TPU_VM = ["gcloud", "compute", "tpus", "tpu-vm"]
QUEUED = ["gcloud", "compute", "tpus", "queued-resources"]
STATE = [
    *TPU_VM,
    "list",
    "--filter=name~(^|/)pod$",
    "--format=value(state)",
    *ZONE,
]
REQUEST_STATE = [
    *QUEUED,
    "list",
    "--filter=name~(^|/)pod$",
    "--format=value(state.state)",
    *ZONE,
]


@dataclasses.dataclass
class Machine:
    """A folder to be in, and one for stand-ins that stands first on the PATH."""

    folder: Path
    programs: Path

    def answer(self, **answers: list[tuple[str, int]]) -> None:
        """By what a command holds; an underscore stands for a space."""
        named = {key.replace("_", " "): answer for key, answer in answers.items()}
        (self.programs / "answers").write_text(json.dumps(named))

    def environment(self, **variables: str) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SPADE_")}
        path = f"{self.programs}:{clean['PATH']}"
        quick = {"SPADE_RESTART_WAIT": "0", "SPADE_POLL": "0"}
        return clean | {"PATH": path, "SPADE_LOGS": str(self.folder / "logs")} | quick | variables

    def run(
        self, script: str, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(ROOT / "launch" / script), *arguments],
            cwd=self.folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[list[str]]:
        log = self.programs / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    made = Machine(tmp_path, programs)
    made.answer()
    return made


def command(call: list[str]) -> str:
    """What a call of ssh runs on the worker."""
    [found] = [word for word in call if word.startswith("--command=")]
    return found.removeprefix("--command=")


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("error: ").rstrip("\n")


# -- a TPU VM or a slice ----------------------------------------------------------------------


def test_create(machine: Machine) -> None:
    assert machine.run("pod.sh", "create", **POD).returncode == 0
    made = [*TPU_VM, "create", "pod", "--version=v2-alpha-tpuv5", "--accelerator-type=v5p-128"]
    assert machine.calls == [[*made, *ZONE]]


def test_create_with_everything(machine: Machine) -> None:
    more = {
        "SPADE_TPU": "v6e-64",
        "SPADE_PROJECT": "my-project",
        "SPADE_SPOT": "1",
        "SPADE_CREATE_FLAGS": "--network=n --tags=a,b",
    }
    assert machine.run("pod.sh", "create", **POD | more).returncode == 0
    made = [*TPU_VM, "create", "pod", "--version=v2-alpha-tpuv6e", "--accelerator-type=v6e-64"]
    given = ["--network=n", "--tags=a,b", "--spot", *ZONE, "--project=my-project"]
    assert machine.calls == [[*made, *given]]


def test_a_queued_request_is_waited_for(machine: Machine) -> None:
    states = [("", 0), ("WAITING_FOR_RESOURCES\n", 0), ("PROVISIONING\n", 0), ("ACTIVE\n", 0)]
    machine.answer(**{"queued-resources list": states})
    done = machine.run("pod.sh", "create", **POD, SPADE_QUEUE="1", SPADE_SPOT="1")
    assert done.returncode == 0
    made = [*QUEUED, "create", "pod", "--node-id=pod", "--runtime-version=v2-alpha-tpuv5"]
    asked = [*made, "--accelerator-type=v5p-128", "--spot", *ZONE]
    assert machine.calls == [REQUEST_STATE, asked, *[REQUEST_STATE] * 3]
    assert "the request pod is PROVISIONING; asking again in 0 s" in done.stderr


def test_a_queued_request_that_fails(machine: Machine) -> None:
    machine.answer(**{"queued-resources list": [("", 0), ("FAILED\n", 0)]})
    done = machine.run("pod.sh", "create", **POD, SPADE_QUEUE="1")
    assert done.returncode == 1
    assert sentence(done) == "the request pod is FAILED; delete it and create it again"


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("0", [*TPU_VM, "delete", "pod", "--quiet", *ZONE]),
        ("1", [*QUEUED, "delete", "pod", "--force", "--quiet", *ZONE]),
    ],
)
def test_delete(machine: Machine, queue: str, expected: list[str]) -> None:
    assert machine.run("pod.sh", "delete", **POD, SPADE_QUEUE=queue).returncode == 0
    assert machine.calls == [expected]


def test_setup_copies_installs_and_prepares(machine: Machine) -> None:
    prepare = "gcloud storage cp -r 'gs://a b/models' ."
    flags = {"SPADE_SSH_FLAGS": "--internal-ip --plain", "SPADE_PREPARE": prepare}
    done = machine.run("pod.sh", "setup", **POD, **flags)
    assert done.returncode == 0, done.stderr
    copy, install, prepared = machine.calls
    archive = copy[len(TPU_VM) + 1]
    assert archive.endswith("/spade_jax.tar.gz") and not Path(archive).exists()
    after = ["--internal-ip", "--plain", *ZONE]
    assert copy == [*TPU_VM, "scp", archive, "pod:", *ALL, *after]
    there = "mkdir -p spade_jax && cd spade_jax && "
    unpack = "rm -f .ready && tar -xzf ../spade_jax.tar.gz && SPADE_EXTRA=tpu,gcs bash"
    line = f"--command={there}{unpack} launch/worker.sh setup"
    assert install == [*TPU_VM, "ssh", "pod", *ALL, line, *after]
    words = shlex.split(command(prepared).removeprefix(there))
    assert words == ["eval", prepare, "&&", "touch", ".ready"]


def test_train_logs_each_worker(machine: Machine) -> None:
    said = "SSH: Attempting to connect to worker 0...\n[0] one\n[1] two: [x] y\n[0] three\n"
    machine.answer(ssh=[(said, 0)])
    done = machine.run("pod.sh", "train", "--config=games", **POD)
    assert (done.returncode, done.stdout) == (0, said)
    line = "mkdir -p spade_jax && cd spade_jax && bash launch/worker.sh train --config=games"
    assert machine.calls == [[*TPU_VM, "ssh", "pod", *ALL, f"--command={line}", *ZONE]]
    logs = machine.folder / "logs" / "pod"
    assert (logs / "0.log").read_text() == "one\nthree\n"
    assert (logs / "1.log").read_text() == "two: [x] y\n"


def test_quoting_survives_ssh(machine: Machine) -> None:
    """gcloud takes the command apart at spaces and joins it again; a shell reads what results."""
    given = ["--a=two words", '--b=it\'s "so"', "--c=$HOME `date` * ; & | \\", "", "--d=é\ttab"]
    secret = "a 'b' $c"
    done = machine.run("pod.sh", "train", *given, **POD, SPADE_PASS="KEY", KEY=secret)
    assert done.returncode == 0, done.stderr
    line = command(machine.calls[0]).replace("bash launch/worker.sh train", "show")
    line = line.replace("mkdir -p spade_jax && cd spade_jax", ":")
    show = 'show() { printf "%s\\0" "$KEY" "$@"; }; '
    read = subprocess.run(["bash", "-c", show + " ".join(line.split(" "))], capture_output=True)
    assert read.stdout.decode().split("\0")[:-1] == [secret, *given]


@pytest.mark.parametrize(
    ("arguments", "worker", "line"),
    [
        (["logs"], "0", "tail -n 100 -F logs/train.log"),
        (["logs", "3"], "3", "tail -n 100 -F logs/train.log"),
        (["stop"], "all", "bash launch/worker.sh stop"),
        (["each", "ls", "a b"], "all", r"ls a\ b"),
    ],
)
def test_commands_to_workers(
    machine: Machine, arguments: list[str], worker: str, line: str
) -> None:
    assert machine.run("pod.sh", *arguments, **POD).returncode == 0
    whole = f"--command=mkdir -p spade_jax && cd spade_jax && {line}"
    assert machine.calls == [[*TPU_VM, "ssh", "pod", f"--worker={worker}", whole, *ZONE]]


def test_status(machine: Machine) -> None:
    machine.answer(list=[("READY\n", 0)], ssh=[("[0] running\n", 0)])
    done = machine.run("pod.sh", "status", **POD)
    assert (done.returncode, done.stdout) == (0, "READY\n[0] running\n")
    assert machine.calls[0] == STATE


@pytest.mark.parametrize(
    ("arguments", "at", "message"),
    [
        (["create"], "create", "creating pod failed with exit code 7, see above"),
        (["setup"], "scp", "copying the code to pod failed with exit code 7, see above"),
        (["setup"], "worker.sh setup", "installing on pod failed with exit code 7, see above"),
        (["delete"], "delete", "deleting pod failed with exit code 7, see above"),
        (["logs"], "ssh", "following the log failed with exit code 7, see above"),
        (["stop"], "ssh", "stopping failed with exit code 7, see above"),
        (["each", "ls"], "ssh", "the command failed with exit code 7, see above"),
        (["status"], "list", "asking for the state of pod failed with exit code 7, see above"),
        (["run"], "list", "asking for the state of pod failed with exit code 7, see above"),
    ],
)
def test_a_failing_step_is_named(
    machine: Machine, arguments: list[str], at: str, message: str
) -> None:
    machine.answer(**{at: [("", 7)]})
    done = machine.run("pod.sh", *arguments, **POD)
    assert (done.returncode, sentence(done)) == (7, message)


@pytest.mark.parametrize("code", [0, 2, 75, 130, 143])
def test_exit_codes_of_training_are_passed_on(machine: Machine, code: int) -> None:
    machine.answer(ssh=[("[0] said\n", code)])
    done = machine.run("pod.sh", "train", **POD)
    assert (done.returncode, done.stderr, len(machine.calls)) == (code, "", 1)


@pytest.mark.parametrize(
    ("state", "code", "message"),
    [
        ("READY\n", 9, "the trainer on pod failed with exit code 9, see above"),
        ("PREEMPTED\n", 75, "pod is PREEMPTED, which ended the trainer"),
        ("", 75, "pod is gone, which ended the trainer"),
    ],
)
def test_a_lost_tpu_asks_for_another_start(
    machine: Machine, state: str, code: int, message: str
) -> None:
    machine.answer(ssh=[("", 9)], list=[(state, 0)])
    done = machine.run("pod.sh", "train", **POD)
    assert (done.returncode, sentence(done)) == (code, message)


@pytest.mark.parametrize(
    ("queue", "answers", "expected"),
    [
        ("0", {"list": [("READY\n", 0)]}, "list ssh ssh"),
        ("0", {"list": [("READY\n", 0)], "test -e": [("", 1)]}, "list ssh scp ssh ssh ssh"),
        ("0", {}, "list create scp ssh ssh ssh"),
        ("0", {"list": [("PREEMPTED\n", 0)]}, "list delete create scp ssh ssh ssh"),
        (
            "1",
            {
                "tpu-vm list": [("", 0)],
                "queued-resources list": [("SUSPENDED\n", 0), ("", 0), ("ACTIVE\n", 0)],
            },
            "list list delete list create list scp ssh ssh ssh",
        ),
    ],
)
def test_run_makes_what_is_missing(
    machine: Machine, queue: str, answers: dict, expected: str
) -> None:
    machine.answer(**answers)
    done = machine.run("pod.sh", "run", "--x=1", **POD, SPADE_QUEUE=queue)
    assert done.returncode == 0, done.stderr
    assert [call[len(TPU_VM)] for call in machine.calls] == expected.split()
    assert command(machine.calls[-1]).endswith("bash launch/worker.sh train --x=1")


def test_run_comes_back_to_a_tpu_under_repair(machine: Machine) -> None:
    machine.answer(list=[("REPAIRING\n", 0)])
    done = machine.run("pod.sh", "run", **POD)
    assert (done.returncode, sentence(done)) == (75, "pod is REPAIRING and cannot be used now")


@pytest.mark.parametrize(
    ("script", "arguments", "variables", "message"),
    [
        ("pod.sh", ["create"], {}, "SPADE_POD is not set; export it: a name for the TPU"),
        ("pod.sh", ["logs"], {"SPADE_POD": "p"}, "SPADE_ZONE is not set; export it: the zone"),
        ("pod.sh", ["create"], {"SPADE_POD": "p", "SPADE_ZONE": "z"}, "SPADE_TPU is not set; "),
        ("pod.sh", ["create"], POD | {"SPADE_POD": "My pod"}, "SPADE_POD is 'My pod' but must be"),
        ("pod.sh", ["create"], POD | {"SPADE_TPU": "v9-8"}, "SPADE_TPU is 'v9-8' but must begin"),
        ("pod.sh", [], POD, "unknown command ''; one of: create, setup, train, run, logs"),
        ("pod.sh", ["tpus"], POD, "unknown command 'tpus'; one of"),
        ("tpu_vm.sh", [], {}, "SPADE_POD is not set"),
        ("tpu_vm.sh", ["--workdir=runs/x"], POD, "the TPU and its disk are deleted at the end"),
        ("restart.sh", [], {}, "name the command to run"),
        ("restart.sh", ["true"], {"SPADE_FAILURES": "no"}, "SPADE_FAILURES is 'no' but must be"),
        ("gke.sh", ["manifest"], {}, "SPADE_JOB is not set; export it: a name for the run"),
        ("gke.sh", ["manifest"], {"SPADE_JOB": "j"}, "SPADE_IMAGE is not set"),
        ("gke.sh", ["xpk"], {"SPADE_JOB": "j", "SPADE_IMAGE": "i"}, "SPADE_CLUSTER is not set"),
        ("gke.sh", ["apply"], {"SPADE_JOB": "j"}, "unknown command 'apply'; one of: manifest"),
        ("slurm.sh", [], {}, "SPADE_GPUS is not set; export it: GPUs of a node"),
        ("slurm.sh", [], {"SPADE_GPUS": "8"}, "SPADE_TIME is not set; export it: the time limit"),
        ("slurm.sh", [], {"SPADE_GPUS": "a", "SPADE_TIME": "1"}, "SPADE_GPUS is 'a' but must be"),
        ("worker.sh", ["go"], {}, "unknown command 'go'; one of: setup, train, status, stop"),
    ],
)
def test_wrong_usage(
    machine: Machine, script: str, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    done = machine.run(script, *arguments, **variables)
    assert done.returncode == 2
    assert sentence(done).startswith(message)
    assert machine.calls == []


# -- starting again ---------------------------------------------------------------------------

SCRIPTED = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; set -- $CODES; shift $n; exit $1"


@pytest.mark.parametrize(
    ("codes", "limit", "code", "starts"),
    [
        ("0", "3", 0, 1),
        ("75 75 143 0", "1", 0, 4),  # asking for another start is no failure
        ("1 1 0", "3", 0, 3),
        ("1 70 9 0", "3", 9, 3),  # three in a row
        ("1 1 75 1 1 0", "3", 0, 6),  # not in a row
        ("2 0", "3", 2, 1),
        ("75 2 0", "3", 2, 2),
        ("130 0", "3", 130, 1),
    ],
)
def test_restarts(machine: Machine, codes: str, limit: str, code: int, starts: int) -> None:
    shell = ["bash", "-c", SCRIPTED]
    done = machine.run("restart.sh", *shell, CODES=codes, SPADE_FAILURES=limit)
    assert (done.returncode, (machine.folder / "n").read_text()) == (code, f"{starts}\n")


def test_giving_up_says_so(machine: Machine) -> None:
    done = machine.run("restart.sh", "bash", "-c", "exit 3", SPADE_FAILURES="2")
    assert done.stderr.splitlines() == [
        "failed with exit code 3, failure 1 of 2 in a row; restarting in 0 s",
        "error: gave up after 2 failures in a row, the last with exit code 3",
    ]


def test_the_code_that_asks_for_another_start(machine: Machine) -> None:
    """It is one variable, and by default the trainer's."""
    shell = ["bash", "-c", SCRIPTED]
    done = machine.run("restart.sh", *shell, CODES="99 0", SPADE_RESTART_CODE="99")
    assert done.returncode == 0
    assert f":-{program.RESTART}}}" in (ROOT / "launch" / "shell.sh").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_loop(machine: Machine, number: int, code: int) -> None:
    """Though the command, like gcloud, answers it with exit code 1."""
    inner = "trap 'exit 1' INT TERM; touch started; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        ["bash", str(ROOT / "launch" / "restart.sh"), "bash", "-c", inner],
        cwd=machine.folder,
        env=machine.environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not (machine.folder / "started").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.endswith("error: stopped by a signal; the same command goes on\n")


@pytest.mark.parametrize(
    ("code", "keep", "expected"),
    [
        (0, "0", "list ssh ssh delete"),
        (2, "0", "list ssh ssh delete"),
        (0, "1", "list ssh ssh"),
        (130, "0", "list ssh ssh"),
    ],
)
def test_one_tpu_vm_from_first_to_last(
    machine: Machine, code: int, keep: str, expected: str
) -> None:
    machine.answer(list=[("READY\n", 0)], **{"sh train": [("[0] said\n", code)]})
    done = machine.run("tpu_vm.sh", "--workdir=gs://b/run", **POD, SPADE_KEEP=keep)
    assert done.returncode == code
    assert [call[len(TPU_VM)] for call in machine.calls] == expected.split()


def test_one_tpu_vm_through_a_preemption(machine: Machine) -> None:
    machine.answer(
        list=[("READY\n", 0), ("PREEMPTED\n", 0), ("PREEMPTED\n", 0)],
        **{"sh train": [("", 255), ("[0] done\n", 0)]},
    )
    done = machine.run("tpu_vm.sh", "--workdir=gs://b/run", **POD)
    assert done.returncode == 0, done.stderr
    again = "list ssh ssh list list delete create scp ssh ssh ssh delete"
    assert [call[len(TPU_VM)] for call in machine.calls] == again.split()


# -- on a worker ------------------------------------------------------------------------------

# As the trainer it says its arguments, then does what the first asks for.
TRAINER = """#!/bin/bash
[ "$1" = -m ] || exit 0
echo "trainer $JAX_PROCESS_ID:" "${@:3}"
case "$3" in
    wait) trap 'echo saved; exit 130' INT; touch "$AT/started"; while :; do sleep 0.05; done ;;
    exit) exit "$4" ;;
esac
"""


@pytest.fixture
def worker(machine: Machine) -> dict[str, str]:
    """Variables of a worker's shell; the code is in the folder `spade_jax`."""
    python = machine.folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(TRAINER)
    python.chmod(0o755)
    (machine.folder / "launch").symlink_to(ROOT / "launch")
    (machine.folder / "setup.py").write_text("")
    return {
        "SPADE_VENV": str(machine.folder / "venv"),
        "AT": str(machine.folder),
        "JAX_PROCESS_ID": "1",
    }


def on_worker(
    machine: Machine, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "launch/worker.sh", *arguments],
        cwd=machine.folder,
        env=machine.environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("code", [0, 1, 2, 75])
def test_worker_passes_the_code_on(machine: Machine, worker: dict[str, str], code: int) -> None:
    done = on_worker(machine, "train", "exit", str(code), "a b", **worker)
    assert (done.returncode, done.stdout) == (code, f"[1] trainer 1: exit {code} a b\n")
    assert on_worker(machine, "status", **worker).stdout == f"[1] ended with exit code {code}\n"
    again = on_worker(machine, "train", "exit", "0", **worker)
    assert (again.returncode, again.stdout) == (0, "[1] trainer 1: exit 0\n")
    both = f"trainer 1: exit {code} a b\ntrainer 1: exit 0\n"
    assert (machine.folder / "logs" / "train.log").read_text() == both


def test_the_trainer_outlives_its_connection(machine: Machine, worker: dict[str, str]) -> None:
    assert on_worker(machine, "status", **worker).stdout == "[1] not running\n"
    first = subprocess.Popen(
        ["bash", "launch/worker.sh", "train", "wait"],
        cwd=machine.folder,
        env=machine.environment(**worker),
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while not (machine.folder / "started").exists():
        assert first.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)  # all but the trainer's session
    first.wait()
    assert on_worker(machine, "status", **worker).stdout == "[1] running\n"
    second = subprocess.Popen(
        ["bash", "launch/worker.sh", "train", "wait"],
        cwd=machine.folder,
        env=machine.environment(**worker),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert second.stdout.readline() == "[1] the trainer is running already; following it\n"
    assert on_worker(machine, "stop", **worker).returncode == 0
    out, _ = second.communicate(timeout=60)
    assert (second.returncode, out) == (130, "[1] saved\n")
    stopped = on_worker(machine, "stop", **worker)
    assert (stopped.returncode, stopped.stdout) == (1, "[1] error: no trainer is running\n")


def test_worker_without_setup(machine: Machine, worker: dict[str, str]) -> None:
    done = on_worker(machine, "train", **worker | {"SPADE_VENV": "/nowhere"})
    message = "[1] error: /nowhere is not there; run setup first\n"
    assert (done.returncode, done.stdout) == (2, message)


def test_worker_setup_installs_the_extra(machine: Machine, worker: dict[str, str]) -> None:
    (machine.folder / "venv" / "bin" / "python").write_text('#!/bin/sh\necho "$@"\n')
    done = on_worker(machine, "setup", **worker, SPADE_EXTRA="tpu")
    assert done.returncode == 0, done.stdout
    install = "pip install --quiet --disable-pip-version-check --editable"
    assert f"[1] -m {install} {machine.folder}[tpu]\n" in done.stdout


def test_an_old_python_is_replaced(machine: Machine, worker: dict[str, str]) -> None:
    """As on TPU VMs: python3 is too old, and uv brings a newer one."""
    old = machine.programs / "python3"
    old.write_text(
        '#!/bin/sh\necho "$@" >>"$AT/asked"\n'
        '[ "$1" = -c ] && exit 1\n[ "$4" = find ] && echo "$AT/new"\nexit 0\n'
    )
    old.chmod(0o755)
    for newer in range(11, 15):
        (machine.programs / f"python3.{newer}").symlink_to(old)
    new = machine.folder / "new"
    new.write_text(
        '#!/bin/bash\n[ "$1" = -m ] && { mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }\nexit 0\n'
    )
    new.chmod(0o755)
    fresh = worker | {"SPADE_VENV": str(machine.folder / "fresh")}
    done = on_worker(machine, "setup", **fresh)
    assert done.returncode == 0, done.stdout
    asked = (machine.folder / "asked").read_text().splitlines()
    assert asked[-3:] == [
        "-m pip install --quiet --user uv",
        "-m uv python install 3.12",
        "-m uv python find 3.12",
    ]
    assert (machine.folder / "fresh" / "bin" / "python").read_text() == new.read_text()


# Two workers that are folders of this machine.
GCLOUD = """#!/bin/bash
echo "$*" >>"$0.calls"
command=; for word; do case "$word" in --command=*) command="${word#--command=}" ;; esac; done
both() {
    for JAX_PROCESS_ID in 0 1; do
        export JAX_PROCESS_ID
        (cd "$AT/worker$JAX_PROCESS_ID" && "$@") &
        started[JAX_PROCESS_ID]=$!
    done
    code=0
    for each in "${started[@]}"; do wait "$each" || code=$?; done
    exit "$code"
}
case "$4" in
    list) [ ! -e "$0.created" ] || echo READY ;;
    create) touch "$0.created" ;;
    scp) both cp "$5" . ;;
    ssh) both bash -c "$command" ;;
esac
"""
# The Python of their virtual environment, which pip need not fill.
PYTHON = f"""#!/bin/bash
case "$1 $2" in "-c "* | "-m pip") exit 0 ;; esac
export PYTHONPATH={ROOT} PYTHONSAFEPATH=1
exec {sys.executable} "$@"
"""


@pytest.mark.slow
def test_a_pod_from_nothing_to_a_finished_run(machine: Machine, model_folder: Path) -> None:
    (machine.programs / "gcloud").write_text(GCLOUD)
    python = machine.folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    for worker in "01":
        (machine.folder / f"worker{worker}").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = small_run.arguments(small_run.run_config(model_folder), machine.folder / "run")
    done = machine.run(
        "pod.sh",
        "run",
        *("--config=tiny", *flags),
        **POD,
        SPADE_VENV=str(machine.folder / "venv"),
        AT=str(machine.folder),
        JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{port}",
        JAX_NUM_PROCESSES="2",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls = (machine.programs / "gcloud.calls").read_text().splitlines()
    assert [call.split()[3] for call in calls] == ["list", "create", "scp", "ssh", "ssh", "ssh"]
    steps = [row["step"] for row in metrics.read_metrics(machine.folder / "run")]
    assert steps == sorted(set(steps)) and steps[-1] == small_run.TRAIN["iterations"] - 1
    assert (machine.folder / "run" / "checkpoints" / "2").is_dir()
    status = machine.run("pod.sh", "status", **POD, AT=str(machine.folder))
    ended = [f"[{worker}] ended with exit code 0" for worker in "01"]
    assert sorted(status.stdout.splitlines()) == ["READY", *ended]


# -- slices of a cluster ----------------------------------------------------------------------

GKE = {
    "SPADE_JOB": "big-run",
    "SPADE_IMAGE": "europe-docker.pkg.dev/p/r/spade_jax:1",
    "SPADE_ACCELERATOR": "tpu-v5p-slice",
    "SPADE_TOPOLOGY": "4x4x4",
    "SPADE_SLICES": "2",
}
MANIFEST = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: big-run
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: 20
    rules:
      - action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: 2
      template:
        spec:
          parallelism: 16
          completions: 16
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes: {containerName: trainer, operator: In, values: [2]}
          template:
            spec:
              restartPolicy: Never
              hostNetwork: true
              dnsPolicy: ClusterFirstWithHostNet
              terminationGracePeriodSeconds: 300
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice
                cloud.google.com/gke-tpu-topology: 4x4x4
              containers:
                - name: trainer
                  image: "europe-docker.pkg.dev/p/r/spade_jax:1"
                  command: COMMAND
                  ports: [{containerPort: 8471}, {containerPort: 8080}]
                  securityContext: {privileged: true}
                  resources: {limits: {google.com/tpu: 4}}
"""


def test_manifest(machine: Machine) -> None:
    """The command is JSON, which is YAML; Kubernetes would replace $(HOME)."""
    given = ["--config=games", "--a=two words", '--b="\\ $(HOME)', ""]
    done = machine.run("gke.sh", "manifest", *given, **GKE, SPADE_PREPARE="cp 'a b' .")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if "command:" in line]
    _, _, words = line.partition("command: ")
    assert done.stdout.replace(words, "COMMAND") == MANIFEST
    start = "cp 'a b' . && exec python -m spade_jax.train \"$@\""
    escaped = [each.replace("$(", "$$(") for each in given]
    assert json.loads(words) == ["bash", "-c", start, "trainer", *escaped]


def test_submitting_a_manifest(machine: Machine) -> None:
    kubectl = machine.programs / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$@" >"$0.words"\ncat >"$0.manifest"\n')
    printed = machine.run("gke.sh", "manifest", "--config=games", **GKE).stdout
    assert machine.run("gke.sh", "submit", "--config=games", **GKE).returncode == 0
    assert (machine.programs / "kubectl.words").read_text() == "apply --filename=-\n"
    assert (machine.programs / "kubectl.manifest").read_text() == printed


def test_xpk(machine: Machine) -> None:
    more = {"SPADE_CLUSTER": "c", "SPADE_ZONE": "z", "SPADE_PROJECT": "p", "SPADE_TPU": "v5p-128"}
    done = machine.run("gke.sh", "xpk", "--a=two words", **GKE, **more)
    assert done.returncode == 0, done.stderr
    assert machine.calls == [
        [
            *("xpk", "workload", "create", "--workload=big-run", "--cluster=c", "--zone=z"),
            *("--project=p", "--tpu-type=v5p-128", "--num-slices=2"),
            *("--docker-image=europe-docker.pkg.dev/p/r/spade_jax:1", "--max-restarts=20"),
            *("--restart-on-exit-codes=75", "--termination-grace-period-seconds=300"),
            r"--command=python -m spade_jax.train --a=two\ words",
        ]
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["status"],
            ["get", "jobsets,pods", "--selector=jobset.sigs.k8s.io/jobset-name=big-run"],
        ),
        (
            ["logs", "1", "3"],
            [
                *("logs", "--follow", "--tail=100"),
                "--selector=jobset.sigs.k8s.io/jobset-name=big-run,jobset.sigs.k8s.io/job-index=1,"
                "batch.kubernetes.io/job-completion-index=3",
            ],
        ),
        (["delete"], ["delete", "jobset", "big-run"]),
    ],
)
def test_kubectl(machine: Machine, arguments: list[str], expected: list[str]) -> None:
    assert machine.run("gke.sh", *arguments, SPADE_JOB="big-run").returncode == 0
    assert machine.calls == [["kubectl", *expected]]


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {"SPADE_TOPOLOGY": "4x"}, "SPADE_TOPOLOGY is '4x' but must be such as 4x4x4"),
        (
            [],
            {"SPADE_CHIPS": "6"},
            "the 64 chips of SPADE_TOPOLOGY=4x4x4 are no multiple of SPADE_CHIPS=6, those of a",
        ),
        (
            ["a\nb"],
            {},
            r"the argument $'a\nb' has a line break or control character, which no flag",
        ),
    ],
)
def test_manifests_that_cannot_be(
    machine: Machine, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    done = machine.run("gke.sh", "submit", *arguments, **GKE | variables)
    assert (done.returncode, machine.calls) == (2, [])
    assert sentence(done).startswith(message)


def test_a_cluster_that_refuses(machine: Machine) -> None:
    machine.answer(kubectl=[("", 4)])
    done = machine.run("gke.sh", "submit", **GKE)
    assert done.returncode == 4
    assert sentence(done) == "submitting big-run failed with exit code 4, see above"


# -- SLURM ------------------------------------------------------------------------------------

JOB = {"SPADE_GPUS": "8", "SPADE_TIME": "24:00:00", "SPADE_NODES": "2"}
SBATCH = [
    *("sbatch", "--job-name=my run", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8"),
    *("--cpus-per-task=16", "--time=24:00:00", "--signal=TERM@600", "--requeue"),
    "--open-mode=append",
]


def test_sbatch(machine: Machine, worker: dict[str, str]) -> None:
    more = {"SPADE_JOB": "my run", "SPADE_SBATCH": "--partition=gpu --wait"}
    done = machine.run("slurm.sh", "--a=two words", **worker, **JOB, **more)
    assert done.returncode == 0, done.stderr
    assert machine.calls == [
        [
            *SBATCH,
            f"--output={machine.folder}/logs/%x-%j.log",
            *("--partition=gpu", "--wait", f"{ROOT}/launch/slurm_job.sh", "--a=two words"),
        ]
    ]


def test_sbatch_that_refuses(machine: Machine, worker: dict[str, str]) -> None:
    machine.answer(sbatch=[("", 5)])
    assert machine.run("slurm.sh", **worker, **JOB).returncode == 5


def batch(machine: Machine, code: int, nodes: int = 2) -> subprocess.CompletedProcess[str]:
    """Run the batch script, whose trainers end with the code."""
    machine.answer(
        srun=[("", code)], squeue=[("RUNNING\n", 0)], **{"show hostnames": [("n7\nn9\n", 0)]}
    )
    return machine.run(
        "slurm_job.sh",
        "--a=two words",
        SPADE_ROOT=str(ROOT),
        SPADE_VENV="/venv",
        SLURM_JOB_ID="20005",
        SLURM_NNODES=str(nodes),
        SLURM_JOB_NODELIST="n[7,9]",
        SLURM_CPUS_PER_TASK="16",
    )


def test_batch_script_starts_a_trainer_on_each_node(machine: Machine) -> None:
    srun = machine.programs / "srun"
    srun.write_text(
        "#!/bin/bash\n"
        'printf "%s\\n" "$JAX_COORDINATOR_ADDRESS" "$JAX_NUM_PROCESSES" "$@" >"$0.words"\n'
    )
    assert batch(machine, 0).returncode == 0
    assert (machine.programs / "srun.words").read_text().splitlines() == [
        *("n7:20005", "2", "--kill-on-bad-exit=0", "--cpus-per-task=16"),
        *(f"--output={machine.folder}/logs/%x-%j-%t.log", "--open-mode=append", "bash", "-c"),
        'export JAX_PROCESS_ID="$SLURM_PROCID"; exec "$@"',
        *("trainer", "/venv/bin/python", "-m", "spade_jax.train", "--a=two words"),
    ]
    assert machine.calls == [["scontrol", "show", "hostnames", "n[7,9]"]]


def test_one_node_needs_no_coordinator(machine: Machine) -> None:
    assert batch(machine, 0, nodes=1).returncode == 0
    assert [call[0] for call in machine.calls] == ["srun"]


@pytest.mark.parametrize(("code", "again"), [(75, True), (143, True), (1, False), (130, False)])
def test_what_has_saved_is_queued_again(machine: Machine, code: int, again: bool) -> None:
    assert batch(machine, code).returncode == code
    assert (["scontrol", "requeue", "20005"] in machine.calls) == again


def test_a_cancelled_job_is_not_queued_again(machine: Machine) -> None:
    machine.programs.joinpath("squeue").write_text("#!/bin/sh\necho COMPLETING\n")
    assert batch(machine, 75).returncode == 75
    assert ["scontrol", "requeue", "20005"] not in machine.calls
