"""restart.sh, and tpu_vm.sh, which uses it."""

import os
import signal
import subprocess
import time

import pytest

from spade_jax import program
from tests.launch.stand_ins import POD, ROOT, TPU_VM, Machine

SCRIPTED = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; set -- $CODES; shift $n; exit $1"


@pytest.mark.parametrize(
    ("codes", "limit", "code", "starts"),
    [
        ("0", "3", 0, 1),
        ("75 75 143 0", "1", 0, 4),  # asking for another start is no failure
        ("1 1 0", "3", 0, 3),
        ("1 70 9 0", "3", 9, 3),  # three in a row
        ("1 1 75 1 1 0", "3", 0, 6),  # not in a row
        ("134 137 0", "3", 0, 3),  # JAX aborts a host that misses another one; one was killed
        ("134 255 134 0", "3", 134, 3),  # over and over it is no accident
        ("2 0", "3", 2, 1),
        ("75 2 0", "3", 2, 2),
        ("130 0", "3", 130, 1),
    ],
)
def test_restarts(machine: Machine, codes: str, limit: str, code: int, starts: int) -> None:
    shell = ["bash", "-c", SCRIPTED]
    done = machine.run("restart.sh", *shell, CODES=codes, SPADE_FAILURES=limit)
    assert (done.returncode, (machine.folder / "n").read_text()) == (code, f"{starts}\n")


def test_a_failure_after_a_long_time_is_the_first_in_a_row(machine: Machine) -> None:
    """Where a start of no seconds is long."""
    shell = ["bash", "-c", SCRIPTED]
    more = {"SPADE_FAILURES": "2", "SPADE_STEADY": "0"}
    done = machine.run("restart.sh", *shell, CODES="134 134 134 0", **more)
    assert done.returncode == 0
    first = "failed with exit code 134, failure 1 of 2 in a row; restarting in 0 s"
    assert done.stderr.splitlines() == [first] * 3


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


def test_a_pod_of_which_a_host_was_lost_is_started_again(machine: Machine) -> None:
    """gcloud passes on the exit code of a worker that JAX has aborted; the TPU is still there."""
    machine.answer(list=[("READY\n", 0)], **{"sh train": [("", 134), ("[0] done\n", 0)]})
    pod = ("bash", str(ROOT / "launch" / "pod.sh"), "run")
    done = machine.run("restart.sh", *pod, **POD)
    assert done.returncode == 0, done.stderr
    assert "failed with exit code 134, failure 1 of 3 in a row; restarting" in done.stderr


def test_one_tpu_vm_through_a_preemption(machine: Machine) -> None:
    machine.answer(
        list=[("READY\n", 0), ("PREEMPTED\n", 0), ("PREEMPTED\n", 0)],
        **{"sh train": [("", 255), ("[0] done\n", 0)]},
    )
    done = machine.run("tpu_vm.sh", "--workdir=gs://b/run", **POD)
    assert done.returncode == 0, done.stderr
    again = "list ssh ssh list list delete create scp ssh ssh ssh delete"
    assert [call[len(TPU_VM)] for call in machine.calls] == again.split()
