"""Scores and samples of an iteration by hand."""

import collections
import dataclasses
import math
from types import SimpleNamespace

import pytest
from ml_collections import config_dict

from spade_jax import config, hosts, scoring, train
from spade_jax.learn.advantages import ScoredDesign
from spade_jax.learn.returns import episode_return
from spade_jax.play.episodes import Job
from spade_jax.types import (
    Arm,
    Environment,
    Episode,
    EpisodeEnd,
    Failure,
    FailureKind,
    HostState,
    Kind,
    MemoryRecord,
    PendingDesign,
    PoolEntry,
    Reason,
    Regret,
    Role,
    TokenRecord,
    Tracker,
)

RECORD = TokenRecord().read((1,)).wrote((2,), (0.0,))


def entry(
    name: str, *plain: tuple[float, ...], regret: float | None = None, **fields: object
) -> PoolEntry:
    """An environment with the returns of its plain plays, iteration by iteration."""
    return PoolEntry(
        environment=Environment(id=name, kind=Kind.GAME, skill="s", code="", iteration=0),
        plain=plain,
        regret=Regret(mean=regret, stderr=None, pairs=int(regret is not None)),
        **fields,
    )


def pending(name: str, reason: Reason = Reason.ACCEPTED, **fields: object) -> PendingDesign:
    return PendingDesign(
        **{
            **{"environment_id": name, "skill": "s", "iteration": 0, "version": 0},
            **{"reason": reason, "record": RECORD},
            **fields,
        }
    )


def episode(
    play: int,
    value: float | None,
    *,
    arm: Arm = Arm.PLAIN,
    end: EpisodeEnd = EpisodeEnd.TERMINATED,
    leaks: bool = False,
    failure: FailureKind = FailureKind.ERROR,
) -> Episode:
    broken = Failure(phase="step", kind=failure, message="")
    return Episode(
        environment_id="e",
        arm=arm,
        play=play,
        seed=100 + play,
        turns=(),
        end=EpisodeEnd.FAILED if value is None else end,
        records=(RECORD,),
        episode_return=value,
        hint="Add." if arm is Arm.HINTED else None,
        hint_leaks=leaks,
        failure=broken if value is None else None,
    )


def plain(*values: float | None) -> list[Episode]:
    return [episode(play, value) for play, value in enumerate(values)]


def hinted(*values: float | None, leaks: tuple[int, ...] = ()) -> list[Episode]:
    return [
        episode(play, value, arm=Arm.HINTED, leaks=play in leaks)
        for play, value in enumerate(values)
    ]


def configured(**fields: object) -> config_dict.ConfigDict:
    """The default config of four plays; a group's field is written with two underscores."""
    c = config.load("default")
    fields = {"play__plays": 4, "play__hint_plays": 4, **fields}
    c.update_from_flattened_dict({k.replace("__", "."): v for k, v in fields.items()})
    config.check(c)
    return c


# -- returns and regret -----------------------------------------------------------------------


def test_only_an_environment_that_hung_counts_as_hung() -> None:
    c, host = configured(), HostState(pool=(entry("e"),))
    for kind in FailureKind:
        [scored] = scoring.score(c, host, [episode(0, None, failure=kind)]).pool
        assert scored.hung == (kind is FailureKind.TIMEOUT)
        assert scored.plain == ((),)


def test_both_arms_are_entered_by_hand() -> None:
    c, host = configured(), HostState(pool=(entry("e", (1.0,)),))
    episodes = [*plain(0.0, 1.0, None, 0.0), *hinted(1.0, 1.0, 1.0, 0.5, leaks=(3,))]
    host = scoring.score(c, host, episodes)
    # Of the differences 1, 0, -, 1/2 the third has a failed arm, and the hint of the last leaks.
    assert host.pool[0].regret == Regret(mean=0.5, stderr=0.5, pairs=2)
    assert host.pool[0].plain == ((1.0,), (0.0, 1.0, 0.0))
    assert host.pool[0].leak_share == 0.25
    assert host.trackers["s"] == Tracker(fast=pytest.approx(1 / 3), slow=pytest.approx(1 / 3))
    # A later iteration has plain plays alone: what was measured with hints stays.
    later = scoring.score(c, host, plain(1.0, 1.0, 1.0, 1.0)).pool[0]
    assert (later.regret, later.leak_share) == (host.pool[0].regret, 0.25)
    # 0.02 / 3 + 0.98, and 0.15 / 3 + 0.85
    trackers = scoring.score(c, host, plain(1.0, 1.0, 1.0, 1.0)).trackers["s"]
    assert trackers == Tracker(fast=pytest.approx(0.98 + 0.02 / 3), slow=pytest.approx(0.9))


