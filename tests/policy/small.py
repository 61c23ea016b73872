"""Small random models whose weights are far enough from their initial values to matter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from spade_jax.policy import model
from spade_jax.policy.model import ModelConfig, Parameter, Params

SMALL = ModelConfig(
    vocab=64,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=8,
    ffn=48,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    tied=True,
    max_positions=512,
)
UNTIED = dataclasses.replace(SMALL, tied=False)
MOE = dataclasses.replace(
    UNTIED, experts=4, experts_per_token=2, expert_ffn=24, normalise_picks=True
)


def random_params(c: ModelConfig, seed: int = 0) -> Params:
    """Weights well above their initial size and norms away from one, so that all of them show."""
    rng = np.random.default_rng(seed)

    def draw(p: Parameter) -> jax.Array:
        noise = rng.standard_normal(p.shape, np.float32)
        return jnp.asarray(1.0 + 0.2 * noise if p.init_std is None else 5.0 * p.init_std * noise)

    return jax.tree.map(draw, model.declare(c), is_leaf=model.is_parameter)
