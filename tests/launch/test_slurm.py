"""slurm.sh and its batch script."""

import subprocess

import pytest

from tests.launch.stand_ins import ROOT, Machine

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


def batch(
    machine: Machine, code: int, nodes: int = 2, restarts: int = 0
) -> subprocess.CompletedProcess[str]:
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
        SLURM_RESTART_COUNT=str(restarts),
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


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [
        (75, 99, True),
        (143, 99, True),
        (1, 0, False),
        (130, 0, False),
        (134, 19, True),
        (137, 19, True),
        (134, 20, False),
    ],
)
def test_what_has_saved_or_lost_a_host_is_queued_again(
    machine: Machine, code: int, restarts: int, again: bool
) -> None:
    assert batch(machine, code, restarts=restarts).returncode == code
    assert (["scontrol", "requeue", "20005"] in machine.calls) == again


def test_a_cancelled_job_is_not_queued_again(machine: Machine) -> None:
    machine.programs.joinpath("squeue").write_text("#!/bin/sh\necho COMPLETING\n")
    assert batch(machine, 75).returncode == 75
    assert ["scontrol", "requeue", "20005"] not in machine.calls
