"""Programs as gymnasium environments, played in the sandbox.

    import gymnasium, spade_jax.envs.gym
    env = gymnasium.make("spade_jax/Program-v0", path="my_env.py")

Needs the extra `gym`. Observations and actions are text. The seed given to `reset` is the
program's own, so that an instance is the same here, in play and in validation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

try:
    import gymnasium
except ImportError as missing:
    raise ImportError(
        "gymnasium is missing; run pip install -e '.[gym]' in the repository"
    ) from missing

from spade_jax.envs.programs import read_program
from spade_jax.envs.sandbox import Call, Hint, Instance, Reset, Sandbox, Solution, Step
from spade_jax.types import Failure, Kind, StepResult

ID = "spade_jax/Program-v0"
MAX_CHARACTERS = 8192
_SAMPLE_CHARACTERS = 16
_SEEDS = 2**31


class EnvironmentBroke(RuntimeError):
    """The program broke, or cannot be played; `failure` is None in the second case."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class Text(gymnasium.Space[str]):
    """Any text of at most `max_length` characters that UTF-8 can carry."""

    def __init__(self, max_length: int = MAX_CHARACTERS, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.max_length = max_length

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """A short text of printable ASCII characters."""
        length = self.np_random.integers(1, min(self.max_length, _SAMPLE_CHARACTERS) + 1)
        return "".join(map(chr, self.np_random.integers(32, 127, size=length)))

    def contains(self, x: Any) -> bool:
        if not isinstance(x, str) or len(x) > self.max_length:
            return False
        return not any("\ud800" <= character <= "\udfff" for character in x)

    def __repr__(self) -> str:
        return f"Text({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and other.max_length == self.max_length

    __hash__ = None


class ProgramEnv(gymnasium.Env[str, str]):
    """One program; every `reset` starts an instance of it in the sandbox.

    `kind` is recognised from the program where it is not given. A program that breaks raises
    EnvironmentBroke, and the next `reset` starts it anew.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self, path: str | Path, kind: str | None = None, render_mode: str | None = None
    ) -> None:
        program = read_program(Path(path), kind and Kind(kind))
        if program.code is None:
            reason = program.rejection.message if program.rejection else "It holds no program."
            raise EnvironmentBroke(f"{path} cannot be played: {reason}")
        self.action_space = Text()
        self.observation_space = Text()
        self.render_mode = render_mode
        self._program = program
        self._sandbox: Sandbox | None = None
        self._instance: Instance | None = None
        self._shown = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the instance of `seed`; without one, of a seed drawn from `np_random`."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(_SEEDS))
        if self._sandbox is None:
            self._sandbox = Sandbox(max_instances=1, max_observation=MAX_CHARACTERS)
        if self._instance is None or self._instance.failure is not None:
            self._instance = self._sandbox.open(self._program.code, self._program.kind)
        self._shown = self._ask(Reset(seed)).observation
        return self._shown, {"seed": seed}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result: StepResult = self._ask(Step(action))
        self._shown = result.observation
        return self._shown, result.reward, result.terminated, result.truncated, {}

    def hint(self) -> str | None:
        """The program's hint for the instance in play."""
        return self._ask(Hint())

    def solution(self) -> tuple[str, ...] | None:
        """The actions that win the instance in play."""
        return self._ask(Solution())

    def render(self) -> str | None:
        """What the environment showed last."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
        self._sandbox = self._instance = None

    def _ask(self, call: Call) -> Any:
        if self._sandbox is None or self._instance is None:
            raise gymnasium.error.ResetNeeded("call reset before anything else")
        [answer] = self._sandbox.exchange([(self._instance, call)])
        if isinstance(answer, Failure):
            message = f"{self._program.path} broke in {answer.phase}: {answer.message}"
            raise EnvironmentBroke(message, answer)
        return answer


gymnasium.register(ID, entry_point=ProgramEnv)
