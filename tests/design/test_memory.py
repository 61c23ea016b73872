"""Memory: what is kept, what a prompt may show of it, and the archive."""

import dataclasses
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spade_jax import config, jsonl, types
from spade_jax.design import memory


def _record(
    name: str,
    win_rate: float | None = 0.5,
    regret: float | None = 0.0,
    skill: str = "A",
    iteration: int = 0,
) -> types.MemoryRecord:
    return types.MemoryRecord(
        environment_id=name,
        skill=skill,
        code=f"# {name}",
        fingerprint=name,
        iteration=iteration,
        win_rate=win_rate,
        regret=regret,
    )


def _names(records: memory.Memory) -> list[str]:
    return [each.environment_id for each in records]


def test_remember_forgets_the_oldest() -> None:
    kept = memory.remember((_record("a"), _record("b")), [_record("c"), _record("d")], 3)
    assert _names(kept) == ["b", "c", "d"]
    assert memory.remember(kept, [], 0) == ()


def test_remember_replaces_what_is_known_in_its_place() -> None:
    kept = memory.remember((_record("a"), _record("b")), [_record("a", win_rate=0.9)], 3)
    assert _names(kept) == ["a", "b"]
    assert kept[0].win_rate == 0.9


def test_what_is_still_played_is_not_forgotten() -> None:
    records = tuple(_record(name) for name in "abcd")
    kept = memory.remember(records, [_record("a", win_rate=0.75), _record("e")], 4)
    assert _names(kept) == ["a", "c", "d", "e"]
    assert kept[0].win_rate == 0.75
    assert _names(memory.remember((), records, 3)) == ["b", "c", "d"]


def test_the_published_sizes() -> None:
    c = config.load("default").memory
    assert (c.size, c.positives, c.negatives, c.code_characters) == (200, 2, 1, 2000)
    assert memory.GOOD_WIN_RATES == (0.15, 0.85)
    assert (memory.TOO_EASY, memory.TOO_HARD) == (0.9, 0.1)
    kept = memory.remember((), (_record(str(i)) for i in range(201)), c.size)
    assert (len(kept), kept[0].environment_id) == (200, "1")
    code = "x = 10000\n" * 300  # lines of ten characters
    assert memory.cut(code, c.code_characters) == ("x = 10000\n" * 200).rstrip()
    longer = memory.cut("yy" + code, c.code_characters)  # its 200th line ends at 2,001
    assert longer == "yy" + ("x = 10000\n" * 199).rstrip()


def test_unknown_regret_comes_after_known_and_unknown_win_rate_never() -> None:
    records = (
        *(_record(f"known {i}", regret=-1.0) for i in range(10)),
        _record("unknown regret", regret=None),
        _record("unknown rate", win_rate=None, regret=9.0),
    )
    drawn = {
        name
        for seed in range(100)
        for name in _names(memory.positive_seeds(records, "A", 2, random.Random(seed)))
    }
    assert drawn == {f"known {i}" for i in range(10)}
    alone = memory.positive_seeds(records[10:], "A", 2, random.Random(0))
    assert _names(alone) == ["unknown regret"]
    assert memory.negative_examples(records, "A", 9, random.Random(0)) == ()


def test_positive_seeds_come_from_the_band_of_win_rates() -> None:
    rates = {"a": 0.14, "b": 0.15, "c": 0.5, "d": 0.85, "e": 0.86, "f": None}
    records = tuple(_record(name, win_rate=rate) for name, rate in rates.items())
    assert sorted(_names(memory.positive_seeds(records, "A", 9, random.Random(0)))) == [
        "b",
        "c",
        "d",
    ]


def test_positive_seeds_are_drawn_from_the_ten_of_highest_regret() -> None:
    records = tuple(_record(str(i), regret=i / 100) for i in range(20)) + (
        _record("unknown", regret=None),
    )
    drawn = set()
    for seed in range(200):
        seeds = memory.positive_seeds(records, "A", 2, random.Random(seed))
        assert len(set(_names(seeds))) == 2
        drawn |= set(_names(seeds))
    assert drawn == {str(i) for i in range(10, 20)}


