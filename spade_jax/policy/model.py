"""Qwen3, dense and mixture of experts, as plain functions over a pytree of arrays.

Each parameter is declared once, in `declare`: shape, logical axes, initialiser and Hugging Face
name. Initial values, abstract shapes and the reading and writing of files follow from that.

Architecture: pre-norm transformer with grouped-query attention, RMS norm on queries and keys per
head, rotary positions and a gated SiLU feed-forward, or in each layer a mixture of such experts
(Qwen3 technical report, arXiv 2505.09388).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from spade_jax.policy import experts, sharding
from spade_jax.policy.attention import attention
from spade_jax.policy.kernels import Kernels, choose, on_one_cpu, once
from spade_jax.policy.panels import Panels
from spade_jax.types import UsageError

Params = dict[str, Any]
ROWS = ("batch", "length", None)  # logical axes of x_BTD
UNROLLED = 8  # at most so many layers are unrolled

# What the backward pass finds of a layer besides its input; the rest it computes again.
REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "products": jax.checkpoint_policies.save_from_both_policies(  # with weights, and attention
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names("attention"),
    ),
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # products with weights
    "attention": jax.checkpoint_policies.save_only_these_names("attention"),  # its output
    "layer": jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Qwen3 model. Letters in brackets are those of `types.py`."""

    vocab: int  # V
    width: int  # D
    layers: int  # L
    heads: int  # H
    kv_heads: int  # K
    head_size: int  # C
    ffn: int  # F, of layers without experts
    rope_theta: float
    norm_eps: float
    tied: bool  # the output projection is the embedding
    max_positions: int
    experts: int = 0  # X; 0: every layer has one dense feed-forward
    experts_per_token: int = 0  # P
    expert_ffn: int = 0  # F of an expert
    normalise_picks: bool = False  # the weights of a token's experts sum to 1

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}); "
                "correct num_attention_heads or num_key_value_heads in config.json"
            )
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token ({self.experts_per_token}) must be from 1 to the number of "
                f"experts ({self.experts}); correct num_experts_per_tok in config.json"
            )


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Declaration of one array; leading axes named layer and expert stack tensors of a file.

    `hf_name` is the tensor's name in a Hugging Face file, with `{layer}` and `{expert}` where it
    is stacked; `hf_shape` is one tensor's shape there, and `transpose` says that (out, in) is
    stored for our (in, out).
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    hf_name: str
    hf_shape: tuple[int, ...]
    transpose: bool = False
    init_std: float | None = None  # None: ones

    @property
    def stack(self) -> tuple[int, ...]:
        """Sizes of the leading axes along which tensors of a file are stacked."""
        stacked = itertools.takewhile(("layer", "expert").__contains__, self.axes)
        return self.shape[: len(list(stacked))]

    @property
    def hf_names(self) -> list[str]:
        """Names of the tensors it is made of, in the order in which they are stacked."""
        axes = self.axes[: len(self.stack)]
        return [
            self.hf_name.format(**dict(zip(axes, index, strict=True)))
            for index in itertools.product(*map(range, self.stack))
        ]

    @property
    def matrix_axes(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Input and output axes of a layer's matrix; None for norms, embedding and head."""
        if not (self.stack and self.transpose):
            return None
        first = len(self.stack)
        axes = range(first, len(self.shape))
        split = next(
            k
            for k in range(1, len(axes))
            if math.prod(self.shape[first : first + k]) == self.hf_shape[1]
        )
        return tuple(axes[:split]), tuple(axes[split:])


def declare(c: ModelConfig) -> dict[str, Any]:
    """The tree of all parameters of a model of this size."""
    d, h, k, s, n = c.width, c.heads, c.kv_heads, c.head_size, c.layers
    std = 0.02
    out_std = std / math.sqrt(2 * n)
    layer = "model.layers.{layer}."

    def norm(name: str, size: int, axis: str) -> Parameter:
        return Parameter((n, size), ("layer", axis), layer + name + ".weight", (size,))

    def weight(
        name: str, ins: dict[str, int], outs: dict[str, int], std: float, experts: int = 0
    ) -> Parameter:
        stack = {"layer": n} | ({"expert": experts} if experts else {})
        sizes = {**stack, **ins, **outs}
        hf_shape = (math.prod(outs.values()), math.prod(ins.values()))
        shape, axes = tuple(sizes.values()), tuple(sizes)
        return Parameter(shape, axes, layer + name + ".weight", hf_shape, True, std)

    def feed_forward(prefix: str, size: int, experts: int) -> dict[str, Parameter]:
        ins, outs = {"model": d}, {"ffn": size}
        return {
            "gate": weight(prefix + "gate_proj", ins, outs, std, experts),
            "up": weight(prefix + "up_proj", ins, outs, std, experts),
            "down": weight(prefix + "down_proj", outs, ins, out_std, experts),
        }

    if c.experts:
        mlp = {"router": weight("mlp.gate", {"model": d}, {"router": c.experts}, std)}
        mlp |= feed_forward("mlp.experts.{expert}.", c.expert_ffn, c.experts)
    else:
        mlp = feed_forward("mlp.", c.ffn, 0)
    tree: dict[str, Any] = {
        "embed": Parameter(
            (c.vocab, d),
            ("vocab", "model"),
            "model.embed_tokens.weight",
            (c.vocab, d),
            init_std=std,
        ),
        "layers": {
            "attn_norm": norm("input_layernorm", d, "model"),
            "q": weight("self_attn.q_proj", {"model": d}, {"head": h, "head_size": s}, std),
            "k": weight("self_attn.k_proj", {"model": d}, {"kv_head": k, "head_size": s}, std),
            "v": weight("self_attn.v_proj", {"model": d}, {"kv_head": k, "head_size": s}, std),
            "q_norm": norm("self_attn.q_norm", s, "head_size"),
            "k_norm": norm("self_attn.k_norm", s, "head_size"),
            "o": weight("self_attn.o_proj", {"head": h, "head_size": s}, {"model": d}, out_std),
            "ffn_norm": norm("post_attention_layernorm", d, "model"),
            **mlp,
        },
        "final_norm": Parameter((d,), ("model",), "model.norm.weight", (d,)),
    }
    if not c.tied:
        tree["head"] = Parameter(
            (d, c.vocab), ("model", "vocab"), "lm_head.weight", (c.vocab, d), True, std
        )
    return tree


def is_parameter(x: object) -> bool:
    """Leaf test for trees of declarations."""
    return isinstance(x, Parameter)


def init(c: ModelConfig, key: jax.Array) -> Params:
    """Random float32 parameters: normal with the declared deviation, norms at one."""
    leaves, treedef = jax.tree.flatten(declare(c), is_leaf=is_parameter)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten(
        jnp.ones(p.shape, jnp.float32)
        if p.init_std is None
        else p.init_std * jax.random.normal(k, p.shape, jnp.float32)
        for p, k in zip(leaves, keys, strict=True)
    )


def abstract(c: ModelConfig) -> Params:
    """Shapes and dtypes of the parameters, nothing allocated."""
    return jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), declare(c), is_leaf=is_parameter
    )


