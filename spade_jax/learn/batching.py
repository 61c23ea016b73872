"""From samples to packed arrays: several conversations a row, a few row lengths, weights.

The weights carry the aggregation. Each trained token's weight is its share of the loss, with the
denominator taken over the whole batch, so the loss is one weighted sum whatever the split into
micro-batches or devices.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spade_jax.types import Role, TokenRecord

AGGREGATIONS = ("token_mean", "sequence_mean")


class Rows(NamedTuple):
    """Packed rows of one length, in micro-batches: every array is (M, R, T).

    Column t predicts token t + 1: `target`, `weight` and all log-probabilities belong to that
    prediction. `weight` is 0 where nothing is trained; there the other values are finite.
    """

    tokens: np.ndarray  # int32
    positions: np.ndarray  # int32, from 0 in every conversation
    segments: np.ndarray  # int32, from 1; 0 is padding
    target: np.ndarray  # int32
    weight: np.ndarray  # float32
    advantage: np.ndarray  # float32
    temperature: np.ndarray  # float32
    designer: np.ndarray  # bool: the token is the designer's
    logp_behaviour: np.ndarray  # float32: as sampled
    logp_old: np.ndarray  # float32: by the weights before the first update
    logp_reference: np.ndarray  # float32: by the frozen reference


@dataclasses.dataclass(frozen=True)
class Row:
    """One conversation ready to be packed, or the part of one that is a row of its own.

    Parts have the number of their `conversation` in common; None: it is whole.
    """

    record: TokenRecord
    role: Role
    advantage: float
    temperature: float
    logp_old: tuple[float, ...] | None = None  # as long as the record; None: as sampled
    logp_reference: tuple[float, ...] | None = None
    conversation: int | None = None

    @property
    def trained(self) -> int:
        """Number of tokens of the policy's own; the first token has no prediction."""
        return sum(self.record.action[1:])


def token_weights(rows: Sequence[Row], aggregation: str) -> list[float]:
    """The weight of each trained token, one number per row.

    `token_mean`: 1 / (trained tokens of all rows). `sequence_mean`: 1 / (conversations with any) /
    (tokens of its conversation), so that one of many rows counts as much as one of a single row.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation must be one of {AGGREGATIONS}, not {aggregation!r}")
    counts = [row.trained for row in rows]
    if aggregation == "token_mean":
        total = sum(counts)
        return [1.0 / total if n else 0.0 for n in counts]
    keys = [i if r.conversation is None else (r.conversation,) for i, r in enumerate(rows)]
    own: collections.Counter[object] = collections.Counter()
    for key, n in zip(keys, counts, strict=True):
        own[key] += n
    used = sum(n > 0 for n in own.values())
    return [1.0 / (used * own[key]) if n else 0.0 for key, n in zip(keys, counts, strict=True)]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where every conversation lies: `places[i]` is (bucket, packed row, start)."""

    buckets: tuple[int, ...]
    places: tuple[tuple[int, int, int], ...]
    rows: tuple[int, ...]  # packed rows used in each bucket


def lay_out(lengths: Sequence[int], buckets: Sequence[int]) -> Layout:
    """First-fit packing, longest first: a row is opened in the shortest length that can hold.

    What longer rows have left takes short conversations before a row of their own is opened.
    `buckets` are the rows' lengths, ascending. A conversation longer than the longest row is a
    ValueError.
    """
    buckets = tuple(buckets)
    free: list[list[int]] = [[] for _ in buckets]
    places = [(0, 0, 0)] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if lengths[i] > buckets[-1]:
            raise ValueError(
                f"a conversation of {lengths[i]} tokens does not fit rows of {buckets[-1]}; "
                "raise learn.row_tokens or lower play.context and design.max_tokens"
            )
        shortest = next(b for b, size in enumerate(buckets) if lengths[i] <= size)
        room = (
            (b, row)
            for b in reversed(range(shortest, len(buckets)))
            for row, space in enumerate(free[b])
            if space >= lengths[i]
        )
        b, row = next(room, (shortest, len(free[shortest])))
        if row == len(free[b]):
            free[b].append(buckets[b])
        places[i] = (b, row, buckets[b] - free[b][row])
        free[b][row] -= lengths[i]
    return Layout(buckets, tuple(places), tuple(len(f) for f in free))


