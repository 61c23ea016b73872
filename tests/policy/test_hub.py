"""Hugging Face folders: bitwise there and back, read by transformers, one sentence per mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spade_jax.policy import hub, model
from spade_jax.policy.model import ModelConfig
from spade_jax.types import UsageError
from tests.policy.small import MOE, SMALL, UNTIED, random_params

BOTH = pytest.mark.parametrize("c", [SMALL, UNTIED, MOE], ids=["tied", "untied", "experts"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model, there to be damaged."""
    hub.save(tmp_path / "m", SMALL, random_params(SMALL), eos_id=1, pad_id=0)
    return tmp_path / "m"


def change_config(folder: Path, **changes: object) -> None:
    """Set fields of config.json; None removes one."""
    file = folder / "config.json"
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


def change_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@BOTH
def test_saving_and_loading_is_bitwise(tmp_path: Path, c: ModelConfig) -> None:
    params = random_params(c)
    hub.save(tmp_path, c, params, eos_id=1, pad_id=0)
    read, loaded = hub.load(tmp_path)
    assert read == c
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {jnp.dtype("float32")}
    hub.save(tmp_path / "again", read, loaded, eos_id=1, pad_id=0)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


@BOTH
def test_transformers_opens_the_folder(tmp_path: Path, c: ModelConfig) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    params = random_params(c)
    hub.save(tmp_path, c, params, eos_id=1, pad_id=0)
    reference, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    reference.save_pretrained(tmp_path / "theirs")  # which holds the tensors it opened
    assert hub.read_config(tmp_path / "theirs") == c
    jax.tree.map(np.testing.assert_array_equal, hub.load(tmp_path / "theirs")[1], params)
    tokens = np.random.default_rng(0).integers(0, c.vocab, (1, 12))
    with torch.no_grad():
        expected = reference(torch.tensor(tokens)).logits.numpy()[0]

    @jax.jit
    def logits(tokens: jax.Array) -> jax.Array:
        positions = jnp.arange(12)[None]
        x = model.hidden(params, tokens, positions, jnp.ones_like(tokens), c)
        return model.logits(params, x[0], c)

    np.testing.assert_allclose(logits(tokens), expected, atol=2e-4)