def count(c: ModelConfig) -> int:
    """Number of parameters."""
    return sum(math.prod(p.shape) for p in jax.tree.leaves(declare(c), is_leaf=is_parameter))


def arrays(params: Params) -> Params:
    """The parameters with those that are computed, such as an adapted matrix, computed: called."""
    return jax.tree.map(lambda leaf: leaf() if callable(leaf) else leaf, params, is_leaf=callable)


def merged(params: Params) -> Params:
    """The same outside of jit: those that are arrays are not copied."""
    return jax.tree.map(
        lambda leaf: _call(leaf) if callable(leaf) else leaf, params, is_leaf=callable
    )


@jax.jit
def _call(leaf: Callable[[], jax.Array]) -> jax.Array:
    return leaf()


def in_compute_dtype(params: Params, c: ModelConfig, dtype: jnp.dtype) -> Params:
    """Matrices in the dtype they are multiplied in (as by `gather`); scales of norms stay."""
    return jax.tree.map(
        lambda p, w: w.astype(dtype) if len(p.shape) - len(p.stack) > 1 else w,
        declare(c),
        params,
        is_leaf=is_parameter,
    )


# -- building blocks --------------------------------------------------------------------------


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis, statistics in float32, x's dtype kept."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale.reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


def rotary_angles(positions_BT: jax.Array, c: ModelConfig) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines, each (B, T, 1, C/2) float32, of the rotary embedding."""
    half = c.head_size // 2

    def make() -> tuple[jax.Array, jax.Array]:
        frequencies = c.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
        positions = positions_BT[:, :, None, None].astype(jnp.float32)
        angles = positions * frequencies[None, None, None, :]
        return jnp.cos(angles), jnp.sin(angles)

    return once(make, positions_BT[0, 0])


def rotate(x_BTHC: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate each pair (first half, second half) of every head by its position's angle."""
    x = x_BTHC.astype(jnp.float32)
    if on_one_cpu():  # whose loops over a concatenation are not vectorised
        halves = x.reshape(*x.shape[:-1], 2, -1)
        signed = jnp.stack([-sin, sin], axis=-2)
        x = (halves * cos[..., None, :] + halves[..., ::-1, :] * signed).reshape(x.shape)
    else:
        a, b = jnp.split(x, 2, axis=-1)
        x = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return x.astype(x_BTHC.dtype)


