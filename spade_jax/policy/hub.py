"""Hugging Face folders: `config.json`, weights and what else belongs to a model, in and out."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spade_jax.policy import model, tensors
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.policy.tensors import Files, InFiles
from spade_jax.types import UsageError

HEAD = "lm_head.weight"
PROGRAMS_FILE = "training_programs.txt"  # fingerprints of the programs a model learned from
COMPANIONS = (  # files that go with the weights and the sizes
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
    PROGRAMS_FILE,
)
BUNDLED = pathlib.Path(__file__).parent.parent / "assets" / "tiny"


def folder(path: str) -> pathlib.Path:
    """The folder of a model; the empty path is the policy shipped with the package."""
    return pathlib.Path(path) if path else BUNDLED


def read_config(path: str | pathlib.Path) -> ModelConfig:
    """Sizes from a folder's `config.json`.

    Raises UsageError where it is missing, broken, or of a model this package does not have.
    """
    file = pathlib.Path(path) / "config.json"
    try:
        return _sizes(file, _read(file))
    except KeyError as error:
        raise UsageError(
            f"{file} has no {error.args[0]}; take the model's own config.json"
        ) from None


def _read(file: pathlib.Path) -> dict[str, Any]:
    if not file.is_file():
        raise UsageError(
            f"{file} is missing; point model.path at a folder of Hugging Face files, or fetch the "
            "model's into this one"
        )
    try:
        return json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{file} is no valid JSON ({error}); take it from the model again"
        ) from None


def _sizes(file: pathlib.Path, raw: dict[str, Any]) -> ModelConfig:
    if raw.get("model_type") not in ("qwen3", "qwen3_moe"):
        raise UsageError(
            f"{file} says model_type {raw.get('model_type')!r}; only 'qwen3' and 'qwen3_moe' are "
            "supported"
        )
    _refuse_variants(file, raw)
    return ModelConfig(
        vocab=raw["vocab_size"],
        width=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"],
        head_size=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        ffn=raw["intermediate_size"],
        rope_theta=_rope_theta(file, raw),
        norm_eps=raw["rms_norm_eps"],
        tied=raw.get("tie_word_embeddings", False),
        max_positions=raw["max_position_embeddings"],
        **(_expert_sizes(file, raw) if raw["model_type"] == "qwen3_moe" else {}),
    )


def _rope_theta(file: pathlib.Path, raw: dict[str, Any]) -> float:
    """The rotary base, which transformers has kept in two places."""
    rope = raw.get("rope_parameters") or {}
    found = {float(v) for v in (raw.get("rope_theta"), rope.get("rope_theta")) if v is not None}
    if not found:
        raise UsageError(f"{file} has no rope_theta; add the model's rotary base")
    if len(found) > 1:
        raise UsageError(
            f"{file} says rope_theta {raw['rope_theta']} and, in rope_parameters, "
            f"{rope['rope_theta']}; keep the one the model was trained with"
        )
    return found.pop()


def _refuse_variants(file: pathlib.Path, raw: dict[str, Any]) -> None:
    """Settings that make a Qwen3 model another function than ours."""
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    for setting, value, expected in (
        ("rope_type", kind, "default"),
        ("hidden_act", raw.get("hidden_act", "silu"), "silu"),
        ("attention_bias", raw.get("attention_bias", False), False),
        ("use_sliding_window", raw.get("use_sliding_window", False), False),
    ):
        if value != expected:
            raise UsageError(
                f"{file} says {setting} {value!r}; only {expected!r} is supported, take a model "
                "trained with that"
            )


def _expert_sizes(file: pathlib.Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Sizes of the experts; transformers keeps their number under either of two names."""
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        raise UsageError(
            f"{file} mixes layers with and without experts (mlp_only_layers "
            f"{raw.get('mlp_only_layers')}, decoder_sparse_step {raw.get('decoder_sparse_step')}); "
            "take a model whose layers all have experts, such as Qwen3-30B-A3B"
        )
    return {
        "experts": raw["num_local_experts" if "num_local_experts" in raw else "num_experts"],
        "experts_per_token": raw["num_experts_per_tok"],
        "expert_ffn": raw["moe_intermediate_size"],
        "normalise_picks": raw["norm_topk_prob"],
    }


