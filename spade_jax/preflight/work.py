"""What a compiled TPU program computes, moves and sends, loop bodies by their trips.

`cost_analysis` of XLA counts the body of a loop once. Here each instruction's work is multiplied by
the trips of the loops around it, as far as a loop's bound is a constant in its condition (JAX's
scans and `fori_loop`s count from 0 by 1). A loop whose bound is data is counted once, by itself, or
with the loop of that kind that it is in.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from spade_jax.policy.experts import MORE
from spade_jax.preflight.hlo import (
    Computation,
    Instruction,
    Module,
    buffers,
    parameters,
    parse,
    root,
    trips,
)

RAGGED = "ragged-dot"  # how the compiler names its kernel for these products
SPARSE = 'async_execution_thread="sparsecore"'
COLLECTIVES = (
    *("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_FREE = {  # move nothing, or are counted where they start
    *(
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "after-all",
        "partition-id",
    ),
    *("replica-id", "opt-barrier", "optimization-barrier", "copy-done", "slice-done", "while"),
    *("conditional", "call", "add-dependency", "async-done", "async-update", "domain"),
    *(f"{kind}-done" for kind in COLLECTIVES),
}


@dataclasses.dataclass(frozen=True)
class Sent:
    """A collective: bytes that a device receives in it by the ring form, in groups of `group`."""

    kind: str
    bytes: float
    group: int


@dataclasses.dataclass(frozen=True)
class Work:
    """What one instruction does in a run of the program, on one device.

    `loop` numbers, in program order, the outermost loop around it whose trips are data; they are
    counted once. What begins here and runs `beside` later instructions is over when one of these,
    which does nothing else, `waits` for the name.
    """

    name: str
    times: float
    flops: float = 0.0
    bytes: float = 0.0  # to and from HBM
    sent: Sent | None = None
    loop: int | None = None
    kernel: str = ""  # of a custom kernel whose products nobody told
    beside: bool = False
    waits: str = ""


# -- products ---------------------------------------------------------------------------------


def products(i: Instruction, of: Computation) -> float:
    """Floating-point operations of a `dot` or `convolution`: two for each product."""
    left, right = (of[name].buffers[0] for name in i.operands[:2])
    if i.op == "dot":
        axes = i.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
        shared = math.prod(left.dims[int(n)] for n in axes.split(",") if n)
        return 2.0 * math.prod(i.buffers[0].dims) * shared
    lhs, rhs, out = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", i.rest).groups()
    result = i.buffers[0].dims
    positions = 1
    for n in range(len(lhs) - 2):
        digit = str(n)
        window = {key: _window(i.rest, key, n) for key in ("size", "stride", "pad", "lhs_dilate")}
        dilate = _window(i.rest, "rhs_dilate", n)
        positions *= _met(
            left.dims[lhs.index(digit)], result[out.index(digit)], *window.values(), dilate
        )
    inputs = right.dims[rhs.index("i")]
    features = result[out.index("f")] * result[out.index("b")]
    shared = int(i.attribute(r"batch_group_count=(\d+)") or 1)
    return 2.0 * positions * inputs * features / shared


def _window(rest: str, key: str, n: int) -> int:
    """Entry `n` of a window's sizes, strides, dilations or left paddings."""
    window = re.search(r"window=\{([^}]*)\}", rest)
    found = re.search(rf"(?:^| ){key}=(\S+)", window.group(1)) if window else None
    default = 0 if key == "pad" else 1
    return int(found.group(1).split("x")[n].split("_")[0]) if found else default


