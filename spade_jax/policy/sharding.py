"""Where arrays lie on a mesh of devices: one table from logical axes to mesh axes.

The mesh has the axes `data` (copies of everything), `fsdp` (parameters in pieces, gathered where
they are used), `tensor` (heads and feed-forward in pieces) and `expert`. One device is the mesh
(1, 1, 1, 1). Inside `jax.set_mesh(mesh)` the model constrains what it computes; outside it runs as
it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from spade_jax.types import UsageError

AXES = ("data", "fsdp", "tensor", "expert")

_SPLIT = {
    "batch": ("data", "fsdp", "expert"),
    "length": ("tensor",),  # of whole sequences between attention and feed-forward
    "vocab": ("tensor",),
    "head": ("tensor",),
    "kv_head": ("tensor",),
    "ffn": ("tensor",),
    "expert": ("expert", "tensor"),  # whole experts rather than parts of their width
}
# Logical axes of parameters and activations; an axis that is not listed is whole on each device.
TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {**_SPLIT, "model": ("fsdp", "expert")},  # parameters over everything
    "sample": _SPLIT,  # parameters over tensor and expert only, a copy for each piece of the batch
}


def make_mesh(
    shape: Sequence[int] = (1, 1, 1, 1), devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh of `AXES` with these sizes; UsageError where there are not as many devices.

    An axis of size -1 takes what the others leave.
    """
    devices = jax.devices() if devices is None else devices
    given = math.prod(size for size in shape if size != -1)
    shape = [max(1, len(devices) // given) if size == -1 else size for size in shape]
    if math.prod(shape) != len(devices):
        raise UsageError(
            f"the mesh {'x'.join(map(str, shape))} ({', '.join(AXES)}) takes {math.prod(shape)} "
            f"devices, but there are {len(devices)}; make the product equal to that"
        )
    # Unlike jax.make_mesh this lets two axes share a side of a TPU slice's torus.
    placed = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(placed, AXES, (AxisType.Auto,) * len(AXES))


def split(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh | AbstractMesh, mode: str
) -> list[tuple[str, ...]]:
    """The mesh axes over which each array axis is divided, by the table.

    A mesh axis serves the first array axis that claims it. Where the sizes do not divide, the last
    mesh axes are left out.
    """
    used: set[str] = set()
    out = []
    for axis, size in zip(axes, shape, strict=True):
        names = [name for name in TABLE[mode].get(axis, ()) if name not in used]
        while size % math.prod(mesh.shape[name] for name in names):
            names.pop()
        used.update(names)
        out.append(tuple(names))
    return out


def spec(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh | AbstractMesh, mode: str
) -> PartitionSpec:
    """`split` as JAX writes it."""
    return PartitionSpec(*(names or None for names in split(axes, shape, mesh, mode)))


def _declared(x: object) -> bool:
    return hasattr(x, "axes")


def parameters(declared: Any, mesh: Mesh, mode: str) -> Any:
    """Shardings of a tree of declarations (`model.declare`)."""
    return jax.tree.map(
        lambda p: NamedSharding(mesh, spec(p.axes, p.shape, mesh, mode)),
        declared,
        is_leaf=_declared,
    )


def batch(arrays: Any, mesh: Mesh, axis: int = 0) -> Any:
    """Shardings of a tree of arrays whose axis `axis` counts sequences."""

    def one(a: Any) -> NamedSharding:
        axes = ["batch" if i == axis else None for i in range(len(a.shape))]
        return NamedSharding(mesh, spec(axes, a.shape, mesh, "train"))

    return jax.tree.map(one, arrays)


def place_state(tree: Any) -> Any:
    """A learner's state on all devices of the mesh that is set: whole, what lies on one of them.

    Its parameters, and what an optimizer keeps for each of them, lie there in pieces already.
    """
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        return tree
    whole = NamedSharding(mesh, PartitionSpec())

    def place(a: jax.Array) -> jax.Array:
        here = isinstance(a.sharding, NamedSharding) and a.sharding.mesh == mesh
        return a if here else jax.device_put(a, whole)

    return jax.tree.map(place, tree)


def place_batch(arrays: Any, axis: int = 0) -> Any:
    """Arrays of the host on the devices of the mesh that is set, by `batch`."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        return arrays
    places = batch(arrays, mesh, axis)
    if not mesh.is_multi_process:
        return jax.device_put(arrays, places)
    return jax.tree.map(
        lambda a, s: jax.make_array_from_callback(a.shape, s, a.__getitem__), arrays, places
    )


def fetch(tree: Any) -> Any:
    """Arrays of the devices on the host, whole, though other hosts' devices hold parts of them."""
    whole = NamedSharding(jax.sharding.get_mesh(), PartitionSpec())

    def one(a: jax.Array) -> jax.Array:
        here = a.is_fully_addressable or a.is_fully_replicated
        return a if here else jax.device_put(a, whole)

    return jax.device_get(jax.tree.map(one, tree))


# -- sampling apart from other hosts ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Replicas:
    """Meshes to sample on: the one that this host is of, and all hosts' with an axis `replica`."""

    own: Mesh
    all: Mesh


def replicas(groups: Sequence[Sequence[jax.Device]], tensor: int, expert: int) -> Replicas:
    """Meshes of each of the groups of devices, on which `tensor` times `expert` hold a model.

    UsageError where the devices cannot be divided so.
    """
    n, parts = min(map(len, groups)), tensor * expert
    if n % parts or len(set(map(len, groups))) > 1:
        raise UsageError(
            f"a replica samples with {n} devices, which cannot hold a model in {parts} pieces "
            f"(tensor {tensor}, expert {expert}); set --config.sampling.tensor and "
            "--config.sampling.expert so that their product divides the devices of each replica"
        )
    shape = {**dict.fromkeys(AXES, 1), "fsdp": n // parts, "tensor": tensor, "expert": expert}
    meshes = [make_mesh(tuple(shape.values()), devices) for devices in groups]
    types = (AxisType.Auto,) * (1 + len(AXES))
    everywhere = Mesh(np.stack([m.devices for m in meshes]), ("replica", *AXES), types)
    here = jax.process_index()
    own = next(m for m in meshes if here in {d.process_index for d in m.devices.flat})
    return Replicas(own, everywhere)


def by_replica(mesh: Mesh, hosts: int) -> list[list[jax.Device]]:
    """The devices of `mesh` in groups, those of so many neighbouring hosts together, in order.

    UsageError where hosts are left over.
    """
    devices = sorted(mesh.devices.flat, key=lambda d: (d.process_index, d.id))
    numbers = list(dict.fromkeys(d.process_index for d in devices))
    if len(numbers) % hosts:
        raise UsageError(
            f"hosts.per_replica is {hosts}, but the hosts of this run, {len(numbers)}, do not fall "
            f"into such groups; set --config.hosts.per_replica to a divisor of {len(numbers)}"
        )
    groups: list[list[jax.Device]] = [[] for _ in range(len(numbers) // hosts)]
    for device in devices:
        groups[numbers.index(device.process_index) // hosts].append(device)
    return groups


def replicate(params: Any, declared: Any, to: Replicas) -> Any:
    """The own replica's copy of parameters that lie on the devices of all; all hosts call it."""
    copies = jax.device_put(params, parameters(declared, to.all, "sample"))
    return jax.tree.map(
        lambda a, s: jax.make_array_from_single_device_arrays(
            a.shape, s, [shard.data for shard in a.addressable_shards]
        ),
        copies,
        parameters(declared, to.own, "sample"),
    )


# -- inside a program -------------------------------------------------------------------------


def ambient() -> AbstractMesh | None:
    """The mesh of `jax.set_mesh`; None where there is none, and inside `per_device`."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.are_all_axes_manual else mesh


def shares(axes: Sequence[str | None], shape: Sequence[int]) -> int:
    """Among how many devices an array is divided."""
    mesh = ambient()
    if mesh is None:
        return 1
    return math.prod(
        mesh.shape[name] for names in split(axes, shape, mesh, "train") for name in names
    )


def pieces(rows: int) -> int:
    """Into how many pieces the devices divide a batch of so many sequences."""
    return shares(("batch",), (rows,))


def constrain(x: jax.Array, axes: Sequence[str | None], mode: str = "sample") -> jax.Array:
    """`x`, laid out by the table. Mode sample gathers what train keeps in pieces."""
    mesh = ambient()
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, spec(axes, x.shape, mesh, mode))


def constrain_parameters(tree: Any, declared: Any, mode: str) -> Any:
    """A tree of parameters or of their gradients, laid out by their declarations."""
    return jax.tree.map(lambda p, x: constrain(x, p.axes, mode), declared, tree, is_leaf=_declared)


def per_device(
    f: Callable[..., jax.Array], in_specs: Any, out_specs: PartitionSpec, *, opaque: bool = False
) -> Callable[..., jax.Array]:
    """`f` on each device's own pieces, for kernels that the compiler cannot divide.

    In an `opaque` one JAX cannot follow over which axes results differ, as in Pallas.
    """
    return jax.shard_map(f, in_specs=in_specs, out_specs=out_specs, check_vma=not opaque)
