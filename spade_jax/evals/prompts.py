"""The texts that suites say to models, files in `prompts/`."""

from __future__ import annotations

import functools
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "prompts"


@functools.cache
def template(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")


def fill(name: str, **parts: str) -> str:
    """A prompt with its parts put in; what looks like a part inside a part stays."""
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], template(name))
