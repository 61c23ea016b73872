"""How much better than its peers each sample of either role was.

Values are Python floats (float64) on the host; batching casts them to float32.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from spade_jax.types import dataclass

EQUAL = 1e-6  # returns closer than this carry no information


def _centred(returns_G: Sequence[float], baseline: float | None) -> list[float]:
    if max(returns_G) - min(returns_G) <= EQUAL:
        return [0.0] * len(returns_G)
    mean = _mean(returns_G)
    return [value - mean for value in returns_G]


def _grpo(returns_G: Sequence[float], baseline: float | None) -> list[float]:
    centred_G = _centred(returns_G, baseline)
    std = math.sqrt(_mean([value * value for value in centred_G]))
    return [value / std if std > 0.0 else 0.0 for value in centred_G]


def _ema_baseline(returns_G: Sequence[float], baseline: float | None) -> list[float]:
    if baseline is None:
        return _centred(returns_G, None)
    return [value - baseline for value in returns_G]


AGENT_ADVANTAGES: dict[str, Callable[[Sequence[float], float | None], list[float]]] = {
    "grpo": _grpo,
    "centred": _centred,
    "ema_baseline": _ema_baseline,
}


def agent_advantages(
    mode: str, returns_G: Sequence[float | None], baseline: float | None = None
) -> tuple[float | None, ...]:
    """Advantages of the plain plays of one environment, in their order (arXiv 2608.19197).

    grpo: (r - mean) / std, std being the population's (divided by n). centred: r - mean.
    ema_baseline: r - baseline, the environment's running mean of earlier iterations; where there
    is none yet, as centred. In grpo and centred, returns that agree to within 1e-6 (a group of
    one among them) give exactly 0. A failed play (None) enters no statistic and stays None, and
    so does a return that is not finite.
    """
    if mode not in AGENT_ADVANTAGES:
        known = ", ".join(AGENT_ADVANTAGES)
        raise ValueError(f"unknown agent advantage {mode!r}; choose one of {known}")
    known_G = _known(returns_G)
    if not known_G:
        return (None,) * len(returns_G)
    advantages = iter(AGENT_ADVANTAGES[mode](known_G, baseline))
    return tuple(next(advantages) if _known([value]) else None for value in returns_G)


def update_baselines(
    baselines: Mapping[str, float],
    returns_EG: Mapping[str, Sequence[float | None]],
    ema_decay: float,
) -> dict[str, float]:
    """Running means of this iteration's environments; the others are forgotten.

    ema <- decay * ema + (1 - decay) * mean, once per iteration and after its advantages; the
    first mean is taken as it is. An environment all of whose plays failed keeps its value.
    """
    updated: dict[str, float] = {}
    for environment_id, returns_G in returns_EG.items():
        known_G = _known(returns_G)
        earlier = baselines.get(environment_id)
        if known_G and earlier is not None:
            updated[environment_id] = ema_decay * earlier + (1.0 - ema_decay) * _mean(known_G)
        elif known_G:
            updated[environment_id] = _mean(known_G)
        elif earlier is not None:
            updated[environment_id] = earlier
    return updated


def role_scale(n_agent: int, n_designer: int, regenerate_every: int, cap: float) -> float:
    """min(cap, n_agent / n_designer * regenerate_every) (arXiv 2608.19197).

    Weighs the designer's few samples against the agent's many; 0 without a designer sample. Without
    one of the agent there is nothing to weigh against, and they count as if there were as many:
    where no design can be played, penalties are all there is to learn from.
    """
    if n_designer == 0:
        return 0.0
    return min(cap, (n_agent or n_designer) / n_designer * regenerate_every)


@dataclass
class ScoredDesign:
    """One design to compare: its raw reward (None: unknown), or the penalty it earned instead.

    `leak`, at most 0, is what the hints of a valid design cost it beside its raw reward.
    """

    skill: str
    prompt: str = ""
    raw: float | None = None
    penalty: float | None = None
    leak: float = 0.0


PENALTIES = ("outside", "centred")

# With whom a design is compared: all of its skill, or those written in answer to its prompt.
DESIGNER_GROUPS: dict[str, Callable[[ScoredDesign], str]] = {
    "skill": lambda design: design.skill,
    "prompt": lambda design: design.prompt,
}


def designer_advantages(
    designs: Sequence[ScoredDesign],
    scale: float,
    penalties: str = "outside",
    groups: str = "skill",
) -> tuple[float | None, ...]:
    """Advantages of designs, in their order (arXiv 2608.19197).

    Valid: scale * (raw - mean of the group), no division by a standard deviation. Penalised
    (rejected, or hung in play), with `penalties` outside: scale * penalty; it enters no mean, so
    that a lone failure still teaches. Centred: the penalty is its raw reward and enters the mean,
    so that what is pushed away from failures is drawn to the valid designs beside them. What leaks
    cost is added as penalties are: after the mean is taken, or before. A valid design whose raw
    reward is unknown enters no mean and stays None: it must leave the loss.
    """
    if penalties not in PENALTIES:
        raise ValueError(f"penalties must be one of {', '.join(PENALTIES)}, not {penalties!r}")
    if groups not in DESIGNER_GROUPS:
        raise ValueError(f"groups must be one of {', '.join(DESIGNER_GROUPS)}, not {groups!r}")
    names = [DESIGNER_GROUPS[groups](design) for design in designs]
    if "" in names:
        raise ValueError(f"a design has no {groups} to be compared by")
    pairs = [_compared_and_added(design, penalties == "centred") for design in designs]
    by_group: dict[str, list[float]] = defaultdict(list)
    for name, (compared, _) in zip(names, pairs, strict=True):
        if compared is not None:
            by_group[name].append(compared)
    means = {name: _mean(known) for name, known in by_group.items()}
    return tuple(
        None
        if added is None
        else scale * ((0.0 if compared is None else compared - means[name]) + added)
        for name, (compared, added) in zip(names, pairs, strict=True)
    )


def _compared_and_added(design: ScoredDesign, centred: bool) -> tuple[float | None, float | None]:
    """What of a design is held against its group's mean, and what is added outside of it.

    Nothing compared: it enters no mean. Nothing added either: its advantage is unknown.
    """
    if design.penalty is not None:
        return (design.penalty, 0.0) if centred else (None, design.penalty)
    if design.raw is None:
        return None, None
    return (design.raw + design.leak, 0.0) if centred else (design.raw, design.leak)


def _known(returns_G: Sequence[float | None]) -> list[float]:
    """The returns of plays that did not fail."""
    return [value for value in returns_G if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