def test_positive_seeds_widen_to_three_times_n() -> None:
    records = tuple(_record(str(i), regret=i / 100) for i in range(20))
    drawn = set()
    for seed in range(200):
        drawn |= set(_names(memory.positive_seeds(records, "A", 4, random.Random(seed))))
    assert drawn == {str(i) for i in range(8, 20)}


def test_own_skill_first_then_others() -> None:
    records = (
        _record("own", regret=-1.0, skill="B"),
        _record("x", regret=0.9),
        _record("y", regret=0.8),
    )
    seeds = memory.positive_seeds(records, "B", 2, random.Random(1))
    assert _names(seeds)[0] == "own"
    assert _names(seeds)[1] in ("x", "y")
    assert _names(memory.positive_seeds(records, "B", 1, random.Random(1))) == ["own"]
    assert len(memory.positive_seeds(records, None, 3, random.Random(1))) == 3


def test_negative_examples_are_too_easy_or_too_hard() -> None:
    rates = {"a": 0.0, "b": 0.1, "c": 0.5, "d": 0.9, "e": 0.91, "f": None}
    records = tuple(_record(name, win_rate=rate) for name, rate in rates.items())
    found = memory.negative_examples(records, "A", 9, random.Random(0))
    assert {each.environment_id: memory.complaint(each) for each in found} == {
        "a": "too hard",
        "e": "too easy",
    }
    assert memory.complaint(records[2]) is None
    other = (*records, _record("own", win_rate=1.0, skill="B"))
    assert _names(memory.negative_examples(other, "B", 1, random.Random(0))) == ["own"]


def test_nothing_to_show() -> None:
    assert memory.positive_seeds((), "A", 2, random.Random(0)) == ()
    assert memory.negative_examples((_record("a"),), "A", 1, random.Random(0)) == ()


@given(st.integers(0, 2**32), st.integers(0, 5))
def test_draws_depend_on_the_rng_only(seed: int, n: int) -> None:
    records = tuple(_record(str(i), regret=(i * 7 % 5) / 5) for i in range(12))
    first = memory.positive_seeds(records, "A", n, random.Random(seed))
    assert first == memory.positive_seeds(records, "A", n, random.Random(seed))
    assert len(first) == n


@pytest.mark.parametrize(
    ("characters", "expected"),
    [
        (100, "ab\ncd\n\nef"),
        (9, "ab\ncd\n\nef"),
        (8, "ab\ncd"),
        (5, "ab\ncd"),
        (4, "ab"),
        (2, "ab"),
        (1, "a"),
        (0, ""),
    ],
)
def test_cut_at_a_line_end(characters: int, expected: str) -> None:
    assert memory.cut("ab\ncd\n\nef\n", characters) == expected


@given(st.text(alphabet="ab \n"), st.integers(0, 20))
def test_cut_is_a_prefix_that_fits(code: str, characters: int) -> None:
    result = memory.cut(code, characters)
    assert len(result) <= characters
    assert code.startswith(result)


def test_archive_grows_and_is_cut_back(tmp_path: Path) -> None:
    path = tmp_path / "memory" / "archive.jsonl"
    with memory.Archive(path, 0) as archive:
        unknown = dataclasses.replace(_record("b", win_rate=None), seeds=("z",), document="3:bees")
        archive.append(0, [_record("a"), unknown])
        archive.append(4, [_record("c", iteration=4)])
        archive.append(8, [_record("a", win_rate=0.25)])
    with path.open("ab") as file:
        file.write(b'{"written": 9, "environm')
    with memory.Archive(path, 8) as archive:
        archive.append(8, [_record("d", iteration=8)])
    lines = list(jsonl.read(path))
    assert [(each["written"], each["environment_id"]) for each in lines] == [
        (0, "a"),
        (0, "b"),
        (4, "c"),
        (8, "d"),
    ]
    assert lines[1] == {
        "written": 0,
        "environment_id": "b",
        "skill": "A",
        "code": "# b",
        "fingerprint": "b",
        "iteration": 0,
        "win_rate": None,
        "regret": 0.0,
        "seeds": ["z"],
        "document": "3:bees",
    }
