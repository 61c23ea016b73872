"""An iteration's updates: old log-probabilities, lag, denominators, passes and minibatches."""

import dataclasses
import random
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax import metrics
from spade_jax.learn import batching, step
from spade_jax.learn.batching import Row
from spade_jax.learn.learner import Learner, Settings, agreement, effective_share
from spade_jax.learn.step import Hyper, LearnerState
from spade_jax.policy.model import Params
from spade_jax.types import Role, Sample, TokenRecord
from tests.policy.small import SMALL, random_params

HYPER = Hyper()
TX = step.optimizer(1e-4, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_norm=1.0)
SETTINGS = Settings(
    passes=1,
    minibatches=1,
    row_tokens=(16,),
    rows=(4,),
    aggregation="token_mean",
    temperature={Role.AGENT: 0.6, Role.DESIGNER: 1.0},
    max_gap=1e-4,
    max_lag={Role.AGENT: 0, Role.DESIGNER: 2},
)


@pytest.fixture(scope="module")
def params() -> Params:
    return random_params(SMALL)


def new_learner(**changes: object) -> Learner:
    return Learner(SMALL, HYPER, TX, dataclasses.replace(SETTINGS, **changes), None)


def new_state(params: Params, at: int = 0) -> LearnerState:
    """A state of its own that has made `at` updates."""
    state = step.create(jax.tree.map(jnp.copy, params), TX)
    return state.replace(step=jnp.asarray(at, jnp.int32))


def score(params: Params, rows: Sequence[Row]) -> list[tuple[float, ...]]:
    """Log-probabilities of each row's tokens by these weights."""
    batch, counts, layout = batching.pack(
        rows, [0.0] * len(rows), buckets=SETTINGS.row_tokens, micro_rows=SETTINGS.rows
    )
    logps = step.score(params, batch, counts, c=SMALL, h=HYPER)
    return batching.unpack(jax.device_get(logps), layout, [len(row.record.ids) for row in rows])


def samples(
    params: Params,
    advantages: Sequence[float],
    roles: Sequence[Role] | None = None,
    *,
    own: Sequence[int] | None = None,
    off: float = 0.0,
    version: int = 0,
) -> list[Sample]:
    """Conversations of three read and `own` (four) sampled tokens, as a sampler stores them.

    Their log-probabilities are those of `params`, plus `off`.
    """
    roles = roles or [Role.AGENT] * len(advantages)
    own = own or [4] * len(advantages)
    made = []
    for i, (advantage, role) in enumerate(zip(advantages, roles, strict=True)):
        ids = tuple(np.random.default_rng(i).integers(0, SMALL.vocab, 3 + own[i]).tolist())
        record = TokenRecord().read(ids[:3]).wrote(ids[3:], (0.0,) * own[i])
        [logp] = score(params, [Row(record, role, advantage, SETTINGS.temperature[role])])
        record = TokenRecord().read(ids[:3]).wrote(ids[3:], tuple(x + off for x in logp[3:]))
        made.append(Sample(role=role, records=(record,), advantage=advantage, version=version))
    return made


def difference(a: LearnerState, b: LearnerState) -> float:
    parts = jax.tree.map(lambda x, y: float(jnp.max(jnp.abs(x - y))), a.params, b.params)
    return max(jax.tree.leaves(parts))


def by_hand(params: Params, given: Sequence[Sample], *, frozen: bool, passes: int) -> LearnerState:
    """Passes over all samples with old log-probabilities of the start, or of each pass."""
    state = new_state(params)
    weights = state.params
    for _ in range(passes):
        rows = [Row(s.records[0], s.role, s.advantage, SETTINGS.temperature[s.role]) for s in given]
        old = score(params if frozen else weights, rows)
        rows = [dataclasses.replace(r, logp_old=o) for r, o in zip(rows, old, strict=True)]
        batch, counts, _ = batching.pack(
            rows,
            batching.token_weights(rows, "token_mean"),
            buckets=SETTINGS.row_tokens,
            micro_rows=SETTINGS.rows,
        )
        state, _ = step.train_step(state, batch, counts, c=SMALL, h=HYPER, tx=TX)
        weights = jax.tree.map(jnp.copy, state.params)
    return state


