"""A tool call, and what is raised where one cannot be read."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """One call a model asked for, written in `reply[position:end]`."""

    name: str
    arguments: dict[str, Any]
    position: int
    end: int


class ToolCallError(ValueError):
    """A tool call that cannot be read; `position` counts characters from the reply's start."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem} (character {position})")
        self.problem = problem
        self.position = position