def test_shards_are_read_together(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for i in range(2):
        save_file({n: tensors[n] for n in names[i::2]}, folder / f"model-{i}.safetensors")
    jax.tree.map(np.testing.assert_array_equal, hub.load(folder)[1], random_params(SMALL))


def test_an_export_keeps_what_belongs_to_the_model(folder: Path, tmp_path: Path) -> None:
    """Several files in the dtype asked for, which transformers opens to the same bits."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    change_config(folder, sliding_window=None, initializer_range=0.03)
    for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja"):
        (folder / name).write_text("{}")
    (folder / "notes.txt").write_text("not part of a model")
    c, params = hub.load(folder)
    there = tmp_path / "there"
    there.mkdir()
    (there / "model-00009-of-00009.safetensors").write_bytes(b"of an earlier model")
    hub.export(there, params, like=folder, dtype="bfloat16", max_shard=10_000)
    shards = sorted(path.name for path in there.glob("*.safetensors"))
    assert (
        len(shards) > 2 and shards[-1] == f"model-{len(shards):05}-of-{len(shards):05}.safetensors"
    )
    kept = {path.name for path in there.iterdir()} - set(shards)
    assert kept == {
        *("config.json", "model.safetensors.index.json", "generation_config.json"),
        *("tokenizer.json", "chat_template.jinja"),
    }
    assert all((there / name).stat().st_size < 12_000 for name in shards), "10,000 and a header"
    raw = json.loads((folder / "config.json").read_text())
    assert json.loads((there / "config.json").read_text()) == raw | {"dtype": "bfloat16"}
    rounded = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    read, again = hub.load(there, dtype="bfloat16")
    assert read == c
    jax.tree.map(np.testing.assert_array_equal, again, rounded)
    reference = transformers.AutoModelForCausalLM.from_pretrained(there)
    assert reference.dtype == torch.bfloat16
    reference.save_pretrained(tmp_path / "theirs")
    jax.tree.map(np.testing.assert_array_equal, hub.load(tmp_path / "theirs")[1], rounded)


def test_an_export_keeps_the_dtype(folder: Path, tmp_path: Path) -> None:
    change_tensors(folder, lambda t: t.update({k: v.astype(np.float16) for k, v in t.items()}))
    _, stored = hub.stored(folder)
    hub.export(tmp_path / "there", stored, like=folder)
    there, here = (load_file(path / "model.safetensors") for path in (tmp_path / "there", folder))
    assert there.keys() == here.keys()
    for name, tensor in there.items():
        assert tensor.dtype == np.float16
        np.testing.assert_array_equal(tensor, here[name])
    assert json.loads((tmp_path / "there" / "config.json").read_text())["dtype"] == "float16"


def test_half_precision_becomes_float32(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({k: v.astype(np.float16) for k, v in t.items()}))
    embed = hub.load(folder)[1]["embed"]
    assert embed.dtype == jnp.float32
    expected = np.asarray(random_params(SMALL)["embed"]).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(embed, expected)


def test_the_rotary_base_is_read_from_both_places(folder: Path) -> None:
    change_config(folder, rope_theta=None, rope_parameters={"rope_theta": 500.0})
    assert hub.read_config(folder).rope_theta == 500.0
    change_config(folder, rope_theta=500)
    assert hub.read_config(folder).rope_theta == 500.0
    change_config(folder, rope_theta=400.0)
    with pytest.raises(UsageError, match="rope_theta 400.0 and, in rope_parameters, 500.0; keep"):
        hub.read_config(folder)
    change_config(folder, rope_theta=None, rope_parameters=None)
    with pytest.raises(ValueError, match="has no rope_theta; add the model's rotary base"):
        hub.read_config(folder)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type 'yarn'; only 'default'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type 'linear'; only 'default'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; only 'silu' is supported"),
        ({"use_sliding_window": True}, "use_sliding_window True; only False is supported"),
    ],
)
def test_variants_of_the_architecture(
    folder: Path, fields: dict[str, object], sentence: str
) -> None:
    change_config(folder, **fields)
    with pytest.raises(UsageError, match=sentence):
        hub.read_config(folder)


def test_the_head_size_may_be_left_out(folder: Path) -> None:
    change_config(folder, head_dim=None)
    assert hub.read_config(folder).head_size == 8  # 32 / 4


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config.json is missing; point model.path at"):
        hub.load(tmp_path)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"has no .safetensors file; put the model's"):
        hub.load(folder)


def test_another_architecture(folder: Path) -> None:
    change_config(folder, model_type="llama")
    with pytest.raises(ValueError, match="says model_type 'llama'; only 'qwen3' and 'qwen3_moe'"):
        hub.load(folder)


def test_the_number_of_experts_has_two_names(tmp_path: Path) -> None:
    hub.save(tmp_path, MOE, random_params(MOE), eos_id=1, pad_id=0)
    change_config(tmp_path, num_experts=None, num_local_experts=4)
    assert hub.read_config(tmp_path) == MOE


@pytest.mark.parametrize("fields", [{"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}])
def test_layers_with_and_without_experts(tmp_path: Path, fields: dict[str, object]) -> None:
    hub.save(tmp_path, MOE, random_params(MOE), eos_id=1, pad_id=0)
    change_config(tmp_path, **fields)
    with pytest.raises(UsageError, match="mixes layers with and without experts .*; take a model"):
        hub.read_config(tmp_path)


def test_a_missing_tensor(folder: Path) -> None:
    change_tensors(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    expected = "has no tensor model.layers.1.mlp.up_proj.weight; the weights are incomplete"
    with pytest.raises(ValueError, match=expected):
        hub.load(folder)


def test_a_wrong_shape(folder: Path) -> None:
    change_config(folder, intermediate_size=40)
    expected = r"down_proj.weight has shape \(32, 48\), config.json asks for \(32, 40\)"
    with pytest.raises(ValueError, match=expected):
        hub.load(folder)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight"),
        ({}, "extra.weight"),
    ],
)
def test_a_surplus_tensor(folder: Path, fields: dict[str, int], name: str) -> None:
    if not fields:
        change_tensors(folder, lambda t: t.setdefault(name, np.zeros((64, 32), "f4")))
    change_config(folder, **fields)
    with pytest.raises(ValueError, match=f"tensors this model does not have, such as {name}; che"):
        hub.load(folder)


def test_a_tied_model_may_repeat_its_embedding_as_the_head(folder: Path) -> None:
    embed = np.asarray(random_params(SMALL)["embed"])
    change_tensors(folder, lambda t: t.update({"lm_head.weight": embed}))
    jax.tree.map(np.testing.assert_array_equal, hub.load(folder)[1], random_params(SMALL))
    change_tensors(folder, lambda t: t.update({"lm_head.weight": embed + 1}))
    with pytest.raises(UsageError, match="ties its embeddings but holds a lm_head.weight that dif"):
        hub.load(folder)


def test_a_tensor_held_twice(folder: Path) -> None:
    save_file({"model.norm.weight": np.ones(32, "f4")}, folder / "model-2.safetensors")
    with pytest.raises(ValueError, match="holds model.norm.weight a second time; remove one"):
        hub.load(folder)


def test_the_empty_path_is_the_bundled_policy() -> None:
    assert hub.folder("") == hub.BUNDLED
    assert hub.folder("some/where") == Path("some/where")
