"""What a run leaves beside its metrics: designs, plays, memory, alarms, evaluations."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from spade_jax import jsonl
from spade_jax.design import memory
from spade_jax.evals.heldout import Item, won
from spade_jax.folder import ALARMS, INDEX, PLAYS, REWARDS, Outcome
from spade_jax.health import Raised
from spade_jax.measures import Made
from spade_jax.types import (
    Arm,
    Design,
    Environment,
    Episode,
    HostState,
    Sample,
    TokenRecord,
    Verdict,
    dataclass,
)

Spell = Callable[[Sequence[int]], str]

EXCERPT = 2000  # characters kept of a document


@dataclass
class Journal:
    """The files that grow with a run's iterations."""

    workdir: Path
    episodes: int  # transcripts kept of an iteration
    environments: Environments
    plays: jsonl.JsonLines
    rewards: jsonl.JsonLines
    archive: memory.Archive
    alarms: jsonl.JsonLines
    spell: Spell | None

    def write(self, iteration: int, made: Made, host: HostState, raised: Iterable[Raised]) -> None:
        """Write down an iteration; `host` is the state after it."""
        self.environments.write(made.designs, made.verdicts)
        self.environments.write_given(iteration, [entry.environment for entry in host.pool])
        self.plays.append(plays(iteration, made.episodes, host))
        self.rewards.append(
            {"iteration": iteration, "environment_id": name, "reward": reward}
            for name, reward in made.rewards.items()
        )
        kept = chosen(made.episodes, self.episodes, iteration)
        write_episodes(self.workdir, iteration, kept, made.samples, self.spell)
        played = {entry.environment.id for entry in host.pool if not entry.retired}
        self.archive.append(iteration, (m for m in host.memory if m.environment_id in played))
        self.alarms.append({**msgspec.to_builtins(each), "message": str(each)} for each in raised)


@contextlib.contextmanager
def open_journal(
    workdir: Path, iteration: int, episodes: int, spell: Spell | None = None
) -> Iterator[Journal]:
    """The journal of a run; resumed at `iteration`, what is of it and later ones is cut.

    `spell` gives the text of ids; without it transcripts do not say which tokens were trained.
    """
    with (
        contextlib.closing(Environments(workdir, iteration)) as environments,
        jsonl.JsonLines(workdir / PLAYS, "iteration", iteration) as played,
        jsonl.JsonLines(workdir / REWARDS, "iteration", iteration) as rewards,
        memory.Archive(workdir / "memory.jsonl", iteration) as archive,
        jsonl.JsonLines(workdir / ALARMS, "iteration", iteration) as alarms,
    ):
        yield Journal(
            workdir=workdir,
            episodes=episodes,
            environments=environments,
            plays=played,
            rewards=rewards,
            archive=archive,
            alarms=alarms,
            spell=spell,
        )


class Environments:
    """`WORKDIR/environments`: each design's program, and `index.jsonl` with what became of it.

    A reply without a program is kept as text. An environment that nobody designed has a line once
    it is played, with the reason "given". Resumed at iteration `iteration`, later designs'
    lines are cut; their files are written again.
    """

    def __init__(self, workdir: Path, iteration: int) -> None:
        self.folder = workdir / "environments"
        self._index = jsonl.JsonLines(workdir / INDEX, "iteration", iteration)
        self._known = {line["environment_id"] for line in jsonl.read(workdir / INDEX)}

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
                    "excerpt": task.document.text[:EXCERPT] if task.document else None,
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
        self._known.update(design.task.environment_id for design in designs)
        self._index.append(lines)

    def write_given(self, iteration: int, pool: Sequence[Environment]) -> None:
        """Write down those of the pool that have no line yet: no designer wrote them.

        Their ids are words of whoever made the pool, and no names of files.
        """
        lines = []
        for given in pool:
            if given.id in self._known:
                continue
            self._known.add(given.id)
            name = f"{iteration:06d}-given-{len(lines):03d}.py"
            (self.folder / name).write_text(given.code, encoding="utf-8")
            lines.append(
                {
                    "iteration": iteration,
                    "environment_id": given.id,
                    "file": name,
                    "skill": given.skill,
                    "kind": str(given.kind),
                    "reason": "given",
                }
            )
        self._index.append(lines)

    def close(self) -> None:
        self._index.close()


def plays(
    iteration: int, episodes: Sequence[Episode], host: HostState
) -> Iterator[dict[str, object]]:
    """What an iteration's plays of each environment returned, in both arms; null: it broke."""
    returns = collections.defaultdict(list)
    for episode in episodes:
        returns[episode.environment_id, episode.arm].append(episode.episode_return)
    for entry in host.pool:
        plain, hinted = (returns.get((entry.environment.id, arm), []) for arm in Arm)
        if plain or hinted:
            yield {
                "iteration": iteration,
                "environment_id": entry.environment.id,
                "plain": plain,
                "hinted": hinted,
                "regret": msgspec.to_builtins(entry.regret) if hinted else None,
                "hint": entry.environment.hint if hinted else None,
                "hung": entry.hung,
            }


def chosen(episodes: Sequence[Episode], most: int, iteration: int) -> list[Episode]:
    """At most `most` of the episodes, in their order; -1: every one.

    Both arms of a play stay together, and every environment's first play comes before any's
    second. Each iteration goes on where the one before it stopped, so that an epoch shows many.
    """
    if most < 0:
        return list(episodes)
    pairs = collections.defaultdict(list)
    for i, episode in enumerate(episodes):
        pairs[episode.play, episode.environment_id].append(i)
    ring = [pairs[key] for key in sorted(pairs, key=lambda key: key[0])]
    start = iteration * most % max(len(ring), 1)
    kept = list(itertools.chain(*ring[start:], *ring[:start]))[:most]
    return [episodes[i] for i in sorted(kept)]


def write_episodes(
    workdir: Path,
    iteration: int,
    episodes: Sequence[Episode],
    samples: Sequence[Sample] = (),
    spell: Spell | None = None,
) -> None:
    """`WORKDIR/episodes/<iteration>.jsonl`: transcripts, one object an episode.

    `advantage` is that of the sample which the episode became, null where it was not learned from.
    `rows` are what the policy read and wrote, each as spans [trained, tokens, text].
    """
    if not episodes:
        return
    advantages = {id(sample.records): sample.advantage for sample in samples}
    folder = workdir / "episodes"
    folder.mkdir(exist_ok=True)
    lines = []
    for episode in episodes:
        line = msgspec.to_builtins(episode)
        line["tokens"] = sum(len(row["ids"]) for row in line.pop("records"))
        line["advantage"] = advantage = advantages.get(id(episode.records))
        if spell:
            learned = advantage is not None
            line["rows"] = [spans(row, learned, spell) for row in episode.records]
        lines.append(json.dumps(line, ensure_ascii=False))
    text = "".join(line + "\n" for line in lines)
    (folder / f"{iteration:06d}.jsonl").write_text(text, encoding="utf-8")


def spans(row: TokenRecord, learned: bool, spell: Spell) -> list[tuple[bool, int, str]]:
    """Runs of tokens that are trained or not: whether, how many, and their text."""
    found = []
    for sampled, run in itertools.groupby(zip(row.action, row.ids, strict=True), lambda t: t[0]):
        ids = [token for _, token in run]
        found.append((sampled and learned, len(ids), spell(ids)))
    return found


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
