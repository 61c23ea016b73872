"""Mixture of experts: routing and the chosen experts' feed-forward, for sampler and learner alike.

A router scores all experts of a layer; a token goes through the few with the highest probability,
and their outputs are summed with those probabilities as weights (Qwen3 technical report, arXiv
2505.09388). No token is dropped, and none depends on its neighbours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from spade_jax.policy import sharding

Weights = dict[str, jax.Array]  # router (D,X), gate and up (X,D,F), down (X,F,D)

MATRICES = ("gate", "up", "down")
MORE = "more_portions"  # scope of a loop that mostly has no round

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
    divided: int = 1,
) -> jax.Array:
    """One product over the picks sorted by expert, each expert's rows together. (N, D).

    A pick that names none of the experts in `p` costs no product and adds nothing. With `layer`,
    `p` holds the matrices of all layers: those of the others are groups without rows, which are
    never read, while a layer cut out of them would be copied before the product. Where `p` has one
    part of the experts, `divided` among so many devices, rows are gone through in portions.
    """
    p = {name: p[name] for name in MATRICES}
    if divided > 1 and layer is None:
        return _in_portions(divided, p, x_ND, chosen_NP, weight_NP)
    experts = p["gate"].shape[-3]
    order_M, sizes_X = _sort(chosen_NP, experts)
    # What belongs to rows past the last expert's is selected away, gradients too: they hold
    # whatever the product leaves there.
    own_M = jnp.arange(len(order_M)) < jnp.sum(sizes_X)
    if layer is not None:
        groups = jnp.zeros((len(p["gate"]) * experts,), jnp.int32)
        sizes_X = jax.lax.dynamic_update_slice(groups, sizes_X, (layer * experts,))
    x_MD = jnp.where(own_M[:, None], x_ND[order_M // chosen_NP.shape[1]], 0)
    y_MD = _products(p, x_MD, jnp.where(own_M, weight_NP.reshape(-1)[order_M], 0), sizes_X)
    y_MD = jnp.where(own_M[:, None], y_MD, 0)
    return jnp.sum(y_MD[jnp.argsort(order_M)].reshape(*chosen_NP.shape, -1), axis=1)


def _sort(chosen_NP: jax.Array, experts: int) -> tuple[jax.Array, jax.Array]:
    """Picks in the order of their experts, those of others last, and the number of each expert."""
    chosen_M = chosen_NP.reshape(-1)
    chosen_M = jnp.where((chosen_M >= 0) & (chosen_M < experts), chosen_M, experts)
    sizes_X = jnp.sum(chosen_M[:, None] == jnp.arange(experts)[None], axis=0, dtype=jnp.int32)
    return jnp.argsort(chosen_M, stable=True), sizes_X


def _products(p: Weights, x_MD: jax.Array, weight_M: jax.Array, sizes_X: jax.Array) -> jax.Array:
    """Weighted outputs (M, D) of rows sorted by expert; anything past the last expert's."""

    def product(a_MI: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.ragged_dot(a_MI, w.reshape(-1, *w.shape[-2:]).astype(a_MI.dtype), sizes_X)

    gated_MF = jax.nn.silu(product(x_MD, p["gate"])) * product(x_MD, p["up"])
    # The weights enter before the last product, where a row is not as wide as after it.
    return product(gated_MF * weight_M[:, None].astype(gated_MF.dtype), p["down"])


# -- a part of the experts --------------------------------------------------------------------


class _Portion(NamedTuple):
    """Some rows of the sorted picks: the pick of each, and each pick's place among them."""

    picks_M: jax.Array
    sizes_X: jax.Array
    place_NP: jax.Array
    here_NP: jax.Array  # whether a pick is among them at all

    def collect(self, values_MI: jax.Array) -> jax.Array:
        """The sums (N, I) of each token's rows."""
        return jnp.sum(self.spread(values_MI), axis=1)

    def spread(self, values_MI: jax.Array) -> jax.Array:
        """Each pick's row (N, P, I), 0 where it is elsewhere."""
        return jnp.where(self.here_NP[..., None], values_MI[self.place_NP], 0)


def _sum_of_portions(
    divided: int, chosen_NP: jax.Array, experts: int, of: Callable[[_Portion], Any]
) -> Any:
    """The sum of `of(portion)` over as many rows as there are.

    All picks of all tokens may fall on these experts, though hardly ever more than a quarter above
    their share do. A portion has that many rows; the others are in a loop that mostly has no round.
    """
    order_M, sizes_X = _sort(chosen_NP, experts)
    count, end_X = jnp.sum(sizes_X), jnp.cumsum(sizes_X)
    rows = min(len(order_M), -(-5 * len(order_M) // (4 * divided * 128)) * 128)
    place_NP = jnp.argsort(order_M).reshape(chosen_NP.shape)
    order_M = jnp.pad(order_M, (0, -len(order_M) % rows))

    def portion(start: jax.Array | int) -> _Portion:
        inside_X = jnp.clip(jnp.stack([end_X - sizes_X, end_X]) - start, 0, rows)
        return _Portion(
            picks_M=jax.lax.dynamic_slice(order_M, (start,), (rows,)),
            sizes_X=inside_X[1] - inside_X[0],
            place_NP=jnp.clip(place_NP - start, 0, rows - 1),
            here_NP=(place_NP >= start) & (place_NP < jnp.minimum(start + rows, count)),
        )

    def add(i: jax.Array, sums: Any) -> Any:
        return jax.tree.map(jnp.add, sums, of(portion(i * rows)))

    first = of(portion(0))
    with jax.named_scope(MORE):
        return jax.lax.fori_loop(1, (count + rows - 1) // rows, add, first)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_portions(
    divided: int, p: Weights, x_ND: jax.Array, chosen_NP: jax.Array, weight_NP: jax.Array
) -> jax.Array:
    """`ragged` for the rows there are, not for all picks.

    Its gradient computes a portion again rather than keep it. What rows past the last expert's
    hold is never collected, and no product sums over them.
    """
    picks, weight_M = chosen_NP.shape[1], weight_NP.reshape(-1)

    def outputs(r: _Portion) -> jax.Array:
        x_MD = x_ND[r.picks_M // picks]
        return r.collect(_products(p, x_MD, weight_M[r.picks_M], r.sizes_X))

    return _sum_of_portions(divided, chosen_NP, len(p["gate"]), outputs)


def _in_portions_forward(divided: int, *given: Any) -> tuple[jax.Array, tuple]:
    return _in_portions(divided, *given), given


def _in_portions_backward(divided: int, given: tuple, d_y_ND: jax.Array) -> tuple:
    p, x_ND, chosen_NP, weight_NP = given
    picks, weight_M = chosen_NP.shape[1], weight_NP.reshape(-1)

    def gradients(r: _Portion) -> tuple:
        def outputs(p: Weights, x_MD: jax.Array, weight_M: jax.Array) -> jax.Array:
            return _products(p, x_MD, weight_M, r.sizes_X)

        tokens_M = r.picks_M // picks
        _, back = jax.vjp(outputs, p, x_ND[tokens_M], weight_M[r.picks_M])
        d_p, d_x_MD, d_weight_M = back(d_y_ND[tokens_M])
        return d_p, r.collect(d_x_MD), r.spread(d_weight_M[:, None])[..., 0]

    d_p, d_x_ND, d_weight_NP = _sum_of_portions(divided, chosen_NP, len(p["gate"]), gradients)
    return d_p, d_x_ND, None, d_weight_NP


_in_portions.defvjp(_in_portions_forward, _in_portions_backward)


PRODUCTS = {"dense": dense, "ragged": ragged}
STACKED = ("ragged",)  # those that take the matrices of all layers


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
        copied=tuple(name for name in mesh.shape if name in apart - {*experts, *ffn}),
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
    copied: tuple[str, ...] = (),
) -> jax.Array:
    """`feed_forward` on one device, over mesh axes.

    The experts are `divided` along the first; devices along `gathered` have other tokens and other
    experts or another part of their width, those along `summed` the same tokens, and those along
    `copied` other tokens and the same experts.
    """
    b, t, d = x_BTD.shape
    x_ND = x_BTD.reshape(b * t, d)
    routed = (x_ND, *route(x_ND, p["router"], picks, normalise=normalise))
    for axis in gathered:
        routed = tuple(jax.lax.all_gather(each, axis, tiled=True) for each in routed)
    x_ND, chosen_NP, weight_NP = routed
    if divided:
        chosen_NP -= jax.lax.axis_index(divided) * p["gate"].shape[-3]
    more = {} if product == "dense" else {"layer": layer, "divided": jax.lax.axis_size(divided)}
    # Said here, since a loop does not find out by itself; in the gradient these are sums.
    p = jax.lax.pcast(p, copied, to="varying")
    x_ND, weight_NP = jax.lax.pcast((x_ND, weight_NP), summed, to="varying")
    y_ND = PRODUCTS[product](p, x_ND, chosen_NP, weight_NP, **more)
    if summed:
        y_ND = jax.lax.psum(y_ND, summed)
    for axis in reversed(gathered):
        y_ND = jax.lax.psum_scatter(y_ND, axis, tiled=True)
    return y_ND.reshape(b, t, d)
