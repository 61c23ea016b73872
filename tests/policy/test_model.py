"""The model: causality, packing, log-probabilities, declarations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax import config_rules
from spade_jax.policy import model
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.types import UsageError
from tests.policy.small import MOE, SMALL, UNTIED, random_params

LENGTH = 24
TOKENS = np.random.default_rng(0).integers(0, SMALL.vocab, LENGTH)


@pytest.fixture(scope="module")
def params() -> Params:
    return random_params(SMALL)


@functools.partial(jax.jit, static_argnames=("c",))
def hidden(params: Params, tokens, positions, segments, c: ModelConfig = SMALL) -> jax.Array:
    return model.hidden(params, tokens, positions, segments, c)


@functools.partial(jax.jit, static_argnames=("c", "chunk"))
def token_logps(params: Params, x, targets, temperature, c: ModelConfig, chunk: int) -> tuple:
    return model.token_logps(params, x, targets, temperature, c, chunk=chunk)


def whole(params: Params, tokens: np.ndarray, c: ModelConfig = SMALL) -> np.ndarray:
    """Hidden vectors of rows that hold one sequence each."""
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    return np.asarray(hidden(params, tokens, positions, np.ones_like(tokens), c))


def packed(params: Params, starts: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Hidden vectors of sequences that share one row, by the place where each starts."""
    tokens, positions, segments = np.zeros((3, 1, LENGTH), np.int64)
    for segment, (start, ids) in enumerate(starts.items(), 1):
        here = slice(start, start + len(ids))
        tokens[0, here], positions[0, here] = ids, np.arange(len(ids))
        segments[0, here] = segment
    x = np.asarray(hidden(params, tokens, positions, segments))
    return {start: x[0, start : start + len(ids)] for start, ids in starts.items()}


@pytest.mark.parametrize("changed", [1, 13, LENGTH - 1])
def test_a_later_token_changes_nothing_before_it(params: Params, changed: int) -> None:
    other = TOKENS.copy()
    other[changed] = (other[changed] + 1) % SMALL.vocab
    before, after = whole(params, TOKENS[None]), whole(params, other[None])
    np.testing.assert_array_equal(before[:, :changed], after[:, :changed])
    assert np.abs(before[:, changed:] - after[:, changed:]).max(axis=-1).min() > 1e-4


@pytest.mark.parametrize("start", [0, 3, 17])
def test_padding_changes_nothing(params: Params, start: int) -> None:
    ids = TOKENS[:7]
    alone = whole(params, ids[None])[0]
    np.testing.assert_allclose(packed(params, {start: ids})[start], alone, atol=1e-5)


def test_neighbours_in_a_row_change_nothing(params: Params) -> None:
    a, b, c = TOKENS[:7], TOKENS[7:12], TOKENS[12:]
    together = packed(params, {0: a, 7: b, 12: c})
    for start, ids in ((0, a), (7, b), (12, c)):
        np.testing.assert_allclose(together[start], packed(params, {start: ids})[start], atol=1e-5)
    np.testing.assert_allclose(
        packed(params, {0: b, 5: a})[5], together[0], atol=1e-5, err_msg="order in the row"
    )


def test_what_is_computed_again_changes_no_gradient() -> None:
    """The policies differ in what they keep: counted as arrays handed to the backward pass."""
    c = dataclasses.replace(SMALL, layers=1)
    params = random_params(c)
    tokens, segments = jnp.asarray(TOKENS[None]), jnp.asarray([[1] * 10 + [2] * 14])
    positions = jnp.arange(LENGTH)[None]

    def loss(params: Params, remat: str) -> jax.Array:
        x = model.hidden(params, tokens, positions, segments, c, remat=remat)
        return jnp.sum(jnp.sin(x))

    def kept(remat: str) -> int:
        backward = jax.eval_shape(lambda p: jax.vjp(lambda p: loss(p, remat), p)[1], params)
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    sizes = [kept(remat) for remat in model.REMAT]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes), sizes
    plain, *others = (jax.jit(jax.grad(loss), static_argnums=1)(params, r) for r in model.REMAT)
    for other in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), other, plain)


def test_an_unknown_remat(params: Params) -> None:
    row = jnp.zeros((1, 1), jnp.int32)
    with pytest.raises(UsageError, match="remat is 'all'; choose one of none, products, dots, at"):
        model.hidden(params, row, row, row, SMALL, remat="all")
    assert config_rules.CHOICES["model.remat"] == tuple(model.REMAT)


def test_rms_norm_by_hand() -> None:
    # mean square of (3, 4) is 12.5, its root 3.535534
    normed = model.rms_norm(jnp.array([[3.0, 4.0]]), jnp.array([1.0, 2.0]), 0.0)
    np.testing.assert_allclose(normed, [[0.8485281, 2.2627417]], rtol=1e-6)
    half = model.rms_norm(jnp.ones((1, 4), jnp.bfloat16), jnp.ones(4), 0.0)
    assert half.dtype == jnp.bfloat16