def _met(size: int, out: int, width: int, stride: int, pad: int, dilate: int, spread: int) -> int:
    """Pairs of a place in the result and one of the window that meet an entry, along one axis.

    Batches are written as such axes, with windows that meet one entry only.
    """
    if stride == dilate == spread == 1:  # how many w in the window meet o + w - pad
        return sum(max(0, min(width, size + pad - o) - max(0, pad - o)) for o in range(out))
    places = (o * stride + w * spread - pad for o in range(out) for w in range(width))
    return sum(place % dilate == 0 and 0 <= place // dilate < size for place in places)


def _kernel(i: Instruction) -> float | None:
    """Operations of a custom kernel: what it told the compiler, or those of splash attention.

    Of the latter, half of all pairs of a causal row: two products in the forward pass, five in the
    backward pass, whose kernel computes the weights again.
    """
    told = i.attribute(r'"cost_estimate":\{[^}]*"flops":"?(\d+)')
    if told:
        return float(told)
    named = i.name + " " + (i.attribute(r'op_name="([^"]*)"') or "")
    if "splash" not in named:
        return None
    written = i.attribute(r"operand_layout_constraints=\{(.*?)\}, frontend") or i.rest
    floats = [b.dims for b in buffers(written) if b.dtype in ("bf16", "f32") and len(b.dims) > 2]
    queries, keys = floats[:2]  # (..., heads, places, size)
    return 2.0 * (5 if "dkv" in named else 2) * math.prod(queries) * keys[-2] / 2


# -- bytes ------------------------------------------------------------------------------------


def _read(module: Module, of: Computation, name: str, whole: float) -> float:
    """Bytes that a computation reads of the parameter called `name`, at most `whole`."""
    total = 0.0
    for user in of.values():
        if name not in user.operands:
            continue
        if user.op == "bitcast":
            total += _read(module, of, user.name, whole)
        elif user.op in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
            total += user.buffers[0].bytes
        elif user.op == "dynamic-update-slice" and user.operands[0] == name:
            total += 0.0  # changed where it lies
        elif user.op == "fusion":
            inner = module.called(user)
            for place, operand in enumerate(user.operands):
                if operand == name:
                    total += _read(module, inner, parameters(inner)[place], whole)
        else:
            return whole
    return min(total, whole)


def _written(module: Module, of: Computation, i: Instruction) -> list[float]:
    """Bytes of each of an instruction's results that are written."""
    if i.op == "dynamic-update-slice":
        return [of[i.operands[1]].buffers[0].bytes]
    if i.op == "bitcast" and i.operands and i.operands[0] in of:
        return _written(module, of, of[i.operands[0]])
    if i.op == "tuple":
        return [each for name in i.operands for each in _written(module, of, of[name])]
    if i.op == "fusion":
        inner = module.called(i)
        return _written(module, inner, root(inner))
    return [b.bytes for b in i.buffers]


def moved(module: Module, of: Computation, i: Instruction, trips: int = 1) -> float:
    """Bytes an instruction moves to and from HBM, in a loop of so many trips."""
    if i.op in _FREE:
        return 0.0
    if i.op == "copy-start":
        return sum(b.bytes for b in i.buffers[:2] if not b.space)
    if i.op == "slice-start":
        cut = i.buffers[-2]
        return cut.bytes * (1 + (not cut.space))
    if i.op == "async-start":
        inner = module.called(i)
        return moved(module, inner, root(inner), trips)
    if i.op == "custom-call" and not _is_kernel(i):
        return 0.0  # marks and names, no work
    results = _written(module, of, i)
    if len(results) != len(i.buffers):
        results = [b.bytes for b in i.buffers]
    out = sum(n for n, b in zip(results, i.buffers, strict=True) if not b.space)
    read = [_operand(module, of, i, place) for place in range(len(i.operands))]
    if not _is_kernel(i):
        return out + sum(read)
    if i.name.startswith(RAGGED) and _is_carried(of, i.operands[-1]):  # matrices of all layers
        read[-1] /= trips
        return out + sum(read)
    told = i.attribute(r'"cost_estimate":\{[^}]*"bytes_accessed":"?(\d+)')
    return min(float(told), out + sum(read)) if told else out + sum(read)


def _is_kernel(i: Instruction) -> bool:
    return 'custom_call_target="tpu_custom_call"' in i.rest


def _is_carried(of: Computation, name: str) -> bool:
    """Whether it is what a loop carries from trip to trip, and not cut out of that."""
    found = of.get(name)
    while found is not None and found.op == "bitcast":
        found = of.get(found.operands[0])
    return found is not None and found.op == "get-tuple-element"


def _operand(module: Module, of: Computation, i: Instruction, place: int) -> float:
    """Bytes of HBM read of one operand."""
    found = of.get(i.operands[place])
    if found is None:
        return 0.0
    whole = sum(b.bytes for b in found.buffers if not b.space)
    if i.op in ("dynamic-slice", "slice", "gather"):
        return min(whole, i.buffers[0].bytes) if place == 0 else whole
    if i.op == "dynamic-update-slice":
        return 0.0 if place == 0 else whole
    if i.op == "fusion" and whole:
        inner = module.called(i)
        return _read(module, inner, parameters(inner)[place], whole)
    return whole


# -- collectives ------------------------------------------------------------------------------


def group_size(rest: str) -> int:
    """Devices of one group of a collective."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", rest):
        return len(listed.group(1).split(","))
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
        return int(counted.group(1))
    if meshed := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", rest):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", meshed.group(1)))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", meshed.group(2)))
    return 1


def received(i: Instruction, of: Computation, kind: str, group: int) -> float:
    """Bytes that reach a device in a ring: (n - 1) / n of the whole array, twice in a sum."""
    given = sum(b.bytes for name in i.operands if name in of for b in of[name].buffers)
    if kind == "all-gather":
        return given * (group - 1)
    share = 1.0 if kind.startswith("collective") else (group - 1) / group
    return given * share * (2 if kind == "all-reduce" else 1)


def _sent(i: Instruction, of: Computation, scattered: bool = False) -> Sent:
    """A collective; `scattered` is an all-reduce of which a device keeps its share only."""
    kind = "reduce-scatter" if scattered else i.op.removesuffix("-start")
    group = group_size(i.rest) if "replica_groups" in i.rest else 2
    return Sent(kind, received(i, of, kind, group), group)


def _is_collective(i: Instruction) -> bool:
    return i.op.removesuffix("-start") in COLLECTIVES


# -- beside other instructions ----------------------------------------------------------------


def _aside(module: Module, of: Computation, i: Instruction) -> tuple[float, Sent | None] | None:
    """Bytes and collective of what begins here and runs by itself; None where nothing does.

    What runs on the sparse cores is started first and given its operands by an update.
    """
    if i.op not in ("async-start", "async-update"):
        return None
    late = i.op == "async-update"
    start = of[i.operands[0]] if late else i
    inner = module.called(start)
    if inner is None or not i.operands[late:]:
        return None
    for inside, each in module.within(inner):
        if _is_collective(each):
            return 0.0, _sent(each, inside)
    return (_rows(inner), None) if SPARSE in start.rest else None


def _rows(gather: Computation) -> float:
    """Bytes of rows that are gathered, read and written, or scattered, and of their indices."""
    given = [gather[name].buffers[0] for name in parameters(gather)]
    indices = sum(b.bytes for b in given if b.dtype[0] in "su")
    _, *updates = [b for b in given if b.dtype[0] not in "su"]
    rows = updates or root(gather).buffers
    return indices + (2 + len(updates)) * rows[0].bytes


def _begun(of: Computation, i: Instruction) -> str:
    """The name of what is over with this instruction; empty for others than ends."""
    kind, dash, end = i.op.rpartition("-")
    if end != "done" or not dash or kind not in ("async", *COLLECTIVES):
        return ""
    found = of.get(i.operands[0])
    while found is not None and found.op == "async-update" and len(found.operands) == 1:
        found = of.get(found.operands[0])
    return found.name if found is not None else ""


# -- the whole program ------------------------------------------------------------------------


def works(text: str, share: float = 1.0) -> list[Work]:
    """What every instruction of a program's text does.

    `share` of the rows of a ragged product are in its groups, the others cost it nothing.
    """
    module = parse(text)
    channels = collections.Counter(
        _channel(i) for of in module.computations.values() for i in of.values() if _is_collective(i)
    )
    found = list(_walk(module, module.entry, 1, 1, [None, 0], channels, {}))
    return [
        dataclasses.replace(w, flops=w.flops * share) if w.name.startswith(RAGGED) else w
        for w in found
    ]


def unknown_loops(text: str) -> list[str]:
    """Types of what is carried by each outermost loop whose bound is data, in program order."""

    def inside(name: str) -> list[str]:
        found = []
        for i in module.computations[name].values():
            if i.op == "while" and trips(module, i) is None:
                found.append(i.type)
            elif i.op == "while":
                found += inside(i.attribute(r"body=%?([\w.$-]+)"))
        return found

    module = parse(text)
    return inside(module.entry)


def _channel(i: Instruction) -> str:
    number = i.attribute(r"channel_id=(\d+)")
    return i.name if number in (None, "1") else number  # all of a shard_map have 1


def _walk(
    module: Module,
    name: str,
    times: int,
    inner: int,
    at: list,
    channels: Mapping[str, int],
    seen: dict[str, list[str]],
) -> Iterator[Work]:
    """The work of a computation that is run `times` times, in a loop of `inner` trips.

    `at` is the loop of unknown length around it, if any, and the number of such loops so far;
    `seen` are the instructions of each collective so far, by its channel, which is in `channels`.
    """
    of = module.computations[name]
    for i in of.values():
        if i.op == "while" and MORE in i.rest:
            continue  # where picks are spread evenly it has no round
        if i.op == "while":
            n, (loop, known) = trips(module, i), at
            if n is None and loop is None:
                at[:] = [known, known + 1]
            body = i.attribute(r"body=%?([\w.$-]+)")
            yield from _walk(module, body, times * (n or 1), n or 1, at, channels, seen)
            at[0] = loop
        elif i.op in ("call", "conditional"):
            for called in re.findall(
                r"(?:to_apply=|branch_computations=\{|_computation=|, )%([\w.$-]+)", i.rest
            ):
                if called in module.computations:
                    yield from _walk(module, called, times, inner, at, channels, seen)
        elif aside := _aside(module, of, i):
            yield Work(i.name, times, 0.0, *aside, loop=at[0], beside=True)
        elif begun := _begun(of, i):
            yield Work(i.name, times, loop=at[0], waits=begun)
        else:
            moves = moved(module, of, i, inner)
            for each in _done(module, of, i, channels, seen):
                own = not each.sent and not each.waits
                yield dataclasses.replace(
                    each, times=times, bytes=moves if own else 0.0, loop=at[0]
                )


def _done(
    module: Module,
    of: Computation,
    i: Instruction,
    channels: Mapping[str, int],
    seen: dict[str, list[str]],
) -> Iterator[Work]:
    """The collectives that begin with an instruction, its own work, and those that it ends.

    A collective that runs beside other instructions stands in several fusions, by one channel.
    """
    flops, told, ends = 0.0, "", []
    scattered = "calls=%all-reduce-scatter" in i.rest
    for inside, each in _fused(module, of, i):
        if each.op in ("dot", "convolution"):
            flops += products(each, inside)
        elif _is_kernel(each) and "metadata" not in each.name:
            known = _kernel(each)
            flops, told = flops + (known or 0.0), told or ("" if known is not None else each.name)
        elif _is_collective(each):
            count = channels[_channel(each)]
            beside = seen.setdefault(_channel(each), [])
            if not beside:
                sent = _sent(each, inside, scattered)
                yield Work(i.name, 1, sent=sent, beside=count > 1 or each.op.endswith("-start"))
            beside.append(i.name)
            if len(beside) == count > 1:
                ends.append(beside[0])
    yield Work(i.name, 1, flops, kernel=told)
    yield from (Work(i.name, 1, waits=name) for name in ends)


def _fused(
    module: Module, of: Computation, i: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """The instruction, or all that is fused into it, each with the computation it stands in."""
    inner = module.called(i)
    if inner is None:
        yield of, i
        return
    for each in inner.values():
        yield from _fused(module, inner, each)
