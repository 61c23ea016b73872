"""From an iteration's samples to updated weights: old log-probabilities, passes, minibatches."""

from __future__ import annotations

import collections
import dataclasses
import math
import random
import time
from collections.abc import Sequence

import jax
import numpy as np
import optax

from spade_jax.learn import batching, step
from spade_jax.learn.batching import Row
from spade_jax.learn.step import Assemble, Hyper, LearnerState
from spade_jax.policy import sharding
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.types import Role, Sample, TokenRecord

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
    `device_s` adds up the seconds that updates waited for the device; what more they took is the
    host's.
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
        self.device_s = 0.0

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
        samples = [s for s in samples if any(any(record.action[1:]) for record in s.records)]
        if not samples:
            empty = self.settings.passes * self.settings.minibatches
            counts = {"learn/updates": 0, "learn/empty_updates": empty}
            return state, counts | {"learn/skipped_in_row": skipped_in_row}
        before = int(state.step)
        rows = [row for n, sample in enumerate(samples) for row in self._rows(n, sample)]
        rows, stats = self._with_old_logps(state, rows, samples)
        conversations: list[list[Row]] = [[] for _ in samples]
        for row in rows:
            conversations[row.conversation].append(row)
        totals: collections.Counter[str] = collections.Counter()
        tokens: collections.Counter[Role] = collections.Counter()
        updates = 0
        for _ in range(self.settings.passes):
            order = list(range(len(conversations)))
            rng.shuffle(order)
            for k in range(self.settings.minibatches):
                part = sorted(order[k :: self.settings.minibatches])
                chosen = [row for i in part for row in conversations[i]]
                state, metrics, used = self._step(state, chosen)
                totals.update(metrics)
                updates += 1
                skipped_in_row = skipped_in_row + 1 if metrics["skipped"] else 0
                tokens.update(used)
        means = {name: value / updates for name, value in totals.items()}
        applied = int(state.step) - before
        stats |= {
            "learn/loss": means["loss"],
            "learn/grad_norm": means["grad_norm"],
            "learn/clip_share": means["clip_share"],
            "learn/approx_kl": means["approx_kl"],
            "learn/updates": applied,
            "learn/empty_updates": updates - applied - int(totals["skipped"]),
            "learn/skipped_in_row": skipped_in_row,
            "learn/fill_share": means["fill_share"],
            "learn/tokens": tokens.total(),
            **{f"learn/tokens/{role}": tokens[role] for role in Role},
            "agent/entropy": _ratio(means["entropy_agent"], means["agent_share"]),
            "designer/entropy": _ratio(means["entropy_designer"], means["designer_share"]),
        }
        if self.reference is not None:
            stats["learn/kl"] = means["kl_reference"]
        if self.hyper.role_norms:
            stats |= {f"learn/grad_norm/{role}": means[f"grad_norm_{role}"] for role in Role}
        return state, stats

    def _rows(self, number: int, sample: Sample) -> list[Row]:
        return [
            Row(
                record=record,
                role=sample.role,
                advantage=sample.advantage,
                temperature=self.settings.temperature[sample.role],
                conversation=number,
            )
            for record in sample.records
        ]

    def _with_old_logps(
        self, state: LearnerState, rows: list[Row], samples: Sequence[Sample]
    ) -> tuple[list[Row], Stats]:
        """Old log-probabilities: scored for samples of earlier weights, and for all when the
        sampler's differ from the learner's by more than `max_gap` on a probe of fresh ones."""
        now = int(state.step)
        lags = [now - sample.version for sample in samples]
        for sample, lag in zip(samples, lags, strict=True):
            if not 0 <= lag <= self.settings.max_lag[sample.role]:
                raise ValueError(
                    f"a sample of the {sample.role} is {lag} updates old, at most "
                    f"{self.settings.max_lag[sample.role]} are allowed; lower learn.designer_delay"
                )
        stale = [i for i, row in enumerate(rows) if lags[row.conversation]]
        fresh = [i for i, row in enumerate(rows) if not lags[row.conversation]]
        probe = fresh[: self.settings.rows[0]]  # one micro-batch
        params = self.params(state)
        old = self._score(params, rows, stale + probe)
        stats = agreement([(rows[i].record, old[i]) for i in probe])
        gap = stats["learn/logprob_gap_max"]
        if gap is not None and not gap <= self.settings.max_gap:  # NaN is no agreement
            old |= self._score(params, rows, fresh[len(probe) :])
        else:
            old = {i: old[i] for i in stale}
        everyone = range(len(rows))
        references = self._score(self.reference, rows, everyone) if self.reference else {}
        scored = [
            dataclasses.replace(row, logp_old=old.get(i), logp_reference=references.get(i))
            for i, row in enumerate(rows)
        ]
        stats["learn/effective_sample_size"] = effective_share(scored, self.hyper.importance_cap)
        stats["learn/lag_max"] = max(lags)
        return scored, stats

    def _score(
        self, params: Params, rows: Sequence[Row], chosen: Sequence[int]
    ) -> dict[int, tuple[float, ...]]:
        """Log-probabilities of the chosen rows' tokens by `params`."""
        if not chosen:
            return {}
        picked = [rows[i] for i in chosen]
        batch, counts, layout = self._pack(picked, [0.0] * len(picked))
        began = time.perf_counter()
        logps = sharding.fetch(step.score(params, batch, counts, c=self.config, h=self.hyper))
        self.device_s += time.perf_counter() - began
        lengths = [len(row.record.ids) for row in picked]
        values = batching.unpack(logps, layout, lengths)
        return dict(zip(chosen, values, strict=True))

    def _step(
        self, state: LearnerState, rows: Sequence[Row]
    ) -> tuple[LearnerState, dict[str, float], dict[Role, int]]:
        """One optimizer step; rows that cannot move anything only count in the denominators.

        Returns the state, statistics and the number of tokens of each role.
        """
        weights = batching.token_weights(rows, self.settings.aggregation)
        inert = self.hyper.kl == 0 and self.hyper.entropy == 0
        pairs = [
            (row, weight)
            for row, weight in zip(rows, weights, strict=True)
            if weight and not (inert and row.advantage == 0)
        ]
        shares = [[pair for pair in pairs if pair[0].role is role] for role in Role]
        packed = [
            self._pack([r for r, _ in share], [w for _, w in share])[:2]
            for share in (shares if self.hyper.role_norms else [pairs])
        ]
        batch = tuple(rows for part, _ in packed for rows in part)
        counts = np.concatenate([used for _, used in packed])
        began = time.perf_counter()
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
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.device_s += time.perf_counter() - began
        places = sum(
            int(n) * math.prod(p.tokens.shape[1:]) for n, p in zip(counts, batch, strict=True)
        )
        values["fill_share"] = sum(len(row.record.ids) for row, _ in pairs) / max(places, 1)
        used = {
            role: sum(row.trained for row, _ in share)
            for role, share in zip(Role, shares, strict=True)
        }
        return state, values, used

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


