"""Traces of some iterations for xprof: what the devices and the host did, and for how long."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import jax

from spade_jax.types import UsageError

stage = jax.profiler.TraceAnnotation  # a context manager of a stage's name


def read_steps(text: str) -> range:
    """The steps that `2` or `2-3` names, as metrics.jsonl counts them; none for the empty text."""
    if not text:
        return range(0)
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    steps = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
    if not steps:
        raise UsageError(
            f"--profile={text} names no iterations; pass one or the first and last, counted from "
            "0, as in --profile=2-3"
        )
    return steps


class Trace:
    """Writes a trace of these steps into a folder, which people know by its `name`.

    Of steps that are done already there is none. Functions of Python are left out, because a trace
    holds no more than 2 GB.
    """

    def __init__(self, folder: Path, name: str, steps: range) -> None:
        self._folder, self._name, self._steps, self._running = folder, name, steps, False

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """The body is this step."""
        if number in self._steps and not self._running:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            jax.profiler.start_trace(self._folder, profiler_options=options)
            self._running = True
        with jax.profiler.StepTraceAnnotation("iteration", step_num=number):
            yield
        if number == self._steps.stop - 1:
            self.close()

    def close(self) -> None:
        """Write what was traced."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
            print(f"wrote a trace to {self._name}; xprof --logdir={self._name} shows it")

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
