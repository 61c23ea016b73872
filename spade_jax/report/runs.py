"""A run as the report sees it, and which runs are one method with other seeds."""

from __future__ import annotations

import collections
import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from spade_jax import config as configs
from spade_jax import folder
from spade_jax.config import FREE
from spade_jax.folder import Lines, Outcome
from spade_jax.types import UsageError, dataclass

# Fields that say nothing of the method: the seed, and those that may change on resume but for the
# run's length and what it is measured by.
MEASURED = ("iterations", "evaluation.")
BESIDE = ("seed", "evaluation.every", *(field for field in FREE if field not in MEASURED))
QUIET_SECONDS = 300.0  # without a word a run counts as stopped; more where iterations take longer


@dataclass
class Reading:
    """All of a run's folder that is small; transcripts are read where they are shown."""

    name: str
    workdir: Path
    config: Mapping[str, object]  # by dotted field
    metrics: Lines
    evaluations: Mapping[int, Sequence[Outcome]]
    alarms: Lines
    index: Lines  # of environments
    plays: Lines
    rewards: Lines
    state: str  # finished, running or stopped

    @property
    def done(self) -> int:
        """Iterations finished."""
        return self.metrics[-1]["step"] + 1 if self.metrics else 0

    @property
    def seconds(self) -> float:
        """Of self-play, evaluations left out."""
        return sum(line.get("time/iteration_s") or 0.0 for line in self.metrics)


def read(workdir: Path, defaults: Mapping[str, object]) -> Reading:
    """Read a run's folder; `defaults` stand for fields that its config has not.

    Raises UsageError where there is none.
    """
    try:
        config = flatten(json.loads((workdir / folder.CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise UsageError(
            f"{workdir} holds no run (no readable {folder.CONFIG}); give the --workdir of a run "
            "or the folder of a sweep"
        ) from None
    metrics = folder.read_lines(workdir, folder.METRICS)
    return Reading(
        name=workdir.resolve().name,
        workdir=workdir,
        config={**defaults, **config},
        metrics=metrics,
        evaluations=folder.read_evaluations(workdir),
        alarms=folder.read_lines(workdir, folder.ALARMS),
        index=folder.read_lines(workdir, folder.INDEX),
        plays=folder.read_lines(workdir, folder.PLAYS),
        rewards=folder.read_lines(workdir, folder.REWARDS),
        state=state(workdir, metrics, config["iterations"]),
    )


def state(workdir: Path, metrics: Lines, iterations: int, now: float | None = None) -> str:
    """Whether a run is finished, running, or stopped: it has long not said anything."""
    if metrics and metrics[-1]["step"] + 1 >= iterations and (workdir / folder.PLOT).exists():
        return "finished"
    files = [path for path in (workdir / folder.METRICS, workdir / folder.CONFIG) if path.exists()]
    last = max(path.stat().st_mtime for path in files)
    longest = max((line.get("time/iteration_s") or 0.0 for line in metrics[-5:]), default=0.0)
    quiet = (time.time() if now is None else now) - last
    return "running" if quiet < max(QUIET_SECONDS, 5 * longest) else "stopped"


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Values by dotted field; lists are as JSON has them, and numbers of one value are equal."""
    found: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = list(value) if isinstance(value, tuple) else value
    return found


def workdirs(names: Iterable[str]) -> list[Path]:
    """The runs that are named; a folder of runs, such as a sweep's, stands for all in it."""
    found = []
    for path in map(Path, names):
        inside = sorted(each.parent for each in path.glob(f"*/{folder.CONFIG}"))
        own = (path / folder.CONFIG).exists()
        found += inside if inside and not own else [path]
    return list(dict.fromkeys(found))


def read_groups(paths: Sequence[Path | str]) -> list[Group]:
    """The runs in these folders, by what their configs differ in."""
    defaults = flatten(configs.load("default").to_dict())
    return group([read(path, defaults) for path in workdirs(map(str, paths))])


# -- groups -----------------------------------------------------------------------------------


@dataclass
class Group:
    """Runs that differ in their seed alone; the label says what sets them apart."""

    label: str
    runs: Sequence[Reading]


def group(readings: Sequence[Reading]) -> list[Group]:
    """Runs by what their configs differ in: first those of the majority's values, then the others
    in the order in which they were given.

    A label names the values that most of the groups do not have; of a field without such a
    majority every group's value.
    """
    keys = {}
    for reading in readings:
        keys.setdefault(json.dumps(method(reading.config), sort_keys=True), []).append(reading)
    configs = [method(runs[0].config) for runs in keys.values()]
    fields = [
        field
        for field in dict.fromkeys(itertools.chain(*configs))
        if len({json.dumps(config.get(field)) for config in configs}) > 1
    ]
    groups: list[Group] = []
    for runs, config in zip(keys.values(), configs, strict=True):
        values = {field: config.get(field) for field in fields}
        named = {f: v for f, v in values.items() if json.dumps(v) != _majority(configs, f)}
        label = ", ".join(f"{field}={_short(value)}" for field, value in named.items())
        place = len(groups) if label else 0
        groups.insert(place, Group(label=label or _plain_label(runs), runs=runs))
    return groups


def method(config: Mapping[str, object]) -> dict[str, object]:
    """The fields that make a run what it is, whatever its seed."""
    return {field: value for field, value in config.items() if not field.startswith(BESIDE)}


def _majority(configs: Sequence[Mapping[str, object]], field: str) -> str | None:
    """The value, as JSON, that more than half of the configs have."""
    values = collections.Counter(json.dumps(config.get(field)) for config in configs)
    value, count = values.most_common(1)[0]
    return value if 2 * count > len(configs) else None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:23] + "…"


def _plain_label(runs: Sequence[Reading]) -> str:
    return runs[0].name if len(runs) == 1 else "base"
