"""What all tests share: JAX on the CPU, rank promotion an error, tools of the machine."""

import ctypes
import os
import shutil
import tempfile

# Read when jax is imported, by the tests and by the processes they start. Compiling is what takes
# their time: it optimises little, and what one test has compiled, another need not compile again.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="spade-jax-compiled-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["MPLBACKEND"] = "Agg"

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import jax
import pytest
from ml_collections import config_dict


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Frees what a file compiled: Linux gives a process 65,530 memory maps, a program takes six.

    Without it the whole suite reaches that number, and the next program crashes XLA.
    """
    yield
    jax.clear_caches()


@pytest.fixture
def default() -> config_dict.ConfigDict:
    from spade_jax import config

    return config.load("default")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two small layers that has learned to box one digit, and little else."""
    from tests import small_run

    return small_run.small_model(tmp_path_factory.mktemp("small_model"))


@pytest.fixture(scope="session")
def finished_run(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a run of two iterations in which the scripted designer wrote."""
    from spade_jax import train
    from tests import small_run

    workdir = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        small_run.script_the_designer(patch)
        assert train.train(small_run.run_config(model_folder), workdir) == 0
    return workdir


@pytest.fixture
def find_tool() -> Callable[[str], str]:
    """Path of a program of the machine; without it the test is skipped, or fails where asked."""

    def find(name: str) -> str:
        return shutil.which(name) or _lacking(name)

    return find


@pytest.fixture
def find_library() -> Callable[[str], ctypes.CDLL]:
    """A shared library of the machine; without it the test is skipped, or fails where asked."""

    def find(name: str) -> ctypes.CDLL:
        try:
            return ctypes.CDLL(name)
        except OSError:
            _lacking(name)

    return find


def _lacking(name: str) -> NoReturn:
    if os.environ.get("SPADE_REQUIRE_TOOLS") == "1":
        pytest.fail(f"{name} is not installed, and SPADE_REQUIRE_TOOLS=1 wants every tool")
    pytest.skip(f"{name} is not installed")
