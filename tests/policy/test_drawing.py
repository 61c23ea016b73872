"""Drawing tokens: frequencies, truncation and both log-probabilities, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import drawing
from spade_jax.policy.drawing import Rows
from spade_jax.policy.sampling import Sampling

N = 4000
# Weights 8, 4, 2, 2 of 16 at four of 70 places, among which are the first and the last.
PLACES = (0, 9, 20, 69)
WEIGHTS = np.array([8.0, 4.0, 2.0, 2.0])


def rows(how: Sampling, n: int) -> Rows:
    return Rows(*(jnp.full((n,), v) for v in (how.temperature, how.top_p, how.top_k, how.min_p)))


def draws(how: Sampling, *, weights: np.ndarray = WEIGHTS) -> drawing.Draw:
    logits = np.full((N, 70), -1e9, np.float32)
    logits[:, PLACES] = np.log(weights)
    uniform = jax.random.uniform(jax.random.key(3), (N, 2))
    drawn = drawing.draw(jnp.asarray(logits), uniform, rows(how, N), truncated=how.truncates)
    return jax.tree.map(np.asarray, drawn)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (Sampling(), (8, 4, 2, 2)),
        (Sampling(temperature=0.5), (64, 16, 4, 4)),
        (Sampling(top_k=2), (8, 4, 0, 0)),
        (Sampling(top_k=1, top_p=0.9), (8, 0, 0, 0)),
        (Sampling(top_k=3), (8, 4, 2, 2)),  # of equals none is left out
        (Sampling(top_p=0.5), (8, 0, 0, 0)),  # 8 of 16 reach it
        (Sampling(top_p=0.51), (8, 4, 0, 0)),
        (Sampling(top_p=0.7, top_k=2), (8, 4, 0, 0)),  # of the 12 that top_k leaves, 8 are 0.67
        (Sampling(top_p=0.66, top_k=2), (8, 0, 0, 0)),
        (Sampling(min_p=0.4), (8, 4, 0, 0)),
        (Sampling(min_p=0.2), (8, 4, 2, 2)),
        (Sampling(min_p=0.3, temperature=0.5), (64, 0, 0, 0)),
        (Sampling(min_p=1.0), (8, 0, 0, 0)),
        (Sampling(top_p=1e-6), (8, 0, 0, 0)),
    ],
)
def test_what_is_drawn_how_often(how: Sampling, kept: tuple[int, ...]) -> None:
    """Frequencies within four standard errors; both log-probabilities to the last digits."""
    drawn = draws(how)
    tempered = WEIGHTS ** (1 / how.temperature)
    tempered /= tempered.sum()
    behaviour = np.array(kept) / sum(kept)
    assert set(drawn.token_B.tolist()) == {p for p, k in zip(PLACES, kept, strict=True) if k}
    for place, p, q in zip(PLACES, tempered, behaviour, strict=True):
        chosen = drawn.token_B == place
        assert abs(chosen.mean() - q) <= 4 * np.sqrt(q * (1 - q) / N)
        np.testing.assert_allclose(drawn.logp_B[chosen], np.log(p), atol=1e-5)
        if q:
            np.testing.assert_allclose(drawn.behaviour_B[chosen], np.log(q), atol=1e-5)


def test_rows_are_sampled_each_in_its_way() -> None:
    logits = jnp.log(jnp.broadcast_to(jnp.array([[1.0, 2.0, 4.0]]), (3, 3)))
    how = Rows(
        jnp.array([1.0, 1.0, 1.0]),
        jnp.array([1.0, 0.5, 1.0]),
        jnp.array([0, 0, 2]),
        jnp.array([0.0, 0.0, 0.0]),
    )
    kept = np.exp(drawing.truncate(jax.nn.log_softmax(logits), how))
    expected = [[1 / 7, 2 / 7, 4 / 7], [0, 0, 1], [0, 2 / 6, 4 / 6]]
    np.testing.assert_allclose(kept, expected, atol=1e-6)


def test_one_token_is_the_first_of_the_most_probable() -> None:
    logits = jnp.log(jnp.array([[1.0, 4.0, 2.0, 4.0]] * 64))
    uniform = jax.random.uniform(jax.random.key(0), (64, 2))
    drawn = drawing.draw(logits, uniform, rows(Sampling(top_k=1), 64), truncated=True)
    assert drawn.token_B.tolist() == [1] * 64 and drawn.behaviour_B.tolist() == [0.0] * 64
    assert Sampling(temperature=0).greedy and Sampling(temperature=0.001).truncates
    assert not Sampling(temperature=0.5, top_k=2).greedy


def test_without_truncation_both_log_probabilities_are_one() -> None:
    drawn = draws(Sampling(temperature=0.7))
    np.testing.assert_array_equal(drawn.logp_B, drawn.behaviour_B)


@pytest.mark.parametrize("entries", [1, 2, 3, 16, 17, 1023])
def test_every_entry_can_be_drawn_and_none_beyond(entries: int) -> None:
    uniform = jax.random.uniform(jax.random.key(0), (20 * entries, 2))
    drawn = drawing.categorical(jnp.ones((len(uniform), entries)), uniform)
    counts = np.bincount(drawn, minlength=entries)
    assert len(counts) == entries and drawn.dtype == jnp.int32
    assert counts.min() > 0  # 20 are expected of each: missing one has odds of 2e-9 an entry


def test_a_uniform_number_of_nearly_one_finds_a_weight() -> None:
    p = jnp.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    top = jnp.full((3,), np.nextafter(np.float32(1), np.float32(0)))
    assert drawing.invert(p, top).tolist() == [1, 1, 0]
    assert drawing.invert(p, jnp.ones((3,))).tolist() == [1, 1, 0]
    assert drawing.invert(p, jnp.zeros((3,))).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -0.5, "temperature must be 0 or more, not -0.5"),
        ("temperature", float("nan"), "temperature must be 0 or more"),
        ("top_p", 0.0, "top_p must be above 0 and at most 1"),
        ("top_p", 1.1, "top_p must be above 0 and at most 1"),
        ("top_k", -1, "top_k must be 0 or more"),
        ("min_p", 1.5, "min_p must be between 0 and 1"),
    ],
)
def test_values_out_of_range(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**{field: value})