def test_without_a_valid_pair_regret_is_unknown() -> None:
    c, host = configured(), HostState(pool=(entry("e"),))
    episodes = [*plain(0.0, None, 0.0, 0.0), *hinted(None, 1.0, 1.0, 1.0, leaks=(2, 3))]
    [scored] = scoring.score(c, host, episodes).pool
    assert scored.regret == Regret(mean=None, stderr=None, pairs=0)
    assert scoring.score_design(c, {}, pending("e"), scored) == ScoredDesign(skill="s")


def test_partners_of_hinted_plays_count_for_regret_alone() -> None:
    c = configured(play__plays=2, play__paired_plays=True)
    host = HostState(pool=(entry("e"),))
    episodes = [*plain(1.0, 0.0, 0.0, 0.0), *hinted(1.0, 0.0, 1.0, 1.0)]
    scored = scoring.score(c, host, episodes)
    # Differences 0, 0, 1, 1: mean 1/2, error sqrt(4 * (1/4) / 3 / 4).
    assert scored.pool[0].regret == Regret(mean=0.5, stderr=pytest.approx(12**-0.5), pairs=4)
    assert scored.pool[0].plain == ((1.0, 0.0),)
    assert scored.trackers["s"].fast == 0.5
    samples, scored = scoring.compare_agent(c, scored, episodes, version=3)
    assert [s.advantage for s in samples] == [1.0, -1.0]
    assert scored.baselines == {"e": 0.5}


@pytest.mark.parametrize(
    ("paired", "played", "expected"),
    [(False, False, (2, 4)), (True, False, (4, 4)), (True, True, (2, 0))],
)
def test_plays_of_each_arm(
    monkeypatch: pytest.MonkeyPatch, paired: bool, played: bool, expected: tuple[int, int]
) -> None:
    jobs: list[Job] = []
    monkeypatch.setattr(train, "play", lambda _, box, wanted, *_r, **__: jobs.extend(wanted) or ())
    c = configured(play__plays=2, play__paired_plays=paired, hint__source="method")
    window = [(1.0, 0.0)] * played
    host = HostState(iteration=5, pool=(entry("a", *window), entry("b", *window)))
    train.play_pool(SimpleNamespace(config=c, sandbox=None, divide=hosts.divide), None, host)
    seeds = {
        (e, arm): [j.seed for j in jobs if j.environment.id == e and j.arm is arm]
        for e in "ab"
        for arm in Arm
    }
    for e in "ab":
        assert tuple(len(seeds[e, arm]) for arm in Arm) == expected
        n = min(expected)
        assert seeds[e, Arm.PLAIN][:n] == seeds[e, Arm.HINTED][:n], "partners share the seed"
    assert len({j.seed for j in jobs}) == 2 * max(expected)


def test_what_has_no_hint_needs_no_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []
    monkeypatch.setattr(train, "play", lambda _, box, wanted, *_r, **__: jobs.extend(wanted) or ())
    c = configured(play__plays=2, play__paired_plays=True, hint__source="self")
    told = dataclasses.replace(entry("a").environment, hint="Add.")
    host = HostState(pool=(PoolEntry(environment=told), entry("b")))
    train.play_pool(SimpleNamespace(config=c, sandbox=None, divide=hosts.divide), None, host)
    played = collections.Counter((j.environment.id, j.arm) for j in jobs)
    assert played == {("a", Arm.PLAIN): 4, ("b", Arm.PLAIN): 2, ("a", Arm.HINTED): 4}


