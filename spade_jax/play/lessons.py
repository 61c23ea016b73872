"""Lessons of the warm start: conversations to imitate, made from the bundled families.

A lesson is a whole conversation whose assistant messages are to be learned. Design lessons pair a
design prompt (skill, document, examples) with a program; play lessons are episodes of scripted
players in those programs, played in the sandbox on the path the trained agent takes. The players
differ in care, as people do: how often one plays carefully falls with the level and rises with
the hint, so the policy knows good habits and bad ones before it learns which of them pay.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

from spade_jax.design import prompts
from spade_jax.design.corpus import Corpus
from spade_jax.design.families import (
    FAMILIES,
    LEVELS,
    Player,
    Program,
    sample_program,
    theme_of,
)
from spade_jax.envs import fingerprint
from spade_jax.envs.sandbox import Reset, Sandbox, Solution
from spade_jax.play.episodes import Job, Rules, play, play_seed
from spade_jax.policy.conversation import Budget
from spade_jax.types import (
    Arm,
    DesignTask,
    Environment,
    Episode,
    Generation,
    Kind,
    MemoryRecord,
    Message,
    StopReason,
    TokenRecord,
)

# Share of careful episodes by level, without and with the hint.
CARE = {
    Arm.PLAIN: dict(zip(LEVELS, (0.97, 0.75, 0.55, 0.33, 0.1), strict=True)),
    Arm.HINTED: dict(zip(LEVELS, (0.98, 0.92, 0.85, 0.65, 0.3), strict=True)),
}


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A conversation to imitate. `family` and `level` say what it is about."""

    messages: tuple[Message, ...]
    role: str
    family: str
    level: int


def draw_program(seed: int, number: int, corpus: Corpus) -> tuple[Program, str]:
    """The `number`-th program of a seed, and the text of the document it is about."""
    rng = random.Random(f"{seed}/program/{number}")
    family = list(FAMILIES)[number % len(FAMILIES)]
    document = corpus.document(number).text
    return sample_program(rng, family, rng.choice(LEVELS), theme_of(document)), document


def design_lesson(
    seed: int, number: int, corpus: Corpus, *, prompt_set: str, code_characters: int
) -> Lesson:
    """A design prompt and the program that answers it.

    Examples of success are mostly of the program's family, at its level or beside it; a program
    shown as too easy (too hard) is of a lower (higher) level.
    """
    program, document = draw_program(seed, number, corpus)
    rng = random.Random(f"{seed}/examples/{number}")
    positives, negatives = [], []
    if rng.random() < 0.7:
        family = program.family if rng.random() < 0.6 else rng.choice(_of_skill(program.skill))
        level = min(max(program.level + rng.choice((-1, 0, 0, 1)), LEVELS[0]), LEVELS[-1])
        positives.append(_example(rng, family, level, corpus, 0.5))
    if rng.random() < 0.5:
        family = rng.choice(_of_skill(program.skill))
        easy = rng.random() < 0.5
        levels = [v for v in LEVELS if (v < program.level if easy else v > program.level)]
        if levels:
            example = _example(rng, family, rng.choice(levels), corpus, 1.0 if easy else 0.0)
            negatives.append(example)
    task = DesignTask(
        iteration=0,
        slot=number,
        skill=program.skill,
        kind=program.kind,
        document=dataclasses.replace(corpus.document(number), text=document),
        positives=tuple(positives),
        negatives=tuple(negatives),
    )
    asked = prompts.designer_messages(task, prompt_set, code_characters)
    reply = Message(role="assistant", content=f"```python\n{program.code.strip()}\n```")
    return Lesson((*asked, reply), "designer", program.family, program.level)


def _of_skill(skill: str) -> list[str]:
    return [f.name for f in FAMILIES.values() if f.skill == skill]


def _example(
    rng: random.Random, family: str, level: int, corpus: Corpus, win_rate: float
) -> MemoryRecord:
    document = corpus.document(rng.randrange(len(corpus)))
    program = sample_program(rng, family, level, theme_of(document.text))
    return MemoryRecord(
        environment_id="",
        skill=program.skill,
        code=program.code,
        fingerprint=fingerprint.fingerprint(program.code),
        iteration=0,
        win_rate=win_rate,
    )


# -- scripted play ----------------------------------------------------------------------------


Part = tuple[Program, tuple[str, ...], bool, int]  # program, solution, careful, player's seed


