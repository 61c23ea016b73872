"""Results: kept as they come, gone on with, summed up and compared."""

import csv
import io
import json
from pathlib import Path

import pytest

from spade_jax.evals import compare, results
from spade_jax.evals.results import Plays, Skipped
from spade_jax.evals.runner import Result
from spade_jax.types import UsageError

ABOUT = {"model": "m", "seed": 7, "suites": {"s": {"reply": 8}}}


BFCL = "BFCL v4 multi-turn"


def made(item: str, play: int = 0, won: bool = True, group: str = "G", **more: object) -> Result:
    score = more.pop("score", float(won))
    return Result(suite="s", item=item, group=group, play=play, won=won, score=score, **more)


def test_an_evaluation_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    with Plays(tmp_path, ABOUT) as plays:
        assert plays.missing("s", "a", 0)
        plays.add(made("a"))
        plays.add(made("b", failed="no reply came", won=False))
        plays.add(made("c", won=False, details={"n": 1}))
    path = tmp_path / results.PLAYS
    path.write_bytes(path.read_bytes() + b'{"suite": "s", "item": "d", "play": 0, "gro')
    with Plays(tmp_path, ABOUT) as plays:
        assert set(plays.done) == {("s", "a", 0), ("s", "b", 0), ("s", "c", 0)}
        assert plays.done["s", "c", 0] == made("c", won=False, details={"n": 1})
        assert [plays.missing("s", name, 0) for name in "abcd"] == [False, True, False, True]
        plays.add(made("b"))
    with Plays(tmp_path, ABOUT) as plays:
        assert plays.done["s", "b", 0] == made("b"), "the later line counts"


def test_another_evaluation_is_not_mixed_in(tmp_path: Path) -> None:
    with Plays(tmp_path, ABOUT):
        pass
    with Plays(tmp_path, ABOUT | {"suites": {"t": {"reply": 9}}}):
        pass  # a suite more
    for other, told in (
        (ABOUT | {"seed": 8}, "seed is 7 there and 8 here"),
        (ABOUT | {"suites": {"s": {"reply": 9}}}, "suites.s.reply is 8 there and 9 here"),
        (ABOUT | {"suites": {"t": {"reply": 8}}}, "suites.t.reply is 9 there and 8 here"),
    ):
        with pytest.raises(UsageError, match=f"{told}.*choose another --output"):
            Plays(tmp_path, other)
    (tmp_path / results.ABOUT).write_text("{")
    with pytest.raises(UsageError, match="evaluation.json is damaged"):
        Plays(tmp_path, ABOUT)


def test_a_summary_by_hand() -> None:
    """Items a: 1, 0; b: 1, failed; c: 1, 1. Shares 1/2, 1/2, 1: mean 2/3, variance 1/12."""
    plays = [
        made("a"),
        made("a", 1, won=False, score=0.5),
        made("b", tokens=12),
        made("b", 1, won=True, failed="lost"),  # whatever else it says
        made("c"),
        made("c", 1),
    ]
    [column] = results.summary(plays)
    assert (column.items, column.plays, column.failed, column.tokens) == (3, 6, 1, 2)
    assert column.success == pytest.approx(2 / 3)
    assert column.stderr == pytest.approx((1 / 12 / 3) ** 0.5)
    assert column.score == pytest.approx((0.75 + 0.5 + 1) / 3)
    assert column.unfailed == pytest.approx((0.5 + 1 + 1) / 3)


def test_columns_stand_as_in_the_paper(tmp_path: Path) -> None:
    plays = [made("a", group="RG Logic"), made("b", group="own"), made("c", group="AIME-25")]
    plays += [made("d", group="RG Math", won=False, failed="x")]
    columns = results.write(tmp_path, ABOUT, plays, [Skipped(suite="t", reason="too long")])
    assert [c.name for c in columns] == ["AIME-25", "RG Math", "RG Logic", "own"]
    lines = results.table(columns, [Skipped(suite="t", reason="too long")])
    assert lines[0].split() == "items plays success stderr score failed without tokens".split()
    assert lines[2].split() == "RG Math 1 1 0.0% 0.0% 0.000 1 - 0".split()
    assert lines[5].split()[:4] == "average of 4 75.0%".split()
    assert lines[-2:] == ["skipped t: too long", "1 suite skipped"]
    assert results.read(tmp_path) == plays == results.read(tmp_path / results.FILE)
    content = json.loads((tmp_path / results.FILE).read_text())
    assert content["evaluation"] == ABOUT and content["skipped"][0]["suite"] == "t"


