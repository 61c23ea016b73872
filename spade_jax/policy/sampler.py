"""The sampler: slots of a key/value cache, replies side by side, token ids in, token ids out.

A slot holds one conversation and keeps its cache between turns, so a new observation costs only
its own tokens. Batching is continuous: `advance` reads what waits, decodes one block of all replies
in progress and hands out those that are finished; others may enter before the next block. Prompts
that begin alike are read once and copied.

All shapes come from a few buckets and follow from the conversations alone, so the same calls give
the same bits.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spade_jax.policy import buckets, decoding, drawing, room, sampling
from spade_jax.policy.decoding import Cache
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.policy.sampling import Sampling
from spade_jax.types import StopReason

SHARED = 64  # tokens that two prompts must have in common to be read once


@dataclasses.dataclass
class Ids:
    """Sampled ids with their log-probabilities and why they end, before they become text.

    `logp` is tempered; `behaviour` is renormalised over what truncation left.
    """

    ids: tuple[int, ...]
    logp: tuple[float, ...]
    behaviour: tuple[float, ...]
    stop: StopReason


@dataclasses.dataclass
class Work:
    """Tokens a sampler has read and decoded, and the seconds each took."""

    tokens_read: int = 0
    tokens_decoded: int = 0  # the first token of a reply comes with reading
    reading_s: float = 0.0
    decoding_s: float = 0.0


@dataclasses.dataclass
class _Reply:
    """A reply in progress."""

    stream: tuple[int, ...]
    budget: int
    how: Sampling
    ids: list[int] = dataclasses.field(default_factory=list)
    logp: list[float] = dataclasses.field(default_factory=list)
    behaviour: list[float] = dataclasses.field(default_factory=list)

    def add(self, ids: np.ndarray, logp: np.ndarray, behaviour: np.ndarray) -> None:
        """Append sampled tokens."""
        self.ids += ids.tolist()
        self.logp += logp.tolist()
        self.behaviour += behaviour.tolist()


@dataclasses.dataclass
class _Slot:
    """A conversation: the ids in its cache, those that are not yet, and the reply it waits for."""

    cached: list[int] = dataclasses.field(default_factory=list)
    unread: list[int] = dataclasses.field(default_factory=list)
    reply: _Reply | None = None


class Sampler:
    """Conversations with one set of weights, at most `slots` at a time, of `context` tokens each.

    `compact` says whether a block works on copies of the slots and columns in use, in small groups,
    one a core at a time. That pays where time goes with their number, on a CPU; by default the
    platform decides. It computes on the mesh set when it is made. `work` adds up what has been
    done since. Raises UsageError where the cache does not fit into memory.
    """

    def __init__(
        self,
        params: Params,
        c: ModelConfig,
        *,
        slots: int,
        context: int,
        stop_ids: tuple[int, ...],
        dtype: jnp.dtype,
        block: int = 16,
        compact: bool | None = None,
    ) -> None:
        self.c, self.stop_ids = c, stop_ids
        self.slots, self.block = slots, block
        self.context = min(context, c.max_positions)
        self._mesh = jax.sharding.get_mesh()
        alone = self._mesh.size <= 1  # several devices run one program at a time
        self._compact = alone and jax.default_backend() == "cpu" if compact is None else compact
        self._reading = buckets.COMPACT_READING if self._compact else buckets.GROUP
        # What is written in one piece must fit behind the longest conversation.
        self.columns = self.context + max(block, buckets.WIDTHS[-1])
        room.check(c, slots, self.columns, dtype)
        self._hold(params)
        # As a program, so that no device ever holds more than its own piece.
        self._empty = jax.jit(
            functools.partial(decoding.empty_cache, c, slots, self.columns, dtype)
        )
        self._cache = self._empty()
        self._open: dict[int, _Slot] = {}
        self.work = Work()
        self._cores = len(os.sched_getaffinity(0)) if self._compact else 1
        self._pool = futures.ThreadPoolExecutor(self._cores)

    @property
    def free(self) -> int:
        """Number of slots that are not open."""
        return self.slots - len(self._open)

    @property
    def busy(self) -> bool:
        """Whether any reply is waited for."""
        return any(slot.reply for slot in self._open.values())

    def load(self, params: Params) -> None:
        """Go on with other weights; conversations with the earlier ones are over."""
        self._open.clear()
        self._hold(params)
        if self._cache is None:
            with jax.set_mesh(self._mesh):
                self._cache = self._empty()

    def _hold(self, params: Params) -> None:
        self.params, self._prepared = params, None

    def _decoding_params(self) -> Params:
        """The weights and, of a small model, those a CPU decodes with, made when first asked for:
        what is held from the start may lie on other devices than these until `load`."""
        if self._prepared is None:
            few = self._compact and not decoding.scanned(self.c)
            extra = decoding.prepare(self.params, self.c) if few else {}
            self._prepared = self.params | extra
        return self._prepared

    def rest(self) -> None:
        """Hold neither weights nor cache until others are loaded, to make room."""
        self._open.clear()
        self._hold({})
        self._cache = None

    def open(self) -> int:
        """The lowest free slot, empty; ValueError where there is none."""
        if not self.free:
            raise ValueError(f"all {self.slots} slots are open; close one first")
        number = next(n for n in range(self.slots) if n not in self._open)
        self._open[number] = _Slot()
        return number

    def close(self, slot: int) -> None:
        """Free a slot, and drop the reply it waits for."""
        del self._open[slot]

    def rewind(self, slot: int, ids: list[int]) -> int:
        """Forget what a slot holds but for the tokens it shares with `ids`; how many these are.

        The last of `ids` is never among them, so that there is something left to read.
        """
        shared = min(common_prefix(self._open[slot].cached, ids), len(ids) - 1)
        self.keep(slot, shared)
        return shared

    def keep(self, slot: int, count: int) -> None:
        """Forget what a slot holds but for its first `count` tokens in the cache."""
        held = self._open[slot]
        held.cached, held.unread = held.cached[:count], []

    def submit(
        self,
        slot: int,
        new_ids: Sequence[int],
        *,
        stream: tuple[int, ...],
        budget: int,
        sampling: Sampling,
    ) -> None:
        """Ask for a reply of at most `budget` tokens after `new_ids`.

        `stream` names the reply's random stream by integers below 2**32, equally many for all.
        Raises ValueError where the slot waits for a reply already, where there is nothing to read,
        and where the reply could outgrow `context`.
        """
        held = self._open[slot]
        length = len(held.cached) + len(held.unread) + len(new_ids)
        if held.reply or not new_ids or budget < 1 or length + budget > self.context:
            raise ValueError(
                f"slot {slot} takes no reply of {budget} tokens after {len(new_ids)} new ones: it "
                f"holds {length - len(new_ids)} of {self.context}, waiting: {bool(held.reply)}"
            )
        held.unread += new_ids
        held.reply = _Reply(stream, budget, sampling)

    def sampled(self, slot: int) -> tuple[int, ...]:
        """The ids so far of the reply a slot waits for."""
        reply = self._open[slot].reply
        return tuple(reply.ids) if reply else ()

    def advance(self) -> dict[int, Ids]:
        """Read what waits and decode one block; the replies that are finished, by slot."""
        with jax.set_mesh(self._mesh):
            return self._advance()

    def _advance(self) -> dict[int, Ids]:
        began = time.perf_counter()
        waiting = {n: s for n, s in self._open.items() if s.reply and not s.reply.ids}
        if waiting:
            self._read(waiting)
        read = time.perf_counter()
        active = [n for n, s in self._open.items() if s.reply and not self._finished(s.reply)]
        if active:
            self._decode(active)
        self.work.reading_s += read - began
        self.work.decoding_s += time.perf_counter() - read
        done = [n for n, s in self._open.items() if s.reply and self._finished(s.reply)]
        return {n: self._take(self._open[n]) for n in sorted(done)}

    def _run(
        self,
        groups: Sequence[Sequence[int]],
        jobs: Sequence[Callable[[], tuple[Cache, Any]]],
        note: Callable[[Sequence[int], Any], None],
    ) -> None:
        """Do each group's job, which only reads the cache, then enter what came of it."""

        def on_mesh(job: Callable[[], tuple[Cache, Any]]) -> tuple[Cache, Any]:
            with jax.set_mesh(self._mesh):  # which is known to each thread apart
                return job()

        for chosen, (new, out) in zip(groups, list(self._pool.map(on_mesh, jobs)), strict=True):
            rows = new.keys[0].shape[-4]
            lengths = _lengths([self._slot(n) for n in chosen], rows)
            self._cache = decoding.write(self._cache, new, self._places(chosen, rows), lengths)
            note(chosen, out)

    # -- reading ------------------------------------------------------------------------------

    def _read(self, waiting: dict[int, _Slot]) -> None:
        """Read all new tokens and draw every reply's first one."""
        leaders, followers = self._share(waiting)
        self._prefill(leaders)
        self._copy_prefixes(followers)
        self._prefill(followers)

    def _share(self, waiting: dict[int, _Slot]) -> tuple[list[int], dict[int, tuple[int, int]]]:
        """Part the waiting into those read in full, and those that copy a prefix.

        The latter come with the slot they copy from and the number of tokens. In sorted order the
        prompt with the longest common prefix is a neighbour.
        """
        fresh = sorted((s.unread, n) for n, s in waiting.items() if not s.cached)
        leaders = [n for n, s in waiting.items() if s.cached]
        followers: dict[int, tuple[int, int]] = {}
        leader: tuple[list[int], int] | None = None
        for ids, n in fresh:
            common = min(common_prefix(leader[0], ids), len(ids) - 1) if leader else 0
            if common >= SHARED:
                followers[n] = (leader[1], common)
            else:
                leader = (ids, n)
                leaders.append(n)
        return leaders, followers

    def _copy_prefixes(self, followers: dict[int, tuple[int, int]]) -> None:
        for chosen in self._copied(followers, lambda n: followers[n][1]):
            columns = self._columns(max(followers[n][1] for n in chosen))
            rows = buckets.rows(columns, self._reading)
            leaders = self._places([followers[n][0] for n in chosen], rows)
            prefixes = decoding.prefixes(self._cache, leaders, columns=columns)
            places = self._places(chosen, rows)
            self._cache = decoding.write(self._cache, prefixes, places, np.zeros_like(places))
            for n in chosen:
                slot, common = self._open[n], followers[n][1]
                slot.cached, slot.unread = slot.unread[:common], slot.unread[common:]

    def _prefill(self, numbers: Iterable[int]) -> None:
        """Read the unread tokens of these slots, like lengths together, in pieces of a width."""
        left = list(numbers)
        while left:
            left.sort(key=lambda n: (len(self._open[n].unread), len(self._open[n].cached), n))
            groups = self._copied(left, lambda n: len(self._open[n].cached))
            jobs = [functools.partial(self._prefill_group, chosen) for chosen in groups]
            self._run(groups, jobs, self._note_first)
            left = [n for n in left if self._open[n].unread]

    def _copied(self, numbers: Iterable[int], length: Callable[[int], int]) -> list[list[int]]:
        """In their order, as many together as may be copied with the columns of the longest."""
        groups: list[list[int]] = []
        for n in numbers:
            group = groups[-1] if groups else []
            columns = self._columns(max(map(length, [*group, n])))
            if len(group) >= buckets.rows(columns, self._reading) or not group:
                groups.append([n])
            else:
                group.append(n)
        return groups

    def _prefill_group(self, chosen: Sequence[int]) -> tuple[Cache, drawing.Draw]:
        slots = [self._open[n] for n in chosen]
        columns = self._columns(max(len(slot.cached) for slot in slots))
        width = buckets.width(max(len(slot.unread) for slot in slots))
        rows = buckets.rows(columns, self._reading)
        tokens_RT = np.zeros((rows, width), np.int32)
        count_R = np.ones((rows,), np.int32)
        for row, slot in enumerate(slots):
            piece = slot.unread[:width]
            tokens_RT[row, : len(piece)] = piece
            count_R[row] = len(piece)
        new, drawn = decoding.prefill(
            self.params,
            self._cache,
            self._places(chosen, rows),
            _lengths(slots, rows),
            tokens_RT,
            count_R,
            _replies([slot.reply for slot in slots], rows),
            c=self.c,
            columns=columns,
            truncated=any(slot.reply.how.truncates for slot in slots),
        )
        return new, jax.device_get(drawn)

    def _note_first(self, chosen: Sequence[int], drawn: drawing.Draw) -> None:
        """Enter what `_prefill_group` has read, and first tokens where all has been read."""
        width = buckets.width(max(len(self._open[n].unread) for n in chosen))
        for row, n in enumerate(chosen):
            slot = self._open[n]
            piece, slot.unread = slot.unread[:width], slot.unread[width:]
            slot.cached += piece
            self.work.tokens_read += len(piece)
            if not slot.unread:
                slot.reply.add(*(x[row : row + 1] for x in drawn))

    # -- decoding -----------------------------------------------------------------------------

    def _decode(self, active: Sequence[int]) -> None:
        """Decode one block of the given slots."""
        params = self._decoding_params()
        groups: list[Sequence[int]] = [range(self.slots)]
        if self._compact:
            # Conversations of like length often end alike, and a group ends with its last reply;
            # but where each core has one group, these must take equally long.
            order = sorted(active, key=lambda n: (-len(self._open[n].cached), n))
            count = -(-len(order) // buckets.GROUP)
            groups = (dealt if count <= self._cores else parted)(order, count)
        jobs = [functools.partial(self._decode_group, params, chosen) for chosen in groups]
        self._run(groups, jobs, self._note_block)

    def _slot(self, number: int) -> _Slot:
        return self._open.get(number, _Slot())

    def _decode_group(
        self, params: Params, chosen: Sequence[int]
    ) -> tuple[Cache, decoding.Sampled]:
        slots = [self._slot(n) for n in chosen]
        rows = buckets.GROUP if self._compact else self.slots
        replies = [s.reply if s.reply and not self._finished(s.reply) else None for s in slots]
        token_R = np.zeros((rows,), np.int32)
        for row, reply in enumerate(replies):
            token_R[row] = reply.ids[-1] if reply else 0
        new, out = decoding.decode(
            params,
            self._cache,
            self._places(chosen, rows),
            _lengths(slots, rows),
            token_R,
            _replies(replies, rows),
            c=self.c,
            blocks=buckets.blocks([len(s.cached) for s in slots]) if self._compact else None,
            stop_ids=self.stop_ids,
            steps=self.block,
            truncated=any(reply.how.truncates for reply in replies if reply),
        )
        return new, jax.device_get(out)

    def _note_block(self, chosen: Sequence[int], out: decoding.Sampled) -> None:
        """Enter what `_decode_group` has read and sampled."""
        for row, n in enumerate(chosen):
            count = int(out.count_R[row])
            if count:
                slot = self._open[n]
                slot.cached += [slot.reply.ids[-1], *out.ids_RN[row, : count - 1].tolist()]
                slot.reply.add(*(x[row, :count] for x in out[:3]))
                self.work.tokens_decoded += count

    def _finished(self, reply: _Reply) -> bool:
        return reply.ids[-1] in self.stop_ids or len(reply.ids) == reply.budget

    def _take(self, slot: _Slot) -> Ids:
        """The finished reply of a slot; its last token is read with what follows."""
        reply, slot.reply = slot.reply, None
        slot.unread = reply.ids[-1:]
        stopped = reply.ids[-1] in self.stop_ids
        return Ids(
            ids=tuple(reply.ids),
            logp=tuple(reply.logp),
            behaviour=tuple(reply.behaviour),
            stop=StopReason.STOP if stopped else StopReason.LENGTH,
        )

    # -- arrays for the device ----------------------------------------------------------------

    def _columns(self, n: int) -> int:
        return min(buckets.columns(n), self.columns)

    def _places(self, numbers: Sequence[int], rows: int) -> np.ndarray:
        """Slot of each row; rows beyond the last belong to none."""
        out = np.full((rows,), self.slots, np.int32)
        out[: len(numbers)] = numbers
        return out


def parted(numbers: Sequence[int], count: int) -> list[list[int]]:
    """In their order, in so many groups of about as many each."""
    return [part.tolist() for part in np.array_split(numbers, count)]


def dealt(numbers: Sequence[int], count: int) -> list[list[int]]:
    """There and back in so many groups: of falling weights each gets about as much."""
    turns = [*range(count), *reversed(range(count))]
    return [
        [number for n, number in enumerate(numbers) if turns[n % len(turns)] == group]
        for group in range(count)
    ]


def _lengths(slots: Sequence[_Slot], rows: int) -> np.ndarray:
    """Tokens in the cache of each row's slot."""
    out = np.zeros((rows,), np.int32)
    out[: len(slots)] = [len(slot.cached) for slot in slots]
    return out


def _replies(replies: Sequence[_Reply | None], rows: int) -> decoding.Replies:
    """What the device needs to know of each row's reply; a row without one has no budget."""
    streams = [reply.stream for reply in replies if reply]
    stream_RI = np.zeros((rows, len(streams[0])), np.uint32)
    count_R, budget_R, top_k_R = (np.zeros((rows,), np.int32) for _ in range(3))
    temperature_R, top_p_R = (np.ones((rows,), np.float32) for _ in range(2))
    min_p_R = np.zeros((rows,), np.float32)
    for row, reply in enumerate(replies):
        if reply:
            stream_RI[row], how = reply.stream, reply.how
            count_R[row], budget_R[row] = len(reply.ids), reply.budget
            if how.temperature >= sampling.GREEDY_BELOW:
                temperature_R[row] = how.temperature
            if how.greedy:
                top_k_R[row] = 1
            else:
                top_p_R[row], top_k_R[row], min_p_R[row] = how.top_p, how.top_k, how.min_p
    how = drawing.Rows(temperature_R, top_p_R, top_k_R, min_p_R)
    return decoding.Replies(stream_RI, count_R, budget_R, how)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of leading entries two lists share."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # mostly so, and much sooner found than by the next line
        return n
    return next(i for i in range(n) if a[i] != b[i])