# -- the agent's samples ----------------------------------------------------------------------


def advantages(c: config_dict.ConfigDict, episodes: list[Episode], **host: object) -> list[float]:
    samples, _ = scoring.compare_agent(c, HostState(**host), episodes, version=3)
    assert all((s.role, s.version, s.records) == (Role.AGENT, 3, (RECORD,)) for s in samples)
    return [s.advantage for s in samples]


def test_plain_plays_are_compared_within_their_environment() -> None:
    c = configured(advantage__agent="centred")
    other = [dataclasses.replace(e, environment_id="f") for e in plain(0.0, 0.0, 0.0, 1.0)]
    episodes = [*plain(1.0, 0.0, 0.5, 0.5), *other, *hinted(1.0, 1.0, 1.0, 1.0)]
    assert advantages(c, episodes) == [0.5, -0.5, 0.0, 0.0, -0.25, -0.25, -0.25, 0.75]


def test_a_reward_that_is_no_number_never_reaches_the_others() -> None:
    c = configured(advantage__agent="centred")
    values = [episode_return([r], True, "final", 0.99) for r in (1.0, math.nan, 0.0, 0.5)]
    assert values == [1.0, None, 0.0, 0.5]
    assert advantages(c, plain(*values)) == [0.5, -0.5, 0.0]


def test_truncated_plays_leave_the_loss_where_asked_and_count_in_the_group() -> None:
    cut = dataclasses.replace(plain(1.0, 0.0, 0.0, 1.0)[2], end=EpisodeEnd.TOKENS)
    episodes = [e if e.play != 2 else cut for e in plain(1.0, 0.0, 0.0, 1.0)]
    assert advantages(configured(), episodes) == [1.0, -1.0, -1.0, 1.0]
    assert advantages(configured(play__mask_truncated=True), episodes) == [1.0, -1.0, 1.0]


@pytest.mark.parametrize("plays", [(0, 1, 2), (0, 1, 2, 2), (0, 1, 2, 3, 3)])
def test_a_group_of_another_size_is_an_error(plays: tuple[int, ...]) -> None:
    episodes = [episode(play, 1.0) for play in plays]
    with pytest.raises(ValueError, match="e has plain plays .* holds each of 4 once"):
        scoring.compare_agent(configured(), HostState(), episodes, version=0)


def test_baselines_follow_the_raw_mean() -> None:
    c = configured(advantage__agent="ema_baseline")
    samples, host = scoring.compare_agent(
        c, HostState(baselines={"e": 0.25}), plain(1.0, 1.0, 0.0, None), version=0
    )
    assert [s.advantage for s in samples] == [0.75, 0.75, -0.25]
    assert host.baselines == {"e": pytest.approx(0.5 * 0.25 + 0.5 * 2 / 3)}


# -- the designer's ---------------------------------------------------------------------------


def test_the_retired_keep_what_they_had() -> None:
    gone = entry("e", (1.0, 1.0), retired=True)
    host = HostState(pool=(gone,))
    assert scoring.score(config.load("default"), host, []) == host


def test_one_played_on_is_paid_for_its_own_window_once() -> None:
    c = config.load("default")
    c.learn.designer_delay = c.design.regenerate_every = 2
    before = entry("e", (1.0, 0.0), (0.0, 1.0), regret=0.0)  # on the plateau
    after = entry("e", (0.0, 1.0), (1.0, 1.0), regret=0.0)  # off it, having gone on
    host = HostState(iteration=2, pool=(after,), pending=(pending("e"),))
    [sample], host, rewards, _ = scoring.compare_designer(
        c, host, HostState(pool=(before,)), n_agent=2
    )
    assert sample.role is Role.DESIGNER and rewards == {"e": pytest.approx(0.6)}
    host = dataclasses.replace(host, iteration=3)
    samples, host, rewards, _ = scoring.compare_designer(c, host, host, n_agent=2)
    assert not samples and not rewards


