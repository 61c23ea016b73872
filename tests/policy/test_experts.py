"""Experts: routing by hand, both forms of the product equal, tokens independent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import experts
from tests.policy.small import MOE, random_params

PICKS = MOE.experts_per_token
RNG = np.random.default_rng(0)
X_ND = jnp.asarray(RNG.standard_normal((24, MOE.width)), jnp.float32)


@pytest.fixture(scope="module")
def layer() -> experts.Weights:
    """The feed-forward of one layer."""
    layers = random_params(MOE)["layers"]
    return {name: layers[name][0] for name in ("router", "gate", "up", "down")}


def test_routing_by_hand() -> None:
    # scores 0, 1, 3, 1 give probabilities e^s / 26.5220: 0.0377, 0.1025, 0.7573, 0.1025
    x_ND, router_DX = jnp.ones((1, 1)), jnp.array([[0.0, 1.0, 3.0, 1.0]])
    chosen, weight = experts.route(x_ND, router_DX, 2, normalise=False)
    assert chosen.tolist() == [[2, 1]], "of equal scores the first"
    np.testing.assert_allclose(weight, [[0.7573132, 0.1024912]], rtol=1e-5)
    # 0.7573 / 0.8598
    _, weight = experts.route(x_ND, router_DX, 2, normalise=True)
    np.testing.assert_allclose(weight, [[0.8807971, 0.1192029]], rtol=1e-5)
    _, weight = experts.route(x_ND.astype(jnp.bfloat16), router_DX, 2, normalise=True)
    assert weight.dtype == jnp.float32


def test_one_expert_by_hand() -> None:
    # silu(1 * 2) * (1 * 3) * 0.5 = 1.7615942 * 3 * 0.5
    p = {"gate": 2.0, "up": 3.0, "down": 0.5}
    p = {name: jnp.array([0.0, value]).reshape(2, 1, 1) for name, value in p.items()}
    for form in (experts.dense, experts.ragged):
        y = form(p, jnp.ones((1, 1)), jnp.array([[1]]), jnp.array([[0.25]]))
        np.testing.assert_allclose(y, [[0.25 * 2.6423912]], rtol=1e-6)


def outputs_and_gradients(form, p: experts.Weights, chosen, weight) -> tuple:
    def loss(p: experts.Weights, x_ND: jax.Array, weight_NP: jax.Array) -> tuple:
        y_ND = form(p, x_ND, chosen, weight_NP)
        return jnp.sum(jnp.sin(y_ND)), y_ND

    differentiate = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, y_ND), grads = jax.jit(differentiate)(p, X_ND, weight)
    return y_ND, grads


@pytest.mark.parametrize("first", [0, 2], ids=["all experts", "the last two experts"])
def test_both_forms_are_one_function(layer: experts.Weights, first: int) -> None:
    """Also where a part of the experts is elsewhere, and their picks add nothing here."""
    chosen, weight = experts.route(X_ND, layer["router"], PICKS, normalise=True)
    here = {name: layer[name][first:] for name in ("gate", "up", "down")}
    y, grads = outputs_and_gradients(experts.dense, here, chosen - first, weight)
    other, other_grads = outputs_and_gradients(experts.ragged, here, chosen - first, weight)
    np.testing.assert_allclose(other, y, atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), other_grads, grads
    )
    idle = np.all(np.asarray(chosen) < first, axis=1)
    assert not np.any(y[idle]) and np.all(np.any(y[~idle], axis=1))
    assert idle.any() == (first > 0), "some tokens have no expert here"


@pytest.mark.parametrize("first", [0, 3], ids=["all picks, in several portions", "a few"])
def test_portions_change_nothing(layer: experts.Weights, first: int) -> None:
    """Of 384 picks a portion has 256 with the experts divided in two: 384 are here, or about 96."""
    x_ND = jnp.asarray(RNG.standard_normal((192, MOE.width)), jnp.float32)
    chosen, weight = experts.route(x_ND, layer["router"], PICKS, normalise=True)
    here = {name: layer[name][first:] for name in experts.MATRICES}

    def loss(p: experts.Weights, x_ND: jax.Array, weight_NP: jax.Array, divided: int) -> jax.Array:
        y_ND = experts.ragged(p, x_ND, chosen - first, weight_NP, divided=divided)
        return jnp.sum(jnp.sin(y_ND))

    differentiate = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)), static_argnums=3)
    whole, portions = (differentiate(here, x_ND, weight, divided) for divided in (1, 2))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), portions, whole
    )


def test_matrices_of_all_layers_and_a_number(layer: experts.Weights) -> None:
    stacked = random_params(MOE)["layers"]
    chosen, weight = experts.route(X_ND, layer["router"], PICKS, normalise=True)
    for number in range(MOE.layers):
        own = {name: stacked[name][number] for name in experts.MATRICES}
        expected = experts.ragged(own, X_ND, chosen, weight)
        y = experts.ragged(stacked, X_ND, chosen, weight, jnp.asarray(number))
        np.testing.assert_allclose(y, expected, atol=1e-6)


def test_every_expert_chosen_is_the_weighted_sum(layer: experts.Weights) -> None:
    x = np.asarray(X_ND, np.float64)
    p = {name: np.asarray(value, np.float64) for name, value in layer.items()}
    scores = np.exp(x @ p["router"])
    expected = 0.0
    for i in range(MOE.experts):
        gate = x @ p["gate"][i]
        y = (gate / (1 + np.exp(-gate)) * (x @ p["up"][i])) @ p["down"][i]
        expected += scores[:, i : i + 1] / scores.sum(axis=1, keepdims=True) * y
    for product in experts.PRODUCTS:
        y = experts.feed_forward(
            layer, X_ND[None], picks=MOE.experts, normalise=False, product=product
        )
        np.testing.assert_allclose(y[0], expected, atol=1e-5)


@pytest.mark.parametrize("product", experts.PRODUCTS)
def test_tokens_do_not_see_each_other(layer: experts.Weights, product: str) -> None:
    def feed_forward(x_BTD: jax.Array) -> jax.Array:
        return experts.feed_forward(layer, x_BTD, picks=PICKS, normalise=True, product=product)

    together = feed_forward(X_ND.reshape(4, 6, -1)).reshape(X_ND.shape)
    alone = feed_forward(X_ND[7].reshape(1, 1, -1))[0, 0]
    np.testing.assert_allclose(together[7], alone, atol=1e-6)
