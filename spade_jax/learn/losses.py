"""Policy-gradient terms per token. Pure functions of float32 arrays of one shape.

Sums over tokens are taken by the caller with the weights of `batching.py`, which already hold the
global denominators. Formulas: arXiv 2608.19197 and, for the clipped ratio with two bounds, DAPO
(arXiv 2503.14476); for the KL estimate, Schulman, "Approximating KL divergence" (2020).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def clipped_policy_loss(
    logp: jax.Array,
    logp_old: jax.Array,
    advantage: jax.Array,
    clip_low: float,
    clip_high: float,
) -> tuple[jax.Array, jax.Array]:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = exp(logp - logp_old), and where it clips.

    All arrays have one shape; returns (loss, clipped) of that shape, `clipped` bool where the
    gradient is cut off.
    """
    ratio = jnp.exp(logp - logp_old)
    free = ratio * advantage
    bounded = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantage
    return -jnp.minimum(free, bounded), bounded < free


def importance_weight(logp_old: jax.Array, logp_behaviour: jax.Array, cap: float) -> jax.Array:
    """Truncated weight clip(exp(logp_old - logp_behaviour), 0, cap), without gradient."""
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(logp_old - logp_behaviour), cap))


def kl_k3(logp: jax.Array, logp_reference: jax.Array) -> jax.Array:
    """exp(d) - d - 1 with d = logp_reference - logp: non-negative, unbiased for KL(now || ref)."""
    d = logp_reference - logp
    return jnp.exp(d) - d - 1.0
