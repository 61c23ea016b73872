"""The package as users get it: sdist and wheel, installed and run outside of the repository.

Needs the package index, as installing does; skipped without it.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SHORT = {
    "iterations": 1,
    "design.num_envs": 4,
    "play.plays": 2,
    "play.hint_plays": 2,
    "evaluation.per_level": 1,
    "log.tensorboard": False,
}


def run(command: Sequence[str | Path], **how: object) -> str:
    """What a command prints; it must not fail, and finds no package by PYTHONPATH."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, **how
    )
    if "Failed to fetch" in done.stderr:
        pytest.skip("uv does not reach the package index")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def uv(*arguments: str | Path, **how: object) -> str:
    """What a command of uv prints."""
    pytest.importorskip("uv")
    return run([sys.executable, "-m", "uv", *arguments, "--quiet"], **how)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel made of it alone."""
    folder = tmp_path_factory.mktemp("built")
    made = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "runs", "*.egg-info", "__pycache__"
    )
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=made)
    link = folder / "source" / "spade_jax" / "configs"  # of those who do not install it
    if link.is_symlink():
        link.unlink()
    uv("build", "--out-dir", folder / "dist", folder / "source")
    [sdist], [wheel] = (list((folder / "dist").glob(end)) for end in ("*.tar.gz", "*.whl"))
    return sdist, wheel


def files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)) for p in found if "__pycache__" not in p.parts}


def test_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[1]).namelist()
    package = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    own = {f"spade_jax/{name}" for name in files(ROOT / "spade_jax")}
    assert package == own | {f"spade_jax/configs/{name}" for name in files(ROOT / "configs")}
    assert "spade_jax/configs/sweeps/learning_rate.py" in package
    assert "spade_jax/assets/tiny/model.safetensors" in package


def test_sdist_holds_no_tests(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"README.md", "LICENSE", "setup.py", "configs/tiny.py"} <= names
    assert not any(name.startswith("tests") for name in names)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_extras_resolve_together(version: str) -> None:
    """All of them, for that Python, whichever runs the tests."""
    setup = ROOT / "setup.py"
    found = uv("pip", "compile", "--all-extras", f"--python-version={version}", setup)
    assert "libtpu==" in found and "wandb==" in found and "torch==" in found


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_wheel_runs_elsewhere(version: str, built: tuple[Path, Path], tmp_path: Path) -> None:
    """Install, train, report and status; Pythons that are not there are skipped.

    That which runs the tests lends its packages, so that only the others download theirs.
    """
    own = f"{sys.version_info.major}.{sys.version_info.minor}" == version
    python = sys.executable if own else shutil.which(f"python{version}")
    if not python or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"python{version} is not installed")
    venv = tmp_path / "venv"
    uv("venv", f"--python={python}", venv)
    uv("pip", "install", f"--python={venv}", built[1], *(["--no-deps"] if own else []))
    if own:
        [packages] = venv.glob("lib/python*/site-packages")
        (packages / "lent.pth").write_text("\n".join(p for p in sys.path if "site-packages" in p))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def program(*arguments: str) -> str:
        return run([venv / "bin" / "python", *arguments], cwd=elsewhere)

    assert program("-c", "import spade_jax; print(spade_jax.__file__)").startswith(str(venv))
    fields = [f"--config.{field}={value}" for field, value in SHORT.items()]
    said = program("-m", "spade_jax.train", "--config=tiny", "--workdir=run", *fields)
    assert "held-out success of 50 instances, iteration 0 to 1" in said
    assert "wrote report.html" in program("-m", "spade_jax.report", "run")
    assert "finished" in program("-m", "spade_jax.status", "run")
    assert (elsewhere / "report.html").read_text().startswith("<!")