def linear(x_BTI: jax.Array, w: jax.Array | Panels, ins: int = 1) -> jax.Array:
    """Product over x's last axis and w's first `ins`, in x's dtype.

    One plain matrix product of all tokens: on a CPU its gradient is a quarter cheaper than that
    of a contraction over batch and time as two axes.
    """
    b, t, size = x_BTI.shape
    x_NI = x_BTI.reshape(b * t, size)
    if isinstance(w, Panels):
        return w.multiply(x_NI).astype(x_NI.dtype).reshape(b, t, *w.outs)
    out = x_NI @ w.reshape(size, -1).astype(x_NI.dtype)
    return out.reshape(b, t, *w.shape[ins:])


def project(
    p: Params, x_BTD: jax.Array, angles: tuple[jax.Array, jax.Array], c: ModelConfig
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries (B,T,H,C), keys and values (B,T,K,C) of one layer; queries and keys rotated."""
    x_BTD = rms_norm(x_BTD, p["attn_norm"], c.norm_eps)
    x_BTD = sharding.constrain(x_BTD, ("batch", None, None))
    q_BTHC, k_BTKC, v_BTKC = (linear(x_BTD, p[name]) for name in "qkv")
    q_BTHC = rotate(rms_norm(q_BTHC, p["q_norm"], c.norm_eps), *angles)
    k_BTKC = rotate(rms_norm(k_BTKC, p["k_norm"], c.norm_eps), *angles)
    return q_BTHC, k_BTKC, v_BTKC


def finish_layer(
    p: Params,
    x_BTD: jax.Array,
    out_BTHC: jax.Array,
    c: ModelConfig,
    kernels: Kernels | None = None,
    layer: jax.Array | None = None,
) -> jax.Array:
    """Add a layer's attention output and its feed-forward to the residual stream.

    With `layer`, its number, the experts' matrices in `p` are those of all layers.
    """
    b, t = x_BTD.shape[:2]
    x_BTD = x_BTD + linear(out_BTHC.reshape(b, t, -1), p["o"], ins=2)
    x_BTD = sharding.constrain(x_BTD, ROWS)
    y_BTD = rms_norm(x_BTD, p["ffn_norm"], c.norm_eps)
    if c.experts:
        return x_BTD + experts.feed_forward(
            p,
            y_BTD,
            picks=c.experts_per_token,
            normalise=c.normalise_picks,
            product=(kernels or choose()).experts,
            layer=layer,
        )
    gated_BTF = jax.nn.silu(linear(y_BTD, p["gate"])) * linear(y_BTD, p["up"])
    return x_BTD + linear(gated_BTF, p["down"])


def gather(p: Params, c: ModelConfig, dtype: jnp.dtype) -> Params:
    """One layer's parameters where the layer is computed: matrices in its dtype, not in pieces."""
    declared = declare(c)["layers"]

    def one(name: str, w: jax.Array) -> jax.Array:
        w = w.astype(dtype) if w.ndim > 1 else w
        return sharding.constrain(w, declared[name].axes[1:])

    return {name: one(name, w) for name, w in p.items()}


def embed(params: Params, tokens_BT: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Token vectors (B, T, D) in the compute dtype."""
    table_VD = sharding.constrain(params["embed"], ("vocab", None))
    return sharding.constrain(table_VD[tokens_BT].astype(dtype), ROWS)


def logits(params: Params, x_ND: jax.Array, c: ModelConfig) -> jax.Array:
    """Float32 logits (N, V) of hidden vectors that already passed the final norm."""
    if isinstance(params.get("head"), Panels):
        return params["head"].multiply(x_ND)
    if c.tied:
        return jnp.einsum(
            "ND,VD->NV",
            x_ND,
            params["embed"].astype(x_ND.dtype),
            preferred_element_type=jnp.float32,
        )
    return jnp.einsum(
        "ND,DV->NV", x_ND, params["head"].astype(x_ND.dtype), preferred_element_type=jnp.float32
    )


# -- whole sequences --------------------------------------------------------------------------


def hidden(
    params: Params,
    tokens_BT: jax.Array,
    positions_BT: jax.Array,
    segments_BT: jax.Array,
    c: ModelConfig,
    *,
    dtype: jnp.dtype = jnp.float32,
    remat: str = "none",
    kernels: Kernels | None = None,
) -> jax.Array:
    """Final hidden vectors (B, T, D) of packed rows.

    `segments_BT` numbers the sequences of a row; a token sees earlier tokens of its own segment
    only, at the rotary positions given. `remat` names what the backward pass keeps, see REMAT;
    `kernels` are the platform's where none are given.
    """
    kernels = kernels or choose()
    if remat not in REMAT:
        raise UsageError(f"remat is {remat!r}; choose one of {', '.join(REMAT)}")
    angles = rotary_angles(positions_BT, c)

    def layer(x_BTD: jax.Array, p: Params) -> tuple[jax.Array, None]:
        with jax.named_scope("layer"):
            # A layer at a time, so that no computed or gathered matrix outlives its use.
            p = gather(arrays(p), c, dtype)
            q_BTHC, k_BTKC, v_BTKC = project(p, x_BTD, angles, c)
            out_BTHC = attention(kernels.attention, q_BTHC, k_BTKC, v_BTKC, segments_BT)
            x_BTD = finish_layer(p, x_BTD, out_BTHC, c, kernels)
            return sharding.constrain(x_BTD, ROWS), None

    body = layer if remat == "none" else jax.checkpoint(layer, policy=REMAT[remat])
    # A few layers run a quarter faster unrolled; many compile once as a loop.
    x_BTD, _ = jax.lax.scan(
        body, embed(params, tokens_BT, dtype), params["layers"], unroll=c.layers <= UNROLLED
    )
    return rms_norm(x_BTD, params["final_norm"], c.norm_eps)


def token_logps(
    params: Params,
    x_BTD: jax.Array,
    targets_BT: jax.Array,
    temperature_BT: jax.Array,
    c: ModelConfig,
    *,
    chunk: int = 1024,
) -> tuple[jax.Array, jax.Array]:
    """Tempered log-probability of `targets_BT` and entropy (nats), each (B, T) float32.

    `x_BTD[:, t]` predicts `targets_BT[:, t]`. Only about `chunk` tokens' logits exist at a time on
    a device, some columns of all its rows; the backward pass recomputes them.
    """
    b, t, d = x_BTD.shape
    x_BTD = sharding.constrain(x_BTD, ("batch", None, None))
    rows = b // sharding.pieces(b)
    columns = max(n for n in range(1, t + 1) if t % n == 0 and (n == 1 or n * rows <= chunk))
    name, axes = ("embed", ("vocab", None)) if c.tied else ("head", (None, "vocab"))
    projection = {name: sharding.constrain(params[name].astype(x_BTD.dtype), axes)}

    @jax.checkpoint
    def block(args: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_BTD, target_BT, temperature_BT = args
        scores_NV = logits(projection, x_BTD.reshape(b * columns, d), c)
        scores_NV = scores_NV / temperature_BT.reshape(b * columns, 1)
        logp_NV = jax.nn.log_softmax(scores_NV, axis=-1)
        logp_N = jnp.take_along_axis(logp_NV, target_BT.reshape(b * columns, 1), axis=-1)[:, 0]
        entropy_N = -jnp.sum(jnp.exp(logp_NV) * logp_NV, axis=-1)
        return jnp.minimum(logp_N, 0.0).reshape(b, columns), entropy_N.reshape(b, columns)

    def cut(a: jax.Array) -> jax.Array:
        return a.reshape(b, t // columns, columns, *a.shape[2:]).swapaxes(0, 1)

    logp, entropy = jax.lax.map(block, (cut(x_BTD), cut(targets_BT), cut(temperature_BT)))
    return logp.swapaxes(0, 1).reshape(b, t), entropy.swapaxes(0, 1).reshape(b, t)
