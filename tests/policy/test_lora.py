"""Adapters: the sum by hand, gradients against those of whole matrices, what peft makes of them."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from spade_jax.policy import hub, lora, model
from spade_jax.policy.lora import Adapted, Lora
from spade_jax.policy.model import Params
from spade_jax.types import UsageError
from tests.policy.small import MOE, SMALL, random_params

ATTENTION = Lora(rank=3, alpha=6.0, targets="layers/[qkvo]")
TOKENS_BT = jnp.asarray(np.random.default_rng(0).integers(0, SMALL.vocab, (2, 12)))


def random_adapters(how: Lora, c: model.ModelConfig = SMALL) -> Params:
    """Adapters whose updates are about as large as the matrices."""
    rng = np.random.default_rng(1)
    declared = lora.declare(c, how)
    draw = lambda p: jnp.asarray(0.2 * rng.standard_normal(p.shape, np.float32))  # noqa: E731
    return jax.tree.map(draw, declared, is_leaf=model.is_parameter)


def logits_BTV(params: Params) -> jax.Array:
    b, t = TOKENS_BT.shape
    positions_BT = jnp.broadcast_to(jnp.arange(t)[None], (b, t))
    x_BTD = model.hidden(params, TOKENS_BT, positions_BT, jnp.ones_like(TOKENS_BT), SMALL)
    return model.logits(params, x_BTD.reshape(b * t, -1), SMALL).reshape(b, t, -1)


@jax.jit
def loss_and_gradient(params: Params) -> tuple[jax.Array, Params]:
    return jax.value_and_grad(lambda p: jnp.mean(jax.nn.logsumexp(logits_BTV(p), axis=-1)))(params)


def test_the_sum_by_hand() -> None:
    a, b = jnp.array([[[1.0], [2.0]]]), jnp.array([[[3.0, 5.0]]])
    adapted = Adapted(jnp.ones((1, 2, 2), jnp.bfloat16), a, b, scale=0.5)()
    assert adapted.dtype == jnp.float32
    np.testing.assert_array_equal(adapted, [[[2.5, 3.5], [4.0, 6.0]]])


def test_heads_and_experts_are_adapted_each_by_itself() -> None:
    how = Lora(rank=2, alpha=1.0, targets="layers/(q|o|up|router)")
    params = random_params(MOE)
    trained = random_adapters(how, MOE)
    adapted = model.arrays(how(trained, params))
    pairs = trained["layers"]
    for name, contraction in (
        ("q", "ldr,lrhc->ldhc"),
        ("o", "lhcr,lrd->lhcd"),
        ("up", "lxdr,lxrf->lxdf"),
        ("router", "ldr,lrx->ldx"),
    ):
        update = np.einsum(contraction, pairs[name]["a"], pairs[name]["b"])
        expected = params["layers"][name] + 0.5 * update
        np.testing.assert_allclose(adapted["layers"][name], expected, atol=1e-6)
    assert adapted["embed"] is params["embed"]
    assert adapted["layers"]["k"] is params["layers"]["k"]


def test_new_adapters_leave_the_model_as_it_is() -> None:
    params = random_params(SMALL)
    trained = lora.init(SMALL, ATTENTION, jax.random.key(0))
    merged = model.arrays(ATTENTION(trained, params))
    jax.tree.map(np.testing.assert_array_equal, merged, params)
    for name, pair in trained["layers"].items():
        inputs = pair["a"].size / (SMALL.layers * ATTENTION.rank)
        assert float(jnp.std(pair["a"])) == pytest.approx(inputs**-0.5, rel=0.2), name


def test_the_gradient_is_that_of_the_matrix_seen_through_the_adapter() -> None:
    """With W + s a b: da = s dW b^T and db = s a^T dW, dW taken at the merged matrix."""
    params, trained = random_params(SMALL), random_adapters(ATTENTION)
    merged = model.arrays(ATTENTION(trained, params))
    expected, whole = loss_and_gradient(merged)
    differentiate = jax.value_and_grad(
        lambda t: jnp.mean(jax.nn.logsumexp(logits_BTV(ATTENTION(t, params)), axis=-1))
    )
    loss, gradient = jax.jit(differentiate)(trained)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    scale = ATTENTION.alpha / ATTENTION.rank
    for name, split in (("q", 1), ("k", 1), ("v", 1), ("o", 2)):
        size = np.prod(merged["layers"][name].shape[1 : 1 + split])
        dw = np.asarray(whole["layers"][name]).reshape(SMALL.layers, size, -1)
        pair, got = trained["layers"][name], gradient["layers"][name]
        a, b = np.asarray(pair["a"]).reshape(SMALL.layers, size, -1), np.asarray(pair["b"])
        b = b.reshape(SMALL.layers, ATTENTION.rank, -1)
        for value, by_hand in (
            (got["a"], scale * np.einsum("lio,lro->lir", dw, b)),
            (got["b"], scale * np.einsum("lir,lio->lro", a, dw)),
        ):
            value = np.asarray(value).reshape(by_hand.shape)
            np.testing.assert_allclose(value, by_hand, atol=1e-5 * np.abs(by_hand).max())


def test_the_folder_of_an_adapter(tmp_path: Path) -> None:
    how = Lora(rank=3, alpha=6.0, targets="layers/(q|down)")
    trained = random_adapters(how)
    lora.export(tmp_path, SMALL, how, trained, base="base/model")
    assert {path.name for path in tmp_path.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["mlp.down_proj", "self_attn.q_proj"]
    assert (config["r"], config["lora_alpha"]) == (3, 6.0)
    assert config["base_model_name_or_path"] == "base/model"
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    layer = "base_model.model.model.layers.1."
    assert tensors[layer + "self_attn.q_proj.lora_A.weight"].shape == (3, 32)
    assert tensors[layer + "self_attn.q_proj.lora_B.weight"].shape == (32, 3)
    assert tensors[layer + "mlp.down_proj.lora_A.weight"].shape == (3, 48)
    np.testing.assert_array_equal(
        tensors[layer + "self_attn.q_proj.lora_B.weight"],
        np.asarray(trained["layers"]["q"]["b"][1]).reshape(3, 32).T,
    )
    assert len(tensors) == 2 * 2 * SMALL.layers


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of names peft and transformers changed
def test_peft_opens_the_folder(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    how = dataclasses.replace(ATTENTION, targets="layers/.*")
    params, trained = random_params(SMALL), random_adapters(how)
    hub.save(tmp_path / "base", SMALL, params, eos_id=1, pad_id=0)
    lora.export(tmp_path / "adapter", SMALL, how, trained, base=str(tmp_path / "base"))
    opened = peft.AutoPeftModelForCausalLM.from_pretrained(
        tmp_path / "adapter", dtype=torch.float32
    )
    with torch.no_grad():
        theirs = opened(torch.tensor(np.asarray(TOKENS_BT))).logits.numpy()
    np.testing.assert_allclose(jax.jit(logits_BTV)(how(trained, params)), theirs, atol=2e-4)
    assert isinstance(opened.base_model.model, transformers.Qwen3ForCausalLM)
    merged = model.arrays(how(trained, params))
    opened.merge_and_unload().save_pretrained(tmp_path / "merged")
    for ours, again in zip(
        *map(jax.tree.leaves, (merged, hub.load(tmp_path / "merged")[1])), strict=True
    ):
        np.testing.assert_allclose(ours, again, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"targets": "layers/("}, "is no regular expression (missing ), unterminated subpattern"),
        ({"targets": "q"}, "'q' matches none of layers/q, layers/k, layers/v, layers/o, layers/g"),
        ({"targets": "layers/.*norm"}, "matches none of layers/q"),
        (
            {"rank": 17},
            "model.lora.rank is 17 but model.layers.{layer}.self_attn.k_proj.weight has",
        ),
    ],
)
def test_what_cannot_be_adapted(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        lora.declare(SMALL, dataclasses.replace(ATTENTION, **changes))


def test_peft_has_no_form_for_experts(tmp_path: Path) -> None:
    how = Lora(rank=2, alpha=1.0, targets="layers/(q|up)")
    with pytest.raises(
        UsageError, match="adapters of experts .* have no form that peft opens; exp"
    ):
        lora.export(tmp_path, MOE, how, random_adapters(how, MOE), base="")
    assert not list(tmp_path.iterdir())
