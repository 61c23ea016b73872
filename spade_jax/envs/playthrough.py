"""One instance of an environment played with given actions, as a person tries it."""

from __future__ import annotations

from collections.abc import Sequence

from spade_jax.envs import contract
from spade_jax.envs.programs import kind_of
from spade_jax.envs.sandbox import Played, Rollout, Rollouts, Sandbox
from spade_jax.types import Failure

HARMLESS = "(nothing)"  # an empty action


def play_through(sandbox: Sandbox, code: str, seed: int = 0, actions: Sequence[str] = ()) -> Played:
    """Reset the instance of that seed and take the actions, up to the end of the episode.

    Its hint and solution are asked for before the first action, where the program has them.
    """
    rollout = Rollout(seed=seed, actions=tuple(actions), ask=True)
    instance = sandbox.open(code, kind_of(code), modules=contract.heavy_modules(code))
    try:
        [answer] = sandbox.exchange([(instance, Rollouts(plays=(rollout,)))])
    finally:
        sandbox.close_instances([instance])
    return Played(steps=(), failure=answer) if isinstance(answer, Failure) else answer[0]


def transcript(played: Played, actions: Sequence[str] = ()) -> str:
    """Observations, actions and rewards, and how it ended."""
    lines = [f"environment: {step.observation}" for step in played.steps[:1]]
    for action, step in zip(actions, played.steps[1:], strict=False):
        lines += [f"      agent: {action or HARMLESS}", f"environment: {step.observation}"]
        lines[-1] += f"   [reward {step.reward:g}]"
    if played.failure is not None:
        lines.append(f"{played.failure.phase} broke: {played.failure.message}")
    elif played.steps[-1].terminated:
        lines.append("won" if contract.won(played.steps[-1]) else "lost")
    return "\n".join(lines)
