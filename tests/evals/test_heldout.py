"""The held-out set, and the intervals its results are reported with."""

import collections
import random

import pytest

from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS
from spade_jax.design.fixed_pool import bundled_pool
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import heldout
from spade_jax.evals.heldout import Item
from spade_jax.evals.intervals import Mean, compare, mean
from spade_jax.play import lessons
from spade_jax.play.episodes import Rules
from spade_jax.policy.conversation import Budget
from spade_jax.types import Arm, Environment, Kind

RULES = Rules(
    prompts="tiny",
    max_turns=8,
    budget=Budget(reply=48, context=384),
    return_mode="final",
    discount=1.0,
)


@pytest.fixture(scope="module")
def items() -> tuple[Item, ...]:
    with Corpus("", seed=42, max_words=24) as corpus:
        return heldout.held_out_set(7, 2, corpus)


def test_every_family_and_level_alike(items: tuple[Item, ...]) -> None:
    counts = collections.Counter((item.family, item.level) for item in items)
    assert counts == dict.fromkeys(((f, v) for f in FAMILIES for v in LEVELS), 2)
    assert len({item.environment.id for item in items}) == len(items)
    assert len({item.seed for item in items}) == len(items)


def test_the_set_follows_from_its_seed(items: tuple[Item, ...]) -> None:
    with Corpus("", seed=42, max_words=24) as corpus:
        assert heldout.held_out_set(7, 2, corpus) == items
        other = heldout.held_out_set(8, 2, corpus)
    same = sum(a.environment.code == b.environment.code for a, b in zip(items, other, strict=True))
    assert same < len(items) / 4


def test_training_draws_from_other_streams(items: tuple[Item, ...]) -> None:
    """Small families may write one text twice, but the bulk of the held-out programs is unseen."""
    with Corpus("", seed=42, max_words=24) as corpus:
        skills = sorted({family.skill for family in FAMILIES.values()})
        seen = {e.code for e in bundled_pool(7, 200, skills, corpus)}
        seen |= {lessons.draw_program(7, n, corpus)[0].code for n in range(200)}
    assert sum(item.environment.code in seen for item in items) < len(items) / 20


def test_solvers_win_in_order_and_both_arms(items: tuple[Item, ...]) -> None:
    """A script that solves every second item: outcomes come in the order of the items."""
    chosen = items[:20]
    programs = [
        lessons.Program(
            family=item.family,
            skill=item.environment.skill,
            kind=item.environment.kind,
            level=item.level,
            code=item.environment.code,
        )
        for item in chosen
    ]
    with Sandbox() as sandbox:
        solutions = [
            lessons.solve(sandbox, [item.environment], [[item.seed]])[0][0] for item in chosen
        ]
        for arm in Arm:
            parts = [
                (program, solution if n % 2 else ("no such answer",), True, 0)
                for n, (program, solution) in enumerate(zip(programs, solutions, strict=True))
            ]
            script = lessons.Script(parts)
            done: list[int] = []
            episodes = heldout.play_held_out(
                script, sandbox, chosen, RULES, arm=arm, seed=7, seats=8, progress=done.append
            )
            assert [heldout.won(e) for e in episodes] == [0.0, 1.0] * 10
            assert {e.arm for e in episodes} == {arm} and done[-1] == 20
            assert [e.seed for e in episodes] == [item.seed for item in chosen]


def test_mean_by_hand() -> None:
    # 1, 0, 0, 1, 1: mean 0.6, variance (3 * 0.16 + 2 * 0.36) / 4 = 0.3,
    # half width 1.96 sqrt(0.3 / 5) = 0.48010.
    m = mean([1, 0, 0, 1, 1])
    assert (m.value, m.n) == (0.6, 5)
    assert m.half_width == pytest.approx(0.48010, abs=5e-6)
    assert str(m) == " 60.0% ± 48.0%"
    assert mean([0.5]) == Mean(0.5, 0.0, 1)
    assert mean([1.0] * 4) == Mean(1.0, 0.0, 4)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(1000):
        m = mean([float(rng.random() < 0.3) for _ in range(500)])
        covered += abs(m.value - 0.3) <= m.half_width
    assert 925 <= covered <= 975


def test_gain_is_paired() -> None:
    # Differences 0, 1, 0, 0: mean 1/4, half width 1.96 sqrt(1/4 / 4) = 0.49.
    comparison = compare([1, 0, 0, 1], [1, 1, 0, 1])
    assert (comparison.before.value, comparison.after.value) == (0.5, 0.75)
    assert comparison.gain.value == 0.25
    assert comparison.gain.half_width == pytest.approx(0.49)
    with pytest.raises(ValueError, match=r"zip\(\)"):
        compare([1, 0], [1])


def test_groups_keep_their_order() -> None:
    environment = Environment(id="e", kind=Kind.GAME, skill="s", code="", iteration=0)
    chosen = [Item(environment, name, 1, 0) for name in "baab"]
    groups = heldout.by(lambda item: item.family, chosen, [0, 1, 2, 3])
    assert groups == {"b": [0, 3], "a": [1, 2]} and list(groups) == ["b", "a"]
