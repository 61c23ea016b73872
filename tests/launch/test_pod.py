"""pod.sh, and wrong usage of all the scripts."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.launch.stand_ins import POD, TPU_VM, Machine, command, sentence

ALL = ["--worker=all"]
ZONE = ["--zone=us-east5-a"]
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
        ("restart.sh", ["true"], {"SPADE_STEADY": "1 h"}, "SPADE_STEADY is '1 h' but must be"),
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
