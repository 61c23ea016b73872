"""Sharding: the table by hand, and eight devices that compute what one does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from spade_jax.policy import model, sharding
from spade_jax.types import UsageError
from tests.policy.small import MOE, SMALL, random_params

ROOT = Path(__file__).parents[2]
MESHES = ("8x1x1x1", "2x2x2x1", "1x2x4x1", "1x2x1x4")
FEW = ["experts-1x2x2x2"]
ALL = [f"{name}-{mesh}" for name in ("dense", "experts") for mesh in MESHES]


def mesh_of(*shape: int) -> AbstractMesh:
    return AbstractMesh(shape, sharding.AXES, (AxisType.Auto,) * 4)


def on_eight_devices(*cases: str) -> dict[str, dict[str, float]]:
    """Errors of each case, from a process of its own: a process's devices are counted once."""
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0",  # one program at a time: few cores, many devices
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.policy.eight_devices", *cases],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "cases",
    [FEW, pytest.param(ALL, marks=pytest.mark.slow)],
    ids=["one mesh", "all meshes"],
)
def test_eight_devices_compute_what_one_does(cases: list[str]) -> None:
    """Hidden vectors, log-probabilities, gradients, and a sampler's replies in two turns."""
    found = on_eight_devices(*cases)
    assert list(found) == list(cases)
    for case, errors in found.items():
        assert max(errors.values()) < 1e-5, f"{case}: {errors}"


def test_places_by_hand() -> None:
    mesh = mesh_of(2, 2, 2, 2)
    down = model.declare(MOE)["layers"]["down"]
    assert down.axes == ("layer", "expert", "ffn", "model")
    # the four experts claim both axes before the width can claim one
    assert sharding.spec(down.axes, down.shape, mesh, "train") == P(
        None, ("expert", "tensor"), None, ("fsdp",)
    )
    assert sharding.spec(down.axes, down.shape, mesh, "sample") == P(
        None, ("expert", "tensor"), None, None
    )
    # six experts divide by expert = 2 only, and leave tensor to their width
    assert sharding.spec(down.axes, (2, 6, 24, 32), mesh, "sample") == P(
        None, ("expert",), ("tensor",), None
    )
    embed = model.declare(SMALL)["embed"]
    assert sharding.spec(embed.axes, embed.shape, mesh, "train") == P(
        ("tensor",), ("fsdp", "expert")
    )
    # 12 rows divide by data * fsdp = 4, not by data * fsdp * expert = 8; 3 rows by neither
    rows = ("batch", None)
    assert sharding.spec(rows, (12, 5), mesh, "train") == P(("data", "fsdp"), None)
    assert sharding.spec(rows, (3, 5), mesh, "train") == P(None, None)


def test_every_large_parameter_is_divided_among_all_devices() -> None:
    """In training; norms and routers are small."""
    mesh = mesh_of(1, 2, 2, 2)
    for p in jax.tree.leaves(model.declare(MOE), is_leaf=model.is_parameter):
        names = [n for axes in sharding.split(p.axes, p.shape, mesh, "train") for n in axes]
        if "router" not in p.axes and len(p.axes) > len(p.stack) + 1:
            assert sorted(names) == ["expert", "fsdp", "tensor"], p.hf_name


def test_one_device_is_a_mesh_too() -> None:
    params, rows = random_params(SMALL), jnp.arange(6)[None]

    def forward(params: model.Params) -> jax.Array:
        return model.hidden(params, rows, rows, jnp.ones_like(rows), SMALL)

    expected = jax.jit(forward)(params)
    mesh = sharding.make_mesh()
    places = sharding.parameters(model.declare(SMALL), mesh, "train")
    with jax.set_mesh(mesh):
        got = jax.jit(forward)(jax.device_put(params, places))
    np.testing.assert_array_equal(got, expected)


def test_a_mesh_of_another_number_of_devices() -> None:
    with pytest.raises(UsageError, match="mesh 1x2x1x1 .data, .* takes 2 devices, but there are 1"):
        sharding.make_mesh((1, 2, 1, 1))


def test_neighbouring_hosts_form_a_replica() -> None:
    """Four hosts of two devices; a mesh has them in any order."""
    devices = [SimpleNamespace(id=n, process_index=n // 2) for n in (5, 0, 7, 2, 4, 1, 6, 3)]
    mesh = SimpleNamespace(devices=np.array(devices, object).reshape(1, 2, 2, 2))

    def groups(hosts: int) -> list[list[int]]:
        return [[device.id for device in group] for group in sharding.by_replica(mesh, hosts)]

    assert groups(1) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups(2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups(4) == [[*range(8)]]
    with pytest.raises(UsageError, match="is 3, but the hosts of this run, 4, do not"):
        groups(3)


def test_a_copy_to_sample_with() -> None:
    """Of one host with one device: as it was, on the mesh of the host's own devices."""
    params, mesh = random_params(SMALL), sharding.make_mesh()
    declared = model.declare(SMALL)
    trained = jax.device_put(params, sharding.parameters(declared, mesh, "train"))
    groups = sharding.by_replica(mesh, 1)
    to = sharding.replicas(groups, 1, 1)
    assert to.all.shape == {"replica": 1, **to.own.shape} and to.own.size == 1
    copy = sharding.replicate(trained, declared, to)
    for got, expected in zip(*map(jax.tree.leaves, (copy, params)), strict=True):
        assert got.sharding.mesh == to.own
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(UsageError, match=r"with 1 devices, .* in 2 pieces \(tensor 2, expert 1\)"):
        sharding.replicas(groups, 2, 1)
