"""What the tests of the launchers share."""

from pathlib import Path

import pytest

from tests.launch.stand_ins import PROGRAMS, ROOT, STAND_IN, TRAINER, Machine


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


@pytest.fixture
def worker(machine: Machine) -> dict[str, str]:
    """Variables of a worker's shell; the machine's folder is the repository there."""
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
