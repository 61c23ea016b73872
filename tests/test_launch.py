"""The launch scripts, run with a stand-in for the virtual environment's Python."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = [*sorted((ROOT / "launch").glob("*.sh")), ROOT / ".ci" / "run"]

# Logs its arguments; as the trainer or pytest it also logs the allocator's variables.
STAND_IN = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo "$@" >> "$LOG"
[ "$2" = pip ] && exit "${PIP_EXIT:-0}"
env | grep '^MALLOC_' | sort >> "$LOG"
exit 0
"""


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., tuple[subprocess.CompletedProcess[str], list[str]]]:
    """Run a script of launch/ in another folder; gives the process and what Python was told."""
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    stand_in = binaries / "python"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    log = tmp_path / "log"

    def run(
        script: str, *arguments: str, **variables: str
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        log.write_text("")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "SPADE_"))}
        done = subprocess.run(
            ["bash", str(ROOT / "launch" / script), *arguments],
            cwd=tmp_path,
            env={**clean, "SPADE_VENV": str(tmp_path / "venv"), "LOG": str(log), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        return done, log.read_text().splitlines()

    return run


def trainer(log: list[str]) -> str:
    return next(line for line in log if line.startswith("-m spade_jax.train"))


def test_local_runs_the_tiny_config(launch: Callable) -> None:
    done, log = launch("local.sh")
    assert done.returncode == 0, done.stderr
    assert trainer(log) == f"-m spade_jax.train --config=tiny --workdir={ROOT}/runs/tiny"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--workdir=here"], "--workdir=here"),
        (["--workdir", "here", "--config.seed=1"], "--workdir here --config.seed=1"),
        (["--config.seed=1"], f"--workdir={ROOT}/runs/tiny --config.seed=1"),
        (["--config=games:qwen3_4b"], f"--workdir={ROOT}/runs/games-qwen3_4b --config=games:q"),
        (["--config", "configs/a.py"], f"--workdir={ROOT}/runs/a --config configs/a.py"),
        (["--config=tiny:a,b"], f"--workdir={ROOT}/runs/tiny-a-b --config=tiny:a,b"),
    ],
)
def test_local_passes_arguments_on(launch: Callable, arguments: list[str], expected: str) -> None:
    _, log = launch("local.sh", *arguments)
    assert trainer(log).startswith(f"-m spade_jax.train --config=tiny {expected}")


def test_local_installs_once_and_again_after_a_failure(launch: Callable) -> None:
    done, log = launch("local.sh", PIP_EXIT="1")
    assert done.returncode == 1 and "did not finish" in done.stderr
    assert not any("spade_jax.train" in line for line in log)
    _, log = launch("local.sh")
    assert sum(f"--editable {ROOT}" in line for line in log) == 1
    _, log = launch("local.sh")
    assert not any("pip" in line for line in log)


def test_allocator_variables_and_their_opt_out(launch: Callable) -> None:
    glibc = subprocess.run(["getconf", "GNU_LIBC_VERSION"], capture_output=True, check=False)
    _, log = launch("local.sh")
    names = [line.partition("=")[0] for line in log if line.startswith("MALLOC_")]
    expected = ["MMAP_MAX_", "TOP_PAD_", "TRIM_THRESHOLD_"]
    assert names == ([f"MALLOC_{name}" for name in expected] if glibc.returncode == 0 else [])
    _, log = launch("local.sh", SPADE_MALLOC="0")
    assert not any(line.startswith("MALLOC_") for line in log)


def test_old_python_is_one_sentence(launch: Callable, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done, _ = launch("local.sh", SPADE_VENV=str(tmp_path / "none"), SPADE_PYTHON=str(old))
    assert done.returncode == 2
    assert done.stderr.startswith("error: no Python 3.11 or newer") and done.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_python_without_venv_leaves_nothing_behind(launch: Callable, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\nmkdir "$3"\nexit 1\n')
    bare.chmod(0o755)
    done, _ = launch("local.sh", SPADE_VENV=str(tmp_path / "none"), SPADE_PYTHON=str(bare))
    assert done.returncode == 2 and "cannot make virtual environments" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_folder_that_is_no_venv_is_kept(launch: Callable, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("kept")
    done, _ = launch("local.sh", SPADE_VENV=str(tmp_path / "mine"))
    assert done.returncode == 2 and "is no virtual environment" in done.stderr
    assert (tmp_path / "mine" / "work.txt").read_text() == "kept"


def test_tests_are_linted_first_and_tiered(launch: Callable) -> None:
    done, log = launch("test.sh", "-k", "regret")
    assert done.returncode == 0, done.stderr
    assert [line for line in log if "pip" not in line and not line.startswith("MALLOC_")] == [
        "-m ruff check .",
        "-m ruff format --check .",
        "-m pytest -m not slow -k regret",
    ]
    _, log = launch("test.sh", "--all")
    assert "-m pytest -m slow or not slow" in log


def test_evaluation_packages_come_without_their_dependencies(launch: Callable) -> None:
    done, log = launch("install_eval.sh")
    assert done.returncode == 0, done.stderr
    assert f"--editable {ROOT}[eval] textarena==" in log[0] and "--no-deps" not in log[0]
    assert log[1].endswith("--no-deps gem-llm==0.1.0 bfcl-eval==2026.3.23")
    assert launch("install_eval.sh")[1] == []


def test_scripts_are_clean(find_tool: Callable[[str], str]) -> None:
    done = subprocess.run(
        [find_tool("shellcheck"), "--external-sources", *map(str, SCRIPTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
