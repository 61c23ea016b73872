"""The text of a compiled program as computations of instructions."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

SIZES = {"pred": 1, "bf16": 2}  # bytes; of other types the digits are bits: f32, s8, f8e4m3fn
_TYPE = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.$-]+) \(.*\{$")
_END = re.compile(r"^\}(, execution_thread=\S+)?$")
_LINE = re.compile(r"^  (ROOT )?%?([\w.$-]+) = (.*)$", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One array of a type; `space` 0 is HBM, others are on the chip."""

    dtype: str
    dims: tuple[int, ...]
    space: int

    @property
    def bytes(self) -> float:
        bits = re.search(r"\d+", self.dtype)
        size = SIZES.get(self.dtype) or (int(bits.group()) / 8 if bits else 0)
        return math.prod(self.dims) * size


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: `type` and `rest` (the attributes) as they are written."""

    name: str
    type: str
    op: str
    operands: tuple[str, ...]
    rest: str
    root: bool
    text: str  # between the parentheses

    @functools.cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        return buffers(self.type)

    def attribute(self, pattern: str) -> str | None:
        found = re.search(pattern, self.rest)
        return found.group(1) if found else None


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Module:
    computations: dict[str, Computation]
    entry: str

    def called(self, i: Instruction) -> Computation | None:
        """What a fusion computes; None for an instruction that is none."""
        return self.computations.get(i.attribute(r"calls=%?([\w.$-]+)") or "")

    def within(self, computation: Computation) -> Iterator[tuple[Computation, Instruction]]:
        """Every instruction of what a computation calls, down to the last, and where it stands."""
        for i in computation.values():
            yield computation, i
            for name in re.findall(r"(?:calls=|called_computations=\{)%?([\w.$-]+)", i.rest):
                yield from self.within(self.computations.get(name, {}))


def buffers(type_: str) -> tuple[Buffer, ...]:
    """The arrays of a type, in order; those of a tuple flat."""
    out = []
    for dtype, dims, layout in _TYPE.findall(type_):
        space = re.search(r"S\((\d+)\)", layout)
        sizes = tuple(int(n) for n in dims.split(",") if n)
        out.append(Buffer(dtype, sizes, int(space.group(1)) if space else 0))
    return tuple(out)


# -- text to instructions ---------------------------------------------------------------------


def parse(text: str) -> Module:
    """The computations of a module's text."""
    computations: dict[str, Computation] = {}
    entry, current, pending = "", None, []

    def close() -> None:
        if current is not None and pending:
            made = _instruction("\n".join(pending))
            if made:
                current[made.name] = made
        pending.clear()

    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
        elif _END.match(line):
            close()
            current = None
        elif _LINE.match(line):
            close()
            pending.append(line)
        elif pending:  # an attribute with a line break in it
            pending.append(line)
    return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
    root, name, right = _LINE.match(line).groups()
    end = _closing(right, 0) + 1 if right.startswith("(") else right.find(" ")
    type_, after = right[:end], right[end:].lstrip()
    start = after.find("(")
    if start < 0:
        return None
    stop = _closing(after, start)
    inside = after[start + 1 : stop]
    return Instruction(
        name=name,
        type=type_,
        op=after[:start],
        operands=tuple(re.findall(r"%([\w.$-]+)", inside)),
        rest=after[stop + 1 :],
        root=bool(root),
        text=inside,
    )


def _closing(text: str, start: int) -> int:
    """Where the parenthesis at `start` closes."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)


def root(computation: Computation) -> Instruction:
    """What a computation returns."""
    return next(i for i in computation.values() if i.root)


# -- loops ------------------------------------------------------------------------------------


def trips(module: Module, loop: Instruction) -> int | None:
    """How often a `while` goes round; None where its bound is data."""
    condition = module.computations[loop.attribute(r"condition=%?([\w.$-]+)")]
    last = root(condition)
    if last.op == "fusion":  # the comparison of its operands
        inner = module.called(last)
        outer = dict(zip(parameters(inner), last.operands, strict=True))
        last = root(inner)
        bounds = [condition.get(outer.get(name, ""), inner.get(name)) for name in last.operands]
    else:
        bounds = [condition.get(name) for name in last.operands]
    if last.op != "compare" or "direction=LT" not in last.rest or bounds[1] is None:
        return None
    return int(bounds[1].text) if bounds[1].op == "constant" else None


def parameters(computation: Computation) -> list[str]:
    """Names of its parameters in their order."""
    found = [i for i in computation.values() if i.op == "parameter"]
    return [i.name for i in sorted(found, key=lambda i: int(i.text))]
