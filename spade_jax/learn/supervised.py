"""Batches for supervised training: which conversations each optimizer step learns from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def groups(
    lengths: Sequence[int], buckets: Sequence[int], rows: Sequence[int], seed: int
) -> Iterator[list[int]]:
    """Without end, the conversations of each step: as many as fill `rows[b]` rows of each length.

    Every row length has a shuffled order of its own over the conversations whose shortest fitting
    row it is, so their shares in a step stay the same throughout. Longer ones than the longest
    row are left out.
    """
    lengths = np.asarray(lengths)
    low = 0
    streams = []
    for b, high in enumerate(buckets):
        members = np.flatnonzero((lengths > low) & (lengths <= high))
        if len(members):
            streams.append((_shuffled(members, seed, b), high, rows[b]))
        low = high
    if not streams:
        raise ValueError(
            f"no conversation fits rows of {buckets[-1]} tokens; raise train.row_tokens"
        )
    held = [next(order) for order, _, _ in streams]
    while True:
        group: list[int] = []
        for k, (order, size, count) in enumerate(streams):
            for _ in range(count):
                space = size
                while lengths[held[k]] <= space:
                    group.append(int(held[k]))
                    space -= lengths[held[k]]
                    held[k] = next(order)
        yield group


def _shuffled(members: np.ndarray, seed: int, bucket: int) -> Iterator[int]:
    epoch = 0
    while True:
        yield from np.random.default_rng((seed, bucket, epoch)).permutation(members)
        epoch += 1