def agreement(scored: Sequence[tuple[TokenRecord, Sequence[float]]]) -> Stats:
    """How far the learner's log-probabilities are from those the sampler stored, own tokens only.

    The k3 estimate of KL(sampler || learner) is exp(d) - d - 1 with d = learner's - sampler's
    (Schulman, "Approximating KL divergence", 2020). All are None where there is no token.
    """
    names = ("learn/logprob_gap_mean", "learn/logprob_gap_max", "learn/sampler_kl")
    if not scored:
        return dict.fromkeys(names)
    d = np.concatenate([_own(record, ours) - _own(record, record.logp) for record, ours in scored])
    gap = np.abs(d)
    values = (gap.mean(), gap.max(), np.mean(np.expm1(d) - d))
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def effective_share(rows: Sequence[Row], cap: float) -> float:
    """(sum w)^2 / (n sum w^2) over the n own tokens: 1 where all importance weights are alike.

    w = min(old / behaviour, cap), as in the loss (Kish's effective sample size); cap 0: no cap.
    """
    pairs = [(r.record, r.logp_old or r.record.logp) for r in rows]
    log_w = np.concatenate([_own(r, old) - _own(r, r.behaviour) for r, old in pairs])
    w = np.minimum(np.exp(log_w), cap or np.inf)
    return float(w.sum() ** 2 / (len(w) * np.square(w).sum()))


def _own(record: TokenRecord, values: Sequence[float]) -> np.ndarray:
    """The values at the policy's own tokens but the first, which has no prediction."""
    return np.asarray(values[1:])[np.asarray(record.action[1:], bool)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 1e-9 else None
