"""Advantages of both roles against numbers worked out by hand, and their properties."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spade_jax.learn.advantages import (
    AGENT_ADVANTAGES,
    DESIGNER_GROUPS,
    PENALTIES,
    ScoredDesign,
    agent_advantages,
    designer_advantages,
    role_scale,
    update_baselines,
)

returns = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0])
groups = st.lists(st.one_of(st.none(), returns), max_size=10)


def known(values: tuple[float | None, ...]) -> list[float]:
    return [value for value in values if value is not None]


def test_grpo_by_hand() -> None:
    # Mean 1/4, deviations 3/4 and -1/4, population std sqrt(3)/4.
    root = math.sqrt(3.0)
    assert agent_advantages("grpo", [1.0, 0.0, 0.0, 0.0]) == pytest.approx(
        (root, -1 / root, -1 / root, -1 / root), abs=1e-12
    )


def test_centred_by_hand() -> None:
    assert agent_advantages("centred", [1.0, 0.0, 0.5, -0.5]) == (0.75, -0.25, 0.25, -0.75)


def test_ema_baseline_by_hand() -> None:
    assert agent_advantages("ema_baseline", [1.0, 0.0], baseline=0.25) == (0.75, -0.25)
    assert agent_advantages("ema_baseline", [1.0, 1.0], baseline=0.25) == (0.75, 0.75)
    assert agent_advantages("ema_baseline", [1.0, 0.0], baseline=None) == (0.5, -0.5)


@pytest.mark.parametrize("mode", AGENT_ADVANTAGES)
@pytest.mark.parametrize("group", [[0.3], [0.3, 0.3, 0.3], [0.3, 0.3 + 9e-7], [0.1 + 0.2, 0.3]])
def test_agreeing_returns_give_exactly_zero(mode: str, group: list[float]) -> None:
    assert agent_advantages(mode, group) == (0.0,) * len(group)


def test_returns_just_apart_are_compared() -> None:
    assert agent_advantages("grpo", [0.3, 0.3 + 2e-6]) == pytest.approx((-1.0, 1.0), abs=1e-6)


@pytest.mark.parametrize("mode", AGENT_ADVANTAGES)
@given(group=groups)
def test_failed_plays_change_no_other_and_get_none(mode: str, group: list[float | None]) -> None:
    with_failures = agent_advantages(mode, group, baseline=0.5)
    without = agent_advantages(mode, [v for v in group if v is not None], baseline=0.5)
    assert known(with_failures) == list(without)
    assert [v is None for v in with_failures] == [v is None for v in group]


@pytest.mark.parametrize("mode", AGENT_ADVANTAGES)
@given(group=groups, data=st.data())
def test_permuting_plays_permutes_advantages(
    mode: str, group: list[float | None], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(group))))
    advantages = agent_advantages(mode, group, baseline=0.5)
    permuted = agent_advantages(mode, [group[i] for i in order], baseline=0.5)
    assert permuted == tuple(advantages[i] for i in order)


@given(
    group=st.lists(returns, min_size=2, max_size=10),
    scale=st.sampled_from([0.5, 2.0, 8.0]),
    shift=st.sampled_from([-2.0, 0.0, 0.5]),
)
def test_scale_and_shift_of_returns(group: list[float], scale: float, shift: float) -> None:
    moved = [scale * value + shift for value in group]
    assert agent_advantages("grpo", moved) == pytest.approx(
        agent_advantages("grpo", group), abs=1e-9
    )
    assert agent_advantages("centred", moved) == pytest.approx(
        [scale * value for value in known(agent_advantages("centred", group))], abs=1e-9
    )


@given(group=st.lists(returns, min_size=2, max_size=10))
def test_grpo_has_mean_zero_and_unit_variance(group: list[float]) -> None:
    advantages = known(agent_advantages("grpo", group))
    assert sum(advantages) == pytest.approx(0.0, abs=1e-9)
    variance = sum(a * a for a in advantages) / len(advantages)
    assert variance == pytest.approx(0.0 if len(set(group)) == 1 else 1.0, abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_return_that_is_no_number_is_a_failed_play(bad: float) -> None:
    assert agent_advantages("grpo", [1.0, bad, 0.0]) == (1.0, None, -1.0)
    assert agent_advantages("grpo", [bad]) == (None,)
    assert update_baselines({"e": 0.5}, {"e": [bad, 1.0], "f": [bad]}, 0.5) == {"e": 0.75}


def test_the_population_divides_by_n() -> None:
    # Mean 1/2; squares 1/4, 1/4, 0 over three: std sqrt(1/6).
    expected = (0.5 * math.sqrt(6), -0.5 * math.sqrt(6), 0.0)
    assert agent_advantages("grpo", [1.0, 0.0, 0.5]) == pytest.approx(expected, abs=1e-12)


def test_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'best'; choose one of grpo, centred, ema_baseline"):
        agent_advantages("best", [1.0])


def test_baselines_by_hand() -> None:
    updated = update_baselines(
        {"seen": 0.5, "broken": 0.125, "gone": 1.0},
        {"seen": [1.0, None, 0.0, 1.0, 1.0], "new": [0.25], "broken": [None], "never": [None]},
        ema_decay=0.25,
    )
    # 0.25 * 0.5 + 0.75 * 0.75
    assert updated == {"seen": 0.6875, "new": 0.25, "broken": 0.125}


@pytest.mark.parametrize(
    ("n_agent", "n_designer", "every", "expected"),
    [
        *[(192, 24, 4, 32.0), (192, 24, 8, 50.0), (10, 40, 1, 0.25), (192, 0, 4, 0.0)],
        *[(0, 24, 4, 4.0), (0, 0, 4, 0.0)],  # no environment to play
    ],
)
def test_role_scale_by_hand(n_agent: int, n_designer: int, every: int, expected: float) -> None:
    assert role_scale(n_agent, n_designer, every, cap=50.0) == expected


def test_designer_advantages_by_hand() -> None:
    designs = [
        ScoredDesign(skill="logic", raw=1.0),
        ScoredDesign(skill="logic", raw=0.5),
        ScoredDesign(skill="logic", penalty=-0.5),
        ScoredDesign(skill="space", raw=0.75),
        ScoredDesign(skill="logic", raw=None),
        ScoredDesign(skill="space", raw=0.25, penalty=-0.25),
    ]
    assert designer_advantages(designs, scale=8.0) == (2.0, -2.0, -4.0, 0.0, None, -2.0)


def test_centred_penalties_by_hand() -> None:
    designs = [
        ScoredDesign(skill="logic", raw=1.0),
        ScoredDesign(skill="logic", raw=0.5),
        ScoredDesign(skill="logic", penalty=0.0),
        ScoredDesign(skill="logic", raw=None),
        ScoredDesign(skill="space", raw=0.75),
        ScoredDesign(skill="space", penalty=-0.5),
    ]
    # The means are 0.5 and 0.125.
    expected = (4.0, 0.0, -4.0, None, 5.0, -5.0)
    assert designer_advantages(designs, scale=8.0, penalties="centred") == expected
    with pytest.raises(ValueError, match="penalties must be one of outside, centred"):
        designer_advantages(designs, scale=8.0, penalties="none")


def test_designs_of_a_prompt_by_hand() -> None:
    designs = [
        ScoredDesign(skill="logic", prompt="p", raw=1.0),
        ScoredDesign(skill="logic", prompt="q", raw=0.5),
        ScoredDesign(skill="logic", prompt="p", raw=0.25),
        ScoredDesign(skill="logic", prompt="q", penalty=-0.5),
    ]
    # Of the skill the mean is 7/12; of the prompts 5/8 and 1/2.
    by_skill = designer_advantages(designs, scale=12.0)
    assert by_skill == pytest.approx((5.0, -1.0, -4.0, -6.0))
    assert designer_advantages(designs, 8.0, groups="prompt") == (3.0, 0.0, -3.0, -4.0)
    assert designer_advantages(designs, 8.0, "centred", "prompt") == (3.0, 4.0, -3.0, -4.0)
    with pytest.raises(ValueError, match="groups must be one of skill, prompt, not 'corpus'"):
        designer_advantages(designs, 8.0, groups="corpus")
    with pytest.raises(ValueError, match="a design has no prompt to be compared by"):
        designer_advantages([ScoredDesign(skill="logic", raw=1.0)], 8.0, groups="prompt")


def test_what_leaks_cost_by_hand() -> None:
    designs = [
        ScoredDesign(skill="logic", raw=1.0, leak=-0.5),
        ScoredDesign(skill="logic", raw=0.5),
        ScoredDesign(skill="logic", raw=None, leak=-0.5),
    ]
    # Outside the mean stays 3/4; centred it is that of 1/2 and 1/2.
    assert designer_advantages(designs, scale=4.0) == (-1.0, -1.0, None)
    assert designer_advantages(designs, 4.0, "centred") == (0.0, 0.0, None)


def test_a_lone_failure_still_teaches() -> None:
    lone = [ScoredDesign(skill="logic", penalty=-0.5)]
    assert designer_advantages(lone, scale=32.0) == (-16.0,)


designs = st.lists(
    st.builds(
        ScoredDesign,
        skill=st.sampled_from(["logic", "space"]),
        prompt=st.sampled_from(["p", "q", "r"]),
        raw=st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        penalty=st.one_of(st.none(), st.just(-0.5)),
    ),
    max_size=12,
)


@given(designs)
def test_valid_designs_of_a_skill_sum_to_zero(batch: list[ScoredDesign]) -> None:
    advantages = designer_advantages(batch, scale=4.0)
    for skill in ("logic", "space"):
        valid = [
            advantage
            for design, advantage in zip(batch, advantages, strict=True)
            if design.skill == skill and design.penalty is None and advantage is not None
        ]
        assert sum(valid) == pytest.approx(0.0, abs=1e-9)


@given(designs)
def test_penalised_designs_change_no_valid_one(batch: list[ScoredDesign]) -> None:
    advantages = designer_advantages(batch, scale=4.0)
    valid = [design for design in batch if design.penalty is None]
    expected = designer_advantages(valid, scale=4.0)
    kept = [a for d, a in zip(batch, advantages, strict=True) if d.penalty is None]
    assert tuple(kept) == expected


@given(designs)
def test_advantages_scale_with_the_role(batch: list[ScoredDesign]) -> None:
    single = designer_advantages(batch, scale=1.0)
    expected = tuple(None if a is None else 8.0 * a for a in single)
    assert designer_advantages(batch, scale=8.0) == expected


@pytest.mark.parametrize("groups", DESIGNER_GROUPS)
@pytest.mark.parametrize("penalties", PENALTIES)
@settings(max_examples=40)
@given(batch=designs, data=st.data())
def test_permuting_designs_permutes_advantages(
    penalties: str, groups: str, batch: list[ScoredDesign], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(batch))))
    advantages = designer_advantages(batch, 4.0, penalties, groups)
    permuted = designer_advantages([batch[i] for i in order], 4.0, penalties, groups)
    assert permuted == tuple(advantages[i] for i in order)


@pytest.mark.parametrize("groups", DESIGNER_GROUPS)
@settings(max_examples=40)
@given(batch=designs)
def test_centred_groups_sum_to_zero_penalties_included(
    groups: str, batch: list[ScoredDesign]
) -> None:
    advantages = designer_advantages(batch, 4.0, "centred", groups)
    for name in {DESIGNER_GROUPS[groups](design) for design in batch}:
        group = [
            advantage
            for design, advantage in zip(batch, advantages, strict=True)
            if DESIGNER_GROUPS[groups](design) == name and advantage is not None
        ]
        assert sum(group) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=40)
@given(batch=designs, shift=st.sampled_from([-0.5, 0.25, 2.0]))
def test_a_shift_of_raw_rewards_changes_nothing(batch: list[ScoredDesign], shift: float) -> None:
    moved = [
        d if d.raw is None else dataclasses.replace(d, raw=d.raw + shift)  # penalties stay
        for d in batch
    ]
    expected = designer_advantages(batch, scale=4.0)
    assert designer_advantages(moved, scale=4.0) == tuple(
        None if a is None else pytest.approx(a, abs=1e-9) for a in expected
    )


def test_every_penalty_outside_pushes_away() -> None:
    batch = [ScoredDesign(skill="logic", raw=r) for r in (0.0, 0.0, 1.0)]
    batch += [ScoredDesign(skill="logic", penalty=-0.5), ScoredDesign(skill="space", penalty=-0.1)]
    assert designer_advantages(batch, scale=3.0)[-2:] == (-1.5, pytest.approx(-0.3))
