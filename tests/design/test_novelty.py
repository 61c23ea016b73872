"""Resemblance of programs, and the quota of near-duplicates."""

import subprocess
import sys
from pathlib import Path

import pytest

from spade_jax.design import novelty
from spade_jax.types import (
    Design,
    DesignTask,
    Kind,
    MemoryRecord,
    Reason,
    StopReason,
    TokenRecord,
    Verdict,
)

SUM = """
import random

class SumEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.a = rng.randint(1, 9)
        self.b = rng.randint(1, 9)
        return f"Add {self.a} and {self.b}.", {}

    def step(self, action):
        won = action.strip() == str(self.a + self.b)
        return "Done.", float(won), True, False, {}
"""
HELPED = SUM.replace(
    "rng = random", "limit = 9\n        rng = random"
)  # renumbers all that follows
OTHER = """
class EchoEnv:
    def reset(self, seed=None):
        self.left = ["red", "blue", "green"][: 1 + (seed or 0) % 3]
        return " ".join(self.left), {}

    def step(self, action):
        if action in self.left:
            self.left.remove(action)
        return f"{len(self.left)} left", 1.0 if not self.left else 0.0, not self.left, False, {}
"""


def resemblance(one: str, other: str) -> float:
    [share] = novelty.resemblances(novelty.signature(one), [novelty.signature(other)])
    return float(share)


def test_names_texts_and_numbers_do_not_count() -> None:
    reworded = SUM.replace("self.a", "self.first").replace("rng", "dice").replace("Add", "Sum up")
    assert resemblance(SUM, reworded.replace("(1, 9)", "(20, 90)")) == 1.0
    assert resemblance(SUM, SUM.replace("class SumEnv:", 'class B:\n    """Adds."""\n')) == 1.0


def test_one_line_more_is_nearly_the_same_and_another_task_is_not() -> None:
    assert 0.8 < resemblance(SUM, HELPED) < 1.0
    assert 0.8 < resemblance(SUM, SUM.replace("self.a + self.b", "self.a * self.b")) < 1.0
    assert resemblance(SUM, OTHER) < 0.4


def test_it_estimates_the_share_of_runs_in_common() -> None:
    """Programs of n and 2n different statements share n of 2n + (their ends) runs: about half."""
    short, long = ("".join(f"f{i}(g{i})\n" for i in range(n)) for n in (200, 400))
    assert resemblance(short, long) == pytest.approx(0.5, abs=3 * (0.25 / 128) ** 0.5)


def test_a_program_of_few_words_has_a_signature() -> None:
    assert resemblance("", "") == 1.0
    assert resemblance("x = 1", "y = 2") == 1.0
    with pytest.raises(SyntaxError):
        novelty.signature("x = (")


def test_signatures_are_the_same_in_every_process() -> None:
    code = f"from spade_jax.design.novelty import signature\nprint(*signature({SUM!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={"PYTHONHASHSEED": "7", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(value) for value in novelty.signature(SUM)]


def test_diversity_is_the_mean_over_pairs() -> None:
    assert novelty.diversity([]) is None and novelty.diversity([SUM]) is None
    assert novelty.diversity([SUM, SUM]) == 0.0
    far = 1 - resemblance(SUM, OTHER)
    assert novelty.diversity([SUM, OTHER]) == pytest.approx(far)
    assert novelty.diversity([SUM, SUM, OTHER]) == pytest.approx(2 / 3 * far)


# -- the quota --------------------------------------------------------------------------------

ACCEPTED = Verdict(reason=Reason.ACCEPTED, fingerprint="f", behaviour="b")


def design(slot: int, code: str | None) -> Design:
    task = DesignTask(iteration=4, slot=slot, skill="s", kind=Kind.GAME, document=None)
    return Design(task=task, reply="", stop=StopReason.STOP, record=TokenRecord(), code=code)


def remembered(name: str, code: str) -> MemoryRecord:
    return MemoryRecord(environment_id=name, skill="s", code=code, fingerprint="", iteration=0)


def judge(codes: list[str], memory: list[MemoryRecord], **options: float) -> list[Verdict]:
    designs = [design(slot, code) for slot, code in enumerate(codes)]
    options = {"threshold": 0.8, "quota": 1} | options
    verdicts = [ACCEPTED] * len(codes)
    return novelty.refuse_near_duplicates(designs, verdicts, memory, **options)


def test_near_duplicates_beyond_the_quota_are_refused() -> None:
    memory = [remembered("000000-003", OTHER), remembered("000000-005", SUM)]
    first, second, other = judge([HELPED, SUM, "f(1)\n" * 30], memory)
    assert first.accepted and first.resembles == "000000-005"
    assert first.resemblance == resemblance(SUM, HELPED)
    assert (second.reason, second.phase) == (Reason.NEW, "pool")
    assert (second.resembles, second.resemblance) == ("000000-005", 1.0)
    assert second.message == (
        "The environment resembles 000000-005 in 100% of its code, and no more than 1 such "
        "near-duplicates are taken at a time; write one with another task or other rules."
    )
    assert other.accepted and other.resembles == "" and other.resemblance < 0.2


def test_designs_of_one_batch_are_compared_too() -> None:
    first, second = judge([SUM, HELPED], [], quota=0)
    assert first == ACCEPTED, "there was nothing to compare it with"
    assert (second.reason, second.resembles) == (Reason.NEW, "000004-000")
    assert [v.accepted for v in judge([SUM, HELPED, SUM, SUM], [], quota=2)] == [
        *[True] * 3,
        False,
    ]


def test_a_refused_design_is_nothing_to_resemble() -> None:
    memory = [remembered("m", SUM)]
    twice = HELPED.replace("won = ", "late = 2\n        won = ")
    close = resemblance(HELPED, twice)
    assert resemblance(SUM, twice) < close <= resemblance(SUM, HELPED)
    first, second = judge([HELPED, twice], memory, quota=0, threshold=close)
    assert not first.accepted and second.accepted


def test_a_threshold_of_one_refuses_nothing() -> None:
    [verdict] = judge([SUM], [remembered("m", SUM)], threshold=1.0, quota=0)
    assert verdict.accepted and (verdict.resembles, verdict.resemblance) == ("", 1.0)


def test_what_was_rejected_before_is_left_as_it_is() -> None:
    bad = Verdict(reason=Reason.EXTRACT, message="Close the block.")
    kept = novelty.refuse_near_duplicates(
        [design(0, None)], [bad], [remembered("m", SUM)], threshold=0.5, quota=0
    )
    assert kept == [bad]