def test_a_column_of_parts_by_hand() -> None:
    """Parts of one item won of two, and of both of two, weigh alike: 3/4, whatever their sizes."""
    plays = [made("h", group="HumanEval", won=False)]
    plays += [made(f"a{n}", won=n == 0, group=f"{BFCL}: base", tokens=8) for n in range(2)]
    plays += [made(f"b{n}", group=f"{BFCL}: miss_func", tokens=2) for n in range(3)]
    plays += [made("b3", group=f"{BFCL}: miss_func", won=False, failed="x", tokens=2)]
    whole, base, missing, code = results.summary(plays)
    assert [c.name for c in (whole, base, missing)] == [BFCL, f"{BFCL}: base", f"{BFCL}: miss_func"]
    assert (base.success, missing.success, whole.success) == (0.5, 0.75, 0.625)
    assert (whole.items, whole.plays, whole.failed, whole.tokens) == (6, 6, 1, 4)
    # Variances of the means: 1/2 / 2 and 1/4 / 4, of which the mean of two has a quarter.
    assert whole.stderr == pytest.approx(((1 / 4 + 1 / 16) / 4) ** 0.5)
    assert whole.unfailed == pytest.approx((0.5 + 1) / 2)
    lines = results.table([whole, base, missing, code], [])
    assert [line[:20].rstrip() for line in lines[1:5]] == [
        BFCL,
        "  base",
        "  miss_func",
        "HumanEval",
    ]
    assert lines[5].split()[:4] == "average of 2 31.2%".split(), "parts count by their column"


@pytest.mark.parametrize("text", ["{", "[]", '{"plays": [{"suite": 1}]}', None])
def test_what_is_no_results_file(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match="results.json"):
        results.read(path)


def test_a_comparison_by_hand() -> None:
    """Shares of A: 0, 1/2; of B: 1, 1/2; an item of one only is left out."""
    a = [made("i", won=False), made("j"), made("j", 1, won=False), made("k")]
    b = [made("i"), made("j"), made("j", 1, won=False)]
    [found] = compare.compare(a, b)
    assert (found.name, found.items, found.a, found.b, found.gain) == ("G", 2, 0.25, 0.75, 0.5)
    # Resamples of the gains 1, 0 have means 0, 1/2 and 1, the ends with probability 1/4 each.
    assert (found.low, found.high) == (0.0, 1.0)
    assert compare.compare(a, b) == [found]
    [same] = compare.compare(a, a)
    assert (same.gain, same.low, same.high) == (0, 0, 0)


def test_the_interval_is_that_of_the_mean() -> None:
    """Of 400 gains, half of them 1: the normal interval is 1/2 -+ 1.96 / 2 / 20."""
    a = [made(str(n), won=False) for n in range(400)]
    b = [made(str(n), won=n % 2 == 0) for n in range(400)]
    [found] = compare.compare(a, b)
    assert found.low == pytest.approx(0.451, abs=0.006)
    assert found.high == pytest.approx(0.549, abs=0.006)


def test_the_average_is_over_columns() -> None:
    a = [made("i", won=False), made("j", group="H"), made("k", group="H")]
    b = [made("i"), made("j", group="H"), made("k", group="H", won=False)]
    *_, average = compare.compare(a, b)
    assert (average.name, average.items) == ("average of 2", 3)
    assert (average.a, average.b, average.gain) == (0.5, 0.75, 0.25)
    # The first column's gain is 1 in every resample, the second's 0, -1/2 or -1.
    assert (average.low, average.high) == (0.0, 0.5)
    rows = list(csv.DictReader(io.StringIO(compare.as_csv(compare.compare(a, b)))))
    assert [row["column"] for row in rows] == ["G", "H", "average of 2"]
    assert float(rows[1]["gain"]) == -0.5
    assert compare.row(compare.compare(a, b)).startswith("G 100.0 (+100.0) | H 50.0 (-50.0) |")
    assert "-50.0" in compare.table(compare.compare(a, b)).splitlines()[2]


def test_parts_are_compared_and_stand_together_in_the_row() -> None:
    a = [made(n, won=False, group=f"{BFCL}: {n}") for n in ("base", "miss_func")]
    b = [
        made("base", group=f"{BFCL}: base"),
        made("miss_func", won=False, group=f"{BFCL}: miss_func"),
    ]
    found = compare.compare(a, b)
    assert [(d.name, d.gain) for d in found] == [
        (BFCL, 0.5),
        (f"{BFCL}: base", 1.0),
        (f"{BFCL}: miss_func", 0.0),
    ]
    assert compare.row(found) == f"{BFCL} 50.0 (+50.0)"


def test_variants_are_drawn_together_and_columns_apart() -> None:
    """The mean of two alike parts varies as each does, that of columns by 1 / sqrt(2) of it."""
    for names, ratio in ((("A: a", "A: b"), 1.0), (("A", "B"), 2**-0.5)):
        a = [made(f"{name}{n}", won=False, group=name) for name in names for n in range(400)]
        b = [made(f"{name}{n}", won=n % 2 == 0, group=name) for name in names for n in range(400)]
        found = {d.name: d.high - d.low for d in compare.compare(a, b)}
        whole = found["A"] if ratio == 1 else found["average of 2"]
        assert whole == pytest.approx(ratio * found[names[0]], rel=0.05)


def test_only_like_is_compared() -> None:
    with pytest.raises(UsageError, match="share no item"):
        compare.compare([made("i")], [made("j")])
    with pytest.raises(UsageError, match="item i of s has another prompt"):
        compare.compare([made("i", prompt="x")], [made("i", prompt="y")])
    assert compare.compare([made("i", prompt="x")], [made("i", failed="lost")])
