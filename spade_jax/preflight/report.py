"""The report of a preflight, for people and as one JSON object."""

from __future__ import annotations

import dataclasses
from typing import Any

import rich.box
from ml_collections import config_dict
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from spade_jax.policy import model
from spade_jax.policy.model import ModelConfig
from spade_jax.preflight import estimate
from spade_jax.preflight.chips import GIB, Device
from spade_jax.preflight.compiler import Facts, Part
from spade_jax.preflight.estimate import Iteration, Phase
from spade_jax.preflight.schedule import Rates

MFU = (
    "MFU = model FLOPs / (seconds x devices x published peak); model FLOPs = tokens x (6 x active "
    "parameters + 6 x layers x heads x head size x length): rematerialisation is not counted. The "
    "first is that of the program as it is, the second were all its collectives hidden."
)
LOOPS = (
    "FLOPs, bytes and collectives are those of one device, read from the optimised program: loops "
    "with a constant bound count by their trips, others once, in a line of their own. Times are "
    "the compiler's rates applied to each instruction in the compiled order; of collectives that "
    "run beside other work counts what is waited for. They are a bound from below, not a "
    "measurement. At a decoding step stands what it moves over the size of weights and cache."
)


@dataclasses.dataclass(frozen=True)
class Slice:
    """What was asked for, and what is the same for all programs."""

    config: config_dict.ConfigDict
    topology: str
    device: Device
    compiler: str
    devices: int
    mesh: dict[str, int]
    sampling_mesh: dict[str, int]
    replicas: int
    context: int
    model: ModelConfig
    rates: Rates
    residents: dict[str, int]

    @property
    def pieces(self) -> int:
        """Among how many devices a batch is divided."""
        return self.devices // self.mesh["tensor"]


@dataclasses.dataclass(frozen=True)
class Report:
    """All of it."""

    slice: Slice
    programs: tuple[Facts, ...]
    phases: tuple[Phase, ...]
    iteration: Iteration
    share: float  # of their most tokens that conversations are taken to have

    @property
    def fits(self) -> bool:
        return all(p.fits for p in self.phases) and not any(f.failed for f in self.programs)


def utilisation(s: Slice, facts: Facts) -> dict[str, tuple[float, float]]:
    """MFU of a full micro-batch of each row length, where the program is the train step."""
    if not facts.name.startswith("train"):
        return {}
    sizes = list(zip(s.config.learn.rows, s.config.learn.row_tokens, strict=True))
    return {
        part.what: estimate.mfu(s.model, part, *size, s.devices, s.device.flops)
        for part, size in zip(facts.parts[1:], sizes, strict=False)
    }


def touched(s: Slice, facts: Facts) -> float | None:
    """Bytes of a decoding step over those of the weights' copy and the whole cache."""
    if not facts.name.startswith("decode") or len(facts.parts) < 2:
        return None
    return facts.parts[1].bytes / (s.residents["sampling copy"] + s.residents["cache"])


def as_json(r: Report) -> dict[str, Any]:
    """Everything, bytes and seconds in full."""
    s = r.slice
    plain = {
        field.name: getattr(s, field.name)
        for field in dataclasses.fields(s)
        if field.name not in ("config", "model", "device", "rates")
    }
    return {
        **plain,
        "fits": r.fits,
        "chip": dataclasses.asdict(s.device),
        "rates": dataclasses.asdict(s.rates),
        "model": {"parameters": model.count(s.model), "active": estimate.active(s.model)},
        "programs": [
            dataclasses.asdict(f)
            | {"peak": f.peak, "mfu": utilisation(s, f), "touched": touched(s, f)}
            for f in r.programs
        ],
        "phases": [dataclasses.asdict(p) | {"total": p.total, "fits": p.fits} for p in r.phases],
        "iteration": dataclasses.asdict(r.iteration)
        | {"seconds": r.iteration.seconds, "length_share": r.share},
        "remedies": {p.name: _remedies(r, p) for p in r.phases if not p.fits},
    }


def _remedies(r: Report, phase: Phase) -> list[str]:
    s = r.slice
    return estimate.remedies(
        s.config, phase, pieces=s.pieces, devices=s.devices, replicas=s.replicas
    )


# -- for people -------------------------------------------------------------------------------


def gib(n: float) -> str:
    return f"{n / GIB:.2f}"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _sent(part: Part) -> str:
    known = [(kind, group, n) for kind, group, n in part.sent if n >= 1e6]
    return ", ".join(f"{kind} of {group}: {n / 1e9:.3g}" for kind, group, n in known)


def _heading(s: Slice) -> str:
    meshes = [
        " ".join(f"{name} {n}" for name, n in shape.items() if n > 1) or "one device"
        for shape in (s.mesh, s.sampling_mesh)
    ]
    apart = f"on each of {s.replicas} replicas" if s.replicas > 1 else "as one"
    return (
        f"{s.topology} by {s.compiler}: {s.devices} devices of {gib(s.device.hbm)} GiB, of which "
        f"programs get {gib(s.device.granted)}; {s.device.flops / 1e12:.0f} TFLOP/s, "
        f"{s.device.bandwidth / 1e9:.0f} GB/s (the compiler reckons with "
        f"{s.rates.flops / 1e12:.0f} and {s.rates.bandwidth / 1e9:.0f})\n"
        f"model of {model.count(s.model):,} parameters, {estimate.active(s.model):,} active; "
        f"trains on {meshes[0]}; samples {apart} on {meshes[1]} with "
        f"{s.config.sampling.slots} slots of {s.context:,} tokens each"
    )


