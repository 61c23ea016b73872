"""Reasoning Gym's hard split: what it holds, and its plays where the package is installed."""

import collections
import importlib.util
from collections.abc import Sequence

import pytest

from spade_jax.envs import adapters
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import reasoning_gym
from spade_jax.evals.evaluation import chosen
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError
from tests.evals.courses import drive
from tests.evals.scripted import Scripted, play

GROUPS = {"RG Math": 31, "RG Algorithmic": 36, "RG Cognition": 24, "RG Logic": 9}


def test_a_hundred_tasks_in_four_groups() -> None:
    tasks = reasoning_gym.hard_tasks()
    counts = collections.Counter(reasoning_gym.GROUPS[about["group"]] for about in tasks.values())
    assert counts == GROUPS
    assert tasks["base_conversion"]["params"]["max_base"] == 18


def test_items_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = reasoning_gym.ReasoningGym(sandbox=None, modules=())
    items = suite.items()
    counts = collections.Counter(item.group for item in items)
    assert counts == {group: 8 * n for group, n in GROUPS.items()}
    assert len({item.id for item in items}) == 800
    firsts = chosen(items, 9)
    assert {item.id.split("/")[1] for item in firsts} == {"0"} and len(firsts) == 36
    s = suite.settings
    assert (s.plays, s.sampling, s.reply) == (1, Sampling(0.6, 0.8, 20), 8192)


SUMS = """
class SumEnv:
    def reset(self, seed=None):
        self.seed = seed
        return f"What is {seed} + 1?", {}

    def step(self, action):
        near = 0.5 if action.isdecimal() else 0.0
        return "Score.", 1.0 if action == str(self.seed + 1) else near, True, False, {}
"""


def test_the_course_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of our own in the place of each: its prompt, an oracle, and what is no win."""
    tasks = {"sums": {"group": "math", "params": {}}}
    monkeypatch.setattr(reasoning_gym, "hard_tasks", lambda: tasks)
    monkeypatch.setattr(reasoning_gym, "program", lambda task, params: SUMS)
    with Sandbox() as sandbox:
        items = reasoning_gym.ReasoningGym(sandbox=sandbox, modules=()).items()
        assert [item.id for item in items] == [f"sums/{n}" for n in range(8)]
        for reply, answer, score in (
            ("<answer>3</answer>", "3", 1.0),
            ("So \\boxed{1}, no, \\boxed{3}.", "3", 1.0),
            ("<answer>1</answer> <answer>4</answer>", "4", 0.5),
            ("<think><answer>3</answer></think> I do not know.", None, 0.0),
        ):
            outcome, log = drive(items[2].course(0), [reply], sandbox=sandbox)
            assert (outcome.answer, outcome.score, outcome.won) == (answer, score, score == 1.0)
    assert log.texts() == [
        "What is 2 + 1?\n\nReason step by step. Then write the final answer, in the form asked for "
        "above and with nothing else, between <answer> and </answer>."
    ]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install reasoning-gym"):
        with reasoning_gym.open_reasoning_gym():
            pass


def test_oracle_and_dunce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tasks, one of which keeps its answer in the metadata."""
    package = pytest.importorskip("reasoning_gym")
    names = ("chain_sum", "base_conversion", "propositional_logic")
    tasks = {name: reasoning_gym.hard_tasks()[name] for name in names}
    monkeypatch.setattr(reasoning_gym, "hard_tasks", lambda: tasks)
    monkeypatch.setattr(reasoning_gym, "EPISODES", 2)
    answers = {}
    for name, about in tasks.items():
        made = package.create_dataset(name, seed=42, size=500, **about["params"])
        for entry in (made[0], made[1]):
            known = entry["metadata"].get("example_answer") or entry["answer"]
            answers[entry["question"]] = known

    def oracle(said: Sequence[Message]) -> str:
        question = said[-1].content.partition("\n\nReason step by step. Then")[0]
        return f"So <answer>{answers[question]}</answer>"

    with reasoning_gym.open_reasoning_gym() as suite:
        speaker = Scripted(oracle)
        results = play(suite, speaker)
        assert [result.score for result in results] == [1.0] * 6 and all(r.won for r in results)
        asked = speaker.told[0][1][-1].content
        assert asked.endswith(
            "\n\nReason step by step. Then write the final answer, in the form asked for above and "
            "with nothing else, between <answer> and </answer>."
        )
        boxed = play(suite, lambda said: oracle(said).replace("<answer>", "\\boxed{")[:-9] + "}")
        assert [result.won for result in boxed][:4] == [True] * 4
        for dunce in ("I do not know.", "<answer>no</answer>"):
            results = play(suite, lambda said, dunce=dunce: dunce)
            assert not any(result.won for result in results)
            assert all(result.score < 0.5 and not result.failed for result in results)


def test_the_program_is_the_adapters_but_for_the_item() -> None:
    code = reasoning_gym.program("chain_sum", {"num_terms": 3})
    assert adapters.REASONING_GYM_STEP in code
    assert "create_dataset('chain_sum', seed=42, size=500, **{'num_terms': 3})" in code
