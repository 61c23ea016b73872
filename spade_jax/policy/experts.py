"""Mixture of experts: routing and the chosen experts' feed-forward, for sampler and learner alike.

A router scores all experts of a layer; a token goes through the few with the highest probability,
and their outputs are summed with those probabilities as weights (Qwen3 technical report, arXiv
2505.09388). No token is dropped, and none depends on its neighbours.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from spade_jax.policy import sharding

Weights = dict[str, jax.Array]  # router (D,X), gate and up (X,D,F), down (X,F,D)

_AXES = {
    "router": ("model", "router"),
    "gate": ("expert", "model", "ffn"),
    "up": ("expert", "model", "ffn"),
    "down": ("expert", "ffn", "model"),
}


def route(
    x_ND: jax.Array, router_DX: jax.Array, picks: int, *, normalise: bool
) -> tuple[jax.Array, jax.Array]:
    """The experts (N, P) of each token and the weight of each, float32.

    `normalise` lets the weights of a token's picks sum to 1; otherwise they are what the softmax
    over all experts gave them.
    """
    scores_NX = jnp.einsum(
        "ND,DX->NX", x_ND, router_DX.astype(x_ND.dtype), preferred_element_type=jnp.float32
    )
    weight_NP, chosen_NP = jax.lax.top_k(jax.nn.softmax(scores_NX, axis=-1), picks)
    if normalise:
        weight_NP = weight_NP / jnp.sum(weight_NP, axis=-1, keepdims=True)
    return chosen_NP, weight_NP


def dense(p: Weights, x_ND: jax.Array, chosen_NP: jax.Array, weight_NP: jax.Array) -> jax.Array:
    """Every expert for every token, weighted by 0 where it was not chosen. (N, D)."""
    gate_XDF, up_XDF, down_XFD = (p[name].astype(x_ND.dtype) for name in ("gate", "up", "down"))
    picked_NPX = jax.nn.one_hot(chosen_NP, len(gate_XDF), dtype=weight_NP.dtype)
    share_NX = jnp.einsum("NPX,NP->NX", picked_NPX, weight_NP)
    gated_XNF = jax.nn.silu(jnp.einsum("ND,XDF->XNF", x_ND, gate_XDF))
    gated_XNF *= jnp.einsum("ND,XDF->XNF", x_ND, up_XDF)
    gated_XNF *= share_NX.T[:, :, None].astype(x_ND.dtype)
    return jnp.einsum("XNF,XFD->ND", gated_XNF, down_XFD)


def ragged(
    p: Weights,
    x_ND: jax.Array,
    chosen_NP: jax.Array,
    weight_NP: jax.Array,
    layer: jax.Array | None = None,
) -> jax.Array:
    """One product over the picks sorted by expert, each expert's rows together. (N, D).

    A pick that names none of the experts in `p` costs no product and adds nothing. With `layer`,
    `p` holds the matrices of all layers: those of the others are groups without rows, which are
    never read, while a layer cut out of them would be copied before the product.
    """
    n, picks = chosen_NP.shape
    experts = p["gate"].shape[-3]
    chosen_M = chosen_NP.reshape(n * picks)
    chosen_M = jnp.where((chosen_M >= 0) & (chosen_M < experts), chosen_M, experts)
    order_M = jnp.argsort(chosen_M, stable=True)
    sizes_X = jnp.sum(chosen_M[:, None] == jnp.arange(experts)[None], axis=0, dtype=jnp.int32)
    # Rows past the last expert's hold whatever the product leaves there: selected away before and
    # after, so that neither value nor gradient comes from them.
    own_M1 = (chosen_M[order_M] < experts)[:, None]
    if layer is not None:
        groups = jnp.zeros((len(p["gate"]) * experts,), jnp.int32)
        sizes_X = jax.lax.dynamic_update_slice(groups, sizes_X, (layer * experts,))

    def product(a_MI: jax.Array, w: jax.Array) -> jax.Array:
        w = w.reshape(-1, *w.shape[-2:])
        return jax.lax.ragged_dot(a_MI, w.astype(a_MI.dtype), sizes_X)

    x_MD = jnp.where(own_M1, x_ND[order_M // picks], 0)
    gated_MF = jax.nn.silu(product(x_MD, p["gate"])) * product(x_MD, p["up"])
    # The weights enter before the last product, where a row is not as wide as after it.
    gated_MF *= weight_NP.reshape(n * picks)[order_M][:, None].astype(gated_MF.dtype)
    y_MD = product(jnp.where(own_M1, gated_MF, 0), p["down"])
    y_NPD = jnp.where(own_M1, y_MD, 0)[jnp.argsort(order_M)].reshape(n, picks, -1)
    return jnp.sum(y_NPD, axis=1)


PRODUCTS = {"dense": dense, "ragged": ragged}
STACKED = ("ragged",)  # those that take the matrices of all layers
MATRICES = ("gate", "up", "down")


def feed_forward(
    p: Weights,
    x_BTD: jax.Array,
    *,
    picks: int,
    normalise: bool,
    product: str,
    layer: jax.Array | None = None,
) -> jax.Array:
    """Routing and the chosen experts' outputs, summed. `p` holds the router too. (B, T, D).

    With `layer` the experts' matrices in `p` are those of all layers (see STACKED). On a mesh each
    device routes its own tokens and computes what its experts, or its part of their width, add to
    the tokens of all devices that it shares the experts with.
    """
    p = {name: p[name] for name in _AXES}
    compute = functools.partial(_compute, picks=picks, normalise=normalise, product=product)
    mesh = sharding.ambient()
    if mesh is None:
        return compute(p, x_BTD, layer)
    tokens = sharding.split(("batch", "length", None), x_BTD.shape, mesh, "sample")
    axes = {name: ("layer",) * (p[name].ndim - len(a)) + a for name, a in _AXES.items()}
    experts, _, ffn = sharding.split(axes["gate"], p["gate"].shape, mesh, "sample")[-3:]
    weights = {name: sharding.spec(axes[name], w.shape, mesh, "sample") for name, w in p.items()}
    apart = {name for names in tokens for name in names}
    compute = functools.partial(
        compute,
        divided=experts,
        gathered=tuple(name for name in (*experts, *ffn) if name in apart),
        summed=tuple(name for name in (*experts, *ffn) if name not in apart),
    )
    x = PartitionSpec(*(names or None for names in tokens))
    return sharding.per_device(compute, (weights, x, PartitionSpec()), x)(p, x_BTD, layer)


def _compute(
    p: Weights,
    x_BTD: jax.Array,
    layer: jax.Array | None,
    *,
    picks: int,
    normalise: bool,
    product: str,
    divided: tuple[str, ...] = (),
    gathered: tuple[str, ...] = (),
    summed: tuple[str, ...] = (),
) -> jax.Array:
    """`feed_forward` on one device, over mesh axes.

    The experts are `divided` along the first; devices along `gathered` have other tokens and other
    experts or another part of their width, those along `summed` the same tokens.
    """
    b, t, d = x_BTD.shape
    x_ND = x_BTD.reshape(b * t, d)
    routed = (x_ND, *route(x_ND, p["router"], picks, normalise=normalise))
    for axis in gathered:
        routed = tuple(jax.lax.all_gather(each, axis, tiled=True) for each in routed)
    x_ND, chosen_NP, weight_NP = routed
    if divided:
        chosen_NP -= jax.lax.axis_index(divided) * p["gate"].shape[-3]
    stacked = () if layer is None else (layer,)
    y_ND = PRODUCTS[product](p, x_ND, chosen_NP, weight_NP, *stacked)
    if summed:
        y_ND = jax.lax.psum(y_ND, summed)
    for axis in reversed(gathered):
        y_ND = jax.lax.psum_scatter(y_ND, axis, tiled=True)
    return y_ND.reshape(b, t, d)
