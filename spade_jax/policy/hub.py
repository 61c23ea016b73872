"""Hugging Face folders: `config.json` and safetensors with Qwen3's tensor names, in and out."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from spade_jax.policy import model
from spade_jax.policy.model import ModelConfig, Parameter, Params
from spade_jax.types import UsageError

PROGRAMS_FILE = "training_programs.txt"  # fingerprints of the programs a model learned from
BUNDLED = pathlib.Path(__file__).parent.parent / "assets" / "tiny"


def folder(path: str) -> pathlib.Path:
    """The folder of a model; the empty path is the policy shipped with the package."""
    return pathlib.Path(path) if path else BUNDLED


def read_config(path: str | pathlib.Path) -> ModelConfig:
    """Sizes from a folder's `config.json`.

    Raises UsageError where it is missing, broken, or of a model this package does not have. The
    rotary base is read from both places transformers keeps it.
    """
    file = pathlib.Path(path) / "config.json"
    if not file.is_file():
        raise UsageError(f"{file} is missing; point model.path at a folder of Hugging Face files")
    try:
        raw = json.loads(file.read_text())
        return _sizes(file, raw)
    except KeyError as error:
        raise UsageError(
            f"{file} has no {error.args[0]}; take the model's own config.json"
        ) from None
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
    theta = raw.get("rope_theta") or (raw.get("rope_parameters") or {}).get("rope_theta")
    if theta is None:
        raise UsageError(f"{file} has no rope_theta; add the model's rotary base")
    return ModelConfig(
        vocab=raw["vocab_size"],
        width=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"],
        head_size=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        ffn=raw["intermediate_size"],
        rope_theta=float(theta),
        norm_eps=raw["rms_norm_eps"],
        tied=raw.get("tie_word_embeddings", False),
        max_positions=raw["max_position_embeddings"],
        **(_expert_sizes(file, raw) if raw["model_type"] == "qwen3_moe" else {}),
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


def config_json(c: ModelConfig, *, eos_id: int, pad_id: int) -> dict[str, Any]:
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
        "dtype": "float32",
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        **(mixture if c.experts else {}),
    }


def load(path: str | pathlib.Path) -> tuple[ModelConfig, Params]:
    """Sizes and float32 parameters of a folder; every parameter is filled exactly once."""
    c = read_config(path)
    files = sorted(pathlib.Path(path).glob("*.safetensors"))
    if not files:
        raise UsageError(f"{path} has no .safetensors file; put the model's weights there")
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as f:
                found = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise UsageError(f"{file} is damaged ({error}); take it from the model again") from None
        for name in found.keys() & tensors.keys():
            raise UsageError(f"{file} holds {name} a second time; remove one of the files")
        tensors |= found

    def fill(p: Parameter) -> jax.Array:
        stacked = []
        for name in p.hf_names:
            if name not in tensors:
                raise UsageError(f"{path} has no tensor {name}; the weights are incomplete")
            t = tensors.pop(name)
            if t.shape != p.hf_shape:
                raise UsageError(
                    f"{path}: {name} has shape {t.shape}, config.json asks for {p.hf_shape}"
                )
            stacked.append((t.T if p.transpose else t).astype(np.float32))
        return jnp.asarray(np.stack(stacked).reshape(p.shape))

    params = jax.tree.map(fill, model.declare(c), is_leaf=model.is_parameter)
    if tensors:
        raise UsageError(
            f"{path} holds tensors this model does not have, such as {min(tensors)}; "
            "check config.json (tie_word_embeddings, num_hidden_layers)"
        )
    return c, params


def save(
    path: str | pathlib.Path, c: ModelConfig, params: Params, *, eos_id: int, pad_id: int
) -> None:
    """Write `config.json` and `model.safetensors` in float32."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}

    def put(p: Parameter, value: jax.Array) -> None:
        value = np.asarray(value, np.float32)
        parts = value.reshape(-1, *(p.hf_shape[::-1] if p.transpose else p.hf_shape))
        for name, one in zip(p.hf_names, parts, strict=True):
            one = one.T if p.transpose else one
            tensors[name] = np.ascontiguousarray(one)

    jax.tree.map(put, model.declare(c), params, is_leaf=model.is_parameter)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config_json(c, eos_id=eos_id, pad_id=pad_id), indent=2)
    (path / "config.json").write_text(text + "\n")
