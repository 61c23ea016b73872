"""The numbers of an iteration, from episodes and designs whose outcomes are known."""

import dataclasses

import pytest

from spade_jax import measures
from spade_jax.evals.heldout import Item
from spade_jax.types import (
    Arm,
    Design,
    DesignTask,
    Environment,
    Episode,
    EpisodeEnd,
    Failure,
    FailureKind,
    HostState,
    Kind,
    MemoryRecord,
    PoolEntry,
    Reason,
    Regret,
    Role,
    Sample,
    StopReason,
    TokenRecord,
    Tracker,
    Turn,
    Verdict,
)

TIMEOUT = Failure(phase="step", kind=FailureKind.TIMEOUT, message="slow")


def environment(name: str) -> Environment:
    return Environment(id=name, kind=Kind.GAME, skill="s", code="", iteration=0)


def episode(
    value: float | None,
    *,
    arm: Arm = Arm.PLAIN,
    end: EpisodeEnd = EpisodeEnd.TERMINATED,
    actions: tuple[str | None, ...] = ("1",),
    tokens: int = 4,
    leaks: bool = False,
) -> Episode:
    return Episode(
        environment_id="e",
        arm=arm,
        play=0,
        seed=0,
        turns=tuple(Turn(observation="", reply="", action=a, reward=0.0) for a in actions),
        end=EpisodeEnd.FAILED if value is None else end,
        records=(TokenRecord().read((1,)).wrote((2,) * tokens, (0.0,) * tokens),),
        episode_return=value,
        hint="Add." if arm is Arm.HINTED else None,
        hint_leaks=leaks,
        failure=TIMEOUT if value is None else None,
    )


def entry(*returns: float, regret: Regret | None = None, hung: bool = False) -> PoolEntry:
    unknown = Regret(mean=None, stderr=None, pairs=0)
    return PoolEntry(
        environment=environment("e"), plain=(returns,), regret=regret or unknown, hung=hung
    )


def test_plain_plays_by_hand() -> None:
    episodes = [
        episode(1.0, actions=("1", None), tokens=6),
        episode(0.0, end=EpisodeEnd.TURNS, actions=("1", None, "2"), tokens=9),
        episode(-0.5),
        episode(None, actions=(), tokens=1),
    ]
    m = measures.of_play(episodes, [entry(1.0, 0.0), entry(0.0, 0.0), entry(hung=True)])
    assert m["agent/return_mean"] == pytest.approx((1 + 0 - 0.5) / 3)
    assert m["agent/success"] == 1 / 4  # the failed one is no success
    assert m["agent/turns_mean"] == (2 + 3 + 1 + 0) / 4
    assert m["agent/reply_tokens_mean"] == (6 + 9 + 4 + 1) / 6
    assert m["agent/truncated_share"] == 1 / 4
    assert m["agent/no_action_share"] == 2 / 6
    assert m["play/failed_share"] == 1 / 4 and m["play/failed/timeout"] == 1
    assert m["play/hung_share"] == pytest.approx(1 / 3)
    assert m["agent/zero_variance_share"] == 1 / 2  # of the two with a return
    assert "designer/regret_mean" not in m and "agent/return_hinted_mean" not in m


def test_win_rates_fall_into_tenths() -> None:
    pool = [entry(0, 0), entry(1, 1), entry(1, 0), entry(*[1] * 3, *[0] * 7), entry()]
    m = measures.of_play([episode(1.0)], pool)
    shares = [m[f"agent/win_rate/{k}"] for k in range(10)]
    assert shares == [1 / 4, 0, 0, 1 / 4, 0, 1 / 4, 0, 0, 0, 1 / 4]


def test_regret_is_pooled_over_environments() -> None:
    # Differences 1, 0 and 1, 1, and one environment without a pair: mean 3/4,
    # error sqrt((3/4)^2 + 3 (1/4)^2) / 3 / 4) = 1/4.
    pool = [
        entry(regret=Regret(mean=0.5, stderr=0.5, pairs=2)),
        entry(regret=Regret(mean=1.0, stderr=0.0, pairs=2)),
        entry(regret=Regret(mean=None, stderr=None, pairs=0)),
    ]
    hinted = [episode(1.0, arm=Arm.HINTED), episode(0.5, arm=Arm.HINTED, leaks=True)]
    m = measures.of_play([episode(0.0), *hinted], pool)
    assert m["designer/regret_mean"] == 0.75 and m["designer/regret_pairs"] == 4
    assert m["designer/regret_stderr"] == pytest.approx(0.25)
    assert m["designer/regret_ratio"] == pytest.approx(3.0)
    assert m["agent/return_hinted_mean"] == 0.75 and m["agent/return_mean"] == 0.0
    assert m["play/hint_leak_share"] == 1 / 2


