"""Play an environment in the terminal.

    python -m spade_jax.play FILE [--seed=0] [--modules=reasoning_gym] [--unsafe]

Type an action as the agent would give it. Tools are called by `name(key="value")` or by a
`<tool_call>`; any other text is then the answer. /hint, /solution and /quit are commands. Actions
may also be piped in, one a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from absl import flags

from spade_jax.envs import adapters, contract, solutions
from spade_jax.envs.programs import read_program
from spade_jax.envs.sandbox import Call, Hint, Instance, Reset, Sandbox, Solution, Step
from spade_jax.program import printable, run_program, warn
from spade_jax.types import Failure, Kind, StepResult, UsageError

FLAGS = flags.FLAGS
COMMANDS = ("/hint", "/solution", "/quit")
MAX_SEED = 2**31 - 1


class _Broke(Exception):
    """The environment broke; the message says how."""


def play(sandbox: Sandbox, instance: Instance, seed: int) -> None:
    """Play one episode with what is read from standard input."""
    _show(_ask(sandbox, instance, Reset(seed)).observation)
    print(f"({', '.join(COMMANDS)})")
    steps = 0
    while (line := _read()) is not None and line.strip() != "/quit":
        if line.strip() == "/hint":
            _show(_ask(sandbox, instance, Hint()) or "There is no hint.")
        elif line.strip() == "/solution":
            actions = _ask(sandbox, instance, Solution())
            _show("\n".join(actions or ("There is no solution.",)))
        else:
            result = _ask(sandbox, instance, Step(action(line, instance.kind)))
            steps += 1
            _show(result.observation)
            print(f"reward {result.reward:g}")
            if result.terminated or result.truncated:
                print(f"{_outcome(result)} after {steps} steps")
                return


def action(line: str, kind: Kind) -> str:
    """What `step` is given for a typed line."""
    try:
        return "".join(solutions.actions(line, kind))
    except ValueError:  # a broken tool call, which the environment itself answers
        return line


def _outcome(result: StepResult) -> str:
    if not result.terminated:
        return "cut off"
    return "won" if contract.won(result) else "lost"


def _ask(sandbox: Sandbox, instance: Instance, call: Call) -> object:
    [answer] = sandbox.exchange([(instance, call)])
    if isinstance(answer, Failure):
        raise _Broke(f"{answer.phase} broke ({answer.kind}): {answer.message}")
    return answer


def _show(text: str) -> None:
    print(printable(text), flush=True)


def _read() -> str | None:
    """The next line, None at the end of the input."""
    if sys.stdin.isatty():  # input() itself would write to where errors go, or to the terminal
        print("> ", end="", flush=True)
    try:
        return input()
    except EOFError:
        return None


def main(files: list[str]) -> int:
    if len(files) != 1:
        raise UsageError(f"{len(files)} files are given; pass the one to play")
    if sys.stdin is None:
        raise UsageError("standard input is closed, but actions are read from there; open it")
    sys.stdin.reconfigure(errors="replace")
    program = read_program(Path(files[0]))
    if program.rejection is not None or program.code is None:
        reason = program.rejection.message if program.rejection else "It holds no program."
        print(f"{files[0]} cannot be played: {reason}", file=sys.stderr)
        return 1
    modules = (*contract.heavy_modules(program.code), *adapters.to_import(FLAGS.modules))
    try:
        with Sandbox(unsafe=FLAGS.unsafe) as sandbox:
            if FLAGS.unsafe:
                warn(f"unsafe: the program runs in tier {sandbox.confinement.tier}")
            instance = sandbox.open(program.code, program.kind, modules=modules)
            play(sandbox, instance, FLAGS.seed)
    except _Broke as broke:
        print(printable(str(broke)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    flags.DEFINE_integer("seed", 0, "Instance to play.", lower_bound=0, upper_bound=MAX_SEED)
    flags.DEFINE_bool("unsafe", False, "Run the program even where nothing can confine it.")
    flags.DEFINE_list("modules", [], "Installed packages that the program needs.")
    run_program(main, files=True)
