"""The same function as transformers': its random models, written by it and read by us, in float32.

Each model answers a prompt greedily and is differentiated there, and on our side the same
sequence goes through the model once.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import hub, model
from spade_jax.policy.model import ModelConfig, Params

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PROMPT, REPLY = 16, 64
TEMPERATURE = 0.6
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,  # not hidden_size / num_attention_heads
    "initializer_range": 0.25,  # far from uniform logits
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MODELS = {  # every ratio of query to key heads, every rotary base, each where it matters
    "untied": {"num_key_value_heads": 4, "rope_theta": 1e4, "tie_word_embeddings": False},
    "tied": {"num_key_value_heads": 2, "rope_theta": 1e6, "tie_word_embeddings": True},
    "one key head": {"num_key_value_heads": 1, "rope_theta": 5e6, "tie_word_embeddings": False},
    "experts": {
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        "norm_topk_prob": True,
        **EXPERTS,
    },
    "experts as the softmax weighs them": {
        "num_key_value_heads": 1,
        "rope_theta": 1e4,
        "tie_word_embeddings": True,
        "norm_topk_prob": False,
        **EXPERTS,
    },
}


class Reference(NamedTuple):
    """What transformers computed on a prompt and its own greedy reply, and the model's files."""

    folder: Path
    tokens_T: np.ndarray
    logits_TV: np.ndarray
    logp_T: np.ndarray  # at TEMPERATURE
    gradient: Path  # of the mean negative log-probability, as if it were a model's weights


class Ours(NamedTuple):
    logits_TV: jax.Array
    logp_T: jax.Array
    gradient: Params


def random_model(fields: dict[str, Any]) -> Any:
    """A model of transformers with random weights, norms away from one."""
    torch.manual_seed(0)
    kind = "Qwen3Moe" if "num_experts" in fields else "Qwen3"
    config = getattr(transformers, f"{kind}Config")(**SIZES, **fields)
    reference = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return reference


@pytest.fixture(scope="module", params=MODELS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("parity")
    made = random_model(MODELS[request.param])
    made.save_pretrained(folder / "model")
    prompt = torch.randint(0, SIZES["vocab_size"], (1, PROMPT))
    tokens = made.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=REPLY,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    logits = made(tokens).logits[0]
    logp = (logits[:-1].double() / TEMPERATURE).log_softmax(dim=-1)
    logp = logp.gather(1, tokens[0, 1:, None])[:, 0]
    (-logp.mean()).backward()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(parameter.grad)
    made.save_pretrained(folder / "gradient")
    return Reference(
        folder=folder / "model",
        tokens_T=tokens[0].numpy(),
        logits_TV=logits.detach().numpy(),
        logp_T=logp.detach().numpy(),
        gradient=folder / "gradient",
    )


@functools.partial(jax.jit, static_argnames=("c",))
def evaluate(params: Params, tokens_T: jax.Array, c: ModelConfig) -> Ours:
    def loss(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        row = tokens_T[None]
        x_BTD = model.hidden(params, row, jnp.arange(row.shape[1])[None], jnp.ones_like(row), c)
        temperature = jnp.full((1, row.shape[1] - 1), TEMPERATURE)
        logp_BT, _ = model.token_logps(params, x_BTD[:, :-1], row[:, 1:], temperature, c)
        return -jnp.mean(logp_BT), (model.logits(params, x_BTD[0], c), logp_BT[0])

    gradient, (logits_TV, logp_T) = jax.grad(loss, has_aux=True)(params)
    return Ours(logits_TV, logp_T, gradient)


@pytest.fixture(scope="module")
def ours(reference: Reference) -> Ours:
    c, params = hub.load(reference.folder)
    return jax.device_get(evaluate(params, reference.tokens_T, c))


def test_logits(reference: Reference, ours: Ours) -> None:
    assert reference.logits_TV.std() > 1.0
    np.testing.assert_allclose(ours.logits_TV, reference.logits_TV, atol=2e-4)


def test_greedy_continuation(reference: Reference, ours: Ours) -> None:
    """Given the same tokens before, each next one is the same: so is the whole reply."""
    reply = reference.tokens_T[PROMPT:]
    assert len(reply) == REPLY and len(set(reply.tolist())) > 5
    np.testing.assert_array_equal(ours.logits_TV.argmax(axis=-1)[PROMPT - 1 : -1], reply)


def test_log_probabilities(reference: Reference, ours: Ours) -> None:
    assert reference.logp_T.min() < -3, "the prompt is random"
    np.testing.assert_allclose(ours.logp_T, reference.logp_T, atol=1e-4)
    whole = ours.logp_T.astype(np.float64).sum()
    np.testing.assert_allclose(whole, reference.logp_T.sum(), atol=1e-4)


def test_gradients(reference: Reference, ours: Ours) -> None:
    _, expected = hub.load(reference.gradient)

    def compare(path: tuple, expected: jax.Array, got: jax.Array) -> None:
        size = float(jnp.linalg.norm(expected))
        error = float(jnp.linalg.norm(got - expected)) / size
        assert size > 1e-4 and error < 1e-3, f"{jax.tree_util.keystr(path)}: {error} of {size}"

    jax.tree_util.tree_map_with_path(compare, expected, ours.gradient)
