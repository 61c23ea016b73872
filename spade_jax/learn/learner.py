"""From an iteration's samples to updated weights: old log-probabilities, passes, minibatches."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Sequence

import jax
import numpy as np
import optax

from spade_jax.learn import batching, step
from spade_jax.learn.batching import Row
from spade_jax.learn.step import Assemble, Hyper, LearnerState
from spade_jax.policy import sharding
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.types import Role, Sample

Stats = dict[str, float | None]

FIRST_CAPACITY = 16  # micro-batches there is room for at first; more room compiles anew


@dataclasses.dataclass(frozen=True)
class Settings:
    """How often and in what portions an iteration's samples are learned from."""

    passes: int
    minibatches: int
    row_tokens: tuple[int, ...]
    rows: tuple[int, ...]
    aggregation: str
    temperature: dict[Role, float]  # at which each role was sampled
    max_gap: float  # nats; beyond it the sampler's log-probabilities are no old ones
    max_lag: dict[Role, int]  # updates between sampling and the start of the iteration


class Learner:
    """The jitted update with its settings. `reference` are the weights of a KL term.

    Where only a part is trained, `frozen` is the rest and `assemble` makes the model of both.
    Arrays keep the largest size met so far, so that soon no iteration compiles anything.
    """

    def __init__(
        self,
        config: ModelConfig,
        hyper: Hyper,
        tx: optax.GradientTransformation,
        settings: Settings,
        reference: Params | None,
        frozen: Params | None = None,
        assemble: Assemble = step.whole,
    ) -> None:
        self.config, self.hyper, self.tx, self.settings = config, hyper, tx, settings
        self.reference, self.frozen, self.assemble = reference, frozen, assemble
        self._capacity = [FIRST_CAPACITY] * len(settings.rows)

    def params(self, state: LearnerState) -> Params:
        """The model's parameters."""
        return self.assemble(state.params, self.frozen)

    def update(
        self,
        state: LearnerState,
        samples: Sequence[Sample],
        rng: random.Random,
        skipped_in_row: int = 0,
    ) -> tuple[LearnerState, Stats]:
        """Several optimizer steps over both roles' samples; returns the state and statistics.

        Old log-probabilities are those of `state`, before the first step. `skipped_in_row` counts
        on over updates that were skipped for not being finite. Raises ValueError where a sample
        is older than its role allows.
        """
        samples = [sample for sample in samples if any(sample.record.action[1:])]
        if not samples:
            return state, {"learn/updates": 0, "learn/skipped_in_row": skipped_in_row}
        before = int(state.step)
        rows = [self._row(sample) for sample in samples]
        rows, stats = self._with_old_logps(state, rows, samples)
        totals: collections.Counter[str] = collections.Counter()
        updates = tokens = 0
        for _ in range(self.settings.passes):
            order = list(range(len(rows)))
            rng.shuffle(order)
            for k in range(self.settings.minibatches):
                chosen = [rows[i] for i in sorted(order[k :: self.settings.minibatches])]
                state, metrics, used = self._step(state, chosen)
                totals.update(metrics)
                updates += 1
                skipped_in_row = skipped_in_row + 1 if metrics["skipped"] else 0
                tokens += used
        means = {name: value / updates for name, value in totals.items()}
        stats |= {
            "learn/loss": means["loss"],
            "learn/grad_norm": means["grad_norm"],
            "learn/clip_share": means["clip_share"],
            "learn/approx_kl": means["approx_kl"],
            "learn/updates": int(state.step) - before,
            "learn/skipped_in_row": skipped_in_row,
            "learn/tokens": tokens,
            "agent/entropy": _ratio(means["entropy_agent"], means["agent_share"]),
            "designer/entropy": _ratio(means["entropy_designer"], means["designer_share"]),
        }
        if self.reference is not None:
            stats["learn/kl"] = means["kl_reference"]
        return state, stats

    def _row(self, sample: Sample) -> Row:
        return Row(
            record=sample.record,
            role=sample.role,
            advantage=sample.advantage,
            temperature=self.settings.temperature[sample.role],
        )

    def _with_old_logps(
        self, state: LearnerState, rows: list[Row], samples: Sequence[Sample]
    ) -> tuple[list[Row], Stats]:
        """Old log-probabilities: scored for samples of earlier weights, and for all when the
        sampler's differ from the learner's by more than `max_gap` on a probe of fresh ones."""
        now = int(state.step)
        for sample in samples:
            lag = now - sample.version
            if not 0 <= lag <= self.settings.max_lag[sample.role]:
                raise ValueError(
                    f"a sample of the {sample.role} is {lag} updates old, at most "
                    f"{self.settings.max_lag[sample.role]} are allowed; lower learn.designer_delay"
                )
        stale = [i for i, s in enumerate(samples) if s.version != now]
        fresh = [i for i, s in enumerate(samples) if s.version == now]
        probe = fresh[: 2 * self.settings.rows[0]]
        params = self.params(state)
        old = self._score(params, rows, stale + probe)
        gaps = [
            abs(a - b)
            for i in probe
            for a, b, own in zip(old[i], rows[i].record.logp, rows[i].record.action, strict=True)
            if own
        ]
        if gaps and max(gaps) > self.settings.max_gap:
            old |= self._score(params, rows, fresh[len(probe) :])
        else:
            old = {i: old[i] for i in stale}
        stats: Stats = {
            "learn/logprob_gap_mean": sum(gaps) / len(gaps) if gaps else None,
            "learn/logprob_gap_max": max(gaps, default=None),
        }
        everyone = range(len(rows))
        references = self._score(self.reference, rows, everyone) if self.reference else {}
        scored = [
            dataclasses.replace(row, logp_old=old.get(i), logp_reference=references.get(i))
            for i, row in enumerate(rows)
        ]
        return scored, stats

    def _score(
        self, params: Params, rows: Sequence[Row], chosen: Sequence[int]
    ) -> dict[int, tuple[float, ...]]:
        """Log-probabilities of the chosen rows' tokens by `params`."""
        if not chosen:
            return {}
        picked = [rows[i] for i in chosen]
        batch, counts, layout = self._pack(picked, [0.0] * len(picked))
        logps = step.score(params, batch, counts, c=self.config, h=self.hyper)
        lengths = [len(row.record.ids) for row in picked]
        values = batching.unpack(jax.device_get(logps), layout, lengths)
        return dict(zip(chosen, values, strict=True))

    def _step(
        self, state: LearnerState, rows: Sequence[Row]
    ) -> tuple[LearnerState, dict[str, float], int]:
        """One optimizer step; rows that cannot move anything only count in the denominators."""
        weights = batching.token_weights(rows, self.settings.aggregation)
        inert = self.hyper.kl == 0 and self.hyper.entropy == 0
        pairs = [
            (row, weight)
            for row, weight in zip(rows, weights, strict=True)
            if weight and not (inert and row.advantage == 0)
        ]
        batch, counts, _ = self._pack([r for r, _ in pairs], [w for _, w in pairs])
        state, metrics = step.train_step(
            state,
            batch,
            counts,
            c=self.config,
            h=self.hyper,
            tx=self.tx,
            frozen=self.frozen,
            assemble=self.assemble,
        )
        tokens = sum(row.trained for row, _ in pairs)
        return state, {k: float(v) for k, v in jax.device_get(metrics).items()}, tokens

    def _pack(
        self, rows: Sequence[Row], weights: Sequence[float]
    ) -> tuple[tuple[batching.Rows, ...], np.ndarray, batching.Layout]:
        """Packed rows, on the devices, with the counts of micro-batches in use and the layout."""
        batch, counts, layout = batching.pack(
            rows,
            weights,
            buckets=self.settings.row_tokens,
            micro_rows=self.settings.rows,
            capacity=self._capacity,
        )
        needed = [1 << (p.tokens.shape[0] - 1).bit_length() for p in batch]  # powers of two
        if needed != self._capacity:
            self._capacity = needed
            return self._pack(rows, weights)
        return sharding.place_batch(batch, axis=1), counts, layout


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 1e-9 else None
