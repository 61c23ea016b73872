"""Attention of one new token a row over its cached columns, for joining with what is newer.

Each form takes queries (B,K,G,C), scaled, G to a key head; the keys (L,B,K,C,S) and values
(L,B,K,S,C) of several layers; a layer's number; and each row's length, of whose columns it sees
all. It returns float32 sums (B,K,G,C) of values with weights exp(score - top), and `top` and the
sum of the weights, (B,K,G,1) both. So nothing of the cache is copied or computed where a slot has
no columns. JAX's paged kernels give the quotient only, which cannot be joined with the columns of
the block that is being decoded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from spade_jax.policy import sharding

LOWEST = -1e30  # a score that is not seen
BLOCK = 512  # columns that the TPU kernel has on the chip at a time

Part = tuple[jax.Array, jax.Array, jax.Array]  # sums, top, total


def einsum(
    q_BKGC: jax.Array, keys: jax.Array, values: jax.Array, layer: jax.Array, length_B: jax.Array
) -> Part:
    """The plain form, over all columns."""
    k_BKCS, v_BKSC = keys[layer], values[layer]
    scores = jnp.einsum("BKGC,BKCS->BKGS", q_BKGC, k_BKCS, preferred_element_type=jnp.float32)
    seen_B11S = jnp.arange(k_BKCS.shape[3])[None, None, None] < length_B[:, None, None, None]
    scores = jnp.where(seen_B11S, scores, LOWEST)
    top_BKG1 = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.where(seen_B11S, jnp.exp(scores - top_BKG1), 0.0)
    sums_BKGC = jnp.einsum(
        "BKGS,BKSC->BKGC", weights.astype(values.dtype), v_BKSC, preferred_element_type=jnp.float32
    )
    return sums_BKGC, top_BKG1, jnp.sum(weights, axis=-1, keepdims=True)


def blocks(
    q_RKGC: jax.Array,
    k_PKCW: jax.Array,
    v_PKWC: jax.Array,
    row_P: jax.Array,
    seen_P: jax.Array,
) -> Part:
    """The same over blocks of columns, each of the row `row_P` and with `seen_P` columns in use.

    A row has any number of blocks, so that it costs no more than its own columns.
    """
    mine_RP = row_P[None] == jnp.arange(len(q_RKGC))[:, None]
    mine_RP11 = mine_RP[:, :, None, None]
    seen_P11W = (jnp.arange(k_PKCW.shape[-1])[None] < seen_P[:, None])[:, None, None]

    def of_block(x_RKG: jax.Array) -> jax.Array:
        return x_RKG.at[row_P].get(mode="clip")

    def over_blocks(x_PKGN: jax.Array) -> jax.Array:
        return jnp.einsum("RP,PKGN->RKGN", mine_RP.astype(x_PKGN.dtype), x_PKGN)

    scores = jnp.einsum(
        "PKGC,PKCW->PKGW", of_block(q_RKGC), k_PKCW, preferred_element_type=jnp.float32
    )
    scores = jnp.where(seen_P11W, scores, LOWEST)
    top_RKG = jnp.max(jnp.where(mine_RP11, jnp.max(scores, axis=-1)[None], LOWEST), axis=1)
    weights = jnp.where(seen_P11W, jnp.exp(scores - of_block(top_RKG)[..., None]), 0.0)
    sums_PKGC = jnp.einsum(
        "PKGW,PKWC->PKGC", weights.astype(v_PKWC.dtype), v_PKWC, preferred_element_type=jnp.float32
    )
    total_PKG1 = jnp.sum(weights, axis=-1, keepdims=True)
    return over_blocks(sums_PKGC), top_RKG[..., None], over_blocks(total_PKG1)


def pallas(
    q_BKGC: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    layer: jax.Array,
    length_B: jax.Array,
    *,
    interpret: bool = False,
) -> Part:
    """A TPU kernel that reads, of each row, the blocks of columns in use only, where they lie.

    `interpret` runs it anywhere, slowly.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    b, kv, group, size = q_BKGC.shape
    columns = keys.shape[4]
    block = min(BLOCK, columns)

    def in_use(row: jax.Array, i: jax.Array, length_B: jax.Array) -> jax.Array:
        """Block `i`, or again the last one in use, which is not fetched twice."""
        return jnp.minimum(i, jnp.maximum(pl.cdiv(length_B[row], block) - 1, 0))

    def row_of(row: jax.Array, i: jax.Array, *_: jax.Array) -> tuple:
        return row, 0, 0, 0

    each = pl.BlockSpec((1, kv, group, size), row_of)
    one = pl.BlockSpec((1, kv, group, 1), row_of)
    return pl.pallas_call(
        functools.partial(_kernel, block=block),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(b, pl.cdiv(columns, block)),
            in_specs=[
                each,
                pl.BlockSpec(
                    (1, 1, kv, size, block),
                    lambda row, i, at, n: (at[0], row, 0, 0, in_use(row, i, n)),
                ),
                pl.BlockSpec(
                    (1, 1, kv, block, size),
                    lambda row, i, at, n: (at[0], row, 0, in_use(row, i, n), 0),
                ),
            ],
            out_specs=[each, one, one],
        ),
        out_shape=[jax.ShapeDtypeStruct((b, kv, group, n), jnp.float32) for n in (size, 1, 1)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=4 * q_BKGC.size * columns,
            bytes_accessed=2 * b * kv * size * columns * keys.dtype.itemsize,
            transcendentals=b * kv * group * columns,
        ),
        interpret=interpret,
        name="cached_attention",
    )(layer.reshape(1), length_B, q_BKGC, keys, values)


