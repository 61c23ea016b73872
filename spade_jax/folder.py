"""A run's folder as its readers see it: everything of it that is not weights.

Light to import, and safe while the run goes on: torn lines are passed over, and what is not there
yet is empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from spade_jax import jsonl
from spade_jax.types import dataclass

Lines = list[dict[str, Any]]

CONFIG = "config.json"
METRICS = "metrics.jsonl"
ALARMS = "alarms.jsonl"
PLAYS = "plays.jsonl"
REWARDS = "rewards.jsonl"
PLOT = "plot.png"  # the last thing that a run writes
INDEX = "environments/index.jsonl"
EXPORTED = "exported"  # Hugging Face files of the finished run


@dataclass
class Outcome:
    """What came of one held-out instance: 1 for a success, else 0."""

    family: str
    level: int
    won: float


def read_evaluations(workdir: Path) -> dict[int, list[Outcome]]:
    """Outcomes of the held-out instances by iteration, in its order."""
    return {
        int(path.stem): msgspec.json.decode(path.read_bytes(), type=list[Outcome])
        for path in sorted((workdir / "evaluation").glob("*.json"))
    }


def read_lines(workdir: Path, name: str) -> Lines:
    """The lines of one of the files above; none where there is no such file."""
    path = workdir / name
    return list(jsonl.read(path)) if path.exists() else []


def read_episodes(workdir: Path) -> dict[int, Lines]:
    """Transcripts by iteration, in its order."""
    return {
        int(path.stem): list(jsonl.read(path))
        for path in sorted((workdir / "episodes").glob("*.jsonl"))
    }