def programs(r: Report) -> Table:
    """A row for each program, and one for a round of each of its loops of unknown length."""
    rows = Table(box=rich.box.SIMPLE, title="programs, GiB and work of one device")
    rows.add_column("program", no_wrap=True)
    for name in ("compile", "args", "out", "temp", "peak", "TFLOP", "GB", "time", "own word"):
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("received, GB")
    for f in r.programs:
        memory = [gib(n) for n in (f.arguments, f.outputs - f.aliased, f.temporaries, f.peak)]
        told = _time(f.optimal_s) if f.optimal_s else "-"
        first = f.parts[0] if f.parts else Part("", 0.0, 0.0, 0.0, 0.0, ())
        work = [f"{first.flops / 1e12:.3g}", f"{first.bytes / 1e9:.3g}", _time(first.seconds)]
        style = "red" if f.failed else None
        rows.add_row(
            f.name, f"{f.compile_s:.0f} s", *memory, *work, told, _sent(first), style=style
        )
        shares, over = utilisation(r.slice, f), touched(r.slice, f)
        for part in f.parts[1:]:
            work = [f"{part.flops / 1e12:.3g}", f"{part.bytes / 1e9:.3g}", _time(part.seconds)]
            least, most = shares.get(part.what, (0.0, 0.0))
            reached = f"MFU {100 * least:.0f}-{100 * most:.0f}%" if least else ""
            reached = f"x {over:.2f}" if over else reached
            rows.add_row(f"  {part.what}", *[""] * 5, *work, reached, _sent(part))
    return rows


def phases(r: Report) -> Table:
    """A row for each phase: what is resident together."""
    rows = Table(box=rich.box.SIMPLE, title="resident together, GiB of a device")
    rows.add_column("phase")
    names = ["parameters", "optimizer", "reference", "sampling copy", "cache"]
    names = [name for name in names if r.slice.residents[name]]
    for name in (*names, "besides", "total", "of"):
        rows.add_column(name, justify="right")
    rows.add_column("")
    for p in r.phases:
        held = [gib(p.parts.get(name, 0)) for name in names]
        more = gib(p.parts[p.program])
        fits = Text("fits", style="green") if p.fits else Text("does not fit", style="red")
        rows.add_row(p.name, *held, more, gib(p.total), gib(p.granted), fits)
    return rows


def summary(r: Report) -> str:
    """The run in sentences."""
    i, c = r.iteration, r.slice.config
    batches = ", ".join(
        f"{n} of {rows} x {length:,}"
        for n, rows, length in zip(i.micro_batches, c.learn.rows, c.learn.row_tokens, strict=True)
    )
    lines = [
        f"an iteration, with conversations of {r.share:.0%} of their most tokens: "
        f"{i.tokens_sampled:,.0f} tokens sampled in {i.decode_steps:,.0f} steps, "
        f"{i.tokens_trained:,.0f} trained in micro-batches {batches}",
    ]
    if i.seconds is not None:
        lines.append(
            f"at best {i.seconds:.1f} s: weights {i.weights_s:.2f}, sampling {i.sample_s:.1f}, "
            f"learning {i.learn_s:.1f}; {i.seconds * r.slice.devices / 3600:.2f} device-hours; "
            f"MFU {i.mfu:.0%} (prefill, environments and waiting not counted)"
        )
    return "\n".join(lines)


def unfit(r: Report) -> list[str]:
    """For each phase and program that does not fit: the largest buffers, and what would help."""
    out = []
    for p in r.phases:
        facts = next(f for f in r.programs if f.name == p.program)
        if p.fits and not facts.failed:
            continue
        over = p.total - p.granted
        parts = sorted(p.parts.items(), key=lambda item: -item[1])
        out.append(
            f"{p.name} does not fit by {gib(over)} GiB: "
            + ", ".join(f"{name} {gib(n)}" for name, n in parts)
        )
        buffers = ", ".join(f"{gib(n)} {what}" for n, what in facts.largest)
        if buffers:
            out.append(f"  largest buffers of {p.program}: {buffers}")
        out.append("  would make it fit: " + "; or ".join(_remedies(r, p)))
    return out


def uneven(s: Slice) -> list[str]:
    """A sentence for rows of which every device of several computes the same ones."""
    sizes = zip(s.config.learn.rows, s.config.learn.row_tokens, strict=True)
    return [
        f"A micro-batch of {rows} x {length:,} does not fall into {s.pieces} pieces, so that "
        "devices compute the same rows: give a multiple of these (--config.learn.rows)."
        for rows, length in sizes
        if rows % s.pieces
    ]


def show(r: Report, console: Console) -> None:
    """Print the report."""
    untold = sorted({name for f in r.programs for name in f.untold})
    notes = [f"Products inside of {', '.join(untold)} are not counted."] if untold else []
    notes += uneven(r.slice)
    told = Text("\n".join([summary(r), LOOPS, MFU, *notes]))
    console.print(Group(Text(_heading(r.slice)), programs(r), phases(r), told))
    for line in unfit(r):
        console.print(Text(line, style="red"))