def test_memory_knows_where_a_design_came_from() -> None:
    c = config.load("default")
    played = entry("e", (1.0, 0.0), (0.5, 0.6))
    environment = dataclasses.replace(
        played.environment, code="x = 1", fingerprint="f", seeds=("a", "b"), document="3:bees"
    )
    played = dataclasses.replace(played, environment=environment)
    assert scoring.remember(c, HostState(pool=(played,)), 0).memory == (
        MemoryRecord(
            environment_id="e",
            skill="s",
            code="x = 1",
            fingerprint="f",
            iteration=0,
            win_rate=0.5,
            regret=None,
            seeds=("a", "b"),
            document="3:bees",
        ),
    )


def test_a_design_earns_its_reward_or_the_penalty_of_what_it_did() -> None:
    c = configured(reward__penalty=-0.25, reward__hang_penalty=-2.0)
    c.reward.penalty_by_reason = '{"leak": -1.5}'
    played = entry("e", (1.0, 0.0), (0.0, 1.0), regret=0.06)
    hung = dataclasses.replace(played, hung=True)
    cases = [
        (pending("e", Reason.SOLVABLE), None, -0.25),
        (pending("e", Reason.LEAK), None, -1.5),
        (pending("e"), hung, -2.0),
        (pending("e"), None, None),  # accepted and never played: unknown
    ]
    for design, found, penalty in cases:
        scored = scoring.score_design(c, {}, design, found)
        assert scored == ScoredDesign(skill="s", penalty=penalty)
    scored = scoring.score_design(c, {}, pending("e", prompt="p"), played)
    # 0.4 * 0.06 / 0.15 for the regret, and 0.6 since half of the plays are won.
    assert scored == ScoredDesign(skill="s", prompt="p", raw=pytest.approx(0.16 + 0.6))
    # Its first reply was rejected and a repair is what was played: that is not its merit.
    mended = scoring.score_design(c, {}, pending("e", Reason.SOLVABLE), played)
    assert mended == ScoredDesign(skill="s", penalty=-0.25)


def test_leaking_hints_cost_their_share() -> None:
    c = configured(reward__leak_penalty=-0.8)
    played = entry("e", (1.0, 0.0), regret=0.15, leak_share=0.25)
    scored = scoring.score_design(c, {}, pending("e"), played)
    assert scored == ScoredDesign(skill="s", raw=pytest.approx(1.0), leak=pytest.approx(-0.2))
    # Where all leak no pair is left, and what they cost stands alone.
    unpaired = entry("e", (1.0, 0.0), leak_share=1.0)
    assert scoring.score_design(c, {}, pending("e"), unpaired) == ScoredDesign(
        skill="s", penalty=-0.8
    )
    free = configured()
    assert scoring.score_design(free, {}, pending("e"), played).leak == 0.0
    assert scoring.score_design(free, {}, pending("e"), unpaired) == ScoredDesign(skill="s")


DESIGNS = (
    (pending("good", prompt="p"), entry("good", (1.0, 0.0), regret=0.15)),  # 0.4 + 0.6
    (pending("fair", prompt="p"), entry("fair", (1.0, 0.0), regret=0.0)),  # 0.6
    (pending("easy", prompt="q"), entry("easy", (1.0, 1.0), regret=0.0)),  # 0
    (pending("bad", Reason.PARSE, prompt="q"), None),
    (pending("mute", prompt="q"), entry("mute", (1.0, 0.0))),  # regret unknown
)


def compare(c: config_dict.ConfigDict, iteration: int = 4, **trackers: Tracker) -> tuple:
    """Advantages by design, raw rewards and metrics; ten samples of the agent's beside them."""
    earlier = HostState(
        iteration=iteration,
        pool=tuple(e for _, e in DESIGNS if e is not None),
        pending=tuple(p for p, _ in DESIGNS),
        trackers={"s": Tracker(fast=0.0, slow=0.0)},
    )
    host = dataclasses.replace(earlier, trackers=trackers)
    samples, host, raw, measured = scoring.compare_designer(c, host, earlier, n_agent=10)
    assert not host.pending or iteration < 4
    return [s.advantage for s in samples], raw, measured


