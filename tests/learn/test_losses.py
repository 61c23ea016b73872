"""Losses per token, against numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.learn import losses

LOW, HIGH = 0.2, 0.28


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.0, -2.0, 2.0, False),
        (1.5, 1.0, -1.28, True),  # beyond the upper bound, no more to gain
        (1.5, -1.0, 1.5, False),  # beyond it the wrong way: still pulled back
        (0.5, 1.0, -0.5, False),  # below the lower bound the wrong way
        (0.5, -1.0, 0.8, True),
        (1.25, 2.0, -2.5, False),  # inside both
        (0.9, -2.0, 1.8, False),
        (1.5, 0.0, 0.0, False),
    ],
)
def test_clipped_loss(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    logp = jnp.array([math.log(ratio) - 2.0])
    old, a = jnp.array([-2.0]), jnp.array([advantage])
    got, cut = losses.clipped_policy_loss(logp, old, a, LOW, HIGH)
    np.testing.assert_allclose(got, [loss], rtol=1e-6)
    assert cut.tolist() == [clipped]

    def total(logp: jax.Array) -> jax.Array:
        return jnp.sum(losses.clipped_policy_loss(logp, old, a, LOW, HIGH)[0])

    slope = 0.0 if clipped else -ratio * advantage
    np.testing.assert_allclose(jax.grad(total)(logp), [slope], rtol=1e-6, atol=1e-7)


def test_on_policy_gradient_is_minus_the_advantage() -> None:
    logp, advantage = jnp.array([-0.5, -3.0, -1.0]), jnp.array([1.5, -0.25, 0.0])

    def total(now: jax.Array) -> jax.Array:
        return jnp.sum(losses.clipped_policy_loss(now, logp, advantage, LOW, HIGH)[0])

    np.testing.assert_allclose(jax.grad(total)(logp), -advantage, rtol=1e-6)


def test_importance_weight() -> None:
    old = jnp.log(jnp.array([0.6, 0.2, 0.5, 0.5]))
    behaviour = jnp.log(jnp.array([0.4, 0.8, 0.5, 0.1]))
    weight = losses.importance_weight(old, behaviour, 2.0)
    np.testing.assert_allclose(weight, [1.5, 0.25, 1.0, 2.0], rtol=1e-6)

    def total(old: jax.Array) -> jax.Array:
        return jnp.sum(losses.importance_weight(old, behaviour, 2.0))

    np.testing.assert_array_equal(jax.grad(total)(old), 0.0)


def test_k3() -> None:
    # d = log 2, -log 2, 0: 2 - 0.693147 - 1; 0.5 + 0.693147 - 1; 0
    reference = jnp.log(jnp.array([0.8, 0.2, 0.3]))
    logp = jnp.log(jnp.array([0.4, 0.4, 0.3]))
    value = losses.kl_k3(logp, reference)
    np.testing.assert_allclose(value, [0.3068528, 0.1931472, 0.0], atol=1e-6)
    # its slope in logp is 1 - exp(d)
    slope = jax.grad(lambda x: jnp.sum(losses.kl_k3(x, reference)))(logp)
    np.testing.assert_allclose(slope, [-1.0, 0.5, 0.0], atol=1e-6)


@pytest.mark.parametrize("d", [-1.5, -0.2, 0.0, 0.3, 1.0])
def test_gradient_of_k3_by_finite_differences(d: float) -> None:
    def value(logp: float) -> float:
        return float(losses.kl_k3(jnp.float32(logp), jnp.float32(logp0 + d)))

    logp0, eps = -2.0, 2e-2
    difference = (value(logp0 + eps) - value(logp0 - eps)) / (2 * eps)
    slope = jax.grad(losses.kl_k3)(jnp.float32(logp0), jnp.float32(logp0 + d))
    assert float(slope) == pytest.approx(difference, abs=1e-3)


def test_k3_estimates_the_divergence() -> None:
    """Its mean under the current distribution is KL(now || reference), never negative."""
    now, reference = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    value = np.asarray(losses.kl_k3(jnp.log(jnp.array(now)), jnp.log(jnp.array(reference))))
    assert value.min() >= 0
    assert now @ value == pytest.approx(now @ np.log(now / reference), abs=1e-6)