def pack(
    rows: Sequence[Row],
    weights: Sequence[float],
    *,
    buckets: Sequence[int],
    micro_rows: Sequence[int],
    capacity: Sequence[int] | None = None,
) -> tuple[tuple[Rows, ...], np.ndarray, Layout]:
    """Pack conversations into one `Rows` per bucket of row length.

    `micro_rows[b]` packed rows of bucket b make a micro-batch; unused rows are padding. Each
    bucket holds at least `capacity[b]` micro-batches, so that batches may share their shapes; the
    int32 array returned with them says how many are in use.
    """
    layout = lay_out([len(row.record.ids) for row in rows], buckets)
    used = [-(-n // micro) for n, micro in zip(layout.rows, micro_rows, strict=True)]
    packed = []
    for b, length in enumerate(layout.buckets):
        micro = max(used[b], capacity[b] if capacity else 0)
        packed.append(_empty(micro * micro_rows[b], length))
    segment = [np.zeros(p.tokens.shape[0], np.int32) for p in packed]
    for row, weight, place in zip(rows, weights, layout.places, strict=True):
        b, r, start = place
        segment[b][r] += 1
        _write(packed[b], r, start, row, weight, int(segment[b][r]))
    shaped = tuple(
        Rows(*(a.reshape(-1, micro_rows[b], layout.buckets[b]) for a in p))
        for b, p in enumerate(packed)
    )
    return shaped, np.asarray(used, np.int32), layout


def unpack(
    values: Sequence[np.ndarray], layout: Layout, lengths: Sequence[int]
) -> list[tuple[float, ...]]:
    """Per-prediction values (M, R, T) of each bucket, back as one tuple a conversation.

    Entry t belongs to token t; the first token, which nothing predicts, gets 0.
    """
    flat = [v.reshape(-1, size) for v, size in zip(values, layout.buckets, strict=True)]
    out = []
    for place, n in zip(layout.places, lengths, strict=True):
        b, r, start = place
        out.append((0.0, *flat[b][r, start : start + n - 1].tolist()))
    return out


def _empty(rows: int, length: int) -> Rows:
    shape = (rows, length)
    ints = [np.zeros(shape, np.int32) for _ in range(4)]
    floats = [np.zeros(shape, np.float32) for _ in range(3)]
    return Rows(
        tokens=ints[0],
        positions=ints[1],
        segments=ints[2],
        target=ints[3],
        weight=np.zeros(shape, np.float32),
        advantage=np.zeros(shape, np.float32),
        temperature=np.ones(shape, np.float32),
        designer=np.zeros(shape, bool),
        logp_behaviour=floats[0],
        logp_old=floats[1],
        logp_reference=floats[2],
    )


def _write(p: Rows, r: int, start: int, row: Row, weight: float, segment: int) -> None:
    record = row.record
    n = len(record.ids)
    here, predictions = slice(start, start + n), slice(start, start + n - 1)
    p.tokens[r, here] = record.ids
    p.positions[r, here] = np.arange(n)
    p.segments[r, here] = segment
    p.target[r, predictions] = record.ids[1:]
    p.weight[r, predictions] = np.where(record.action[1:], weight, 0.0)
    p.advantage[r, predictions] = row.advantage
    p.temperature[r, predictions] = row.temperature
    p.designer[r, predictions] = row.role is Role.DESIGNER
    p.logp_behaviour[r, predictions] = record.behaviour[1:]
    p.logp_old[r, predictions] = (row.logp_old or record.logp)[1:]
    p.logp_reference[r, predictions] = (row.logp_reference or record.logp)[1:]
