"""What a CPU's compiler is kept from."""

import jax
import jax.numpy as jnp
import pytest

from spade_jax.policy import decoding, drawing, kernels, model
from spade_jax.policy.model import Params
from tests.policy.small import SMALL, random_params


@pytest.fixture(scope="module")
def params() -> Params:
    return random_params(SMALL)


def test_once_is_what_was_made() -> None:
    def f(count: jax.Array) -> tuple[jax.Array, jax.Array]:
        return kernels.once(lambda: (count + 1, count == 2), count)

    for form in (f, jax.jit(f)):
        assert [x.item() for x in form(jnp.array(2))] == [3, True]
        assert [x.item() for x in form(jnp.array(0))] == [1, False]


def test_no_layer_computes_cosines_for_itself(params: Params) -> None:
    """Neither those of whole rows nor those of a decoding step, of which both layers have need."""
    row = jnp.arange(40)[None]
    rows = jax.jit(model.hidden, static_argnums=4).lower(params, row, row, row, SMALL)
    cache = decoding.empty_cache(SMALL, 4, 128, jnp.float32)
    ones = jnp.ones((4,), jnp.int32)
    replies = decoding.Replies(
        stream_RI=jnp.ones((4, 2), jnp.uint32),
        count_R=ones,
        budget_R=9 * ones,
        how=drawing.Rows(*(jnp.ones((4,)) for _ in range(4))),
    )
    step = decoding.decode.lower(
        params,
        cache,
        jnp.arange(4),
        ones,
        ones,
        replies,
        c=SMALL,
        blocks=4,
        stop_ids=(0,),
        steps=4,
        truncated=False,
    )
    for program in (rows, step):
        assert program.compile().as_text().count(" cosine(") == 1
