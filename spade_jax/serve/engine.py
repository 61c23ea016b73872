"""The engine: one thread that owns the sampler and decodes all requests together."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence

from spade_jax.policy.sampler import Ids, Sampler
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.serve.text import ReplyText
from spade_jax.types import StopReason


@dataclasses.dataclass(frozen=True)
class Reply:
    """A finished reply: its text, how much of that was shown, and the ids that made it.

    `ids` and `logp` are of the text's tokens; `sampled` counts those that ended it as well.
    """

    text: str
    shown: int
    ids: tuple[int, ...]
    logp: tuple[float, ...]
    sampled: int
    stop: StopReason


class Full(Exception):
    """As many replies wait as may."""


class Broken(Exception):
    """The engine has failed or is closed: nothing more is decoded."""


@dataclasses.dataclass(eq=False)
class Job:
    """One reply to sample.

    `emit` is called on the engine's thread: with text to show if `shows`, and once at the end with
    a Reply, or with Broken. `opened` is what of the reply the prompt holds. `calls`: calls of tools
    may come, and are not shown as text. `logprobs`: the Reply needs them, which the sampler gives
    at the end only, so that a stop string then ends the text but not the sampling.
    """

    prompt: tuple[int, ...]
    stream: tuple[int, ...]
    budget: int
    sampling: Sampling
    emit: Callable[[str | Reply | Broken], None]
    opened: str = ""
    stops: tuple[str, ...] = ()
    shows: bool = False
    calls: bool = False
    logprobs: bool = False


class Engine:
    """Decodes the jobs it is given, first come, first served, as many at once as there are slots.

    `waiting` more may be in the queue. Where the sampler fails, every job is told so, `failed` is
    called, and nothing more is served.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: ChatTokenizer,
        *,
        waiting: int,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._sampler, self._decode, self._failed = sampler, tokenizer.decode, failed
        self.slots = sampler.free
        self.capacity = self.slots + waiting
        self._change = threading.Condition()
        self._waiting: collections.deque[Job] = collections.deque()
        self._running: dict[int, tuple[Job, ReplyText]] = {}
        self._cancelled: set[Job] = set()
        self._closed = False
        self.broken = False  # by a failure of the sampler
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of them, or raise Full or Broken and queue none."""
        with self._change:
            if self._closed:
                raise Broken
            if sum(self.load) + len(jobs) > self.capacity:
                raise Full
            self._waiting.extend(jobs)
            self._change.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Drop those that are not finished; they emit nothing more that matters."""
        with self._change:
            self._cancelled.update(jobs)
            self._change.notify()

    @property
    def load(self) -> tuple[int, int]:
        """How many jobs run, and how many wait."""
        return len(self._running), len(self._waiting)

    @property
    def alive(self) -> bool:
        return not self._closed

    def stop(self) -> None:
        """End after the block that is being decoded; jobs in progress are told."""
        with self._change:
            self._closed = True
            self._change.notify()

    def close(self) -> None:
        """Stop, and wait for the end."""
        self.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait():
                self._round()
        except Exception:
            logging.getLogger(__name__).exception("the sampler failed")
            self.broken = True
            self._failed()
        finally:
            with self._change:
                self._closed = True
                left = [*self._waiting, *(job for job, _ in self._running.values())]
                self._waiting.clear()
                self._running.clear()
            for job in left:
                job.emit(Broken())

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when the engine is closed."""
        with self._change:
            self._change.wait_for(
                lambda: self._closed or self._waiting or self._running or self._cancelled
            )
            return not self._closed

    def _round(self) -> None:
        """Drop what was cancelled, admit what fits, decode one block, hand out what came."""
        with self._change:
            self._drop()
            admitted = []
            while self._waiting and len(self._running) < self.slots:
                job = self._waiting.popleft()
                slot = self._sampler.open()
                text = ReplyText(self._decode, job.stops, opened=job.opened, calls=job.calls)
                self._running[slot] = (job, text)
                admitted.append((slot, job))
        for slot, job in admitted:
            self._sampler.submit(
                slot, job.prompt, stream=job.stream, budget=job.budget, sampling=job.sampling
            )
        if not self._running:
            return
        finished = self._sampler.advance()
        for slot, (job, text) in list(self._running.items()):
            if slot in finished or job.shows or job.stops:
                self._hand_out(slot, job, text, finished.get(slot))

    def _drop(self) -> None:
        """Take the cancelled jobs out of the queue and out of the sampler."""
        if not self._cancelled:
            return
        self._waiting = collections.deque(j for j in self._waiting if j not in self._cancelled)
        for slot, (job, _) in list(self._running.items()):
            if job in self._cancelled:
                self._leave(slot)
        self._cancelled.clear()

    def _leave(self, slot: int) -> None:
        self._sampler.close(slot)
        del self._running[slot]

    def _hand_out(self, slot: int, job: Job, text: ReplyText, done: Ids | None) -> None:
        """Show what is new in a reply; end it if its ids are all there or a stop string came."""
        ids = self._sampler.sampled(slot) if done is None else done.ids
        ended = done is not None and done.stop is StopReason.STOP
        text.read(ids[:-1] if ended else ids, last=done is not None)
        fresh = text.fresh() if job.shows else ""
        if fresh:
            job.emit(fresh)
        if done is None and (job.logprobs or not text.stopped):
            return
        self._leave(slot)
        stop = StopReason.STOP if text.stopped or ended else StopReason.LENGTH
        sampled = text.used if text.stopped else len(ids)
        logp = done.logp if done else ()
        kept, logp = ids[: text.kept], logp[: text.kept]
        job.emit(Reply(text.text, text.shown, kept, logp, sampled, stop))