def test_old_log_probabilities_are_those_before_the_first_update(params: Params) -> None:
    """The stored ones are off by more than the gap allows, so that the learner scores its own."""
    given = samples(params, [1.0, -1.0, 0.5], off=0.01)
    learner = new_learner(passes=3)
    state, stats = learner.update(new_state(params), given, random.Random(0))
    assert stats["learn/logprob_gap_max"] == pytest.approx(0.01, rel=1e-3)
    assert difference(state, by_hand(params, given, frozen=True, passes=3)) < 1e-6
    assert difference(state, by_hand(params, given, frozen=False, passes=3)) > 1e-4


def test_the_samplers_log_probabilities_serve_where_they_agree(params: Params) -> None:
    """For several updates; of rate 0 here, so that all see the same weights."""
    given = samples(params, [1.0, -1.0, 0.5], off=0.05)
    tx = step.optimizer(0.0, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_norm=1.0)

    def update(max_gap: float) -> dict[str, float | None]:
        settings = dataclasses.replace(SETTINGS, passes=2, max_gap=max_gap)
        learner = Learner(SMALL, HYPER, tx, settings, None)
        return learner.update(new_state(params), given, random.Random(0))[1]

    stats = update(max_gap=0.1)
    assert stats["learn/logprob_gap_max"] == pytest.approx(0.05, rel=1e-3)
    assert stats["learn/logprob_gap_mean"] == pytest.approx(0.05, rel=1e-3)
    # d = log now - log old = -0.05: exp(-0.05) + 0.05 - 1
    assert stats["learn/approx_kl"] == pytest.approx(0.00122942, rel=1e-3)
    assert update(max_gap=1e-4)["learn/approx_kl"] == pytest.approx(0, abs=1e-6)