def test_rotation_by_hand() -> None:
    # head size 4, base 100: frequencies 1 and 0.1; (1, 0, 0, 0) at position 2 turns by 2 radians
    c = dataclasses.replace(SMALL, head_size=4, rope_theta=100.0)
    angles = model.rotary_angles(jnp.array([[0, 2]]), c)
    x = jnp.broadcast_to(jnp.array([1.0, 1.0, 0.0, 0.0]), (1, 2, 1, 4))
    turned = model.rotate(x, *angles)
    np.testing.assert_allclose(turned[0, 0, 0], [1.0, 1.0, 0.0, 0.0], atol=1e-7)
    expected = [-0.41614684, 0.98006658, 0.90929743, 0.19866933]
    np.testing.assert_allclose(turned[0, 1, 0], expected, atol=1e-6)


@pytest.mark.parametrize("c", [SMALL, UNTIED], ids=["tied", "untied"])
def test_log_probabilities_equal_a_dense_softmax(c: ModelConfig) -> None:
    params = random_params(c)
    x = whole(params, TOKENS.reshape(2, 12), c)
    targets = np.random.default_rng(1).integers(0, c.vocab, (2, 12))
    temperature = np.full((2, 12), 0.6, np.float32)
    temperature[1, 5:] = 1.0
    projection = params["embed"].T if c.tied else params["head"]
    scores = x.astype(np.float64) @ np.asarray(projection, np.float64) / temperature[:, :, None]
    dense = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    expected = np.take_along_axis(dense, targets[:, :, None], axis=-1)[:, :, 0]
    entropy = -(np.exp(dense) * dense).sum(axis=-1)
    assert entropy.min() < 0.9 * np.log(c.vocab), "the weights should prefer some tokens"
    for chunk in (1024, 4):
        got = token_logps(params, x, targets, temperature, c, chunk)
        np.testing.assert_allclose(got[0], expected, atol=1e-5)
        np.testing.assert_allclose(got[1], entropy, atol=1e-5)
        assert got[0].dtype == got[1].dtype == jnp.float32


def test_log_probabilities_of_all_tokens_never_exist_at_once() -> None:
    """Not in the gradient either: the memory it needs stays below one (B, T, V) array."""
    c = dataclasses.replace(SMALL, vocab=4096)
    rows = jax.ShapeDtypeStruct((8, 512), jnp.int32)
    x = jax.ShapeDtypeStruct((8, 512, c.width), jnp.float32)

    def loss(params: Params, x: jax.Array, rows: jax.Array) -> jax.Array:
        logp, entropy = model.token_logps(params, x, rows, jnp.ones(rows.shape), c, chunk=256)
        return jnp.sum(logp + entropy)

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(model.abstract(c), x, rows).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * 512 * 4096 * 4 / 2


def test_declaration_gives_shapes_and_counts() -> None:
    # embedding 64 * 32; a layer 2 * 32 + 2 * 8 norms, 2 * 32 * 32 + 2 * 32 * 16 attention,
    # 3 * 32 * 48 feed-forward; the last norm 32; untied once more 64 * 32
    layer = 2 * 32 + 2 * 8 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    assert model.count(SMALL) == 64 * 32 + 2 * layer + 32 == 17_600
    assert model.count(UNTIED) == 17_600 + 2_048
    assert model.abstract(UNTIED)["head"].shape == (32, 64)


def test_first_values() -> None:
    c = dataclasses.replace(SMALL, kv_heads=4)
    made = model.init(c, jax.random.key(0))
    assert jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), made) == model.abstract(c)
    assert float(jnp.std(made["embed"])) == pytest.approx(0.02, rel=0.05)
    # two projections onto the residual stream a layer, four in all: half the deviation
    assert float(jnp.std(made["layers"]["down"])) == pytest.approx(0.01, rel=0.05)
    np.testing.assert_array_equal(made["layers"]["q_norm"], 1.0)
    jax.tree.map(np.testing.assert_array_equal, made, model.init(c, jax.random.key(0)))
    assert np.any(made["embed"] != model.init(c, jax.random.key(1))["embed"])


def test_head_counts_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="heads .4. must be a multiple of kv_heads .3.; correct"):
        dataclasses.replace(SMALL, kv_heads=3)


@pytest.mark.parametrize("c", [SMALL, MOE], ids=["dense", "experts"])
def test_weights_in_the_compute_dtype_compute_the_same(c: ModelConfig) -> None:
    params = random_params(c)
    halved = model.in_compute_dtype(params, c, jnp.bfloat16)
    assert halved["embed"].dtype == halved["layers"]["q"].dtype == jnp.bfloat16
    assert halved["layers"]["attn_norm"].dtype == halved["final_norm"].dtype == jnp.float32
    rows = jnp.arange(6)[None]
    outs = [
        model.hidden(p, rows, rows, jnp.ones_like(rows), c, dtype=jnp.bfloat16)
        for p in (params, halved)
    ]
    np.testing.assert_array_equal(*outs)
