"""Drawing tokens: temperature, top-k, top-p and min-p by row, and what was drawn's probability."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

ROUNDING = 1e-5  # that a log-probability may be computed to twice


class Draw(NamedTuple):
    """One token a row: its id, its tempered log-probability, and the one under truncation."""

    token_B: jax.Array  # int32
    logp_B: jax.Array  # float32
    behaviour_B: jax.Array  # float32; equal to `logp_B` where nothing is ruled out


class Rows(NamedTuple):
    """The `Sampling` of each row, as arrays."""

    temperature_B: jax.Array
    top_p_B: jax.Array
    top_k_B: jax.Array
    min_p_B: jax.Array


def stream_key(stream_I: jax.Array) -> jax.Array:
    """The random key named by a vector of integers."""
    key = jax.random.key(0)
    for i in range(stream_I.shape[0]):
        key = jax.random.fold_in(key, stream_I[i])
    return key


def uniforms(stream_BI: jax.Array, first_B: jax.Array, count: int) -> jax.Array:
    """Two uniform numbers each, (B, count, 2), for a stream's draws from number `first_B` on."""
    keys_B = jax.vmap(stream_key)(stream_BI)

    def of_row(key: jax.Array, first: jax.Array) -> jax.Array:
        keys_N = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(count))
        return jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys_N)

    return jax.vmap(of_row)(keys_B, first_B)


def draw(logits_BV: jax.Array, uniform_B2: jax.Array, rows: Rows, *, truncated: bool) -> Draw:
    """Sample one token in each row; without `truncated` only the temperatures are heeded."""
    logp_BV = jax.nn.log_softmax(logits_BV / rows.temperature_B[:, None], axis=-1)
    kept_BV = truncate(logp_BV, rows) if truncated else logp_BV
    token_B = categorical(jnp.exp(kept_BV), uniform_B2)

    def of_token(values_BV: jax.Array) -> jax.Array:
        return jnp.minimum(jnp.take_along_axis(values_BV, token_B[:, None], axis=-1)[:, 0], 0.0)

    logp_B = of_token(logp_BV)
    return Draw(token_B, logp_B, of_token(kept_BV) if truncated else logp_B)


def truncate(logp_BV: jax.Array, rows: Rows) -> jax.Array:
    """Log-probabilities after ruling tokens out, -inf for those.

    Ties with the last one stay in, but of one token, which is the first of the most probable.
    """
    sorted_BV = jnp.sort(logp_BV, axis=-1, descending=True)
    rank_V = jnp.arange(logp_BV.shape[-1])
    in_k_BV = (rows.top_k_B[:, None] == 0) | (rank_V[None, :] < rows.top_k_B[:, None])
    p_BV = jnp.where(in_k_BV, jnp.exp(sorted_BV), 0.0)
    p_BV /= jnp.sum(p_BV, axis=-1, keepdims=True)
    before_BV = jnp.cumsum(p_BV, axis=-1) - p_BV
    in_p_BV = in_k_BV & ((before_BV < rows.top_p_B[:, None]) | (rank_V == 0)[None, :])
    least_B = jnp.min(jnp.where(in_p_BV, sorted_BV, jnp.inf), axis=-1)
    least_B = jnp.maximum(least_B, sorted_BV[:, 0] + jnp.log(rows.min_p_B))
    first_BV = rank_V[None, :] == jnp.argmax(logp_BV, axis=-1)[:, None]
    # Compilers may compute what is compared here anew, not as it was for the sort.
    enough_BV = logp_BV >= least_B[:, None] - ROUNDING
    in_BV = jnp.where(rows.top_k_B[:, None] == 1, first_BV, enough_BV)
    kept_BV = jnp.where(in_BV, logp_BV, -jnp.inf)
    return jax.nn.log_softmax(kept_BV, axis=-1)


def categorical(p_BV: jax.Array, uniform_B2: jax.Array) -> jax.Array:
    """One index a row, with probability in proportion to `p_BV`: inverse distribution in two steps.

    A block of neighbours is drawn first and then a member of it, by two uniform numbers a row
    rather than one for every entry, which on a CPU would cost a fifth of a decoding step.
    """
    b, v = p_BV.shape
    size = math.isqrt(v - 1) + 1
    blocks = -(-v // size)
    p_BNS = jnp.pad(p_BV, ((0, 0), (0, blocks * size - v))).reshape(b, blocks, size)
    block_B = invert(jnp.sum(p_BNS, axis=-1), uniform_B2[:, 0])
    inside_BS = jnp.take_along_axis(p_BNS, block_B[:, None, None], axis=1)[:, 0]
    return block_B * size + invert(inside_BS, uniform_B2[:, 1])


def invert(p_BN: jax.Array, uniform_B: jax.Array) -> jax.Array:
    """The first index at which the cumulated weights exceed the uniform number's share of them.

    An index of weight 0 is never returned, whatever rounding does, unless all weights are 0.
    """
    total_BN = jnp.cumsum(p_BN, axis=-1)
    over_BN = (total_BN > uniform_B[:, None] * total_BN[:, -1:]) & (p_BN > 0)
    last_B = p_BN.shape[-1] - 1 - jnp.argmax(p_BN[:, ::-1] > 0, axis=-1)
    return jnp.where(jnp.any(over_BN, axis=-1), jnp.argmax(over_BN, axis=-1), last_B).astype(
        jnp.int32
    )