def test_designs_by_hand() -> None:
    values, raw, measured = compare(configured())
    # min(50, 10 / 5 * 4) = 8; the mean of 1, 0.6 and 0 is 1.6 / 3; the unknown one is left out.
    third = 1.6 / 3
    expected = [8 * (1 - third), 8 * (0.6 - third), -8 * third, 8 * -0.5]
    assert values == pytest.approx(expected)
    assert raw == pytest.approx({"good": 1.0, "fair": 0.6, "easy": 0.0})
    assert measured == {"designer/masked": 0, "designer/unknown": 1, "designer/role_scale": 8.0}


def test_designs_of_one_prompt_are_compared() -> None:
    values, _, _ = compare(configured(advantage__designer="prompt", design__per_prompt=2))
    assert values == pytest.approx([8 * 0.2, 8 * -0.2, 0.0, 8 * -0.5])


def test_negative_rewards_leave_the_update_and_are_counted() -> None:
    # The frontier term takes 0.5 * (1 - 0.5)^2 / 0.08 = 1.5625 off where all is won.
    values, raw, measured = compare(configured(reward__w_frontier=0.5))
    assert values == pytest.approx([8 * 0.2, 8 * -0.2, 8 * -0.5])
    assert raw == pytest.approx({"good": 1.0, "fair": 0.6})
    assert measured["designer/masked"] == 1 and measured["designer/unknown"] == 1


def test_nothing_is_due_before_its_delay() -> None:
    assert compare(configured(), iteration=3) == ([], {}, {})


@pytest.mark.parametrize(("delay", "expected"), [(4, 0.25), (0, 0.5)])
def test_learning_potential_reads_trackers_after_their_update_where_delayed(
    delay: int, expected: float
) -> None:
    c = configured(reward__designer="learning_potential", learn__designer_delay=delay)
    _, raw, _ = compare(c, s=Tracker(fast=0.5, slow=0.25))
    assert raw["good"] == expected  # a mean return of 1/2 against 1/4, or the 0 of before


def test_potential_of_the_trackers_by_hand() -> None:
    host = HostState(trackers={"s": Tracker(fast=0.5, slow=0.25), "new": Tracker()})
    # 0.25 / (2 * (0.98 - 0.85))
    assert scoring.potentials(configured(), host) == {
        "tracker/s/potential": pytest.approx(0.9615385),
        "tracker/new/potential": None,
    }


@pytest.mark.parametrize(
    ("iteration", "due"),
    [(3, ()), (4, (0,)), (7, (0,)), (8, (0, 4)), (9, (0, 4, 8))],
)
def test_designs_wait_for_their_delay_or_the_end(iteration: int, due: tuple[int, ...]) -> None:
    """Of iterations 0, 4 and 8, delayed by 4, in a run of ten: the last one takes all."""
    c = config.load("default")
    c.iterations, c.learn.designer_delay = 10, 4
    waiting = tuple(
        pending(
            f"{made}",
            Reason.PARSE,
            iteration=made,
            version=made,
            record=TokenRecord().read((made,)).wrote((1,), (-0.5,)),
        )
        for made in (0, 4, 8)
        if made <= iteration
    )
    host = HostState(iteration=iteration, pending=waiting)
    samples, after, _, _ = scoring.compare_designer(c, host, HostState(), n_agent=8)
    assert [s.version for s in samples] == list(due)
    assert [p.iteration for p in after.pending] == [0, 4, 8][len(due) : len(waiting)]
    # What was sampled then is trained now: the very tokens and log-probabilities.
    assert [s.records for s in samples] == [(p.record,) for p in waiting[: len(due)]]
    # Penalty -1/2 times the role's scale: 8 agent samples / designs due * 4 iterations.
    assert [s.advantage for s in samples] == [-0.5 * 8 / len(due) * 4 for _ in due]
