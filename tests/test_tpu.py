"""What the TPU's compiler is told."""

import os

import pytest

from spade_jax import tpu

ALL = [
    "--xla_tpu_enable_sparse_core_collective_offload_all_gather=true",
    "--xla_tpu_enable_sparse_core_collective_offload_2d_all_gather=true",
    "--xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true",
    "--xla_tpu_enable_ragged_dot_kernel=true",
]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, ALL),
        ("--xla_other=1", [*ALL, "--xla_other=1"]),
        (f"{ALL[1][:-4]}false  --a=2", [ALL[0], *ALL[2:], f"{ALL[1][:-4]}false", "--a=2"]),
        (" ".join(ALL), ALL),
    ],
    ids=["nothing", "another", "one off", "twice"],
)
def test_options_of_the_user_are_kept(
    monkeypatch: pytest.MonkeyPatch, given: str | None, told: list[str]
) -> None:
    monkeypatch.delenv(tpu.VARIABLE, raising=False)
    if given:
        monkeypatch.setenv(tpu.VARIABLE, given)
    tpu.set_options()
    assert os.environ[tpu.VARIABLE].split() == told


def test_they_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPADE_LIBTPU", "0")
    monkeypatch.setenv(tpu.VARIABLE, "--a=1")
    tpu.set_options()
    assert os.environ[tpu.VARIABLE] == "--a=1"
