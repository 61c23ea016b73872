"""TPU slices by name, and the published facts of their chips."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re

import jax
from jax.experimental import topologies

from spade_jax.types import UsageError

GIB = 2**30
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = (
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16"),
    *("8x16x16", "16x16x16"),
)


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published facts of one chip, and the slices of it that are rented.

    `granted` is what the compiler of libtpu 0.0.52 lets programs use; the rest it keeps for itself.
    """

    hbm: float  # bytes
    granted: float  # bytes
    flops: float  # bfloat16 products and sums a second, at most
    bandwidth: float  # bytes a second, to and from HBM
    links: float  # bytes a second to other chips of the slice, all links and both directions
    shapes: tuple[str, ...]
    devices: int = 1  # that JAX shows for it, which divide all of the above among them
    cores: str | None = None  # libtpu's name for cores that act as one, where it has to be told


# https://docs.cloud.google.com/tpu/docs/v4, and v5e, v5p, v6e and tpu7x in its place, as of 2026.
CHIPS = {
    "v4": Chip(32 * GIB, 30.75 * GIB, 275e12, 1228e9, 300e9, CUBES, cores="megacore"),
    "v5e": Chip(16 * GIB, 15.75 * GIB, 197e12, 819e9, 400e9, FLAT),
    "v5p": Chip(95 * GIB, 95.73 * GIB, 459e12, 2765e9, 1200e9, CUBES),
    "v6e": Chip(32 * GIB, 31.24 * GIB, 918e12, 1638e9, 800e9, FLAT),
    "tpu7x": Chip(192 * GIB, 189.48 * GIB, 2307e12, 7380e9, 1200e9, CUBES, devices=2),
}


@dataclasses.dataclass(frozen=True)
class Device:
    """What one device of a slice has: a chip, or its share of one."""

    kind: str
    hbm: float
    granted: float
    flops: float
    bandwidth: float
    links: float


def device(topology: str) -> Device:
    """Of a topology such as v5p:4x4x4; UsageError that lists them where its chip is unknown."""
    kind = read(topology)[0]
    chip, n = CHIPS[kind], CHIPS[kind].devices
    shares = (x / n for x in (chip.hbm, chip.granted, chip.flops, chip.bandwidth, chip.links))
    return Device(kind, *shares)


def read(topology: str) -> tuple[str, tuple[int, ...]]:
    """Chip and sizes of a topology by its name."""
    kind, _, shape = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"[1-9]\d{0,2}(x[1-9]\d{0,2}){1,2}", shape):
        raise unknown(topology)
    return kind, tuple(map(int, shape.split("x")))


def unknown(topology: str) -> UsageError:
    """The sentence that there is no such slice."""
    known = "; ".join(f"{kind}:{', '.join(chip.shapes)}" for kind, chip in CHIPS.items())
    return UsageError(f"there is no topology {topology!r}; choose one of {known}")


def check_compiler() -> None:
    """UsageError where the TPU's compiler is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        raise UsageError(
            "libtpu, the TPU's compiler, is not installed; add it with pip install 'spade_jax[tpu]'"
            ", which needs no TPU"
        )


def part(topology: str, hosts: int = 1) -> str:
    """The topology of so many neighbouring hosts of a slice, by themselves.

    The compiler takes no program for some of a v5e's or v6e's devices, as their own would be.
    """
    kind, sides = read(topology)
    one = [min(n, most) for n, most in zip(sides, (2, 2, 1), strict=False)]
    if hosts == 1:
        return f"{kind}:{'x'.join(map(str, one))}"
    for shape in CHIPS[kind].shapes:
        if math.prod(map(int, shape.split("x"))) == hosts * math.prod(one):
            return f"{kind}:{shape}"
    raise UsageError(
        f"hosts.per_replica is {hosts}, but no slice of {kind} has so many hosts; take a power of "
        "two"
    )


def devices(topology: str) -> list[jax.Device]:
    """The devices of a slice, none of which is here; programs can be compiled for them.

    Raises UsageError where libtpu knows no such slice.
    """
    chip = CHIPS[read(topology)[0]]
    options = {"chip_config_name": chip.cores} if chip.cores else {}
    try:
        described = topologies.get_topology_desc(topology, "tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise unknown(topology) from None
    return list(described.devices)
