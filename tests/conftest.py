"""What all tests share: JAX on the CPU, rank promotion an error, tools of the machine."""

import os
import shutil

# Read when jax is imported, by the tests and by the processes they start.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["MPLBACKEND"] = "Agg"

from collections.abc import Callable

import pytest


@pytest.fixture
def find_tool() -> Callable[[str], str]:
    """Path of a program of the machine; without it the test is skipped, or fails where asked."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None and os.environ.get("SPADE_REQUIRE_TOOLS") == "1":
            pytest.fail(f"{name} is not installed, and SPADE_REQUIRE_TOOLS=1 wants every tool")
        if path is None:
            pytest.skip(f"{name} is not installed")
        return path

    return find
