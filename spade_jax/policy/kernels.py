"""Which kernels a platform gets, and what its compiler needs: decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from spade_jax.types import UsageError


class Kernels(NamedTuple):
    """Names of implementations that compute the same function."""

    attention: str  # of attention.KERNELS
    experts: str  # of experts.PRODUCTS
    cached: str = "einsum"  # of cached.KERNELS


PLATFORMS = {
    "cpu": Kernels("einsum", "dense"),  # a ragged product computes all experts there
    "gpu": Kernels("einsum", "ragged"),
    "tpu": Kernels("splash", "ragged", "pallas"),
}
ONLY = {"cudnn": "gpu", "flash": "gpu", "splash": "tpu"}  # kernels of one platform
ATTENTION = ("auto", "einsum", "dot_product", *ONLY)


def platform_in_use() -> str:
    """That of the mesh which is set, though it be of devices that are not here; else the default.

    A program can be compiled for a slice of TPUs on any machine (`spade_jax.preflight`).
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def choose(attention: str = "auto", platform: str | None = None) -> Kernels:
    """The platform's kernels, or those with the attention asked for.

    `platform` is the one in use where it is not given. Raises UsageError for an attention that is
    unknown or belongs to another platform.
    """
    platform = platform or platform_in_use()
    if attention not in ATTENTION:
        raise UsageError(f"attention is {attention!r}; choose one of {', '.join(ATTENTION)}")
    if ONLY.get(attention, platform) != platform:
        raise UsageError(
            f"attention is {attention!r}, which needs a {ONLY[attention].upper()}, but JAX runs on "
            f"{platform.upper()}; choose auto, einsum or dot_product"
        )
    chosen = PLATFORMS[platform]
    return chosen if attention == "auto" else chosen._replace(attention=attention)


def on_one_cpu() -> bool:
    """Whether a program is for a CPU, and for one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return platform_in_use() == "cpu" and (mesh.empty or mesh.size == 1)


def once(make: Callable[[], Any], count: jax.Array) -> Any:
    """What `make` returns, computed once and before it is used.

    XLA for CPUs drops optimization barriers before it fuses. It then computes again, in each loop
    over what uses them, cosines and the place where a slice begins, and the latter keeps some of
    these loops from being vectorised. It does not look into a branch. `count` is an integer that is
    never negative, which it cannot know.
    """
    if not on_one_cpu():
        return jax.lax.optimization_barrier((make(), count))[0]

    def never() -> Any:
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(make))

    return jax.lax.cond(count >= 0, make, never)
