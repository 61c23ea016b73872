"""Sampling with a key/value cache: conversations side by side, token ids in, token ids out.

A `Session` holds a batch of conversations whose caches advance on one clock: every new column of
the cache is written for all rows at once, and a row that has nothing to write leaves an invisible
slot there. Writing is then one in-place slice update however much the rows differ in length;
positions stay explicit, so that holes change no result. Between turns a row keeps its cache, so a
new observation costs only its own tokens. When holes or finished rows have piled up, the session
is compacted.

All shapes come from a few buckets. Rows, widths and lengths follow from the conversations alone,
so the same conversations give the same bits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from spade_jax.policy import model
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.types import StopReason

ROW_BUCKETS = (8, 32, 96, 192, 384, 768)
WIDTH_BUCKETS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
SLOT_STEP = 128


class Cache(NamedTuple):
    """Keys (B,K,C,S) and values (B,K,S,C) of each layer, which slots hold a token, and lengths.

    One buffer a layer: each is then updated in place, without passing through a scan.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    filled_BS: jax.Array  # bool
    length_B: jax.Array  # int32: tokens so far, which is the next token's position
    clock: jax.Array  # int32 scalar: the next slot


def bucket(n: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds n, beyond the last a multiple of it."""
    for size in buckets:
        if n <= size:
            return size
    return -(-n // buckets[-1]) * buckets[-1]


def empty_cache(c: ModelConfig, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
    """A cache with no token in it."""
    k, size = c.kv_heads, c.head_size
    return Cache(
        keys=tuple(jnp.zeros((rows, k, size, slots), dtype) for _ in range(c.layers)),
        values=tuple(jnp.zeros((rows, k, slots, size), dtype) for _ in range(c.layers)),
        filled_BS=jnp.zeros((rows, slots), bool),
        length_B=jnp.zeros((rows,), jnp.int32),
        clock=jnp.zeros((), jnp.int32),
    )


def advance(
    params: Params, cache: Cache, tokens_BT: jax.Array, valid_BT: jax.Array, c: ModelConfig
) -> tuple[Cache, jax.Array]:
    """Write T columns into the cache; return it and the logits (B, V) after the last column.

    Columns where `valid_BT` is false stay invisible. Callers pad on the left, so that the last
    column holds the last token of every row that has one.
    """
    t = tokens_BT.shape[1]
    dtype = cache.keys[0].dtype
    positions_BT = cache.length_B[:, None] + jnp.cumsum(valid_BT, axis=1, dtype=jnp.int32) - 1
    angles = model.rotary_angles(jnp.maximum(positions_BT, 0), c)
    filled_BS = jax.lax.dynamic_update_slice(cache.filled_BS, valid_BT, (0, cache.clock))
    slots_S = jnp.arange(filled_BS.shape[1])
    causal_TS = slots_S[None, :] <= cache.clock + jnp.arange(t)[:, None]
    visible_BTS = causal_TS[None] & filled_BS[:, None, :]
    x_BTD = model.embed(params, tokens_BT, dtype)
    keys, values = [], []
    for i in range(c.layers):
        p = jax.tree.map(lambda a, i=i: a[i], params["layers"])
        q_BTHC, k_BTKC, v_BTKC = model.project(p, x_BTD, angles, c)
        k_BKCS = jax.lax.dynamic_update_slice(
            cache.keys[i], k_BTKC.transpose(0, 2, 3, 1), (0, 0, 0, cache.clock)
        )
        v_BKSC = jax.lax.dynamic_update_slice(
            cache.values[i], v_BTKC.transpose(0, 2, 1, 3), (0, 0, cache.clock, 0)
        )
        x_BTD = model.finish_layer(p, x_BTD, model.attend(q_BTHC, k_BKCS, v_BKSC, visible_BTS), c)
        keys.append(k_BKCS)
        values.append(v_BKSC)
    last_BD = model.rms_norm(x_BTD[:, -1], params["final_norm"], c.norm_eps)
    cache = Cache(
        keys=tuple(keys),
        values=tuple(values),
        filled_BS=filled_BS,
        length_B=cache.length_B + jnp.sum(valid_BT, axis=1, dtype=jnp.int32),
        clock=cache.clock + t,
    )
    return cache, model.logits(params, last_BD, c)


@functools.partial(jax.jit, static_argnames=("c",), donate_argnames=("cache",))
def prefill(
    params: Params, cache: Cache, tokens_BT: jax.Array, valid_BT: jax.Array, *, c: ModelConfig
) -> tuple[Cache, jax.Array]:
    """`advance` as a program of its own."""
    return advance(params, cache, tokens_BT, valid_BT, c)


class Decoded(NamedTuple):
    """Sampled tokens: ids and log-probabilities (B, N), how many of them count, how they ended."""

    ids_BN: jax.Array
    logp_BN: jax.Array
    count_B: jax.Array
    stopped_B: jax.Array


@functools.partial(jax.jit, static_argnames=("c", "stop_ids", "steps"), donate_argnames=("cache",))
def decode(
    params: Params,
    cache: Cache,
    logits_BV: jax.Array,
    streams_BI: jax.Array,
    budget_B: jax.Array,
    temperature: jax.Array,
    *,
    c: ModelConfig,
    stop_ids: tuple[int, ...],
    steps: int,
) -> tuple[Cache, Decoded]:
    """Sample until every row has stopped or used its budget, at most `steps` tokens each.

    `streams_BI` are the integers that name each row's random stream. A row's last token is not
    written to the cache: it enters with the row's next tokens. A budget of 0 leaves a row alone.
    """
    rows = logits_BV.shape[0]
    keys_B = jax.vmap(stream_key)(streams_BI)

    def sample(logits_BV: jax.Array, step: jax.Array, active_B: jax.Array, out: Decoded) -> Any:
        logp_BV = jax.nn.log_softmax(logits_BV / temperature, axis=-1)
        noise_BV = jax.vmap(
            lambda key: jax.random.gumbel(jax.random.fold_in(key, step), logp_BV.shape[1:])
        )(keys_B)
        token_B = jnp.argmax(logp_BV + noise_BV, axis=-1).astype(jnp.int32)
        logp_B = jnp.minimum(jnp.take_along_axis(logp_BV, token_B[:, None], axis=-1)[:, 0], 0.0)
        stop_B = functools.reduce(jnp.logical_or, [token_B == i for i in stop_ids])
        out = Decoded(
            ids_BN=out.ids_BN.at[:, step].set(jnp.where(active_B, token_B, 0)),
            logp_BN=out.logp_BN.at[:, step].set(jnp.where(active_B, logp_B, 0.0)),
            count_B=out.count_B + active_B,
            stopped_B=out.stopped_B | (active_B & stop_B),
        )
        return token_B, active_B & ~stop_B & (out.count_B < budget_B), out

    class Loop(NamedTuple):
        step: jax.Array
        cache: Cache
        token_B: jax.Array
        active_B: jax.Array
        out: Decoded

    def body(s: Loop) -> Loop:
        cache, logits_BV = advance(params, s.cache, s.token_B[:, None], s.active_B[:, None], c)
        return Loop(s.step + 1, cache, *sample(logits_BV, s.step, s.active_B, s.out))

    nothing = Decoded(
        ids_BN=jnp.zeros((rows, steps), jnp.int32),
        logp_BN=jnp.zeros((rows, steps), jnp.float32),
        count_B=jnp.zeros((rows,), jnp.int32),
        stopped_B=jnp.zeros((rows,), bool),
    )
    first = sample(logits_BV, jnp.zeros((), jnp.int32), budget_B > 0, nothing)
    end = jax.lax.while_loop(
        lambda s: jnp.any(s.active_B) & (s.step < steps),
        body,
        Loop(jnp.ones((), jnp.int32), cache, *first),
    )
    return end.cache, end.out


def stream_key(stream_I: jax.Array) -> jax.Array:
    """The random key named by a vector of integers."""
    key = jax.random.key(0)
    for i in range(stream_I.shape[0]):
        key = jax.random.fold_in(key, stream_I[i])
    return key


@functools.partial(jax.jit, static_argnames=("slots",))
def repack(cache: Cache, rows_B: jax.Array, *, slots: int) -> Cache:
    """Keep the given rows, move each one's tokens to the front, and make `slots` slots."""
    filled_BS = cache.filled_BS[rows_B]
    order_BS = jnp.argsort(~filled_BS, axis=1, stable=True)
    keep = min(slots, order_BS.shape[1])
    order_BS = order_BS[:, :keep]
    spare = slots - keep

    def pick_keys(k: jax.Array) -> jax.Array:
        picked = jnp.take_along_axis(k[rows_B], order_BS[:, None, None, :], axis=3)
        return jnp.pad(picked, ((0, 0), (0, 0), (0, 0), (0, spare)))

    def pick_values(v: jax.Array) -> jax.Array:
        picked = jnp.take_along_axis(v[rows_B], order_BS[:, None, :, None], axis=2)
        return jnp.pad(picked, ((0, 0), (0, 0), (0, spare), (0, 0)))

    length_B = cache.length_B[rows_B]
    return Cache(
        keys=tuple(pick_keys(k) for k in cache.keys),
        values=tuple(pick_values(v) for v in cache.values),
        filled_BS=jnp.arange(slots)[None, :] < length_B[:, None],
        length_B=length_B,
        clock=jnp.max(length_B),
    )


@dataclasses.dataclass
class Ids:
    """Sampled ids with log-probabilities and the reason they end, before they become text."""

    ids: tuple[int, ...]
    logp: tuple[float, ...]
    stop: StopReason


class Session:
    """A batch of conversations with one policy. Row i is the i-th conversation throughout.

    `turn` reads new tokens into some rows and samples a reply for each of them. Rows that will
    not be read again are named to `retire`, which lets the session shrink.
    """

    def __init__(
        self,
        params: Params,
        c: ModelConfig,
        rows: int,
        *,
        stop_ids: tuple[int, ...],
        dtype: jnp.dtype,
    ) -> None:
        self.params, self.c, self.stop_ids = params, c, stop_ids
        self.place = {i: i for i in range(rows)}  # conversation -> row of the cache
        self.pending: dict[int, tuple[int, ...]] = {}  # sampled, not yet in the cache
        self.used = np.zeros((bucket(rows, ROW_BUCKETS),), np.int32)  # tokens in each row
        self.clock = 0
        self.cache = empty_cache(c, len(self.used), SLOT_STEP, dtype)

    def retire(self, conversations: Sequence[int]) -> None:
        """Forget conversations that are over."""
        for i in conversations:
            self.place.pop(i, None)
            self.pending.pop(i, None)

    def turn(
        self,
        new_ids: dict[int, tuple[int, ...]],
        streams: dict[int, tuple[int, ...]],
        *,
        budgets: dict[int, int],
        steps: int,
        temperature: float,
    ) -> dict[int, Ids]:
        """Read `new_ids` into their conversations and sample one reply in each.

        `streams` names each reply's random stream by integers below 2**32, equally many for all.
        `budgets` are the most tokens each reply may have, none above `steps`.
        """
        fresh = {i: self.pending.pop(i, ()) + tuple(ids) for i, ids in new_ids.items()}
        width = bucket(max(len(ids) for ids in fresh.values()), WIDTH_BUCKETS)
        self._make_room(width + steps)
        rows = len(self.used)
        tokens_BT = np.zeros((rows, width), np.int32)
        valid_BT = np.zeros((rows, width), bool)
        budget_B = np.zeros((rows,), np.int32)
        streams_BI = np.zeros((rows, len(next(iter(streams.values())))), np.uint32)
        for i, ids in fresh.items():
            row = self.place[i]
            tokens_BT[row, width - len(ids) :] = ids
            valid_BT[row, width - len(ids) :] = True
            budget_B[row] = budgets[i]
            streams_BI[row] = streams[i]
        cache, logits_BV = prefill(self.params, self.cache, tokens_BT, valid_BT, c=self.c)
        self.cache, decoded = decode(
            self.params,
            cache,
            logits_BV,
            streams_BI,
            budget_B,
            np.float32(temperature),
            c=self.c,
            stop_ids=self.stop_ids,
            steps=steps,
        )
        out, self.clock = jax.device_get((decoded, self.cache.clock))
        self.clock = int(self.clock)
        replies = {}
        for i, ids in fresh.items():
            row, n = self.place[i], int(out.count_B[self.place[i]])
            replies[i] = Ids(
                ids=tuple(out.ids_BN[row, :n].tolist()),
                logp=tuple(out.logp_BN[row, :n].tolist()),
                stop=StopReason.STOP if out.stopped_B[row] else StopReason.LENGTH,
            )
            self.pending[i] = replies[i].ids[-1:]
            self.used[row] += len(ids) + n - 1
        return replies

    def _make_room(self, columns: int) -> None:
        """Drop finished rows and holes, and widen the cache, so that `columns` more fit."""
        rows = bucket(len(self.place), ROW_BUCKETS)
        slots = self.cache.filled_BS.shape[1]
        if self.clock + columns <= slots and rows == len(self.used):
            return
        kept = list(self.place.values()) + [0] * (rows - len(self.place))
        self.used = self.used[kept]
        longest = int(self.used.max())
        slots = -(-(longest + columns) // SLOT_STEP) * SLOT_STEP
        self.cache = repack(self.cache, np.asarray(kept, np.int32), slots=slots)
        self.place = {i: row for row, i in enumerate(self.place)}
        self.clock = longest
