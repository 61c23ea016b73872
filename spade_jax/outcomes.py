"""What a run's evaluations and regenerations come to: success by family or level, and regret."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from spade_jax.evals.intervals import Comparison, compare
from spade_jax.folder import Outcome
from spade_jax.learn.regret import pool_regrets
from spade_jax.metrics import Value
from spade_jax.types import Episode, Regret

Lines = Sequence[dict[str, Value]]


def parts(
    before: Sequence[Outcome], after: Sequence[Outcome], key: Callable[[Outcome], object]
) -> dict[object, Comparison]:
    """The comparison of each part of the instances that `key` tells apart."""
    names = dict.fromkeys(key(o) for o in before)
    return {
        name: compare(
            [o.won for o in before if key(o) == name], [o.won for o in after if key(o) == name]
        )
        for name in names
    }


def regret_of(metrics: Lines) -> Regret:
    """Regret over all regenerations' pairs taken as one sample."""
    return pool_regrets(
        [
            Regret(
                mean=line["designer/regret_mean"],
                stderr=line["designer/regret_stderr"],
                pairs=line["designer/regret_pairs"],
            )
            for line in metrics
            if line.get("designer/regret_mean") is not None
        ]
    )


def transcript(episode: Episode | Mapping[str, object]) -> str:
    """A play as text, turn by turn; also of a line in a run's `episodes` folder."""
    told = msgspec.to_builtins(episode)
    lines = [f"{told['environment_id']}, {told['arm']} arm, seed {told['seed']}"]
    if told["hint"]:
        lines.append(f"       hint: {told['hint']}")
    for turn in told["turns"]:
        lines += [f"environment: {turn['observation']}", f"      agent: {turn['reply']}"]
    lines.append(f"return {told['episode_return']}, ended by: {told['end']}")
    return "\n".join(lines)
