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
    """A matrix (I, O) as (N, I, W), zeros behind its last column; `outs` are its outputs' axes."""

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


def cut(w: jax.Array, ins: int = 1) -> Panels:
    """The panels of a matrix whose inputs are of its first `ins` axes."""
    size_in, outs = math.prod(w.shape[:ins]), w.shape[ins:]
    n = -(-math.prod(outs) // WIDTH)
    w_IO = w.reshape(size_in, -1)
    w_IO = jnp.pad(w_IO, ((0, 0), (0, n * WIDTH - w_IO.shape[1])))
    return Panels(w_IO.reshape(size_in, n, WIDTH).swapaxes(0, 1), outs)
