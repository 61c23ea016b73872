"""Low-rank adapters: frozen matrices with small trained updates (LoRA, arXiv 2106.09685).

An adapted matrix is `weight + alpha / rank * a b`. Only `a` and `b` are trained. They are declared
like a model's parameters, under the names `peft` gives them, and so are read and written alike.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
import sys
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from spade_jax.policy import model, tensors
from spade_jax.policy.model import ModelConfig, Parameter, Params
from spade_jax.types import UsageError

ADAPTER = "adapter_model"  # peft's name of the file


class Adapted(flax.struct.PyTreeNode):
    """A matrix, or a stack of them, with its update; calling it computes the sum, in float32."""

    weight: jax.Array  # stack, inputs, outputs
    a: jax.Array  # stack, inputs, rank
    b: jax.Array  # stack, rank, outputs
    scale: float = flax.struct.field(pytree_node=False)

    def __call__(self) -> jax.Array:
        shape, rank = self.weight.shape, self.a.shape[-1]
        stack = shape[: self.a.ndim + self.b.ndim - 2 - self.weight.ndim]
        update = self.a.reshape(*stack, -1, rank) @ self.b.reshape(*stack, rank, -1)
        return self.weight.astype(jnp.float32) + self.scale * update.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Lora:
    """Which matrices are adapted, and how. Calling it assembles a model, see `learn.step`."""

    rank: int
    alpha: float
    targets: str  # regular expression of whole names such as layers/q

    def __call__(self, adapters: Params, frozen: Params | None) -> Params:
        """The model's parameters, as `Adapted` where they have an adapter."""

        def join(weights: Params, trained: Params) -> Params:
            joined = dict(weights)
            for name, own in trained.items():
                if isinstance(weights[name], dict):
                    joined[name] = join(weights[name], own)
                else:
                    joined[name] = Adapted(weights[name], scale=self.alpha / self.rank, **own)
            return joined

        return join(frozen, adapters)


def declare(c: ModelConfig, lora: Lora) -> Params:
    """The adapters of a model of this size, as declared parameters.

    Raises UsageError unless the targets name matrices of the layers.
    """
    try:
        pattern = re.compile(lora.targets)
    except re.error as error:
        raise UsageError(
            f"model.lora.targets {lora.targets!r} is no regular expression ({error}); "
            "correct --config.model.lora.targets"
        ) from None
    matrices = {
        name: p for name, p in model.declare(c)["layers"].items() if p.matrix_axes is not None
    }
    chosen = {name: p for name, p in matrices.items() if pattern.fullmatch(f"layers/{name}")}
    if not chosen:
        raise UsageError(
            f"model.lora.targets {lora.targets!r} matches none of layers/"
            f"{', layers/'.join(matrices)}; correct --config.model.lora.targets"
        )
    return {"layers": {name: _pair(p, lora.rank) for name, p in chosen.items()}}


def _pair(p: Parameter, rank: int) -> dict[str, Parameter]:
    """Declarations of `a`, drawn at random, and `b`, which starts at 0."""
    first, (ins, outs) = len(p.stack), p.matrix_axes
    stack, axes = p.shape[:first], p.axes[:first]
    size_in, size_out = (math.prod(p.shape[k] for k in group) for group in (ins, outs))
    if rank > min(size_in, size_out):
        raise UsageError(
            f"model.lora.rank is {rank} but {p.hf_name} has only {min(size_in, size_out)} inputs "
            "or outputs; lower --config.model.lora.rank or name other model.lora.targets"
        )
    name = "base_model.model." + p.hf_name.removesuffix("weight")
    return {
        "a": Parameter(
            (*stack, *(p.shape[k] for k in ins), rank),
            (*axes, *(p.axes[k] for k in ins), "rank"),
            name + "lora_A.weight",
            (rank, size_in),
            transpose=True,
            init_std=size_in**-0.5,
        ),
        "b": Parameter(
            (*stack, rank, *(p.shape[k] for k in outs)),
            (*axes, "rank", *(p.axes[k] for k in outs)),
            name + "lora_B.weight",
            (size_out, rank),
            transpose=True,
            init_std=0.0,
        ),
    }


def init(c: ModelConfig, lora: Lora, key: jax.Array) -> Params:
    """Float32 adapters that leave the model as it is."""
    leaves, treedef = jax.tree.flatten(declare(c, lora), is_leaf=model.is_parameter)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten(
        p.init_std * jax.random.normal(k, p.shape, jnp.float32)
        for p, k in zip(leaves, keys, strict=True)
    )


def export(
    path: str | pathlib.Path, c: ModelConfig, lora: Lora, adapters: Params, *, base: str
) -> None:
    """Write a folder that `peft` opens on the model `base`.

    Raises UsageError for adapters of experts and routers, which `transformers` holds in another
    form.
    """
    declared, treedef = jax.tree.flatten(declare(c, lora), is_leaf=model.is_parameter)
    modules = [p.hf_name.split(".{layer}.")[1].split(".lora_")[0] for p in declared]
    if any("mlp" in name for name in modules) and c.experts:
        raise UsageError(
            f"adapters of experts ({lora.targets}) have no form that peft opens; export the model "
            "with its adapters merged"
        )
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    values = treedef.flatten_up_to(adapters)
    tensors.write(path, declared, values, max_shard=sys.maxsize, stem=ADAPTER)
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(set(modules)),
        "inference_mode": True,
    }
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
