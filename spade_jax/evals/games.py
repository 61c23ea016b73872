"""Games of one player from gem and textarena, played over many turns.

A play is scored with its return, cut to what lies from 0 to 1, and is won by a full score at its
end. The games are those of the packages that run without a network, a list of words or another
player; the selection, 20 instances of each, at most 50 turns and the sampling are our own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence

from spade_jax.envs import adapters
from spade_jax.envs.adapters import Adapted
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals.episodes import normalised, play_one
from spade_jax.evals.suites import Course, Item, Outcome, Settings
from spade_jax.play.episodes import Job, Rules, play_seed
from spade_jax.policy.conversation import Budget
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Arm, Environment, Episode, EpisodeEnd

GEM = (
    "game:GuessTheNumber-v0-easy",
    "game:GuessTheNumber-v0-hard",
    "game:Mastermind-v0-easy",
    "game:Mastermind-v0-hard",
    "game:Minesweeper-v0-easy",
    "game:Minesweeper-v0-hard",
    "game:FifteenPuzzle-v0-easy",
    "game:Sudoku-v0-easy",
    "game:TowerofHanoi-v0-easy",
    "game:TowerofHanoi-v0-hard",
    "game:Sokoban-v0-easy",
)
TEXTARENA = (
    "GuessTheNumber-v0",
    "GuessTheNumber-v0-hardcore",
    "Mastermind-v0",
    "Mastermind-v0-hard",
    "Minesweeper-v0-small",
    "FrozenLake-v0",
    "FrozenLake-v0-hardcore",
    "TowerOfHanoi-v0",
    "TowerOfHanoi-v0-medium",
    "Sudoku-v0-very-easy",
    "LightsOut-v0",
    "LogicPuzzle-v0",
    "PegJump-v0",
    "RushHour-v0",
    "Secretary-v0",
    "Sokoban-v0",
)
INSTANCES, TURNS = 20, 50
SETTINGS = Settings(
    sampling=Sampling(temperature=0.6, top_p=0.8, top_k=20), reply=4096, context=32_768
)
RULES = Rules(
    prompts="games",
    max_turns=TURNS,
    budget=Budget(SETTINGS.reply, SETTINGS.context, SETTINGS.sampling),
    return_mode="sum",
    discount=1.0,
)
WON = 1 - 1e-9
# The packages take seconds and much memory to import, and some make instances until one is fit.
LIMITS = {"step_seconds": 30.0, "cpu_seconds": 120.0, "memory_mb": 2048, "max_observation": 2**15}


@dataclasses.dataclass(frozen=True)
class Games:
    """See the module. `programs` are by the names of their games."""

    name: str
    sandbox: Sandbox
    programs: dict[str, Adapted]
    settings: Settings = SETTINGS

    def items(self) -> Sequence[Item]:
        """The first instance of every game, then the second, and so on."""
        return [
            Item(
                id=f"{game}/{number}",
                group=f"{self.name.replace('_', ' ')}: {game.removeprefix('game:')}",
                course=functools.partial(self._course, game, number),
            )
            for number in range(INSTANCES)
            for game in self.programs
        ]

    def _course(self, game: str, number: int, play: int) -> Course:
        program = self.programs[game]
        environment = Environment(
            id=f"{self.name}-{game}",
            kind=program.kind,
            skill=game,
            code=program.code,
            iteration=-1,
            modules=program.modules,
        )
        seed = play_seed(0, environment.id, -1, number)
        job = Job(environment, Arm.PLAIN, play, seed)
        episode = yield from play_one(self.sandbox, job, RULES, seed)
        return Outcome(
            score=normalised(episode),
            won=won(episode),
            answer=episode.turns[-1].action if episode.turns else None,
            failed=episode.failure.message if episode.failure else "",
            details={"turns": len(episode.turns), "end": str(episode.end)},
        )


def won(episode: Episode) -> bool:
    """Whether its last reward, with which the game ended, was all there is."""
    return episode.end is EpisodeEnd.TERMINATED and episode.turns[-1].reward >= WON


@contextlib.contextmanager
def open_games(package: str) -> Iterator[Games]:
    """The suite of a package, gem or textarena; UsageError where that is not installed."""
    names = {"gem": GEM, "textarena": TEXTARENA}[package]
    programs = {name: adapters.adapt(f"{package}/{name}") for name in names}
    with Sandbox(**LIMITS) as sandbox:
        yield Games(f"{package}_games", sandbox, programs)