class Script:
    """A `Speaker` made of one scripted player a dialogue, in their order; it keeps no tokens."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def converse(self) -> ScriptedDialogues:
        return ScriptedDialogues(self._parts)


class ScriptedDialogues:
    """Dialogues in which players answer the last message they are shown."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = iter(parts)
        self._playing: list[Part] = []
        self._players: dict[int, Player] = {}
        self._replies: dict[int, Generation | None] = {}

    def open(self) -> int:
        self._playing.append(next(self._parts))
        return len(self._playing) - 1

    def ask(
        self, dialogue: int, messages: Sequence[Message], stream: tuple[int, ...], budget: Budget
    ) -> None:
        observation = messages[-1].content
        program, solution, careful, seed = self._playing[dialogue]
        if dialogue not in self._players:
            rng = random.Random(f"{seed}/player")
            family = FAMILIES[program.family]
            self._players[dialogue] = family.player(rng, observation, solution, careful)
        action = self._players[dialogue].act(observation)
        text = action if program.kind is Kind.TOOL_USE else f"\\boxed{{{action}}}"
        self._replies[dialogue] = Generation(ids=(), logp=(), text=text, stop=StopReason.STOP)

    def answers(self) -> dict[int, Generation | None]:
        replies, self._replies = self._replies, {}
        return replies

    def failure(self, dialogue: int) -> None:
        """There is always an answer."""

    def records(self, dialogue: int) -> tuple[TokenRecord, ...]:
        return ()

    def retire(self, dialogues: Sequence[int]) -> None:
        pass


def play_lessons(
    sandbox: Sandbox,
    programs: Sequence[Program],
    rules: Rules,
    *,
    seed: int,
    episodes: int,
    single_turn_episodes: int,
) -> Iterator[Lesson]:
    """Scripted episodes in each program, every second one with the hint.

    Single-turn families have a number of their own: their episodes are short and their answers
    hard to learn.
    """
    environments = [
        Environment(id=f"lesson-{i}", kind=p.kind, skill=p.skill, code=p.code, iteration=0)
        for i, p in enumerate(programs)
    ]
    jobs, parts = [], []
    counts = [
        single_turn_episodes if FAMILIES[p.family].single_turn else episodes for p in programs
    ]
    # Of each program its own, or one program's instances would resemble the next one's.
    seeds = [
        [play_seed(seed, environment.id, 0, k) for k in range(count)]
        for environment, count in zip(environments, counts, strict=True)
    ]
    solutions = solve(sandbox, environments, seeds)
    for i, (program, environment) in enumerate(zip(programs, environments, strict=True)):
        for k, instance_seed in enumerate(seeds[i]):
            arm = Arm.HINTED if k % 2 else Arm.PLAIN
            careful = random.Random(f"{seed}/care/{i}/{k}").random() < CARE[arm][program.level]
            jobs.append(Job(environment, arm, k, instance_seed))
            parts.append((program, solutions[i][k], careful, instance_seed))
    played = play(
        Script(parts), sandbox, jobs, rules, seed=seed, iteration=0, seats=sandbox.max_instances
    )
    for part, job, episode in zip(parts, jobs, played, strict=True):
        messages = conversation(episode, job.environment.kind, rules.prompts)
        yield Lesson(messages, "agent", part[0].family, part[0].level)


def solve(
    sandbox: Sandbox, environments: Sequence[Environment], seeds: Sequence[Sequence[int]]
) -> list[list[tuple[str, ...]]]:
    """Each environment's own solutions on its seeds."""
    solutions: list[list[tuple[str, ...]]] = [[] for _ in environments]
    wave = sandbox.max_instances
    for start in range(0, len(environments), wave):
        chosen = range(start, min(start + wave, len(environments)))
        instances = {
            i: sandbox.open(environments[i].code, environments[i].kind, trusted=True)
            for i in chosen
        }
        for k in range(max(len(seeds[i]) for i in chosen)):
            due = [i for i in chosen if k < len(seeds[i])]
            sandbox.exchange([(instances[i], Reset(seeds[i][k])) for i in due])
            answers = sandbox.exchange([(instances[i], Solution()) for i in due])
            for i, answer in zip(due, answers, strict=True):
                if not isinstance(answer, tuple):
                    raise RuntimeError(f"a bundled environment has no solution: {answer}")
                solutions[i].append(answer)
        sandbox.close_instances(list(instances.values()))
    return solutions


def conversation(episode: Episode, kind: Kind, prompt_set: str) -> tuple[Message, ...]:
    """The messages of an episode, from its turns."""
    messages: list[Message] = []
    for n, turn in enumerate(episode.turns):
        if n == 0:
            messages += prompts.agent_messages(kind, turn.observation, episode.hint, prompt_set)
        else:
            messages += prompts.next_messages(kind, turn.observation, prompt_set)
        messages.append(Message(role="assistant", content=turn.reply))
    return tuple(messages)
