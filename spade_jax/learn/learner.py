"""From an iteration's samples to updated weights: old log-probabilities, passes, minibatches."""

from __future__ import annotations

import collections
import dataclasses
import math
import random
import time
from collections.abc import Mapping, Sequence

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
    max_gap: float  # nats; beyond it the sampler's log-probabilities are no old ones of several
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
        self.config, self.tx, self.settings = config, tx, settings
        self.updates = settings.passes * settings.minibatches
        self.hyper = dataclasses.replace(hyper, one_update=self.updates == 1)
        self.reference, self.frozen, self.assemble = reference, frozen, assemble
        self._capacity = [FIRST_CAPACITY] * len(settings.rows)
        self.device_s = 0.0

    def params(self, state: LearnerState) -> Params:
        """The model's parameters."""
        return self.assemble(state.params, self.frozen)

    @property
    def scores(self) -> bool:
        """Whether log-probabilities are computed apart from updates."""
        return self.updates > 1 or self.reference is not None

    def update(
        self,
        state: LearnerState,
        samples: Sequence[Sample],
        rng: random.Random,
        skipped_in_row: int = 0,
    ) -> tuple[LearnerState, Stats]:
        """Several optimizer steps over both roles' samples; returns the state and statistics.

        Old log-probabilities are those of `state`, before the first step: an only step has them
        at hand. `skipped_in_row` counts on over updates that were skipped for not being finite.
        Raises ValueError where a sample is older than its role allows.
        """
        samples = [s for s in samples if any(any(record.action[1:]) for record in s.records)]
        if not samples:
            counts = {"learn/updates": 0, "learn/empty_updates": self.updates}
            return state, counts | {"learn/skipped_in_row": skipped_in_row}
        before = int(state.step)
        lags = self._lags(samples, before)
        rows = [row for n, sample in enumerate(samples) for row in self._rows(n, sample)]
        if self.reference is not None:
            references = self._score(self.reference, rows)
            rows = _filled(rows, "logp_reference", dict(enumerate(references)))
        if not self.hyper.one_update:
            rows, scored = self._with_old_logps(self.params(state), rows, lags)
        conversations: list[list[Row]] = [[] for _ in samples]
        for row in rows:
            conversations[row.conversation].append(row)
        totals: collections.Counter[str] = collections.Counter()
        tokens: collections.Counter[Role] = collections.Counter()
        for _ in range(self.settings.passes):
            order = list(range(len(conversations)))
            rng.shuffle(order)
            for k in range(self.settings.minibatches):
                part = sorted(order[k :: self.settings.minibatches])
                chosen = [row for i in part for row in conversations[i]]
                state, metrics, used, own = self._step(state, chosen)
                totals.update(metrics)
                skipped_in_row = skipped_in_row + 1 if metrics["skipped"] else 0
                tokens.update(used)
        if self.hyper.one_update:
            rows = scored = own
        fresh = [row for row in scored if not lags[row.conversation]]
        stats = agreement([(row.record, row.logp_old) for row in fresh]) | {
            "learn/effective_sample_size": effective_share(rows, self.hyper.importance_cap),
            "learn/lag_max": max(lags),
            "learn/skipped_in_row": skipped_in_row,
        }
        return state, stats | self._stats(totals, tokens, int(state.step) - before)

    def _stats(
        self, totals: Mapping[str, float], tokens: collections.Counter[Role], applied: int
    ) -> Stats:
        """Means over the updates of what they summed up, and counts."""
        means = {name: value / self.updates for name, value in totals.items()}
        stats = {
            "learn/loss": means["loss"],
            "learn/grad_norm": means["grad_norm"],
            "learn/clip_share": means["clip_share"],
            "learn/approx_kl": means["approx_kl"],
            "learn/updates": applied,
            "learn/empty_updates": self.updates - applied - int(totals["skipped"]),
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
        return stats

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

    def _lags(self, samples: Sequence[Sample], now: int) -> list[int]:
        """How many updates old each sample is; ValueError for one that is too old."""
        lags = [now - sample.version for sample in samples]
        for sample, lag in zip(samples, lags, strict=True):
            if not 0 <= lag <= self.settings.max_lag[sample.role]:
                raise ValueError(
                    f"a sample of the {sample.role} is {lag} updates old, at most "
                    f"{self.settings.max_lag[sample.role]} are allowed; lower learn.designer_delay"
                )
        return lags

    def _with_old_logps(
        self, params: Params, rows: list[Row], lags: Sequence[int]
    ) -> tuple[list[Row], list[Row]]:
        """Old log-probabilities for several updates: scored for samples of earlier weights, and for
        all when the sampler's differ from the learner's by more than `max_gap` on a probe of fresh
        ones, which comes second, with the learner's."""
        stale = [i for i, row in enumerate(rows) if lags[row.conversation]]
        fresh = [i for i, row in enumerate(rows) if not lags[row.conversation]]
        probe = fresh[: self.settings.rows[0]]  # one micro-batch

        def score(chosen: list[int]) -> dict[int, tuple[float, ...]]:
            logps = self._score(params, [rows[i] for i in chosen])
            return dict(zip(chosen, logps, strict=True))

        old = score(stale + probe)
        scored = _filled(rows, "logp_old", old)
        probed = [scored[i] for i in probe]
        gap = agreement([(r.record, r.logp_old) for r in probed])["learn/logprob_gap_max"]
        if gap is not None and not gap <= self.settings.max_gap:  # NaN is no agreement
            return _filled(scored, "logp_old", score(fresh[len(probe) :])), probed
        return _filled(rows, "logp_old", {i: old[i] for i in stale}), probed

    def _score(self, params: Params, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        """Log-probabilities of the rows' tokens by `params`."""
        if not rows:
            return []
        batch, counts, layout = self._pack(rows, [0.0] * len(rows))
        began = time.perf_counter()
        logps = sharding.fetch(step.score(params, batch, counts, c=self.config, h=self.hyper))
        self.device_s += time.perf_counter() - began
        return _unpack(logps, layout, rows)

    def _step(
        self, state: LearnerState, rows: Sequence[Row]
    ) -> tuple[LearnerState, dict[str, float], dict[Role, int], list[Row]]:
        """One optimizer step; rows that cannot move anything only count in the denominators.

        Returns the state, statistics, the number of tokens of each role and, where the old
        log-probabilities are the step's own, the rows that were learned from, with these.
        """
        weights = batching.token_weights(rows, self.settings.aggregation)
        inert = self.hyper.kl == 0 and self.hyper.entropy == 0
        pairs = [
            (row, weight)
            for row, weight in zip(rows, weights, strict=True)
            if weight and not (inert and row.advantage == 0)
        ]
        shares = [[pair for pair in pairs if pair[0].role is role] for role in Role]
        parts = shares if self.hyper.role_norms else [pairs]
        packed = [self._pack([r for r, _ in part], [w for _, w in part]) for part in parts]
        batch = tuple(rows for part, _, _ in packed for rows in part)
        counts = np.concatenate([used for _, used, _ in packed])
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
        logps = sharding.fetch(metrics.pop("logps", ()))
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
        own: list[Row] = []
        buckets = len(self.settings.rows)
        for n, (part, (_, _, layout)) in enumerate(zip(parts, packed, strict=True)):
            if self.hyper.one_update:
                learned = [row for row, _ in part]
                old = _unpack(logps[n * buckets :][:buckets], layout, learned)
                own += _filled(learned, "logp_old", dict(enumerate(old)))
        return state, values, used, own

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


def effective_share(rows: Sequence[Row], cap: float) -> float | None:
    """(sum w)^2 / (n sum w^2) over the n own tokens: 1 where all importance weights are alike.

    w = min(old / behaviour, cap), as in the loss (Kish's effective sample size); cap 0: no cap.
    None where there is no row.
    """
    if not rows:
        return None
    pairs = [(r.record, r.logp_old or r.record.logp) for r in rows]
    log_w = np.concatenate([_own(r, old) - _own(r, r.behaviour) for r, old in pairs])
    w = np.minimum(np.exp(log_w), cap or np.inf)
    return float(w.sum() ** 2 / (len(w) * np.square(w).sum()))


def _filled(rows: Sequence[Row], field: str, values: Mapping[int, tuple[float, ...]]) -> list[Row]:
    """The rows, with a field of those that `values` has by their place."""
    return [
        dataclasses.replace(row, **{field: values[i]}) if i in values else row
        for i, row in enumerate(rows)
    ]


def _unpack(
    values: Sequence[np.ndarray], layout: batching.Layout, rows: Sequence[Row]
) -> list[tuple[float, ...]]:
    return batching.unpack(values, layout, [len(row.record.ids) for row in rows])


def _own(record: TokenRecord, values: Sequence[float]) -> np.ndarray:
    """The values at the policy's own tokens but the first, which has no prediction."""
    return np.asarray(values[1:])[np.asarray(record.action[1:], bool)]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 1e-9 else None