def test_an_only_update_has_its_old_log_probabilities_at_hand(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scores nothing, whatever was stored, and is measured on all that it learns from."""
    given = samples(params, [1.0, -1.0, 0.5, -0.5, 1.0, -1.0])
    given[-1] = samples(params, [1.0] * 5 + [-1.0], off=0.05)[-1]
    given += samples(params, [0.0], off=7.0)  # moves nothing
    expected = by_hand(params, given, frozen=True, passes=1)
    monkeypatch.setattr(step, "score", None)
    state, stats = new_learner().update(new_state(params), given, random.Random(0))
    assert difference(state, expected) < 1e-7
    assert stats["learn/approx_kl"] == 0 and stats["learn/clip_share"] == 0
    assert stats["learn/logprob_gap_max"] == pytest.approx(0.05, rel=1e-3)
    assert stats["learn/logprob_gap_mean"] == pytest.approx(0.05 / 6, rel=1e-3)
    # Weights of 1, and of exp(-0.05) for one conversation of six.
    w = [1.0] * 5 + [np.exp(-0.05)]
    share = np.sum(w) ** 2 / (6 * np.sum(np.square(w)))
    assert stats["learn/effective_sample_size"] == pytest.approx(share, rel=1e-5)


def test_where_nothing_moves_nothing_is_measured(params: Params) -> None:
    given = samples(params, [0.0, 0.0])
    state, stats = new_learner().update(new_state(params), given, random.Random(0))
    assert difference(state, new_state(params)) == 0 and stats["learn/updates"] == 0
    assert stats["learn/logprob_gap_max"] is None
    assert stats["learn/effective_sample_size"] is None


def test_the_gap_is_nothing_on_policy(params: Params) -> None:
    _, stats = new_learner().update(
        new_state(params), samples(params, [1.0, -1.0]), random.Random(0)
    )
    assert stats["learn/logprob_gap_max"] < 1e-6
    assert 0 <= stats["learn/logprob_gap_mean"] <= stats["learn/logprob_gap_max"]
    assert stats["learn/clip_share"] == 0


def test_the_clip_share_of_a_stale_design(params: Params) -> None:
    """Scored anew, a sample of earlier weights has ratio 1; its gap is in the weight alone."""
    [stale] = samples(params, [1.0], [Role.DESIGNER], off=-3.0)
    learner = new_learner()
    state, stats = learner.update(new_state(params, at=2), [stale], random.Random(0))
    assert stats["learn/loss"] == pytest.approx(-2.0, rel=1e-5)  # exp(3) is capped at 2
    assert stats["learn/approx_kl"] == pytest.approx(0, abs=1e-6)
    assert stats["learn/logprob_gap_max"] is None  # nothing fresh to compare
    assert int(state.step) == 3


@pytest.mark.parametrize(("share", "weight"), [(0.5, 0.5), (1.0, 1.0), (2.0, 2.0), (4.0, 2.0)])
def test_what_was_sampled_from_enters_the_weight_alone(
    params: Params, share: float, weight: float
) -> None:
    """Truncated sampling renormalises: with `share` of the probability left in, by 1 / share."""
    [sample] = samples(params, [1.0])
    [record] = sample.records
    renormalised = tuple(
        b - np.log(share) if own else b
        for b, own in zip(record.behaviour, record.action, strict=True)
    )
    given = dataclasses.replace(
        sample, records=(dataclasses.replace(record, behaviour=renormalised),)
    )
    _, stats = new_learner().update(new_state(params), [given], random.Random(0))
    assert stats["learn/loss"] == pytest.approx(-weight, rel=1e-5)
    assert stats["learn/approx_kl"] == pytest.approx(0, abs=1e-6), "the ratio is 1"
    assert stats["learn/logprob_gap_max"] < 1e-6


@pytest.mark.parametrize(
    ("role", "version", "ok"),
    [
        (Role.AGENT, 5, True),
        (Role.AGENT, 4, False),
        (Role.DESIGNER, 3, True),
        (Role.DESIGNER, 2, False),
        (Role.DESIGNER, 6, False),
    ],
)
def test_stale_samples_are_refused(params: Params, role: Role, version: int, ok: bool) -> None:
    given = samples(params, [1.0, -1.0], [Role.AGENT, role], version=5)
    given[1] = dataclasses.replace(given[1], version=version)
    if ok:
        new_learner().update(new_state(params, at=5), given, random.Random(0))
        return
    sentence = f"the {role} is {5 - version} updates old, at most {SETTINGS.max_lag[role]} are"
    with pytest.raises(ValueError, match=f"{sentence} allowed; lower learn.designer_delay"):
        new_learner().update(new_state(params, at=5), given, random.Random(0))


@pytest.mark.parametrize("aggregation", batching.AGGREGATIONS)
def test_rows_without_advantage_count_in_denominators_only(
    params: Params, aggregation: str
) -> None:
    learner = new_learner(aggregation=aggregation)
    given = samples(params, [1.0, 0.0, 0.0, 0.0])
    _, alone = learner.update(new_state(params), given[:1], random.Random(0))
    _, among = learner.update(new_state(params), given, random.Random(0))
    assert alone["learn/loss"] == pytest.approx(-1.0, rel=1e-5)
    assert among["learn/loss"] == pytest.approx(-0.25, rel=1e-5)
    assert alone["learn/tokens"] == among["learn/tokens"] == 4
    assert among["agent/entropy"] == pytest.approx(alone["agent/entropy"], rel=1e-5)
    assert 0 < alone["agent/entropy"] < np.log(SMALL.vocab)


def test_entropy_by_role(params: Params) -> None:
    given = samples(params, [1.0, -1.0, 1.0], [Role.AGENT, Role.DESIGNER, Role.DESIGNER])
    learner = new_learner()
    _, both = learner.update(new_state(params), given, random.Random(0))
    _, agent = learner.update(new_state(params), given[:1], random.Random(0))
    _, designer = learner.update(new_state(params), given[1:], random.Random(0))
    for name in ("agent/entropy", "designer/entropy"):
        one = agent if name.startswith("agent") else designer
        assert both[name] == pytest.approx(one[name], rel=1e-5)
    assert agent["designer/entropy"] is designer["agent/entropy"] is None
    assert agent["agent/entropy"] != pytest.approx(designer["designer/entropy"], rel=1e-2)


def test_nothing_moves_without_advantage(params: Params) -> None:
    given = samples(params, [0.0, 0.0])
    state, stats = new_learner().update(new_state(params), given, random.Random(0))
    assert difference(state, new_state(params)) == 0
    assert int(state.step) == stats["learn/updates"] == stats["learn/tokens"] == 0
    assert (stats["learn/empty_updates"], stats["learn/skipped_in_row"]) == (1, 0)


@pytest.mark.parametrize(("passes", "minibatches"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_updates_are_passes_times_minibatches(
    params: Params, passes: int, minibatches: int
) -> None:
    given = samples(params, [1.0, -1.0, 0.5, -0.5], own=[1, 2, 4, 8])
    learner = new_learner(passes=passes, minibatches=minibatches)
    state, stats = learner.update(new_state(params), given, random.Random(0))
    assert int(state.step) == stats["learn/updates"] == passes * minibatches
    assert stats["learn/tokens"] == passes * 15, "every sample once a pass"
    again, _ = learner.update(new_state(params), given, random.Random(0))
    assert difference(state, again) == 0
    if minibatches > 1:
        other, _ = learner.update(new_state(params), given, random.Random(1))
        assert difference(state, other) > 0


def test_samples_without_a_trained_token_are_left_out(params: Params) -> None:
    """An episode whose first prompt found no room has an empty record."""
    given = samples(params, [1.0])
    empty = Sample(role=Role.AGENT, records=(TokenRecord(),), advantage=-1.0, version=0)
    unread = dataclasses.replace(empty, records=(TokenRecord().read((5, 6, 7)),))
    state, stats = new_learner().update(
        new_state(params), [empty, *given, unread], random.Random(0)
    )
    assert stats["learn/loss"] == pytest.approx(-1.0, rel=1e-5)
    assert int(state.step) == 1
    state, stats = new_learner().update(state, [empty, unread], random.Random(0), skipped_in_row=2)
    assert stats == {"learn/updates": 0, "learn/empty_updates": 1, "learn/skipped_in_row": 2}
    assert int(state.step) == 1


def test_turns_in_rows_of_their_own_are_one_conversation(params: Params) -> None:
    """Its advantage is in each row, and its weight is that of the whole."""
    first, second, other = samples(params, [1.0, 1.0, -0.5])
    both = dataclasses.replace(first, records=first.records + second.records)
    learner = new_learner(aggregation="sequence_mean")
    state, stats = learner.update(new_state(params), [both, other], random.Random(0))
    # On policy every token's loss is minus the advantage: the mean of -1 and 0.5.
    assert stats["learn/loss"] == pytest.approx(-0.25, rel=1e-5)
    assert int(state.step) == 1
    learner = new_learner(aggregation="sequence_mean", minibatches=2)
    _, stats = learner.update(new_state(params), [both, other], random.Random(0))
    assert stats["learn/loss"] == pytest.approx(-0.25, rel=1e-2), "each minibatch one conversation"
    assert stats["learn/updates"] == 2


def test_skipped_updates_in_a_row(params: Params) -> None:
    learner = new_learner(passes=3)
    broken = [dataclasses.replace(s, advantage=np.nan) for s in samples(params, [1.0])]
    state, stats = learner.update(new_state(params), broken, random.Random(0), skipped_in_row=1)
    assert (stats["learn/updates"], stats["learn/skipped_in_row"]) == (0, 4)
    assert stats["learn/empty_updates"] == 0
    assert difference(state, new_state(params)) == 0
    state, stats = learner.update(state, samples(params, [1.0]), random.Random(0), 4)
    assert (stats["learn/updates"], stats["learn/skipped_in_row"]) == (3, 0)


def test_the_reference_holds_back(params: Params) -> None:
    """With a KL term rows without advantage pull towards the reference."""
    reference = random_params(SMALL, seed=1)
    learner = Learner(SMALL, dataclasses.replace(HYPER, kl=1.0), TX, SETTINGS, reference)
    given = samples(params, [0.0, 0.0])
    state, first = learner.update(new_state(params), given, random.Random(0))
    for _ in range(3):
        given = [dataclasses.replace(s, version=int(state.step)) for s in given]
        state, stats = learner.update(state, given, random.Random(0))
    assert first["learn/updates"] == 1
    assert first["learn/tokens"] == 8
    assert 0 < stats["learn/kl"] < first["learn/kl"]


def test_agreement_by_hand() -> None:
    """Gaps of log 2 and 0; d = -log 2 and 0: exp(d) - d - 1 = 1/2 + log 2 - 1 and 0."""
    record = TokenRecord().read((1, 2)).wrote((3, 4), (np.log(0.5), np.log(0.3)))
    stats = agreement([(record, (0.0, 9.0, np.log(0.25), np.log(0.3)))])
    assert stats["learn/logprob_gap_max"] == pytest.approx(np.log(2))
    assert stats["learn/logprob_gap_mean"] == pytest.approx(np.log(2) / 2)
    assert stats["learn/sampler_kl"] == pytest.approx((np.log(2) - 0.5) / 2)
    assert set(agreement([]).values()) == {None}


def test_effective_sample_size_by_hand() -> None:
    """Weights 1, 1, 1/2 and, capped at 2, 2: (9/2)^2 / (4 (1 + 1 + 1/4 + 4))."""

    def row(*weights: float, **fields: object) -> Row:
        logp = tuple(np.log(weights).tolist())
        record = TokenRecord().read((1,)).wrote((2,) * len(weights), logp, (0.0,) * len(weights))
        return Row(record, Role.AGENT, 1.0, 1.0, **fields)

    rows = [row(1.0, 1.0), row(0.5, 8.0)]
    assert effective_share(rows, 2.0) == pytest.approx(4.5**2 / (4 * 6.25))
    assert effective_share(rows, 0.0) == pytest.approx(10.5**2 / (4 * 66.25))
    assert effective_share(rows[:1], 2.0) == 1
    # Scored anew, what was sampled with behaviour log 1 is half as likely: alike all the same.
    assert effective_share([row(1.0, 8.0, logp_old=(0.0, *np.log([0.5, 0.5])))], 2.0) == 1


def test_what_an_update_says_of_its_samples(params: Params) -> None:
    given = samples(params, [1.0, -1.0], [Role.AGENT, Role.DESIGNER], own=[2, 8], version=5)
    given[1] = dataclasses.replace(given[1], version=3)
    _, stats = new_learner().update(new_state(params, at=5), given, random.Random(0))
    assert (stats["learn/tokens/agent"], stats["learn/tokens/designer"]) == (2, 8)
    assert (stats["learn/tokens"], stats["learn/lag_max"]) == (10, 2)
    # 5 and 11 tokens lie in one row of 16, and the micro-batch has four.
    assert stats["learn/fill_share"] == 1 / 4
    assert stats["learn/effective_sample_size"] == pytest.approx(1, abs=1e-5)
    assert 0 <= stats["learn/sampler_kl"] < 1e-9
    for name in stats:
        assert metrics.describe(name).meaning


def test_norms_by_role_change_no_update(params: Params) -> None:
    given = samples(params, [1.0, -1.0, 0.5], [Role.AGENT, Role.DESIGNER, Role.AGENT])
    split = Learner(SMALL, dataclasses.replace(HYPER, role_norms=True), TX, SETTINGS, None)
    state, stats = split.update(new_state(params), given, random.Random(0))
    plain, expected = new_learner().update(new_state(params), given, random.Random(0))
    assert difference(state, plain) < 1e-6
    assert stats["learn/grad_norm"] == pytest.approx(expected["learn/grad_norm"], rel=1e-5)
    agent, designer = (stats[f"learn/grad_norm/{role}"] for role in (Role.AGENT, Role.DESIGNER))
    assert abs(agent - designer) < stats["learn/grad_norm"] < agent + designer
    _, stats = split.update(new_state(params), given[::2], random.Random(0))
    assert stats["learn/grad_norm/designer"] == 0
    assert stats["learn/grad_norm/agent"] == pytest.approx(stats["learn/grad_norm"], rel=1e-6)


def with_final_norm(trained: Params, frozen: Params) -> Params:
    return {**frozen, **trained}


def test_a_part_learns_as_part_of_the_model(params: Params) -> None:
    """Old log-probabilities and losses are the model's, while only the part moves."""
    frozen = dict(params)
    trained = {"final_norm": frozen.pop("final_norm")}
    learner = Learner(SMALL, HYPER, TX, SETTINGS, None, frozen, with_final_norm)
    state = new_state(trained)
    given = samples(params, [1.0, -1.0])
    state, stats = learner.update(state, given, random.Random(0))
    _, expected = new_learner().update(new_state(params), given, random.Random(0))
    assert stats["learn/logprob_gap_max"] < 1e-6
    assert stats["learn/loss"] == pytest.approx(expected["learn/loss"], abs=1e-6)
    assert set(state.params) == {"final_norm"} and int(state.step) == 1
    joined = learner.params(state)
    assert joined["layers"] is frozen["layers"]
    assert difference(LearnerState(joined, (), 0), LearnerState(params, (), 0)) > 0
