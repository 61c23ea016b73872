"""What a run needs and how long it takes, from what the compiler said of its programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
from ml_collections import config_dict

from spade_jax.config_rules import actor_only
from spade_jax.policy import model
from spade_jax.policy.model import ModelConfig
from spade_jax.preflight.compiler import Facts, Part

LEARNER = ("parameters", "optimizer", "reference")
RESIDENT = {  # in each phase: the sampler rests while its weights are made and others are learned
    "weights": LEARNER,
    "sample": (*LEARNER, "sampling copy", "cache"),
    "learn": LEARNER,
}


# -- memory -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Phase:
    """The most bytes of a device in use at once in a phase: what stays, and its largest program."""

    name: str
    parts: dict[str, int]
    program: str
    granted: float

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.granted


def phases(
    residents: Mapping[str, int], facts: Sequence[Facts], granted: float
) -> tuple[Phase, ...]:
    """The phases of which any program is known.

    A program adds to what is resident its peak less those of its arguments that are resident.
    """
    out = []
    for name, stays in RESIDENT.items():
        added = {
            f.name: max(0, f.peak - sum(residents[held] for held in f.holds))
            for f in facts
            if f.phase == name
        }
        if added:
            program = max(added, key=added.get)
            parts = {part: residents[part] for part in stays if residents[part]}
            out.append(Phase(name, parts | {program: added[program]}, program, granted))
    return tuple(out)


def remedies(
    c: config_dict.ConfigDict, phase: Phase, *, pieces: int, devices: int, replicas: int
) -> list[str]:
    """Changes each of which would make a phase fit by itself, as far as arithmetic goes.

    `pieces` are those among which a batch is divided, `replicas` those that sample apart.
    """
    over, parts, out = phase.total - phase.granted, phase.parts, []
    cache, copied = parts.get("cache", 0), parts.get("sampling copy", 0)
    if phase.name == "learn":
        out += _smaller_batches(c, over, parts[phase.program] - parts.get("parameters", 0), pieces)
    if cache > over:
        slots = math.floor(c.sampling.slots * (cache - over) / cache)
        if slots:
            out.append(f"fewer conversations at once (--config.sampling.slots={slots})")
    if phase.name == "sample" and cache + parts[phase.program] > over:
        out.append("a shorter context (--config.play.context, --config.learn.row_tokens)")
    divided = copied + cache + (parts[phase.program] if phase.name == "weights" else 0)
    if phase.name != "learn" and divided > over:
        times = 2 ** math.ceil(math.log2(divided / (divided - over)))
        if times <= replicas:
            hosts = times * c.hosts.per_replica
            out.append(f"replicas of more hosts (--config.hosts.per_replica={hosts})")
        elif copied / 2 > over:
            out.append("the sampling copy in more pieces (--config.sampling.tensor, .expert)")
    state = sum(parts.get(name, 0) for name in LEARNER)
    if state > over:
        needed = math.ceil(devices * state / (state - over))
        out.append(f"a slice of at least {needed} devices")
    return out or [f"a slice of chips with more memory, or one of {2 * devices} devices and more"]


def _smaller_batches(
    c: config_dict.ConfigDict, over: float, scales: float, pieces: int
) -> list[str]:
    """Changes to an update of which `scales` grows with its rows; the gradient does not."""
    whole = tuple(math.ceil(n / pieces) * pieces for n in c.learn.rows)
    if whole != tuple(c.learn.rows):  # what is not divided is on every device
        return [f"rows that fall into {pieces} pieces (--config.learn.rows={whole})"]
    out = []
    if c.model.remat != "layer":
        out.append("keep less for the backward pass, if enough (--config.model.remat=layer)")
    if scales <= over:
        return out
    kept = [math.floor(n * (1 - over / scales) / pieces) * pieces for n in c.learn.rows]
    if min(kept):
        return [*out, f"a smaller micro-batch (--config.learn.rows={tuple(kept)})"]
    return [*out, "shorter rows (--config.learn.row_tokens, --config.play.context)"]


# -- time -------------------------------------------------------------------------------------


def active(m: ModelConfig) -> int:
    """Parameters that a token is multiplied with: its experts', and the embedding as the head."""
    total = 0.0
    for path, p in jax.tree.leaves_with_path(model.declare(m), is_leaf=model.is_parameter):
        share = m.experts_per_token / m.experts if "expert" in p.axes else 1.0
        looked_up = path[0].key == "embed" and not m.tied
        total += 0.0 if looked_up else share * math.prod(p.shape)
    return round(total)


def model_flops(m: ModelConfig, tokens: float, length: float) -> float:
    """Operations a training step needs for `tokens` in sequences of `length`.

    6 for each active parameter and token, and for attention two products of length / 2 keys on
    average, forward and twice backward: 6 L H C length a token. What rematerialisation computes
    again does not count (Chowdhery et al., "PaLM", 2022, appendix B).
    """
    attention = 6.0 * m.layers * m.heads * m.head_size * length
    return tokens * (6.0 * active(m) + attention)


