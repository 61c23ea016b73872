"""What a run leaves beside its metrics: designs, transcripts, memory, alarms, evaluations."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from spade_jax import jsonl
from spade_jax.design import memory
from spade_jax.evals.heldout import Item, won
from spade_jax.health import Raised
from spade_jax.measures import Made
from spade_jax.types import Design, Episode, HostState, Verdict, dataclass


@dataclass
class Journal:
    """The files that grow with a run's iterations."""

    workdir: Path
    episodes: int  # transcripts kept of an iteration
    environments: Environments
    archive: memory.Archive
    alarms: jsonl.JsonLines

    def write(self, iteration: int, made: Made, host: HostState, raised: Iterable[Raised]) -> None:
        """Write down an iteration; `host` is the state after it."""
        self.environments.write(made.designs, made.verdicts)
        write_episodes(self.workdir, iteration, made.episodes, self.episodes)
        played = {entry.environment.id for entry in host.pool if not entry.retired}
        self.archive.append(iteration, (m for m in host.memory if m.environment_id in played))
        self.alarms.append({**msgspec.to_builtins(each), "message": str(each)} for each in raised)


@contextlib.contextmanager
def open_journal(workdir: Path, iteration: int, episodes: int) -> Iterator[Journal]:
    """The journal of a run; resumed at `iteration`, what is of it and later ones is cut."""
    with (
        contextlib.closing(Environments(workdir, iteration)) as environments,
        memory.Archive(workdir / "memory.jsonl", iteration) as archive,
        jsonl.JsonLines(workdir / "alarms.jsonl", "iteration", iteration) as alarms,
    ):
        yield Journal(
            workdir=workdir,
            episodes=episodes,
            environments=environments,
            archive=archive,
            alarms=alarms,
        )


class Environments:
    """`WORKDIR/environments`: each design's program, and `index.jsonl` with what became of it.

    A reply without a program is kept as text. Resumed at iteration `iteration`, later designs'
    lines are cut; their files are written again.
    """

    def __init__(self, workdir: Path, iteration: int) -> None:
        self.folder = workdir / "environments"
        self._index = jsonl.JsonLines(self.folder / "index.jsonl", "iteration", iteration)

    def write(self, designs: Sequence[Design], verdicts: Sequence[Verdict]) -> None:
        lines = []
        for design, verdict in zip(designs, verdicts, strict=True):
            task = design.task
            judged = msgspec.to_builtins(verdict)
            for cost in ("cpu_seconds", "memory_mb") if verdict.measures else ():
                del judged["measures"][cost]
            name = f"{task.environment_id}.{'py' if design.code else 'txt'}"
            text = design.code or design.mended or design.reply
            (self.folder / name).write_text(text, encoding="utf-8")
            lines.append(
                {
                    "iteration": task.iteration,
                    "environment_id": task.environment_id,
                    "file": name,
                    "skill": task.skill,
                    "kind": str(task.kind),
                    "document": task.document.id if task.document else None,
                    "positives": [m.environment_id for m in task.positives],
                    "negatives": [m.environment_id for m in task.negatives],
                    "stop": str(design.stop),
                    "prompt": task.prompt,
                    "hint": design.hint,
                    "repairs": design.repairs,
                    "first": design.first,
                    **judged,
                }
            )
        self._index.append(lines)

    def close(self) -> None:
        self._index.close()


def write_episodes(workdir: Path, iteration: int, episodes: Sequence[Episode], most: int) -> None:
    """`WORKDIR/episodes/<iteration>.jsonl`: transcripts, one object an episode.

    At most `most` of them, evenly spaced over all; -1 keeps every one.
    """
    if most == 0 or not episodes:
        return
    every = 1 if most < 0 else -(-len(episodes) // most)
    folder = workdir / "episodes"
    folder.mkdir(exist_ok=True)
    lines = []
    for episode in episodes[::every]:
        line = msgspec.to_builtins(episode)
        line["tokens"] = sum(len(row["ids"]) for row in line.pop("records"))
        lines.append(json.dumps(line, ensure_ascii=False))
    text = "".join(line + "\n" for line in lines)
    (folder / f"{iteration:06d}.jsonl").write_text(text, encoding="utf-8")


@dataclass
class Outcome:
    """What came of one held-out instance: 1 for a success, else 0."""

    family: str
    level: int
    won: float


def write_evaluation(
    workdir: Path, iteration: int, items: Sequence[Item], episodes: Sequence[Episode]
) -> None:
    """`WORKDIR/evaluation/<iteration>.json`: the outcome of every held-out instance, in order."""
    outcomes = [
        Outcome(family=item.family, level=item.level, won=won(episode))
        for item, episode in zip(items, episodes, strict=True)
    ]
    folder = workdir / "evaluation"
    folder.mkdir(exist_ok=True)
    path = folder / f"{iteration:06d}.json"
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(outcomes))
    draft.replace(path)


def read_evaluations(workdir: Path) -> dict[int, list[Outcome]]:
    """Outcomes of the held-out instances by iteration, in its order."""
    return {
        int(path.stem): msgspec.json.decode(path.read_bytes(), type=list[Outcome])
        for path in sorted((workdir / "evaluation").glob("*.json"))
    }
