"""The process that compiles: its own, since libtpu talks on stderr and may bring a process down.

A request is a JSON file, facts go out as JSON lines on stdout, one a program, as soon as
they are known. XLA writes what it made of each program into a folder, also where that does not fit
into memory: from there come the largest buffers.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib.metadata
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

from spade_jax import config as configs
from spade_jax import tpu
from spade_jax.preflight import chips, hlo, programs, schedule, work
from spade_jax.preflight.programs import Program
from spade_jax.preflight.schedule import Rates
from spade_jax.types import UsageError

LARGEST = 6  # buffers named
# What a process that compiles needs to be told before it loads JAX.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "0",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
    "TPU_SKIP_MDS_QUERY": "1",  # ask no metadata server what this machine is
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process may compile too
}


@dataclasses.dataclass(frozen=True)
class Request:
    """What to compile: the config in a file, for a slice."""

    config: str
    topology: str
    every_bucket: bool
    only: list[str]  # how the names of the programs begin; []: all


@dataclasses.dataclass(frozen=True)
class Part:
    """A program's work outside of loops of unknown length, or in one round of such a loop."""

    what: str
    flops: float
    bytes: float
    seconds: float
    hidden: float  # seconds, were all collectives hidden behind other work
    sent: tuple[tuple[str, int, float], ...]  # kind of collective, size of its group, bytes


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the compiler says of a program; bytes are those of one device.

    `failed` is its sentence where the program does not fit. `optimal_s` is its own estimate, which
    counts the body of a loop once and is None where it knows none.
    """

    name: str
    phase: str
    holds: tuple[str, ...]
    compile_s: float
    arguments: int = 0
    outputs: int = 0
    aliased: int = 0  # outputs that take the place of arguments
    temporaries: int = 0
    code: int = 0
    optimal_s: float | None = None
    parts: tuple[Part, ...] = ()
    largest: tuple[tuple[int, str], ...] = ()  # bytes and what it is
    untold: tuple[str, ...] = ()  # kernels whose products are not counted
    failed: str = ""

    @property
    def peak(self) -> int:
        """All it needs while it runs."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


# -- work -------------------------------------------------------------------------------------


def parts(text: str, program: Program, rate: Rates, topology: str) -> tuple[Part, ...]:
    """A program's work: the fixed part, then a round of each loop of unknown length."""
    by_loop: dict[int | None, list[work.Work]] = collections.defaultdict(list)
    for each in work.works(text, program.share):
        each = dataclasses.replace(each, times=each.times * program.repeats)
        by_loop[each.loop].append(each)
    order = in_order(work.unknown_loops(text), program.lengths)
    out = [_part("", by_loop[None], rate, topology)]
    for n, what in enumerate(program.loops):
        loop = order[n] if n < len(order) else n
        if loop in by_loop:
            out.append(_part(what, by_loop[loop], rate, topology))
    return tuple(out)


def in_order(types: Sequence[str], lengths: Sequence[int]) -> list[int]:
    """The loops by the lengths of rows they are over: most of what each carries is as long.

    The compiler puts loops that do not need one another in any order.
    """

    def rows(type_: str) -> int:
        held = [b.dims[-1] for b in hlo.buffers(type_) if b.dims]
        return max(lengths, key=held.count)

    left = list(range(len(types))) if lengths else []
    found = []
    for length in lengths:
        match = next((n for n in left if rows(types[n]) == length), None)
        if match is None:
            return list(range(len(types)))
        left.remove(match)
        found.append(match)
    return found


def _part(what: str, works: Sequence[work.Work], rate: Rates, topology: str) -> Part:
    sent: collections.Counter[tuple[str, int]] = collections.Counter()
    for w in works:
        if w.sent:
            sent[w.sent.kind, w.sent.group] += w.times * w.sent.bytes
    took, hidden = schedule.seconds(works, rate, topology)
    return Part(
        what=what,
        flops=sum(w.times * w.flops for w in works),
        bytes=sum(w.times * w.bytes for w in works),
        seconds=took,
        hidden=hidden,
        sent=tuple((*key, n) for key, n in sorted(sent.items())),
    )


# -- memory -----------------------------------------------------------------------------------

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_LINE = re.compile(r"^ *[\d.]+\w+\( *\d+%\); +([\d.]+)(\w+); +\d+; +\d+; (.*)$")


def read_report(text: str) -> tuple[int, list[tuple[int, str]]]:
    """Bytes of HBM in all, and the largest buffers, of XLA's memory usage report."""
    own = text.partition("Memory Space: vmem")[0]
    total = re.search(r"Total bytes: (\d+)", own)
    found = []
    for line in own.splitlines():
        if match := _LINE.match(line):
            number, unit, shapes = match.groups()
            found.append((int(float(number) * _UNITS.get(unit, 1)), shapes))
    found.sort(key=lambda pair: -pair[0])
    return int(total.group(1)) if total else 0, found


def needed(message: str) -> int:
    """Bytes that a program needs, from the compiler's words that they are too many; 0: unsaid.

    The total of its report counts memory twice that is used for one thing after another.
    """
    found = re.search(r"(?:Used |memory required [^(]*\()([\d.]+)([KMG])", message)
    return int(float(found.group(1)) * _UNITS[f"{found.group(2)}iB"]) if found else 0