@dataclasses.dataclass(frozen=True)
class Iteration:
    """An iteration on average: tokens of all devices, seconds, and the share of the peak reached.

    Seconds are None where the programs that take them are not known.
    """

    tokens_sampled: float
    tokens_trained: float
    micro_batches: tuple[int, ...]  # of each row length, in one pass
    decode_steps: float
    weights_s: float | None
    sample_s: float | None
    learn_s: float | None
    mfu: float | None

    @property
    def seconds(self) -> float | None:
        known = (self.weights_s, self.sample_s, self.learn_s)
        return None if None in known else sum(known)


def mfu(
    m: ModelConfig, part: Part, rows: int, length: int, devices: int, peak: float
) -> tuple[float, float]:
    """Share of the chips' peak in a full micro-batch of the train step: as the program is, and
    were all of its collectives hidden."""
    needed = model_flops(m, rows * length, length) / (devices * peak)
    return needed / part.seconds, needed / part.hidden


def iteration(
    c: config_dict.ConfigDict,
    m: ModelConfig,
    facts: Sequence[Facts],
    *,
    replicas: int,
    devices: int,
    peak: float,
    share: float,
) -> Iteration:
    """An iteration whose conversations have `share` of their most tokens, on average.

    All of them are taken as sampled; prefill, environments and waiting are not counted.
    """
    every, envs = c.design.regenerate_every, c.design.num_envs
    episode, design = share * c.play.context, share * c.design.max_tokens
    plain, hinted = envs * c.play.plays, envs * c.play.hint_plays
    designs = 0 if actor_only(c) else envs
    seats = replicas * c.sampling.slots
    rounds = (every - 1) * math.ceil(plain / seats) + math.ceil((plain + hinted) / seats)
    steps = (rounds * episode + math.ceil(designs / seats) * design) / every
    learned = designs / every if c.learn.train_designer else 0.0
    parts = [(plain * episode, episode), (learned * design, design)]
    micro = _micro_batches(c, parts)
    known = {f.name.split()[0]: f for f in facts if f.parts}
    trained = sum(tokens for tokens, _ in parts)
    learn = _learn_s(c, known, micro, _micro_batches(c, parts[1:]))
    sample = _sample_s(c, known, steps)
    weights = known["weights"].parts[0].seconds if "weights" in known else None
    needed = c.learn.passes * sum(model_flops(m, tokens, length) for tokens, length in parts)
    made = Iteration(
        tokens_sampled=(plain + hinted / every) * episode + designs / every * design,
        tokens_trained=trained,
        micro_batches=micro,
        decode_steps=steps,
        weights_s=weights,
        sample_s=sample,
        learn_s=learn,
        mfu=None,
    )
    if made.seconds is None:
        return made
    return dataclasses.replace(made, mfu=needed / (made.seconds * devices * peak))


def _micro_batches(
    c: config_dict.ConfigDict, parts: Sequence[tuple[float, float]]
) -> tuple[int, ...]:
    """Micro-batches of each row length for (tokens, mean length) of conversations, packed full."""
    tokens = [0.0] * len(c.learn.rows)
    for total, length in parts:
        bucket = next(b for b, size in enumerate(c.learn.row_tokens) if length <= size)
        tokens[bucket] += total
    sizes = zip(c.learn.rows, c.learn.row_tokens, strict=True)
    return tuple(math.ceil(n / (a * b)) for n, (a, b) in zip(tokens, sizes, strict=True))


def _learn_s(
    c: config_dict.ConfigDict,
    known: Mapping[str, Facts],
    micro: Sequence[int],
    stale: Sequence[int],
) -> float | None:
    """Seconds of the updates, of the designs' old log-probabilities where there are several, and
    of the reference's."""
    updates = c.learn.passes * c.learn.minibatches
    scored = [
        (n if updates > 1 else 0) + (m if c.learn.kl else 0)
        for n, m in zip(stale, micro, strict=True)
    ]
    if not {"train", *(["log-probabilities"] if any(scored) else [])} <= known.keys():
        return None
    update = known["train"].parts
    seconds = updates * update[0].seconds + c.learn.passes * _rounds(update, micro)
    if any(scored):
        score = known["log-probabilities"].parts
        seconds += score[0].seconds + _rounds(score, scored)
    return seconds


def _rounds(parts: Sequence[Part], counts: Sequence[int]) -> float:
    """Seconds of so many rounds of each loop."""
    return sum(n * part.seconds for n, part in zip(counts, parts[1:], strict=False))


def _sample_s(c: config_dict.ConfigDict, known: Mapping[str, Facts], steps: float) -> float | None:
    """Seconds of so many decoding steps, each with its share of what a block takes besides."""
    if "decode" not in known or len(known["decode"].parts) < 2:
        return None
    block, token = known["decode"].parts[:2]
    return steps * (token.seconds + block.seconds / c.sampling.block)