def config_json(
    c: ModelConfig, *, eos_id: int, pad_id: int, dtype: str = "float32"
) -> dict[str, Any]:
    """The content of `config.json` for these sizes."""
    mixture = {
        "num_experts": c.experts,
        "num_experts_per_tok": c.experts_per_token,
        "moe_intermediate_size": c.expert_ffn,
        "norm_topk_prob": c.normalise_picks,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return {
        "architectures": ["Qwen3MoeForCausalLM" if c.experts else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if c.experts else "qwen3",
        "vocab_size": c.vocab,
        "hidden_size": c.width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_size,
        "intermediate_size": c.ffn,
        "hidden_act": "silu",
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,
        "tie_word_embeddings": c.tied,
        "max_position_embeddings": c.max_positions,
        "attention_bias": False,
        "use_sliding_window": False,
        "dtype": dtype,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        **(mixture if c.experts else {}),
    }


def stored(path: str | pathlib.Path) -> tuple[ModelConfig, Params]:
    """Sizes of a folder, and the tree of its parameters as `tensors.Stored`: nothing is read yet.

    Raises UsageError unless the files hold exactly the tensors that the sizes ask for.
    """
    c = read_config(path)
    files = Files(pathlib.Path(path))
    surplus = set(files.names)
    declared = model.declare(c)
    for p in jax.tree.leaves(declared, is_leaf=model.is_parameter):
        for name in p.hf_names:
            if name not in files.names:
                raise UsageError(f"{path} has no tensor {name}; the weights are incomplete")
            if files.shape(name) != p.hf_shape:
                raise UsageError(
                    f"{path}: {name} has shape {files.shape(name)}, config.json asks for "
                    f"{p.hf_shape}"
                )
            surplus.remove(name)
    if c.tied and HEAD in surplus:
        _check_tied(files, declared["embed"].hf_name)
        surplus.remove(HEAD)
    if surplus:
        raise UsageError(
            f"{path} holds tensors this model does not have, such as {min(surplus)}; "
            "check config.json (tie_word_embeddings, num_hidden_layers)"
        )
    in_files = jax.tree.map(lambda p: InFiles(p, files), declared, is_leaf=model.is_parameter)
    return c, in_files


def _check_tied(files: Files, embed: str) -> None:
    """Some files of tied models repeat the embedding as the head; it must be the same."""
    rows, step = files.shape(embed)[0], 2**14
    parts = [(slice(n, min(n + step, rows)),) for n in range(0, rows, step)]
    if files.shape(HEAD) != files.shape(embed) or not all(
        np.array_equal(files.read(HEAD, part), files.read(embed, part)) for part in parts
    ):
        raise UsageError(
            f"{files.folder} ties its embeddings but holds a {HEAD} that differs from {embed}; "
            "set tie_word_embeddings to false in config.json, or remove the tensor"
        )


def load(
    path: str | pathlib.Path, *, dtype: str = "float32", shardings: Params | None = None
) -> tuple[ModelConfig, Params]:
    """Sizes and parameters of a folder, each read straight to where its sharding says."""
    c, parameters = stored(path)
    return c, place(parameters, dtype=dtype, shardings=shardings)


def place(parameters: Params, *, dtype: str = "float32", shardings: Params | None = None) -> Params:
    """Arrays of a tree of `tensors.Stored`, read one after the other."""
    if shardings is None:
        shardings = jax.tree.map(lambda _: None, parameters)
    return jax.tree.map(lambda p, s: p.place(jnp.dtype(dtype), s), parameters, shardings)


def save(
    path: str | pathlib.Path,
    c: ModelConfig,
    params: Params,
    *,
    eos_id: int,
    pad_id: int,
    dtype: str = "float32",
) -> None:
    """Write the parameters, in this dtype, and a `config.json` for them."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    _write(path, c, params, dtype)
    _write_json(path, config_json(c, eos_id=eos_id, pad_id=pad_id, dtype=dtype))


def export(
    path: str | pathlib.Path,
    params: Params,
    *,
    like: str | pathlib.Path,
    dtype: str | None = None,
    max_shard: int = tensors.MAX_SHARD,
) -> None:
    """Write parameters (arrays or `tensors.Stored`, in their own or another dtype) with the
    configuration, the tokenizer and all other files of the folder `like`."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    copy_companions(like, path)
    _write(path, read_config(like), params, dtype, max_shard)
    dtype = dtype or str(params["embed"].dtype)
    raw = _read(pathlib.Path(like) / "config.json")
    # transformers has had two names for it; older releases know the older name only.
    _write_json(path, raw | {"torch_dtype" if "torch_dtype" in raw else "dtype": dtype})


def copy_companions(source: str | pathlib.Path, path: pathlib.Path) -> None:
    """Copy what goes with weights and sizes: tokenizer, chat template, generation defaults."""
    for name in COMPANIONS:
        file = pathlib.Path(source) / name
        if file.is_file():
            (path / name).write_bytes(file.read_bytes())


def _write(
    path: pathlib.Path,
    c: ModelConfig,
    params: Params,
    dtype: str | None,
    max_shard: int = tensors.MAX_SHARD,
) -> None:
    declared, treedef = jax.tree.flatten(model.declare(c), is_leaf=model.is_parameter)
    wanted = None if dtype is None else jnp.dtype(dtype)
    tensors.write(path, declared, treedef.flatten_up_to(params), wanted, max_shard)


def _write_json(path: pathlib.Path, raw: dict[str, Any]) -> None:
    """Last of all, so that a folder left half-written is no model."""
    (path / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