def test_nothing_played_is_unknown_not_zero() -> None:
    m = measures.of_play([], [])
    for name in ("agent/return_mean", "agent/success", "play/failed_share", "agent/win_rate/0"):
        assert m[name] is None


def design(slot: int, code: str | None, stop: StopReason = StopReason.STOP) -> Design:
    task = DesignTask(iteration=0, slot=slot, skill="s", kind=Kind.GAME, document=None)
    record = TokenRecord().read((1,)).wrote((2,) * (slot + 1), (0.0,) * (slot + 1))
    return Design(task=task, reply="", stop=stop, record=record, code=code)


def test_designs_by_hand() -> None:
    designs = [
        design(0, "class Base: pass\nclass SumEnv(Base): pass"),
        design(1, "class  SumEnv: pass"),
        design(2, "class Env: pass"),
        design(3, "class XEnv: pass"),
        design(4, None, StopReason.LENGTH),
    ]
    reasons = [*[Reason.ACCEPTED] * 3, Reason.NEW, Reason.EXTRACT]
    verdicts = [Verdict(reason=r, fingerprint=f"f{n}") for n, r in enumerate(reasons)]
    m = measures.of_designs(designs, verdicts, {"f1"})
    assert m["designer/valid_share"] == 3 / 5
    assert m["designer/new_share"] == pytest.approx(2 / 3)
    assert m["designer/class_names"] == 2
    assert m["designer/duplicate_share"] == m["designer/reject/new"] == 1 / 5
    assert m["designer/reject/extract"] == m["designer/truncated_share"] == 1 / 5
    assert m["designer/reply_tokens_mean"] == 3.0
    assert "designer/reject/accepted" not in m


def test_near_duplicates_are_no_repetitions() -> None:
    designs = [design(n, f"class AEnv: a = f{n}()") for n in range(4)]
    verdicts = [
        Verdict(reason=Reason.ACCEPTED, fingerprint="f", resemblance=0.25),
        Verdict(reason=Reason.ACCEPTED, fingerprint="g", resemblance=1.0, resembles="x"),
        Verdict(reason=Reason.NEW, fingerprint="h", resemblance=0.9, resembles="x"),
        Verdict(reason=Reason.NEW, fingerprint="f"),
    ]
    m = measures.of_designs(designs, verdicts, ())
    assert m["designer/duplicate_share"] == 1 / 4 and m["designer/reject/new"] == 1 / 2
    m = measures.of_novelty(designs, verdicts, [])
    assert m["designer/near_duplicate_share"] == 1 / 2
    assert m["designer/resemblance_mean"] == pytest.approx(2.15 / 3)
    assert m["designer/distinct_share"] == 3 / 4
    assert m["designer/diversity"] > 0.2 and m["memory/diversity"] is None


def test_memory_by_skill() -> None:
    def entropy(*skills: str) -> float | None:
        records = [
            MemoryRecord(environment_id="", skill=s, code="", fingerprint="", iteration=0)
            for s in skills
        ]
        return measures.of_memory(records)["memory/skill_entropy"]

    assert entropy() is None
    assert entropy("a", "a") == 0.0
    assert entropy("a", "b", "b", "a") == pytest.approx(0.693147, abs=1e-6)  # log 2
    # 1/4 log 4 + 3/4 log 4/3
    assert entropy("a", "b", "b", "b") == pytest.approx(0.562335, abs=1e-6)


def test_the_retired_were_not_played() -> None:
    gone = dataclasses.replace(entry(1.0, 1.0), retired=True)
    m = measures.of_play([episode(1.0)], [entry(1.0, 0.0), gone])
    assert m["play/retired_share"] == 1 / 2
    assert m["agent/win_rate/5"] == 1 and m["agent/zero_variance_share"] == 0


def test_regret_is_that_of_what_was_played_with_its_hint() -> None:
    kept = entry(1.0, regret=Regret(mean=0.0, stderr=0.0, pairs=2))
    kept = dataclasses.replace(kept, environment=environment("kept"))
    new = entry(1.0, regret=Regret(mean=1.0, stderr=0.0, pairs=2))
    m = measures.of_play([episode(0.0), episode(1.0, arm=Arm.HINTED)], [kept, new])
    assert m["designer/regret_mean"] == 1.0 and m["designer/regret_pairs"] == 2