def named(shapes: str, text: str) -> str:
    """A buffer by the shapes it holds, the largest first, and where the first one comes from."""
    first = max(shapes.split(", "), key=_size)
    shape = re.search(r"\w+\[[\d,]*\]", first)
    if shape is None:
        return shapes
    pattern = rf" = \(?{re.escape(shape.group())}[^\n]*op_name=\"([^\"]*)\""
    made = re.search(pattern, text)
    return f"{shape.group()} of {_short(made.group(1))}" if made else shape.group()


def _names(largest: list[tuple[int, str]], text: str) -> tuple[tuple[int, str], ...]:
    return tuple((n, named(shapes, text)) for n, shapes in largest[:LARGEST])


def _size(shapes: str) -> float:
    return sum(b.bytes for b in hlo.buffers(shapes))


def _short(op: str) -> str:
    """An operation's path without the names that every path has."""
    skipped = ("while", "body", "closed_call", "checkpoint", "rematted_computation")
    steps = [s for s in op.split("/") if s not in skipped and not s.startswith("jit(")]
    return "/".join(steps[-3:]) or op


# -- compiling --------------------------------------------------------------------------------


def compiled(program: Program, rate: Rates, topology: str, folder: Path) -> Facts:
    """Compile one program and say what came of it."""
    lowered = program.lower()
    for old in folder.glob("*.txt"):
        old.unlink()
    began = time.perf_counter()
    facts = Facts(program.name, program.phase, program.holds, 0.0)
    try:
        made = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        took = time.perf_counter() - began
        text, total, largest = _written(folder)
        total = needed(str(error)) or total
        arguments = programs.per_device((program.arguments, program.options))
        return dataclasses.replace(
            facts,
            compile_s=took,
            arguments=arguments,
            temporaries=max(0, total - arguments),
            largest=_names(largest, text),
            failed=str(error).splitlines()[0],
        )
    took = time.perf_counter() - began
    memory, cost = made.memory_analysis(), made.cost_analysis()
    text, _, largest = _written(folder)
    optimal = cost.get("optimal_seconds", 0.0)
    return dataclasses.replace(
        facts,
        compile_s=took,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        optimal_s=optimal if optimal > 0 else None,
        parts=parts(text, program, rate, topology),
        largest=_names(largest, text),
        untold=tuple(sorted({w.kernel for w in work.works(text) if w.kernel})),
    )


def _written(folder: Path) -> tuple[str, int, list[tuple[int, str]]]:
    """Of what XLA wrote into the folder: the program's text, its bytes and its largest buffers.

    The text is read here because JAX cannot read back every program of a newer libtpu.
    """
    reports = sorted(folder.glob("*memory-usage-report.txt"), key=lambda path: path.stat().st_size)
    if not reports:
        return "", 0, []
    name = str(reports[-1]).replace("-memory-usage-report", "")
    last, before = Path(name.replace("after_optimizations", "after_codegen")), Path(name)
    text = next((path.read_text() for path in (last, before) if path.exists()), "")
    return (text, *read_report(reports[-1].read_text()))


def answers(request: Request) -> Iterator[dict[str, object]]:
    """What is said of the request: the slice and what stays resident, then each program."""
    c = configs.load(request.config)
    devices = chips.devices(request.topology)
    apart = chips.devices(chips.part(request.topology, c.hosts.per_replica))
    rate = schedule.rates(apart, request.topology)
    a = programs.lay_out(c, programs.sizes(c.model.path), devices, apart)
    own, held = programs.learning(a), programs.cache(a)
    yield {
        "compiler": f"libtpu {importlib.metadata.version('libtpu')}",
        "devices": len(devices),
        "mesh": dict(a.mesh.shape),
        "sampling_mesh": dict(a.sampling.shape),
        "replicas": a.replicas,
        "context": programs.context(a),
        "residents": programs.residents(a, own, held),
        "model": dataclasses.asdict(a.model),
        "rates": dataclasses.asdict(rate),
    }
    folder = Path(os.environ["XLA_FLAGS"].partition("--xla_dump_to=")[2].split()[0])
    for program in programs.programs(a, own, held, every_bucket=request.every_bucket):
        if request.only and not program.name.startswith(tuple(request.only)):
            continue
        yield {"next": program.name}
        facts = compiled(program, rate, request.topology, folder)
        yield dataclasses.asdict(facts) | {"peak": facts.peak}


def main() -> None:
    """Answer the request; a mistake in it is a line with `error`, the compiler's own one
    with nothing but `failed`."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libtpu says shall not come between
    tpu.set_options()
    request = Request(**json.loads(Path(sys.argv[1]).read_text()))
    try:
        for answer in answers(request):
            print(json.dumps(answer), file=out, flush=True)
    except UsageError as error:
        print(json.dumps({"error": str(error)}), file=out, flush=True)
    except jax.errors.JaxRuntimeError as error:
        print(json.dumps({"failed": str(error).splitlines()[0]}), file=out, flush=True)


if __name__ == "__main__":
    main()
