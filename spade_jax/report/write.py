"""The report on disk: once, or again and again while runs go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from spade_jax import config as configs
from spade_jax.report import page
from spade_jax.report.runs import Group, flatten, read_groups
from spade_jax.types import UsageError


def write(paths: Sequence[Path], out: Path, limit: int, every: int = 0) -> list[Group]:
    """Write the report of these runs in one rename, and return what it shows.

    It reloads itself every so many seconds; 0: never. Raises UsageError where the file cannot be
    written.
    """
    defaults = flatten(configs.load("default").to_dict())
    groups = read_groups(paths)
    running = any(run.state == "running" for each in groups for run in each.runs)
    text = page.render(groups, defaults, limit=limit, every=every if running else 0)
    draft = out.with_name(out.name + ".draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(out)
    except OSError as error:
        raise UsageError(
            f"the report {out} cannot be written ({error.strerror}); choose another --out"
        ) from error
    return groups


def watch(paths: Sequence[Path], out: Path, limit: int, every: int) -> list[Group]:
    """Write the report every so many seconds until no run goes on."""
    groups = write(paths, out, limit, every)
    print(f"wrote {out}; again every {every} s until no run goes on, Ctrl-C ends it", flush=True)
    while any(run.state == "running" for each in groups for run in each.runs):
        time.sleep(every)
        groups = write(paths, out, limit, every)
    return groups
