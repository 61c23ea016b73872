"""worker.sh, and a pod whose workers are folders of this machine."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spade_jax import metrics
from tests import small_run
from tests.launch.stand_ins import POD, ROOT, Machine

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
