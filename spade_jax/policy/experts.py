"""Mixture of experts: routing and the chosen experts' feed-forward, for sampler and learner alike.

A router scores all experts of a layer; a token goes through the few with the highest probability,
and their outputs are summed with those probabilities as weights (Qwen3 technical report, arXiv
2505.09388). No token is dropped, and none depends on its neighbours.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Weights = dict[str, jax.Array]  # gate and up (X,D,F), down (X,F,D)


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


def ragged(p: Weights, x_ND: jax.Array, chosen_NP: jax.Array, weight_NP: jax.Array) -> jax.Array:
    """One product over the picks sorted by expert, each expert's rows together. (N, D).

    A pick that names none of the experts in `p` costs no product and adds nothing.
    """
    n, picks = chosen_NP.shape
    experts = len(p["gate"])
    chosen_M = chosen_NP.reshape(n * picks)
    chosen_M = jnp.where((chosen_M >= 0) & (chosen_M < experts), chosen_M, experts)
    order_M = jnp.argsort(chosen_M, stable=True)
    sizes_X = jnp.sum(chosen_M[:, None] == jnp.arange(experts)[None], axis=0, dtype=jnp.int32)
    # Rows past the last expert's hold whatever the product leaves there: selected away before and
    # after, so that neither value nor gradient comes from them.
    own_M1 = (chosen_M[order_M] < experts)[:, None]

    def product(a_MI: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.ragged_dot(a_MI, w.astype(a_MI.dtype), sizes_X)

    x_MD = jnp.where(own_M1, x_ND[order_M // picks], 0)
    gated_MF = jax.nn.silu(product(x_MD, p["gate"])) * product(x_MD, p["up"])
    y_MD = product(jnp.where(own_M1, gated_MF, 0), p["down"])
    y_MD *= weight_NP.reshape(n * picks)[order_M][:, None].astype(y_MD.dtype)
    y_NPD = jnp.where(own_M1, y_MD, 0)[jnp.argsort(order_M)].reshape(n, picks, -1)
    return jnp.sum(y_NPD, axis=1)


PRODUCTS = {"dense": dense, "ragged": ragged}


def feed_forward(
    p: Weights, x_BTD: jax.Array, *, picks: int, normalise: bool, product: str
) -> jax.Array:
    """Routing and the chosen experts' outputs, summed. `p` holds the router too. (B, T, D)."""
    b, t, d = x_BTD.shape
    x_ND = x_BTD.reshape(b * t, d)
    chosen_NP, weight_NP = route(x_ND, p["router"], picks, normalise=normalise)
    return PRODUCTS[product](p, x_ND, chosen_NP, weight_NP).reshape(b, t, d)
