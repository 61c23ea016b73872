"""Prefill and decoding on the device: a cache of slots, written once a block.

The cache holds the keys and values of every slot's tokens, in the slot's own columns from 0 on.
`prefill` and `decode` only read it: what they add is kept in a small buffer beside it, whose
columns advance for all rows at once, and which `write` then puts into each slot's own place. A
program that both read and wrote the large arrays would copy them.

A few layers lie in arrays of their own, many in one array that is scanned over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from spade_jax.policy import buckets, cached, drawing, experts, model, panels, sharding
from spade_jax.policy.kernels import choose
from spade_jax.policy.model import UNROLLED, ModelConfig, Params


class Cache(NamedTuple):
    """Keys (B,K,C,S) and values (B,K,S,C) of each layer, or of all, on an axis L in front of B.

    Head size before length in the keys: on a CPU that is several times faster when one query
    meets a long cache. What lies beyond a slot's length means nothing.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]


def scanned(c: ModelConfig) -> bool:
    """Whether all layers lie in one array."""
    return c.layers > UNROLLED


def empty_cache(c: ModelConfig, slots: int, columns: int, dtype: jnp.dtype) -> Cache:
    """A cache with room for `columns` tokens in each slot."""
    count, stack = (1, (c.layers,)) if scanned(c) else (c.layers, ())
    shape = (*stack, slots, c.kv_heads)
    return lay_out(
        Cache(
            keys=tuple(jnp.zeros((*shape, c.head_size, columns), dtype) for _ in range(count)),
            values=tuple(jnp.zeros((*shape, columns, c.head_size), dtype) for _ in range(count)),
        )
    )


def lay_out(cache: Cache) -> Cache:
    """The cache on the mesh in use: slots and key heads in pieces."""
    axes = (None, "batch", "kv_head", None, None)
    return jax.tree.map(lambda a: sharding.constrain(a, axes[-a.ndim :]), cache)


def read(cache: Cache, slots_R: jax.Array, columns: int) -> Cache:
    """The first `columns` of the given slots; a slot beyond the last gives anything."""
    return lay_out(
        Cache(
            keys=tuple(k.at[..., slots_R, :, :, :columns].get(mode="clip") for k in cache.keys),
            values=tuple(v.at[..., slots_R, :, :columns, :].get(mode="clip") for v in cache.values),
        )
    )


class Blocks(NamedTuple):
    """Columns in use of R rows in P blocks of W, one row's after another's.

    Keys are (P,K,C,W) and values (P,K,W,C), of each layer or with an axis L in front of P.
    """

    cache: Cache
    row_P: jax.Array  # whose a block is; R where it is nobody's
    seen_P: jax.Array  # its columns in use, the first ones


