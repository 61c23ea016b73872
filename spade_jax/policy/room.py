"""Whether a sampler's cache fits into what memory is free."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from spade_jax.policy import sharding
from spade_jax.policy.model import ModelConfig
from spade_jax.types import UsageError


def check(c: ModelConfig, slots: int, columns: int, dtype: jnp.dtype) -> None:
    """UsageError where a cache of this size is larger than what is free."""
    needed = 2 * c.layers * slots * c.kv_heads * c.head_size * columns * jnp.dtype(dtype).itemsize
    needed /= sharding.shares(("batch", "kv_head"), (slots, c.kv_heads))
    free = free_bytes()
    if needed > free:
        raise UsageError(
            f"the key/value cache of {slots} slots of {columns} tokens takes "
            f"{needed / 2**30:.2g} GiB of a device, but {free / 2**30:.2g} GiB are free; lower "
            "sampling.slots, play.context or design.max_tokens"
        )


def free_bytes() -> float:
    """Memory that is free on the first device of this process; inf where nothing tells."""
    device = jax.local_devices()[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            known = dict(line.split(":") for line in file)
        return int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return math.inf
