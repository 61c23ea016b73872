"""Which kernels a platform gets: decided here and nowhere else."""

from __future__ import annotations

from typing import NamedTuple

import jax

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
