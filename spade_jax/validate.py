"""Is a file an environment worth playing? The checks of every design, on files of your own.

    python -m spade_jax.validate FILE... [--json] [--seeds=32] [--kind=game] [--tier=A]
        [--modules=reasoning_gym,textarena]

A file is Python, or a text with a program in a code block. Files that equal an earlier one are
named. `modules` are installed packages that programs may import besides those of every design,
as `envs/adapters.py` writes them. Exit code 0: all accepted, 1: any rejected, 2: wrong usage.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import rich.box
from absl import flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spade_jax.envs import adapters, validation
from spade_jax.envs.confine import Report, Tier
from spade_jax.envs.programs import ProgramFile, read_program
from spade_jax.envs.sandbox import Sandbox
from spade_jax.program import printable, run_program, warn
from spade_jax.types import Kind, Reason, UsageError, Verdict

FLAGS = flags.FLAGS
MAX_SEEDS = 500
_WIDTH = 160  # columns of a table that is not read on a terminal
_SHARES = ("null", "constant", "random", "solution", "changes")


def judge(
    sandbox: Sandbox, programs: Sequence[ProgramFile], settings: validation.Settings
) -> list[Verdict]:
    """Verdicts in order, all programs in one batch; a repeated one names what it equals."""
    run = [program for program in programs if program.rejection is None]
    designs = [(program.code, program.kind) for program in run]
    judged = iter(validation.validate(sandbox, designs, seen=(), settings=settings))
    verdicts: list[Verdict] = []
    first: dict[str, Path] = {}  # by fingerprint and by behaviour
    for program in programs:
        verdict = program.rejection or next(judged)
        if verdict.reason is Reason.NEW:
            verdict = dataclasses.replace(verdict, message=_equals(verdict, first))
        if verdict.accepted or verdict.reason is Reason.NEW:
            for mark in (verdict.fingerprint, verdict.behaviour):
                first.setdefault(mark, program.path)
        verdicts.append(verdict)
    return verdicts


def _equals(verdict: Verdict, first: dict[str, Path]) -> str:
    if verdict.fingerprint in first:
        what, other = "is written like", first[verdict.fingerprint]
    else:
        what, other = "plays exactly like", first[verdict.behaviour]
    return f"The environment {what} {other}; change its task, its rules or its numbers."


def report_line(program: ProgramFile, verdict: Verdict, held: Report) -> str:
    """One JSON object: the file, its kind, how it was confined, and all of the verdict."""
    told = {"file": str(program.path), "kind": program.kind, "accepted": verdict.accepted}
    told |= {"tier": held.tier, "not_enforced": held.missing}
    return json.dumps({**told, **msgspec.to_builtins(verdict)})


def table(programs: Sequence[ProgramFile], verdicts: Sequence[Verdict]) -> Table:
    """For people: a row a file."""
    rows = Table(box=rich.box.SIMPLE)
    rows.add_column("file", overflow="fold")
    for name in ("kind", "verdict"):
        rows.add_column(name, no_wrap=True)
    for name in _SHARES:
        rows.add_column(name, justify="right", no_wrap=True)
    for program, verdict in zip(programs, verdicts, strict=True):
        shares = (getattr(verdict.measures, name, None) for name in _SHARES)
        rows.add_row(
            Text(printable(str(program.path))),
            program.kind,
            Text(verdict.reason, style="green" if verdict.accepted else "red"),
            *("" if share is None else f"{share:.0%}" for share in shares),
        )
    return rows


def main(files: list[str]) -> int:
    if not files:
        raise UsageError("no file is given; pass the files to validate (--help lists the flags)")
    kind = None if FLAGS.kind == "auto" else Kind(FLAGS.kind)
    programs = [read_program(Path(name), kind) for name in files]
    settings = validation.Settings(seeds=FLAGS.seeds, modules=adapters.to_import(FLAGS.modules))
    began = time.monotonic()
    wanted = None if FLAGS.tier == "best" else Tier(FLAGS.tier)
    with Sandbox(tier=wanted, unsafe=FLAGS.unsafe) as sandbox:
        held = sandbox.confinement
        verdicts = judge(sandbox, programs, settings)
    accepted = sum(verdict.accepted for verdict in verdicts)
    if FLAGS.json:
        for program, verdict in zip(programs, verdicts, strict=True):
            print(report_line(program, verdict, held))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=_WIDTH)
        console.print(table(programs, verdicts))
        for program, verdict in zip(programs, verdicts, strict=True):
            if not verdict.accepted:
                console.print(
                    Text(printable(f"{program.path} ({verdict.phase}): {verdict.message}"))
                )
        took = time.monotonic() - began
        counts = f"{accepted} of {len(files)} accepted, {FLAGS.seeds} seeds"
        console.print(f"{counts}, tier {held.tier}, {took:.1f} s")
        for step, why in held.missing.items():
            console.print(Text(f"not enforced: {step} ({why})"))
    if FLAGS.unsafe:
        warn(f"unsafe: programs ran in tier {held.tier}")
    return 0 if accepted == len(files) else 1


if __name__ == "__main__":
    flags.DEFINE_bool("json", False, "Print one JSON object a line instead of a table.")
    flags.DEFINE_integer(
        "seeds",
        validation.Settings().seeds,
        "Instances tried.",
        lower_bound=2,
        upper_bound=MAX_SEEDS,
    )
    flags.DEFINE_enum(
        "kind", "auto", ["auto", *map(str, Kind)], "Kind of the files; auto: by the base class."
    )
    flags.DEFINE_enum(
        "tier", "best", ["best", "A", "B", "C"], "How programs are confined (envs/confine.py)."
    )
    flags.DEFINE_list("modules", [], "Installed packages that programs may import as well.")
    flags.DEFINE_bool("unsafe", False, "Run programs even where nothing can confine them.")
    run_program(main, files=True)
