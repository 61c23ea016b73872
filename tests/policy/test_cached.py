"""Attention over the cache: the TPU kernel computes the plain form, and the sampler uses it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import buckets, cached, decoding
from spade_jax.policy.kernels import Kernels
from spade_jax.policy.model import ModelConfig
from spade_jax.policy.sampler import Sampler
from spade_jax.policy.sampling import Sampling
from tests.policy.small import MOE, SMALL, random_params

L, B, K, G, C, S = 2, 5, 2, 4, 8, 44
RNG = np.random.default_rng(0)
Q = jnp.asarray(RNG.standard_normal((B, K, G, C)), jnp.float32)
KEYS = jnp.asarray(RNG.standard_normal((L, B, K, C, S)), jnp.float32)
VALUES = jnp.asarray(RNG.standard_normal((L, B, K, S, C)), jnp.float32)
LENGTHS = jnp.asarray([0, 1, 16, 17, S], jnp.int32)  # none, in the first block of 16, its end, all
LAYER = jnp.asarray(1, jnp.int32)
INTERPRETED = functools.partial(cached.pallas, interpret=True)


def in_blocks(
    q_BKGC: jax.Array, keys: jax.Array, values: jax.Array, layer: jax.Array, length_B: jax.Array
) -> cached.Part:
    """Two blocks more than the seven of 16 columns in use, of a cache with room for whole ones."""
    room = [(0, 0)] * 4
    held = decoding.Cache(
        keys=(jnp.pad(keys, [*room, (0, 4)], constant_values=1e9),),
        values=(jnp.pad(values, [*room[1:], (0, 4), (0, 0)], constant_values=1e9),),
    )
    cut = decoding.in_blocks(held, jnp.arange(B), length_B, 9)
    [k_LPKCW], [v_LPKWC] = cut.cache
    return cached.blocks(q_BKGC, k_LPKCW[layer], v_LPKWC[layer], cut.row_P, cut.seen_P)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "kernel", [cached.einsum, in_blocks, INTERPRETED], ids=["einsum", "blocks", "pallas"]
)
def test_each_form_is_the_softmax_of_the_columns_in_use(
    kernel: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that are no numbers, where a row's columns end, do not matter."""
    monkeypatch.setattr(cached, "BLOCK", 16)
    monkeypatch.setattr(buckets, "COLUMN_STEP", 16)
    beyond = (
        np.arange(S)[None, None, None, :, None] >= np.asarray(LENGTHS)[None, :, None, None, None]
    )
    garbage = jnp.where(beyond, jnp.nan if kernel is INTERPRETED else 1e9, VALUES)
    sums, top, total = kernel(Q, KEYS, garbage, LAYER, LENGTHS)
    assert not np.any(total[0]) and not np.any(sums[0]), "a row without columns"
    for b, n in enumerate(LENGTHS.tolist()):
        if n:
            scores = np.einsum("KGC,KCS->KGS", Q[b], KEYS[1, b, :, :, :n])
            expected = np.einsum("KGS,KSC->KGC", softmax(scores), VALUES[1, b, :, :n])
            np.testing.assert_allclose(sums[b] / total[b], expected, atol=1e-5)
            np.testing.assert_allclose(top[b, ..., 0], scores.max(axis=-1), atol=1e-5)


def test_blocks_lie_row_after_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layers in one array and in arrays of their own, from slots 3, 0, 4: 2, 0 and 3 blocks."""
    monkeypatch.setattr(buckets, "COLUMN_STEP", 16)
    whole = decoding.Cache(keys=(KEYS,), values=(VALUES,))
    slots, lengths = jnp.asarray([3, 0, 4]), jnp.asarray([17, 0, 44])
    for cache in (whole, decoding.apart(whole)):
        cut = decoding.in_blocks(cache, slots, lengths, 6)
        np.testing.assert_array_equal(cut.row_P, [0, 0, 2, 2, 2, 3])
        np.testing.assert_array_equal(cut.seen_P, [16, 1, 16, 16, 12, 0])
        for layer in range(L):
            of = (0, layer) if cache is whole else (layer,)
            k_PKCW, v_PKWC = (part[of[0]][of[1:]] for part in cut.cache)
            np.testing.assert_array_equal(k_PKCW[1], KEYS[layer, 3, :, :, 16:32])
            np.testing.assert_array_equal(v_PKWC[3], VALUES[layer, 4, :, 16:32])


def test_parts_join_to_the_whole() -> None:
    """Two halves of the columns, the first of which some rows have none in."""
    half = S // 2
    ends = jnp.maximum(LENGTHS, 1)
    parts = [
        cached.einsum(Q, KEYS[..., :half], VALUES[..., :half, :], LAYER, jnp.minimum(ends, half)),
        cached.einsum(Q, KEYS[..., half:], VALUES[..., half:, :], LAYER, ends - half),
    ]
    sums, _, total = cached.einsum(Q, KEYS, VALUES, LAYER, ends)
    np.testing.assert_allclose(cached.join(parts), sums / total, atol=1e-6)


def replies(c: ModelConfig) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Of two turns in three of four slots, with prompts of several lengths."""
    s = Sampler(
        random_params(c), c, slots=4, context=64, stop_ids=(0,), dtype=jnp.float32, block=4,
        compact=False,
    )  # fmt: skip
    out = []
    for turn in range(2):
        for slot in range(3):
            if not turn:
                s.open()
            prompt = np.random.default_rng(slot).integers(1, c.vocab, 3 + 9 * slot).tolist()
            s.submit(slot, prompt, stream=(slot, turn), budget=6, sampling=Sampling())
        while s.busy:
            out += [(reply.ids, reply.logp) for _, reply in sorted(s.advance().items())]
    return out


@pytest.mark.parametrize(
    "c",
    [SMALL, dataclasses.replace(MOE, layers=9)],
    ids=["each layer by itself", "a loop over layers with experts"],
)
def test_a_sampler_with_the_kernels_of_a_tpu(
    c: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = replies(c)
    monkeypatch.setattr(cached, "BLOCK", 128)
    monkeypatch.setitem(cached.KERNELS, "interpreted", INTERPRETED)
    monkeypatch.setattr(decoding, "choose", lambda: Kernels("einsum", "ragged", "interpreted"))
    jax.clear_caches()
    got = replies(c)
    jax.clear_caches()
    assert [ids for ids, _ in got] == [ids for ids, _ in expected]
    for (_, a), (_, b) in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
