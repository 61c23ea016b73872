"""Matrices in panels: the same products, whatever the width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import model, panels


def test_the_panels_of_a_matrix_by_hand() -> None:
    w = jnp.arange(2 * 65, dtype=jnp.float32).reshape(2, 65)
    cut = panels.cut(w)
    assert cut.panels_NIW.shape == (2, 2, 64) and cut.outs == (65,)
    np.testing.assert_array_equal(cut.panels_NIW[0], w[:, :64])
    np.testing.assert_array_equal(cut.panels_NIW[1, :, 0], [64.0, 129.0])
    assert not cut.panels_NIW[1, :, 1:].any(), "what fills up the last panel is zero"
    np.testing.assert_array_equal(cut.multiply(jnp.array([[1.0, 2.0]])), w[:1] + 2 * w[1:])


@pytest.mark.parametrize(("ins", "shape"), [(1, (24, 3, 50)), (2, (3, 8, 64)), (1, (24, 5))])
def test_a_linear_map_is_the_same_in_panels(ins: int, shape: tuple[int, ...]) -> None:
    x_BTI = jax.random.normal(jax.random.key(0), (2, 3, 24))
    w = jax.random.normal(jax.random.key(1), shape)
    plain, cut = (model.linear(x_BTI, each, ins) for each in (w, panels.cut(w, ins)))
    assert cut.shape == plain.shape == (2, 3, *shape[ins:])
    np.testing.assert_allclose(cut, plain, atol=1e-5)
    half = model.linear(x_BTI.astype(jnp.bfloat16), panels.cut(w.astype(jnp.bfloat16), ins), ins)
    assert half.dtype == jnp.bfloat16