def in_blocks(cache: Cache, slots_R: jax.Array, length_R: jax.Array, count: int) -> Blocks:
    """What the given slots hold, in `count` blocks, which is at least as many as they fill."""
    width = buckets.COLUMN_STEP
    count_R = -(-length_R // width)
    end_R, block_P = jnp.cumsum(count_R), jnp.arange(count)
    row_P = jnp.searchsorted(end_R, block_P, side="right")
    start_P = width * (block_P - (end_R - count_R).at[row_P].get(mode="clip"))
    slot_P = slots_R.at[row_P].get(mode="clip")

    def cut(a: jax.Array, columns: int) -> jax.Array:
        """The blocks of an array whose columns are on axis `columns`, from the last."""
        sizes = [1 if n == a.ndim - 4 else size for n, size in enumerate(a.shape)]
        sizes[columns] = width

        def one(slot: jax.Array, start: jax.Array) -> jax.Array:
            at = [0] * a.ndim
            at[-4], at[columns] = slot, start
            return jax.lax.dynamic_slice(a, at, sizes).squeeze(-4)

        return jax.vmap(one, out_axes=a.ndim - 4)(slot_P, start_P)

    return Blocks(
        cache=lay_out(
            Cache(
                keys=tuple(cut(k, -1) for k in cache.keys),
                values=tuple(cut(v, -2) for v in cache.values),
            )
        ),
        row_P=row_P,
        seen_P=jnp.clip(length_R.at[row_P].get(mode="fill", fill_value=0) - start_P, 0, width),
    )


def stack(cache: Cache) -> Cache:
    """All layers in one array, to be scanned over."""
    if cache.keys[0].ndim == 5:
        return cache
    return Cache(keys=(jnp.stack(cache.keys),), values=(jnp.stack(cache.values),))


def apart(cache: Cache) -> Cache:
    """Each layer in an array of its own."""
    return Cache(*(tuple(a[n] for n in range(len(a))) for (a,) in cache))


@functools.partial(jax.jit, donate_argnames=("cache",))
def write(cache: Cache, new: Cache, slots_R: jax.Array, start_R: jax.Array) -> Cache:
    """Put the columns of `new` into the given slots from `start_R` on; a slot beyond the last is
    none, and its row is dropped."""

    def into(old: jax.Array, new: jax.Array, length_axis: int) -> jax.Array:
        slots = old.ndim - 4
        numbers = jax.lax.ScatterDimensionNumbers(
            update_window_dims=tuple(n for n in range(old.ndim) if n != slots),
            inserted_window_dims=(slots,),
            scatter_dims_to_operand_dims=(slots, slots + length_axis),
        )
        places_R2 = jnp.stack([slots_R, start_R], axis=1)
        return jax.lax.scatter(old, places_R2, new, numbers, mode="drop")

    return lay_out(
        Cache(
            keys=tuple(into(a, b, 3) for a, b in zip(cache.keys, new.keys, strict=True)),
            values=tuple(into(a, b, 2) for a, b in zip(cache.values, new.values, strict=True)),
        )
    )


def advance(
    params: Params,
    old: Cache | Blocks,
    length_R: jax.Array,
    recent: Cache,
    column: jax.Array,
    tokens_RT: jax.Array,
    c: ModelConfig,
) -> tuple[jax.Array, Cache]:
    """Hidden vectors (R, T, D) of T more tokens a row, and `recent` with their columns filled.

    Each token sees its row's first `length_R` columns of `old`, the first `column` columns of
    `recent`, and the tokens before it and itself. From blocks a row has one token.
    """
    t = tokens_RT.shape[1]
    positions_RT = length_R[:, None] + column + jnp.arange(t)[None, :]
    angles = model.rotary_angles(positions_RT, c)

    kernels = choose()
    stacked = experts.MATRICES if c.experts and kernels.experts in experts.STACKED else ()
    whole = {name: params["layers"][name] for name in stacked}
    in_place = t == 1 and kernels.cached != "einsum" and not isinstance(old, Blocks)
    if isinstance(old, Blocks):
        of_blocks = functools.partial(cached.blocks, row_P=old.row_P, seen_P=old.seen_P)
        attend_to, old = functools.partial(attend_beside, of_blocks), old.cache
    elif in_place:  # by a kernel that takes all layers and a number
        of_slots = functools.partial(cached.attend, kernels.cached, length_B=length_R)
        attend_to = functools.partial(attend_beside, of_slots)
    else:
        attend_to = functools.partial(attend, seen(old, length_R, recent, column, t))

    def layer(x_RTD: jax.Array, parts: tuple, held: tuple) -> tuple[jax.Array, tuple]:
        """A layer: its parameters, its number, its part of what is recent, and what it attends
        to in the old cache, `held`."""
        p, number, recent = parts
        q_RTHC, k_RTKC, v_RTKC = model.project(p, x_RTD, angles, c)
        recent = put(recent, k_RTKC, v_RTKC, column)
        out_RTHC = attend_to(q_RTHC, held, recent, column)
        number = number if stacked else None
        return model.finish_layer(p | whole, x_RTD, out_RTHC, c, kernels, number), recent

    def scan_layer(x_RTD: jax.Array, parts: tuple) -> tuple[jax.Array, tuple]:
        p, number, recent, held = parts
        return layer(x_RTD, (p, number, recent), (*all_held, number) if in_place else held)

    x_RTD = model.embed(params, tokens_RT, old.keys[0].dtype)
    before, during = zip(*old, strict=True), zip(*recent, strict=True)  # keys and values
    if recent.keys[0].ndim == 5:  # all layers' in one
        [all_held], [all_recent] = before, during
        each = {name: w for name, w in params["layers"].items() if name not in stacked}
        parts = each, jnp.arange(c.layers), all_recent, () if in_place else all_held
        x_RTD, made = jax.lax.scan(scan_layer, x_RTD, parts)
        return x_RTD, Cache(*((a,) for a in made))
    made = []
    layers = zip(one_by_one(params, c), before, during, strict=True)
    for n, (p, held, part) in enumerate(layers):
        of = (*(a[None] for a in held), jnp.zeros((), jnp.int32)) if in_place else held
        x_RTD, new = layer(x_RTD, (p, jnp.asarray(n), part), of)
        made.append(new)
    return x_RTD, Cache(*zip(*made, strict=True))


def put(
    recent: tuple[jax.Array, jax.Array], k_RTKC: jax.Array, v_RTKC: jax.Array, column: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A layer's recent keys and values with those of T more columns."""
    keys_RKCS, values_RKSC = recent
    k_RKCT, v_RKTC = k_RTKC.transpose(0, 2, 3, 1), v_RTKC.transpose(0, 2, 1, 3)
    return (
        jax.lax.dynamic_update_slice(keys_RKCS, k_RKCT, (0, 0, 0, column)),
        jax.lax.dynamic_update_slice(values_RKSC, v_RKTC, (0, 0, column, 0)),
    )


def one_by_one(params: Params, c: ModelConfig) -> tuple[Params, ...]:
    """Each layer's parameters."""
    layers = params["layers"]
    if isinstance(layers, tuple):
        return layers
    return tuple(jax.tree.map(lambda a, n=n: a[n], layers) for n in range(c.layers))


@functools.partial(jax.jit, static_argnames=("c",))
def prepare(params: Params, c: ModelConfig) -> Params:
    """Layers and head as a CPU decodes fastest with them: one by one, and in panels.

    A slice of stacked layers would be copied at each step.
    """
    declared = model.declare(c)["layers"]

    def one(name: str, w: jax.Array) -> jax.Array | panels.Panels:
        axes = declared[name].matrix_axes
        if axes is None or (c.experts and name not in ("q", "k", "v", "o")):
            return w
        return panels.cut(w, ins=len(axes[0]))

    layers = [{name: one(name, w) for name, w in p.items()} for p in one_by_one(params, c)]
    head_DV = params["embed"].T if c.tied else params["head"]
    return {"layers": tuple(layers), "head": panels.cut(head_DV)}


def seen(old: Cache, length_R: jax.Array, recent: Cache, column: jax.Array, t: int) -> jax.Array:
    """Which columns of `old` and, after them, of `recent` each of T more tokens of a row sees."""
    n_old, n_recent = (part.values[0].shape[-2] for part in (old, recent))
    old_RTS = jnp.arange(n_old)[None, None, :] < length_R[:, None, None]
    recent_TN = jnp.arange(n_recent)[None, :] <= column + jnp.arange(t)[:, None]
    return jnp.concatenate(
        [
            jnp.broadcast_to(old_RTS, (len(length_R), t, n_old)),
            jnp.broadcast_to(recent_TN[None], (len(length_R), t, n_recent)),
        ],
        axis=-1,
    )


def attend(
    visible_RTS: jax.Array,
    q_RTHC: jax.Array,
    held: tuple[jax.Array, jax.Array],
    recent: tuple[jax.Array, jax.Array],
    column: jax.Array,
) -> jax.Array:
    """Attention to the visible columns of old and recent keys (R,K,C,S) and values (R,K,S,C)."""
    del column  # which `visible_RTS` knows
    r, t, h, size = q_RTHC.shape
    kv = recent[0].shape[1]
    q_RKXC = q_RTHC.reshape(r, t, kv, h // kv, size).transpose(0, 2, 3, 1, 4)
    q_RKXC = q_RKXC.reshape(r, kv, (h // kv) * t, size) * size**-0.5
    parts = held, recent
    scores = jnp.concatenate(
        [
            jnp.einsum("RKXC,RKCS->RKXS", q_RKXC, k, preferred_element_type=jnp.float32)
            for k, _ in parts
        ],
        axis=-1,
    )
    mask = visible_RTS[:, None, None, :, :]
    scores = jnp.where(mask, scores.reshape(r, kv, h // kv, t, -1), -1e30)
    weights = jax.nn.softmax(scores, axis=-1).reshape(r, kv, (h // kv) * t, -1)
    out, start = 0.0, 0
    for _, v in parts:
        end = start + v.shape[2]
        out += jnp.einsum("RKXS,RKSC->RKXC", weights[..., start:end].astype(v.dtype), v)
        start = end
    out = out.reshape(r, kv, h // kv, t, size).transpose(0, 3, 1, 2, 4)
    return out.reshape(r, t, h, size)


def attend_beside(
    older: Callable[..., cached.Part],
    q_R1HC: jax.Array,
    held: tuple[jax.Array, ...],
    recent: tuple[jax.Array, jax.Array],
    column: jax.Array,
) -> jax.Array:
    """`attend` for one token a row, where `older(q_RKGC, *held)` is the part of the old columns."""
    r, _, h, size = q_R1HC.shape
    kv = recent[0].shape[1]
    q_RKGC = q_R1HC.reshape(r, kv, h // kv, size) * size**-0.5
    newer = (a[None] for a in recent)
    seen_R = jnp.full((r,), column + 1)
    parts = [
        older(q_RKGC, *held),
        cached.einsum(q_RKGC, *newer, jnp.zeros((), jnp.int32), seen_R),
    ]
    return cached.join(parts).astype(q_R1HC.dtype).reshape(r, 1, h, size)


def told(tree: Any) -> Any:
    """What the host reads, on each device whole: none of it lies on other hosts' devices alone."""
    return jax.tree.map(lambda a: sharding.constrain(a, (None,) * a.ndim), tree)


class Replies(NamedTuple):
    """State of the replies of R rows, as integers and floats of the host's record."""

    stream_RI: jax.Array  # uint32: names the random stream
    count_R: jax.Array  # int32: tokens sampled so far
    budget_R: jax.Array  # int32: most tokens; 0 leaves a row alone
    how: drawing.Rows


class Sampled(NamedTuple):
    """New tokens: ids and both log-probabilities (R, N), and how many of them count."""

    ids_RN: jax.Array
    logp_RN: jax.Array
    behaviour_RN: jax.Array
    count_R: jax.Array


def _draw(
    params: Params,
    x_RD: jax.Array,
    uniform_R2: jax.Array,
    how: drawing.Rows,
    c: ModelConfig,
    truncated: bool,
) -> drawing.Draw:
    """The next token of every reply, from the last hidden vectors."""
    x_RD = model.rms_norm(x_RD, params["final_norm"], c.norm_eps)
    return drawing.draw(model.logits(params, x_RD, c), uniform_R2, how, truncated=truncated)


@functools.partial(jax.jit, static_argnames=("c", "columns", "truncated"))
def prefill(
    params: Params,
    cache: Cache,
    slots_R: jax.Array,
    length_R: jax.Array,
    tokens_RT: jax.Array,
    count_R: jax.Array,
    replies: Replies,
    *,
    c: ModelConfig,
    columns: int,
    truncated: bool,
) -> tuple[Cache, drawing.Draw]:
    """Keys and values of `count_R` tokens after each slot's `length_R`, and the token drawn next.

    `columns` is at least every length. Rows are padded on the right.
    """
    old = stack(read(cache, slots_R, columns))
    r, t = tokens_RT.shape
    zeros = stack(empty_cache(c, r, t, cache.keys[0].dtype))
    x_RTD, new = advance(params, old, length_R, zeros, jnp.zeros((), jnp.int32), tokens_RT, c)
    last_RD = jnp.take_along_axis(x_RTD, (count_R - 1)[:, None, None], axis=1)[:, 0]
    uniform_R12 = drawing.uniforms(replies.stream_RI, jnp.zeros_like(count_R), 1)
    drawn = _draw(params, last_RD, uniform_R12[:, 0], replies.how, c, truncated)
    return new if scanned(c) else apart(new), told(drawn)


@functools.partial(jax.jit, static_argnames=("c", "blocks", "stop_ids", "steps", "truncated"))
def decode(
    params: Params,
    cache: Cache,
    slots_R: jax.Array,
    length_R: jax.Array,
    token_R: jax.Array,
    replies: Replies,
    *,
    c: ModelConfig,
    blocks: int | None,
    stop_ids: tuple[int, ...],
    steps: int,
    truncated: bool,
) -> tuple[Cache, Sampled]:
    """Sample up to `steps` tokens after `token_R`, the last of each reply so far.

    Returns the keys and values of the tokens read, and those sampled. A row ends at a stop id and
    at its budget. The last token sampled is not read: it enters with the tokens that follow.
    The columns in use are copied, in `blocks` blocks. Without these the rows are all slots in their
    order, and the cache is read where it lies.
    """
    old = cache if blocks is None else in_blocks(cache, slots_R, length_R, blocks)
    rows = len(slots_R)
    uniform_RN2 = drawing.uniforms(replies.stream_RI, replies.count_R, steps)

    class Loop(NamedTuple):
        step: jax.Array
        recent: Cache
        token_R: jax.Array
        active_R: jax.Array
        out: Sampled

    def body(s: Loop) -> Loop:
        x_R1D, recent = advance(params, old, length_R, s.recent, s.step, s.token_R[:, None], c)
        drawn = _draw(params, x_R1D[:, 0], uniform_RN2[:, s.step], replies.how, c, truncated)
        out = Sampled(
            ids_RN=s.out.ids_RN.at[:, s.step].set(drawn.token_B),
            logp_RN=s.out.logp_RN.at[:, s.step].set(drawn.logp_B),
            behaviour_RN=s.out.behaviour_RN.at[:, s.step].set(drawn.behaviour_B),
            count_R=s.out.count_R + s.active_R,
        )
        stop_R = functools.reduce(jnp.logical_or, [drawn.token_B == i for i in stop_ids])
        left_R = replies.count_R + out.count_R < replies.budget_R
        return Loop(s.step + 1, recent, drawn.token_B, s.active_R & ~stop_R & left_R, out)

    nothing = Sampled(
        ids_RN=jnp.zeros((rows, steps), jnp.int32),
        logp_RN=jnp.zeros((rows, steps), jnp.float32),
        behaviour_RN=jnp.zeros((rows, steps), jnp.float32),
        count_R=jnp.zeros((rows,), jnp.int32),
    )
    recent = empty_cache(c, rows, steps, cache.keys[0].dtype)
    active_R = replies.count_R < replies.budget_R
    end = jax.lax.while_loop(
        lambda s: jnp.any(s.active_R) & (s.step < steps),
        body,
        Loop(jnp.zeros((), jnp.int32), recent, token_R, active_R, nothing),
    )
    return end.recent, told(end.out)


@functools.partial(jax.jit, static_argnames=("columns",))
def prefixes(cache: Cache, slots_R: jax.Array, *, columns: int) -> Cache:
    """`read` as a program of its own."""
    return read(cache, slots_R, columns)
