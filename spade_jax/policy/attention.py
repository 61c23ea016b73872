"""Causal attention within the segments of packed rows: the plain form, and kernels of libraries.

Each kernel takes queries (B,T,H,C), keys and values (B,T,K,C) and segments (B,T), and returns
(B,T,H,C). A token sees the tokens of its own segment up to itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from spade_jax.policy import sharding
from spade_jax.types import UsageError

QUERY_CHUNK = 128  # queries per block
SPANS = 8  # a row's blocks fall into at most so many spans, each over the keys up to its end
SPLASH_BLOCK = 1024  # queries and keys per block of the TPU kernel, where the length allows


def einsum(
    q_BTHC: jax.Array, k_BTKC: jax.Array, v_BTKC: jax.Array, segments_BT: jax.Array
) -> jax.Array:
    """The plain form in blocks of queries, each over the keys up to its end.

    Its gradient computes a block's weights again, from the logarithm of their sum: that takes fewer
    passes over them than a differentiated softmax, and keeps none.
    """
    b, t, h, size = q_BTHC.shape
    kv = k_BTKC.shape[2]
    q_BKGTC = (q_BTHC * size**-0.5).reshape(b, t, kv, h // kv, size).transpose(0, 2, 3, 1, 4)
    k_BKSC, v_BKSC = k_BTKC.transpose(0, 2, 1, 3), v_BTKC.transpose(0, 2, 1, 3)
    out_BKGTC = _in_blocks(q_BKGTC, k_BKSC, v_BKSC, segments_BT)
    return out_BKGTC.transpose(0, 3, 1, 2, 4).reshape(b, t, h, size)


@jax.custom_vjp
def _in_blocks(
    q_BKGTC: jax.Array, k_BKSC: jax.Array, v_BKSC: jax.Array, segments_BT: jax.Array
) -> jax.Array:
    """Attention of scaled queries, G of them to a key head."""
    return _forward(q_BKGTC, k_BKSC, v_BKSC, segments_BT)[0]


def _forward(
    q_BKGTC: jax.Array, k_BKSC: jax.Array, v_BKSC: jax.Array, segments_BT: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    def block(carry: None, x: tuple, k_BKSC: jax.Array, v_BKSC: jax.Array) -> tuple:
        scores_BKGTS = _scores(*x, k_BKSC, segments_BT)
        top_BKGT1 = jnp.max(scores_BKGTS, axis=-1, keepdims=True)
        weights_BKGTS = jnp.exp(scores_BKGTS - top_BKGT1)
        total_BKGT1 = jnp.sum(weights_BKGTS, axis=-1, keepdims=True)
        sums_BKGTC = _product("BKTS,BKSC->BKTC", weights_BKGTS.astype(v_BKSC.dtype), v_BKSC)
        out_BKGTC = (sums_BKGTC / total_BKGT1).astype(v_BKSC.dtype)
        return carry, (out_BKGTC, top_BKGT1 + jnp.log(total_BKGT1))

    inputs = (q_BKGTC, *_places(segments_BT))
    parts = []
    for start, end in _spans(q_BKGTC.shape[3]):
        of = functools.partial(block, k_BKSC=k_BKSC[:, :, :end], v_BKSC=v_BKSC[:, :, :end])
        parts.append(_each_block(of, None, inputs, start, end)[1])
    # Named, so that a policy of rematerialisation can keep them.
    out_BKGTC, log_BKGT1 = (
        checkpoint_name(jnp.concatenate(part, axis=3), "attention")
        for part in zip(*parts, strict=True)
    )
    return out_BKGTC, (q_BKGTC, k_BKSC, v_BKSC, segments_BT, out_BKGTC, log_BKGT1)


def _backward(kept: tuple[jax.Array, ...], d_out_BKGTC: jax.Array) -> tuple:
    q_BKGTC, k_BKSC, v_BKSC, segments_BT, out_BKGTC, log_BKGT1 = kept
    own = out_BKGTC.astype(jnp.float32) * d_out_BKGTC.astype(jnp.float32)
    own_BKGT1 = jnp.sum(own, axis=-1, keepdims=True)

    def block(sums: tuple, x: tuple, k_BKSC: jax.Array, v_BKSC: jax.Array) -> tuple:
        q_BKGTC, mine, place, d_out_BKGTC, own_BKGT1, log_BKGT1 = x
        scores_BKGTS = _scores(q_BKGTC, mine, place, k_BKSC, segments_BT)
        weights_BKGTS = jnp.exp(scores_BKGTS - log_BKGT1)
        d_weights_BKGTS = _product("BKTC,BKSC->BKTS", d_out_BKGTC, v_BKSC)
        d_scores_BKGTS = weights_BKGTS * (d_weights_BKGTS - own_BKGT1)
        d_scores_BKGTS = d_scores_BKGTS.astype(q_BKGTC.dtype)
        d_q_BKGTC = _product("BKTS,BKSC->BKTC", d_scores_BKGTS, k_BKSC).astype(q_BKGTC.dtype)
        # The contracted axis stands where a CPU's product is not several times slower.
        d_k_BKCS = _sum_of_products(q_BKGTC, d_scores_BKGTS)
        d_v_BKCS = _sum_of_products(d_out_BKGTC, weights_BKGTS.astype(q_BKGTC.dtype))
        return (sums[0] + d_k_BKCS, sums[1] + d_v_BKCS), d_q_BKGTC

    b, kv, t, size = k_BKSC.shape
    inputs = (q_BKGTC, *_places(segments_BT), d_out_BKGTC, own_BKGT1, log_BKGT1)
    d_q, d_kv = [], []
    for start, end in _spans(t):
        of = functools.partial(block, k_BKSC=k_BKSC[:, :, :end], v_BKSC=v_BKSC[:, :, :end])
        zeros = jnp.zeros((b, kv, size, end), jnp.float32)
        sums, d_q_BKGTC = _each_block(of, (zeros, zeros), inputs, start, end)
        d_q.append(d_q_BKGTC)
        later = ((0, 0), (0, 0), (0, 0), (0, t - end))  # keys after the span got nothing from it
        d_kv.append(tuple(jnp.pad(each, later) for each in sums))
    d_k_BKSC, d_v_BKSC = (
        sum(part).transpose(0, 1, 3, 2).astype(k_BKSC.dtype) for part in zip(*d_kv, strict=True)
    )
    return jnp.concatenate(d_q, axis=3), d_k_BKSC, d_v_BKSC, None


_in_blocks.defvjp(_forward, _backward)


def _places(segments_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Segment and place in the row of each query, the queries on the fourth of five axes."""
    t = segments_BT.shape[1]
    return segments_BT[:, None, None, :, None], jnp.arange(t)[None, None, None, :, None]


