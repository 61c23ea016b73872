"""Run by test_sharding.py in a process with eight devices.

Arguments are cases such as `dense-2x2x2x1`; prints each one's errors as JSON.
"""

import dataclasses
import functools
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spade_jax.policy import model, sharding
from spade_jax.policy.kernels import Kernels
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.policy.sampler import Sampler
from spade_jax.policy.sampling import Sampling
from tests.policy.small import MOE, SMALL, random_params

DENSE = dataclasses.replace(SMALL, layers=1, heads=8, kv_heads=4)  # tied; tensor = 4 divides them
MODELS = {
    "dense": (DENSE, Kernels("einsum", "dense")),
    # untied, and key heads that tensor = 4 does not divide
    "experts": (dataclasses.replace(MOE, layers=1), Kernels("dot_product", "ragged")),
}
ROWS, LENGTH, REPLY = 8, 24, 12


def packed_rows(c: ModelConfig) -> dict[str, np.ndarray]:
    """Two sequences in each row."""
    rng = np.random.default_rng(0)
    cuts = rng.integers(1, LENGTH, (ROWS, 1))
    places = np.arange(LENGTH)[None]
    return {
        "tokens": rng.integers(0, c.vocab, (ROWS, LENGTH)),
        "targets": rng.integers(0, c.vocab, (ROWS, LENGTH)),
        "positions": np.where(places < cuts, places, places - cuts),
        "segments": 1 + (places >= cuts),
        "weight": rng.standard_normal((ROWS, LENGTH)).astype(np.float32),
    }


def forward_and_gradient(params: Params, rows: dict[str, Any], name: str) -> tuple[Any, Params]:
    c, kernels = MODELS[name]

    def loss(params: Params, rows: dict[str, jax.Array]) -> tuple:
        places = rows["tokens"], rows["positions"], rows["segments"]
        x_BTD = model.hidden(params, *places, c, kernels=kernels)
        temperature = jnp.full(rows["tokens"].shape, 0.6)
        logps = model.token_logps(params, x_BTD, rows["targets"], temperature, c, chunk=96)
        return jnp.sum(logps[0] * rows["weight"]), (x_BTD, *logps)

    def laid_out(params: Params, rows: dict[str, jax.Array]) -> tuple:
        grads, out = jax.grad(loss, has_aux=True)(params, rows)
        return out, sharding.constrain_parameters(grads, model.declare(c), "train")

    return jax.jit(laid_out)(params, rows)


def replies(params: Params, c: ModelConfig) -> tuple[list[tuple[int, ...]], list[np.ndarray]]:
    """Ids and log-probabilities of two turns in a sampler of as many slots as rows."""
    s = Sampler(
        params,
        c,
        slots=ROWS,
        context=64,
        stop_ids=(0,),
        dtype=jnp.float32,
        block=REPLY,
        compact=False,
    )
    ids, logps = [], []
    for turn in range(2):
        for slot in range(ROWS):
            prompt = np.random.default_rng(slot).integers(1, c.vocab, 5 + slot).tolist()
            if not turn:
                s.open()
            s.submit(slot, prompt, stream=(slot, turn), budget=REPLY, sampling=Sampling())
        while s.busy:
            for _, reply in sorted(s.advance().items()):
                ids.append(reply.ids)
                logps.append(np.asarray(reply.logp))
    return ids, logps


def on_mesh(name: str, shape: tuple[int, ...]) -> tuple[Any, Params, Any]:
    """What one device computes, here in pieces; arrays are where the table says."""
    c, mesh = MODELS[name][0], sharding.make_mesh(shape)
    params, rows = random_params(c), packed_rows(c)
    train, sample = (sharding.parameters(model.declare(c), mesh, m) for m in ("train", "sample"))
    with jax.set_mesh(mesh):
        rows = jax.device_put(rows, sharding.batch(rows, mesh))
        out, grads = forward_and_gradient(jax.device_put(params, train), rows, name)
        for leaf, place in zip(jax.tree.leaves(grads), jax.tree.leaves(train), strict=True):
            assert leaf.sharding.is_equivalent_to(place, leaf.ndim), (leaf.sharding, place)
        return out, grads, replies(jax.device_put(params, sample), c)


def error(got: Any, expected: Any) -> float:
    """Largest difference, relative to the largest value where that exceeds 1."""
    got, expected = (jax.tree.leaves(jax.device_get(x)) for x in (got, expected))
    size = max(1.0, *(np.abs(x).max() for x in expected))
    return max(float(np.abs(a - b).max() / size) for a, b in zip(got, expected, strict=True))


@functools.cache
def alone(name: str) -> tuple[Any, Params, Any]:
    """The same on one device."""
    c = MODELS[name][0]
    params = random_params(c)
    return *forward_and_gradient(params, packed_rows(c), name), replies(params, c)


def errors(name: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Of the model in whole rows, its gradient, and the sampler's log-probabilities."""
    out, grads, (ids, logps) = alone(name)
    got_out, got_grads, (got_ids, got_logps) = on_mesh(name, shape)
    assert got_ids == ids
    return {
        "forward": error(got_out, out),
        "gradient": error(got_grads, grads),
        "sampler": error(got_logps, logps),
    }


if __name__ == "__main__":
    found = {}
    for case in sys.argv[1:]:
        name, _, shape = case.partition("-")
        found[case] = errors(name, tuple(map(int, shape.split("x"))))
    print(json.dumps(found))
