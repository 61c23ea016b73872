"""Matrices cut into panels of some columns, which a CPU multiplies by few rows as they lie.

The library that XLA calls there packs a product's right operand first, unless it is as narrow as a
panel. With the 16 rows of a decoding step that takes half as long as multiplying.
"""

from __future__ import annotations

import math

import flax.struct
import jax
import jax.numpy as jnp

WIDTH = 64  # columns of a panel


class Panels(flax.struct.PyTreeNode):
    """A matrix (I, O), or a stack of them, as (N, I, W) with zeros behind the last column.

    `outs` are the sizes of the axes that its outputs are made of.
    """

    panels_NIW: jax.Array
    outs: tuple[int, ...] = flax.struct.field(pytree_node=False)

    def multiply(self, x_RI: jax.Array) -> jax.Array:
        """Float32 product (R, O)."""
        n, _, width = self.panels_NIW.shape
        x_NRI = jnp.broadcast_to(x_RI, (n, *x_RI.shape))
        out_NRW = jnp.einsum(
            "NRI,NIW->NRW", x_NRI, self.panels_NIW, preferred_element_type=jnp.float32
        )
        out_RO = out_NRW.swapaxes(0, 1).reshape(len(x_RI), n * width)
        return out_RO[:, : math.prod(self.outs)]


def cut(w: jax.Array, *, stack: int = 0, ins: int = 1) -> Panels:
    """The panels of a matrix with `stack` leading axes and then `ins` that its inputs are of."""
    lead, outs = w.shape[:stack], w.shape[stack + ins :]
    size_in, size_out = math.prod(w.shape[stack : stack + ins]), math.prod(outs)
    n = -(-size_out // WIDTH)
    w = w.reshape(-1, size_in, size_out)
    w = jnp.pad(w, ((0, 0), (0, 0), (0, n * WIDTH - size_out)))
    w = w.reshape(*lead, size_in, n, WIDTH).swapaxes(-3, -2)
    return Panels(w, outs)