def test_an_iteration_without_designs_measures_none() -> None:
    assert measures.of_designs([], [], ()) == measures.of_novelty([], [], []) == {}


def test_samples_and_trackers() -> None:
    record = TokenRecord()
    samples = [
        Sample(role=role, records=(record,), advantage=a, version=0)
        for role, a in ((Role.AGENT, 1.0), (Role.AGENT, -0.5), (Role.DESIGNER, 0.0))
    ]
    m = measures.of_samples(samples)
    assert (m["learn/samples/agent"], m["learn/samples/designer"]) == (2, 1)
    assert m["learn/advantage_abs_mean"] == 0.5
    host = HostState(trackers={"Optimization": Tracker(fast=0.5, slow=0.25)})
    assert measures.of_trackers(host) == {
        "tracker/Optimization/fast": 0.5,
        "tracker/Optimization/slow": 0.25,
    }


def test_held_out_success_by_family_and_level() -> None:
    items = [
        Item(environment("e"), family, level, 0)
        for family, level in (("sum", 1), ("sum", 2), ("grid", 1), ("grid", 2))
    ]
    m = measures.of_evaluation(items, [episode(v) for v in (1.0, 0.0, 0.0, None)])
    assert m["evaluation/success"] == 1 / 4
    assert m["evaluation/stderr"] == pytest.approx(0.25)  # sqrt(1/4 / 4)
    assert (m["evaluation/sum/success"], m["evaluation/grid/success"]) == (0.5, 0.0)
    assert (m["evaluation/level/1/success"], m["evaluation/level/2/success"]) == (0.5, 0.0)


def test_repairs_and_judgements_are_counted() -> None:
    designs = [design(n, "class AEnv: ...") for n in range(4)]
    designs[1] = dataclasses.replace(designs[1], repairs=1)
    designs[2] = dataclasses.replace(designs[2], repairs=2)
    accepted = Verdict(reason=Reason.ACCEPTED, judge="yes")
    verdicts = [accepted, dataclasses.replace(accepted, judge="unknown")]
    verdicts += [Verdict(reason=Reason.JUDGE, judge="no"), Verdict(reason=Reason.PARSE)]
    m = measures.of_designs(designs, verdicts, frozenset())
    assert m["designer/valid_share"] == 2 / 4 and m["designer/repaired_share"] == 1 / 4
    assert m["designer/reject/judge"] == 1 / 4
    assert m["designer/judge_unknown_share"] == pytest.approx(1 / 3)
    plain = measures.of_designs(designs[:1], [Verdict(reason=Reason.ACCEPTED)], frozenset())
    assert not {"designer/repaired_share", "designer/judge_unknown_share"} & plain.keys()


def test_what_trackers_are_shown() -> None:
    designs = [design(0, "class AEnv: pass"), design(1, "class BEnv: pass"), design(2, None)]
    verdicts = [Verdict(reason=r) for r in (Reason.ACCEPTED, Reason.ACCEPTED, Reason.EXTRACT)]
    regrets = (Regret(mean=0.5, stderr=None, pairs=1), Regret(mean=0.25, stderr=None, pairs=1))
    pool = tuple(
        PoolEntry(environment=environment(d.task.environment_id), plain=((1.0, 0.0),), regret=r)
        for d, r in zip(designs, regrets, strict=False)
    )
    made = measures.Made(
        designs=designs,
        verdicts=verdicts,
        episodes=[episode(1.0), episode(None), episode(0.5, arm=Arm.HINTED)],
        samples=[],
        rewards={"000000-000": 0.75},
        scored={},
        learned={},
        tokens_sampled=0,
    )
    shown = measures.shown(made, HostState(pool=pool))
    assert shown.histograms == {
        "agent/returns": [1.0],
        "agent/returns_hinted": [0.5],
        "agent/win_rates": [0.5, 0.5],
        "designer/regrets": [0.5, 0.25],
        "designer/rewards": [0.75],
    }
    assert shown.texts["designer/last"].startswith("**BEnv**, s, regret +0.250\n\n    class BEnv")
    assert shown.texts["designer/best"].startswith("**AEnv**, s, regret +0.500")
    # Between regenerations there is nothing new to read.
    later = dataclasses.replace(made, designs=[], verdicts=[])
    assert measures.shown(later, HostState(pool=pool)).texts == {}