def _scores(
    q_BKGTC: jax.Array,
    mine_B11T1: jax.Array,
    place_111T1: jax.Array,
    k_BKSC: jax.Array,
    segments_BT: jax.Array,
) -> jax.Array:
    """Float32 scores (B,K,G,T,S) of a block of queries, -1e30 where a key is not visible."""
    scores_BKGTS = _product("BKTC,BKSC->BKTS", q_BKGTC, k_BKSC)
    s = k_BKSC.shape[2]
    theirs_B111S = segments_BT[:, None, None, None, :s]
    earlier_111TS = jnp.arange(s)[None, None, None, None, :] <= place_111T1
    return jnp.where(earlier_111TS & (mine_B11T1 == theirs_B111S), scores_BKGTS, -1e30)


def _product(equation: str, a_BKGTI: jax.Array, b: jax.Array) -> jax.Array:
    """Float32 product of queries' vectors, all that share a key head in one, with that head's."""
    joined = a_BKGTI.reshape(*a_BKGTI.shape[:2], -1, a_BKGTI.shape[-1])
    out = jnp.einsum(equation, joined, b, preferred_element_type=jnp.float32)
    return out.reshape(*a_BKGTI.shape[:4], -1)


def _sum_of_products(a_BKGTC: jax.Array, b_BKGTS: jax.Array) -> jax.Array:
    """Float32 products summed over the queries of a key head, (B,K,C,S)."""
    a_BKTC, b_BKTS = (x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in (a_BKGTC, b_BKGTS))
    return jnp.einsum("BKTC,BKTS->BKCS", a_BKTC, b_BKTS, preferred_element_type=jnp.float32)


