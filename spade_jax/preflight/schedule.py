"""How long a program's work takes in the order in which the compiler has put it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from spade_jax.preflight import chips, work


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the compiler reckons a device does in a second; of other devices, by the links."""

    flops: float
    bandwidth: float
    link: float  # bytes a second on one axis of the torus, both ways round


def rates(devices: Sequence[jax.Device], topology: str) -> Rates:
    """The rates behind the compiler's `optimal_seconds`, from its word on two small programs."""
    place = NamedSharding(Mesh(list(devices[:1]), ("one",)), PartitionSpec())
    shape = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16, sharding=place)

    def said(f: Callable[..., jax.Array], *arguments: jax.ShapeDtypeStruct) -> dict[str, float]:
        return jax.jit(f).lower(*arguments).compile().cost_analysis()

    product, sweep = said(jnp.matmul, shape, shape), said(lambda x: x + 1, shape)
    _, sides = chips.read(topology)
    axes = 2 if len(sides) == 2 else 3
    return Rates(
        flops=product["flops"] / product["optimal_seconds"],
        bandwidth=sweep["bytes accessed"] / sweep["optimal_seconds"],
        link=chips.device(topology).links / (2 * axes),
    )


def seconds(works: Sequence[work.Work], rate: Rates, topology: str) -> tuple[float, float]:
    """Time of some work in its order, and what it were if all that can ran beside the rest.

    Each instruction takes as long as its products or its bytes, collectives as long as the links
    need. Collectives come one after the other, and so do the gathers of the sparse cores. A loop
    is gone through once with all of its rounds together: what begins in a round ends in it.
    """
    sides = sorted(chips.read(topology)[1], reverse=True)
    now = 0.0
    free: collections.Counter[str] = collections.Counter()  # when links and sparse cores are
    taken: collections.Counter[str] = collections.Counter()
    over: dict[str, float] = {}
    for w in works:
        if w.waits:
            now = max(now, over.get(w.waits, 0.0))
            continue
        if w.sent:
            where, took = "links", w.sent.bytes / (rate.link * _axes(w.sent.group, sides))
        else:
            where = "sparse cores" if w.beside else "chip"
            took = max(w.flops / rate.flops, w.bytes / rate.bandwidth)
        taken[where] += w.times * took
        over[w.name] = free[where] = max(now, free[where]) + w.times * took
        if not w.beside:
            now = free[where]
    return max([now, *free.values()]), max([0.0, *taken.values()])


def _axes(group: int, sides: Sequence[int]) -> int:
    """Axes of the torus that a group of so many devices lies along: as few as hold it."""
    held = 1
    for n, side in enumerate(sides, 1):
        held *= side
        if group <= held:
            return n
    return len(sides)
