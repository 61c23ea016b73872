"""The skills a designer is asked for, by the kind of environment they belong to."""

from __future__ import annotations

from collections.abc import Sequence

from spade_jax.types import Kind

GAME_SKILLS = (
    "Mathematical Reasoning",
    "Logical Deduction",
    "Spatial Reasoning",
    "Pattern Recognition",
    "Optimization",
    "Causal Inference",
    "Strategic Planning",
    "Memory Recall",
    "Language Understanding",
)
TOOL_USE_SKILLS = (
    "API Orchestration",
    "Data Retrieval",
    "State Modification",
    "Error Recovery",
    "Tool Selection",
    "Multi-Step Workflows",
)
KINDS = dict.fromkeys(GAME_SKILLS, Kind.GAME) | dict.fromkeys(TOOL_USE_SKILLS, Kind.TOOL_USE)


def active_skills(skills: Sequence[str], per_epoch: int, epoch: int) -> tuple[str, ...]:
    """Those of `skills` that epoch `epoch` designs for: `per_epoch` of them, round robin.

    (arXiv 2608.19197) Epoch e starts at (e * per_epoch) mod n.
    """
    n = len(skills)
    if per_epoch >= n:
        return tuple(skills)
    return tuple(skills[(epoch * per_epoch + i) % n] for i in range(per_epoch))