def _spans(t: int) -> list[tuple[int, int]]:
    """At most SPANS stretches of queries, of whole blocks but for the last."""
    size = -(-t // (SPANS * QUERY_CHUNK)) * QUERY_CHUNK
    return [(start, min(start + size, t)) for start in range(0, t, size)]


def _each_block(
    block: Callable[[Any, tuple], tuple], carry: Any, inputs: tuple, start: int, end: int
) -> tuple:
    """`block(carry, inputs)` on the blocks of a span one after another; their outputs joined.

    Inputs and outputs have the queries on their fourth axis.
    """
    inputs = tuple(a[:, :, :, start:end] for a in inputs)
    count = (end - start) // QUERY_CHUNK
    if count < 2 or (end - start) % QUERY_CHUNK:
        return block(carry, inputs)

    def cut(a: jax.Array) -> jax.Array:
        return jnp.moveaxis(a.reshape(*a.shape[:3], count, -1, a.shape[-1]), 3, 0)

    def join(a: jax.Array) -> jax.Array:
        a = jnp.moveaxis(a, 0, 3)
        return a.reshape(*a.shape[:3], -1, a.shape[-1])

    carry, out = jax.lax.scan(block, carry, jax.tree.map(cut, inputs))
    return carry, jax.tree.map(join, out)


def dot_product(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segments_BT: jax.Array,
    *,
    implementation: str = "xla",
) -> jax.Array:
    """JAX's own attention: plain, or cuDNN's for half precision on a GPU."""
    same_BTS = segments_BT[:, :, None] == segments_BT[:, None, :]
    out_BTHC = jax.nn.dot_product_attention(
        q_BTHC,
        k_BTKC,
        v_BTKC,
        mask=same_BTS[:, None],
        is_causal=True,
        implementation=implementation,
    )
    return checkpoint_name(out_BTHC, "attention")


def _check_length(name: str, t: int) -> None:
    if t % 128:
        raise UsageError(
            f"{name} attention takes rows of a multiple of 128 tokens, not {t}; correct "
            "learn.row_tokens or choose model.attention = einsum"
        )


def flash(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segments_BT: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """The Triton kernel shipped with JAX; each key head is repeated for its queries.

    Raises UsageError for a length that its blocks do not divide. `interpret` runs it anywhere,
    slowly.
    """
    from jax.experimental.pallas.ops.gpu import attention as library

    _, t, h, size = q_BTHC.shape
    _check_length("flash", t)
    k_BTHC, v_BTHC = (jnp.repeat(a, h // a.shape[2], axis=2) for a in (k_BTKC, v_BTKC))
    out_BTHC = library.mha(
        q_BTHC,
        k_BTHC,
        v_BTHC,
        segments_BT,
        sm_scale=size**-0.5,
        causal=True,
        interpret=interpret,
    )
    return checkpoint_name(out_BTHC, "attention")


def splash(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segments_BT: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """The TPU kernel shipped with JAX, which skips blocks after the diagonal.

    Raises UsageError for a length that its blocks do not divide. `interpret` runs it anywhere,
    slowly.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    _, t, h, size = q_BTHC.shape
    _check_length("splash", t)
    side = next(n for n in (SPLASH_BLOCK, 512, 256, 128) if t % n == 0)
    kernel = library.make_splash_mha(
        library.MultiHeadMask([library.CausalMask((t, t))] * h),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=library.BlockSizes(
            block_q=side,
            block_kv=side,
            block_kv_compute=side,
            block_q_dkv=side,
            block_kv_dkv=side,
            block_kv_dkv_compute=side,
            use_fused_bwd_kernel=True,
        ),
        residual_checkpoint_name="attention",
        interpret=interpret,
    )

    def one(q_THC: jax.Array, k_TKC: jax.Array, v_TKC: jax.Array, s_T: jax.Array) -> jax.Array:
        q_HTC, k_KTC, v_KTC = (a.transpose(1, 0, 2) for a in (q_THC, k_TKC, v_TKC))
        out_HTC = kernel(q_HTC * size**-0.5, k_KTC, v_KTC, library.SegmentIds(s_T, s_T))
        return out_HTC.transpose(1, 0, 2)

    return jax.vmap(one)(q_BTHC, k_BTKC, v_BTKC, segments_BT)


KERNELS = {
    "einsum": einsum,
    "dot_product": dot_product,
    "cudnn": functools.partial(dot_product, implementation="cudnn"),
    "flash": flash,
    "splash": splash,
}


def attention(
    kernel: str, q_BTHC: jax.Array, k_BTKC: jax.Array, v_BTKC: jax.Array, segments_BT: jax.Array
) -> jax.Array:
    """A kernel by its name; on a mesh each device takes its own sequences and heads.

    Where the key heads do not divide by the mesh's tensor axis, each device computes all heads.
    """
    mesh = sharding.ambient()
    if mesh is None:
        return KERNELS[kernel](q_BTHC, k_BTKC, v_BTKC, segments_BT)
    rows, _, heads, _ = sharding.spec(("batch", None, "kv_head", None), k_BTKC.shape, mesh, "train")
    each = PartitionSpec(rows, None, heads, None)
    pieces = (each, each, each, PartitionSpec(rows))
    on_device = sharding.per_device(KERNELS[kernel], pieces, each, opaque=True)
    return on_device(q_BTHC, k_BTKC, v_BTKC, segments_BT)
