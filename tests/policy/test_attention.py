"""Attention: every kernel computes the definition, in value and gradient."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax import config_rules
from spade_jax.policy import attention, cached, experts, kernels
from spade_jax.policy.kernels import Kernels
from spade_jax.types import UsageError

B, T, H, K, C = 2, 256, 4, 2, 8
RNG = np.random.default_rng(0)
Q, K_, V = (jnp.asarray(RNG.standard_normal((B, T, n, C)), jnp.float32) for n in (H, K, K))
SEGMENTS = jnp.asarray([[1] * 90 + [2] * 130 + [0] * 36, [1] * T])
HERE = {
    "einsum": attention.einsum,
    "dot_product": attention.dot_product,
    "flash": functools.partial(attention.flash, interpret=True),
    "splash": functools.partial(attention.splash, interpret=True),
}


def visible() -> np.ndarray:
    """What a query (third axis) may see (fourth)."""
    same = np.asarray(SEGMENTS)[:, :, None] == np.asarray(SEGMENTS)[:, None, :]
    return (same & np.tri(T, dtype=bool))[:, None]


def definition(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Softmax of all scores, each key and value head repeated for its queries."""
    k, v = (jnp.repeat(a, H // K, axis=2) for a in (k, v))
    scores = jnp.einsum("BTHC,BSHC->BHTS", q, k) / np.sqrt(C)
    weights = jax.nn.softmax(jnp.where(visible(), scores, -jnp.inf), axis=-1)
    return jnp.einsum("BHTS,BSHC->BTHC", weights, v)


def value_and_gradients(attend: Callable) -> tuple:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = attend(q, k, v)
        return jnp.sum(jnp.sin(out)), out

    (_, out), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(Q, K_, V)
    return out, *grads


@pytest.fixture(scope="module")
def expected() -> tuple:
    return value_and_gradients(definition)


@pytest.mark.parametrize("name", HERE)
def test_every_kernel_is_the_definition(
    expected: tuple, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SPLASH_BLOCK", 128)
    got = value_and_gradients(lambda q, k, v: HERE[name](q, k, v, SEGMENTS))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("sizes", [(96, 8), (32, 2), (64, 1)], ids=str)
def test_blocks_change_nothing(
    expected: tuple, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last block that is shorter, spans of several blocks, one span of all."""
    monkeypatch.setattr(attention, "QUERY_CHUNK", sizes[0])
    monkeypatch.setattr(attention, "SPANS", sizes[1])
    got = value_and_gradients(lambda q, k, v: attention.einsum(q, k, v, SEGMENTS))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_spans_by_hand() -> None:
    # 8 spans of 128 queries hold 1,024; 8,192 need 8 of 1,024; 1,100 need 256 each, four and a rest
    assert attention._spans(300) == [(0, 128), (128, 256), (256, 300)]
    assert attention._spans(8192) == [(i, i + 1024) for i in range(0, 8192, 1024)]
    assert attention._spans(1100) == [(0, 256), (256, 512), (512, 768), (768, 1024), (1024, 1100)]


def test_weights_of_all_queries_never_exist_at_once() -> None:
    """The gradient's memory stays far below one (B, H, T, T) array."""
    t = 4096
    q, k = (jax.ShapeDtypeStruct((1, t, n, C), jnp.float32) for n in (H, K))
    gradient = jax.grad(lambda *a: jnp.sum(jnp.sin(attention.einsum(*a))), (0, 1, 2))
    lowered = jax.jit(gradient).lower(q, k, k, jax.ShapeDtypeStruct((1, t), jnp.int32))
    assert lowered.compile().memory_analysis().temp_size_in_bytes < H * t * t * 4 / 8


def test_a_length_the_blocks_do_not_divide() -> None:
    rows = jnp.zeros((1, 192, 1, C))
    for kernel in (attention.splash, attention.flash):
        with pytest.raises(
            UsageError, match="multiple of 128 tokens, not 192; correct learn.row_to"
        ):
            kernel(rows, rows, rows, jnp.zeros((1, 192), jnp.int32))


# -- the choice -------------------------------------------------------------------------------


def test_each_platform_has_kernels_that_exist() -> None:
    assert kernels.choose() == kernels.choose("auto", "cpu") == Kernels("einsum", "dense")
    assert kernels.choose(platform="tpu").attention == "splash"
    assert kernels.choose("dot_product", "gpu") == Kernels("dot_product", "ragged")
    for platform in kernels.PLATFORMS.values():
        assert platform.attention in attention.KERNELS and platform.experts in experts.PRODUCTS
        assert platform.cached in cached.KERNELS
    assert set(kernels.ATTENTION) == {"auto", *attention.KERNELS}
    assert config_rules.CHOICES["model.attention"] == kernels.ATTENTION


def test_a_kernel_of_another_platform() -> None:
    with pytest.raises(UsageError, match="'splash', which needs a TPU, but JAX runs on CPU; choo"):
        kernels.choose("splash")
    with pytest.raises(UsageError, match="attention is 'ring'; choose one of auto, einsum, dot_p"):
        kernels.choose("ring")