def _kernel(
    at: jax.Ref,
    length_B: jax.Ref,
    q: jax.Ref,
    k: jax.Ref,
    v: jax.Ref,
    sums: jax.Ref,
    top: jax.Ref,
    total: jax.Ref,
    *,
    block: int,
) -> None:
    """One row and block of columns, whose pieces are on the chip."""
    del at  # found its place already
    from jax.experimental import pallas as pl

    row, i = pl.program_id(0), pl.program_id(1)
    left = length_B[row] - i * block  # columns of the row from this block on

    @pl.when(i == 0)
    def _() -> None:
        sums[...] = jnp.zeros_like(sums)
        top[...] = jnp.full_like(top, LOWEST)
        total[...] = jnp.zeros_like(total)

    @pl.when(left > 0)
    def _() -> None:
        for head in range(q.shape[1]):
            scores_GS = jnp.dot(q[0, head], k[0, 0, head], preferred_element_type=jnp.float32)
            seen_GS = jax.lax.broadcasted_iota(jnp.int32, scores_GS.shape, 1) < left
            scores_GS = jnp.where(seen_GS, scores_GS, LOWEST)
            before_G1 = top[0, head]
            now_G1 = jnp.maximum(before_G1, jnp.max(scores_GS, axis=-1, keepdims=True))
            weights_GS = jnp.where(seen_GS, jnp.exp(scores_GS - now_G1), 0.0)
            shrunk_G1 = jnp.exp(before_G1 - now_G1)
            v_SC = v[0, 0, head]  # what lies beyond the row may be no number
            rows_SC = jax.lax.broadcasted_iota(jnp.int32, v_SC.shape, 0)
            v_SC = jnp.where(rows_SC < left, v_SC, jnp.zeros_like(v_SC))
            new_GC = jnp.dot(
                weights_GS.astype(v_SC.dtype), v_SC, preferred_element_type=jnp.float32
            )
            sums[0, head] = sums[0, head] * shrunk_G1 + new_GC
            total[0, head] = total[0, head] * shrunk_G1 + jnp.sum(weights_GS, -1, keepdims=True)
            top[0, head] = now_G1


KERNELS: dict[str, Callable[..., Part]] = {"einsum": einsum, "pallas": pallas}


def attend(
    kernel: str,
    q_BKGC: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    layer: jax.Array,
    length_B: jax.Array,
) -> Part:
    """A form by its name; on a mesh each device takes its own rows and heads."""
    mesh = sharding.ambient()
    if mesh is None:
        return KERNELS[kernel](q_BKGC, keys, values, layer, length_B)
    axes = (None, "batch", "kv_head", None, None)
    cache = sharding.spec(axes, keys.shape, mesh, "sample")
    own = PartitionSpec(cache[1], cache[2])
    pieces = (own, cache, cache, PartitionSpec(), PartitionSpec(cache[1]))
    on_device = sharding.per_device(KERNELS[kernel], pieces, (own, own, own), opaque=True)
    return on_device(q_BKGC, keys, values, layer, length_B)


def join(parts: list[Part]) -> jax.Array:
    """Attention over all columns of several parts, (B,K,G,C) float32."""
    top = functools.reduce(jnp.maximum, [part[1] for part in parts])
    shares = [jnp.exp(part[1] - top) for part in parts]
    sums = sum(part[0] * share for part, share in zip(parts, shares, strict=True))
    return sums / sum(part[2] * share for part, share in zip(parts, shares, strict=True))
