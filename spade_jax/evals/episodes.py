"""An episode of self-play as the course of an item."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals.suites import Act, Say
from spade_jax.play.episodes import Job, Rules, open_instance, script
from spade_jax.play.table import Ask
from spade_jax.types import Episode


def play_one(
    sandbox: Sandbox, job: Job, rules: Rules, seed: int
) -> Generator[Say | Act, Any, Episode]:
    """An episode's own course, its wishes in the words of suites."""
    instance = open_instance(sandbox, job.environment)
    course, answer = script(job, rules, seed, -1), None
    try:
        while True:
            wish = course.send(answer)
            if isinstance(wish, Ask):
                answer = yield Say(messages=wish.messages, stream=wish.stream)
            else:
                answer = yield Act(instance=instance, call=wish)
    except StopIteration as end:
        return end.value
    finally:
        sandbox.close_instances([instance])


def normalised(episode: Episode) -> float:
    """The return, cut to what lies from 0 to 1; 0 for a failed episode."""
    return min(max(episode.episode_return or 0.0, 0.0), 1.0)
